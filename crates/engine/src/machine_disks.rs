//! Which disks virtual machines have, by all that goes by a machine's name: its directory in the home, its parcels and
//! its claim in the store. Two homes may each have made a machine of one name, with another disk.

use crate::Home;
use block::{Error, Result, offload};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind as IoKind, Read};
use std::path::Path;
use store::machines::{self, machine_of};
use store::{RefKind, Store, check_name};

/// The longest description that is read, in bytes.
const LONGEST: u64 = 64 << 10;

/// The disks of whatever goes by one machine's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineDisks {
    /// Their names.
    pub disks: BTreeSet<String>,
    /// There is something of that name which does not say its disk: it is damaged, or a newer build made it.
    pub some_unknown: bool,
}

impl MachineDisks {
    fn note(&mut self, disk: Option<String>) {
        match disk {
            Some(disk) => drop(self.disks.insert(disk)),
            None => self.some_unknown = true,
        }
    }
}

/// The disks of the machine `only`, or of all machines, of a home and its store, by the machine's name. A name that
/// nothing goes by is not among them, nor is one that no machine can have.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store cannot be
/// listed or the home cannot be read.
pub async fn machine_disks(
    home: &Home,
    store: &Store,
    only: Option<&str>,
) -> Result<BTreeMap<String, MachineDisks>> {
    if only.is_some_and(|name| check_name("machine", name).is_err()) {
        return Ok(BTreeMap::new());
    }
    let (vms, one) = (home.vms(), only.map(str::to_owned));
    let mut found = offload(move || described(&vms, one.as_deref())).await?;
    let is_wanted = |name: &str| only.is_none_or(|only| machine_of(name) == only);
    for kind in [RefKind::Parcel, RefKind::Machine] {
        let listing = store.refs().list_some(kind, is_wanted).await?;
        for record in &listing.records {
            let of_name = found.entry(machine_of(&record.name).to_owned()).or_default();
            of_name.note(machines::disk_of(kind, &record.body));
        }
        // In an encrypted store nobody knows whose a damaged one is.
        for damaged in listing.damaged.iter().filter(|damaged| is_wanted(&damaged.name)) {
            found.entry(machine_of(&damaged.name).to_owned()).or_default().note(None);
        }
    }
    Ok(found)
}

/// The disks that the directories of machines name.
fn described(vms: &Path, only: Option<&str>) -> Result<BTreeMap<String, MachineDisks>> {
    let names = match (only, std::fs::read_dir(vms)) {
        (Some(only), _) => vec![only.to_owned()],
        (None, Err(e)) if e.kind() == IoKind::NotFound => Vec::new(),
        (None, entries) => {
            let names = entries.and_then(|entries| {
                entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()
            });
            let names = names.map_err(|e| Error::io(vms.display(), e))?;
            names.into_iter().filter_map(|name| name.into_string().ok()).collect()
        }
    };
    let mut found = BTreeMap::new();
    for name in names {
        let mut disks = MachineDisks::default();
        let directory = vms.join(&name);
        if let Some(text) = read(&directory.join("machine.json"))? {
            disks.note(disk_in(&text));
        }
        if let Some(text) = read(&directory.join("pending/pending.json"))? {
            disks.note(disk_in_suspension(&text));
        }
        if disks != MachineDisks::default() {
            found.insert(name, disks);
        }
    }
    Ok(found)
}

/// What is in a file; `None` when there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(LONGEST).read_to_end(&mut text));
    match read {
        Ok(_) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), IoKind::NotFound | IoKind::NotADirectory) => Ok(None),
        Err(e) => Err(Error::io(path.display(), e)),
    }
}

/// What every version of a description has.
#[derive(Deserialize)]
struct DiskOfMachine {
    disk: String,
}

fn disk_in(text: &[u8]) -> Option<String> {
    serde_json::from_slice::<DiskOfMachine>(text).ok().map(|machine| machine.disk)
}

fn disk_in_suspension(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OfMachine {
        machine: DiskOfMachine,
    }
    serde_json::from_slice::<OfMachine>(text).ok().map(|suspended| suspended.machine.disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_goes_by_a_name_says_its_disk_and_what_does_not_is_noted() {
        let vms = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = vms.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("work/machine.json", r#"{"version":9,"disk":"alice","new":{}}"#);
        write("work/pending/pending.json", r#"{"machine":{"disk":"bob"}}"#);
        write("broken/machine.json", r#"{"version":1}"#);
        write("half/machine.json", r#"{"disk":"carol"}"#);
        write("half/pending/pending.json", "{");
        write("nothing/keeper.log", "");
        let found = described(vms.path(), None).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|(name, of)| {
                (name.as_str(), of.disks.iter().map(String::as_str).collect(), of.some_unknown)
            })
            .collect();
        let expected: Vec<(&str, Vec<&str>, bool)> = vec![
            ("broken", vec![], true),
            ("half", vec!["carol"], true),
            ("work", vec!["alice", "bob"], false),
        ];
        assert_eq!(told, expected);
        assert_eq!(described(vms.path(), Some("work")).unwrap().len(), 1);
        assert!(described(vms.path(), Some("nobody")).unwrap().is_empty());
    }
}

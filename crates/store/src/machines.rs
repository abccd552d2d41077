//! What the refs of machines say, for whoever knows machines by these alone: the disk of one, who runs it, and the
//! snapshot that belongs to a parcel.

use crate::{RefBody, RefKind, ServerId};
use serde::Deserialize;

/// The label of a parcel with the description of its machine.
pub const DESCRIPTION: &str = "machine";
/// The label of a claim with the machine's disk.
pub const DISK: &str = "disk";
/// The label of a claim with the server whose home runs the machine.
pub const SERVER: &str = "server";

/// The regions of a memory image begin at multiples of this.
const REGION: u64 = 256 << 20;

/// Where in the image of so many bytes of memory that begins which has to be xored to what is at its start.
pub fn delta_start(memory: u64) -> u64 {
    memory.next_multiple_of(REGION)
}

/// The machine that a parcel or a claim of this name is of.
pub fn machine_of(name: &str) -> &str {
    name.split_once('@').map_or(name, |(machine, _)| machine)
}

/// The disk of the machine that a parcel or a claim is of; `None` when it does not say.
pub fn disk_of(kind: RefKind, body: &RefBody) -> Option<String> {
    /// What every version of a description has.
    #[derive(Deserialize)]
    struct Described {
        disk: String,
    }
    match kind {
        RefKind::Machine => body.labels.get(DISK).cloned(),
        RefKind::Parcel => {
            let described: Described = serde_json::from_str(body.labels.get(DESCRIPTION)?).ok()?;
            Some(described.disk)
        }
        _ => None,
    }
}

/// The server whose home runs a machine, by the claim on it; `None` when that does not say.
pub fn server_of(claim: &RefBody) -> Option<ServerId> {
    claim.labels.get(SERVER)?.parse().ok()
}

/// The name of the snapshot that belongs to a parcel.
pub fn snapshot_name(machine: &str, number: u64) -> String {
    format!("vm-{machine}-{number}")
}

/// The parcel whose snapshot a name would be, be there one or not.
pub fn parcel_named(snapshot: &str) -> Option<String> {
    let (machine, number) = snapshot.strip_prefix("vm-")?.rsplit_once('-')?;
    number.parse::<u64>().ok().map(|number| format!("{machine}@{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(labels: &[(&str, &str)]) -> RefBody {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        RefBody { manifest: None, size: 0, created: 0, labels: labels.collect() }
    }

    #[test]
    fn the_disk_of_a_machine_is_read_and_what_is_no_description_names_none() {
        let claim = body(&[(DISK, "alice")]);
        assert_eq!(disk_of(RefKind::Machine, &claim).as_deref(), Some("alice"));
        assert_eq!(disk_of(RefKind::Parcel, &claim), None);
        let parcel = body(&[(DESCRIPTION, r#"{"version":9,"disk":"alice","new":{}}"#)]);
        assert_eq!(disk_of(RefKind::Parcel, &parcel).as_deref(), Some("alice"));
        assert_eq!(disk_of(RefKind::Disk, &parcel), None);
        for broken in ["", "{}", "[]", r#"{"disk":7}"#, r#"{"disk":"a","disk":"b"}"#] {
            assert_eq!(disk_of(RefKind::Parcel, &body(&[(DESCRIPTION, broken)])), None, "{broken}");
        }
    }

    #[test]
    fn a_snapshot_names_the_parcel_that_it_belongs_to() {
        assert_eq!(parcel_named(&snapshot_name("lab-7", 12)).as_deref(), Some("lab-7@12"));
        for other in ["vm-work", "vm-work-", "work-1", "vm-work--1", "vm-work-1x"] {
            assert_eq!(parcel_named(other).filter(|name| name != "work-@1"), None, "{other}");
        }
        assert_eq!(machine_of("work@5"), "work");
        assert_eq!(machine_of("work"), "work");
    }
}

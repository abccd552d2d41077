//! Snapshots and disks that virtual machines need: without its snapshot a machine does not go back to a parcel, and
//! without its disk, as it was, not to a suspension that is not in the store yet.

use super::Engine;
use block::{Error, ErrorKind, Result, offload};
use serde::Deserialize;
use std::io::Read;
use std::path::Path;
use store::machines::{self, parcel_named};
use store::{RefKind, ServerId, Store};

/// What is read of a suspension that is in a machine's directory and not in the store yet (docs/vm-format.md).
#[derive(Debug, Deserialize)]
struct LocalSuspension {
    number: u64,
    disk_mark: String,
    machine: SuspendedMachine,
}

#[derive(Debug, Deserialize)]
struct SuspendedMachine {
    name: String,
    disk: String,
}

impl LocalSuspension {
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) when a newer build wrote it, [`Corrupt`](ErrorKind::Corrupt) when it is
    /// none.
    fn decode(text: &[u8]) -> Result<Self> {
        /// What every version has.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |e| Error::corrupt(format!("is no suspension: {e}"));
        let Versioned { version } = serde_json::from_slice(text).map_err(damaged)?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "a suspension that a newer sojourn made, which may need this disk: use that one (it is of version \
                 {version}, and {VERSION} is read here)"
            )));
        }
        serde_json::from_slice(text).map_err(damaged)
    }
}

/// The version of its description that is read.
const VERSION: u32 = 1;
/// Where a machine's directory has it.
const PENDING: &str = "pending/pending.json";
/// The longest one, in bytes.
const LONGEST: u64 = 64 << 10;

/// The parcel whose disk a snapshot is: `work@5` for `vm-work-5`, if there is such a parcel and it names that
/// snapshot's content.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be read;
/// [`Corrupt`](ErrorKind::Corrupt) when what it holds is damaged.
pub async fn parcel_of(store: &Store, disk: &str, snapshot: &str) -> Result<Option<String>> {
    let Some(parcel) = parcel_named(snapshot) else { return Ok(None) };
    let full = format!("{disk}@{snapshot}");
    let refs = store.refs();
    let Some(found) = refs.get(RefKind::Parcel, &parcel).await? else { return Ok(None) };
    let Some(frozen) = refs.get(RefKind::Snapshot, &full).await? else { return Ok(None) };
    let manifest = frozen.body.manifest;
    let named = found.body.roots()?.iter().any(|root| Some(*root) == manifest);
    Ok(named.then_some(parcel))
}

/// Refuses to remove a snapshot that a parcel needs.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) with the parcel's name; any error from the store.
pub(crate) async fn must_not_need(engine: &Engine, disk: &str, snapshot: &str) -> Result<()> {
    match parcel_of(&engine.store, disk, snapshot).await? {
        None => Ok(()),
        Some(parcel) => Err(Error::conflict(format!(
            "snapshot {disk}@{snapshot} belongs to the suspended machine {parcel}; remove that one \
             ('sojourn vm remove {parcel}'), and the snapshot goes with it"
        ))),
    }
}

/// Refuses to remove a disk that suspended machines go on with. One that another server took is only
/// removed here, and stays theirs.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) with a machine's name; any error from the store.
pub(crate) async fn must_not_need_disk(engine: &Engine, disk: &str, lost: bool) -> Result<()> {
    let of_machine = |name: &str| {
        name.split_once('@').is_some_and(|(of, snapshot)| of == disk && snapshot.starts_with("vm-"))
    };
    for found in engine.store.refs().list_some(RefKind::Snapshot, of_machine).await?.records {
        let Some((_, snapshot)) = found.name.split_once('@') else { continue };
        let Some(parcel) = parcel_of(&engine.store, disk, snapshot).await? else { continue };
        if is_only_removed_here(engine, disk, lost).await? {
            return Ok(());
        }
        let machine = parcel.split('@').next().unwrap_or_default();
        return Err(Error::conflict(format!(
            "disk {disk:?} is that of the suspended machine {parcel}, which goes on with no other one; remove the \
             machine first ('sojourn vm remove {machine}')"
        )));
    }
    must_not_need_elsewhere(engine, disk, lost).await
}

/// Refuses to remove the disk of a machine that another home runs, or has suspended without its being in the store.
async fn must_not_need_elsewhere(engine: &Engine, disk: &str, lost: bool) -> Result<()> {
    let claims = claims_elsewhere(engine, disk).await?;
    if claims.is_empty() || is_only_removed_here(engine, disk, lost).await? {
        return Ok(());
    }
    // Who lost the disk runs the machine for nothing.
    let holder = holder(engine, disk).await?;
    let needing = claims.iter().find(|claim| holder.is_none_or(|holder| holder == claim.server));
    let Some(claim) = needing else { return Ok(()) };
    let (machine, host) = (&claim.machine, host_of(engine, claim.server).await?);
    Err(Error::conflict(format!(
        "disk {disk:?} is that of machine {machine:?}, which runs on {host}, or was suspended there and is not in \
         the store yet; wait for that ('sojourn vm suspend --wait {machine}' there), or, if that host is gone for \
         good, forget the machine ('sojourn vm remove --lost {machine}')"
    )))
}

/// Refuses to take the disk of a machine from the server that runs the machine, or has suspended it without its being in
/// the store, be that server at work or not: what the machine has in its memory goes on with no other state of the disk.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) with the machine's name, its host and the remedy; any error from the store.
pub async fn must_not_run_elsewhere(engine: &Engine, disk: &str) -> Result<()> {
    store::check_name("disk", disk)?;
    let own = engine.disks.server().await?;
    // Nobody runs a machine with a disk that was released: its memory is in the store.
    let Some(holder) = holder(engine, disk).await?.filter(|holder| *holder != own) else {
        return Ok(());
    };
    let claims = claims_elsewhere(engine, disk).await?;
    let Some(claim) = claims.iter().find(|claim| claim.server == holder) else { return Ok(()) };
    let (machine, host) = (&claim.machine, host_of(engine, holder).await?);
    Err(Error::conflict(format!(
        "disk {disk:?} is that of machine {machine:?}, which runs on {host}, or was suspended there and is not in the \
         store yet; have it go on there ('sojourn vm resume {machine}'), or go to the store ('sojourn vm suspend \
         --wait {machine}'), and take the disk then; if that host is gone for good, take it with --force: what the \
         machine has in its memory is lost then"
    )))
}

/// What the store says of a machine that another home runs.
struct ClaimElsewhere {
    machine: String,
    server: ServerId,
}

/// The claims of other homes on machines that have this disk.
async fn claims_elsewhere(engine: &Engine, disk: &str) -> Result<Vec<ClaimElsewhere>> {
    let own = engine.disks.server().await?;
    let claims = engine.store.refs().list(RefKind::Machine).await?.records;
    let elsewhere = claims.into_iter().filter_map(|found| {
        let server = machines::server_of(&found.body).filter(|server| *server != own)?;
        let of = machines::disk_of(RefKind::Machine, &found.body)?;
        (of == disk).then_some(ClaimElsewhere { machine: found.name, server })
    });
    Ok(elsewhere.collect())
}

/// The server that holds a disk; none when it was released, and of a disk that the store does not know.
async fn holder(engine: &Engine, disk: &str) -> Result<Option<ServerId>> {
    let found = engine.store.refs().get(RefKind::Disk, disk).await?;
    Ok(found.as_ref().map(disk::holder).transpose()?.flatten())
}

/// The host of a server in its own words, or its id.
async fn host_of(engine: &Engine, server: ServerId) -> Result<String> {
    let seen = engine.store.servers().seen(&server).await?;
    Ok(seen.map_or_else(|| server.to_string(), |seen| seen.host))
}

/// Whether a disk that is removed stays another server's, or nobody's after another server released it.
async fn is_only_removed_here(engine: &Engine, disk: &str, lost: bool) -> Result<bool> {
    if lost {
        return Ok(false);
    }
    let taken = engine.disks.elsewhere().await?;
    let is_held = taken.iter().any(|other| other.name == disk && other.holder.is_some());
    Ok(is_held || engine.disks.is_here_only(disk).await?)
}

/// Refuses to change what a disk holds while a machine can go on from it that was suspended in this home and is not
/// in the store yet. Asks no store.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) with the machine's name; any error from the file system and the disk.
pub async fn must_not_be_suspended(engine: &Engine, disk: &str) -> Result<()> {
    let (vms, of) = (engine.home.vms(), disk.to_owned());
    for found in offload(move || suspended_with(&vms, &of)).await? {
        let mark = match engine.open.hold(disk).await {
            Ok(disk) => disk.mark(),
            // Nothing goes on from a disk that is damaged, or was taken from here.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Fenced
                ) =>
            {
                None
            }
            Err(e) => return Err(e),
        };
        if mark == Some(found.disk_mark) {
            let (machine, number) = (found.machine.name, found.number);
            return Err(Error::conflict(format!(
                "disk {disk:?} is that of machine {machine:?}, which was suspended here as {machine}@{number} and is \
                 not in the store yet: wait for that ('sojourn vm suspend --wait {machine}'), or drop it ('sojourn \
                 vm discard {machine}')"
            )));
        }
    }
    Ok(())
}

/// The description of a machine, as far as it is read.
#[derive(Debug, Deserialize)]
struct DescribedMachine {
    disk: String,
}

/// Whether the description in a machine's directory can be read, and names another disk.
fn is_of_another_disk(machine: &Path, disk: &str) -> bool {
    let text = std::fs::read(machine.join("machine.json")).unwrap_or_default();
    serde_json::from_slice(&text).is_ok_and(|found: DescribedMachine| found.disk != disk)
}

/// The suspensions in the directory of the machines that have this disk. One that cannot be read counts as one, unless
/// its machine has another disk.
fn suspended_with(vms: &Path, disk: &str) -> Result<Vec<LocalSuspension>> {
    let entries = match std::fs::read_dir(vms) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| Error::io(vms.display(), e))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let machine = entry.map_err(|e| Error::io(vms.display(), e))?.path();
        let path = machine.join(PENDING);
        let mut text = Vec::new();
        let read =
            std::fs::File::open(&path).and_then(|file| file.take(LONGEST).read_to_end(&mut text));
        let read = match read {
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                continue;
            }
            other => other.map_err(|e| Error::io(path.display(), e)),
        };
        let read = read
            .and_then(|_| LocalSuspension::decode(&text).map_err(|e| e.context(path.display())));
        match read {
            Ok(suspension) => found.push(suspension),
            Err(_) if is_of_another_disk(&machine, disk) => {}
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                return Err(e.context(format!("disk {disk:?} stays as it is")));
            }
            Err(e) => {
                return Err(e.context(format!(
                    "a suspension that may need disk {disk:?} cannot be read: if a newer sojourn made it, use that one; \
                     else have it readable again, or remove {} if nothing of it is needed",
                    path.parent().unwrap_or(&path).display()
                )));
            }
        }
    }
    found.retain(|found: &LocalSuspension| found.machine.disk == disk);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory of the machine `work`, suspended with the disk `alice`.
    fn suspended(vms: &Path, version: u32) -> std::path::PathBuf {
        let machine = vms.join("work");
        std::fs::create_dir_all(machine.join("pending")).unwrap();
        let text = format!(
            "{{\"version\":{version},\"number\":5,\"token\":\"0\",\"created\":7,\"disk_mark\":\"mark\",\"base\":null,\
             \"machine\":{{\"version\":1,\"name\":\"work\",\"disk\":\"alice\"}}}}"
        );
        std::fs::write(machine.join(PENDING), text).unwrap();
        machine
    }

    #[test]
    fn a_suspension_is_found_by_its_disk() {
        let vms = tempfile::tempdir().unwrap();
        suspended(vms.path(), 1);
        let found = suspended_with(vms.path(), "alice").unwrap();
        assert_eq!((found.len(), found[0].number, found[0].disk_mark.as_str()), (1, 5, "mark"));
        assert!(suspended_with(vms.path(), "bob").unwrap().is_empty());
    }

    #[test]
    fn one_that_a_newer_build_made_or_that_is_damaged_keeps_the_disk_that_it_may_need() {
        let vms = tempfile::tempdir().unwrap();
        let machine = suspended(vms.path(), 2);
        let refused = suspended_with(vms.path(), "alice").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.message().contains("a newer sojourn made"), "{refused}");
        assert!(!refused.message().contains("remove"), "nothing is thrown away: {refused}");
        std::fs::write(machine.join(PENDING), "{").unwrap();
        let refused = suspended_with(vms.path(), "alice").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        // Of another machine it is no business.
        std::fs::write(machine.join("machine.json"), "{\"disk\":\"bob\"}").unwrap();
        assert!(suspended_with(vms.path(), "alice").unwrap().is_empty());
    }
}

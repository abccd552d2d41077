//! Machines that clients run: what a parcel or a claim may say, and what of a machine may be removed.
//!
//! The lease of its disk decides who may run a machine, here as anywhere: a client publishes parcels and claims of a
//! machine whose disk a server of its own holds, and for which it may write both names. What the server's own verbs
//! could not read, or would take for another machine, is not published: nobody could remove it.

use super::Gateway;
use super::client::Client;
use super::holders::{claim, held_disk, owns};
use super::names::KnownNames;
use access::Right;
use block::{Error, Result};
use store::{RefKind, RefRecord, machines};
use vm::{Parcel, RunClaim};

/// The longest record of a machine that a client publishes, in bytes: QEMU's arguments are most of it.
const LONGEST: u64 = 16 << 10;
/// Parcels of a disk, and claims on it, that clients may make.
const MOST_PARCELS: usize = 1000;
const MOST_CLAIMS: usize = 8;

/// A machine, as a record of it says.
#[derive(PartialEq, Eq)]
struct MachineIdentity {
    disk: String,
    uuid: String,
}

impl MachineIdentity {
    /// What a record says, with what the rules for its kind are besides.
    fn read(kind: RefKind, record: &RefRecord) -> Result<Self> {
        if kind == RefKind::Parcel {
            let parcel = Parcel::read(record)?;
            return Ok(Self { disk: parcel.spec.disk, uuid: parcel.spec.uuid });
        }
        let claim = RunClaim::read(record)?;
        let of_it = |parcel: &String| {
            let number =
                parcel.strip_prefix(claim.machine.as_str()).and_then(|n| n.strip_prefix('@'));
            number.is_some_and(|number| number.parse::<u64>().is_ok())
        };
        match machines::disk_of(kind, &record.body) {
            Some(disk) if claim.parcel.as_ref().is_none_or(of_it) && is_uuid(&claim.uuid) => {
                Ok(Self { disk, uuid: claim.uuid })
            }
            _ => Err(Error::corrupt("is no claim on a machine")),
        }
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Fails unless a parcel is new, or a claim follows one of the same machine, and a server of the client holds the disk.
/// `length` is that of the record, in bytes.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied), [`Conflict`](block::ErrorKind::Conflict) or
/// [`Fenced`](block::ErrorKind::Fenced) then; any error from the store.
pub(super) async fn check(
    gateway: &Gateway,
    client: &Client,
    kind: RefKind,
    (before, next): (Option<&RefRecord>, &RefRecord),
    length: u64,
) -> Result<()> {
    let denied = |why: &str| Err(Error::denied(format!("{kind} {:?} {why}", next.name)));
    if length > LONGEST {
        return denied("has more QEMU arguments than a client may publish; give the machine fewer");
    }
    let own = match MachineIdentity::read(kind, next) {
        Ok(own) => own,
        Err(e) => return denied(&format!("is none that this server can read: {}", e.message())),
    };
    if client.right(gateway, RefKind::Disk, &own.disk).await? != Some(Right::Write) {
        return denied(&format!("is of disk {:?}, which no rule lets this client write", own.disk));
    }
    held_disk(gateway, client, &own.disk).await?;
    if kind == RefKind::Parcel {
        if before.is_some() {
            return Err(Error::conflict(format!("parcel {:?} exists already", next.name)));
        }
    } else {
        let server = machines::server_of(&next.body);
        if !matches!(server, Some(server) if claim(gateway, client, &server).await?) {
            return Err(Error::fenced(format!(
                "machine {:?} cannot be run by a server that is not this client's",
                next.name
            )));
        }
        if before.is_some_and(|before| {
            !MachineIdentity::read(kind, before).is_ok_and(|then| then == own)
        }) {
            return denied("is another machine's already");
        }
    }
    // A resume waits for its claim, and must not wait for the next look as well.
    let names = match kind {
        RefKind::Parcel => client.names_now(gateway).await?,
        _ => client.names_of_just_now(gateway).await?,
    };
    check_others(&names, kind, &own, next)
}

/// Fails when the name is another machine's, or the disk has as many parcels or claims as clients may make.
fn check_others(
    names: &KnownNames,
    kind: RefKind,
    own: &MachineIdentity,
    next: &RefRecord,
) -> Result<()> {
    let name = machines::machine_of(&next.name);
    for kind in [RefKind::Parcel, RefKind::Machine] {
        let of_name = |record: &&RefRecord| machines::machine_of(&record.name) == name;
        let is_other =
            |record: &RefRecord| MachineIdentity::read(kind, record).is_ok_and(|it| it != *own);
        if names.records(kind).filter(of_name).any(is_other) {
            return Err(Error::denied(format!("{name:?} is another machine's name already")));
        }
    }
    let of_disk = |record: &&RefRecord| {
        record.name != next.name
            && machines::disk_of(kind, &record.body).is_some_and(|disk| disk == own.disk)
    };
    let (most, what, remedy) = match kind {
        RefKind::Parcel => (MOST_PARCELS, "parcels", "vm remove MACHINE@NUMBER"),
        _ => (MOST_CLAIMS, "claims", "vm remove MACHINE"),
    };
    match names.records(kind).filter(of_disk).count() < most {
        true => Ok(()),
        false => Err(Error::denied(format!(
            "disk {:?} has {most} {what} already; remove some at the server ('sojourn {remedy}')",
            own.disk
        ))),
    }
}

/// Fails unless a name may be removed by a client: the claim of a server of its own, and the snapshot of a parcel that
/// is not there. Everything else is removed at the server, so that a client that was broken into leaves something to
/// go back to.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) for everything else; any error from the store.
pub(super) async fn check_removal(
    gateway: &Gateway,
    client: &Client,
    kind: RefKind,
    before: Option<&RefRecord>,
) -> Result<()> {
    let may = match (kind, before) {
        (RefKind::Machine, Some(before)) => match machines::server_of(&before.body) {
            Some(server) => owns(gateway, client, &server).await?,
            None => false,
        },
        (RefKind::Snapshot, Some(before)) => is_left_of_a_parcel(gateway, client, before).await?,
        _ => false,
    };
    match may {
        true => Ok(()),
        false => Err(Error::denied("names are removed at the server, not by its gateway")),
    }
}

/// Whether a snapshot of a disk that a server of the client holds was made for a parcel, and there is none: it never
/// was made, or was removed at the server.
async fn is_left_of_a_parcel(
    gateway: &Gateway,
    client: &Client,
    snapshot: &RefRecord,
) -> Result<bool> {
    let Some((disk, name)) = snapshot.name.split_once('@') else { return Ok(false) };
    let Some(parcel) = machines::parcel_named(name) else { return Ok(false) };
    // Its holder may be about to make that parcel.
    held_disk(gateway, client, disk).await?;
    Ok(gateway.store().refs().get(RefKind::Parcel, &parcel).await?.is_none())
}

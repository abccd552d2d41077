//! What may follow in the ref of a disk: for who passes on the records of others, and believes none.

use crate::fence::{self, DiskHolder};
use crate::shadow;
use block::{Error, Result};
use store::{RefBody, RefRecord, ServerId};

/// What a new record of a disk's ref does with the right to write the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Succession {
    /// A new disk, of this server.
    Made(ServerId),
    /// Its holder publishes, gives it up, or goes on with what it gave up.
    Kept(ServerId),
    /// Another server takes it.
    Taken {
        /// Who does.
        by: ServerId,
        /// From whom; `None` when it was released.
        from: Option<ServerId>,
    },
}

impl Succession {
    /// The server for which the record was written.
    pub fn server(&self) -> ServerId {
        match *self {
            Self::Made(server) | Self::Kept(server) | Self::Taken { by: server, .. } => server,
        }
    }

    /// What `next` does after `before`; `None` before it: there was no such disk, or it was removed.
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) for an epoch that does not follow, or a server that is not the
    /// holder; [`Conflict`](block::ErrorKind::Conflict) for another disk, or one that is being removed;
    /// [`Corrupt`](block::ErrorKind::Corrupt) for labels that make no sense.
    pub fn of(before: Option<&RefRecord>, next: &RefRecord) -> Result<Self> {
        let held = fence::held(next)?;
        let Some(server) = held.by.or(held.released_by()) else {
            return Err(refused(next, "names neither a holder nor who released it"));
        };
        fence::check_stays(next)?;
        let Some(before) = before else {
            return match held.by {
                Some(by) => Ok(Self::Made(by)),
                None => Err(refused(next, "makes a disk that nobody holds")),
            };
        };
        fence::check_stays(before)?;
        if before.body.labels.get(fence::UUID) != next.body.labels.get(fence::UUID) {
            return Err(Error::conflict(format!("disk {:?} is another one", next.name)));
        }
        let held_before = fence::held(before)?;
        match held_before {
            DiskHolder { epoch, .. } if epoch == held.epoch && held_before.is_of(server) => {
                Ok(Self::Kept(server))
            }
            DiskHolder { epoch, by, .. } if epoch.checked_add(1) == Some(held.epoch) => {
                match held.by {
                    Some(server) => Ok(Self::Taken { by: server, from: by }),
                    None => Err(refused(next, "releases a disk that it did not hold")),
                }
            }
            DiskHolder { epoch, .. } => Err(Error::fenced(format!(
                "disk {:?} is held by another server (epoch {epoch}, here {})",
                next.name, held.epoch
            ))),
        }
    }
}

/// Whether a record of a disk's ref names `server` as the holder, or as the last one; and the disk's uuid.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) for labels that make no sense.
pub fn last_holder(found: &RefRecord) -> Result<Option<ServerId>> {
    let held = fence::held(found)?;
    Ok(held.by.or(held.released_by()))
}

/// Whether two records are of one disk: that of a disk, and that of a snapshot of it.
pub fn is_same_disk(one: &RefBody, other: &RefBody) -> bool {
    let uuid = one.labels.get(fence::UUID);
    uuid.is_some() && uuid == other.labels.get(fence::UUID)
}

/// Whether a disk can have this size, in bytes.
pub fn is_disk_size(size: u64) -> bool {
    shadow::check_size(size).is_ok()
}

fn refused(next: &RefRecord, why: &str) -> Error {
    Error::fenced(format!("the new record of disk {:?} {why}", next.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use std::collections::BTreeMap;
    use store::WriterId;

    fn record(labels: &[(&str, &str)]) -> RefRecord {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        RefRecord {
            name: "alice".into(),
            sequence: 1,
            writer: WriterId([0; 16]),
            written: 0,
            body: RefBody {
                manifest: None,
                size: 512,
                created: 0,
                labels: labels.collect::<BTreeMap<_, _>>(),
            },
        }
    }

    fn id(n: u8) -> ServerId {
        ServerId([n; 16])
    }

    fn held(by: u8, epoch: &str) -> RefRecord {
        record(&[("holder", &id(by).to_string()), ("epoch", epoch), ("uuid", "u")])
    }

    fn released(by: u8, epoch: &str) -> RefRecord {
        record(&[("released_by", &id(by).to_string()), ("epoch", epoch), ("uuid", "u")])
    }

    #[test]
    fn the_holder_publishes_releases_and_goes_on_and_another_takes_the_next_epoch() {
        let of = |before: &RefRecord, next: &RefRecord| Succession::of(Some(before), next).unwrap();
        assert_eq!(Succession::of(None, &held(1, "1")).unwrap(), Succession::Made(id(1)));
        assert_eq!(of(&held(1, "1"), &held(1, "1")), Succession::Kept(id(1)));
        assert_eq!(of(&held(1, "1"), &released(1, "1")), Succession::Kept(id(1)));
        assert_eq!(of(&released(1, "1"), &held(1, "1")), Succession::Kept(id(1)));
        let taken = |from| Succession::Taken { by: id(2), from };
        assert_eq!(of(&released(1, "1"), &held(2, "2")), taken(None));
        assert_eq!(of(&held(1, "1"), &held(2, "2")), taken(Some(id(1))));
    }

    #[test]
    fn foreign_holders_epochs_and_disks_are_refused() {
        let other = record(&[("holder", &id(1).to_string()), ("epoch", "1"), ("uuid", "other")]);
        let removing = record(&[
            ("holder", &id(1).to_string()),
            ("epoch", "1"),
            ("uuid", "u"),
            ("removing", &id(1).to_string()),
        ]);
        let nobody = record(&[("epoch", "1"), ("uuid", "u")]);
        let last = u64::MAX.to_string();
        for (before, next, kind) in [
            (Some(held(1, "1")), held(2, "1"), ErrorKind::Fenced),
            (Some(held(1, "1")), released(2, "2"), ErrorKind::Fenced),
            (Some(held(1, "3")), held(1, "2"), ErrorKind::Fenced),
            (Some(held(1, "1")), held(1, "3"), ErrorKind::Fenced),
            (Some(held(1, &last)), held(2, "0"), ErrorKind::Fenced),
            (Some(held(1, "1")), other, ErrorKind::Conflict),
            (Some(removing.clone()), held(2, "2"), ErrorKind::Conflict),
            (Some(held(1, "1")), removing, ErrorKind::Conflict),
            (None, released(1, "1"), ErrorKind::Fenced),
            (None, nobody, ErrorKind::Fenced),
            (None, record(&[("holder", "x"), ("epoch", "1")]), ErrorKind::Corrupt),
        ] {
            let error = Succession::of(before.as_ref(), &next).unwrap_err();
            assert_eq!(error.kind(), kind, "{before:?} then {next:?}: {error}");
        }
    }
}

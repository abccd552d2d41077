//! Where a home lives: a copy of it would write the same disks under the same name, and neither server
//! would notice.
//!
//! Beside the file with the server's id another one says what number that file had, and on which machine:
//! a copy has another number, and a clone of the whole machine another machine.

use block::fs::{FsPath, Open};
use block::{Error, Result};
use std::fs;
use std::io::ErrorKind;

/// The file, in the directory of the disks.
pub(crate) const FILE: &str = ".server-place";

/// The longest that is read of it, in bytes.
const LONGEST: u64 = 256;

/// Where systemd and D-Bus keep the machine's id.
const MACHINE: &str = "/etc/machine-id";

/// What is noted: a line `<number> <machine>`; `-` for a machine without an id.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Residence {
    number: u64,
    machine: Option<String>,
}

impl Residence {
    /// That of the file `identity` now.
    fn of(identity: &FsPath) -> Result<Self> {
        let (_, number) = identity.metadata().map_err(|e| identity.error(e))?.identity;
        let machine = fs::read_to_string(MACHINE).ok().map(|text| text.trim().to_owned());
        Ok(Self { number, machine: machine.filter(|id| is_id(id)) })
    }

    fn encode(&self) -> String {
        format!("{} {}\n", self.number, self.machine.as_deref().unwrap_or("-"))
    }

    fn decode(text: &str) -> Option<Self> {
        let (number, machine) = text.trim_end().split_once(' ')?;
        let machine = match machine {
            "-" => None,
            id if is_id(id) => Some(id.to_owned()),
            _ => return None,
        };
        Some(Self { number: number.parse().ok()?, machine })
    }

    /// Whether it is the same as another one. A machine without an id may be any.
    fn is_same(&self, other: &Self) -> bool {
        let machines = self.machine.as_ref().zip(other.machine.as_ref());
        self.number == other.number && machines.is_none_or(|(one, other)| one == other)
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|c| c.is_ascii_hexdigit())
}

/// Checks that the home whose server's id is in the file `identity`, a durable one, lives where it did;
/// where that was never noted whole, notes it. Waits for the disk.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) for a copy; any error from the file system.
pub(crate) fn check(identity: &FsPath) -> Result<()> {
    let path = identity.above().join(FILE);
    let now = Residence::of(identity)?;
    let noted = match path.open(Open::READ).and_then(|file| file.read_to_end(0, LONGEST)) {
        Ok(text) => std::str::from_utf8(&text).ok().and_then(Residence::decode),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(path.error(e)),
    };
    match noted {
        Some(noted) if noted.is_same(&now) => Ok(()),
        Some(_) => Err(Error::conflict(format!(
            "{}: this home is a copy, or was moved to another file system or machine, and two servers \
             must not write the same disks: if the other one is gone for good, remove {}; else remove {} \
             too, and make disks of your own of what is here with 'sojourn disk keep NAME NEW'",
            identity.above().display(),
            path.display(),
            identity.display()
        ))),
        // A power cut may leave the name and nothing in it: no copy is like that.
        None => {
            write(&path, &now);
            Ok(())
        }
    }
}

/// Notes where the home lives whose server's id was just made in the file `identity`, and is durable: what
/// was noted of an earlier one says nothing. Waits for the disk.
///
/// # Errors
/// Any error from the file system.
pub(crate) fn settle(identity: &FsPath) -> Result<()> {
    let path = identity.above().join(FILE);
    write(&path, &Residence::of(identity)?);
    Ok(())
}

/// Where that fails it is noted another time: not a reason to refuse anything.
fn write(path: &FsPath, residence: &Residence) {
    let written = path.open(Open::REPLACE.private()).and_then(|file| {
        file.write_all_at(residence.encode().as_bytes(), 0)?;
        file.sync_all()
    });
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "cannot note where the home lives");
        let _ = path.remove_file();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_refused_until_somebody_vouches_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let home = |name: &str| FsPath::from(dir.path()).join(name);
        fs::create_dir(home("a")).unwrap();
        let identity = home("a").join(".server");
        fs::write(&identity, "id").unwrap();
        check(&identity).unwrap();
        check(&identity).unwrap();
        // Renamed, it is the same one.
        fs::rename(home("a"), home("b")).unwrap();
        check(&home("b").join(".server")).unwrap();
        fs::create_dir(home("copy")).unwrap();
        for name in [".server", FILE] {
            fs::copy(home("b").join(name), home("copy").join(name)).unwrap();
        }
        let error = check(&home("copy").join(".server")).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Conflict);
        assert!(error.message().contains(FILE) && error.message().contains("disk keep"), "{error}");
        fs::remove_file(home("copy").join(FILE)).unwrap();
        check(&home("copy").join(".server")).unwrap();
        check(&home("copy").join(".server")).unwrap();
    }

    #[test]
    fn what_a_power_cut_left_of_the_note_does_not_make_a_home_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let identity = FsPath::from(dir.path()).join(".server");
        let place = dir.path().join(FILE);
        fs::write(&identity, "id").unwrap();
        check(&identity).unwrap();
        let whole = fs::read(&place).unwrap();
        for left in [0, 1, whole.len() / 2] {
            fs::write(&place, &whole[..left]).unwrap();
            check(&identity).unwrap();
            assert_eq!(fs::read(&place).unwrap(), whole);
        }
        // An id that is made anew is no copy of the one before.
        fs::write(&place, "1 -\n").unwrap();
        settle(&identity).unwrap();
        check(&identity).unwrap();
    }

    #[test]
    fn what_is_noted_is_read_again_and_machines_without_an_id_are_any() {
        let id = "0123456789abcdef0123456789abcdef".to_owned();
        let of = |number, machine: Option<&String>| Residence { number, machine: machine.cloned() };
        for one in [of(7, Some(&id)), of(u64::MAX, None)] {
            assert_eq!(Residence::decode(&one.encode()), Some(one));
        }
        let other = "f".repeat(32);
        assert!(of(7, Some(&id)).is_same(&of(7, None)));
        assert!(!of(7, Some(&id)).is_same(&of(7, Some(&other))));
        assert!(!of(7, Some(&id)).is_same(&of(8, Some(&id))));
        for bad in ["", "7", "x -", "7 short", "-1 -"] {
            assert_eq!(Residence::decode(bad), None, "{bad}");
        }
    }
}

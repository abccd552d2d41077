//! What a disk is like, as a configuration or a command names it.

use block::{Error, Result};
use objects::DiskReadOrder;
use schedule::Profile;
use std::path::Path;

/// What a disk is called that has no arm.
const FLASH: &str = "flash";

/// The profile of a disk: a shipped one by its name, or that of a file.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when no profile is shipped by that name, [`Invalid`](block::ErrorKind::Invalid)
/// when a file is none; any error from reading the file.
pub fn load(text: &str) -> Result<Profile> {
    let path = Path::new(text);
    let file = text.contains('/') || path.extension().is_some();
    if !file {
        return Profile::named(text);
    }
    // A device or a pipe without an end is not read for ever.
    let limit = schedule::profile::LONGEST as u64 + 1;
    let read = || -> std::io::Result<Vec<u8>> {
        use std::io::Read;
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e| Error::io(text, e))?;
    let toml = String::from_utf8(bytes)
        .map_err(|_| Error::invalid(format!("{text}: not text, so not a profile")))?;
    Profile::parse(&toml, text)
}

/// The order of reads that suits a store's disk: `flash`, or the profile of one that turns.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when no profile is shipped by that name, [`Invalid`](block::ErrorKind::Invalid)
/// when a file is none or the disk does not turn; any error from reading the file.
pub fn read_order(disk: &str) -> Result<DiskReadOrder> {
    if disk == FLASH {
        return Ok(DiskReadOrder::Arrival);
    }
    let profile = load(disk)?;
    if !profile.rotates() {
        return Err(Error::invalid(format!(
            "{disk} does not turn: the order of reads makes no difference to it; give {FLASH:?}"
        )));
    }
    Ok(DiskReadOrder::Arm(Box::new(profile)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disk_that_turns_has_an_order() {
        assert_eq!(read_order("flash").unwrap(), DiskReadOrder::Arrival);
        assert!(matches!(read_order("hdd-7200").unwrap(), DiskReadOrder::Arm(_)));
        let error = read_order("ssd-sata").unwrap_err();
        assert!(error.message().contains("does not turn"), "{error}");
        assert!(read_order("no-such-disk").is_err());
    }

    #[test]
    fn a_profile_may_be_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, Profile::named("hdd-7200").unwrap().to_toml().unwrap()).unwrap();
        assert!(matches!(read_order(path.to_str().unwrap()).unwrap(), DiskReadOrder::Arm(_)));
        std::fs::write(&path, "no profile").unwrap();
        assert!(read_order(path.to_str().unwrap()).is_err());
    }
}

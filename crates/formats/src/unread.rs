//! What holds a disk, and is not read: taken for a raw disk it would be rubbish.

use crate::file::read_up_to;
use block::{Error, Result};
use std::fs::File;
use std::path::Path;

/// A file of a kind that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// An archive of files; an OVA is one.
    Tar,
    /// QEMU's enhanced disk, which nobody writes any more.
    Qed,
}

/// The length of a header of an archive, and of what its files are rounded up to.
const TAR_BLOCK: u64 = 512;
/// The most files of an archive whose names are looked at.
const MOST_FILES: usize = 1000;
/// How the names of disks end.
const DISKS: [&str; 7] = [".vmdk", ".qcow2", ".vhd", ".vhdx", ".vdi", ".raw", ".img"];

impl Unread {
    /// Tells by the first bytes of a file (512 are enough).
    pub fn by_magic(head: &[u8]) -> Option<Self> {
        match () {
            () if head.get(257..).is_some_and(|rest| rest.starts_with(b"ustar")) => Some(Self::Tar),
            () if head.starts_with(b"QED\0") => Some(Self::Qed),
            () => None,
        }
    }

    /// The error for `what`, which can be had again as `file`: what to do instead.
    pub fn refusal(self, what: &str, file: &str) -> Error {
        self.refusal_of(what, file, "DISK")
    }

    fn refusal_of(self, what: &str, file: &str, disk: &str) -> Error {
        Error::unsupported(match self {
            Self::Tar => format!(
                "{what}: a tar archive, as an OVA is, and not a disk image itself; give the disk in it: \
                 tar -xf {file} {disk}"
            ),
            Self::Qed => format!(
                "{what}: a QED image, which is not read; convert it: qemu-img convert -f qed -O qcow2 \
                 {file} NEW.qcow2"
            ),
        })
    }
}

/// Refuses a file of a kind that is not read, which begins so.
pub(crate) fn refuse(file: &File, path: &Path, head: &[u8]) -> Result<()> {
    let Some(kind) = Unread::by_magic(head) else { return Ok(()) };
    let disk = match kind {
        Unread::Tar => disk_in(file, path)?,
        Unread::Qed => None,
    };
    let name = path.display().to_string();
    Err(kind.refusal_of(&name, &name, disk.as_deref().unwrap_or("DISK")))
}

/// The name of the first disk in an archive, as a shell takes it.
fn disk_in(file: &File, path: &Path) -> Result<Option<String>> {
    let mut at: u64 = 0;
    for _ in 0..MOST_FILES {
        let header = read_up_to(file, path, at, TAR_BLOCK as usize)?;
        if header.len() < TAR_BLOCK as usize || header[0] == 0 {
            break;
        }
        let name = name(&header);
        let is_file = matches!(header[156], b'0' | 0);
        let lower = name.to_ascii_lowercase();
        if is_file && DISKS.iter().any(|end| lower.ends_with(end)) {
            return Ok(quoted(&name));
        }
        let Some(next) = size(&header)
            .and_then(|size| size.checked_next_multiple_of(TAR_BLOCK))
            .and_then(|size| at.checked_add(TAR_BLOCK)?.checked_add(size))
        else {
            break;
        };
        at = next;
    }
    Ok(None)
}

/// The name of a file in an archive.
fn name(header: &[u8]) -> String {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    // GNU's own variant has something else there.
    match header[257..].starts_with(b"ustar\0") && !prefix.is_empty() {
        true => format!("{prefix}/{name}"),
        false => name,
    }
}

/// The length of a file in an archive: octal digits, or a big-endian number behind a mark.
fn size(header: &[u8]) -> Option<u64> {
    let field = &header[124..136];
    if field[0] & 0x80 != 0 {
        return Some(crate::file::be64(field, 4));
    }
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(|c: char| c == '\0' || c.is_whitespace()), 8).ok()
}

/// A name as a shell takes it; `None` when it cannot be shown as it is.
fn quoted(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/+@".contains(c);
    match () {
        () if name.starts_with('-') => None,
        () if name.chars().all(plain) => Some(name.to_owned()),
        () if name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'\'') => {
            Some(format!("'{name}'"))
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in an archive, as `tar --format=ustar` has it.
    fn member(name: &str, content: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        header.extend(content);
        header.resize(header.len().next_multiple_of(512), 0);
        header
    }

    fn told(archive: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("box.ova");
        std::fs::write(&path, archive).unwrap();
        crate::probe(&path).unwrap_err().message().to_owned()
    }

    #[test]
    fn an_archive_is_refused_by_the_disk_in_it() {
        let ovf = member("box.ovf", &[b'<'; 700]);
        for (disk, shown) in [
            ("box-disk001.vmdk", "box.ova box-disk001.vmdk"),
            ("my box.VMDK", "box.ova 'my box.VMDK'"),
            ("it's \u{1b}[31m.vmdk", "box.ova DISK"),
            ("-x.vmdk", "box.ova DISK"),
        ] {
            let archive = [&ovf[..], &member(disk, b"KDMV"), &[0; 1024]].concat();
            let told = told(&archive);
            assert!(told.contains("tar -xf ") && told.ends_with(shown), "{told}");
        }
    }

    #[test]
    fn a_hostile_archive_is_refused_all_the_same() {
        let mut endless = member("a", b"");
        endless[124..136].fill(0xff);
        let mut odd = member("a", b"");
        odd[124..136].copy_from_slice(b"not a number");
        for archive in [endless, odd, member("a", b"").repeat(MOST_FILES + 1), member("a", b"")] {
            assert!(told(&archive).ends_with("box.ova DISK"));
        }
    }

    #[test]
    fn only_what_is_not_read_is_taken_for_it() {
        assert_eq!(Unread::by_magic(b"QED\0\0\0\x01\0"), Some(Unread::Qed));
        assert_eq!(Unread::by_magic(&member("a", b"")[..262]), Some(Unread::Tar));
        for head in [&b""[..], b"QED", &[0; 512], &member("a", b"")[..261]] {
            assert_eq!(Unread::by_magic(head), None);
        }
    }
}

//! What is mounted, as the kernel lists it.

use block::{Error, Result};
use std::path::{Path, PathBuf};

/// What is mounted, as this process sees it.
const TABLE: &str = "/proc/self/mountinfo";

/// A mounted file system.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mount {
    /// The major and the minor number of its device; a file system over several devices has one of its own.
    pub(crate) number: (u32, u32),
    /// Where.
    pub(crate) point: PathBuf,
    /// Such as `ext4`.
    pub(crate) kind: String,
    /// Such as `/dev/sda1`.
    pub(crate) source: String,
    /// Options of the mount and of the file system.
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// All of them.
    ///
    /// # Errors
    /// The system's, where `/proc` cannot be read.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let table = std::fs::read(TABLE).map_err(|e| Error::io(TABLE, e))?;
        Ok(parse_all(&String::from_utf8_lossy(&table)))
    }

    /// That of an absolute path; none where `/proc` cannot be read.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        find(&std::fs::read_to_string(TABLE).ok()?, &path)
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|one| one == option)
    }
}

/// The mounts in the text of `/proc/PID/mountinfo`.
pub(crate) fn parse_all(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse).collect()
}

/// The two numbers of a device, as the kernel writes them.
pub(crate) fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The mount of a path in the text of `/proc/PID/mountinfo`: of the deepest point the last one, which covers others.
fn find(text: &str, path: &Path) -> Option<Mount> {
    let mounts = text.lines().filter_map(parse);
    mounts
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

fn parse(line: &str) -> Option<Mount> {
    let (before, behind) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let number = parse_number(before.next()?)?;
    let mut before = before.skip(1);
    let point = PathBuf::from(unescaped(before.next()?));
    let own = before.next()?;
    let mut behind = behind.split(' ');
    let (kind, source) = (behind.next()?.to_owned(), unescaped(behind.next()?));
    let options = own.split(',').chain(behind.next().unwrap_or_default().split(','));
    Some(Mount { number, point, kind, source, options: options.map(str::to_owned).collect() })
}

/// Blanks, tabs, line ends and backslashes are written as three octal digits.
fn unescaped(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_newest_mount_counts() {
        let text = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 8:2 / /srv rw shared:2 - xfs /dev/sda2 rw,noquota
31 30 0:40 / /srv rw - tmpfs none rw
32 22 8:3 / /srv\\040two ro,noatime shared:3 master:1 - ext4 /dev/sdb rw,nobarrier
";
        assert_eq!(find(text, Path::new("/srv/a")).unwrap().kind, "tmpfs");
        assert_eq!(find(text, Path::new("/srvx")).unwrap().source, "/dev/sda1");
        let two = find(text, Path::new("/srv two/x")).unwrap();
        assert!(two.has("ro") && two.has("nobarrier") && two.has("noatime"));
        assert_eq!(find("nonsense\n", Path::new("/")), None);
    }
}

//! A file system that fills up.

use crate::tool::skip;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a change of its size is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tmpfs of a given size, unmounted when dropped.
pub struct SmallFileSystem {
    dir: TempDir,
}

impl SmallFileSystem {
    /// Mounts one of `mib` MiB; `None`, with a message, where that is not allowed.
    pub fn mount(test: &str, mib: u32) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("sj-small-").tempdir().expect("directory");
        let small = Self { dir };
        if small.call("rw", mib) {
            return Some(small);
        }
        skip(test, "mounting a tmpfs needs root");
        None
    }

    /// Changes its size to `mib` MiB.
    pub fn resize(&self, mib: u32) {
        let end = Instant::now() + PATIENCE;
        while !self.call("remount", mib) {
            // A machine that is short of everything may refuse for a moment.
            assert!(Instant::now() < end, "cannot resize the tmpfs");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The same, unless more is in it.
    pub fn try_resize(&self, mib: u32) -> bool {
        self.call("remount", mib)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn call(&self, how: &str, mib: u32) -> bool {
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("{how},size={mib}m"), "none"])
            .arg(self.dir.path())
            .output()
            .is_ok_and(|output| output.status.success())
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // When it was never mounted there is nothing to do.
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).output();
    }
}

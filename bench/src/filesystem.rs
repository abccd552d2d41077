//! A file system made anew for a server, on a loop device: what earlier writes left in another one, and the
//! writing back of that, is in no figure.

use crate::tool;
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FilesystemKind {
    Ext4,
    Xfs,
    Btrfs,
}

impl FilesystemKind {
    /// The name, as `mount` spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

/// A mounted file system. Dropping it unmounts it and deletes the file that it lies in.
#[derive(Debug)]
pub(crate) struct Filesystem {
    file: PathBuf,
    mount: PathBuf,
}

impl Filesystem {
    /// Makes one of `bytes` bytes in `dir`, and mounts it there.
    ///
    /// # Errors
    /// When the caller is not root, or `mkfs` or `mount` fails.
    pub(crate) fn make(kind: FilesystemKind, dir: &Path, bytes: u64) -> Result<Self> {
        let made = Self { file: dir.join("filesystem"), mount: dir.join("mounted") };
        File::create(&made.file)
            .and_then(|file| file.set_len(bytes))
            .with_context(|| format!("cannot make {}", made.file.display()))?;
        fs::create_dir_all(&made.mount)?;
        let mut make = Command::new(tool::find(&format!("mkfs.{}", kind.name()))?);
        tool::run(make.arg("-q").arg(&made.file))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", kind.name(), "-o", "loop"]).arg(&made.file).arg(&made.mount);
        tool::run(&mut mount).context("--fresh needs the rights of root")?;
        Ok(made)
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for Filesystem {
    fn drop(&mut self) {
        // Lazily: a server's last process may still be ending.
        let _ = Command::new("umount").arg("-l").arg(&self.mount).output();
        let _ = fs::remove_file(&self.file);
    }
}

//! The file systems under test: how they are made, mounted and checked.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// How long a file system may be in use after the last process ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where btrfs has its first superblock, of 4 KiB.
const BTRFS_SUPERBLOCK: u64 = 64 << 10;

/// A kind of file system.
///
/// ext4 without a journal is the one on which a name is durable only when its directory was synced: on the
/// others the sync of any file brings the names along. What it cannot keep itself is left out of the test:
/// its own blocks are changed in place, so the disk under it does not tear them; a tree of extents that is split is
/// on the disk in parts, so files are mapped by indirect blocks; a removed file whose name comes back may
/// have another one's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileSystem {
    Ext4,
    Ext4WithoutJournal,
    Xfs,
    Btrfs,
}

impl FileSystem {
    /// The programs that make and check it.
    pub(crate) fn tools(self) -> [&'static str; 2] {
        match self {
            Self::Ext4 | Self::Ext4WithoutJournal => ["mkfs.ext4", "e2fsck"],
            Self::Xfs => ["mkfs.xfs", "xfs_repair"],
            Self::Btrfs => ["mkfs.btrfs", "btrfs"],
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Ext4WithoutJournal => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Whether the kernel has it.
    pub(crate) fn is_known(self) -> bool {
        // It may be a module. Where it is not, that fails.
        let _ = Command::new("modprobe").args(["-q", self.kind()]).output();
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.lines().any(|line| line.split_whitespace().last() == Some(self.kind()))
    }

    /// Bytes that the disk under it writes as a whole at `offset`. ext4's journal and btrfs's copies bear that a
    /// block of 4 KiB is there in parts, but for btrfs's superblock: its copies are older, as a sync writes the
    /// first one alone (seen: "superblock checksum mismatch"). XFS does not: it reads blocks, with their
    /// checksums, when it replays its log (seen with a block of an extent tree: "Metadata CRC error", "log mount
    /// failed").
    pub(crate) fn written_whole(self, offset: u64) -> usize {
        match self {
            Self::Btrfs if offset == BTRFS_SUPERBLOCK => 4096,
            Self::Ext4 | Self::Btrfs => 512,
            Self::Ext4WithoutJournal | Self::Xfs => 4096,
        }
    }

    /// Whether a removed file may come back with what another one wrote.
    pub(crate) fn mixes_removed_files(self) -> bool {
        self == Self::Ext4WithoutJournal
    }

    /// Makes an empty one on a file.
    pub(crate) fn make(self, image: &Path) {
        const WITHOUT_JOURNAL: &[&str] = &["-O", "^has_journal"];
        const EXT4: &[&str] = &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        let (program, args): (_, Vec<&str>) = match self {
            Self::Ext4 => ("mkfs.ext4", EXT4.to_vec()),
            Self::Ext4WithoutJournal => ("mkfs.ext4", [EXT4, WITHOUT_JOURNAL].concat()),
            Self::Xfs => ("mkfs.xfs", vec!["-q", "-f"]),
            Self::Btrfs => ("mkfs.btrfs", vec!["-q", "-f"]),
        };
        run(Command::new(program).args(args).arg(image), &[0]).unwrap_or_else(|e| panic!("{e}"));
    }

    /// What is done before it is mounted after a power cut, as a boot does it: where there is no journal, or
    /// the superblock is torn, its own check mends it.
    ///
    /// # Errors
    /// What the program said that failed.
    pub(crate) fn recover(self, image: &Path) -> Result<(), String> {
        match self {
            Self::Ext4WithoutJournal => {
                run(Command::new("e2fsck").args(["-f", "-y"]).arg(image), &[0, 1])
            }
            // The superblock is two sectors. When one of them is older, there is a copy.
            Self::Ext4 if run(Command::new("dumpe2fs").arg("-h").arg(image), &[0]).is_err() => {
                run(Command::new("e2fsck").arg("-y").arg(image), &[0, 1])
            }
            Self::Ext4 | Self::Xfs | Self::Btrfs => Ok(()),
        }
    }

    /// Checks one that is not mounted, and changes nothing.
    ///
    /// # Errors
    /// What the program found.
    pub(crate) fn check(self, image: &Path) -> Result<(), String> {
        let mut command = Command::new(self.tools()[1]);
        match self {
            Self::Ext4 | Self::Ext4WithoutJournal => command.args(["-f", "-n"]),
            Self::Xfs => command.args(["-n", "-f"]),
            Self::Btrfs => command.args(["check", "--readonly"]),
        };
        run(command.arg(image), &[0])
    }

    /// Mounts a file or device on `at`.
    ///
    /// # Errors
    /// What `mount` said.
    pub(crate) fn mount(self, source: &Path, at: &Path) -> Result<Mounted, String> {
        let mut command = Command::new("mount");
        command.args(["-t", self.kind()]);
        if source.is_file() {
            command.args(["-o", "loop"]);
        }
        run(command.arg(source).arg(at), &[0])?;
        Ok(Mounted { at: at.into() })
    }
}

/// A mounted file system. Dropping it unmounts it, whoever uses it.
pub(crate) struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Unmounts it; waits for processes that are ending.
    ///
    /// # Errors
    /// What `umount` said when it stays in use.
    pub(crate) fn unmount(self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match run(Command::new("umount").arg(&self.at), &[0]) {
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                result => {
                    std::mem::forget(self);
                    return result;
                }
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

/// A loop device on a file. Dropping it takes it away.
pub(crate) struct Loop {
    device: PathBuf,
}

impl Loop {
    /// Puts one on `file`. `None` where that is not possible.
    pub(crate) fn new(file: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        output.status.success().then_some(Self { device })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).output();
    }
}

/// Runs a program that must end with one of `codes`.
fn run(command: &mut Command, codes: &[i32]) -> Result<(), String> {
    let Output { status, stdout, stderr } = command.output().expect("a program");
    match status.code() {
        Some(code) if codes.contains(&code) => Ok(()),
        _ => Err(format!(
            "{command:?}: {status}\n{}{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        )),
    }
}

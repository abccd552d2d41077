//! The tools, and how each imports an image and gives it back.

use super::command::{self, CommandCost};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};

/// A tool that stores disk images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Sojourn,
    Casync,
    Desync,
    Restic,
    Borg,
    QemuImg,
}

/// All of them, ours first.
pub(crate) const ALL: [Peer; 6] =
    [Peer::Sojourn, Peer::Casync, Peer::Desync, Peer::Restic, Peer::Borg, Peer::QemuImg];

/// What storing an image and getting it back cost.
pub(crate) struct ImportExportCost {
    pub(crate) import: CommandCost,
    pub(crate) stored_bytes: u64,
    /// `None` where nobody would get an image back this way.
    pub(crate) export: Option<CommandCost>,
}

/// The released binary on a home.
pub(crate) fn sojourn(binary: &Path, home: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("--home").arg(home);
    command
}

fn restic(repository: &Path) -> Command {
    let mut command = Command::new("restic");
    command.arg("--quiet").arg("--repo").arg(repository);
    command.env("RESTIC_PASSWORD", "bench").arg("--no-cache");
    command
}

fn borg(directory: &Path) -> Command {
    let mut command = Command::new("borg");
    command.env("BORG_BASE_DIR", directory.join("base"));
    command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
    command
}

impl Peer {
    /// What people call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sojourn => "sojourn",
            Self::Casync => "casync",
            Self::Desync => "desync",
            Self::Restic => "restic",
            Self::Borg => "borg",
            Self::QemuImg => "qemu-img",
        }
    }

    /// Whether it can be run here.
    pub(crate) fn ready(self) -> Result<()> {
        let argument = match self {
            Self::Sojourn => return Ok(()),
            Self::Desync | Self::Restic => "--help",
            _ => "--version",
        };
        let mut command = Command::new(self.name());
        command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
        ensure!(command.status().is_ok_and(|status| status.success()), "not on PATH");
        Ok(())
    }

    /// Imports an image into a new store below `dir`, and gets it back.
    pub(crate) fn run(self, binary: &Path, image: &Path, dir: &Path) -> Result<ImportExportCost> {
        std::fs::create_dir_all(dir)?;
        let (back, store) = (dir.join("back"), dir.join("store"));
        let (import, export) = match self {
            Self::Sojourn => {
                command::run(sojourn(binary, dir).arg("init"))?;
                let import = command::run(
                    sojourn(binary, dir).args(["image", "import"]).arg(image).arg("a"),
                )?;
                let export =
                    command::run(sojourn(binary, dir).args(["image", "export", "a"]).arg(&back))?;
                (import, Some(export))
            }
            Self::Casync => {
                std::fs::create_dir(&store)?;
                let index = store.join("a.caibx");
                let chunks = format!("--store={}", store.join("a.castr").display());
                let mut make = Command::new("casync");
                let import = command::run(make.args(["make", &chunks]).arg(&index).arg(image))?;
                let mut extract = Command::new("casync");
                let export =
                    command::run(extract.args(["extract", &chunks]).arg(&index).arg(&back))?;
                (import, Some(export))
            }
            Self::Desync => {
                std::fs::create_dir(&store)?;
                let (chunks, index) = (store.join("a.castr"), store.join("a.caibx"));
                std::fs::create_dir(&chunks)?;
                let mut make = Command::new("desync");
                make.args(["make", "-n", "2", "-s"]).arg(&chunks).arg(&index).arg(image);
                let import = command::run(&mut make)?;
                let mut extract = Command::new("desync");
                extract.args(["extract", "-n", "2", "-s"]).arg(&chunks).arg(&index).arg(&back);
                (import, Some(command::run(&mut extract)?))
            }
            Self::Restic => {
                command::run(restic(&store).arg("init"))?;
                let import = command::run(restic(&store).arg("backup").arg(image))?;
                let mut restore = restic(&store);
                restore.args(["restore", "latest", "--target"]).arg(&back);
                (import, Some(command::run(&mut restore)?))
            }
            Self::Borg => {
                command::run(borg(dir).args(["init", "--encryption=none"]).arg(&store))?;
                let archive = format!("{}::a", store.display());
                let mut create = borg(dir);
                create.args(["create", "--compression=zstd,3", &archive]).arg(image);
                let import = command::run(&mut create)?;
                std::fs::create_dir(&back)?;
                let mut extract = borg(dir);
                extract.args(["extract", "--sparse", &archive]).current_dir(&back);
                (import, Some(command::run(&mut extract)?))
            }
            Self::QemuImg => {
                let mut convert = Command::new("qemu-img");
                convert.args(["convert", "-c", "-O", "qcow2", "-o", "compression_type=zstd"]);
                let import = command::run(convert.arg(image).arg(&store))?;
                let mut convert = Command::new("qemu-img");
                convert.args(["convert", "-O", "raw"]).arg(&store).arg(&back);
                (import, Some(command::run(&mut convert)?))
            }
        };
        // Kept free for a full disk, whatever is stored: docs/gc.md.
        let reserve = store.join("reserve#0");
        let reserved = if reserve.exists() { command::room_of(&reserve)? } else { 0 };
        Ok(ImportExportCost { import, stored_bytes: command::room_of(&store)? - reserved, export })
    }
}

/// The bytes that a second image adds to a store of the first, with zstd and chunks of 64 KiB at
/// fixed places.
pub(crate) fn growth_with_fixed_chunks(first: &Path, second: &Path, dir: &Path) -> Result<u64> {
    std::fs::create_dir_all(dir)?;
    let store = dir.join("store");
    command::run(borg(dir).args(["init", "--encryption=none"]).arg(&store))?;
    let mut sizes = [0; 2];
    for ((name, image), size) in [("a", first), ("b", second)].into_iter().zip(&mut sizes) {
        let archive = format!("{}::{name}", store.display());
        let mut create = borg(dir);
        create.args(["create", "--compression=zstd,2", "--chunker-params=fixed,65536", &archive]);
        command::run(create.arg(image))?;
        *size = command::room_of(&store)?;
    }
    std::fs::remove_dir_all(dir)?;
    Ok(sizes[1] - sizes[0])
}

//! What runs the guest's code: KVM when it really does, else QEMU's emulator.
//!
//! `/dev/kvm` may exist, and QEMU may even start, on machines where no guest gets past its first
//! instructions, or KVM may lack features of the CPU model, so that a kernel which uses them never comes
//! up (both seen under nested virtualisation). So the probe boots a sector of code under KVM, on the CPU model
//! that new machines have and with all of its features; it goes through 16-bit, 32-bit and 64-bit mode and page
//! tables, and the probe waits for its word on the serial line.

use crate::launch;
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The boot sector, from `probe.s`.
const PROBE: &[u8; 512] = include_bytes!("probe.bin");
/// What it says.
const WORD: &[u8] = b"64";
/// How long it has. Where KVM works, firmware and sector need less than a second.
const PATIENCE: Duration = Duration::from_secs(6);
const STEP: Duration = Duration::from_millis(20);

/// What runs the guest's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The processor itself.
    Kvm,
    /// QEMU's emulator, which works everywhere and is some ten times slower.
    Tcg,
}

impl Accelerator {
    /// The CPU model of new machines. Not the host's, nor the best: one that most other hosts have, too.
    pub const fn default_cpu(self) -> &'static str {
        match self {
            // SSE4.2 and POPCNT (x86-64-v2), what current distributions ask for.
            Self::Kvm => "Nehalem",
            // Cheaper to emulate than `max` by 10 to 25 %.
            Self::Tcg => "qemu64",
        }
    }

    /// Those that work here, the best first. Needs up to six seconds where KVM is there and does not work.
    /// Uses the directory `scratch`.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no QEMU; any error from the file system.
    pub async fn working(qemu: &Path, scratch: &Path) -> Result<Vec<Self>> {
        let usable = rustix::fs::access(
            "/dev/kvm",
            rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK,
        );
        if usable.is_ok() && runs(Self::Kvm, qemu, scratch).await? {
            return Ok(vec![Self::Kvm, Self::Tcg]);
        }
        Ok(vec![Self::Tcg])
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// Whether a machine gets as far as 64-bit code.
async fn runs(accelerator: Accelerator, qemu: &Path, scratch: &Path) -> Result<bool> {
    let (sector, said) = (scratch.join("probe.img"), scratch.join("probe.out"));
    std::fs::write(&sector, PROBE).map_err(|e| Error::io(sector.display(), e))?;
    let _ = std::fs::remove_file(&said);
    let comma = |path: &Path| path.display().to_string().replace(',', ",,");
    let (accelerator_name, cpu) =
        (accelerator.to_string(), enforced_cpu(accelerator.default_cpu()));
    let serial = format!("file,id=s,path={}", comma(&said));
    let drive = format!("file={},format=raw,if=none,id=d", comma(&sector));
    let arguments: Vec<OsString> = [
        "-machine",
        "pc",
        "-accel",
        &accelerator_name,
        "-cpu",
        &cpu,
        "-m",
        "32",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-drive",
        &drive,
        "-device",
        "ide-hd,drive=d",
        "-chardev",
        &serial,
        "-serial",
        "chardev:s",
    ]
    .map(OsString::from)
    .into();
    let mut launched = launch::qemu(qemu, &arguments, &scratch.join("probe.log"))?;
    let heard = async {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if std::fs::read(&said).is_ok_and(|bytes| bytes.starts_with(WORD)) {
                return true;
            }
            sleep(STEP).await;
        }
        false
    };
    let outcome = tokio::select! {
        heard = heard => heard,
        _ = launched.wait() => false,
    };
    launched.kill();
    for path in [sector, said] {
        let _ = std::fs::remove_file(path);
    }
    Ok(outcome)
}

/// What `-cpu` gets for a CPU model: it with all that belongs to it. QEMU leaves out silently what a host cannot provide unless it is
/// told to refuse: a guest that has found a feature once hangs or crashes where it is missing.
pub(crate) fn enforced_cpu(model: &str) -> String {
    format!("{model},enforce")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_emulator_always_gets_as_far_as_64_bit_code() {
        let dir = tempfile::tempdir().unwrap();
        let qemu = Path::new("/usr/bin/qemu-system-x86_64");
        if !qemu.exists() {
            return; // nothing to try it on
        }
        // Six seconds may be short on a busy machine; then it is not the code's fault.
        let mut tries = 0;
        while !runs(Accelerator::Tcg, qemu, dir.path()).await.unwrap() {
            tries += 1;
            assert!(tries < 5, "the boot sector says nothing");
        }
        assert!(Accelerator::working(qemu, dir.path()).await.unwrap().contains(&Accelerator::Tcg));
    }

    #[test]
    fn the_boot_sector_is_one() {
        assert_eq!(PROBE[510..], [0x55, 0xaa]);
    }
}

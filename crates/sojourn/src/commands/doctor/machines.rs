//! What virtual machines need: QEMU, KVM and FUSE.

use super::finding::Finding;
use super::patient::Patient;
use std::path::Path;
use vm::Accelerator;
use vm::abilities::OLDEST;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    // Without QEMU nobody runs machines here, and needs nothing for them.
    let Some((major, minor)) = patient.qemu else { return Vec::new() };
    let mut findings = Vec::new();
    if (major, minor) < OLDEST {
        findings.push(Finding::advice(
            format!("QEMU is {major}.{minor}"),
            "`sojourn vm` cannot suspend and resume machines by it; as an NBD client it is good enough",
            format!("QEMU {}.{} or newer", OLDEST.0, OLDEST.1),
        ));
    }
    match &patient.accelerators {
        Some(Ok(works)) if works.contains(&Accelerator::Kvm) => {}
        Some(Ok(_)) => {
            let device = Path::new("/dev/kvm");
            let (what, remedy) = match (device.exists(), is_usable(device)) {
                (true, true) => (
                    "KVM is there, and no guest runs on it",
                    "a virtual machine needs nested virtualisation that works; else QEMU says more: \
                     qemu-system-x86_64 -accel kvm",
                ),
                (true, false) => ("this user may not use KVM", "usermod -aG kvm USER"),
                (false, _) => (
                    "there is no KVM",
                    "switch virtualisation on in the firmware, and load kvm_intel or kvm_amd",
                ),
            };
            findings.push(Finding::advice(
                what,
                "guests are emulated, some ten times slower",
                remedy,
            ));
        }
        Some(Err(error)) => findings.push(Finding::advice(
            format!("whether KVM works was not found out: {}", error.message()),
            "guests may be emulated, some ten times slower",
            "qemu-system-x86_64 -accel kvm, and what it says",
        )),
        None => {}
    }
    if !is_usable(Path::new("/dev/fuse")) || !is_installed("fusermount3") {
        findings.push(Finding::advice(
            "FUSE cannot be used",
            "a machine's memory is then all fetched before it resumes, instead of as it is touched",
            "install fuse3; in a container, give it /dev/fuse",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!("QEMU {major}.{minor} runs guests on KVM")));
    }
    findings
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Whether this user may read and write a device.
fn is_usable(device: &Path) -> bool {
    use rustix::fs::Access;
    rustix::fs::access(device, Access::READ_OK | Access::WRITE_OK).is_ok()
}

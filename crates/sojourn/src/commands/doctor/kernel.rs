//! What the kernel offers, and what old ones do not.

use super::finding::Finding;
use super::patient::Patient;
use block::Ring;
use engine::disk_io::DiskIo;
use std::path::Path;

/// Kernels before these lack something that pages of the documentation name.
const SINCE: [((u32, u32), &str, &str); 2] = [
    (
        (5, 15),
        "it does not count how often a disk was attached",
        "a borrowed disk that is pulled out and put back while it is written to is not noticed (docs/shadow-format.md)",
    ),
    (
        (5, 14),
        "it does not remember to which server an NBD device belongs",
        "a keeper that starts again may take up another one's device (docs/device.md)",
    ),
];

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    let mut findings = Vec::new();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    if let Some(version) = version(release) {
        findings.extend(of_version(version, release));
    }
    findings.extend(ring(patient));
    if !Path::new("/sys/module/nbd").exists() {
        findings.push(Finding::advice(
            "the module nbd is not loaded",
            "`device connect` and `attach --device` need it; clients such as QEMU do not",
            "modprobe nbd, where block devices of this machine are wanted",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!("Linux {release} has what is wanted of it")));
    }
    findings
}

/// Reads by the ring, where they are asked for.
fn ring(patient: &Patient) -> Option<Finding> {
    if patient.config.serve.io != DiskIo::Ring {
        return None;
    }
    let error = Ring::start(1).err()?;
    Some(Finding::advice(
        error.message().to_owned(),
        "serve.io is \"ring\", and threads wait for the disk instead: it works, at more CPU time",
        "sysctl kernel.io_uring_disabled=0, or a unit or container that allows it; or serve.io = \"portable\"",
    ))
}

fn of_version(version: (u32, u32), release: &str) -> Vec<Finding> {
    SINCE
        .iter()
        .filter(|(since, _, _)| version < *since)
        .map(|((major, minor), what, why)| {
            let remedy = format!("Linux {major}.{minor} or newer");
            Finding::advice(format!("Linux {release}: {what}"), *why, remedy)
        })
        .collect()
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_told_what_they_lack() {
        assert_eq!(version("6.1.0-56-cloud-amd64"), Some((6, 1)));
        assert_eq!(version("none"), None);
        assert_eq!(of_version((5, 10), "5.10").len(), 2);
        assert_eq!(of_version((5, 14), "5.14").len(), 1);
        assert_eq!(of_version((6, 1), "6.1").len(), 0);
    }
}

//! Where the root file system is on a disk.

use super::file_systems::{Content, FoundPart};
use block::{Error, Result};

/// No system fits into less: smaller parts that are not known hold boot loaders and the like.
const SMALLEST: u64 = 256 << 20;
/// What root file systems are for in a GPT (UAPI.2): x86-64 and ARM.
const PURPOSES: [&str; 2] =
    ["4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "b921b045-1df0-41c3-af44-4c6f280d3fae"];

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// In the part of this number; 0 is the whole disk.
    Part(u32),
    /// Where the initial RAM disk finds it by what the kernel's parameter says.
    Named(String),
}

/// The root that the parameter `root=` names, or else the first part that has `/etc` (that with the kernel before all
/// others), or is marked as a root. A name that is not found goes to the initial RAM disk as it is where that may find
/// it: in a part that is not known here, or when a person gave the parameter.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) with the way out.
pub fn find(
    parts: &[FoundPart],
    kernel: Option<u32>,
    arguments: &[String],
    is_given: bool,
) -> Result<Root> {
    // The last one counts.
    let Some(named) = arguments.iter().rev().find_map(|word| word.strip_prefix("root=")) else {
        let why = match is_given {
            true => {
                "its root file system was not found, and what was given with the kernel has no root="
            }
            false => "its root file system was not found",
        };
        return unnamed(parts, kernel).map(Root::Part).ok_or_else(|| unsupported(why));
    };
    let is = |found: &&FoundPart| {
        let names = || found.names();
        match named.split_once('=') {
            Some(("PARTUUID", uuid)) => {
                found.part.uuid.as_deref() == Some(uuid.to_ascii_lowercase().as_str())
            }
            Some(("UUID", uuid)) => names().is_some_and(|it| it.uuid == uuid.to_ascii_lowercase()),
            Some(("LABEL", label)) => names().is_some_and(|it| it.label == label),
            _ => numbered(named) == Some(found.part.number),
        }
    };
    if let Some(found) = parts.iter().find(is) {
        return Ok(Root::Part(found.part.number));
    }
    let may_be_within = |found: &FoundPart| {
        matches!(found.content, Content::Unknown) && found.part.length >= SMALLEST
    };
    let is_name = ["UUID=", "LABEL="].iter().any(|kind| named.starts_with(kind));
    if is_given || is_name && parts.iter().any(may_be_within) {
        return Ok(Root::Named(named.to_owned()));
    }
    Err(unsupported(&format!("its root {named} is not among the file systems that are known here")))
}

/// The root of parameters that do not name it.
fn unnamed(parts: &[FoundPart], kernel: Option<u32>) -> Option<u32> {
    let is_root = |found: &&FoundPart| found.tree().is_some_and(|tree| tree.has("/etc"));
    let own = parts.iter().find(|found| Some(found.part.number) == kernel && is_root(found));
    let any = own.or_else(|| parts.iter().find(is_root));
    let marked = |found: &&FoundPart| {
        let purpose = found.part.purpose.as_deref();
        purpose.is_some_and(|purpose| PURPOSES.contains(&purpose))
    };
    any.or_else(|| parts.iter().find(marked)).map(|found| found.part.number)
}

/// The error for a disk that has to be started in another way.
pub fn unsupported(why: &str) -> Error {
    Error::unsupported(format!(
        "the disk cannot be started by its kernel: {why}; use --method iscsi"
    ))
}

/// The number in the name of a partition: 2 in `/dev/sda2`, `/dev/vda2`, `/dev/nvme0n1p2`.
fn numbered(device: &str) -> Option<u32> {
    let name = device.strip_prefix("/dev/")?;
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name[digits.len()..].parse().ok()?;
    let known = ["sd", "vd", "hd", "xvd"].iter().any(|kind| name.starts_with(kind));
    let counted = ["nvme", "mmcblk", "nbd"].iter().any(|kind| name.starts_with(kind))
        && digits.ends_with('p');
    (known || counted).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn partitions_are_known_by_the_names_of_devices() {
        for (name, number) in [
            ("/dev/sda1", Some(1)),
            ("/dev/nvme0n1p12", Some(12)),
            ("/dev/nvme0n1", None),
            ("/dev/mapper/root", None),
            ("/dev/md0", None),
            ("sda1", None),
        ] {
            assert_eq!(numbered(name), number, "{name}");
        }
    }
}

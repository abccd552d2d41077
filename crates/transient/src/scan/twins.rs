//! One disk that this machine has by two nodes: by two ways to it without multipathd, or as two maps of one range.
//!
//! The kernel holds each node by itself, so what one says of the other is only what they have in common: what the
//! maker calls the disk, and the bytes that are there.

use super::report::{DiskReport, PartitionReport};
use crate::machine::KernelDisk;
use block::Span;
use freespace::{Code, Refusal};
use std::path::PathBuf;

/// Where the bytes of a block device are.
#[derive(Debug, Clone)]
pub(super) struct DevicePlace {
    /// The node of the whole disk.
    disk: PathBuf,
    /// What its maker calls it, and how large it is.
    identity: Option<(String, u64)>,
    /// Which of its bytes they are.
    span: Span,
}

impl DevicePlace {
    pub(super) fn of(node: &KernelDisk) -> Self {
        let whole = node.parent().unwrap_or_else(|| node.clone());
        let identity = whole.wwid().map(|wwid| (wwid, whole.span().len()));
        Self { disk: whole.path, identity, span: node.span() }
    }

    /// Where a part of the device is on the whole disk.
    fn part(&self, part: &PartitionReport) -> Span {
        let start = self.span.offset().saturating_add(part.span.offset());
        Span::between(start, start.saturating_add(part.span.len()))
    }

    /// What of the device is in use, if it is known by which name its maker calls it. `report` is what was found
    /// there.
    pub(super) fn used(&self, report: &DiskReport) -> Vec<UsedBytes> {
        let Some(identity) = &self.identity else { return Vec::new() };
        let used = |span, name: String| {
            let (disk, identity) = (self.disk.clone(), identity.clone());
            UsedBytes { disk, identity, span, name }
        };
        let in_use = |refusal: &Refusal| refusal.code == Code::InUse;
        let all = report.refusal.as_ref().is_some_and(in_use);
        let all = all.then(|| used(self.span, report.path.display().to_string()));
        let parts = report.parts.iter().filter(|part| part.verdict.as_ref().is_err_and(in_use));
        all.into_iter().chain(parts.map(|part| used(self.part(part), part.name.clone()))).collect()
    }
}

/// Bytes that somebody uses.
pub(super) struct UsedBytes {
    disk: PathBuf,
    identity: (String, u64),
    span: Span,
    name: String,
}

/// Takes back what was accepted and is in use by another node of the same disk, and, unless the user `named` it,
/// all that is on such a disk. `places` are those of `disks`, as far as they are devices.
pub(super) fn refuse_used(
    disks: &mut [DiskReport],
    places: &[Option<DevicePlace>],
    in_use: &[UsedBytes],
    named: bool,
) {
    for (report, place) in disks.iter_mut().zip(places) {
        let Some(place) = place else { continue };
        let same_disk = |used: &&UsedBytes| {
            used.disk != place.disk && Some(&used.identity) == place.identity.as_ref()
        };
        let twins: Vec<&UsedBytes> = in_use.iter().filter(same_disk).collect();
        let Some(first) = twins.first() else { continue };
        for part in report.parts.iter_mut().filter(|part| part.verdict.is_ok()) {
            let here = place.part(part);
            let wwid = &first.identity.0;
            let refusal = match twins.iter().find(|used| used.span.intersect(here).is_some()) {
                Some(used) => Refusal::new(
                    Code::InUse,
                    format!(
                        "{} is on the same disk by another node ({wwid}), and in use",
                        used.name
                    ),
                ),
                None if named => continue,
                None => Refusal::new(
                    Code::OwnDisk,
                    format!(
                        "this system uses the same disk by another node ({}, {wwid}); name it if it is meant",
                        first.name
                    ),
                ),
            };
            part.verdict = Err(refusal);
        }
    }
}

/// Takes back what was accepted on two devices that show the same file system: lent twice, each loan would
/// overwrite the other's. `places` are those of `disks`, as far as they are devices.
pub(super) fn refuse_equal(disks: &mut [DiskReport], places: &[Option<DevicePlace>]) {
    for (name, twin) in equal_parts(disks, places) {
        let mut parts = disks.iter_mut().flat_map(|disk| &mut disk.parts);
        let Some(part) = parts.find(|part| part.name == name && part.verdict.is_ok()) else {
            continue;
        };
        part.verdict = Err(Refusal::new(
            Code::Duplicate,
            format!(
                "{twin} shows the same file system: it is the same disk by another way, or a copy; name one of \
                 them only"
            ),
        ));
    }
}

/// The names of devices that show the same file system. Those that are known to lie apart on one disk are copies.
fn equal_parts(disks: &[DiskReport], places: &[Option<DevicePlace>]) -> Vec<(String, String)> {
    let mut lenders = Vec::new();
    for (report, place) in disks.iter().zip(places) {
        let Some(place) = place else { continue };
        let accepted =
            report.parts.iter().filter_map(|part| Some((part, part.verdict.as_ref().ok()?)));
        lenders.extend(accepted.map(|(part, accepted)| (part, &accepted.claim, place)));
    }
    let mut equal = Vec::new();
    for (part, claim, place) in &lenders {
        let twin = lenders.iter().find(|(other, theirs, there)| {
            let apart =
                place.disk == there.disk && place.part(part).intersect(there.part(other)).is_none();
            !std::ptr::eq(*part, *other)
                && !apart
                && (claim.kind, claim.size) == (theirs.kind, theirs.size)
                && claim.stamp == theirs.stamp
        });
        equal.extend(twin.map(|(twin, ..)| (part.name.clone(), twin.name.clone())));
    }
    equal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accepted, Claim, HostDisk};
    use freespace::{FileSystem, Level, Source, Stamp, Volume, Window};
    use std::path::Path;
    use std::sync::Arc;

    const PART: u64 = 64 << 10;

    /// A disk of two parts that both lend, whose marks are the byte `content`.
    fn disk(
        dir: &Path,
        node: &str,
        content: u8,
        wwid: Option<&str>,
    ) -> (DiskReport, Option<DevicePlace>) {
        let path = dir.join(node);
        std::fs::write(&path, vec![content; 2 * PART as usize]).unwrap();
        let disk = Arc::new(HostDisk::open(&path).unwrap());
        let sysfs = dir.join(format!("sys/{node}"));
        std::fs::create_dir_all(sysfs.join("device")).unwrap();
        std::fs::write(sysfs.join("size"), format!("{}\n", disk.size() / 512)).unwrap();
        if let Some(wwid) = wwid {
            std::fs::write(sysfs.join("device/wwid"), format!("{wwid}\n")).unwrap();
        }
        let parts = (0..2).map(|number| {
            let span = Span::between(number * PART, (number + 1) * PART);
            let window = Window::part(&*disk, span.offset(), PART).unwrap();
            let stamp = Stamp::take(&window, vec![Span::between(0, 4096)]).unwrap();
            let (kind, level) = (FileSystem::EXT4, Level::Fast);
            let claim = Claim { kind, level, base: span.offset(), size: PART, stamp };
            let accepted = Accepted {
                disk: Arc::clone(&disk),
                claim,
                usual: level,
                size: PART,
                unit: 4096,
                free: 0,
                usable: Vec::new(),
                volume: Volume::default(),
            };
            let name = format!("/dev/{node}{}", number + 1);
            let verdict = Ok(accepted);
            PartitionReport {
                name,
                span,
                kind: Some(kind),
                verdict,
                look: None,
                hashes: None,
                store: None,
            }
        });
        let parts = parts.collect();
        let (size, table) = (disk.size(), "kernel");
        let report = DiskReport { path, size, rotational: None, table, refusal: None, parts };
        (report, Some(DevicePlace::of(&KernelDisk::at(&sysfs).unwrap())))
    }

    fn codes(report: &DiskReport) -> Vec<Option<Code>> {
        let code = |part: &PartitionReport| part.verdict.as_ref().err().map(|why| why.code);
        report.parts.iter().map(code).collect()
    }

    fn set_in_use(part: &mut PartitionReport) {
        part.verdict = Err(Refusal::new(Code::InUse, "it is mounted"));
    }

    /// What is said of the parts of each of two devices.
    fn equal(
        [one, two]: [(DiskReport, Option<DevicePlace>); 2],
        as_images: bool,
    ) -> Vec<Option<Code>> {
        let (mut disks, mut places) = ([one.0, two.0], [one.1, two.1]);
        if as_images {
            places = [None, None];
        }
        refuse_equal(&mut disks, &places);
        disks.iter().flat_map(codes).collect()
    }

    #[test]
    fn two_devices_of_one_content_lend_nothing_and_copies_on_one_disk_do() {
        let dir = tempfile::tempdir().unwrap();
        let disk = |node: &str, content| disk(dir.path(), node, content, None);
        assert_eq!(equal([disk("sda", 1), disk("sdb", 2)], false), [None; 4]);
        assert_eq!(equal([disk("sda", 1), disk("sdb", 1)], false), [Some(Code::Duplicate); 4]);
        // Image files are what they are by their inode.
        assert_eq!(equal([disk("sda", 1), disk("sdb", 1)], true), [None; 4]);
    }

    #[test]
    fn what_one_node_of_a_disk_has_in_use_is_in_use_by_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let wwid = Some("naa.5000c500a1b2c3d4");
        let (mut mounted, place) = disk(dir.path(), "sda", 1, wwid);
        set_in_use(&mut mounted.parts[1]);
        let in_use = place.unwrap().used(&mounted);
        for (named, first) in [(true, None), (false, Some(Code::OwnDisk))] {
            let (twin, place) = disk(dir.path(), "sdb", 1, wwid);
            let (other, apart) = disk(dir.path(), "sdc", 1, Some("naa.5000c500a1b2c3d5"));
            let (nameless, anywhere) = disk(dir.path(), "sdd", 1, None);
            let mut disks = [twin, other, nameless];
            refuse_used(&mut disks, &[place, apart, anywhere], &in_use, named);
            assert_eq!(codes(&disks[0]), [first, Some(Code::InUse)]);
            let sentence = &disks[0].parts[1].verdict.as_ref().unwrap_err().sentence;
            assert!(sentence.contains("/dev/sda2"), "{sentence}");
            assert_eq!([codes(&disks[1]), codes(&disks[2])].concat(), [None; 4]);
        }
    }

    #[test]
    fn a_disk_that_is_in_use_as_a_whole_is_so_by_any_node() {
        let dir = tempfile::tempdir().unwrap();
        let wwid = Some("eui.0025385b21404321");
        let (mut held, place) = disk(dir.path(), "nvme0n1", 1, wwid);
        held.parts.clear();
        held.refusal = Some(Refusal::new(Code::InUse, "it is part of something larger"));
        let in_use = place.unwrap().used(&held);
        let (twin, place) = disk(dir.path(), "nvme1n1", 1, wwid);
        let mut twin = [twin];
        refuse_used(&mut twin, &[place], &in_use, true);
        assert_eq!(codes(&twin[0]), [Some(Code::InUse); 2]);
        // A node does not refuse itself.
        let (mut alone, place) = disk(dir.path(), "nvme2n1", 1, Some("eui.1"));
        set_in_use(&mut alone.parts[0]);
        let in_use = place.as_ref().unwrap().used(&alone);
        let mut alone = [alone];
        refuse_used(&mut alone, &[place], &in_use, true);
        assert_eq!(codes(&alone[0]), [Some(Code::InUse), None]);
    }

    #[test]
    fn a_partition_is_at_its_place_on_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("nvme0n1/nvme0n1p2");
        std::fs::create_dir_all(&part).unwrap();
        let disk = part.parent().unwrap();
        for (file, text) in [
            (disk.join("wwid"), "eui.1\n"),
            (disk.join("size"), "8192\n"),
            (part.join("partition"), "2\n"),
            (part.join("start"), "2048\n"),
            (part.join("size"), "4096\n"),
        ] {
            std::fs::write(file, text).unwrap();
        }
        let place = DevicePlace::of(&KernelDisk::at(&part).unwrap());
        assert_eq!(place.disk, Path::new("/dev/nvme0n1"));
        assert_eq!(place.identity, Some(("eui.1".to_owned(), 8192 * 512)));
        assert_eq!(place.span, Span::between(2048 * 512, 6144 * 512));
    }
}

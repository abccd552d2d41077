//! What was found on one disk: its partitions, what each holds, and what of it can be borrowed.

use crate::machine::{KernelDisk, may_hide};
use crate::policy::without_margins;
use crate::{Claim, HostDisk};
use block::Span;
use freespace::probe::{probe, refused_purpose, store, verity};
use freespace::suspended::{Look, awake};
use freespace::{
    Code, FileSystem, FreeSpaceOptions, Level, PartitionTable, Refusal, Source, SuspendedIn,
    UnheldDisk, Volume, Window, read, refuse,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A disk or image.
#[derive(Debug)]
pub struct DiskReport {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes; 0 when it could not be opened.
    pub size: u64,
    /// Whether it turns.
    pub rotational: Option<bool>,
    /// Its partition table: `gpt`, `mbr`, `none`, or `kernel` where the kernel has read it.
    pub table: &'static str,
    /// Why all of it is refused.
    pub refusal: Option<Refusal>,
    /// Its partitions, or the one file system on all of it.
    pub parts: Vec<PartitionReport>,
}

/// A partition, or a whole disk without any.
#[derive(Debug)]
pub struct PartitionReport {
    /// How people call it: `/dev/sda1`, `disk.img#1`.
    pub name: String,
    /// Its bytes on the disk.
    pub span: Span,
    /// What it holds; for ext the reader tells 2, 3 and 4 apart only when it accepts.
    pub kind: Option<FileSystem>,
    /// What can be borrowed, or why nothing.
    pub verdict: Result<Accepted, Refusal>,
    /// Where swap files are looked for.
    pub(super) look: Option<Look>,
    /// The size of the file system whose every block the hashes here cover, in bytes.
    pub(super) hashes: Option<u64>,
    /// Which store of another disk's content it is, and what disks are refused with that may be that one.
    pub(super) store: Option<(&'static str, Code)>,
}

/// A file system with space to borrow.
#[derive(Debug)]
pub struct Accepted {
    /// The open disk; its bytes start `origin` bytes into [`DiskReport`]'s.
    pub disk: Arc<HostDisk>,
    /// Where it is, how its free blocks were proven free, and how to tell that it was not used since.
    pub claim: Claim,
    /// How it would have been proven, had nothing else been asked for.
    pub usual: Level,
    /// Bytes that the file system says it has.
    pub size: u64,
    /// Bytes of the smallest thing that can be free.
    pub unit: u32,
    /// Free bytes in all, before margins.
    pub free: u64,
    /// Free ranges without margins, in bytes of `disk`; rising.
    pub usable: Vec<Span>,
    /// How people call it.
    pub volume: Volume,
}

/// A place where a suspended system may be, and why nobody knows.
#[derive(Debug)]
pub(super) struct Hidden {
    pub(super) place: String,
    pub(super) why: &'static str,
}

impl Hidden {
    pub(super) fn unseen(place: &str) -> Self {
        Self { place: place.to_owned(), why: "is not looked into" }
    }
}

/// Whether a path is a block device.
pub(super) fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

impl DiskReport {
    /// Whether a suspended system could be stored where the refusal of the whole disk forbade to
    /// look. A device that is in use is used by this system, which is not suspended.
    pub(super) fn may_hide(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| {
            may_hide(None, refusal.code) || (refusal.code == Code::InUse && !is_device(&self.path))
        })
    }

    fn refused(path: &Path, refusal: Refusal) -> Self {
        Self {
            path: path.to_owned(),
            size: 0,
            rotational: None,
            table: "none",
            refusal: Some(refusal),
            parts: Vec::new(),
        }
    }

    /// A path that the user named.
    pub(super) fn of_target(path: &Path, reader: &FreeSpaceOptions) -> Self {
        if is_device(path) {
            let Some(node) = device_node(path) else {
                let sentence = format!("the kernel does not know {}", path.display());
                return Self::refused(path, Refusal::new(Code::ReadError, sentence));
            };
            return match node.judge(true) {
                Ok(()) => Self::of_device(&node, reader),
                Err(refusal) => Self::refused(path, refusal),
            };
        }
        match HostDisk::open(path) {
            Ok(disk) => Self::of_image(path, &Arc::new(disk), reader),
            Err(refusal) => Self::refused(path, refusal),
        }
    }

    /// A disk of this machine that the user did not name.
    pub(super) fn of_node(node: &KernelDisk, reader: &FreeSpaceOptions) -> Self {
        if let Err(refusal) = node.judge(true) {
            return Self::refused(&node.path, refusal);
        }
        let mut report = Self::of_device(node, reader);
        if let Err(refusal) = node.judge(false) {
            // It lends nothing; but a suspended system may be stored there all the same. Its other
            // parts are dropped once their swap files were looked at.
            for part in &mut report.parts {
                part.refuse_for(Err(refusal.clone()));
            }
            return Self { parts: report.parts, ..Self::refused(&node.path, refusal) };
        }
        // The running system's own disk.
        let used = report.parts.iter().find_map(|part| match &part.verdict {
            Err(refusal) if refusal.code == Code::InUse => Some(part.name.clone()),
            _ => None,
        });
        for part in &mut report.parts {
            if let (Some(used), Ok(_)) = (&used, &part.verdict) {
                part.verdict = Err(Refusal::new(
                    Code::OwnDisk,
                    format!("this system runs on the same disk ({used}); name it if it is meant"),
                ));
            }
        }
        report
    }

    /// A block device: the kernel has read its partition table.
    fn of_device(node: &KernelDisk, reader: &FreeSpaceOptions) -> Self {
        let partitions = node.partitions();
        if partitions.is_empty() {
            return match HostDisk::open(&node.path) {
                Ok(disk) if node.parent().is_some() => {
                    let disk = Arc::new(disk);
                    let mut report = Self::empty(&node.path, &disk, "none");
                    let name = node.path.display().to_string();
                    let mut part =
                        PartitionReport::new(name, &disk, Span::whole(disk.size()), None, reader);
                    if let Some(whole) = node.parent() {
                        part.refuse_for(around(&whole));
                    }
                    report.parts.push(part);
                    report
                }
                Ok(disk) => Self::of_image(&node.path, &Arc::new(disk), reader),
                Err(refusal) => Self::refused(&node.path, refusal),
            };
        }
        let mut report = Self::refused(&node.path, Refusal::new(Code::Unknown, ""));
        report.refusal = None;
        report.table = "kernel";
        for (part, _, start, size) in partitions {
            report.size = report.size.max(start + size);
            let name = part.path.display().to_string();
            let span = Span::between(start, start + size);
            let opened = part.judge(true).and_then(|()| HostDisk::open(&part.path));
            report.parts.push(match opened {
                Ok(disk) => {
                    let disk = Arc::new(disk);
                    report.rotational = disk.rotational();
                    let mut found =
                        PartitionReport::new(name, &disk, Span::whole(disk.size()), None, reader);
                    found.span = span;
                    found
                }
                Err(refusal) => PartitionReport::refused(name, span, refusal),
            });
        }
        // A disk that lends nothing is not read for more: it may not answer.
        if report.parts.iter().any(|part| part.verdict.is_ok()) {
            let around = around(node);
            for part in &mut report.parts {
                part.refuse_for(around.clone());
            }
        }
        report
    }

    fn empty(path: &Path, disk: &HostDisk, table: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            size: disk.size(),
            rotational: disk.rotational(),
            table,
            refusal: None,
            parts: Vec::new(),
        }
    }

    /// An image file, or a disk in which the kernel found no partition.
    fn of_image(path: &Path, disk: &Arc<HostDisk>, reader: &FreeSpaceOptions) -> Self {
        let whole = probe(&Window::whole(&**disk));
        // Under a damaged table, the file system of the whole disk is stale: tools that write tables
        // leave the boot sector and the superblock of what was there before.
        let table = match PartitionTable::read(&**disk) {
            Ok(table) => table,
            Err(refusal) => {
                return Self { refusal: Some(refusal), ..Self::empty(path, disk, "none") };
            }
        };
        let mut report = Self::empty(path, disk, table.as_str());
        if table.partitions().is_empty() {
            let name = path.display().to_string();
            if table != PartitionTable::None {
                report.refusal = Some(Refusal::new(Code::Unpartitioned, "it has no partition"));
            } else {
                report.parts.push(PartitionReport::new(
                    name,
                    disk,
                    Span::whole(disk.size()),
                    None,
                    reader,
                ));
            }
            return report;
        }
        if let Err(refusal) = nothing_beside(whole) {
            report.refusal = Some(refusal);
            return report;
        }
        let managed = managed(&table);
        for part in table.partitions() {
            let name = format!("{}#{}", path.display(), part.number);
            report.parts.push(match &managed {
                Some(refusal) => PartitionReport::refused(name, part.span, refusal.clone()),
                None => {
                    PartitionReport::new(name, disk, part.span, Some(part.span.offset()), reader)
                }
            });
        }
        report
    }
}

/// Refuses a disk with a partition table and something on the whole of it: one of them is stale, or
/// the disk is a member of a set.
fn nothing_beside(whole: Result<FileSystem, Refusal>) -> Result<(), Refusal> {
    let beside = match whole {
        Ok(kind) => kind.as_str().to_owned(),
        Err(refusal) if refusal.code == Code::Unknown => return Ok(()),
        Err(refusal) => refusal.sentence,
    };
    refuse!(
        Ambiguous,
        "it has a partition table and, on the whole of it, the marks of something else ({beside})"
    )
}

/// Refuses a file system under a partition table. Whoever is given its partition as a disk, such as a virtual
/// machine, may write a table there and files from 1 MiB on: the superblock of what was there before stays.
fn no_disk_inside(kind: FileSystem, window: &Window<'_>) -> Result<FileSystem, Refusal> {
    let table = match PartitionTable::within(window) {
        Ok(PartitionTable::None) => return Ok(kind),
        Ok(table) => table.as_str().to_uppercase(),
        Err(refusal) if refusal.code == Code::PartitionTable => refusal.sentence,
        Err(refusal) => return Err(refusal),
    };
    refuse!(
        Ambiguous,
        "it bears the marks of {kind} and a partition table ({table}), as if it were a disk of its own; wipe the \
         stale one"
    )
}

/// The purpose of a partition that refuses its disk.
fn managed(table: &PartitionTable) -> Option<Refusal> {
    table.partitions().iter().find_map(|part| refused_purpose(&part.purpose))
}

/// Refuses a partitioned disk of this machine for what is not to be seen in its partitions. It is
/// not held: its partitions are.
fn around(disk: &KernelDisk) -> Result<(), Refusal> {
    let path = disk.path.display();
    let source = UnheldDisk::open(&disk.path)?;
    nothing_beside(probe(&Window::whole(&source)))?;
    let mut spans: Vec<Span> = disk
        .partitions()
        .into_iter()
        .filter_map(|(_, _, start, size)| {
            // Of an extended partition, the kernel shows its first sectors.
            (size > 4096).then(|| Span::between(start, start.saturating_add(size)))
        })
        .collect();
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[0].end() > pair[1].offset()) {
        refuse!(PartitionTable, "partitions of {path} overlap");
    }
    let table = PartitionTable::read(&source)?;
    // Tables of other kinds are the kernel's business.
    if table != PartitionTable::None
        && let Some(span) = spans
            .iter()
            .find(|span| table.partitions().iter().all(|partition| partition.span != **span))
    {
        refuse!(
            PartitionTable,
            "the kernel knows a partition of {} bytes at {} of {path}, and its table does not; have the \
             kernel read it again (partprobe), or repair it",
            span.len(),
            span.offset()
        );
    }
    match managed(&table) {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

/// The block device that a path leads to.
pub(super) fn device_node(path: &Path) -> Option<KernelDisk> {
    use std::os::unix::fs::MetadataExt;
    KernelDisk::of_device(std::fs::metadata(path).ok()?.rdev())
}

impl PartitionReport {
    fn refused(name: String, span: Span, refusal: Refusal) -> Self {
        Self {
            name,
            span,
            kind: None,
            verdict: Err(refusal),
            look: None,
            hashes: None,
            store: None,
        }
    }

    /// Whether a suspended system may be here without being seen.
    pub(super) fn hides(&self) -> Option<Hidden> {
        let place = self.name.clone();
        match &self.verdict {
            Err(refusal) if !may_hide(self.kind, refusal.code) => None,
            Err(Refusal { code: Code::Unclean | Code::NeedsReplay | Code::Orphans, .. }) => {
                Some(Hidden { place, why: "was not unmounted" })
            }
            Err(_) => Some(Hidden::unseen(&place)),
            // No files are read there, and it does not show whether it is mounted.
            Ok(_) => self.kind.map(FileSystem::reader).and_then(|reader| {
                let unread = reader.suspended == SuspendedIn::UnreadFiles;
                (unread && !reader.shows_mounted).then(|| Hidden::unseen(&place))
            }),
        }
    }

    /// Judges the bytes `span` of a disk. `partition` is where they start when they are not all of
    /// it.
    fn new(
        name: String,
        disk: &Arc<HostDisk>,
        span: Span,
        partition: Option<u64>,
        reader: &FreeSpaceOptions,
    ) -> Self {
        let base = partition.unwrap_or(0);
        let judged = Window::part(&**disk, base, span.len())
            .map_err(|refusal| (None, refusal))
            .and_then(|window| {
                // The mark of a suspended system is believed whatever else is there.
                let kind = probe(&window)
                    .and_then(|kind| no_disk_inside(kind, &window))
                    .map_err(|refusal| (None, awake(&window).err().unwrap_or(refusal)))?;
                Ok((kind, Accepted::read(kind, disk, &window, reader)))
            });
        let (kind, verdict) = match judged {
            Ok((_, Ok(accepted))) => (Some(accepted.claim.kind), Ok(accepted)),
            Ok((kind, Err(refusal))) => (Some(kind), Err(refusal)),
            Err((kind, refusal)) => (kind, Err(refusal)),
        };
        let size = span.len();
        let look = kind
            .is_some_and(|kind| kind.reader().suspended == SuspendedIn::SwapFiles)
            .then(|| Look { disk: Arc::clone(disk) as Arc<dyn Source>, base, size });
        let window = Window::part(&**disk, base, size).ok();
        let hashes = window.as_ref().and_then(|window| verity(window, 0));
        let store = window.as_ref().and_then(store);
        Self { name, span, kind, verdict, look, hashes, store }
    }

    /// Takes back what was accepted, for what is wrong around it.
    fn refuse_for(&mut self, around: Result<(), Refusal>) {
        if let (Ok(_), Err(refusal)) = (&self.verdict, around) {
            self.verdict = Err(refusal);
        }
    }
}

impl Accepted {
    fn read(
        kind: FileSystem,
        disk: &Arc<HostDisk>,
        window: &Window<'_>,
        reader: &FreeSpaceOptions,
    ) -> Result<Self, Refusal> {
        let found = read(kind, window, reader)?;
        if verity(window, found.size).is_some() {
            refuse!(
                UnsupportedFeature,
                "dm-verity has hashes of all its blocks, free ones too, behind its end"
            );
        }
        let usable = without_margins(&found.free, window.base(), window.size(), disk.size());
        if usable.is_empty() {
            refuse!(NothingFree, "nothing is free but for the first and the last MiB, which stay");
        }
        Ok(Self {
            disk: Arc::clone(disk),
            claim: Claim {
                kind: found.kind,
                level: found.level,
                base: window.base(),
                size: window.size(),
                stamp: found.stamp,
            },
            usual: found.usual,
            size: found.size,
            unit: found.unit,
            free: found.free.iter().map(|span| span.len()).sum::<u64>() + found.dropped,
            usable,
            volume: found.volume,
        })
    }
}

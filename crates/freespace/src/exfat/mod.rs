//! exFAT: the allocation bitmap says what is free, and nothing protects it. So every file is
//! walked, and the bitmap must hold every cluster of every file.
//!
//! Source: Microsoft's exFAT specification, revision 1.00.

mod boot;
mod directory;

use crate::bytes::le32;
use crate::clusters::Clusters;
use crate::fat::table::FatTable;
use crate::reader::SuspendedIn;
use crate::refusal::refuse;
use crate::{
    FileSystem, FileSystemReader, FreeList, FreeSpace, FreeSpaceOptions, Level, Refusal, Stamp,
    Volume, Window,
};
use block::Span;
use boot::ExfatBoot;

/// The number of the first cluster.
const FIRST: u64 = 2;
/// FAT entries: the end of a chain, and a bad cluster.
const END: u32 = 0xFFFF_FFFF;
const BAD: u32 = 0xFFFF_FFF7;

/// The most bytes of a directory (specification 7.4).
const MAX_DIRECTORY: u64 = 256 << 20;

struct Exfat<'a> {
    window: &'a Window<'a>,
    boot: ExfatBoot,
    fat: FatTable<'a>,
    clusters: Clusters,
}

impl FileSystem {
    /// exFAT.
    pub const EXFAT: Self = Self("exfat");
}

/// The line of this file system in the table of readers.
pub(crate) const READER: FileSystemReader = FileSystemReader {
    kinds: &[FileSystem::EXFAT],
    recognize: |head| head.has(3, b"EXFAT   ").then_some(FileSystem::EXFAT),
    read,
    shows_mounted: false,
    suspended: SuspendedIn::Nothing,
};

/// Reads what is free.
fn read(window: &Window<'_>, options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let boot = boot::read(window)?;
    let level = options.level.unwrap_or(Level::Deep);
    let mut fat = FatTable::new(window, boot.fat, 4, boot.clusters + FIRST);
    if fat.get(0)? != 0xFFFF_FFF8 || fat.get(1)? != END {
        refuse!(Structure, "the first entries of its FAT are damaged; check it with its own tool");
    }
    let clusters = Clusters::new(boot.clusters);
    let mut volume = Exfat { window, boot, fat, clusters };
    let root = volume.chain(volume.boot.root, None, "the root directory")?;
    let system = directory::system(&volume, &root)?;
    let map = volume.chain(system.bitmap.0, Some(system.bitmap.1), "the allocation bitmap")?;
    volume.load_bitmap(&map, system.bitmap.1)?;
    let free = volume.free()?;
    let boot = &volume.boot;
    // The state, the bitmap, the root directory: what a mounted exFAT changes with every file.
    let mut ranges = vec![Span::between(0, 12 * boot.sector)];
    let small = |list: &[ClusterRun]| {
        list.iter()
            .map(|run| {
                Span::between(
                    volume.offset(run.first),
                    volume.offset(run.first) + run.len * boot.cluster,
                )
            })
            .take(64)
            .map(|span| span.split_at(span.offset() + (1 << 20)).0)
            .collect::<Vec<_>>()
    };
    ranges.extend(small(&map));
    ranges.extend(small(&root));
    if level == Level::Deep {
        volume.claim(&root, "the root directory")?;
        volume.claim(&map, "the allocation bitmap")?;
        let upcase = volume.chain(system.upcase.0, Some(system.upcase.1), "the up-case table")?;
        volume.claim(&upcase, "the up-case table")?;
        directory::walk(&mut volume, &root)?;
    }
    let (free, dropped) = free.finish();
    let serial = volume.boot.serial;
    Ok(FreeSpace {
        kind: FileSystem::EXFAT,
        level,
        usual: Level::Deep,
        unit: volume.boot.cluster as u32,
        size: volume.boot.size,
        free,
        dropped,
        stamp: Stamp::take(window, ranges)?,
        volume: Volume {
            uuid: Some(format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF)),
            label: system.label,
        },
    })
}

/// Clusters in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClusterRun {
    first: u64,
    len: u64,
}

impl Exfat<'_> {
    /// Where a cluster lies, in bytes.
    fn offset(&self, cluster: u64) -> u64 {
        self.boot.heap + (cluster - FIRST) * self.boot.cluster
    }

    /// Whether a cluster of this number exists.
    fn exists(&self, cluster: u64) -> bool {
        (FIRST..FIRST + self.boot.clusters).contains(&cluster)
    }

    /// Follows a chain that holds `bytes`; without that, one of a directory whose chain alone says
    /// how long it is.
    fn follow(
        &mut self,
        first: u32,
        bytes: Option<u64>,
        what: &str,
        mut each: impl FnMut(&mut Clusters, u64) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let most = bytes.unwrap_or(MAX_DIRECTORY).div_ceil(self.boot.cluster);
        let most = if bytes.is_some() { most } else { most.min(self.boot.clusters) };
        if most > self.boot.clusters {
            refuse!(Structure, "{what} is larger than the whole; check it with its own tool");
        }
        let mut at = u64::from(first);
        let mut len = 0;
        loop {
            if !self.exists(at) {
                refuse!(
                    Structure,
                    "{what} has cluster {at}, which does not exist; check it with its own tool"
                );
            }
            each(&mut self.clusters, at)?;
            len += 1;
            let next = self.fat.get(at)?;
            if next == END {
                break;
            }
            if len >= most {
                refuse!(Structure, "the chain of {what} does not end; check it with its own tool");
            }
            at = u64::from(next);
        }
        if bytes.is_some() && len != most {
            refuse!(Structure, "the chain of {what} ends too early; check it with its own tool");
        }
        Ok(())
    }

    /// The clusters of a chain, as [`follow`](Self::follow) finds them.
    fn chain(
        &mut self,
        first: u32,
        bytes: Option<u64>,
        what: &str,
    ) -> Result<Vec<ClusterRun>, Refusal> {
        if bytes.is_some_and(|bytes| bytes > MAX_DIRECTORY.max(self.boot.clusters)) {
            refuse!(Structure, "{what} is too large; check it with its own tool");
        }
        let mut runs: Vec<ClusterRun> = Vec::new();
        self.follow(first, bytes, what, |_, at| {
            match runs.last_mut() {
                Some(last) if last.first + last.len == at => last.len += 1,
                _ => runs.push(ClusterRun { first: at, len: 1 }),
            }
            Ok(())
        })?;
        Ok(runs)
    }

    fn load_bitmap(&mut self, map: &[ClusterRun], bytes: u64) -> Result<(), Refusal> {
        let needed = self.boot.clusters.div_ceil(8);
        if bytes < needed {
            refuse!(
                Structure,
                "its allocation bitmap has {bytes} bytes and needs {needed}; check it with its own tool"
            );
        }
        let mut done = 0;
        for run in map {
            let span = Span::between(self.offset(run.first), self.offset(run.first + run.len));
            for piece in span.pieces(1 << 20) {
                if done >= needed {
                    return Ok(());
                }
                let len = piece.len().min(needed - done);
                let bits = self.window.bytes(piece.offset(), len as usize)?;
                self.clusters.load(done * 8, &bits);
                done += len;
            }
        }
        Ok(())
    }

    /// What the bitmap says is free, but for the clusters that the FAT says are bad.
    fn free(&mut self) -> Result<FreeList, Refusal> {
        let mut bad = Vec::new();
        for cluster in FIRST..FIRST + self.boot.clusters {
            if self.fat.get(cluster)? == BAD && !self.clusters.set(cluster - FIRST) {
                bad.push(cluster - FIRST);
                if bad.len() > 1 << 20 {
                    refuse!(Errors, "more than {} clusters are bad", 1 << 20);
                }
            }
        }
        let mut list = FreeList::new();
        self.clusters.push_free(&mut list, self.boot.heap, self.boot.cluster)?;
        // Nobody's: a file that claims one of these is in conflict.
        for cluster in bad {
            self.clusters.claim(cluster, 1, "a bad cluster")?;
        }
        Ok(list)
    }

    fn claim(&mut self, runs: &[ClusterRun], what: &str) -> Result<(), Refusal> {
        runs.iter().try_for_each(|run| {
            if run.first < FIRST {
                refuse!(Structure, "{what} has cluster {}, which does not exist", run.first);
            }
            self.clusters.claim(run.first - FIRST, run.len, what)
        })
    }

    /// Checks and claims what an entry of a directory points to. Returns where a directory lies;
    /// of a file, which may lie in any number of pieces, nothing is kept.
    fn claim_stream(
        &mut self,
        stream: ExfatStream,
        directory: bool,
    ) -> Result<Vec<ClusterRun>, Refusal> {
        let what = if directory { "a directory" } else { "a file" };
        if stream.first == 0 && stream.bytes == 0 {
            return Ok(Vec::new());
        }
        if stream.first == 0 || stream.bytes == 0 {
            refuse!(
                Structure,
                "{what} has clusters without a length or the reverse; check it with its own tool"
            );
        }
        if directory && stream.bytes > MAX_DIRECTORY {
            refuse!(Structure, "a directory of {} bytes; check it with its own tool", stream.bytes);
        }
        if stream.contiguous {
            let len = stream.bytes.div_ceil(self.boot.cluster);
            let runs = vec![ClusterRun { first: u64::from(stream.first), len }];
            self.claim(&runs, what)?;
            return Ok(runs);
        }
        if directory {
            let runs = self.chain(stream.first, Some(stream.bytes), what)?;
            self.claim(&runs, what)?;
            return Ok(runs);
        }
        self.follow(stream.first, Some(stream.bytes), what, |clusters, at| {
            clusters.claim(at - FIRST, 1, what)
        })?;
        Ok(Vec::new())
    }
}

/// What a stream extension or a benign secondary entry points to.
#[derive(Debug, Clone, Copy)]
struct ExfatStream {
    first: u32,
    bytes: u64,
    contiguous: bool,
}

impl ExfatStream {
    /// From a secondary entry, whose generic layout all of them share (specification 6.4).
    fn from_entry(entry: &[u8]) -> Option<Self> {
        (entry[1] & 1 != 0).then(|| Self {
            first: le32(entry, 20),
            bytes: crate::bytes::le64(entry, 24),
            contiguous: entry[1] & 2 != 0,
        })
    }
}

//! What was written to a disk, and when it was promised to stay: what a power cut may leave of it.

use crate::dice::mix;
use std::sync::Arc;

/// Bytes of a block, the unit in which the load writes.
pub(crate) const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// One content that a block had.
#[derive(Clone, Copy)]
struct Version {
    /// Tells it from the disk's other versions; 0 is the image's content.
    number: u64,
    zeroes: bool,
    /// The record's position when it was sent.
    sent: usize,
    /// Whether the disk answered, or showed it later.
    answered: bool,
    /// The record's position when a flush of it was answered.
    flushed: Option<usize>,
}

/// The life of a disk's blocks.
pub(crate) struct History {
    salt: u64,
    image: Arc<Vec<u8>>,
    /// All contents of each block, in their order; the first one is the image's.
    blocks: Vec<Vec<Version>>,
    /// Versions that no flush covers yet.
    pending: Vec<(usize, usize)>,
    next: u64,
}

/// For each block the first and last version that a state of the disk may hold.
pub(crate) type Bounds = Vec<(usize, usize)>;

impl History {
    /// That of a new disk which stands on `image`.
    pub(crate) fn new(salt: u64, image: Arc<Vec<u8>>) -> Self {
        let first = Version { number: 0, zeroes: false, sent: 0, answered: true, flushed: Some(0) };
        let blocks = vec![vec![first]; image.len() / BLOCK];
        Self { salt, image, blocks, pending: Vec::new(), next: 1 }
    }

    /// Blocks of the disk.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Notes that a new content of a block is sent now; gives it.
    pub(crate) fn write(&mut self, block: usize, zeroes: bool, position: usize) -> Vec<u8> {
        let version =
            Version { number: self.next, zeroes, sent: position, answered: false, flushed: None };
        self.next += 1;
        self.pending.push((block, self.blocks[block].len()));
        self.blocks[block].push(version);
        self.content(block, version)
    }

    /// Notes that the writes to a block were answered.
    pub(crate) fn answered(&mut self, block: usize) {
        if let Some(last) = self.blocks[block].last_mut() {
            last.answered = true;
        }
    }

    /// Notes that a durable write to a block was answered.
    pub(crate) fn durable(&mut self, block: usize, position: usize) {
        let last = self.blocks[block].len() - 1;
        self.blocks[block][last].answered = true;
        self.blocks[block][last].flushed = Some(position);
        self.pending.retain(|pending| *pending != (block, last));
    }

    /// Notes that a flush was answered, which was sent after all answers up to now.
    pub(crate) fn flushed(&mut self, position: usize) {
        self.pending.retain(|(block, index)| {
            let version = &mut self.blocks[*block][*index];
            if version.answered {
                version.flushed = Some(position);
            }
            !version.answered
        });
    }

    /// Notes what a block shows after its server was killed: what was flushed, or something later. That
    /// is what it holds from now on, and what the next flush makes durable.
    ///
    /// # Errors
    /// What is wrong, when it shows anything else.
    pub(crate) fn observe(
        &mut self,
        block: usize,
        bytes: &[u8],
        position: usize,
    ) -> Result<(), String> {
        let last = self.blocks[block].len() - 1;
        let floor = self.floor(block, usize::MAX);
        let shown =
            (floor..=last).rev().find(|i| self.content(block, self.blocks[block][*i]) == bytes);
        let Some(shown) = shown else {
            return Err(format!(
                "block {block} shows neither what was flushed nor what was sent later ({})",
                self.describe(block, bytes)
            ));
        };
        self.pending.retain(|(of, _)| *of != block);
        if shown < last {
            let again = Version {
                sent: position,
                answered: true,
                flushed: None,
                ..self.blocks[block][shown]
            };
            self.blocks[block].push(again);
        }
        let last = self.blocks[block].len() - 1;
        self.blocks[block][last].answered = true;
        if self.blocks[block][last].flushed.is_none() {
            self.pending.push((block, last));
        }
        Ok(())
    }

    /// The newest version of a block that was flushed when the record had `position` events.
    fn floor(&self, block: usize, position: usize) -> usize {
        let flushed = |version: &Version| version.flushed.is_some_and(|at| at <= position);
        self.blocks[block].iter().rposition(flushed).unwrap_or(0)
    }

    /// What the disk may hold when the power is cut at `position`.
    pub(crate) fn after_cut(&self, position: usize) -> Bounds {
        let last = |block: usize| {
            let sent = |version: &Version| version.sent <= position;
            self.blocks[block].iter().rposition(sent).unwrap_or(0)
        };
        (0..self.blocks()).map(|block| (self.floor(block, position), last(block))).collect()
    }

    /// What is flushed of each block now: what a state that is taken from now on holds at least.
    pub(crate) fn floors(&self) -> Vec<usize> {
        (0..self.blocks()).map(|block| self.floor(block, usize::MAX)).collect()
    }

    /// The newest version of each block now: what a state that was taken before holds at most.
    pub(crate) fn newest(&self) -> Vec<usize> {
        self.blocks.iter().map(|versions| versions.len() - 1).collect()
    }

    /// Checks `bytes` from the beginning of block `first`: each sector holds one of the versions allowed.
    ///
    /// # Errors
    /// Which block does not, what it may hold, what it holds.
    pub(crate) fn check(&self, first: usize, bytes: &[u8], bounds: &Bounds) -> Result<(), String> {
        for (index, bytes) in bytes.chunks(BLOCK).enumerate() {
            let block = first + index;
            let (from, to) = bounds[block];
            let allowed: Vec<Vec<u8>> =
                (from..=to).map(|i| self.content(block, self.blocks[block][i])).collect();
            let right = bytes.chunks(SECTOR).enumerate().all(|(sector, bytes)| {
                allowed.iter().any(|content| content[sector * SECTOR..][..SECTOR] == *bytes)
            });
            if !right {
                let numbers: Vec<u64> = (from..=to).map(|i| self.blocks[block][i].number).collect();
                return Err(format!(
                    "block {block} must hold one of the versions {numbers:?} ({})",
                    self.describe(block, bytes)
                ));
            }
        }
        Ok(())
    }

    fn describe(&self, block: usize, bytes: &[u8]) -> String {
        let known = |bytes: &[u8], sector: usize| {
            let found = self.blocks[block].iter().find(|version| {
                self.content(block, **version)[sector * SECTOR..][..SECTOR] == *bytes
            });
            found.map_or("foreign".to_owned(), |version| version.number.to_string())
        };
        let sectors: Vec<String> =
            bytes.chunks(SECTOR).enumerate().map(|(index, bytes)| known(bytes, index)).collect();
        format!(
            "its sectors hold {}; its last version is {:?}",
            sectors.join(" "),
            self.blocks[block].last().map(|v| (v.number, v.sent, v.flushed))
        )
    }

    fn content(&self, block: usize, version: Version) -> Vec<u8> {
        if version.zeroes {
            return vec![0; BLOCK];
        }
        if version.number == 0 {
            return self.image[block * BLOCK..][..BLOCK].to_vec();
        }
        let mut bytes = Vec::with_capacity(BLOCK);
        for sector in 0..BLOCK / SECTOR {
            let key = mix(self.salt ^ mix((block * BLOCK + sector) as u64) ^ version.number << 40);
            let words = (0..(SECTOR / 8) as u64).map(|word| key.wrapping_add(word << 32));
            words.for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        bytes
    }
}

//! What disks and images ought to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes that are written, and survive, as a whole.
pub(crate) const SECTOR: usize = 512;
/// Sectors that a disk has as its own or has not.
pub(crate) const BLOCK: usize = 8;

/// A content, as one number for each sector: all of its bytes repeat it.
pub(crate) type Content = Arc<Vec<u64>>;

/// A content that was cut, or goes on with zeroes.
pub(crate) fn resized(content: &[u64], sectors: usize) -> Content {
    let mut content = content.to_vec();
    content.resize(sectors, 0);
    Arc::new(content)
}

pub(crate) fn to_bytes(content: &[u64]) -> Vec<u8> {
    let sector = |tag: &u64| tag.to_le_bytes().into_iter().cycle().take(SECTOR);
    content.iter().flat_map(sector).collect()
}

/// The content of some bytes; none when a sector is not of one piece.
pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Vec<u64>> {
    let tag = |sector: &[u8]| {
        let (tags, _) = sector.as_chunks::<8>();
        let first = tags.first()?;
        tags.iter().all(|tag| tag == first).then(|| u64::from_le_bytes(*first))
    };
    bytes.chunks(SECTOR).map(tag).collect()
}

/// What a disk that holds `mine` holds after a rebase from `old` to `new` that was not refused; all three have one size.
/// `None` when both sides changed a block, to different things: then it was to be refused.
pub(crate) fn rebased(old: &[u64], mine: &[u64], new: &[u64]) -> Option<Content> {
    let blocks = old.chunks(BLOCK).zip(mine.chunks(BLOCK)).zip(new.chunks(BLOCK));
    let merged = blocks.map(|((old, mine), new)| match () {
        () if mine == old => Some(new),
        () if new == old || new == mine => Some(mine),
        () => None,
    });
    Some(Arc::new(merged.collect::<Option<Vec<_>>>()?.concat()))
}

/// Whether a rebase may be refused: the new version has another block than the disk, which may have written it as it was.
pub(crate) fn may_be_refused(old: &[u64], mine: &[u64], new: &[u64]) -> bool {
    let blocks = old.chunks(BLOCK).zip(mine.chunks(BLOCK)).zip(new.chunks(BLOCK));
    blocks.into_iter().any(|((old, mine), new)| new != old && new != mine)
}

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum There {
    Yes,
    No,
    /// Whoever made or removed it failed or was killed.
    Unknown,
}

/// What a disk may hold: what was flushed, with any part of what was written since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    flushed: Content,
    since: BTreeMap<usize, BTreeSet<u64>>,
}

impl State {
    pub(crate) fn of(content: &Content) -> Self {
        Self { flushed: Arc::clone(content), since: BTreeMap::new() }
    }

    /// The first sector that this is not; none when all may be.
    pub(crate) fn differs(&self, found: &[u64]) -> Option<usize> {
        if found.len() != self.flushed.len() {
            return Some(found.len());
        }
        let may = |(at, tag): (usize, &u64)| {
            self.flushed[at] == *tag || self.since.get(&at).is_some_and(|set| set.contains(tag))
        };
        found.iter().enumerate().position(|sector| !may(sector))
    }

    pub(crate) fn write(&mut self, at: usize, tag: u64) {
        self.since.entry(at).or_default().insert(tag);
    }

    /// The same on a disk that grew.
    pub(crate) fn resized(&self, sectors: usize) -> Self {
        Self { flushed: resized(&self.flushed, sectors), since: self.since.clone() }
    }
}

/// A disk.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(crate) there: There,
    pub(crate) is_ephemeral: bool,
    /// The server that has it; none when it was released.
    pub(crate) server: Option<usize>,
    /// What it may be; more than one when a change of the whole failed.
    pub(crate) states: Vec<State>,
    /// What another server may go on with that takes it by force.
    pub(crate) published: Vec<State>,
    /// The server that may have taken it: whoever did failed or was killed.
    pub(crate) taker: Option<usize>,
    pub(crate) snapshots: BTreeMap<String, (There, Content)>,
    /// It was kept after its image may have been lost: then nobody here knows what a reset leaves.
    pub(crate) was_kept: bool,
}

impl Disk {
    pub(crate) fn new(content: &Content, is_ephemeral: bool, server: usize) -> Self {
        Self {
            there: There::Unknown,
            is_ephemeral,
            server: Some(server),
            states: vec![State::of(content)],
            published: vec![State::of(content)],
            taker: None,
            snapshots: BTreeMap::new(),
            was_kept: false,
        }
    }

    /// Another server has it, with what was published; gives what is left with the earlier one.
    pub(crate) fn taken_by(&mut self, server: usize) -> Left {
        self.taker = None;
        self.server = Some(server);
        let states = std::mem::replace(&mut self.states, self.published.clone());
        Left { states, published: self.published.clone(), new: None, is_given_up: false }
    }
}

/// What is left of a disk with a server from which it was taken.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    pub(crate) states: Vec<State>,
    pub(crate) published: Vec<State>,
    /// The name that it was to be kept under, when that was tried.
    pub(crate) new: Option<String>,
    /// Whoever took the disk released it since: nobody keeps in the store what this stands on.
    pub(crate) is_given_up: bool,
}

/// All that there is.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) images: BTreeMap<String, (There, Content)>,
    pub(crate) disks: BTreeMap<String, Disk>,
    /// By server and disk.
    pub(crate) left: BTreeMap<(usize, String), Left>,
}

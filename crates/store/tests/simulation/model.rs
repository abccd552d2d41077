//! What the names of the store ought to mean.

use block::conformance::Sequence;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::RefKind;

/// The content of an image.
pub(crate) type Content = Arc<Vec<u8>>;
const PAGE: usize = 4096;
/// Different pieces of data that there are.
const TILES: u64 = 10;

/// Whether a name is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum There {
    Yes,
    No,
    /// Whoever made or removed it crashed, or got no answer.
    Unknown,
}

/// All names that there ever were; each is used once.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<(RefKind, String), (There, Content)>,
    /// Names that somebody began to remove, perhaps before they were known to be there.
    removals: BTreeSet<(RefKind, String)>,
    made: u64,
}

impl Model {
    /// A name that nobody used before.
    pub(crate) fn fresh(&mut self, kind: RefKind) -> String {
        self.made += 1;
        match kind {
            RefKind::Snapshot => format!("disk@{}", self.made),
            _ => format!("image:{}", self.made),
        }
    }

    pub(crate) fn set(&mut self, kind: RefKind, name: &str, there: There, content: &Content) {
        self.names.insert((kind, name.to_owned()), (there, Arc::clone(content)));
    }

    pub(crate) fn mark(&mut self, kind: RefKind, name: &str, there: There) {
        if let Some(entry) = self.names.get_mut(&(kind, name.to_owned())) {
            entry.0 = there;
        }
    }

    /// A name was made.
    pub(crate) fn published(&mut self, kind: RefKind, name: &str) {
        if !self.removals.contains(&(kind, name.to_owned())) {
            self.mark(kind, name, There::Yes);
        }
    }

    /// Somebody begins to remove a name.
    pub(crate) fn removing(&mut self, kind: RefKind, name: &str) {
        self.removals.insert((kind, name.to_owned()));
        self.mark(kind, name, There::Unknown);
    }

    /// One of the names that may be there.
    pub(crate) fn any(&self, dice: &mut Sequence) -> Option<(RefKind, String, Content)> {
        let present: Vec<_> =
            self.names.iter().filter(|(_, (there, _))| *there != There::No).collect();
        let ((kind, name), (_, content)) =
            present.get(dice.below(present.len().max(1) as u64) as usize)?;
        Some((*kind, name.clone(), Arc::clone(content)))
    }
}

/// Data that many images have: two to five pages of noise.
fn tile(number: u64) -> Vec<u8> {
    let pages = 2 + number as usize % 4;
    store::testing::noise(1000 + number, pages * PAGE)
}

/// An image of some tiles, with a hole between each two, so that each is a chunk.
pub(crate) fn image(dice: &mut Sequence) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + dice.below(5) {
        bytes.extend(tile(dice.below(TILES)));
        bytes.resize(bytes.len() + PAGE, 0);
    }
    bytes
}

/// Changes a part of an image; says which one.
pub(crate) fn change(image: &[u8], dice: &mut Sequence) -> (Vec<u8>, std::ops::Range<usize>) {
    let pages = image.len() / PAGE;
    let start = dice.below(pages as u64) as usize * PAGE;
    let tile = tile(dice.below(TILES));
    let end = (start + tile.len()).min(image.len());
    let mut bytes = image.to_vec();
    bytes[start..end].copy_from_slice(&tile[..end - start]);
    (bytes, start..end)
}

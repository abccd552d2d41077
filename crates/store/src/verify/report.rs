//! What a verification of a store found.

use crate::{ChunkId, ChunkRef, ManifestId, PackId, RefKind, pack};
use block::{Error, ErrorKind, Result, Span};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What was looked at, and all that is wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StoreVerifyReport {
    /// Names that were followed: images, disks, snapshots.
    pub names: u64,
    /// Objects that were read, packs among them.
    pub objects: u64,
    /// Packs of which every chunk was read.
    pub packs: u64,
    /// Chunks that were read and verified.
    pub chunks: u64,
    /// Their bytes in the store.
    pub stored_bytes: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// How many of 1000 packs, or chunks of the names asked for, were to be read; 1000 is all.
    pub sampled_permille: u32,
    /// What is missing or damaged, by key; empty when all is well.
    pub faults: Vec<Fault>,
    /// Damaged objects that are not among them: nothing needs them, and a collection is about to delete
    /// them.
    pub condemned: u64,
    /// Chunks that names need of packs that cannot be read as a whole: what a repair keeps of them,
    /// or looks for.
    #[serde(skip)]
    pub(crate) unsure: BTreeMap<PackId, BTreeSet<Lost>>,
    /// Packs that have a fault because they are of a newer format: whether they are sound nobody here can
    /// tell.
    #[serde(skip)]
    pub(crate) newer: BTreeSet<PackId>,
    /// Where images show the start of chunks that are lost.
    #[serde(skip)]
    pub(crate) shown: BTreeMap<ChunkId, Vec<u64>>,
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Its key.
    pub object: String,
    /// Whether it is there.
    pub state: FaultState,
    /// Where the first damage is, in bytes from its start; 0 when all of it is bad.
    pub offset: u64,
    /// What is wrong there.
    pub why: String,
    /// Chunks that cannot be read because of it, and that some name needs.
    pub lost_chunks: u64,
    /// How many of them the other stores have.
    pub healable_chunks: u64,
    /// The names that need what cannot be read: none when the object is garbage, or when all that
    /// they need of it is elsewhere in the store.
    pub touches: Vec<Touched>,
}

/// Whether an object is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultState {
    /// A name needs it, and it is not in the store.
    Missing,
    /// It is there, and breaks its format, or is not what its name says.
    Damaged,
}

/// A name and the parts of it that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Touched {
    /// What it is.
    pub kind: RefKind,
    /// Its name.
    pub name: String,
    /// Which parts, in order and apart. None when only what goes with it is damaged, such as its
    /// boot list or its boot copy.
    pub spans: Vec<Range>,
}

/// A part of an image or a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Range {
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

impl StoreVerifyReport {
    /// Takes out the faults of packs of a newer format.
    pub(crate) fn take_newer(&mut self) -> Vec<(PackId, Fault)> {
        let faults = std::mem::take(&mut self.faults);
        let mut newer = Vec::new();
        for fault in faults {
            match pack::id_of_key(&fault.object) {
                Ok(pack) if self.newer.contains(&pack) => newer.push((pack, fault)),
                _ => self.faults.push(fault),
            }
        }
        newer
    }

    /// Whether nothing is missing or damaged.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }
}

/// A chunk at the place that a segment says, ordered by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost(pub(crate) ChunkRef);

impl Ord for Lost {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |lost: &Self| (lost.0.offset, lost.0.id, lost.0.stored, lost.0.len);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Lost {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Faults in the making.
#[derive(Debug, Default)]
pub(super) struct Faults {
    by_key: BTreeMap<String, Draft>,
}

#[derive(Debug)]
struct Draft {
    state: FaultState,
    offset: u64,
    why: String,
    lost_chunks: u64,
    healable_chunks: u64,
    touches: BTreeMap<Holder, Vec<Span>>,
}

/// A name, and the manifest by which it needs something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) kind: RefKind,
    pub(super) name: String,
    pub(super) manifest: Option<ManifestId>,
    /// The manifest is not what it shows, but goes with it: a boot copy.
    pub(super) beside: bool,
}

impl Faults {
    /// Notes an error as a fault of an object, unless it says nothing of the data.
    pub(super) fn note(&mut self, key: &str, offset: u64, error: Error) -> Result<()> {
        let state = match error.kind() {
            ErrorKind::NotFound => FaultState::Missing,
            // Something that this build cannot read is not sound either.
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid => FaultState::Damaged,
            _ => return Err(error),
        };
        self.by_key.entry(key.to_owned()).or_insert_with(|| Draft {
            state,
            offset,
            why: error.message().to_owned(),
            lost_chunks: 0,
            healable_chunks: 0,
            touches: BTreeMap::new(),
        });
        Ok(())
    }

    /// Counts chunks that are lost by a fault, and the ones that other stores have.
    pub(super) fn count(&mut self, key: &str, lost: u64, healable: u64) {
        if let Some(draft) = self.by_key.get_mut(key) {
            draft.lost_chunks += lost;
            draft.healable_chunks += healable;
        }
    }

    /// Says who is touched by a fault, and where.
    pub(super) fn touch(&mut self, key: &str, holder: &Holder, span: Option<Span>) {
        if let Some(draft) = self.by_key.get_mut(key) {
            let span = span.filter(|_| !holder.beside);
            draft.touches.entry(holder.clone()).or_default().extend(span);
        }
    }

    /// Everyone who is touched.
    pub(super) fn holders(&self) -> BTreeSet<Holder> {
        self.by_key.values().flat_map(|draft| draft.touches.keys().cloned()).collect()
    }

    /// The list. Those who do not hold any more what they held are left out, and so is what was
    /// missing for them alone: it was deleted meanwhile.
    pub(super) fn finish(self, stale: &BTreeSet<Holder>) -> Vec<Fault> {
        let keep = |(object, draft): (String, Draft)| {
            let mut names: BTreeMap<(RefKind, String), Vec<Span>> = BTreeMap::new();
            for (holder, spans) in draft.touches {
                if !stale.contains(&holder) {
                    names.entry((holder.kind, holder.name)).or_default().extend(spans);
                }
            }
            if names.is_empty() && draft.state == FaultState::Missing {
                return None;
            }
            let touches = names
                .into_iter()
                .map(|((kind, name), spans)| Touched { kind, name, spans: joined(spans) })
                .collect();
            let Draft { state, offset, why, lost_chunks, healable_chunks, .. } = draft;
            Some(Fault { object, state, offset, why, lost_chunks, healable_chunks, touches })
        };
        self.by_key.into_iter().filter_map(keep).collect()
    }
}

/// Spans in order, joined where they touch.
fn joined(mut spans: Vec<Span>) -> Vec<Range> {
    spans.sort_unstable_by_key(|span| (span.offset(), span.end()));
    let mut list: Vec<Span> = Vec::new();
    for span in spans {
        match list.last_mut() {
            Some(last) if span.offset() <= last.end() => {
                *last = Span::between(last.offset(), last.end().max(span.end()));
            }
            _ => list.push(span),
        }
    }
    list.iter().map(|span| Range { offset: span.offset(), length: span.len() }).collect()
}

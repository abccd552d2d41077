//! Which manifests a client may read, and with them which segments: those that names lead to, and for a while those
//! that names led to. Pure.

use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::{ManifestId, SegmentId};
use tokio::time::Instant;

/// Who holds a manifest that no name leads to any more may read it for so long.
pub(super) const GRACE: Duration = Duration::from_secs(600);

/// The manifests that a client may read, and their segments.
#[derive(Default)]
pub(super) struct ReadableMaps {
    manifests: HashMap<ManifestId, ReadableManifest>,
    /// Manifests whose segments are not known yet.
    unopened: Vec<ManifestId>,
    segments: HashMap<SegmentId, SegmentUse>,
}

struct ReadableManifest {
    /// Whether a name led to it when that was last looked up, …
    is_named: bool,
    /// … and when one last did.
    named: Instant,
    /// Its segments; none while they are not known.
    segments: Vec<SegmentId>,
}

/// How often a segment stands in the manifests that may be read, and in those that are named.
#[derive(Default)]
struct SegmentUse {
    readable: u32,
    named: u32,
}

impl ReadableMaps {
    /// Takes over to which manifests names lead now. Gives whether any segment may not be read any more.
    pub(super) fn update(&mut self, named: &HashSet<ManifestId>, now: Instant) -> bool {
        let Self { manifests, unopened, segments } = self;
        manifests.retain(|id, manifest| {
            let was_named = std::mem::replace(&mut manifest.is_named, named.contains(id));
            if manifest.is_named {
                manifest.named = now;
            }
            let is_kept = now - manifest.named <= GRACE;
            for segment in &manifest.segments {
                let count = segments.entry(*segment).or_default();
                count.named += u32::from(manifest.is_named);
                count.named -= u32::from(was_named);
                count.readable -= u32::from(!is_kept);
            }
            is_kept
        });
        unopened.retain(|id| manifests.contains_key(id));
        for id in named {
            manifests.entry(*id).or_insert_with(|| {
                unopened.push(*id);
                ReadableManifest { is_named: true, named: now, segments: Vec::new() }
            });
        }
        let before = segments.len();
        segments.retain(|_, count| count.readable > 0);
        segments.len() < before
    }

    /// Whether a manifest may be read.
    pub(super) fn manifest(&self, id: &ManifestId) -> bool {
        self.manifests.contains_key(id)
    }

    /// Whether a name leads to a manifest, and not only did.
    pub(super) fn is_manifest_named(&self, id: &ManifestId) -> bool {
        self.manifests.get(id).is_some_and(|manifest| manifest.is_named)
    }

    /// Whether a segment may be read, as far as manifests were opened.
    pub(super) fn segment(&self, id: &SegmentId) -> bool {
        self.segments.contains_key(id)
    }

    /// Whether a name leads to a segment, and not only did, as far as manifests were opened.
    pub(super) fn is_segment_named(&self, id: &SegmentId) -> bool {
        self.segments.get(id).is_some_and(|count| count.named > 0)
    }

    /// A manifest whose segments are to be told to [`opened`](Self::opened), or that is to be put
    /// [back](Self::unopened).
    pub(super) fn next_unopened(&mut self) -> Option<ManifestId> {
        self.unopened.pop()
    }

    /// Takes back a manifest whose segments were not found out.
    pub(super) fn unopened(&mut self, id: ManifestId) {
        if self.manifests.contains_key(&id) && !self.unopened.contains(&id) {
            self.unopened.push(id);
        }
    }

    /// Takes over the segments of a manifest; gives those that were not known.
    pub(super) fn opened(&mut self, id: &ManifestId, segments: Vec<SegmentId>) -> Vec<SegmentId> {
        // It may have become unreadable while its segments were read, or have been opened twice.
        let manifest = self.manifests.get_mut(id).filter(|manifest| manifest.segments.is_empty());
        let Some(manifest) = manifest else { return Vec::new() };
        let mut fresh = Vec::new();
        for segment in &segments {
            let count = self.segments.entry(*segment).or_insert_with(|| {
                fresh.push(*segment);
                SegmentUse::default()
            });
            count.readable += 1;
            count.named += u32::from(manifest.is_named);
        }
        manifest.segments = segments;
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn manifest(number: u8) -> ManifestId {
        ManifestId([number; 32])
    }

    /// Two segments: one that it shares with the manifest after it, twice.
    fn segments(number: u8) -> Vec<SegmentId> {
        [number, number + 1, number].map(|n| SegmentId([n; 32])).to_vec()
    }

    proptest! {
        #[test]
        fn a_map_may_be_read_while_it_is_named_and_for_a_while_after_each_by_itself(
            steps in prop::collection::vec((prop::collection::vec(0u8..6, 0..6), 1u64..400, 0usize..3), 1..20),
        ) {
            let mut maps = ReadableMaps::default();
            let mut now = Instant::now();
            let mut last = BTreeMap::new();
            let mut opened = HashSet::new();
            for (named, seconds, opens) in steps {
                now += Duration::from_secs(seconds);
                last.extend(named.iter().map(|number| (*number, now)));
                last.retain(|_, at| now - *at <= GRACE);
                opened.retain(|number| last.contains_key(number));
                let before = maps.segments.len();
                let lost = maps.update(&named.iter().map(|n| manifest(*n)).collect(), now);
                prop_assert_eq!(lost, maps.segments.len() < before);
                for _ in 0..opens {
                    let Some(id) = maps.next_unopened() else { break };
                    maps.opened(&id, segments(id.0[0]));
                    opened.insert(id.0[0]);
                }
                prop_assert_eq!(maps.unopened.len() + opened.len(), last.len());
                for number in 0..7 {
                    let is_named = |n: &u8| last.get(n) == Some(&now);
                    prop_assert_eq!(maps.manifest(&manifest(number)), last.contains_key(&number));
                    prop_assert_eq!(maps.is_manifest_named(&manifest(number)), is_named(&number));
                    let segment = SegmentId([number; 32]);
                    let of = [Some(number), number.checked_sub(1)];
                    let mut of = of.into_iter().flatten().filter(|n| opened.contains(n));
                    prop_assert_eq!(maps.segment(&segment), of.clone().next().is_some());
                    prop_assert_eq!(maps.is_segment_named(&segment), of.any(|n| is_named(&n)));
                }
            }
        }
    }
}

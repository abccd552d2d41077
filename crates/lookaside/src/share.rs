//! Who of several peers reads what from the store, for all of them: rendezvous hashing (D. Thaler, C. Ravishankar,
//! "Using name-based mappings to increase hit rates", 1998). Pure.
//!
//! Each member has a weight for each chunk and map, which follows from their ids. The owner is the member with the
//! greatest one. So all who see the same members choose the same owner without a word, a member that comes or goes
//! moves only what is its own, and a question that is handed on goes to a greater weight each time: never in a circle.

use std::fmt;
use std::sync::Arc;
use store::{ChunkRef, MapId};

/// What [`ShareBy::Region`] shares out as one, in bytes, as a power of 2: 1 MiB of a pack.
const REGION: u32 = 20;

/// A member of those who share the way to a store: a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// What is shared out as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareBy {
    /// A chunk: for a store of which chunks are read as they are.
    Chunk,
    /// All chunks that begin in the same MiB of a pack: for one of which more is read at a time than the chunk.
    Region,
}

impl ShareBy {
    /// What weights of a chunk are made with.
    pub fn key(self, at: &ChunkRef) -> u64 {
        match self {
            Self::Chunk => number(at.id.as_bytes()),
            Self::Region => number(at.pack.as_bytes()) ^ mix(u64::from(at.offset >> REGION)),
        }
    }

    /// What weights of a map are made with.
    pub fn key_of_map(id: &MapId) -> u64 {
        number(id.as_bytes())
    }
}

/// The weight of a member for what has this key.
pub fn weight(member: MemberId, key: u64) -> u64 {
    mix(key ^ mix(member.0))
}

fn number(id: &[u8; 32]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&id[..8]);
    u64::from_le_bytes(first)
}

/// The output function of SplitMix64 (G. Steele, D. Lea, C. Flood, 2014): peers of all versions agree on it.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What is kept of a store on this machine: no peer is asked for that.
pub trait KeptChunks: Send + Sync + fmt::Debug {
    /// Whether a chunk is kept as it is read by this reference. Answered from memory.
    fn has(&self, at: &ChunkRef) -> bool;

    /// A chunk was read from the store, or from what is kept of it.
    fn was_read(&self, at: &ChunkRef);
}

/// How this machine shares the way to its store.
#[derive(Debug, Clone)]
pub struct LinkShare {
    /// Which member it is.
    pub member: MemberId,
    /// What is shared out as one.
    pub by: ShareBy,
    /// What it keeps.
    pub kept: Arc<dyn KeptChunks>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use store::{ChunkId, Encoding, PackId};

    fn owner(members: &[u64], key: u64) -> u64 {
        let weighed = members.iter().max_by_key(|member| weight(MemberId(**member), key));
        *weighed.expect("a member")
    }

    proptest! {
        #[test]
        fn who_leaves_moves_only_what_was_its_own(
            members in prop::collection::hash_set(any::<u64>(), 2..10),
            keys in prop::collection::vec(any::<u64>(), 1..100),
        ) {
            let all: Vec<u64> = members.into_iter().collect();
            let (gone, rest) = all.split_first().expect("two");
            for key in keys {
                let before = owner(&all, key);
                prop_assert!(before == *gone || owner(rest, key) == before);
            }
        }

        /// However little each knows of the others, a question that goes from owner to owner ends.
        #[test]
        fn a_question_is_handed_on_to_greater_weights_alone(
            views in prop::collection::vec(prop::collection::hash_set(0u64..8, 0..8), 8),
            key: u64,
        ) {
            let (mut at, mut steps) = (0u64, 0);
            loop {
                let mut seen: Vec<u64> = views[at as usize].iter().copied().collect();
                seen.push(at);
                let next = owner(&seen, key);
                if next == at {
                    break;
                }
                (at, steps) = (next, steps + 1);
                prop_assert!(steps < 8);
            }
        }
    }

    #[test]
    fn shares_are_about_even_and_regions_stay_together() {
        let at = |number: u32| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&mix(number.into()).to_le_bytes());
            let (len, pack) = (4096, PackId([(number >> 10) as u8; 32]));
            let offset = (number & 1023) << 14;
            ChunkRef { id: ChunkId(id), len, pack, offset, stored: len, encoding: Encoding::Plain }
        };
        let members: Vec<u64> = (1..=8).collect();
        let mut shares: HashMap<u64, u32> = HashMap::new();
        for number in 0..80_000 {
            *shares.entry(owner(&members, ShareBy::Chunk.key(&at(number)))).or_default() += 1;
            let (one, next) = (at(number & !63), at(number));
            assert_eq!(ShareBy::Region.key(&one), ShareBy::Region.key(&next));
        }
        assert!(shares.values().all(|share| (9_000..11_000).contains(share)), "{shares:?}");
    }

    #[test]
    fn weights_are_the_same_in_every_version() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(weight(MemberId(0), 0), mix(0xe220_a839_7b1d_cdaf));
    }
}

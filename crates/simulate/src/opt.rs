//! The best that any policy could do: what is referenced again last leaves (L. A. Belady: "A study of
//! replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966, MIN).
//!
//! Each held block is one bit, at the place of its next reference: no two blocks share a place. A
//! reference hits when the bit of its own place is set. The victim is the highest bit, which a
//! bitmap with summaries finds in a few steps.

use crate::stream::ReferenceStream;

const NEVER: u32 = u32::MAX;

/// A set of places, whose highest is found fast.
#[derive(Debug)]
struct PlaceSet {
    /// Bits, then one bit for each word of the level below, up to one word.
    levels: Vec<Vec<u64>>,
}

impl PlaceSet {
    fn new(places: usize) -> Self {
        let mut levels = Vec::new();
        let mut bits = places.max(1);
        loop {
            let words = bits.div_ceil(64);
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            bits = words;
        }
    }

    fn insert(&mut self, place: u32) {
        let mut at = place as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was = *word;
            *word |= 1 << (at % 64);
            if was != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Takes a place out; whether it was in.
    fn remove(&mut self, place: usize) -> bool {
        let mut at = place;
        if self.levels[0][at / 64] & (1 << (at % 64)) == 0 {
            return false;
        }
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        true
    }

    fn pop_highest(&mut self) {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            if word == 0 {
                return;
            }
            at = at * 64 + word.ilog2() as usize;
        }
        self.remove(at);
    }
}

/// The place of the next reference to the same block for each reference of a stream, or [`NEVER`]; the same for
/// all sizes.
pub(crate) fn next_references(stream: &ReferenceStream) -> Vec<u32> {
    let mut seen = vec![NEVER; stream.blocks() as usize];
    let mut next = vec![NEVER; stream.len()];
    for (at, reference) in stream.packed().iter().enumerate().rev() {
        let (id, _) = ReferenceStream::unpack(*reference);
        next[at] = std::mem::replace(&mut seen[id as usize], at as u32);
    }
    next
}

/// A cache that knows the future.
#[derive(Debug)]
pub(crate) struct Opt<'a> {
    /// See [`next_references`].
    next: &'a [u32],
    held: PlaceSet,
    /// How many blocks are held that are referenced again, and how many that are not.
    live: usize,
    dead: usize,
    blocks: usize,
}

impl<'a> Opt<'a> {
    /// A cache of so many blocks, with what [`next_references`] says of the stream.
    pub(crate) fn new(next: &'a [u32], blocks: u32) -> Self {
        let held = PlaceSet::new(next.len());
        Self { next, held, live: 0, dead: 0, blocks: blocks as usize }
    }

    /// The reference at place `at`; places come in order, each once.
    #[inline]
    pub(crate) fn access(&mut self, at: usize) -> bool {
        let hit = self.held.remove(at);
        if hit {
            self.live -= 1;
        } else if self.live + self.dead >= self.blocks {
            if self.dead > 0 {
                self.dead -= 1;
            } else {
                self.held.pop_highest();
                self.live -= 1;
            }
        }
        match self.next[at] {
            NEVER => self.dead += 1,
            next => {
                self.held.insert(next);
                self.live += 1;
            }
        }
        hit
    }
}

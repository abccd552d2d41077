//! W-TinyLFU: one size after the other, and only one look into the past. See the
//! [cache's form](cache::policy::wtinylfu) for the rules.
//!
//! A block stands for the time of its last use, the number of a reference. When each reference knows the one before
//! to its block, which is the same for all sizes, nothing has to be kept by block: two bits for each time say in
//! which list what was used then is, as long as it was not used again. Neighbours in a list were mostly used at
//! about the same time, so that this and what is counted of uses is near where lists by block are not. The protected
//! segment is in order of time, and needs no list; the other two are in order of arrival, in queues.
//!
//! All sizes in one pass are slower: their sketches together do not fit the processor's caches, and each reference
//! changes every one of them.

use crate::client::fingerprint;
use crate::run::ReferencedCache;
use crate::stream::{AHEAD, ReferenceStream};
use cache::policy::sketch::{Sketch, SketchKey};
use cache::policy::wtinylfu::WTinyLfuParameters;
use std::collections::VecDeque;
use std::hint::black_box;

/// The list of what is not held, or was used again.
const GONE: u64 = 0;
const WINDOW: u64 = 1;
const PROTECTED: u64 = 2;
const PROBATION: u64 = 3;

/// Times whose lists are in one word.
const GROUP: u32 = u64::BITS / 2;

/// The lower bit of each time of a word.
const LOWER: u64 = u64::MAX / 3;

/// No victim: none is known to have been used.
const NOBODY: u32 = u32::MAX;

/// The time of the last reference to the block of each reference; its own, at the first.
pub(super) fn previous_references(stream: &ReferenceStream) -> Vec<u32> {
    let mut last = vec![u32::MAX; stream.blocks() as usize];
    let references = (0u32..).zip(stream.references());
    references.map(|(at, (id, _))| std::mem::replace(&mut last[id as usize], at).min(at)).collect()
}

/// Which list is what was used at each time.
struct UseLists(Vec<u64>);

impl UseLists {
    fn new(times: usize) -> Self {
        Self(vec![0; times.div_ceil(GROUP as usize)])
    }

    #[inline]
    fn get(&self, time: u32) -> u64 {
        self.0[(time / GROUP) as usize] >> (time % GROUP * 2) & 3
    }

    /// Takes what was used at a time out of its list.
    #[inline]
    fn take(&mut self, time: u32) -> u64 {
        let (word, bit) = (&mut self.0[(time / GROUP) as usize], time % GROUP * 2);
        let list = *word >> bit & 3;
        *word ^= list << bit;
        list
    }

    /// Puts what is in no list into one.
    #[inline]
    fn put(&mut self, time: u32, list: u64) {
        self.0[(time / GROUP) as usize] |= list << (time % GROUP * 2);
    }

    /// The first time from one on that is of the protected segment.
    #[inline]
    fn first_protected(&self, from: u32) -> Option<u32> {
        let (mut group, mut mask) = (from / GROUP, LOWER << (from % GROUP * 2));
        loop {
            let word = *self.0.get(group as usize)?;
            let found = (word >> 1) & !word & mask;
            if found != 0 {
                return Some(group * GROUP + found.trailing_zeros() / 2);
            }
            (group, mask) = (group + 1, LOWER);
        }
    }
}

/// A use, and what it was counted under.
#[derive(Clone, Copy)]
struct CountedUse {
    time: u32,
    key: SketchKey,
}

/// A list in order of arrival. What has left it is still there, until it comes to the front or room is needed.
struct UseQueue<const LIST: u64>(VecDeque<CountedUse>);

impl<const LIST: u64> UseQueue<LIST> {
    #[inline]
    fn push(&mut self, last: CountedUse, lists: &UseLists) {
        if self.0.len() == self.0.capacity() {
            self.make_room(lists);
        }
        self.0.push_back(last);
    }

    /// At least as much as there is left, so that this costs a constant time for each push.
    #[cold]
    fn make_room(&mut self, lists: &UseLists) {
        self.0.retain(|queued| lists.get(queued.time) == LIST);
        self.0.reserve(self.0.len().max(AHEAD));
    }

    #[inline]
    fn first(&mut self, lists: &UseLists) -> Option<CountedUse> {
        loop {
            let first = *self.0.front()?;
            if lists.get(first.time) == LIST {
                return Some(first);
            }
            self.0.pop_front();
        }
    }

    #[inline]
    fn pop(&mut self, lists: &mut UseLists) -> Option<CountedUse> {
        let first = self.first(lists)?;
        self.0.pop_front();
        lists.take(first.time);
        Some(first)
    }
}

/// Entries of the window, the main part, and its protected segment.
struct SegmentLengths {
    window: usize,
    main: usize,
    protected: usize,
}

/// W-TinyLFU with one size.
pub(super) struct TimedWTinyLfu<'a> {
    references: &'a [u32],
    previous: &'a [u32],
    lists: UseLists,
    window: UseQueue<WINDOW>,
    probation: UseQueue<PROBATION>,
    /// Nothing before is in the protected segment.
    protected: u32,
    lens: SegmentLengths,
    most: SegmentLengths,
    sketch: Sketch,
    /// The victim that won last, or [`NOBODY`], and how often it was used at least.
    incumbent: (u32, u32),
    /// What the references that were announced last are counted under.
    keys: [SketchKey; AHEAD],
}

impl<'a> TimedWTinyLfu<'a> {
    /// With room for so many blocks, all of the stream at most, and with what
    /// [`previous_references`] says of it.
    pub(super) fn new(
        room: u32,
        parameters: WTinyLfuParameters,
        stream: &'a ReferenceStream,
        previous: &'a [u32],
    ) -> Self {
        let room = room as usize;
        let window = parameters.window.of(room).max(1).min(room);
        let main = room - window;
        Self {
            references: stream.packed(),
            previous,
            lists: UseLists::new(previous.len()),
            window: UseQueue(VecDeque::new()),
            probation: UseQueue(VecDeque::new()),
            protected: 0,
            lens: SegmentLengths { window: 0, main: 0, protected: 0 },
            most: SegmentLengths { window, main, protected: parameters.protected.of(main) },
            sketch: Sketch::new(room),
            incumbent: (NOBODY, 0),
            keys: [SketchKey::default(); AHEAD],
        }
    }

    /// The use at a time.
    #[inline]
    fn counted(&self, time: u32) -> CountedUse {
        let (id, _) = ReferenceStream::unpack(self.references[time as usize]);
        CountedUse { time, key: key(id) }
    }

    /// Makes room in the window, where there is none.
    #[inline]
    fn miss(&mut self) {
        if self.lens.window < self.most.window {
            self.lens.window += 1;
            return;
        }
        let Some(candidate) = self.window.pop(&mut self.lists) else { return };
        if self.lens.main < self.most.main {
            self.lens.main += 1;
            self.enter_probation(candidate);
        } else if self.replaces_victim(candidate.key) {
            self.enter_probation(candidate);
        }
    }

    /// Lets go of the next victim if a candidate was used more often.
    #[inline]
    fn replaces_victim(&mut self, candidate: SketchKey) -> bool {
        let is_protected = self.lens.protected == self.lens.main;
        let victim = if is_protected {
            self.lists.first_protected(self.protected).map(|first| self.counted(first))
        } else {
            self.probation.first(&self.lists)
        };
        let Some(victim) = victim else { return false };
        let (incumbent, least) = self.incumbent;
        if incumbent == victim.time && !self.sketch.exceeds(candidate, least) {
            return false;
        }
        let least = self.sketch.estimate(victim.key);
        self.incumbent = (victim.time, least);
        if !self.sketch.exceeds(candidate, least) {
            return false;
        }
        self.lists.take(victim.time);
        self.lens.protected -= usize::from(is_protected);
        true
    }

    /// What came to the protected segment puts its first out if it is full.
    #[inline]
    fn promote(&mut self) {
        if self.lens.protected < self.most.protected {
            self.lens.protected += 1;
        } else if let Some(first) = self.lists.first_protected(self.protected) {
            self.protected = first + 1;
            self.lists.take(first);
            self.enter_probation(self.counted(first));
        }
    }

    #[inline]
    fn enter_probation(&mut self, last: CountedUse) {
        self.lists.put(last.time, PROBATION);
        self.probation.push(last, &self.lists);
    }
}

impl ReferencedCache for TimedWTinyLfu<'_> {
    #[inline]
    fn announce(&mut self, references: &[u32]) {
        let mut touched = false;
        for (reference, into) in references.iter().zip(&mut self.keys) {
            *into = key(ReferenceStream::unpack(*reference).0);
            touched ^= self.sketch.touch(*into);
        }
        black_box(touched);
    }

    #[inline]
    fn access(&mut self, at: usize, _: u32) -> bool {
        let list = self.lists.take(self.previous[at]);
        let last = CountedUse { time: at as u32, key: self.keys[at % AHEAD] };
        if list == GONE {
            self.miss();
        }
        // What was used so often at least still was, unless counters were halved.
        if self.sketch.add(last.key) {
            self.incumbent.0 = NOBODY;
        }
        self.lists.put(last.time, if list <= WINDOW { WINDOW } else { PROTECTED });
        if list <= WINDOW {
            self.window.push(last, &self.lists);
        }
        if list == PROBATION {
            self.promote();
        }
        list != GONE
    }
}

/// What references to a block are counted under.
#[inline]
fn key(id: u32) -> SketchKey {
    Sketch::key(fingerprint(id))
}

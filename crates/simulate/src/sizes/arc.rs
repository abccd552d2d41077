//! ARC at many sizes: all of its lists, what it holds and the names of what left, are in order of the last
//! use. A block came with its last use, or was there before, and goes from what is held to the names of the same
//! kind. See the [cache's form](cache::policy::arc) for the rules.

use super::recency::RecencyLog;
use super::{ManySizes, all, each};

/// T1: held, used once lately.
const ONCE: usize = 0;
/// T2: held, used at least twice lately.
const OFTEN: usize = 1;
/// B1: names of what left [`ONCE`].
const LEFT_ONCE: usize = 2;
/// B2: names of what left [`OFTEN`].
const LEFT_OFTEN: usize = 3;
/// The list of a block that a size has no name of.
const UNKNOWN: usize = 4;

/// ARC at many sizes.
pub(super) struct ArcSizes {
    log: RecencyLog<4>,
    rooms: Vec<u32>,
    /// How many entries of those used once each size is to keep.
    targets: Vec<f64>,
}

impl ArcSizes {
    /// With room for so many of `blocks` blocks.
    pub(super) fn new(rooms: &[u32], blocks: u32) -> Self {
        Self {
            log: RecencyLog::new(blocks),
            rooms: rooms.to_vec(),
            targets: vec![0.0; rooms.len()],
        }
    }

    /// Which sizes have a block in each list.
    #[inline]
    fn lists(&self, id: u32, all: u32) -> [u32; 4] {
        let Some((place, came)) = self.log.last_use(id) else { return [0; 4] };
        let from = |list| self.log.reaching(list, place);
        let (was, once, often) = (all & !came, from(ONCE), from(OFTEN));
        [came & once, was & often, came & !once & from(LEFT_ONCE), was & !often & from(LEFT_OFTEN)]
    }

    /// A miss of what is in this list: makes room where there is none.
    #[inline]
    fn miss<const INCOMING: usize>(&mut self, size: usize) {
        let (room, log) = (self.rooms[size], &mut self.log);
        let target = &mut self.targets[size];
        if INCOMING != UNKNOWN {
            let once = f64::from(log.len(LEFT_ONCE, size));
            let often = f64::from(log.len(LEFT_OFTEN, size));
            *target = match INCOMING {
                LEFT_ONCE => (*target + (often / once).max(1.0)).min(f64::from(room)),
                _ => (*target - (once / often).max(1.0)).max(0.0),
            };
        }
        let held_once = log.len(ONCE, size);
        if held_once + log.len(OFTEN, size) < room {
            return;
        }
        if INCOMING == UNKNOWN
            && held_once + log.len(LEFT_ONCE, size) >= room
            && !log.pop(LEFT_ONCE, size)
        {
            log.pop(ONCE, size);
            // No name is kept of it.
            log.begin(LEFT_ONCE, ONCE, size);
            return;
        }
        // REPLACE of the paper.
        let once = f64::from(held_once);
        let is_once =
            once >= 1.0 && (once > *target || (INCOMING == LEFT_OFTEN && once == *target));
        let from = if is_once || log.len(OFTEN, size) == 0 { ONCE } else { OFTEN };
        log.pop(from, size);
        log.enter(from + LEFT_ONCE, size);
        let names = room + u32::from(INCOMING != UNKNOWN);
        while log.len(LEFT_ONCE, size) + log.len(LEFT_OFTEN, size) > names {
            if !log.pop(LEFT_OFTEN, size) {
                log.pop(LEFT_ONCE, size);
            }
        }
    }
}

impl ManySizes for ArcSizes {
    fn announce(&self, ids: impl Iterator<Item = u32>) {
        self.log.announce(ids);
    }

    #[inline]
    fn access(&mut self, id: u32) -> u32 {
        let all = all(self.rooms.len());
        let [once, often, mut left_once, mut left_often] = self.lists(id, all);
        let missing = all & !(once | often);
        each(missing & !(left_once | left_often)).for_each(|size| self.miss::<UNKNOWN>(size));
        if left_once | left_often != 0 {
            each(left_once).for_each(|size| self.miss::<LEFT_ONCE>(size));
            each(left_often).for_each(|size| self.miss::<LEFT_OFTEN>(size));
            // What made room may have forgotten the name.
            [_, _, left_once, left_often] = self.lists(id, all);
        }
        for (list, sizes) in [(ONCE, once), (LEFT_ONCE, left_once), (LEFT_OFTEN, left_often)] {
            for size in each(sizes) {
                self.log.leave(list, size);
                self.log.enter(OFTEN, size);
            }
        }
        let new = missing & !(left_once | left_often);
        each(new).for_each(|size| self.log.enter(ONCE, size));
        self.log.refer(id, new);
        missing
    }
}

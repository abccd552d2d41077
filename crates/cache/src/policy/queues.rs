//! Queues of ids without links: an id is pushed to the end of a queue, leaves from its head, or is
//! taken out of the middle.
//!
//! What is pushed is appended to a log; the id's node says where. Taking an id out, or moving it to
//! an end, changes its node only: the old place in the log is then out of date, as the node does not
//! point back at it, and is skipped when the head comes there. So a use costs one line of memory
//! that is hard to foresee, where a linked list needs three.
//!
//! The logs are chains of segments of one vector. When no segment is free, places out of date are
//! squeezed out of all logs; the vector grows when less than half of it was gained by that. Per push
//! this takes a constant time.
//!
//! What a policy calls for each access is compiled into it always, here and in the policies: a simulator's loop is
//! up to 7 % slower where the compiler decides otherwise, which depends on who else calls it.

use std::hint::black_box;

/// The list of an id that is in none.
pub(super) const NOWHERE: u8 = u8::MAX;

/// The largest count that a node keeps; counts stay there.
pub(super) const MAX_COUNT: u32 = (1 << 24) - 1;

/// Ids in a segment.
const SEGMENT: usize = 64;

/// The most segments: places are numbers below 2^32.
const MOST: usize = (1 << 32) / SEGMENT - 1;

/// The place of an id that is in no list.
const NO_PLACE: u32 = u32::MAX;

/// The end of a chain of segments.
const NO_SEGMENT: u32 = u32::MAX;

/// What is known of an id: 8 bytes, and what a policy keeps with it.
#[derive(Debug, Clone, Copy)]
struct QueueNode<T> {
    /// Where it stands in the logs.
    place: u32,
    /// The list below, the count above.
    packed: u32,
    data: T,
}

/// `K` queues. An id is in at most one of them.
#[derive(Debug)]
pub(super) struct Queues<const K: usize, T = ()> {
    nodes: Vec<QueueNode<T>>,
    // Three arrays, not one: a compiler that changes neighbours in one go makes the next access to one
    // of them wait.
    /// The place of the next push of each list. Its segment is there already.
    tails: [u32; K],
    /// The oldest place of each list's log.
    heads: [u32; K],
    lens: [u32; K],
    /// The logs: the id that was pushed to each place.
    log: Vec<u32>,
    /// The segment behind each segment, of a chain or of the free ones.
    behind: Vec<u32>,
    free: u32,
}

impl<const K: usize, T: Copy + Default> Queues<K, T> {
    /// Empty queues with room for `ids` ids; more room is made for higher ones.
    pub(super) fn new(ids: u32) -> Self {
        let places = std::array::from_fn(|list| (list * SEGMENT) as u32);
        let mut new = Self {
            nodes: vec![absent(); ids as usize],
            tails: places,
            heads: places,
            lens: [0; K],
            log: vec![0; K * SEGMENT],
            behind: vec![NO_SEGMENT; K],
            free: NO_SEGMENT,
        };
        new.grow(K);
        new
    }

    /// Makes room for `id`: to be called before an id is pushed for the first time.
    #[inline(always)]
    pub(super) fn reserve(&mut self, id: u32) {
        if id as usize >= self.nodes.len() {
            self.nodes.resize(id as usize + 1, absent());
        }
    }

    /// The list that `id` is in, or [`NOWHERE`].
    #[inline(always)]
    pub(super) fn list(&self, id: u32) -> u8 {
        self.nodes.get(id as usize).map_or(NOWHERE, |node| node.packed as u8)
    }

    /// The number of ids in a list.
    #[inline(always)]
    pub(super) fn len(&self, list: u8) -> u32 {
        self.lens[list as usize]
    }

    /// The first of a list.
    #[inline(always)]
    pub(super) fn head(&mut self, list: u8) -> Option<u32> {
        if self.lens[list as usize] == 0 {
            return None;
        }
        let mut place = self.heads[list as usize];
        loop {
            let id = self.log[place as usize];
            if self.nodes[id as usize].place == place {
                self.heads[list as usize] = place;
                return Some(id);
            }
            place += 1;
            if (place as usize).is_multiple_of(SEGMENT) {
                place = self.turn(place / SEGMENT as u32 - 1);
            }
        }
    }

    /// The first place of the segment behind `done`, which was a log's first, and is free now.
    #[cold]
    fn turn(&mut self, done: u32) -> u32 {
        let head = self.behind[done as usize] * SEGMENT as u32;
        self.behind[done as usize] = std::mem::replace(&mut self.free, done);
        // Brings all nodes near at once: in `head` each waits for what is made of the one before.
        let ids = &self.log[head as usize..][..SEGMENT];
        let places =
            ids.iter().filter_map(|id| self.nodes.get(*id as usize)).map(|node| node.place);
        black_box(places.fold(0, |all, place| all ^ place));
        head
    }

    /// Appends `id`, which must be in no list.
    #[inline(always)]
    pub(super) fn push_tail(&mut self, list: u8, id: u32) {
        let place = self.tails[list as usize];
        self.tails[list as usize] = place + 1;
        self.lens[list as usize] += 1;
        self.log[place as usize] = id;
        let node = &mut self.nodes[id as usize];
        node.place = place;
        node.packed = (node.packed & !0xff) | u32::from(list);
        if (place as usize + 1).is_multiple_of(SEGMENT) {
            self.extend(list, place);
        }
    }

    /// Takes `id`, which must be in a list, out of it.
    #[inline(always)]
    pub(super) fn take(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        self.lens[(node.packed & 0xff) as usize] -= 1;
        node.place = NO_PLACE;
        node.packed |= 0xff;
    }

    /// Takes the first of a list.
    #[inline(always)]
    pub(super) fn pop_head(&mut self, list: u8) -> Option<u32> {
        let id = self.head(list)?;
        self.take(id);
        Some(id)
    }

    /// Moves `id` from the list that it is in to the end of `list`.
    #[inline(always)]
    pub(super) fn move_to_tail(&mut self, list: u8, id: u32) {
        let packed = self.nodes[id as usize].packed;
        self.lens[(packed & 0xff) as usize] -= 1;
        self.push_tail(list, id);
    }

    /// The count kept with `id`; 0 at first.
    #[inline(always)]
    pub(super) fn count(&self, id: u32) -> u32 {
        self.nodes.get(id as usize).map_or(0, |node| node.packed >> 8)
    }

    /// Keeps a count with `id`, [`MAX_COUNT`] at most.
    #[inline(always)]
    pub(super) fn set_count(&mut self, id: u32, count: u32) {
        let node = &mut self.nodes[id as usize];
        node.packed = (count.min(MAX_COUNT) << 8) | (node.packed & 0xff);
    }

    /// What is kept with `id`; the default at first.
    #[inline(always)]
    pub(super) fn data(&self, id: u32) -> T {
        self.nodes[id as usize].data
    }

    /// Keeps something with `id`.
    #[inline(always)]
    pub(super) fn set_data(&mut self, id: u32, data: T) {
        self.nodes[id as usize].data = data;
    }

    /// Puts a segment behind the one of a list's last place, which was just used.
    #[cold]
    fn extend(&mut self, list: u8, last: u32) {
        // One is always free here.
        let segment = self.free;
        self.free = self.behind[segment as usize];
        self.behind[segment as usize] = NO_SEGMENT;
        self.behind[last as usize / SEGMENT] = segment;
        self.tails[list as usize] = segment * SEGMENT as u32;
        if self.free == NO_SEGMENT {
            self.squeeze();
        }
    }

    /// Takes places out of date out of all logs; makes the logs larger when little was gained.
    fn squeeze(&mut self) {
        for list in 0..K {
            let (mut from, mut to) = (self.heads[list], self.heads[list]);
            while from != self.tails[list] {
                let id = self.log[from as usize];
                let node = &mut self.nodes[id as usize];
                if node.place == from {
                    self.log[to as usize] = id;
                    node.place = to;
                    to = next(&self.behind, to);
                }
                from = next(&self.behind, from);
            }
            self.tails[list] = to;
            let mut rest = std::mem::replace(&mut self.behind[to as usize / SEGMENT], NO_SEGMENT);
            while rest != NO_SEGMENT {
                let following = std::mem::replace(&mut self.behind[rest as usize], self.free);
                self.free = rest;
                rest = following;
            }
        }
        let all = self.behind.len();
        let behind = |segment: &u32| self.behind.get(*segment as usize).copied();
        let free = std::iter::successors(Some(self.free), behind);
        let free = free.take_while(|segment| *segment != NO_SEGMENT).count();
        if free * 2 < all {
            self.grow(all);
        }
    }

    /// Adds so many segments, all free.
    fn grow(&mut self, segments: usize) {
        let all = self.behind.len();
        for segment in all..(all + segments).min(MOST) {
            self.behind.push(self.free);
            self.free = segment as u32;
        }
        self.log.resize(self.behind.len() * SEGMENT, 0);
    }
}

/// The place behind another one of the same log.
fn next(behind: &[u32], place: u32) -> u32 {
    match (place as usize + 1).is_multiple_of(SEGMENT) {
        true => behind[place as usize / SEGMENT] * SEGMENT as u32,
        false => place + 1,
    }
}

/// The node of an id that was never pushed.
fn absent<T: Default>() -> QueueNode<T> {
    QueueNode { place: NO_PLACE, packed: NOWHERE.into(), data: T::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const LISTS: usize = 3;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Long enough for logs to be squeezed and to grow many times.
        #[test]
        fn queues_are_queues(
            ids in 1u32..700,
            calls in prop::collection::vec((0u8..20, any::<u32>(), 0..LISTS as u8), 1..8000),
        ) {
            let mut queues: Queues<LISTS, u32> = Queues::new(0);
            let mut model: [VecDeque<u32>; LISTS] = Default::default();
            for (call, id, list) in calls {
                let id = id % ids;
                let at = model.iter().position(|queue| queue.contains(&id));
                prop_assert_eq!(queues.list(id), at.map_or(NOWHERE, |list| list as u8));
                match (call, at) {
                    (0..3, _) => {
                        let head = model[list as usize].front().copied();
                        prop_assert_eq!(queues.head(list), head);
                    }
                    (3..6, _) => {
                        let head = model[list as usize].pop_front();
                        prop_assert_eq!(queues.pop_head(list), head);
                    }
                    (6, Some(at)) => {
                        model[at].retain(|other| *other != id);
                        queues.take(id);
                    }
                    (_, Some(at)) => {
                        model[at].retain(|other| *other != id);
                        model[list as usize].push_back(id);
                        queues.move_to_tail(list, id);
                        prop_assert_eq!((queues.count(id), queues.data(id)), (id & 7, id));
                    }
                    (_, None) => {
                        model[list as usize].push_back(id);
                        queues.reserve(id);
                        queues.set_count(id, id & 7);
                        queues.set_data(id, id);
                        queues.push_tail(list, id);
                    }
                }
                prop_assert_eq!(queues.len(list) as usize, model[list as usize].len());
            }
            let live: usize = model.iter().map(VecDeque::len).sum();
            let most = 4 * (ids as usize + 2 * LISTS * SEGMENT);
            prop_assert!(queues.log.len() <= most, "{} places for {live}", queues.log.len());
        }
    }

    #[test]
    fn a_queue_used_for_ever_takes_room_for_what_is_in_it() {
        let mut queues: Queues<1> = Queues::new(1000);
        (0..1000).for_each(|id| queues.push_tail(0, id));
        for turn in 0..1_000_000u32 {
            queues.move_to_tail(0, turn % 10);
        }
        assert!(queues.log.len() <= 4096 + 2 * SEGMENT, "{} places", queues.log.len());
        assert_eq!((queues.len(0), queues.head(0)), (1000, Some(10)));
    }
}

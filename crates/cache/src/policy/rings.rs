//! Doubly linked lists of ids, their links in one vector: any number of lists share it, as an id is
//! in at most one of them. A list is a ring closed by a node of its own, so that no operation has a
//! special case for an end.

/// The list of an id that is in none.
pub(super) const NOWHERE: u8 = u8::MAX;

/// The largest count that a node keeps; counts stay there.
pub(super) const MAX_COUNT: u32 = (1 << 24) - 1;

/// What is known of an id: 16 bytes, so that it never straddles a line of the processor's cache.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
struct RingNode {
    previous: u32,
    next: u32,
    stamp: u32,
    /// The list below, the count above.
    packed: u32,
}

const ABSENT: RingNode = RingNode { previous: 0, next: 0, stamp: 0, packed: NOWHERE as u32 };

/// `K` lists. Ids must be below `u32::MAX - K`.
#[derive(Debug)]
pub(super) struct Rings<const K: usize> {
    nodes: Vec<RingNode>,
    lens: [u32; K],
}

impl<const K: usize> Rings<K> {
    /// Empty lists with room for `ids` ids; more room is made for higher ones.
    pub(super) fn new(ids: u32) -> Self {
        let mut nodes = vec![ABSENT; K + ids as usize];
        for (list, node) in nodes.iter_mut().take(K).enumerate() {
            (node.previous, node.next) = (list as u32, list as u32);
        }
        Self { nodes, lens: [0; K] }
    }

    /// Makes room for `id`: to be called before an id is pushed for the first time.
    #[inline]
    pub(super) fn reserve(&mut self, id: u32) {
        if id as usize + K >= self.nodes.len() {
            self.nodes.resize(id as usize + K + 1, ABSENT);
        }
    }

    fn at(&self, id: u32) -> &RingNode {
        &self.nodes[id as usize + K]
    }

    fn at_mut(&mut self, id: u32) -> &mut RingNode {
        &mut self.nodes[id as usize + K]
    }

    /// The list that `id` is in, or [`NOWHERE`].
    #[inline]
    pub(super) fn list(&self, id: u32) -> u8 {
        self.nodes.get(id as usize + K).map_or(NOWHERE, |node| node.packed as u8)
    }

    /// The number of ids in a list.
    #[inline]
    pub(super) fn len(&self, list: u8) -> u32 {
        self.lens[list as usize]
    }

    fn id(node: u32) -> Option<u32> {
        node.checked_sub(K as u32)
    }

    /// The first of a list.
    #[inline]
    pub(super) fn head(&self, list: u8) -> Option<u32> {
        Self::id(self.nodes[list as usize].next)
    }

    /// What stands before `id` in its list.
    #[inline]
    pub(super) fn before(&self, id: u32) -> Option<u32> {
        Self::id(self.at(id).previous)
    }

    /// What stands behind `id` in its list.
    #[inline]
    pub(super) fn behind(&self, id: u32) -> Option<u32> {
        Self::id(self.at(id).next)
    }

    fn link(&mut self, list: u8, previous: u32, id: u32) {
        let node = id + K as u32;
        let next = self.nodes[previous as usize].next;
        self.nodes[previous as usize].next = node;
        self.nodes[next as usize].previous = node;
        let at = &mut self.nodes[node as usize];
        (at.previous, at.next) = (previous, next);
        at.packed = (at.packed & !0xff) | u32::from(list);
        self.lens[list as usize] += 1;
    }

    /// Appends `id`, which must be in no list.
    #[inline]
    pub(super) fn push_tail(&mut self, list: u8, id: u32) {
        let last = self.nodes[list as usize].previous;
        self.link(list, last, id);
    }

    /// Puts `id`, which must be in no list, behind `place`, which must be in `list`.
    #[inline]
    pub(super) fn push_behind(&mut self, list: u8, place: u32, id: u32) {
        self.link(list, place + K as u32, id);
    }

    /// Puts `id`, which must be in no list, first.
    #[inline]
    pub(super) fn push_head(&mut self, list: u8, id: u32) {
        self.link(list, u32::from(list), id);
    }

    /// Takes `id`, which must be in a list, out of it.
    #[inline]
    pub(super) fn take(&mut self, id: u32) {
        let RingNode { previous, next, packed, .. } = *self.at(id);
        self.nodes[previous as usize].next = next;
        self.nodes[next as usize].previous = previous;
        self.at_mut(id).packed = packed | 0xff;
        self.lens[(packed & 0xff) as usize] -= 1;
    }

    /// Takes the first of a list.
    #[inline]
    pub(super) fn pop_head(&mut self, list: u8) -> Option<u32> {
        let id = self.head(list)?;
        self.take(id);
        Some(id)
    }

    /// Moves `id` from the list that it is in to the end of `list`.
    #[inline]
    pub(super) fn move_to_tail(&mut self, list: u8, id: u32) {
        self.take(id);
        self.push_tail(list, id);
    }

    /// The count kept with `id`; 0 at first.
    #[inline]
    pub(super) fn count(&self, id: u32) -> u32 {
        self.at(id).packed >> 8
    }

    /// Keeps a count with `id`, [`MAX_COUNT`] at most.
    #[inline]
    pub(super) fn set_count(&mut self, id: u32, count: u32) {
        let node = self.at_mut(id);
        node.packed = (count.min(MAX_COUNT) << 8) | (node.packed & 0xff);
    }

    /// The number kept with `id`; 0 at first.
    #[inline]
    pub(super) fn stamp(&self, id: u32) -> u32 {
        self.at(id).stamp
    }

    /// Keeps a number with `id`.
    #[inline]
    pub(super) fn set_stamp(&mut self, id: u32, stamp: u32) {
        self.at_mut(id).stamp = stamp;
    }
}

//! Doubly linked lists of slots, their links in one vector: any number of lists share it, as a slot
//! is in at most one of them.

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

/// The links of all slots.
#[derive(Debug)]
pub(super) struct Links(Vec<Link>);

impl Links {
    /// Room for `slots` slots; grows when a higher number is used.
    pub(super) fn new(slots: u32) -> Self {
        Self(Vec::with_capacity(slots as usize))
    }

    fn at(&mut self, slot: u32) -> &mut Link {
        &mut self.0[slot as usize]
    }
}

/// One list: its two ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// The slot at the head.
    pub(super) fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Appends `slot`, which must be in no list.
    pub(super) fn push_tail(&mut self, links: &mut Links, slot: u32) {
        if slot as usize >= links.0.len() {
            links.0.resize(slot as usize + 1, Link { previous: NONE, next: NONE });
        }
        *links.at(slot) = Link { previous: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = slot,
            tail => links.at(tail).next = slot,
        }
        self.tail = slot;
    }

    /// Takes `slot`, which must be in this list, out of it.
    pub(super) fn remove(&mut self, links: &mut Links, slot: u32) {
        let Link { previous, next } = *links.at(slot);
        match previous {
            NONE => self.head = next,
            previous => links.at(previous).next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => links.at(next).previous = previous,
        }
    }
}

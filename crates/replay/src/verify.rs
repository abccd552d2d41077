//! What a disk must hold after the writes that were answered, and whether reads agree.
//!
//! A grain is checked only when its content is certain: its last write was answered before the read
//! was sent, and no other change of it was under way meanwhile.

use crate::pattern::{GRAIN, each, stamp};
use std::collections::HashMap;

/// The last known write of a grain.
#[derive(Clone, Copy, Debug)]
struct Grain {
    stamp: u64,
    /// Changes that are under way.
    under_way: u32,
    /// When the last of them was answered, by the table's count of events.
    settled: u64,
    /// Whether the content is that of `stamp`: two changes at a time, a trim or a failure make it
    /// uncertain until the next write.
    certain: bool,
}

/// What is known of one disk. Some 60 bytes for each distinct 512 bytes that were written.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    grains: HashMap<u64, Grain>,
    events: u64,
}

/// What a read's check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckedRead {
    /// Grains whose content was certain.
    pub(crate) grains: u64,
    /// The offset of the first that held something else.
    pub(crate) wrong: Option<u64>,
}

impl Expected {
    /// The moment at which a read is sent; for [`check`](Self::check).
    pub(crate) fn moment(&self) -> u64 {
        self.events
    }

    /// A change is sent: a write with a stamp, or one that leaves something unknown.
    pub(crate) fn begin(&mut self, offset: u64, length: usize, stamp: Option<u64>) {
        self.events += 1;
        each(offset, length, |at, _, range| {
            let whole = range.len() == GRAIN;
            let unknown = Grain { stamp: 0, under_way: 0, settled: 0, certain: false };
            let grain = self.grains.entry(at).or_insert(unknown);
            grain.certain = whole && stamp.is_some() && grain.under_way == 0;
            grain.stamp = stamp.unwrap_or(0);
            grain.under_way += 1;
        });
    }

    /// The change was answered.
    pub(crate) fn end(&mut self, offset: u64, length: usize, done: bool) {
        self.events += 1;
        let now = self.events;
        each(offset, length, |at, _, _| {
            if let Some(grain) = self.grains.get_mut(&at) {
                grain.under_way = grain.under_way.saturating_sub(1);
                grain.settled = now;
                grain.certain &= done;
                if !grain.certain && grain.under_way == 0 {
                    self.grains.remove(&at);
                }
            }
        });
    }

    /// Checks what a read that was sent at `moment` got.
    pub(crate) fn check(&self, offset: u64, data: &[u8], moment: u64) -> CheckedRead {
        let mut checked = CheckedRead::default();
        each(offset, data.len(), |at, _, range| {
            let Some(grain) = self.grains.get(&at) else { return };
            let certain = grain.certain && grain.under_way == 0 && grain.settled <= moment;
            if range.len() < GRAIN || !certain {
                return;
            }
            checked.grains += 1;
            if stamp(&data[range], at) != Some(grain.stamp) {
                checked.wrong.get_or_insert(at);
            }
        });
        checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::fill;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Event {
        Write(u64, u64),
        Trim(u64, u64),
        Answer(usize, bool),
        Read(u64, u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let range = (0u64..8, 1u64..5);
        let event = prop_oneof![
            4 => range.clone().prop_map(|(at, n)| Event::Write(at * 512, n * 512)),
            1 => (0u64..4000, 1u64..2000).prop_map(|(at, n)| Event::Write(at, n)),
            1 => range.clone().prop_map(|(at, n)| Event::Trim(at * 512, n * 512)),
            5 => (0usize..4, prop::bool::weighted(0.95)).prop_map(|(i, ok)| Event::Answer(i, ok)),
            4 => range.prop_map(|(at, n)| Event::Read(at * 512, n * 512)),
        ];
        proptest::collection::vec(event, 1..120)
    }

    proptest! {
        /// A right disk applies each change at any moment between sending and answer; here: when
        /// it is answered (failed ones half).
        #[test]
        fn a_right_disk_is_never_found_wrong(events in events()) {
            let mut disk = vec![0u8; 16 << 10];
            let mut expected = Expected::default();
            let mut open: Vec<(u64, u64, Option<u64>)> = Vec::new();
            let mut stamp = 0;
            for event in events {
                match event {
                    Event::Write(at, n) => {
                        stamp += 1;
                        expected.begin(at, n as usize, Some(stamp));
                        open.push((at, n, Some(stamp)));
                    }
                    Event::Trim(at, n) => {
                        expected.begin(at, n as usize, None);
                        open.push((at, n, None));
                    }
                    Event::Answer(i, ok) if !open.is_empty() => {
                        let (at, n, stamp) = open.remove(i % open.len());
                        let end = if ok { n } else { n / 2 } as usize;
                        let place = &mut disk[at as usize..][..end];
                        match stamp {
                            Some(stamp) => fill(place, at, stamp),
                            None => place.fill(0),
                        }
                        expected.end(at, n as usize, ok);
                    }
                    Event::Answer(..) => {}
                    Event::Read(at, n) => {
                        let data = &disk[at as usize..][..n as usize];
                        prop_assert_eq!(expected.check(at, data, expected.moment()).wrong, None);
                    }
                }
            }
        }
    }

    #[test]
    fn a_lost_an_old_and_a_misplaced_write_are_found() {
        let mut expected = Expected::default();
        let mut old = vec![0; 1024];
        fill(&mut old, 0, 1);
        let mut new = vec![0; 1024];
        fill(&mut new, 0, 2);
        for stamp in [1, 2] {
            expected.begin(0, 1024, Some(stamp));
            expected.end(0, 1024, true);
        }
        let now = expected.moment();
        assert_eq!(expected.check(0, &new, now), CheckedRead { grains: 2, wrong: None });
        assert_eq!(expected.check(0, &old, now).wrong, Some(0), "old");
        assert_eq!(expected.check(0, &[0; 1024], now).wrong, Some(0), "lost");
        new.copy_within(0..512, 512);
        assert_eq!(expected.check(0, &new, now).wrong, Some(512), "misplaced");
    }

    #[test]
    fn a_read_that_raced_a_write_is_not_judged() {
        let mut expected = Expected::default();
        let moment = expected.moment();
        expected.begin(0, 512, Some(1));
        assert_eq!(expected.check(0, &[0; 512], moment).grains, 0, "under way");
        expected.end(0, 512, true);
        assert_eq!(expected.check(0, &[0; 512], moment).grains, 0, "answered since");
        assert_eq!(expected.check(0, &[0; 512], expected.moment()).grains, 1);
    }
}

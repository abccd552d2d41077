//! Pages in memory, the least recently used dropped first.

use std::collections::{HashMap, VecDeque};

/// Pages in memory.
#[derive(Debug)]
pub(super) struct PageCache {
    used: HashMap<u64, u64>,
    /// Uses in order; of a page only the last one counts.
    order: VecDeque<(u64, u64)>,
    capacity: usize,
    clock: u64,
}

impl PageCache {
    pub(super) fn new(capacity: usize) -> Self {
        Self { used: HashMap::new(), order: VecDeque::new(), capacity, clock: 0 }
    }

    /// Uses a page if it is there.
    pub(super) fn get(&mut self, page: u64) -> bool {
        let there = self.used.contains_key(&page);
        if there {
            self.put(page);
        }
        there
    }

    /// Puts a page in, or notes that it was used.
    pub(super) fn put(&mut self, page: u64) {
        self.clock += 1;
        self.used.insert(page, self.clock);
        self.order.push_back((page, self.clock));
        while self.used.len() > self.capacity {
            self.drop_oldest();
        }
        // Uses that no longer count take no more room than those that do.
        while self.order.len() > 2 * self.capacity + 2 {
            if let Some((page, clock)) = self.order.pop_front()
                && self.used.get(&page) == Some(&clock)
            {
                self.order.push_front((page, clock));
                self.compact();
            }
        }
    }

    fn compact(&mut self) {
        let used = &self.used;
        self.order.retain(|(page, clock)| used.get(page) == Some(clock));
    }

    fn drop_oldest(&mut self) {
        if let Some((page, clock)) = self.order.pop_front()
            && self.used.get(&page) == Some(&clock)
        {
            self.used.remove(&page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn the_least_recently_used_page_goes_as_in_a_list() {
        let (mut cache, mut random) = (PageCache::new(20), Random::new(1));
        let mut list: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            let page = random.below(60);
            let there = list.iter().position(|p| *p == page);
            assert_eq!(cache.get(page), there.is_some());
            if let Some(at) = there {
                list.remove(at);
            } else {
                cache.put(page);
            }
            list.push(page);
            if list.len() > 20 {
                list.remove(0);
            }
            assert!(cache.order.len() <= 43);
        }
    }
}

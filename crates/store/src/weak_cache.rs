//! Roots and segments of manifests in memory, shared by all that use a store: hundreds of disks of one image
//! read and hold its map once, and so do its snapshots and versions where they are alike.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// The values that anybody holds. A key stands for one content for ever.
pub(crate) struct WeakCache<K, V> {
    held: Mutex<WeakValues<K, V>>,
    /// Those that are being loaded; each is loaded once, whoever waits for it.
    loading: Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>,
}

struct WeakValues<K, V> {
    values: HashMap<K, Weak<V>>,
    /// Entries after the last sweep.
    swept: usize,
}

impl<K, V> Default for WeakCache<K, V> {
    fn default() -> Self {
        let held = WeakValues { values: HashMap::new(), swept: 0 };
        Self { held: Mutex::new(held), loading: Mutex::default() }
    }
}

impl<K: Copy + Eq + Hash, V> WeakCache<K, V> {
    /// A value that somebody holds already.
    pub(crate) fn get(&self, key: &K) -> Option<Arc<V>> {
        self.held.lock().values.get(key)?.upgrade()
    }

    /// The turn to load a value: whoever gets it looks first whether another one did.
    pub(crate) fn turn(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut loading = self.loading.lock();
        if let Some(turn) = loading.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        loading.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        loading.insert(key, Arc::downgrade(&turn));
        turn
    }

    /// Shares a value that was loaded; gives the one that is held already, if somebody was quicker.
    pub(crate) fn share(&self, key: K, loaded: V) -> Arc<V> {
        let mut held = self.held.lock();
        if let Some(present) = held.values.get(&key).and_then(Weak::upgrade) {
            return present;
        }
        let value = Arc::new(loaded);
        held.values.insert(key, Arc::downgrade(&value));
        if held.values.len() > 2 * held.swept + 64 {
            held.values.retain(|_, value| value.strong_count() > 0);
            held.swept = held.values.len();
        }
        value
    }

    /// The value that somebody holds, or what `load` gives, which one of those runs who ask at the same
    /// time. Where it failed the others run it themselves, all at once: they need not fail too, nor one
    /// after the other.
    ///
    /// # Errors
    /// Any error from `load`.
    pub(crate) async fn get_or_load<E, F: Future<Output = Result<V, E>>>(
        &self,
        key: K,
        load: impl Fn() -> F,
    ) -> Result<Arc<V>, E> {
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        let turn = self.turn(key);
        let first = turn.try_lock();
        if first.is_err() {
            drop(turn.lock().await);
        }
        match self.get(&key) {
            Some(value) => Ok(value),
            None => Ok(self.share(key, load().await?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_copy_is_held_while_somebody_holds_it() {
        let values = WeakCache::default();
        assert!(values.get(&7).is_none());
        let first = values.share(7, "seven");
        assert!(Arc::ptr_eq(&first, &values.share(7, "seven")));
        assert!(Arc::ptr_eq(&first, &values.get(&7).unwrap()));
        assert!(values.get(&8).is_none());
        drop(first);
        assert!(values.get(&7).is_none());
    }

    #[test]
    fn values_that_nobody_holds_do_not_pile_up() {
        let values = WeakCache::default();
        for number in 0..1000u32 {
            values.share(number, ());
        }
        assert!(values.held.lock().values.len() <= 65);
    }

    /// What five get who ask at the same time, of whose loads the first so many fail; and the loads.
    async fn five(fail: u32) -> (Vec<Option<u32>>, u32) {
        let (values, loads) = (WeakCache::default(), AtomicU32::new(0));
        let load = async || {
            let turn = loads.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            if turn < fail { Err(()) } else { Ok(turn) }
        };
        let asked = (0..5).map(|_| values.get_or_load(3, load));
        let found = futures::future::join_all(asked).await;
        let found = found.into_iter().map(|found| found.ok().map(|value| *value)).collect();
        (found, loads.into_inner())
    }

    #[tokio::test]
    async fn those_who_ask_at_the_same_time_have_it_loaded_once() {
        assert_eq!(five(0).await, (vec![Some(0); 5], 1));
    }

    #[tokio::test]
    async fn where_the_first_load_fails_the_others_load_at_once() {
        let (found, loads) = five(1).await;
        assert_eq!((found[0], loads), (None, 5));
        assert!(found[1..].iter().all(Option::is_some), "{found:?}");
    }
}

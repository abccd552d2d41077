//! Changing the settings of a cache that is in use.

use crate::concurrent::{Cache, belongs, shards};
use crate::policy::PolicyKind;
use std::sync::atomic::Ordering;

impl Cache {
    /// Gives it another capacity, in bytes of values, and another policy, while others use it. What
    /// is `None` stays as it is when the change's turn has come: of two changes at the same time
    /// neither undoes what the other one named.
    ///
    /// Nobody is sent away: hits go on, a load waits while its shard is changed (some milliseconds
    /// for ten thousand entries). Entries stay as far as there is room, in the order in which the
    /// old policy would have let them go; what it had learnt of them beyond that is lost, but for a
    /// change of capacity that leaves the number of shards as it was.
    ///
    /// While entries move between shards, the old and the new capacity may both be in use.
    pub fn change(&self, capacity: impl Into<Option<u64>>, policy: impl Into<Option<PolicyKind>>) {
        let _alone = self.changing.lock();
        let current = self.policy();
        let capacity = capacity.into().unwrap_or(self.capacity());
        let policy = policy.into().unwrap_or(current);
        let (old, new) = (shards(self.capacity()), shards(capacity));
        let share = capacity / new as u64;
        self.capacity.store(capacity, Ordering::Relaxed);
        if old == new && current == policy {
            self.shards[..new].iter().for_each(|shard| shard.resize(share));
        } else {
            self.rearrange(old, new, share, policy);
            *self.policy.lock() = policy;
        }
        *self.forecast.lock() = None;
    }

    /// Moves the entries of `old` shards to where they belong among `new` ones, which hold `share`
    /// bytes each, under `policy`.
    fn rearrange(&self, old: usize, new: usize, share: u64, policy: PolicyKind) {
        for shard in &self.shards[old.min(new)..new] {
            shard.resize(share);
            shard.rebuild(policy, |_| true);
        }
        self.layout.set(new, old);
        for (number, shard) in self.shards[..old].iter().enumerate() {
            let moved = shard.rebuild(policy, |fingerprint| belongs(fingerprint, number, new));
            shard.resize(if number < new { share } else { 0 });
            for (entry, fingerprint) in moved {
                self.insert(&entry.key, fingerprint, entry.value);
            }
        }
        self.layout.set(new, new);
    }
}

//! Disks and images in use: of their rows, watchers hear only what changed.

use super::views::{LiveRow, RowChanges};
use std::collections::BTreeMap;

/// The rows as watchers know them.
#[derive(Debug, Default)]
pub(super) struct Rows(BTreeMap<String, LiveRow>);

impl Rows {
    /// All of them, for somebody who begins to watch.
    pub(super) fn all(&self) -> RowChanges<'_> {
        RowChanges { all: true, rows: self.0.values().collect(), gone: Vec::new() }
    }

    /// Takes in what is so `now`, sorted or not; gives `tell` the difference, if there is one.
    pub(super) fn update<T>(
        &mut self,
        now: BTreeMap<String, LiveRow>,
        tell: impl FnOnce(&RowChanges<'_>) -> T,
    ) -> Option<T> {
        let before = std::mem::replace(&mut self.0, now);
        let rows: Vec<&LiveRow> =
            self.0.values().filter(|row| before.get(&row.name) != Some(*row)).collect();
        let lost = before.keys().filter(|name| !self.0.contains_key(*name));
        let gone: Vec<&str> = lost.map(String::as_str).collect();
        let changed = !rows.is_empty() || !gone.is_empty();
        changed.then(|| tell(&RowChanges { all: false, rows, gone }))
    }

    /// Forgets them: nobody watches.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(name: &str, requests: u64) -> LiveRow {
        LiveRow {
            name: name.to_owned(),
            open: true,
            client: None,
            connections: 1,
            private_bytes: Some(0),
            full: false,
            slow: false,
            requests,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    fn rows(of: &BTreeMap<String, u64>) -> BTreeMap<String, LiveRow> {
        of.iter().map(|(name, requests)| (name.clone(), row(name, *requests))).collect()
    }

    proptest! {
        #[test]
        fn who_follows_the_changes_knows_what_is_so(
            states in proptest::collection::vec(
                proptest::collection::btree_map("[a-d]", 0..3u64, 0..4), 1..12,
            ),
            begins in 0..6usize,
        ) {
            let mut rows_here = Rows::default();
            let mut known: BTreeMap<String, u64> = BTreeMap::new();
            for (at, state) in states.iter().enumerate() {
                let mut told = 0;
                rows_here.update(rows(state), |changes| {
                    told = changes.rows.len() + changes.gone.len();
                    if at > begins {
                        known.extend(changes.rows.iter().map(|row| (row.name.clone(), row.requests)));
                        changes.gone.iter().for_each(|name| { known.remove(*name); });
                    }
                });
                if at == begins {
                    let all = rows_here.all();
                    known = all.rows.iter().map(|row| (row.name.clone(), row.requests)).collect();
                }
                if at >= begins {
                    prop_assert_eq!(&known, state);
                }
                let same = at > 0 && states[at - 1] == *state;
                prop_assert!(!same || told == 0, "what is the same is not told again");
            }
        }
    }
}

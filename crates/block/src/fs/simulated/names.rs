//! Directories: names as processes see them, and as a power cut leaves them.
//!
//! Every change of names waits until it is durable. Which of those that wait a sync takes along, and
//! which a power cut leaves, is the [`Nature`] of the file system.

use crate::conformance::Sequence;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

/// A file or directory, by number.
pub(super) type Node = u64;
/// A name in a directory.
pub(super) type NameKey = (Node, OsString);

/// How a file system orders changes of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    /// In one journal: ext4 with its journal, XFS. A power cut leaves the changes up to one of them; the
    /// sync of a file or directory takes along all that came before its last change. A directory whose
    /// sync fails ends the journal: nothing can be changed until the next start.
    Journal,
    /// In transactions, beside a log of what was synced: btrfs. A power cut leaves the changes up to one
    /// of them, and those that were synced; a sync takes along the names of that file or in that
    /// directory alone. A failed one ends all changes, too.
    Log,
    /// Not at all: ext4 without a journal. A power cut leaves any of the changes, but the ones of one name
    /// in their order; the sync of a file takes none along. A file that lost its last name may be gone
    /// although a power cut leaves that name: then the name goes, too. What the failed sync of a directory did not
    /// write is called clean until the directory changes again.
    None,
}

impl Nature {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Journal, Self::Log, Self::None];
}

/// One change, which survives as a whole or not at all.
#[derive(Debug)]
struct DirectoryChange {
    /// What names mean from then on; nothing when they are gone.
    sets: Vec<(NameKey, Option<Node>)>,
    /// A failed sync did not write it, and calls it clean.
    clean: bool,
}

impl DirectoryChange {
    fn is_in(&self, directory: Node) -> bool {
        self.sets.iter().any(|((at, _), _)| *at == directory)
    }

    fn names(&self, node: Node) -> bool {
        self.sets.iter().any(|(_, named)| *named == Some(node))
    }

    /// Whether both change a name: then they stay in order.
    fn shares(&self, other: &Self) -> bool {
        self.sets.iter().any(|(key, _)| other.sets.iter().any(|(other, _)| other == key))
    }
}

/// The names of a file system.
#[derive(Debug)]
pub(super) struct DirectoryNames {
    nature: Nature,
    visible: BTreeMap<NameKey, Node>,
    durable: BTreeMap<NameKey, Node>,
    /// Changes that are not durable, in order.
    waiting: Vec<DirectoryChange>,
}

impl DirectoryNames {
    pub(super) fn new(nature: Nature) -> Self {
        let (visible, durable) = (BTreeMap::new(), BTreeMap::new());
        Self { nature, visible, durable, waiting: Vec::new() }
    }

    pub(super) fn get(&self, key: &NameKey) -> Option<Node> {
        self.visible.get(key).copied()
    }

    /// The names in a directory.
    pub(super) fn within(&self, directory: Node) -> impl Iterator<Item = (&OsString, Node)> {
        let from = (directory, OsString::new());
        let names = self.visible.range(from..).take_while(move |((at, _), _)| *at == directory);
        names.map(|((_, name), node)| (name, *node))
    }

    /// Whether anything has the name of a node.
    pub(super) fn is_named(&self, node: Node) -> bool {
        self.visible.values().any(|named| *named == node)
    }

    /// Whether a power cut may give a node a name again.
    pub(super) fn is_kept(&self, node: Node) -> bool {
        let waits = self.waiting.iter().any(|change| change.names(node));
        waits || self.durable.values().any(|named| *named == node)
    }

    /// Changes names, all at once.
    pub(super) fn change(&mut self, sets: Vec<(NameKey, Option<Node>)>) {
        for (key, node) in &sets {
            set(&mut self.visible, key, *node);
            // Its block is written whole.
            for change in self.waiting.iter_mut().filter(|change| change.is_in(key.0)) {
                change.clean = false;
            }
        }
        self.waiting.push(DirectoryChange { sets, clean: false });
    }

    /// A file is synced, `whole` or its bytes alone.
    pub(super) fn sync_file(&mut self, node: Node, whole: bool) {
        let mut of = self.waiting.iter().enumerate().filter(|(_, change)| change.names(node));
        match self.nature {
            Nature::Journal => {
                let last = if whole { of.next_back() } else { of.next() };
                let last = last.map_or(0, |(at, _)| at + 1);
                self.keep(|at, _| at < last);
            }
            Nature::Log => {
                let chosen: Vec<usize> = of.map(|(at, _)| at).collect();
                self.keep_with_earlier(chosen);
            }
            Nature::None => {}
        }
    }

    /// A directory is synced.
    pub(super) fn sync_directory(&mut self, directory: Node) {
        let mut of = self.waiting.iter().enumerate();
        match self.nature {
            Nature::Journal => {
                let last = of.rfind(|(_, change)| change.is_in(directory));
                let last = last.map_or(0, |(at, _)| at + 1);
                self.keep(|at, _| at < last);
            }
            Nature::Log | Nature::None => {
                let of = of.filter(|(_, change)| change.is_in(directory) && !change.clean);
                let chosen = of.map(|(at, _)| at).collect();
                self.keep_with_earlier(chosen);
            }
        }
    }

    /// The sync of a directory fails. Says whether nothing can be changed from now on.
    pub(super) fn fail_to_sync_directory(
        &mut self,
        directory: Node,
        random: &mut Sequence,
    ) -> bool {
        if self.nature != Nature::None {
            return true;
        }
        let of = self.waiting.iter().enumerate().filter(|(_, change)| change.is_in(directory));
        let all: Vec<usize> = of.map(|(at, _)| at).collect();
        for at in &all {
            self.waiting[*at].clean = true;
        }
        // Any part was written; the order of one name stays.
        let written = random.below(all.len() as u64 + 1) as usize;
        self.keep_with_earlier(all[..written].to_vec());
        false
    }

    /// Some changes reach storage early.
    pub(super) fn write_back(&mut self, random: &mut Sequence) {
        match self.nature {
            Nature::Journal | Nature::Log => {
                let until = random.below(self.waiting.len() as u64 + 1) as usize;
                self.keep(|at, _| at < until);
            }
            Nature::None => {
                let open = (0..self.waiting.len()).filter(|at| !self.waiting[*at].clean);
                let some: Vec<usize> = open.filter(|_| random.below(4) == 0).collect();
                self.keep_with_earlier(some);
            }
        }
    }

    /// What a power cut leaves.
    pub(super) fn lose_power(&mut self, random: &mut Sequence) {
        let count = self.waiting.len();
        match self.nature {
            Nature::Journal | Nature::Log => {
                let until = random.below(count as u64 + 1) as usize;
                self.keep(|at, _| at < until);
            }
            Nature::None => {
                let odds = random.below(5);
                let mut lost: Vec<usize> = Vec::new();
                for at in 0..count {
                    let change = &self.waiting[at];
                    let survives = !change.clean
                        && random.below(4) < odds
                        && lost.iter().all(|earlier| !change.shares(&self.waiting[*earlier]));
                    if !survives {
                        lost.push(at);
                    }
                }
                self.keep(|at, _| !lost.contains(&at));
                self.free(random);
            }
        }
        self.waiting.clear();
        self.visible.clone_from(&self.durable);
    }

    /// Some files that lost their last name are free on storage before their names are gone from it. The
    /// check of the file system removes those names.
    fn free(&mut self, random: &mut Sequence) {
        let is_directory = |node: Node| self.durable.keys().any(|(at, _)| *at == node);
        let unnamed = |node: Node| !self.is_named(node) && !is_directory(node);
        let freed: BTreeSet<Node> =
            self.durable.values().copied().filter(|n| unnamed(*n)).collect();
        let freed: Vec<Node> = freed.into_iter().filter(|_| random.below(4) == 0).collect();
        self.durable.retain(|_, node| !freed.contains(node));
    }

    /// Makes changes durable, with the earlier ones of the same names.
    fn keep_with_earlier(&mut self, chosen: Vec<usize>) {
        let mut keep = vec![false; self.waiting.len()];
        for at in chosen {
            keep[at] = true;
        }
        for at in (0..keep.len()).rev() {
            let (earlier, this) = keep.split_at_mut(at);
            if this[0] {
                for (kept, change) in earlier.iter_mut().zip(&self.waiting) {
                    *kept |= self.waiting[at].shares(change);
                }
            }
        }
        self.keep(|at, _| keep[at]);
    }

    fn keep(&mut self, kept: impl Fn(usize, &DirectoryChange) -> bool) {
        for (at, change) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
            if kept(at, &change) {
                for (key, node) in &change.sets {
                    set(&mut self.durable, key, *node);
                }
            } else {
                self.waiting.push(change);
            }
        }
    }
}

fn set(names: &mut BTreeMap<NameKey, Node>, key: &NameKey, node: Option<Node>) {
    match node {
        Some(node) => drop(names.insert(key.clone(), node)),
        None => drop(names.remove(key)),
    }
}

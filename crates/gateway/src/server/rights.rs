//! What one client may read: the objects that the names it may use lead to, and of packs the chunks.
//!
//! Which chunks of a pack a client may read is learned from segments, one after the other, until what
//! was asked for is covered, so that the first read does not wait for the maps of all images. What is
//! not covered after the last segment is refused.

use super::names::KnownNames;
use super::spans::ByteRanges;
use access::{Right, Rules};
use block::{ErrorKind, Result};
use nbd::Peer;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::{
    BootListId, ChunkId, ChunkRef, ManifestId, PackId, RefKind, RefRecord, SegmentId, Store,
    images, machines,
};
use tokio::time::Instant;

/// Who holds a manifest that no name leads to any more may read it for so long.
const GRACE: Duration = Duration::from_secs(600);

/// What a client may read.
#[derive(Default)]
pub(crate) struct ReadRights {
    state: Mutex<RightsState>,
    /// Held while segments are read, so that one client has one scan at a time.
    scan: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct RightsState {
    rules: Option<Arc<Rules>>,
    /// When the names were taken over.
    updated: Option<Instant>,
    /// When something first was in here that no name leads to any more.
    stale_since: Option<Instant>,
    manifests: HashSet<ManifestId>,
    /// Manifests whose segments are not known yet.
    unopened: Vec<ManifestId>,
    boot_lists: HashSet<BootListId>,
    segments: HashSet<SegmentId>,
    /// Segments of which the chunks are not known yet.
    unread: VecDeque<SegmentId>,
    packs: HashMap<PackId, PackRights>,
}

/// What a client may read of a pack.
#[derive(Default)]
struct PackRights {
    chunks: ByteRanges,
    /// Whether these are all of its chunks: then head and index may be read, too. `None`: not known.
    whole: Option<bool>,
    /// Chunks that came here from packs that were rewritten.
    moved_here: HashSet<ChunkId>,
}

/// Whether names of a kind are of machines: what a client may do with one is said by each record, with the disk in it.
pub(crate) fn is_of_machine(kind: RefKind) -> bool {
    matches!(kind, RefKind::Parcel | RefKind::Machine)
}

/// What a client may do with a name.
pub(crate) fn right(
    rules: &Rules,
    peer: &Peer,
    names: &KnownNames,
    kind: RefKind,
    name: &str,
) -> Option<Right> {
    match kind {
        RefKind::Disk => rules.right(peer, name),
        RefKind::Image => {
            let image = images::image_of(name);
            let by_version = rules.right(peer, name);
            by_version
                .or_else(|| {
                    let newest = || {
                        let own = |record: &&RefRecord| images::image_of(&record.name) == image;
                        let versions = names.records(RefKind::Image).filter(own);
                        images::newest(versions)
                            .get(image)
                            .is_some_and(|version| version.name == name)
                    };
                    rules.right(peer, image).filter(|_| newest())
                })
                // Versions never change, whatever the rules say.
                .map(|_| Right::Read)
        }
        RefKind::Snapshot => {
            let disk = name.split_once('@').map_or(name, |(disk, _)| disk);
            let owner = rules.right(peer, disk).filter(|right| *right == Right::Write);
            owner.or_else(|| rules.right(peer, name).map(|_| Right::Read))
        }
        RefKind::Gc => Some(Right::Read),
        // Its memory shows more than its disk does: who may only read that sees no machine.
        RefKind::Parcel | RefKind::Machine => {
            rules.right(peer, machines::machine_of(name)).filter(|right| *right == Right::Write)
        }
    }
}

/// Whether a client may write both a machine, by its parcel or claim, and the disk of that machine: then it may see
/// its memory.
pub(crate) fn may_run(
    rules: &Rules,
    peer: &Peer,
    names: &KnownNames,
    kind: RefKind,
    record: &RefRecord,
) -> bool {
    let may_write = |kind, name: &str| right(rules, peer, names, kind, name) == Some(Right::Write);
    may_write(kind, &record.name)
        && machines::disk_of(kind, &record.body).is_some_and(|disk| may_write(RefKind::Disk, &disk))
}

impl ReadRights {
    /// Whether what was taken over is older than `age`, or was made by other rules.
    pub(crate) fn is_older(&self, rules: &Arc<Rules>, age: Duration) -> bool {
        let state = self.state.lock();
        let same = state.rules.as_ref().is_some_and(|held| Arc::ptr_eq(held, rules));
        !same || state.updated.is_none_or(|updated| updated.elapsed() >= age)
    }

    /// Takes over what the names mean now.
    pub(crate) fn update(&self, rules: &Arc<Rules>, peer: &Peer, names: &KnownNames) {
        let (mut manifests, mut boot_lists) = (HashSet::new(), HashSet::new());
        let newest = images::newest(names.records(RefKind::Image));
        for record in names.records(RefKind::Image) {
            let image = images::image_of(&record.name);
            let is_newest = newest.get(image).is_some_and(|version| version.name == record.name);
            let by_image = || is_newest && rules.right(peer, image).is_some();
            if rules.right(peer, &record.name).is_some() || by_image() {
                manifests.extend(record.body.roots().unwrap_or_default());
                boot_lists.extend(record.body.boot_list().ok().flatten());
            }
        }
        for kind in [RefKind::Disk, RefKind::Snapshot] {
            for record in names.records(kind) {
                match right(rules, peer, names, kind, &record.name) {
                    // Resetting a disk shows its origin; only who may do that sees it.
                    Some(Right::Write) => {
                        manifests.extend(record.body.roots().unwrap_or_default());
                    }
                    Some(Right::Read) => manifests.extend(record.body.manifest),
                    None => {}
                }
            }
        }
        for kind in [RefKind::Parcel, RefKind::Machine] {
            for record in names.records(kind) {
                if may_run(rules, peer, names, kind, record) {
                    manifests.extend(record.body.roots().unwrap_or_default());
                }
            }
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        let same = state.rules.as_ref().is_some_and(|held| Arc::ptr_eq(held, rules));
        let left = !state.manifests.is_subset(&manifests);
        let stale_since = left.then(|| state.stale_since.unwrap_or(now));
        if !same || stale_since.is_some_and(|since| since.elapsed() > GRACE) {
            *state = RightsState { rules: Some(Arc::clone(rules)), ..RightsState::default() };
        } else {
            state.stale_since = stale_since;
        }
        state.updated = Some(now);
        for id in manifests {
            if state.manifests.insert(id) {
                state.unopened.push(id);
            }
        }
        state.boot_lists = boot_lists;
    }

    pub(crate) fn manifest(&self, id: &ManifestId) -> bool {
        self.state.lock().manifests.contains(id)
    }

    pub(crate) fn boot_list(&self, id: &BootListId) -> bool {
        self.state.lock().boot_lists.contains(id)
    }

    /// Whether a segment may be read; its chunks are the next that will be.
    ///
    /// # Errors
    /// Any error from reading roots.
    pub(crate) async fn segment(&self, store: &Store, id: &SegmentId) -> Result<bool> {
        if !self.known_segment(id) {
            let _scan = self.scan.lock().await;
            while !self.known_segment(id) && self.open_next(store).await? {}
        }
        let mut state = self.state.lock();
        let known = state.segments.contains(id);
        if known && let Some(at) = state.unread.iter().take(4096).position(|other| other == id) {
            state.unread.swap(0, at);
        }
        Ok(known)
    }

    fn known_segment(&self, id: &SegmentId) -> bool {
        self.state.lock().segments.contains(id)
    }

    /// Whether the bytes from `start` to `end` of a pack may be read.
    ///
    /// # Errors
    /// Any error from reading maps.
    pub(crate) async fn range(
        &self,
        store: &Store,
        pack: &PackId,
        start: u64,
        end: u64,
    ) -> Result<bool> {
        if self.covers(pack, start, end) {
            return Ok(true);
        }
        let _scan = self.scan.lock().await;
        loop {
            if self.covers(pack, start, end) {
                return Ok(true);
            }
            if !self.read_next(store).await? {
                break;
            }
        }
        self.whole_now(store, pack).await
    }

    /// Whether it is known already that the bytes from `start` to `end` of a pack may be read.
    pub(crate) fn covers(&self, pack: &PackId, start: u64, end: u64) -> bool {
        let state = self.state.lock();
        state
            .packs
            .get(pack)
            .is_some_and(|rights| rights.whole == Some(true) || rights.chunks.covers(start, end))
    }

    /// Whether all of a pack may be read.
    ///
    /// # Errors
    /// Any error from reading maps and the pack's index.
    pub(crate) async fn whole(&self, store: &Store, pack: &PackId) -> Result<bool> {
        let _scan = self.scan.lock().await;
        while self.read_next(store).await? {}
        self.whole_now(store, pack).await
    }

    /// Whether a pack may be read at all.
    ///
    /// # Errors
    /// Any error from reading maps.
    pub(crate) async fn any_of(&self, store: &Store, pack: &PackId) -> Result<bool> {
        let known = || self.state.lock().packs.contains_key(pack);
        if known() {
            return Ok(true);
        }
        let _scan = self.scan.lock().await;
        while !known() && self.read_next(store).await? {}
        Ok(known())
    }

    /// The same, when all segments were read.
    async fn whole_now(&self, store: &Store, pack: &PackId) -> Result<bool> {
        match self.state.lock().packs.get(pack) {
            None => return Ok(false),
            Some(PackRights { whole: Some(whole), .. }) => return Ok(*whole),
            Some(_) => {}
        }
        let chunks = match store.pack_chunks(pack).await {
            Ok(chunks) => chunks,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                return Ok(false);
            }
            Err(e) => return Err(e),
        };
        let mut state = self.state.lock();
        let Some(rights) = state.packs.get_mut(pack) else { return Ok(false) };
        let covered = |at: &ChunkRef| {
            let start = u64::from(at.offset);
            rights.chunks.covers(start, start + u64::from(at.stored))
        };
        let whole = chunks.iter().all(covered);
        rights.whole = Some(whole);
        Ok(whole)
    }

    /// Which of the chunks of a rewritten pack this client may read, and where they are now. From now on it
    /// may read them there.
    ///
    /// # Errors
    /// Any error from reading maps.
    pub(crate) async fn moved(
        &self,
        store: &Store,
        pack: &PackId,
    ) -> Result<Option<Vec<ChunkRef>>> {
        let _scan = self.scan.lock().await;
        while self.read_next(store).await? {}
        let (segments, mut ids) = {
            let state = self.state.lock();
            let Some(rights) = state.packs.get(pack) else { return Ok(None) };
            let segments: Vec<SegmentId> = state.segments.iter().copied().collect();
            (segments, rights.moved_here.clone())
        };
        let Some(mut chunks) = store.moved_chunks(pack).await? else { return Ok(None) };
        for segment in segments {
            let named = readable(store.segment_chunks(&segment).await)?;
            ids.extend(named.iter().filter(|at| at.pack == *pack).map(|at| at.id));
        }
        chunks.retain(|at| ids.contains(&at.id));
        let mut state = self.state.lock();
        for at in &chunks {
            let rights = state.packs.entry(at.pack).or_default();
            rights.moved_here.insert(at.id);
            rights.allow(at);
        }
        Ok((!chunks.is_empty()).then_some(chunks))
    }

    /// Learns the segments of one more manifest; gives whether there was one.
    async fn open_next(&self, store: &Store) -> Result<bool> {
        let next = self.state.lock().unopened.pop();
        let Some(next) = next else { return Ok(false) };
        let segments = readable(store.manifest_segments(&next).await);
        let mut state = self.state.lock();
        let segments = segments.inspect_err(|_| state.unopened.push(next))?;
        for segment in segments {
            if state.segments.insert(segment) {
                state.unread.push_back(segment);
            }
        }
        Ok(true)
    }

    /// Learns the chunks of one more segment; gives whether there was one.
    async fn read_next(&self, store: &Store) -> Result<bool> {
        let next = loop {
            let next = self.state.lock().unread.pop_front();
            match next {
                Some(next) => break next,
                None if self.open_next(store).await? => {}
                None => return Ok(false),
            }
        };
        let chunks = readable(store.segment_chunks(&next).await);
        let mut state = self.state.lock();
        let chunks = chunks.inspect_err(|_| state.unread.push_front(next))?;
        for at in &chunks {
            state.packs.entry(at.pack).or_default().allow(at);
        }
        Ok(true)
    }
}

impl PackRights {
    fn allow(&mut self, at: &ChunkRef) {
        self.chunks.add(at.offset, at.offset + at.stored);
        if self.whole == Some(false) {
            self.whole = None;
        }
    }
}

/// What a map says; one that is gone or damaged gives no right to anything.
fn readable<T>(read: Result<Vec<T>>) -> Result<Vec<T>> {
    match read {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
            tracing::warn!(error = e.message(), "a map gives no rights to a gateway's clients");
            Ok(Vec::new())
        }
        other => other,
    }
}

//! What one client may read: the objects that the names it may use lead to, and of packs the chunks.
//!
//! Which chunks of a pack a client may read is learned from segments, one after the other, until what
//! was asked for is covered, so that the first read does not wait for the maps of all images. What is
//! not covered after the last segment is refused.
//!
//! What may be read yet although no name leads to it any more is no reason to write a name that does: it may be
//! garbage, which is collected. For that there are questions of their own.

use super::names::KnownNames;
use super::readable::{GRACE, ReadableMaps};
use super::spans::ByteRanges;
use access::{Right, Rules};
use block::{ErrorKind, Result};
use nbd::Peer;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::{
    BootListId, ChunkId, ChunkRef, ManifestId, PackId, RefKind, RefRecord, SegmentId, Store,
    images, machines,
};
use tokio::time::Instant;

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
    maps: ReadableMaps,
    boot_lists: HashSet<BootListId>,
    /// Segments of which the chunks are not known yet.
    unread: VecDeque<SegmentId>,
    /// The others, with the packs that each names.
    read: HashMap<SegmentId, Box<[PackMark]>>,
    /// What they all lead to, and those that were read and may not be any more.
    packs: HashMap<PackId, PackRights>,
    /// Whether there are any of the latter; …
    is_outdated: bool,
    /// … and when they were last forgotten. To do that all segments are read anew.
    renewed: Option<Instant>,
}

/// The first bytes of a pack's id. Others may begin alike.
type PackMark = [u8; 4];

fn mark(pack: &PackId) -> PackMark {
    let [a, b, c, d, ..] = pack.0;
    [a, b, c, d]
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
        if !state.rules.as_ref().is_some_and(|held| Arc::ptr_eq(held, rules)) {
            *state = RightsState { rules: Some(Arc::clone(rules)), ..RightsState::default() };
        }
        state.updated = Some(now);
        state.boot_lists = boot_lists;
        if state.maps.update(&manifests, now) {
            state.forget_segments();
        }
        let is_due = state.renewed.is_none_or(|renewed| now - renewed > GRACE);
        if state.is_outdated && is_due {
            state.packs.clear();
            let read = std::mem::take(&mut state.read);
            state.unread.extend(read.into_keys());
            (state.is_outdated, state.renewed) = (false, Some(now));
        }
    }

    pub(crate) fn manifest(&self, id: &ManifestId) -> bool {
        self.state.lock().maps.manifest(id)
    }

    /// Whether a name leads to a manifest that the client may read, by the last update.
    pub(crate) fn is_named(&self, id: &ManifestId) -> bool {
        self.state.lock().maps.is_manifest_named(id)
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
        let known = state.maps.segment(id);
        if known && let Some(at) = state.unread.iter().take(4096).position(|other| other == id) {
            state.unread.swap(0, at);
        }
        Ok(known)
    }

    fn known_segment(&self, id: &SegmentId) -> bool {
        self.state.lock().maps.segment(id)
    }

    /// Those of these segments to which no name leads, by the last update, that the client may use.
    ///
    /// # Errors
    /// Any error from reading roots.
    pub(crate) async fn unnamed(
        &self,
        store: &Store,
        mut segments: HashSet<SegmentId>,
    ) -> Result<HashSet<SegmentId>> {
        let _scan = self.scan.lock().await;
        loop {
            segments.retain(|id| !self.state.lock().maps.is_segment_named(id));
            if segments.is_empty() || !self.open_next(store).await? {
                return Ok(segments);
            }
        }
    }

    /// Whether a name leads to a chunk in this place, by the last update, that the client may use.
    ///
    /// # Errors
    /// Any error from reading maps.
    pub(crate) async fn is_chunk_named(&self, store: &Store, at: &ChunkRef) -> Result<bool> {
        let _scan = self.scan.lock().await;
        let mut seen = HashSet::new();
        loop {
            let next = self.state.lock().segment_naming(&at.pack, &seen);
            match next {
                Some(next) => {
                    let chunks = readable(store.segment_chunks(&next).await)?;
                    if chunks.iter().any(|chunk| (chunk.pack, chunk.offset) == (at.pack, at.offset))
                    {
                        return Ok(true);
                    }
                    seen.insert(next);
                }
                None if self.read_next(store).await? => {}
                None => return Ok(false),
            }
        }
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
            (state.segments_naming(pack), rights.moved_here.clone())
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
        let next = self.state.lock().maps.next_unopened();
        let Some(next) = next else { return Ok(false) };
        let segments = readable(store.manifest_segments(&next).await);
        let mut state = self.state.lock();
        let segments = segments.inspect_err(|_| state.maps.unopened(next))?;
        let fresh = state.maps.opened(&next, segments);
        state.unread.extend(fresh);
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
        // The names may have changed meanwhile.
        if !state.maps.segment(&next) {
            return Ok(true);
        }
        let chunks = chunks.inspect_err(|_| state.unread.push_front(next))?;
        for at in &chunks {
            state.packs.entry(at.pack).or_default().allow(at);
        }
        let marks: BTreeSet<PackMark> = chunks.iter().map(|at| mark(&at.pack)).collect();
        state.read.insert(next, marks.into_iter().collect());
        Ok(true)
    }
}

impl RightsState {
    /// Forgets the segments that may not be read any more; what they lead to is forgotten later.
    fn forget_segments(&mut self) {
        let Self { maps, unread, read, .. } = self;
        unread.retain(|id| maps.segment(id));
        let before = read.len();
        read.retain(|id, _| maps.segment(id));
        self.is_outdated |= self.read.len() < before;
    }

    /// Segments that were read and may name chunks of a pack.
    fn segments_naming(&self, pack: &PackId) -> Vec<SegmentId> {
        let mark = mark(pack);
        let naming = self.read.iter().filter(|(_, marks)| marks.binary_search(&mark).is_ok());
        naming.map(|(id, _)| *id).collect()
    }

    /// One of them that a name leads to, and that is not among `seen`.
    fn segment_naming(&self, pack: &PackId, seen: &HashSet<SegmentId>) -> Option<SegmentId> {
        let mut naming = self.segments_naming(pack).into_iter();
        naming.find(|id| !seen.contains(id) && self.maps.is_segment_named(id))
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

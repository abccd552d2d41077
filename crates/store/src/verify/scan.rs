//! Verifying a whole store, or what some names need of it.

use super::report::{Fault, Faults, Holder, Lost, StoreVerifyReport};
use super::{fingerprint, packs};
use crate::chunker::{PAGE, SEGMENT, SEGMENT_PAGES};
use crate::collection::CollectionState;
use crate::moved::Moved;
use crate::object;
use crate::object_kind::ObjectKind;
use crate::segment::{self, Placed, Segment};
use crate::{
    ChunkRef, ManifestId, PackId, Progress, RefKind, RefRecord, SegmentId, Store, boot_list,
    document, heal, manifest_root, pack, servers, settings, slots,
};
use block::{ErrorKind, Result, Span};
use bytes::Bytes;
use futures::{StreamExt, stream};
use object_store::ObjectMeta;
use objects::publish;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Packs in work at the same time: each is in memory whole.
const PACKS: usize = 4;
/// Other objects in work at the same time.
const OBJECTS: usize = 16;
/// Places at which an image shows a lost chunk, at the most.
const SHOWN: usize = 4;

/// What is to be verified.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// How many of 1000 packs, or of the chunks that the names need, are read; all of them when
    /// there is none. All else is always read.
    pub sample_permille: Option<u32>,
    /// What these names need; the whole store when there are none.
    pub names: Vec<(RefKind, String)>,
    /// Whole packs: every chunk is opened, decompressed and compared with its id, which also finds
    /// what was written wrong. Otherwise its stored bytes are compared with their checksum, which
    /// finds what changed since. What is read for names is always compared with the ids.
    pub deep: bool,
}

/// Verifies a store: everything that is in it, or what some names need. The other stores that were
/// added to it say what they could heal.
///
/// # Errors
/// Any error from a backend that fails, and [`NotFound`](ErrorKind::NotFound) for a name that does not
/// exist; what is missing or damaged is in the report.
pub async fn store(
    store: &Store,
    options: &VerifyOptions,
    progress: &dyn Progress,
) -> Result<StoreVerifyReport> {
    let mut scan = VerifyScan::new(store, options, progress)?;
    let whole = options.names.is_empty();
    // Names first: what they need was there before them, and is in the listings that follow.
    let records = scan.records(&options.names).await?;
    if whole {
        scan.objects().await?;
    }
    scan.names(records, !whole).await?;
    scan.finish().await
}

/// Verifies as [`store`] does, but not the packs' content nor what no name needs: what has to be sound before
/// anybody can tell which chunks are needed.
pub(crate) async fn maps(store: &Store) -> Result<StoreVerifyReport> {
    let mut scan = VerifyScan::new(store, &VerifyOptions::default(), &())?;
    let records = scan.records(&[]).await?;
    scan.blind = true;
    scan.names(records, false).await?;
    scan.finish().await
}

/// A part of a segment that cannot be read, and the chunk, in the pack that is to blame for it.
#[derive(Debug, Clone, Copy)]
struct Hole {
    start: u32,
    blocks: u32,
    skip: u32,
    at: ChunkRef,
}

struct VerifyScan<'a> {
    store: &'a Store,
    progress: &'a dyn Progress,
    report: StoreVerifyReport,
    faults: Faults,
    /// How many of 1000 are read, and where the choice is.
    permille: u32,
    dice: u64,
    /// Chunks at their places, found to be sound.
    good: HashSet<u64>,
    /// Chunks at their places of which it is known that they cannot be read.
    bad: HashSet<u64>,
    moved: HashMap<PackId, Moved>,
    /// Segments that were looked at: what is lost of them.
    segments: HashMap<(SegmentId, u32), Vec<Hole>>,
    /// Roots and segments that were read to follow names.
    maps: HashSet<u64>,
    /// Every object of the store is read, whoever needs it.
    whole: bool,
    /// Chunks are not looked at.
    blind: bool,
    /// Chunks of whole packs are decompressed.
    deep: bool,
}

impl<'a> VerifyScan<'a> {
    fn new(store: &'a Store, options: &VerifyOptions, progress: &'a dyn Progress) -> Result<Self> {
        let mut dice = [0; 8];
        store.world().entropy.fill(&mut dice)?;
        let permille = options.sample_permille.unwrap_or(1000).min(1000);
        let report =
            StoreVerifyReport { sampled_permille: permille, ..StoreVerifyReport::default() };
        Ok(Self {
            store,
            progress,
            report,
            faults: Faults::default(),
            permille,
            dice: u64::from_le_bytes(dice),
            good: HashSet::new(),
            bad: HashSet::new(),
            moved: HashMap::new(),
            segments: HashMap::new(),
            maps: HashSet::new(),
            whole: false,
            blind: false,
            deep: options.deep,
        })
    }

    /// Whether a sample has the thing of this number.
    fn chosen(&self, number: u64) -> bool {
        let mut mixed = (number ^ self.dice).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 32;
        (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) % 1000 < u64::from(self.permille)
    }

    /// The newest records of the names, or of all.
    async fn records(&mut self, names: &[(RefKind, String)]) -> Result<Vec<(RefKind, RefRecord)>> {
        let refs = self.store.refs();
        let mut records = Vec::new();
        for (kind, name) in names {
            let found = refs.get(*kind, name).await?.ok_or_else(|| {
                block::Error::not_found(format!("there is no {kind} {name:?} in the store"))
            })?;
            records.push((*kind, found));
        }
        if names.is_empty() {
            for kind in RefKind::ALL {
                let listing = refs.list(kind).await?;
                records.extend(listing.records.into_iter().map(|record| (kind, record)));
                for damaged in listing.damaged {
                    let key = format!("refs/{kind}/{}", damaged.name);
                    let holder = Holder { kind, name: damaged.name, manifest: None, beside: false };
                    self.faults.note(&key, 0, damaged.error)?;
                    self.faults.touch(&key, &holder, None);
                }
            }
        }
        Ok(records)
    }

    /// Reads every object of the store.
    async fn objects(&mut self) -> Result<()> {
        self.whole = true;
        let mut packs = Vec::new();
        let mut others = Vec::new();
        for meta in objects::list_all(self.store.backend()).await? {
            match meta.location.as_ref().split_once('/') {
                Some((pack::PREFIX, _)) => packs.push(meta),
                _ => others.push(meta),
            }
        }
        self.packs(packs).await?;
        let store = self.store;
        let mut checks = stream::iter(others)
            .map(|meta| async move {
                let outcome = check_object(store, &meta).await;
                (meta, outcome)
            })
            .buffer_unordered(OBJECTS);
        while let Some((meta, outcome)) = checks.next().await {
            self.report.objects += 1;
            self.progress.advance(meta.size, meta.size);
            let key = meta.location.as_ref();
            match outcome {
                Ok(CheckedObject::Sound) => {}
                Ok(CheckedObject::Moved(pack, moved)) => {
                    self.moved.insert(pack, moved);
                }
                // Deleted since it was listed; if a name needs it, that is found below.
                Err(e) if e.kind() == ErrorKind::NotFound => self.report.objects -= 1,
                Err(e) => self.faults.note(key, 0, e)?,
            }
        }
        Ok(())
    }

    async fn packs(&mut self, packs: Vec<ObjectMeta>) -> Result<()> {
        let (store, deep) = (self.store, self.deep);
        let number = |meta: &ObjectMeta| fingerprint_of(meta.location.as_ref());
        let mut chosen: Vec<bool> = packs.iter().map(|meta| self.chosen(number(meta))).collect();
        // A sample that reads nothing says nothing.
        if let Some(first) = chosen.first_mut()
            && self.permille > 0
        {
            *first |= !packs.iter().any(|meta| self.chosen(number(meta)));
        }
        let mut reads = stream::iter(packs.into_iter().zip(chosen))
            .map(|(meta, chosen)| async move {
                let read = match chosen {
                    true => packs::whole(store, &meta, deep).await,
                    false => packs::index(store, &meta).await,
                };
                (meta, chosen, read)
            })
            .buffer_unordered(PACKS);
        while let Some((meta, chosen, read)) = reads.next().await {
            let Some(read) = read? else { continue };
            self.report.objects += 1;
            self.report.packs += u64::from(chosen);
            self.report.chunks += read.chunks;
            self.report.stored_bytes += read.stored;
            self.report.bytes += read.bytes;
            self.good.extend(read.good);
            if let Some((offset, error)) = read.fault {
                if error.kind() == ErrorKind::Unsupported {
                    self.report.newer.extend(pack::id_of_key(meta.location.as_ref()));
                }
                self.faults.note(meta.location.as_ref(), offset, error)?;
            }
            self.progress.advance(read.stored, read.stored);
        }
        Ok(())
    }

    /// Follows names to their chunks; `read` says that chunks were not read before.
    async fn names(&mut self, records: Vec<(RefKind, RefRecord)>, read: bool) -> Result<()> {
        let mut manifests: BTreeMap<ManifestId, (u64, Vec<Holder>)> = BTreeMap::new();
        for (kind, record) in records {
            if kind != RefKind::Gc {
                self.report.names += 1;
            }
            let key = format!("refs/{kind}/{}", record.name);
            let roots = match record.body.roots() {
                Ok(roots) => roots,
                Err(e) => {
                    let holder = Holder { kind, name: record.name, manifest: None, beside: false };
                    self.faults.note(&key, 0, e)?;
                    self.faults.touch(&key, &holder, None);
                    continue;
                }
            };
            let copy = record.body.boot_copy()?;
            for manifest in roots {
                let name = record.name.clone();
                let beside = copy == Some(manifest) && record.body.manifest != copy;
                let holder = Holder { kind, name, manifest: Some(manifest), beside };
                let size = record.body.size;
                manifests.entry(manifest).or_insert_with(|| (size, Vec::new())).1.push(holder);
            }
            if let Some(id) = record.body.labels.get(boot_list::LABEL) {
                let holder = Holder { kind, name: record.name, manifest: None, beside: false };
                self.boot_list(id, &holder).await?;
            }
        }
        for (id, (size, holders)) in manifests {
            self.manifest(&id, size, &holders, read).await?;
        }
        Ok(())
    }

    /// The boot list that a name has; without it a boot is slower, no more.
    async fn boot_list(&mut self, id: &str, holder: &Holder) -> Result<()> {
        let key = ObjectKind::BootList.key(&id);
        let read = match id.parse::<ManifestId>() {
            Ok(id) => {
                heal::inspected_content(self.store, ObjectKind::BootList, id.as_bytes()).await
            }
            Err(e) => Err(e),
        };
        if let Err(e) = read {
            self.faults.note(&key, 0, e)?;
            self.faults.touch(&key, holder, None);
        }
        Ok(())
    }

    /// The body of a root or segment: this store's, or another one's when this one's is bad, which
    /// is noted.
    async fn body(
        &mut self,
        kind: ObjectKind,
        id: &[u8; 32],
        key: &str,
        holders: &[Holder],
        span: Span,
    ) -> Result<Option<Bytes>> {
        // Where every object is read, it was counted then.
        self.report.objects += u64::from(self.maps.insert(fingerprint_of(key)) && !self.whole);
        let failure = match heal::inspected_content(self.store, kind, id).await {
            Ok(body) => return Ok(Some(body)),
            Err(e) => e,
        };
        self.faults.note(key, 0, failure)?;
        for holder in holders {
            self.faults.touch(key, holder, Some(span));
        }
        Ok(heal::content(self.store, kind, id).await.ok())
    }

    async fn manifest(
        &mut self,
        id: &ManifestId,
        size: u64,
        holders: &[Holder],
        read: bool,
    ) -> Result<()> {
        let key = manifest_root::key(id);
        let whole = Span::whole(size);
        let Some(body) = self.body(ObjectKind::Root, &id.0, &key, holders, whole).await? else {
            return Ok(());
        };
        let (size, segments) = match manifest_root::decode(&key, &body) {
            Ok(decoded) => decoded,
            Err(e) => {
                self.faults.note(&key, 0, e)?;
                holders.iter().for_each(|h| self.faults.touch(&key, h, Some(whole)));
                return Ok(());
            }
        };
        for (index, id) in segments.iter().enumerate() {
            let start = index as u64 * SEGMENT;
            let span = Span::between(start, (start + SEGMENT).min(size));
            if let Some(id) = id {
                self.segment(id, span, holders, read).await?;
            }
            if read {
                self.progress.advance(span.len(), 0);
            }
        }
        Ok(())
    }

    async fn segment(
        &mut self,
        id: &SegmentId,
        span: Span,
        holders: &[Holder],
        read: bool,
    ) -> Result<()> {
        let blocks = span.len().div_ceil(PAGE as u64) as u32;
        let memo = (*id, blocks);
        if !self.segments.contains_key(&memo) {
            let key = segment::key(id);
            let Some(body) = self.body(ObjectKind::Segment, &id.0, &key, holders, span).await?
            else {
                return Ok(());
            };
            let pieces: Vec<Placed> = match Segment::decode(&key, body, blocks) {
                Ok(segment) => segment.all().collect(),
                Err(e) => {
                    self.faults.note(&key, 0, e)?;
                    holders.iter().for_each(|h| self.faults.touch(&key, h, Some(span)));
                    return Ok(());
                }
            };
            let holes = if self.blind { Vec::new() } else { self.judge(&pieces, read).await? };
            self.segments.insert(memo, holes);
        }
        for hole in self.segments.get(&memo).into_iter().flatten() {
            let start = span.offset() + u64::from(hole.start) * PAGE as u64;
            let end = (start + u64::from(hole.blocks) * PAGE as u64).min(span.end());
            let key = pack::path(&hole.at.pack).to_string();
            // Where the chunk stood in the image that it was cut from, if it was this one and no boot
            // copy.
            if !holders.iter().all(|holder| holder.beside)
                && let Some(start) = start.checked_sub(u64::from(hole.skip) * PAGE as u64)
            {
                let shown = self.report.shown.entry(hole.at.id).or_default();
                if shown.len() < SHOWN && !shown.contains(&start) {
                    shown.push(start);
                }
            }
            for holder in holders {
                self.faults.touch(&key, holder, Some(Span::between(start, end)));
            }
        }
        Ok(())
    }

    /// What of a segment cannot be read.
    async fn judge(&mut self, pieces: &[Placed], read: bool) -> Result<Vec<Hole>> {
        if read {
            let fresh: HashMap<u64, ChunkRef> = pieces
                .iter()
                .map(|piece| (fingerprint(&piece.at), piece.at))
                .filter(|(print, _)| !self.good.contains(print) && !self.bad.contains(print))
                .collect();
            let (wanted, rest): (Vec<_>, Vec<_>) =
                fresh.into_iter().partition(|(print, _)| self.chosen(*print));
            self.good.extend(rest.into_iter().map(|(print, _)| print));
            let wanted = wanted.into_iter().map(|(_, at)| at).collect();
            for (at, outcome) in super::read(self.store, wanted).await? {
                self.report.chunks += 1;
                self.report.stored_bytes += u64::from(at.stored);
                self.report.bytes += u64::from(at.len);
                match outcome {
                    Ok(()) => {
                        self.good.insert(fingerprint(&at));
                    }
                    Err(e) => {
                        self.faults.note(pack::path(&at.pack).as_ref(), at.offset.into(), e)?
                    }
                }
            }
        }
        let mut holes = Vec::new();
        for piece in pieces {
            if !self.readable(&piece.at).await? {
                let Placed { start, blocks, skip, at } = *piece;
                let at = ChunkRef { pack: self.holder_of(&at), ..at };
                holes.push(Hole { start, blocks, skip, at });
            }
        }
        Ok(holes)
    }

    /// Whether a chunk can be read from this store.
    async fn readable(&mut self, at: &ChunkRef) -> Result<bool> {
        let print = fingerprint(at);
        if self.bad.contains(&print) {
            return Ok(false);
        }
        let steps = heal::target(&self.moved, at);
        if self.good.contains(&print) || steps.iter().any(|at| self.good.contains(&fingerprint(at)))
        {
            return Ok(true);
        }
        // Rewritten since the packs were read, or not in an index that can be read.
        let failure = match self.store.read_at(at).await {
            Ok(_) => None,
            Err(e) => match heal::follow(self.store, at).await {
                Ok(_) => None,
                Err(_) => Some(e),
            },
        };
        self.report.unsure.entry(at.pack).or_default().insert(Lost(*at));
        let Some(failure) = failure else {
            self.good.insert(print);
            return Ok(true);
        };
        let key = pack::path(&self.holder_of(at)).to_string();
        self.faults.note(&key, at.offset.into(), failure)?;
        let mut healable = 0;
        for source in self.store.healing().sources() {
            if source.chunk(at).await.is_ok() {
                healable = 1;
                break;
            }
        }
        self.faults.count(&key, 1, healable);
        self.bad.insert(print);
        Ok(false)
    }

    /// The pack that is to blame for a chunk that cannot be read: its own, unless it was moved to one of a
    /// newer format. Then it is not lost, as far as anybody here can tell.
    fn holder_of(&self, at: &ChunkRef) -> PackId {
        let steps = heal::target(&self.moved, at);
        let newer = steps.iter().find(|step| self.report.newer.contains(&step.pack));
        newer.map_or(at.pack, |step| step.pack)
    }

    /// The report: those who do not exist any more are left out.
    async fn finish(mut self) -> Result<StoreVerifyReport> {
        let refs = self.store.refs();
        let mut stale = BTreeSet::new();
        for holder in self.faults.holders() {
            let Some(manifest) = holder.manifest else { continue };
            let now = refs.get(holder.kind, &holder.name).await;
            let holds = match now {
                Ok(Some(record)) => {
                    record.body.roots().is_ok_and(|roots| roots.contains(&manifest))
                }
                Ok(None) => false,
                Err(_) => true,
            };
            if !holds {
                stale.insert(holder);
            }
        }
        self.report.faults = std::mem::take(&mut self.faults).finish(&stale);
        self.leave_condemned().await?;
        Ok(self.report)
    }

    /// Takes out the faults of what nothing needs and a collection is about to delete.
    async fn leave_condemned(&mut self) -> Result<()> {
        if self.report.faults.iter().all(|fault| !fault.touches.is_empty()) {
            return Ok(());
        }
        let condemned =
            async { CollectionState::load(self.store).await?.contents(self.store).await };
        let condemned = match condemned.await {
            Ok(contents) => contents.absent,
            // What is wrong there is among the faults.
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let goes = |fault: &Fault| fault.touches.is_empty() && condemned.has_key(&fault.object);
        let before = self.report.faults.len();
        self.report.faults.retain(|fault| !goes(fault));
        self.report.condemned = (before - self.report.faults.len()) as u64;
        Ok(())
    }
}

/// What an object that is no pack turned out to be.
enum CheckedObject {
    Sound,
    Moved(PackId, Moved),
}

/// Reads an object that is no pack, and checks all that can be said of it alone.
async fn check_object(store: &Store, meta: &ObjectMeta) -> Result<CheckedObject> {
    let key = meta.location.as_ref();
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    let kind = ObjectKind::ALL.into_iter().find(|kind| kind.prefix() == prefix);
    // It is written for its time alone.
    if key == servers::PROBE {
        return Ok(CheckedObject::Sound);
    }
    let Some(kind) = kind else {
        match prefix {
            "refs" => store.refs().check_key(key).await?,
            "" if name == settings::KEY => {
                let bytes = objects::get(store.backend(), key, document::MAX_LEN).await?;
                store.settings().check_stored(&bytes)?;
            }
            "keys" => slots::check(store.backend(), key).await?,
            "" if name == publish::KEY => publish::check(store.backend()).await?,
            // Not ours: nothing is known of it, and nobody reads it.
            _ => tracing::warn!(object = key, "an object that is not the store's"),
        }
        return Ok(CheckedObject::Sound);
    };
    let id = || name.parse::<ManifestId>().map_err(|_| crate::wire::damaged(key, "its name"));
    match kind {
        ObjectKind::Root => {
            let body = heal::inspected_content(store, kind, id()?.as_bytes()).await?;
            manifest_root::decode(key, &body)?;
        }
        ObjectKind::Segment => {
            let body = heal::inspected_content(store, kind, id()?.as_bytes()).await?;
            Segment::decode(key, body, SEGMENT_PAGES as u32)?;
        }
        ObjectKind::BootList | ObjectKind::Condemned => {
            heal::inspected_content(store, kind, id()?.as_bytes()).await?;
        }
        ObjectKind::Moved => {
            let pack = name.parse().map_err(|_| crate::wire::damaged(key, "its name"))?;
            let body = object::read(store.backend(), store.settings(), kind, key).await?;
            return Ok(CheckedObject::Moved(pack, Moved::decode(key, body)?));
        }
        ObjectKind::Pin | ObjectKind::Server => {
            object::read(store.backend(), store.settings(), kind, key).await?;
        }
    }
    Ok(CheckedObject::Sound)
}

/// A number for a key.
fn fingerprint_of(key: &str) -> u64 {
    let hash = blake3::hash(key.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

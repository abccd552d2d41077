//! A store whose objects get lost, are damaged and come back, with collections and repairs between;
//! one in four is encrypted.
//!
//! What has to hold:
//!
//! * Collections and repairs lose no chunk that a name needs and some pack holds.
//! * They leave each chunk of a name or of a living session readable that was.
//! * They lose no root, segment or boot list of a name or of a living session.
//! * A session that lost its pin publishes nothing.
//! * When everything that was lost is back, a repair makes all of it readable.
//!
//! What is not lost here, because only a backup helps: `store.json` and `keys/…`, without which nothing
//! can be read, and the newest record of a name, which cannot be told from a name that was never made or
//! moved (docs/gc.md). It is damaged, as that shows; older records are lost, too, and that of garbage
//! collection also when it is the newest. A pin that was lost
//! does not come back: its session was told that it is dead; nor does a record of garbage collection, as
//! another one may have taken its place.

use crate::model::{self, Content};
use block::conformance::Sequence;
use block::{Memory, Span};
use bytes::Bytes;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::testing::Clocked;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::testing::{self, FixedClock, FixedEntropy, NOW, held_chunks};
use store::{
    Argon2Cost, BootListId, ChunkId, ChunkRef, Grain, ManifestId, NewKey, RefBody, RefKind, Secret,
    Store, World, boot_copy, boot_list, gc, import, repair,
};

const HOUR: u64 = 3600;
/// What may be deleted: of names, records before the newest.
const LOSABLE: [&str; 11] = [
    "packs",
    "segments",
    "manifests",
    "bootlists",
    "moved",
    "condemned",
    "pins",
    "refs/image",
    "refs/disk",
    "refs/snapshot",
    "refs/gc",
];
/// What may be damaged.
const FRAGILE: [&str; 11] = [
    "packs",
    "segments",
    "manifests",
    "bootlists",
    "moved",
    "condemned",
    "pins",
    "refs/image",
    "refs/disk",
    "refs/snapshot",
    "refs/gc",
];

/// A name, and all that belongs to it.
#[derive(Clone)]
struct Named {
    kind: RefKind,
    name: String,
    manifest: ManifestId,
    /// What a disk may be reset to.
    origin: Option<ManifestId>,
    content: Content,
    /// The chunks of both, where their segments say.
    chunks: Vec<ChunkRef>,
    boot_list: Option<(BootListId, Vec<ChunkId>)>,
    boot_copy: Option<ManifestId>,
}

impl Named {
    fn label(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    fn manifests(&self) -> impl Iterator<Item = ManifestId> {
        [self.manifest].into_iter().chain(self.origin)
    }

    /// What tells where its content is.
    fn maps(&self) -> Vec<String> {
        let lists = self.boot_list.iter().map(|(id, _)| list_map(id));
        self.manifests().map(|id| root_map(&id)).chain(lists).collect()
    }

    fn body(&self) -> RefBody {
        let mut labels = BTreeMap::new();
        labels.extend(self.origin.map(|id| (RefBody::ORIGIN.to_owned(), id.to_string())));
        let list = self.boot_list.as_ref();
        labels.extend(list.map(|(id, _)| (boot_list::LABEL.to_owned(), id.to_string())));
        labels.extend(self.boot_copy.map(|id| (RefBody::BOOT_COPY.to_owned(), id.to_string())));
        let size = self.content.len() as u64;
        RefBody { manifest: Some(self.manifest), size, created: NOW, labels }
    }
}

fn root_map(id: &ManifestId) -> String {
    format!("root or segments of {id}")
}

fn list_map(id: &BootListId) -> String {
    format!("the boot list {id}")
}

/// Somebody who has stored all and not yet published it.
struct Writer {
    session: store::Session,
    /// What it is about to publish.
    named: Named,
    /// The record that it is to replace.
    replaces: Option<u64>,
}

/// One run.
pub(crate) struct Life {
    dice: Sequence,
    backend: Clocked,
    encrypted: bool,
    /// By [`Named::label`].
    names: BTreeMap<String, Named>,
    writers: Vec<Writer>,
    made: u64,
    /// What was lost or damaged, as it was.
    lost: BTreeMap<Path, Bytes>,
    course: u64,
    told: bool,
}

/// What there is of what names and living sessions need, at some moment.
struct Holdings {
    needed: Vec<NeededChunks>,
    /// Their roots with segments, and boot lists, that can be read.
    mapped: BTreeSet<String>,
}

/// The chunks of a name, or of what is about to have one.
struct NeededChunks {
    named: Named,
    /// Those that readers find.
    readable: BTreeSet<ChunkId>,
    /// Those, too, that only a repair finds: a pack has them in its index, or a boot copy names them. What is
    /// not published yet no collection knows, so that this is not asked of it.
    held: BTreeSet<ChunkId>,
}

type Outcome<T = ()> = Result<T, String>;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// What opens an encrypted store.
fn secret() -> Secret {
    Secret::key_file(vec![7; 32]).unwrap()
}

impl Life {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Sequence::new(seed);
        let encrypted = dice.below(4) == 0;
        Self {
            dice,
            backend: Clocked::new(NOW),
            encrypted,
            names: BTreeMap::new(),
            writers: Vec::new(),
            made: 0,
            lost: BTreeMap::new(),
            course: 0,
            told: std::env::var_os("SIMULATION_TOLD").is_some(),
        }
    }

    fn note(&mut self, what: &str) {
        if self.told {
            println!("{what}");
        }
        for byte in what.bytes() {
            self.course = (self.course ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn world(&mut self) -> World {
        let entropy = Arc::new(FixedEntropy::new(self.dice.number()));
        World { clock: Arc::new(FixedClock::new(NOW)), entropy }
    }

    /// The store, opened anew: nothing of it is in memory.
    async fn store(&mut self) -> Outcome<Store> {
        let world = self.world();
        let backend = Arc::new(self.backend.clone());
        Store::open_with(backend, world, async || Ok(Some(secret()))).await.map_err(text)
    }

    /// Lives; gives the course that it took, or what went wrong.
    pub(crate) async fn run(mut self) -> Outcome<u64> {
        let (backend, world) = (Arc::new(self.backend.clone()), self.world());
        if self.encrypted {
            let key = NewKey { name: "first", secret: &secret(), cost: Argon2Cost::TRIVIAL };
            let settings = testing::encrypted_settings();
            Store::create_encrypted(backend, settings, world, &key).await.map_err(text)?;
        } else {
            Store::create(backend, testing::settings(), world).await.map_err(text)?;
        }
        for _ in 0..2 {
            self.import().await?;
        }
        for _ in 0..10 + self.dice.below(25) {
            match self.dice.below(100) {
                0..10 => self.import().await?,
                10..15 => self.disk().await?,
                15..24 => self.derive().await?,
                24..30 => self.publish_one().await?,
                30..38 => self.remove().await?,
                38..60 => self.collect().await?,
                60..67 => self.repair().await?,
                67..78 => self.lose().await?,
                78..87 => self.damage().await?,
                87..96 => self.bring_back().await?,
                _ => self.backend.advance(self.dice.below(40 * HOUR)),
            }
        }
        self.end().await?;
        Ok(self.course)
    }

    fn fresh(&mut self, kind: RefKind) -> String {
        self.made += 1;
        match kind {
            RefKind::Image => format!("image:{}", self.made),
            RefKind::Snapshot => format!("disk@{}", self.made),
            _ => format!("disk{}", self.made),
        }
    }

    async fn import(&mut self) -> Outcome {
        let content: Content = Arc::new(model::image(&mut self.dice));
        let store = self.store().await?;
        let Ok(session) = store.session("import").await else { return Ok(()) };
        let name = self.fresh(RefKind::Image);
        let (listed, copied) = (self.dice.below(2) == 0, self.dice.below(2) == 0);
        let from = self.dice.below(5) as usize;
        let stored = async {
            let view = Memory::from(content.to_vec());
            let manifest = import::from_device(&session, &view, &()).await?.manifest;
            let mut chunks = store.manifest(&manifest).await?.chunks().await?;
            let mut named = Named {
                kind: RefKind::Image,
                name,
                manifest,
                origin: None,
                content,
                chunks: chunks.clone(),
                boot_list: None,
                boot_copy: None,
            };
            if listed {
                let from = from % chunks.len();
                chunks.rotate_left(from);
                let ids: Vec<ChunkId> = chunks.iter().map(|at| at.id).collect();
                named.boot_list = Some((boot_list::write(&session, &ids).await?, ids));
                if copied {
                    named.boot_copy = boot_copy::make(&session, chunks).await.ok();
                }
            }
            Ok(named)
        };
        let stored = stored.await;
        self.stored(session, stored, None).await
    }

    /// Makes a disk out of an image, which keeps it.
    async fn disk(&mut self) -> Outcome {
        let Some(base) = self.any_name() else { return Ok(()) };
        if base.kind != RefKind::Image {
            return Ok(());
        }
        let store = self.store().await?;
        let Ok(session) = store.session("create").await else { return Ok(()) };
        let held = session.hold(base.kind, &base.name).await.and_then(|held| {
            held.ok_or_else(|| block::Error::not_found(format!("{} is gone", base.label())))
        });
        let (kind, name) = (RefKind::Disk, self.fresh(RefKind::Disk));
        let origin = Some(base.manifest);
        let named = Named { kind, name, origin, boot_list: None, boot_copy: None, ..base };
        self.stored(session, held.map(|_| named), None).await
    }

    /// Changes what a name says, into an image, a snapshot, or, of a disk, the disk itself.
    async fn derive(&mut self) -> Outcome {
        let Some(base) = self.any_name() else { return Ok(()) };
        let store = self.store().await?;
        let Ok(session) = store.session("commit").await else { return Ok(()) };
        let (bytes, changed) = model::change(&base.content, &mut self.dice);
        let content: Content = Arc::new(bytes);
        let changed = [Span::between(changed.start as u64, changed.end as u64)];
        let (grain, kind) = match self.dice.below(3) {
            0 => (Grain::Content, RefKind::Image),
            1 if base.kind == RefKind::Disk => (Grain::Blocks, RefKind::Disk),
            _ => (Grain::Blocks, RefKind::Snapshot),
        };
        let moves = kind == RefKind::Disk;
        let name = if moves { base.name.clone() } else { self.fresh(kind) };
        let mut replaces = None;
        let stored = async {
            let Some(held) = session.hold(base.kind, &base.name).await? else {
                return Err(block::Error::not_found(format!("{} is gone", base.label())));
            };
            replaces = moves.then_some(held.sequence);
            let (view, size) = (Memory::from(content.to_vec()), content.len() as u64);
            let from = store.manifest(&base.manifest).await?;
            let done = import::derive(&session, &from, size, &view, &changed, grain, &()).await?;
            let mut chunks = Vec::new();
            let origin = base.origin.filter(|_| moves);
            for id in [done.manifest].into_iter().chain(origin) {
                chunks.extend(store.manifest(&id).await?.chunks().await?);
            }
            let manifest = done.manifest;
            let (boot_list, boot_copy) = (None, None);
            Ok(Named { kind, name, manifest, origin, content, chunks, boot_list, boot_copy })
        };
        let stored = stored.await;
        self.stored(session, stored, replaces).await
    }

    /// What is stored is published, now or later.
    async fn stored(
        &mut self,
        session: store::Session,
        stored: block::Result<Named>,
        replaces: Option<u64>,
    ) -> Outcome {
        let named = match stored {
            Ok(named) => named,
            Err(e) => {
                self.note(&format!("nothing is stored: {e}"));
                let _ = session.close(Ok(())).await;
                return Ok(());
            }
        };
        self.note(&format!("{} is stored: {}", named.label(), named.manifest));
        self.writers.push(Writer { session, named, replaces });
        match self.dice.below(3) {
            0 => Ok(()),
            _ => self.publish(self.writers.len() - 1).await,
        }
    }

    /// One of those who wait publishes what he stored, or dies.
    async fn publish_one(&mut self) -> Outcome {
        if self.writers.is_empty() {
            return Ok(());
        }
        let at = self.dice.below(self.writers.len() as u64) as usize;
        if self.dice.below(4) == 0 {
            let writer = self.writers.remove(at); // its pins stay
            self.note(&format!("the writer of {} dies", writer.named.label()));
            return Ok(());
        }
        self.publish(at).await
    }

    async fn publish(&mut self, at: usize) -> Outcome {
        let Writer { session, named, replaces } = self.writers.remove(at);
        let alive = session.check().await.is_ok();
        let (kind, name, body) = (named.kind, named.name.as_str(), named.body());
        let published = match replaces {
            None => session.publish(kind, name, body).await.map(drop),
            Some(before) => match session.check().await {
                Ok(()) => session.store().refs().update(kind, name, before, body).await.map(drop),
                Err(e) => Err(e),
            },
        };
        let label = named.label();
        match session.close(published).await {
            Ok(()) if !alive => Err(format!("{label} was published by one who was taken for dead")),
            Ok(()) => {
                self.note(&format!("{label} is published"));
                self.names.insert(label, named);
                Ok(())
            }
            Err(e) => {
                self.note(&format!("{label} is not published: {e}"));
                Ok(())
            }
        }
    }

    fn any_name(&mut self) -> Option<Named> {
        let at = self.dice.below(self.names.len().max(1) as u64) as usize;
        self.names.values().nth(at).cloned()
    }

    async fn remove(&mut self) -> Outcome {
        let Some(named) = self.any_name() else { return Ok(()) };
        let (label, refs) = (named.label(), self.store().await?.refs());
        if let Ok(Some(found)) = refs.get(named.kind, &named.name).await
            && refs.remove(named.kind, &named.name, found.sequence).await.is_ok()
        {
            self.note(&format!("{label} is removed"));
            self.names.remove(&label);
        }
        Ok(())
    }

    async fn collect(&mut self) -> Outcome {
        let options = gc::GcOptions {
            grace: Duration::from_secs([0, 3 * HOUR][self.dice.below(2) as usize]),
            rewrite_below: [0.0, 0.7, 1.0][self.dice.below(3) as usize],
            stale: Duration::from_secs([0, 24 * HOUR][self.dice.below(2) as usize]),
            dry_run: false,
        };
        let before = self.holdings().await?;
        let outcome = gc::collect(&self.store().await?, &options, &()).await;
        let told = match outcome {
            Ok(report) => format!("a collection: freed {:?}, {:?}", report.freed, report.doubts),
            Err(e) => format!("a collection fails: {e}"),
        };
        self.note(&told);
        self.compare(before, "a collection").await
    }

    async fn repair(&mut self) -> Outcome {
        let before = self.holdings().await?;
        let store = self.store().await?;
        let told = match repair::store(&store, &[], false, &()).await {
            Ok(report) => {
                let (restored, left) = (report.restored, report.left.len());
                format!("a repair: {restored:?}, {:?}, {left} left", report.rewritten)
            }
            Err(e) => format!("a repair fails: {e}"),
        };
        self.note(&told);
        self.compare(before, "a repair").await
    }

    async fn holdings(&mut self) -> Outcome<Holdings> {
        let store = self.store().await?;
        let mut needed: Vec<(Named, bool)> =
            self.names.values().map(|named| (named.clone(), true)).collect();
        for writer in &self.writers {
            if writer.session.check().await.is_ok() {
                needed.push((writer.named.clone(), false));
            }
        }
        let listed = held_chunks(&store).await.map_err(text)?;
        let mut mapped = BTreeSet::new();
        let mut holdings = Vec::new();
        for (named, is_published) in needed {
            for id in named.manifests() {
                if let Ok(manifest) = store.manifest(&id).await
                    && manifest.chunks().await.is_ok()
                {
                    mapped.insert(root_map(&id));
                }
            }
            if let Some((id, list)) = &named.boot_list {
                match boot_list::read(&store, id).await {
                    Ok(found) if found == *list => {
                        mapped.insert(list_map(id));
                    }
                    Ok(_) => return Err(format!("{} has another boot list", named.label())),
                    Err(_) => {}
                }
            }
            let mut readable = BTreeSet::new();
            for at in &named.chunks {
                if store.read_chunk(at).await.is_ok() {
                    readable.insert(at.id);
                }
            }
            let mut held = readable.clone();
            if is_published {
                let copied = in_boot_copy(&store, &named).await;
                let ids = named.chunks.iter().map(|at| at.id);
                held.extend(ids.filter(|id| listed.contains(id) || copied.contains(id)));
            }
            holdings.push(NeededChunks { named, readable, held });
        }
        Ok(Holdings { needed: holdings, mapped })
    }

    /// Nothing that is needed before and after is less than before.
    async fn compare(&mut self, before: Holdings, what: &str) -> Outcome {
        let after = self.holdings().await?;
        let same = |a: &Named, b: &Named| a.label() == b.label() && a.manifest == b.manifest;
        for NeededChunks { named, readable, held } in &after.needed {
            let label = named.label();
            let lost = |map: &String| before.mapped.contains(map) && !after.mapped.contains(map);
            if let Some(map) = named.maps().into_iter().find(lost) {
                return Err(format!("{what} lost {map} of {label}"));
            }
            let Some(was) = before.needed.iter().find(|was| same(&was.named, named)) else {
                continue;
            };
            if let Some(id) = was.held.difference(held).next() {
                return Err(format!("{what} lost the last copy of chunk {id} of {label}"));
            }
            if let Some(id) = was.readable.difference(readable).next() {
                return Err(format!("{what} left chunk {id} of {label} unreadable"));
            }
        }
        Ok(())
    }

    /// The objects below a prefix.
    async fn keys(&self, prefix: &str) -> Vec<Path> {
        let listed = self.backend.list(Some(&Path::from(prefix)));
        let mut keys: Vec<Path> =
            listed.filter_map(async |meta| Some(meta.ok()?.location)).collect().await;
        keys.sort_unstable();
        keys
    }

    /// One of some things.
    fn any(&mut self, keys: &[Path]) -> Option<Path> {
        keys.get(self.dice.below(keys.len().max(1) as u64) as usize).cloned()
    }

    async fn bytes(&self, path: &Path) -> Outcome<Bytes> {
        self.backend.get(path).await.map_err(text)?.bytes().await.map_err(text)
    }

    /// Remembers what is about to be lost, so that it can come back; but no pin.
    fn keep(&mut self, path: &Path, bytes: Bytes) {
        if !path.as_ref().starts_with("pins/") {
            self.lost.entry(path.clone()).or_insert(bytes);
        }
    }

    async fn lose(&mut self) -> Outcome {
        let prefix = LOSABLE[self.dice.below(LOSABLE.len() as u64) as usize];
        let mut keys = self.keys(prefix).await;
        if prefix.starts_with("refs/") && prefix != "refs/gc" {
            let row = |path: &Path| path.as_ref().rsplit_once('/').map(|(row, _)| row.to_owned());
            let next: Vec<Option<String>> = keys.iter().skip(1).map(row).chain([None]).collect();
            let mut next = next.into_iter();
            keys.retain(|path| next.next() == Some(row(path)));
        }
        let Some(path) = self.any(&keys) else { return Ok(()) };
        let bytes = self.bytes(&path).await?;
        if prefix == "refs/gc" {
            self.lost.remove(&path); // another record may take its place
        } else {
            self.keep(&path, bytes);
        }
        self.backend.delete(&path).await.map_err(text)?;
        self.note(&format!("{path} is lost"));
        Ok(())
    }

    async fn damage(&mut self) -> Outcome {
        let prefix = FRAGILE[self.dice.below(FRAGILE.len() as u64) as usize];
        let keys = self.keys(prefix).await;
        let Some(path) = self.any(&keys) else { return Ok(()) };
        let good = self.bytes(&path).await?;
        let mut bad = good.to_vec();
        if bad.is_empty() {
            return Ok(()); // it was cut before
        }
        let at = self.dice.below(bad.len() as u64) as usize;
        match self.dice.below(4) {
            0 => bad.truncate(at),
            1 => bad[at..].fill(0x5a),
            _ => bad[at] ^= 1 << self.dice.below(8),
        }
        self.keep(&path, good);
        self.backend.put(&path, bad.into()).await.map_err(text)?;
        self.note(&format!("{path} is damaged at {at}"));
        Ok(())
    }

    async fn bring_back(&mut self) -> Outcome {
        let at = self.dice.below(self.lost.len().max(1) as u64) as usize;
        let Some(path) = self.lost.keys().nth(at).cloned() else { return Ok(()) };
        let Some(bytes) = self.lost.remove(&path) else { return Ok(()) };
        self.backend.put(&path, bytes.into()).await.map_err(text)?;
        self.note(&format!("{path} is back"));
        Ok(())
    }

    /// Everything comes back, and then a repair and collections leave all that is held readable.
    async fn end(&mut self) -> Outcome {
        while !self.lost.is_empty() {
            self.bring_back().await?;
        }
        while !self.writers.is_empty() {
            self.publish(0).await?;
        }
        // Who died counts as dead now: a list of garbage that is damaged for good is replaced by a collection.
        self.backend.advance(40 * HOUR);
        self.collect().await?;
        self.repair().await?;
        self.readable().await?;
        for _ in 0..3 {
            self.backend.advance(40 * HOUR);
            self.collect().await?;
        }
        self.readable().await
    }

    async fn readable(&mut self) -> Outcome {
        let Holdings { needed, mapped } = self.holdings().await?;
        let store = self.store().await?;
        for NeededChunks { named, held, .. } in &needed {
            let label = named.label();
            let found = store.refs().get(named.kind, &named.name).await;
            let found = found.map_err(text)?.ok_or_else(|| format!("{label} is gone"))?;
            if found.body.manifest != Some(named.manifest) {
                return Err(format!("{label} has another manifest"));
            }
            if let Some((id, _)) = &named.boot_list
                && !mapped.contains(&list_map(id))
            {
                return Err(format!("{} of {label} is gone", list_map(id)));
            }
            // What was stored while its chunks were damaged may never have been whole.
            if !named.chunks.iter().all(|at| held.contains(&at.id)) {
                continue;
            }
            for id in named.manifests().chain(found.body.boot_copy().map_err(text)?) {
                let bytes = read_all(&store, &id).await.map_err(|e| {
                    format!("{label}, of which packs hold all, its manifest {id}: {e}")
                })?;
                if id == named.manifest && bytes != **named.content {
                    return Err(format!("{label} has other bytes"));
                }
            }
        }
        Ok(())
    }
}

/// The chunks that a name's boot copy gives.
async fn in_boot_copy(store: &Store, named: &Named) -> BTreeSet<ChunkId> {
    let mut found = BTreeSet::new();
    if let Some(copy) = &named.boot_copy
        && let Ok(manifest) = store.manifest(copy).await
        && let Ok(chunks) = manifest.chunks().await
    {
        for at in chunks {
            if store.read_copy(&at, None).await.is_ok() {
                found.insert(at.id);
            }
        }
    }
    found
}

/// All bytes of a manifest.
async fn read_all(store: &Store, id: &ManifestId) -> block::Result<Vec<u8>> {
    let manifest = store.manifest(id).await?;
    let whole = Span::whole(manifest.size());
    let mut bytes = vec![0; manifest.size() as usize];
    for piece in manifest.pieces(whole).await? {
        if let store::Content::Chunk { at, skip } = piece.content {
            let chunk = store.read_chunk(&at).await?;
            let part = &chunk[skip as usize..][..piece.span.len() as usize];
            bytes[piece.span.index_in(whole)].copy_from_slice(part);
        }
    }
    Ok(bytes)
}

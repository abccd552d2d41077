//! A store whose objects get lost, are damaged and come back, with collections and repairs between.
//!
//! What has to hold: of the chunks that a name needs, no collection and no repair loses one that some
//! pack held; and when everything that was lost is back, a repair makes all of it readable.

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
use store::{ChunkId, Grain, ManifestId, RefBody, RefKind, Store, World, gc, import, repair};

const HOUR: u64 = 3600;
/// What may be deleted; nothing but a removal may take away a name.
const LOSABLE: [&str; 5] = ["packs", "segments", "manifests", "moved", "condemned"];
/// What may be damaged.
const FRAGILE: [&str; 7] =
    ["packs", "segments", "manifests", "moved", "condemned", "refs/image", "refs/gc"];

/// A name and all that belongs to it.
struct Named {
    manifest: ManifestId,
    content: Content,
    chunks: BTreeSet<ChunkId>,
}

/// One run.
pub(crate) struct Life {
    dice: Sequence,
    backend: Clocked,
    names: BTreeMap<String, Named>,
    made: u64,
    /// What was lost or damaged, as it was.
    lost: BTreeMap<Path, Bytes>,
    course: u64,
    told: bool,
}

/// What there is of the names' content at some moment.
struct Holdings {
    chunks: BTreeSet<ChunkId>,
    /// Names whose root and segments can be read.
    mapped: BTreeSet<String>,
}

type Outcome<T = ()> = Result<T, String>;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Life {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: Sequence::new(seed),
            backend: Clocked::new(NOW),
            names: BTreeMap::new(),
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
        Store::open(Arc::new(self.backend.clone()), world).await.map_err(text)
    }

    /// Lives; gives the course that it took, or what went wrong.
    pub(crate) async fn run(mut self) -> Outcome<u64> {
        let (backend, world) = (Arc::new(self.backend.clone()), self.world());
        Store::create(backend, testing::settings(), world).await.map_err(text)?;
        for _ in 0..2 {
            self.import().await?;
        }
        for _ in 0..10 + self.dice.below(20) {
            match self.dice.below(100) {
                0..12 => self.import().await?,
                12..20 => self.derive().await?,
                20..30 => self.remove().await?,
                30..55 => self.collect().await?,
                55..63 => self.repair().await?,
                63..75 => self.lose().await?,
                75..85 => self.damage().await?,
                85..95 => self.bring_back().await?,
                _ => self.backend.advance(self.dice.below(40 * HOUR)),
            }
        }
        self.end().await?;
        Ok(self.course)
    }

    async fn import(&mut self) -> Outcome {
        let content: Content = Arc::new(model::image(&mut self.dice));
        let store = self.store().await?;
        let Ok(session) = store.session("import").await else { return Ok(()) };
        let view = Memory::from(content.to_vec());
        let done = import::from_device(&session, &view, &()).await.map(|done| done.manifest);
        self.publish(&store, session, done, content).await
    }

    async fn derive(&mut self) -> Outcome {
        let Some(name) = self.any_name() else { return Ok(()) };
        let (manifest, base) = {
            let named = &self.names[&name];
            (named.manifest, Arc::clone(&named.content))
        };
        let store = self.store().await?;
        let Ok(session) = store.session("commit").await else { return Ok(()) };
        let (bytes, changed) = model::change(&base, &mut self.dice);
        let content: Content = Arc::new(bytes);
        let view = Memory::from(content.to_vec());
        let changed = [Span::between(changed.start as u64, changed.end as u64)];
        let derived = async {
            let manifest = store.manifest(&manifest).await?;
            let size = content.len() as u64;
            import::derive(&session, &manifest, size, &view, &changed, Grain::Content, &()).await
        };
        let done = derived.await.map(|done| done.manifest);
        self.publish(&store, session, done, content).await
    }

    async fn publish(
        &mut self,
        store: &Store,
        session: store::Session,
        done: block::Result<ManifestId>,
        content: Content,
    ) -> Outcome {
        let published = async {
            let (manifest, size) = (done?, content.len() as u64);
            let body =
                RefBody { manifest: Some(manifest), size, created: NOW, labels: BTreeMap::new() };
            let name = format!("image:{}", self.made + 1);
            session.publish(RefKind::Image, &name, body).await?;
            let chunks = store.manifest(&manifest).await?.chunks().await?;
            let chunks = chunks.iter().map(|at| at.id).collect();
            Ok::<_, block::Error>((name, Named { manifest, content, chunks }))
        };
        let published = published.await;
        if let Ok((name, named)) = session.close(published).await {
            self.note(&format!("{name}: {}", named.manifest));
            self.made += 1;
            self.names.insert(name, named);
        }
        Ok(())
    }

    fn any_name(&mut self) -> Option<String> {
        let at = self.dice.below(self.names.len().max(1) as u64) as usize;
        self.names.keys().nth(at).cloned()
    }

    async fn remove(&mut self) -> Outcome {
        let Some(name) = self.any_name() else { return Ok(()) };
        let refs = self.store().await?.refs();
        if let Ok(Some(found)) = refs.get(RefKind::Image, &name).await
            && refs.remove(RefKind::Image, &name, found.sequence).await.is_ok()
        {
            self.note(&format!("{name} is removed"));
            self.names.remove(&name);
        }
        Ok(())
    }

    async fn collect(&mut self) -> Outcome {
        let options = gc::GcOptions {
            grace: Duration::from_secs([0, 3 * HOUR][self.dice.below(2) as usize]),
            rewrite_below: [0.0, 0.7, 1.0][self.dice.below(3) as usize],
            stale: Duration::ZERO,
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
                format!("a repair: {:?}, {:?} left", report.restored, report.left.len())
            }
            Err(e) => format!("a repair fails: {e}"),
        };
        self.note(&told);
        self.compare(before, "a repair").await
    }

    async fn holdings(&mut self) -> Outcome<Holdings> {
        let store = self.store().await?;
        let mut chunks = held_chunks(&store).await.map_err(text)?;
        let mut mapped = BTreeSet::new();
        for (name, named) in &self.names {
            if let Ok(manifest) = store.manifest(&named.manifest).await
                && let Ok(places) = manifest.chunks().await
            {
                mapped.insert(name.clone());
                // Also out of a pack whose index is damaged.
                for at in places {
                    if !chunks.contains(&at.id) && store.read_chunk(&at).await.is_ok() {
                        chunks.insert(at.id);
                    }
                }
            }
        }
        Ok(Holdings { chunks, mapped })
    }

    /// Nothing that names need is less than before.
    async fn compare(&mut self, before: Holdings, what: &str) -> Outcome {
        let after = self.holdings().await?;
        if let Some(name) = before.mapped.difference(&after.mapped).next() {
            return Err(format!("{what} lost root or segments of {name}"));
        }
        for (name, named) in &self.names {
            for id in named.chunks.intersection(&before.chunks) {
                if !after.chunks.contains(id) {
                    return Err(format!("{what} lost the last copy of chunk {id} of {name}"));
                }
            }
        }
        Ok(())
    }

    /// One of the objects below some prefixes.
    async fn any_object(&mut self, prefixes: &[&str]) -> Option<Path> {
        let prefix = prefixes[self.dice.below(prefixes.len() as u64) as usize];
        let listed = self.backend.list(Some(&Path::from(prefix)));
        let mut keys: Vec<Path> =
            listed.filter_map(async |meta| Some(meta.ok()?.location)).collect().await;
        keys.sort_unstable();
        keys.get(self.dice.below(keys.len().max(1) as u64) as usize).cloned()
    }

    async fn bytes(&self, path: &Path) -> Outcome<Bytes> {
        self.backend.get(path).await.map_err(text)?.bytes().await.map_err(text)
    }

    async fn lose(&mut self) -> Outcome {
        let Some(path) = self.any_object(&LOSABLE).await else { return Ok(()) };
        let bytes = self.bytes(&path).await?;
        self.lost.entry(path.clone()).or_insert(bytes);
        self.backend.delete(&path).await.map_err(text)?;
        self.note(&format!("{path} is lost"));
        Ok(())
    }

    async fn damage(&mut self) -> Outcome {
        let Some(path) = self.any_object(&FRAGILE).await else { return Ok(()) };
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
        self.lost.entry(path.clone()).or_insert(good);
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
        // A list of garbage that is damaged for good is replaced by a collection.
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
        let held = self.holdings().await?.chunks;
        let store = self.store().await?;
        for (name, named) in &self.names {
            let found = store.refs().get(RefKind::Image, name).await;
            let found = found.map_err(text)?.ok_or_else(|| format!("{name} is gone"))?;
            if found.body.manifest != Some(named.manifest) {
                return Err(format!("{name} has another manifest"));
            }
            // What was stored while its chunks were damaged may never have been whole.
            if !named.chunks.is_subset(&held) {
                continue;
            }
            let read = async {
                let manifest = store.manifest(&named.manifest).await?;
                let whole = Span::whole(manifest.size());
                let mut bytes = vec![0; manifest.size() as usize];
                for piece in manifest.pieces(whole).await? {
                    if let store::Content::Chunk { at, skip } = piece.content {
                        let chunk = store.read_chunk(&at).await?;
                        let part = &chunk[skip as usize..][..piece.span.len() as usize];
                        bytes[piece.span.index_in(whole)].copy_from_slice(part);
                    }
                }
                Ok::<_, block::Error>(bytes)
            };
            match read.await {
                Ok(bytes) if bytes == **named.content => {}
                Ok(_) => return Err(format!("{name} has other bytes")),
                Err(e) => return Err(format!("{name}, of which packs hold all: {e}")),
            }
        }
        Ok(())
    }
}

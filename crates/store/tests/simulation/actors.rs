//! What goes on at a store, and what has to hold.

use crate::model::{self, Content, Model, There};
use crate::remote::{Lie, Nature, Remote};
use block::conformance::Sequence;
use block::{ErrorKind, Memory, Span};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use objects::testing::{Clocked, FaultRates, Unreliable};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::testing::{FixedClock, FixedEntropy, NOW};
use store::{
    Grain, ManifestId, RefBody, RefKind, RefRecord, Store, World, copy, gc, import, testing, verify,
};
use tokio::task::JoinSet;

const HOUR: u64 = 3600;
/// Times that actors start in, and for how long each.
const ROUNDS: usize = 3;
const ROUND: u64 = 8 * HOUR;
/// Hours between the last collections: pins of the dead count as such after a day; what somebody
/// who was taken for dead writes under the name of what was deleted is found after a month.
const PAUSES: [u64; 7] = [40, 40, 40, 32 * 24, 40, 40, 40];
/// How long what was removed can still be read.
const GRACE: u64 = 3 * HOUR;

/// One run.
#[derive(Clone)]
pub(crate) struct Life {
    nature: Nature,
    dice: Arc<Mutex<Sequence>>,
    model: Arc<Mutex<Model>>,
    lie: Lie,
    /// When the last collection began, in simulated seconds.
    collected: Arc<Mutex<u64>>,
    wrong: Arc<Mutex<Option<String>>>,
    /// Another store, from which images are copied; it has no faults.
    elsewhere: Arc<InMemory>,
}

fn world(seed: u64) -> World {
    World { clock: Arc::new(FixedClock::new(NOW)), entropy: Arc::new(FixedEntropy::new(seed)) }
}

fn body(manifest: ManifestId, size: u64) -> RefBody {
    RefBody { manifest: Some(manifest), size, created: NOW, labels: BTreeMap::new() }
}

impl Life {
    pub(crate) fn new(seed: u64, lie: Lie) -> Self {
        Self {
            nature: Nature::new(Clocked::new(NOW)),
            dice: Arc::new(Mutex::new(Sequence::new(seed))),
            model: Arc::default(),
            lie,
            collected: Arc::default(),
            wrong: Arc::default(),
            elsewhere: Arc::default(),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.dice.lock().below(bound)
    }

    fn number(&self) -> u64 {
        self.dice.lock().number()
    }

    fn fail(&self, what: String) {
        self.wrong.lock().get_or_insert(what);
    }

    /// The store without faults or delays.
    async fn faultless_store(&self) -> Store {
        Store::open(Arc::new(self.nature.backend.clone()), world(self.number())).await.unwrap()
    }

    /// Lives; gives the course that it took, or what went wrong.
    pub(crate) async fn run(self) -> Result<u64, String> {
        let made = Store::create(
            Arc::new(self.nature.backend.clone()),
            testing::settings(),
            world(self.number()),
        );
        made.await.map_err(|e| e.to_string())?;
        let settings = testing::settings();
        let made = Store::create(self.elsewhere.clone(), settings, world(self.number()));
        made.await.map_err(|e| e.to_string())?;
        for _ in 0..ROUNDS {
            let mut actors = JoinSet::new();
            for _ in 0..3 + self.below(5) {
                actors.spawn(self.clone().actor());
            }
            while let Some(ended) = actors.join_next().await {
                if let Err(e) = ended {
                    self.fail(format!("an actor panicked: {e}"));
                }
            }
            self.check().await;
            if let Some(wrong) = self.wrong.lock().take() {
                return Err(wrong);
            }
        }
        self.clean_up().await;
        match self.wrong.lock().take() {
            Some(wrong) => Err(wrong),
            None => Ok(self.nature.course()),
        }
    }

    /// Somebody who does one thing, at some time, until it is done or a crash.
    async fn actor(self) {
        tokio::time::sleep(Duration::from_secs(self.below(ROUND))).await;
        let role = self.below(100);
        let faulty = role < 85 && self.below(3) == 0;
        let mut inner: Arc<dyn ObjectStore> = Arc::new(self.nature.backend.clone());
        if faulty {
            inner = Arc::new(Unreliable::new(inner, self.number(), FaultRates::all(20)));
        }
        let mut remote = Remote::new(inner, &self.nature, self.number());
        if role < 85 {
            remote = remote.slow(self.below(4) == 0);
            if self.below(4) == 0 {
                remote = remote.crashing_after(self.below(60) as i64);
            }
        }
        let collects = (50..75).contains(&role);
        remote = match self.lie {
            Lie::NoPins if collects => remote.lied_to(self.lie, u64::MAX),
            Lie::OldNames if collects => {
                let horizon = std::mem::replace(&mut *self.collected.lock(), self.nature.now());
                remote.lied_to(self.lie, horizon)
            }
            Lie::NothingCondemned if role < 50 => remote.lied_to(self.lie, u64::MAX),
            _ => remote,
        };
        let backend = Arc::new(remote.clone());
        let act = async {
            let Ok(store) = Store::open(backend, world(self.number())).await else { return };
            match role {
                0..22 => self.import(&store).await,
                22..30 => self.copy(&store).await,
                30..50 => self.derive(&store).await,
                50..75 => self.collect(&store).await,
                75..85 => self.remove(&store).await,
                85..95 => self.read(&store).await,
                _ => self.verify(&store).await,
            }
        };
        tokio::select! {
            biased;
            () = act => {}
            () = remote.crashed() => {}
        }
    }

    async fn import(&self, store: &Store) {
        let content: Content = Arc::new(model::image(&mut self.dice.lock()));
        let Ok(session) = store.session("import").await else { return };
        let image = Memory::from(content.to_vec());
        let published = async {
            let done = import::from_device(&session, &image, &()).await?;
            self.publish(&session, RefKind::Image, done.manifest, &content).await
        };
        let published = published.await;
        let _ = session.close(published).await;
    }

    /// Copies an image from the other store; one who failed tries again, as people do.
    async fn copy(&self, store: &Store) {
        let content: Content = Arc::new(model::image(&mut self.dice.lock()));
        let image = Memory::from(content.to_vec());
        let Ok(from) = Store::open(self.elsewhere.clone(), world(self.number())).await else {
            return self.fail("the other store does not open".into());
        };
        for _ in 0..2 {
            let name = self.model.lock().fresh(RefKind::Image);
            let record = match self.elsewhere(&from, &name, &image).await {
                Ok(record) => record,
                Err(e) => return self.fail(format!("the other store: {e}")),
            };
            let Ok(session) = store.session("copy").await else { continue };
            self.model.lock().set(RefKind::Image, &name, There::Unknown, &content);
            let copied = async {
                let id = record.body.manifest.ok_or_else(|| block::Error::invalid("no image"))?;
                let manifest = from.manifest(&id).await?;
                copy::version(&from, &record, &manifest, &image, &session, &()).await
            };
            let copied = copied.await;
            let done = copied.is_ok();
            let _ = session.close(copied.map(|_| ())).await;
            if done {
                return self.model.lock().published(RefKind::Image, &name);
            }
        }
    }

    /// An image in the other store.
    async fn elsewhere(
        &self,
        from: &Store,
        name: &str,
        image: &Memory,
    ) -> block::Result<RefRecord> {
        let session = from.session("import").await?;
        let made = async {
            let done = import::from_device(&session, image, &()).await?;
            session.publish(RefKind::Image, name, body(done.manifest, done.size)).await
        };
        let record = made.await?;
        session.close(Ok(())).await?;
        Ok(record)
    }

    async fn publish(
        &self,
        session: &store::Session,
        kind: RefKind,
        manifest: ManifestId,
        content: &Content,
    ) -> block::Result<()> {
        let name = self.model.lock().fresh(kind);
        self.model.lock().set(kind, &name, There::Unknown, content);
        match session.publish(kind, &name, body(manifest, content.len() as u64)).await {
            Ok(_) => {
                self.model.lock().published(kind, &name);
                Ok(())
            }
            // Taken back, or nobody knows.
            Err(e) => Err(e),
        }
    }

    async fn derive(&self, store: &Store) {
        let Some((kind, name, base)) = self.model.lock().any(&mut self.dice.lock()) else { return };
        let Ok(session) = store.session("commit").await else { return };
        let published = async {
            let Some(held) = session.hold(kind, &name).await? else { return Ok(()) };
            let Some(id) = held.body.manifest else { return Ok(()) };
            let manifest = store.manifest(&id).await?;
            let (bytes, changed) = model::change(&base, &mut self.dice.lock());
            let content: Content = Arc::new(bytes);
            let view = Memory::from(content.to_vec());
            let changed = [Span::between(changed.start as u64, changed.end as u64)];
            let (grain, kind) = match self.below(2) {
                0 => (Grain::Blocks, RefKind::Snapshot),
                _ => (Grain::Content, RefKind::Image),
            };
            let size = content.len() as u64;
            let done =
                import::derive(&session, &manifest, size, &view, &changed, grain, &()).await?;
            self.publish(&session, kind, done.manifest, &content).await
        };
        let published = published.await;
        let _ = session.close(published).await;
    }

    async fn remove(&self, store: &Store) {
        let Some((kind, name, _)) = self.model.lock().any(&mut self.dice.lock()) else { return };
        let refs = store.refs();
        let Ok(Some(found)) = refs.get(kind, &name).await else { return };
        self.model.lock().removing(kind, &name);
        match refs.remove(kind, &name, found.sequence).await {
            Ok(()) => self.model.lock().mark(kind, &name, There::No),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.model.lock().mark(kind, &name, There::No);
            }
            Err(_) => {}
        }
    }

    async fn collect(&self, store: &Store) {
        let options = gc::GcOptions {
            grace: Duration::from_secs(GRACE),
            rewrite_below: 0.7,
            ..gc::GcOptions::default()
        };
        let _ = gc::collect(store, &options, &()).await;
    }

    /// Reads an image, slowly, also when its name is removed meanwhile.
    async fn read(&self, store: &Store) {
        let Some((kind, name, content)) = self.model.lock().any(&mut self.dice.lock()) else {
            return;
        };
        let Ok(Some(found)) = store.refs().get(kind, &name).await else { return };
        let begun = self.nature.now();
        let read = async {
            let Some(id) = found.body.manifest else { return Ok(Vec::new()) };
            read_all(store, &id, Duration::from_secs(self.below(1200))).await
        };
        let outcome: block::Result<Vec<u8>> = read.await;
        if self.nature.now() - begun >= GRACE {
            return;
        }
        match outcome {
            Ok(bytes) if bytes == **content => {}
            Ok(_) => self.fail(format!("a reader of {kind} {name} got wrong bytes")),
            Err(e) => self.fail(format!("a reader of {kind} {name}, within the grace period: {e}")),
        }
    }

    async fn verify(&self, store: &Store) {
        match verify::store(store, &verify::VerifyOptions::default(), &()).await {
            Ok(report) if report.is_clean() => {}
            Ok(report) => self.fail(format!("verify, beside the others: {:?}", report.faults)),
            Err(e) => self.fail(format!("verify: {e}")),
        }
    }

    /// Every name means what it ought to, and all of it can be read.
    async fn check(&self) {
        let store = self.faultless_store().await;
        let names = self.model.lock().names.clone();
        for ((kind, name), (there, content)) in names {
            let found = match store.refs().get(kind, &name).await {
                Ok(found) => found,
                Err(e) => return self.fail(format!("{kind} {name}: {e}")),
            };
            match (&found, there) {
                (None, There::Yes) => return self.fail(format!("{kind} {name} is gone")),
                (Some(_), There::No) => return self.fail(format!("{kind} {name} came back")),
                _ => {}
            }
            let known = if found.is_some() { There::Yes } else { There::No };
            self.model.lock().mark(kind, &name, known);
            let Some(id) = found.and_then(|found| found.body.manifest) else { continue };
            match read_all(&store, &id, Duration::ZERO).await {
                Ok(bytes) if bytes == *content => {}
                Ok(_) => return self.fail(format!("{kind} {name} has other bytes")),
                Err(e) => return self.fail(format!("{kind} {name}: {e}")),
            }
        }
        match verify::store(&store, &verify::VerifyOptions::default(), &()).await {
            Ok(report) if report.is_clean() => {}
            Ok(report) => self.fail(format!("verify: {:?}", report.faults)),
            Err(e) => self.fail(format!("verify: {e}")),
        }
    }

    /// When all is quiet, collections free all garbage, pins of the dead included.
    async fn clean_up(&self) {
        let store = self.faultless_store().await;
        let options =
            gc::GcOptions { grace: Duration::from_secs(GRACE), ..gc::GcOptions::default() };
        let mut last = gc::GcReport::default();
        for pause in PAUSES {
            tokio::time::sleep(Duration::from_secs(pause * HOUR)).await;
            self.nature.tick();
            last = match gc::collect(&store, &options, &()).await {
                Ok(report) => report,
                Err(e) => return self.fail(format!("the last collections: {e}")),
            };
        }
        self.check().await;
        let mut left: BTreeMap<String, u64> = BTreeMap::new();
        let mut listing = self.nature.backend.list(None);
        while let Some(meta) = futures::StreamExt::next(&mut listing).await {
            let key = meta.unwrap().location.to_string();
            *left.entry(key.split('/').next().unwrap().to_owned()).or_default() += 1;
        }
        let count = |prefix: &str| left.get(prefix).copied().unwrap_or_default();
        let live = last.live;
        let found = [count("packs"), count("segments"), count("manifests"), count("pins")];
        let expected = [live.packs, live.segments, live.manifests, 0];
        if found != expected || !last.doubts.is_empty() {
            self.fail(format!(
                "garbage stays: packs, segments, manifests, pins {found:?}, not {expected:?}; {:?}",
                last.doubts
            ));
        }
    }
}

/// All bytes of a manifest, with a pause before each chunk.
async fn read_all(store: &Store, id: &ManifestId, pause: Duration) -> block::Result<Vec<u8>> {
    let manifest = store.manifest(id).await?;
    let whole = Span::whole(manifest.size());
    let mut bytes = vec![0; manifest.size() as usize];
    for piece in manifest.pieces(whole).await? {
        if let store::Content::Chunk { at, skip } = piece.content {
            tokio::time::sleep(pause).await;
            let chunk = store.read_chunk(&at).await?;
            let target = &mut bytes[piece.span.index_in(whole)];
            target.copy_from_slice(&chunk[skip as usize..][..piece.span.len() as usize]);
        }
    }
    Ok(bytes)
}

//! Boots: what an image's boot list names is loaded ahead of the guest; what the guests of its first
//! boots read is recorded, and becomes the list. A list that is whole gets a boot copy.

use block::Result;
use disk::{BootTrace, Image};
use engine::Engine;
use engine::boot_list;
use engine::config;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use store::{BootListId, ManifestId, RefKind, RefRecord, Store};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A boot is over when nothing new was read for this long.
const QUIET: Duration = Duration::from_secs(8);
/// … or when it took this long.
const LONGEST: Duration = Duration::from_secs(300);
/// How often it is looked at.
const TICK: Duration = Duration::from_millis(500);
/// What reads more chunks than this (about 512 MiB) is not a boot but a copy: nothing is kept of it.
const MOST: usize = 8192;
/// What reads fewer is not worth a list.
const FEWEST: usize = 16;
/// An image whose list was loaded is left alone for this long.
const REST: Duration = Duration::from_secs(30);
/// Where a list was left without a boot copy, every server that sees a boot notices. Each waits for a
/// time by chance, up to this for each chunk of the list, as a longer one takes longer to copy: so most
/// of them find it made.
const CHANCE: Duration = Duration::from_millis(75);
/// … and up to this.
const LONGEST_CHANCE: Duration = Duration::from_secs(300);

/// What is done for boots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BootHelps {
    /// They are recorded, and boot lists loaded ahead.
    pub(crate) lists: bool,
    /// Whole lists get boot copies, and are read from these.
    pub(crate) copies: bool,
}

impl BootHelps {
    pub(crate) fn of(config: &config::Serve) -> Self {
        Self { lists: config.boot_lists, copies: config.boot_copies }
    }
}

/// The boots of one server.
pub(crate) struct Boots {
    engine: Arc<Engine>,
    helps: BootHelps,
    /// Images that are being looked after.
    busy: Arc<Mutex<HashSet<ManifestId>>>,
    copying: Arc<Copying>,
    tasks: Mutex<JoinSet<()>>,
}

/// The boot copies that a server makes: one at a time, and each once. One that was not made, because
/// the store was slow, or broken, or cannot be written to, waits for the server's next start.
#[derive(Default)]
struct Copying {
    /// The versions that were dealt with, each with its list.
    tried: Mutex<HashSet<(String, BootListId)>>,
    turn: tokio::sync::Mutex<()>,
}

impl Copying {
    /// Makes the copies that these versions' whole lists have not: at once when this server recorded
    /// their last boot, else after a while, as others may be about to make them.
    async fn complete(&self, store: &Store, versions: &[String], at_once: bool) {
        for version in versions {
            match self.complete_one(store, version, at_once).await {
                Ok(true) => tracing::info!(image = version, "boot copy made"),
                Ok(false) => {}
                Err(error) => {
                    let error = error.message();
                    tracing::warn!(image = version, error, "a boot list gets no boot copy");
                }
            }
        }
    }

    async fn complete_one(&self, store: &Store, version: &str, at_once: bool) -> Result<bool> {
        let Some(record) = store.refs().get(RefKind::Image, version).await? else {
            return Ok(false);
        };
        let Some(list) = boot_list::uncopied(&record) else { return Ok(false) };
        if !self.tried.lock().insert((version.to_owned(), list)) {
            return Ok(false);
        }
        if !at_once {
            let chunks = boot_list::of(store, &record).await?.unwrap_or_default().len();
            tokio::time::sleep(by_chance(store, chunks)?).await;
        }
        let _turn = self.turn.lock().await;
        boot_list::copy(store, version).await
    }
}

/// How long a server waits before it makes a copy of so many chunks that another one left out.
fn by_chance(store: &Store, chunks: usize) -> Result<Duration> {
    let mut dice = [0; 4];
    store.world().entropy.fill(&mut dice)?;
    let most = CHANCE.saturating_mul(u32::try_from(chunks).unwrap_or(u32::MAX)).min(LONGEST_CHANCE);
    Ok(most.mul_f64(f64::from(u32::from_le_bytes(dice)) / f64::from(u32::MAX)))
}

/// Takes an image out of those that are looked after.
struct Busy(Arc<Mutex<HashSet<ManifestId>>>, ManifestId);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// An image whose reads are recorded, or would be.
struct Recording(Arc<Image>);

impl Drop for Recording {
    fn drop(&mut self) {
        self.0.stop_recording();
    }
}

impl Boots {
    /// Nothing boots yet.
    pub(crate) fn new(engine: Arc<Engine>, helps: BootHelps) -> Self {
        let (busy, copying, tasks) = (Arc::default(), Arc::default(), Mutex::default());
        Self { engine, helps, busy, copying, tasks }
    }

    /// A client begins to use an image, or a disk that shows it.
    pub(crate) fn begin(&self, image: Arc<Image>) {
        let id = image.manifest().id();
        if !self.helps.lists || !self.busy.lock().insert(id) {
            return;
        }
        let busy = Busy(Arc::clone(&self.busy), id);
        let engine = Arc::clone(&self.engine);
        let (copies, copying) = (self.helps.copies, Arc::clone(&self.copying));
        // From here on, so that the guest's very first reads are noted too.
        let touches = image.record(MOST);
        let recording = Recording(image);
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let attended = attend(&engine, recording, touches, copies).await;
            // A copy can take minutes, and the next boot is not to wait for it.
            drop(busy);
            match attended {
                Ok(Attended { whole, all }) if copies => {
                    copying.complete(&engine.store, &whole, true).await;
                    copying.complete(&engine.store, &all, false).await;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(error = error.message(), "boots of an image are not helped");
                }
            }
        });
    }
}

/// The versions that show an image, when a boot of it is over.
#[derive(Default)]
struct Attended {
    /// Those whose lists it made whole.
    whole: Vec<String>,
    /// All of them.
    all: Vec<String>,
}

/// Helps a boot until it is over; with `copies` by means of boot copies.
async fn attend(
    engine: &Engine,
    recording: Recording,
    touches: Result<Option<Arc<BootTrace>>>,
    copies: bool,
) -> Result<Attended> {
    let image = Arc::clone(&recording.0);
    let id = image.manifest().id();
    let listing = engine.store.refs().list(RefKind::Image).await?;
    let mut versions: Vec<RefRecord> =
        listing.records.into_iter().filter(|r| r.body.manifest == Some(id)).collect();
    if versions.is_empty() {
        return Ok(Attended::default());
    }
    versions.sort_by_key(|record| std::cmp::Reverse(record.body.created));
    let names = |of: fn(&RefRecord) -> bool| -> Vec<String> {
        versions.iter().filter(|record| of(record)).map(|record| record.name.clone()).collect()
    };
    let (all, open) = (names(|_| true), names(boot_list::is_open));
    if open.is_empty() {
        drop(recording);
        bring(engine, &image, &versions, copies).await?;
        return Ok(Attended { whole: Vec::new(), all });
    }
    // Side by side: the boot goes on while its list is loaded.
    let record = async {
        let Some(touches) = touches? else { return Ok(Vec::new()) };
        let was_one = watch(&touches).await;
        drop(recording);
        if was_one { keep(engine, &open, &touches).await } else { Ok(Vec::new()) }
    };
    let (brought, recorded) = tokio::join!(bring(engine, &image, &versions, copies), record);
    // What was recorded is good without it.
    if let Err(error) = brought {
        tracing::warn!(error = error.message(), "a boot list is not loaded");
    }
    Ok(Attended { whole: recorded?, all })
}

/// Loads the newest list of these versions of an image into the cache, and leaves the image alone for a
/// while then; nothing when there is no list.
async fn bring(engine: &Engine, image: &Image, versions: &[RefRecord], copies: bool) -> Result<()> {
    let budget = engine.cache.stats().capacity / 2;
    for record in versions {
        if record.body.boot_list().is_ok_and(|list| list.is_none()) {
            continue;
        }
        if copies && copied(engine, image, record, budget).await {
            tokio::time::sleep(REST).await;
            return Ok(());
        }
        // When many clients come at once, each read of a slow store waits behind all of theirs.
        let (list, _map) = tokio::join!(
            boot_list::of(&engine.store, record),
            store::bootlist::map(image.manifest())
        );
        // One that cannot be read is as good as none.
        match list {
            Ok(Some(list)) => {
                let began = Instant::now();
                let bytes = image.bring(&list, budget).await?;
                let seconds = began.elapsed().as_secs_f64();
                tracing::debug!(image = record.name, bytes, seconds, "boot list loaded");
                tokio::time::sleep(REST).await;
                return Ok(());
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(error = error.message(), "a boot list is not used"),
        }
    }
    Ok(())
}

/// Loads the boot copy of a version; whether that was all there is to load.
async fn copied(engine: &Engine, image: &Image, record: &RefRecord, budget: u64) -> bool {
    // A label that makes no sense is told of by a verification.
    let Ok(Some(id)) = record.body.boot_copy() else { return false };
    let began = Instant::now();
    let load = async {
        let copy = engine.store.manifest(&id).await?;
        image.bring_copy(&copy, budget).await
    };
    // The guests are about to need the beginning of the image's own map.
    let (brought, _map) = tokio::join!(load, store::bootlist::map(image.manifest()));
    match brought {
        Ok(brought) => {
            let (bytes, seconds) = (brought.bytes, began.elapsed().as_secs_f64());
            tracing::debug!(image = record.name, bytes, seconds, "boot copy loaded");
            brought.whole
        }
        Err(error) => {
            tracing::warn!(error = error.message(), "a boot copy is not used");
            false
        }
    }
}

/// Adds a boot to the lists of image versions, and gives those whose lists are whole now.
async fn keep(engine: &Engine, versions: &[String], touches: &BootTrace) -> Result<Vec<String>> {
    let mut whole = Vec::new();
    let (chunks, bytes) = (touches.chunks(), touches.bytes());
    for image in versions {
        if let Some(added) = boot_list::add(&engine.store, image, &chunks).await? {
            let (read, new, boots) = (chunks.len(), added.new, added.boots);
            tracing::info!(image, chunks = read, bytes, new, boots, "boot recorded");
            if added.is_last() {
                whole.push(image.clone());
            }
        }
    }
    Ok(whole)
}

/// Waits for the end of a boot; whether it was one.
async fn watch(touches: &BootTrace) -> bool {
    let (began, mut count, mut last) = (Instant::now(), 0, Instant::now());
    while last.elapsed() < QUIET && began.elapsed() < LONGEST {
        tokio::time::sleep(TICK).await;
        if touches.is_over() {
            return false;
        }
        if touches.count() != count {
            (count, last) = (touches.count(), Instant::now());
        }
    }
    count >= FEWEST
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Span;
    use std::collections::BTreeMap;
    use store::{RefBody, bootlist, import, testing};

    /// Versions of an image, each with a whole list that a boot copy is worth and has none.
    async fn add_uncopied(store: &Store, versions: &[&str]) {
        let session = testing::session(store).await;
        let bytes = block::Memory::from(testing::noise(3, 16 << 20));
        let done = import::from_device(&session, &bytes, &()).await.unwrap();
        let manifest = store.manifest(&done.manifest).await.unwrap();
        let all = bootlist::of_ranges(&manifest, &[Span::whole(done.size)]).await.unwrap();
        let list: Vec<_> = all.into_iter().rev().step_by(8).collect();
        for version in versions {
            let body = RefBody {
                manifest: Some(done.manifest),
                size: done.size,
                created: 1,
                labels: BTreeMap::new(),
            };
            session.publish(RefKind::Image, version, body).await.unwrap();
            boot_list::set(store, version, &list, false).await.unwrap();
        }
        session.close(Ok(())).await.unwrap();
    }

    async fn has_copy(store: &Store, version: &str) -> bool {
        let record = store.refs().get(RefKind::Image, version).await.unwrap().unwrap();
        record.body.boot_copy().unwrap().is_some()
    }

    /// A store that counts what is written, with versions of an image as in [`add_uncopied`].
    async fn lab(versions: &[&str]) -> (tempfile::TempDir, Arc<objects::testing::Failing>, Store) {
        let dir = tempfile::tempdir().unwrap();
        let backend = objects::create_local(dir.path()).unwrap();
        let failing = Arc::new(objects::testing::Failing::new(backend, u64::MAX));
        let (settings, world) = (testing::settings(), testing::world(1));
        let store = Store::create(failing.clone(), settings, world).await.unwrap();
        add_uncopied(&store, versions).await;
        (dir, failing, store)
    }

    #[tokio::test]
    async fn a_list_that_got_no_copy_gets_one_at_the_next_boot() {
        let versions = ["debian:1", "debian:2"];
        let mut writes = Vec::new();
        for together in [false, true] {
            let (_dir, failing, store) = lab(&versions).await;
            let (copying, names) = (Copying::default(), versions.map(str::to_owned));
            let before = failing.puts();
            if together {
                // Two boots at the same time, and one of a version that was removed since.
                let others = ["debian:3".to_owned(), "debian:1".to_owned()];
                let boots = [&names, &others].map(|names| copying.complete(&store, names, true));
                let [one, other] = boots;
                tokio::join!(one, other);
            } else {
                copying.complete(&store, &names, true).await;
            }
            for version in versions {
                assert!(has_copy(&store, version).await, "{version}");
            }
            writes.push(failing.puts() - before);
        }
        assert_eq!(writes[0], writes[1], "each once");
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_servers_one_makes_a_copy_that_was_left_out() {
        let names = ["debian:1".to_owned()];
        let (_dir, failing, store) = lab(&["debian:1"]).await;
        let before = failing.puts();
        Copying::default().complete(&store, &names, true).await;
        let writes = failing.puts() - before;
        let record = store.refs().get(RefKind::Image, "debian:1").await.unwrap().unwrap();
        let chunks = boot_list::of(&store, &record).await.unwrap().unwrap().len();

        let (_dir, failing, _store) = lab(&["debian:1"]).await;
        let mut servers = JoinSet::new();
        let before = failing.puts();
        for seed in 2..6 {
            let store = Store::open(failing.clone(), testing::world(seed)).await.unwrap();
            let names = names.clone();
            servers.spawn(async move {
                let began = Instant::now();
                Copying::default().complete(&store, &names, false).await;
                assert!(has_copy(&store, "debian:1").await);
                began.elapsed()
            });
        }
        while let Some(waited) = servers.join_next().await {
            let (waited, most) = (waited.unwrap(), CHANCE * chunks as u32);
            assert!(!waited.is_zero() && waited <= most, "{waited:?} of {most:?}");
        }
        assert_eq!(failing.puts() - before, writes, "one of them");
    }

    #[tokio::test]
    async fn a_wait_by_chance_is_longer_for_a_longer_list_and_has_an_end() {
        let (_dir, _, store) = lab(&[]).await;
        for (chunks, most) in [
            (0, Duration::ZERO),
            (16, Duration::from_millis(1200)),
            (8192, LONGEST_CHANCE),
            (usize::MAX, LONGEST_CHANCE),
        ] {
            let waits: Vec<_> = (0..64).map(|_| by_chance(&store, chunks).unwrap()).collect();
            let (least, longest) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
            assert!(*longest <= most && *longest >= most / 2, "{longest:?} of {most:?}");
            assert!(*least <= most / 2, "{least:?} of {most:?}");
        }
    }

    #[tokio::test]
    async fn a_copy_that_cannot_be_made_is_not_tried_again_before_the_next_start() {
        let (_dir, failing, store) = lab(&["debian:1"]).await;
        let (copying, names) = (Copying::default(), ["debian:1".to_owned()]);
        failing.allow(1);
        copying.complete(&store, &names, true).await;
        assert!(!has_copy(&store, "debian:1").await);
        failing.allow(1000);
        let before = failing.puts();
        for _ in 0..3 {
            copying.complete(&store, &names, true).await;
        }
        assert_eq!(failing.puts(), before, "the store is left alone");
        assert!(!has_copy(&store, "debian:1").await);
        Copying::default().complete(&store, &names, true).await;
        assert!(has_copy(&store, "debian:1").await, "another server starts anew");
        // Another list of the version is tried again.
        let record = store.refs().get(RefKind::Image, "debian:1").await.unwrap().unwrap();
        let list = boot_list::of(&store, &record).await.unwrap().unwrap();
        boot_list::set(&store, "debian:1", &list[1..], false).await.unwrap();
        copying.complete(&store, &names, true).await;
        assert!(has_copy(&store, "debian:1").await);
    }

    /// Reads of an image of noise, at these places, each followed by a pause; at most so many
    /// chunks are recorded.
    async fn recorded(reads: &[(u64, u64)], pause: Duration, most: usize) -> (bool, usize) {
        use block::{Device, Memory, Span};
        let dir = tempfile::tempdir().unwrap();
        let backend = objects::create_local(dir.path()).unwrap();
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let session = testing::session(&store).await;
        let bytes = Memory::from(testing::noise(3, 4 << 20));
        let done = import::from_device(&session, &bytes, &()).await.unwrap();
        let manifest = store.manifest(&done.manifest).await.unwrap();
        let config = cache::Config { capacity: 8 << 20, policy: cache::PolicyKind::Lru, seed: 1 };
        let image = Image::new(store, manifest, Arc::new(cache::Cache::new(config)));
        let touches = image.record(most).unwrap().unwrap();
        assert!(image.record(most).unwrap().is_none(), "one at a time");
        let guest = async {
            for (offset, len) in reads {
                let mut buffer = vec![0; *len as usize];
                image.read(Span::between(*offset, offset + len), &mut buffer).await.unwrap();
                tokio::time::sleep(pause).await;
            }
        };
        let (whole, ()) = tokio::join!(watch(&touches), guest);
        (whole, touches.count())
    }

    #[tokio::test(start_paused = true)]
    async fn a_boot_ends_when_nothing_new_is_read() {
        let reads: Vec<_> = (0..20).map(|i| (i * 200_000 / 4096 * 4096, 8192)).collect();
        let (whole, count) = recorded(&reads, Duration::from_secs(2), 64).await;
        assert!(whole && count >= FEWEST, "{count}");
        let (whole, _) = recorded(&reads[..3], Duration::from_secs(2), 64).await;
        assert!(!whole, "too little for a list");
    }

    #[tokio::test(start_paused = true)]
    async fn what_reads_everything_is_not_a_boot() {
        let reads: Vec<_> = (0..4).map(|i| (i << 20, 1 << 20)).collect();
        let (whole, _) = recorded(&reads, Duration::from_secs(1), 16).await;
        assert!(!whole);
    }
}

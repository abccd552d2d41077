//! Boots: what an image's boot list names is loaded ahead of the guest; what the guests of its first
//! boots read is recorded, and becomes the list. A list that is whole gets a boot copy.
//!
//! The formats of lists and copies are the store's (`store::boot_list`, `store::boot_copy`).
//!
//! | module | concept |
//! |---|---|
//! | [`list`] | the list of an image version: read, looked at, and changed |
//! | `copy` | boot copies of whole lists, each made once |
//! | [`given`] | lists of somebody's own: given, and not recorded |
//! | `recording` | what a boot reads, and when it is over |
//! | `loading` | what a list names comes into the cache ahead of the guest |
//! | [`storms`] | boots watched: how far each is, and what it waits for |

mod copy;
pub mod given;
pub mod list;
mod loading;
mod recording;
pub mod storms;

use self::storms::views::{BootsView, StormView};
use self::storms::{BegunBoot, BootingGuest, SharedList, Storms, WatchedBoot};
use crate::Engine;
use crate::{config, world};
use block::{Error, Result};
use copy::Copying;
use disk::{BootProgress, BootTrace, Image, ListedChunks};
use loading::{Loading, bring};
use parking_lot::Mutex;
use recording::{MOST, Recording, keep, watch};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use store::{ManifestId, RefKind, RefRecord};
use tokio::task::JoinSet;

/// What is done for boots.
#[derive(Debug, Clone, Copy)]
pub struct BootHelps {
    /// They are recorded, and boot lists loaded ahead.
    pub lists: bool,
    /// Whole lists get boot copies, and are read from these.
    pub copies: bool,
}

impl BootHelps {
    /// What a configuration has done for boots.
    pub fn of(config: &config::Serve) -> Self {
        Self { lists: config.boot_lists, copies: config.boot_copies }
    }
}

/// The boots of one server.
pub struct Boots {
    engine: Arc<Engine>,
    helps: BootHelps,
    /// Images that are being looked after.
    busy: Arc<Mutex<HashSet<ManifestId>>>,
    /// What is loaded of images that are about to be used.
    expected: Mutex<HashMap<ManifestId, Loading>>,
    copying: Arc<Copying>,
    storms: Arc<Storms>,
    tasks: Mutex<JoinSet<()>>,
}

/// Takes an image out of those that are looked after.
struct Busy(Arc<Mutex<HashSet<ManifestId>>>, ManifestId);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Boots {
    /// Nothing boots yet.
    pub fn new(engine: Arc<Engine>, helps: BootHelps) -> Self {
        let (busy, copying, tasks) = (Arc::default(), Arc::default(), Mutex::default());
        let storms = Arc::new(Storms::new(world::system().clock));
        Self { engine, helps, busy, expected: Mutex::default(), copying, storms, tasks }
    }

    /// A client is about to use an image, or a disk that shows it: its list is loaded now, ahead of the
    /// first read.
    pub fn expect(&self, image: Arc<Image>) {
        let id = image.manifest().id();
        if !self.helps.lists || self.busy.lock().contains(&id) {
            return;
        }
        let mut expected = self.expected.lock();
        expected.retain(|_, loading| loading.goes_on());
        expected.entry(id).or_insert_with(|| {
            let (engine, copies) = (Arc::clone(&self.engine), self.helps.copies);
            Loading::start(async move {
                let versions = versions(&engine, id).await?;
                bring(&engine, &image, &versions, copies).await
            })
        });
    }

    /// A client begins to use a disk that shows an image. It is watched until what is returned is dropped, at the
    /// most; not when too many are.
    pub fn begin(&self, guest: BootingGuest, image: Arc<Image>) -> Option<WatchedBoot> {
        self.help(Arc::clone(&image));
        let id = image.manifest().id();
        let BegunBoot { boot, begins, list, progress } = self.storms.begin(guest, image);
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        if let Some(storm) = begins {
            let engine = Arc::clone(&self.engine);
            let stored_bytes = move || engine.store.counters().stored_bytes_read;
            tasks.spawn(Arc::clone(&self.storms).follow(storm, stored_bytes));
        }
        if boot.is_some() && self.helps.lists {
            tasks.spawn(compare_with_list(Arc::clone(&self.engine), id, list, progress));
        }
        boot
    }

    /// Who boots now, at most so many; and which storms are kept.
    pub fn now(&self, most: usize) -> BootsView {
        self.storms.now(most)
    }

    /// The recording of a storm.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when it is not kept.
    pub fn storm(&self, number: u64) -> Result<StormView> {
        self.storms.storm(number).ok_or_else(|| {
            Error::not_found(format!("boot storm {number} is not kept: only the last few are"))
        })
    }

    /// What is done for a boot: its list is loaded, and what it reads recorded.
    fn help(&self, image: Arc<Image>) {
        let id = image.manifest().id();
        if !self.helps.lists || !self.busy.lock().insert(id) {
            return;
        }
        let expected = self.expected.lock().remove(&id).filter(Loading::goes_on);
        let busy = Busy(Arc::clone(&self.busy), id);
        let engine = Arc::clone(&self.engine);
        let (copies, copying) = (self.helps.copies, Arc::clone(&self.copying));
        // From here on, so that the guest's very first reads are noted too.
        let touches = image.record(MOST);
        let recording = Recording(image);
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let attended = attend(&engine, recording, touches, copies, expected).await;
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

/// Has a boot compared with the list of its image, which all boots of a storm share.
async fn compare_with_list(
    engine: Arc<Engine>,
    id: ManifestId,
    list: Arc<SharedList>,
    progress: Arc<BootProgress>,
) {
    let look_up = async {
        for record in versions(&engine, id).await? {
            if let Some(chunks) = list::of(&engine.store, &record).await? {
                return Ok(Some(Arc::new(ListedChunks::new(&chunks))));
            }
        }
        Ok::<_, Error>(None)
    };
    match list.get(look_up).await {
        Ok(Some(chunks)) => progress.follow(chunks),
        Ok(None) => {}
        Err(error) => {
            tracing::debug!(error = error.message(), "a boot is not compared with its list");
        }
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

/// The versions that show an image, the newest first.
async fn versions(engine: &Engine, id: ManifestId) -> Result<Vec<RefRecord>> {
    let listing = engine.store.refs().list(RefKind::Image).await?;
    let mut versions: Vec<RefRecord> =
        listing.records.into_iter().filter(|r| r.body.manifest == Some(id)).collect();
    versions.sort_by_key(|record| std::cmp::Reverse(record.body.created));
    Ok(versions)
}

/// Helps a boot until it is over; with `copies` by means of boot copies. What is `expected` is being loaded
/// already.
async fn attend(
    engine: &Engine,
    recording: Recording,
    touches: Result<Option<Arc<BootTrace>>>,
    copies: bool,
    expected: Option<Loading>,
) -> Result<Attended> {
    let image = Arc::clone(&recording.0);
    let versions = versions(engine, image.manifest().id()).await?;
    if versions.is_empty() {
        return Ok(Attended::default());
    }
    let names = |of: fn(&RefRecord) -> bool| -> Vec<String> {
        versions.iter().filter(|record| of(record)).map(|record| record.name.clone()).collect()
    };
    let (all, open) = (names(|_| true), names(list::is_open));
    let load = async {
        if let Some(loading) = expected
            && loading.end().await
        {
            return Ok(());
        }
        bring(engine, &image, &versions, copies).await
    };
    if open.is_empty() {
        drop(recording);
        load.await?;
        return Ok(Attended { whole: Vec::new(), all });
    }
    // Side by side: the boot goes on while its list is loaded.
    let record = async {
        let Some(touches) = touches? else { return Ok(Vec::new()) };
        let was_one = watch(&touches).await;
        drop(recording);
        if was_one { keep(engine, &open, &touches).await } else { Ok(Vec::new()) }
    };
    let (brought, recorded) = tokio::join!(load, record);
    // What was recorded is good without it.
    if let Err(error) = brought {
        tracing::warn!(error = error.message(), "a boot list is not loaded");
    }
    Ok(Attended { whole: recorded?, all })
}

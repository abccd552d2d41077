//! A home opened: its configuration, and its store, cache and disks ready to use together. The same for
//! a command and for a server.
//!
//! This crate may know where things lie in a home, what the configuration says, and how a store, a
//! cache and disks are put together. It must not know the command line, sockets, or who asks: it prints
//! nothing, and but for a passphrase it asks nobody. It is the one crate that asks the system for the
//! time and for random bytes ([`world`]), for those above and below it.
//!
//! | module | concept |
//! |---|---|
//! | [`home`] | the directory that one server lives in |
//! | [`config`] | `sojourn.toml` |
//! | `kept_slots` | the key slots of a distant encrypted store, kept here |
//! | [`key`] | the passphrase or key file of an encrypted store |
//! | [`world`] | the system's clock and randomness |
//! | [`devices`] | which disks are to be block devices of this machine |
//! | [`disk_io`] | how reads of files wait for the disk |
//! | [`disk_profile`] | what a disk is like, by the name or the file of its profile |
//! | `kept` | what is kept of the store here, for other machines |
//! | `nearby_maps` | maps of the store from sources nearby |
//! | [`open`] | the disks that are open now, and who holds them |
//! | [`places`] | from the place of a store to its backend |
//! | [`sources`] | whoever else may have a chunk: other stores, media, indexed trees and images |
//! | [`api`] | verbs on disks as they travel over the control socket |
//! | [`verbs`] | what a [`DiskRequest`](api::DiskRequest) does |
//! | [`boots`] | what a boot of an image version reads: recorded, listed, copied, loaded ahead |
//! | [`machine_disks`](mod@machine_disks) | which disks virtual machines have |
//! | [`memory_map`](mod@memory_map) | where the memory of a suspended machine is |
//! | [`parcels`] | snapshots and disks that virtual machines need |
//! | [`image_views`] | image versions as commands show them, and who stands on them |
//! | [`image_verbs`] | the verbs on image versions |
//! | [`retention`] | which of several versions or snapshots are old enough to go |
//! | [`lineage`] | what came of what: versions, snapshots and disks |

pub mod api;
pub mod boots;
pub mod config;
pub mod devices;
pub mod disk_io;
pub mod disk_profile;
pub mod home;
pub mod image_verbs;
pub mod image_views;
mod kept;
mod kept_slots;
pub mod key;
pub mod lineage;
pub mod machine_disks;
pub mod memory_map;
mod nearby_maps;
pub mod open;
pub mod parcels;
pub mod places;
pub mod retention;
pub mod sources;
pub mod verbs;
pub mod world;

pub use config::Config;
pub use home::Home;

use block::{ByteSize, Error, Result};
use cache::{Cache, PolicyKind};
use disk::{Disks, Image, LoadOptions, Loader, Room};
use kept_slots::KeptSlots;
use lookaside::{SourceReport, Sources};
use nearby_maps::{MapsOnDemand, NearbyMaps, StoreWay};
use objects::{
    DiskReadOrder, KeepSettings, Link, OpenStoreOptions, Opened, Patience, PieceOptions,
};
use open::OpenDisks;
use parking_lot::Mutex;
use sources::{ConfiguredSources, SourcePlace};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use store::{ManifestId, RefRecord, Secret, Store, images};
use tokio::task::JoinSet;

/// What a home holds, ready to use. The same for a command and for the server.
pub struct Engine {
    /// The store of the home.
    pub store: Store,
    /// The way to it.
    pub link: Link,
    /// The block cache that all disks and images share.
    pub cache: Arc<Cache>,
    home: Home,
    loader: Arc<Loader>,
    /// The places that are asked for chunks beside the store.
    asked: Mutex<HashSet<String>>,
    /// The disks of the home, open or not.
    pub disks: Arc<Disks>,
    /// Those that are open now.
    pub open: OpenDisks,
    images: Mutex<HashMap<ManifestId, Weak<Image>>>,
    _sweeping: JoinSet<()>,
}

/// What can fail of an [`Engine`], done. Another server may use the home meanwhile: nothing in it was
/// changed.
pub struct PreparedEngine {
    store: Store,
    link: Link,
    what_for: StoreUse,
    home: Home,
    cache: cache::Config,
    loads: LoadOptions,
    sources: Option<(Arc<Sources>, HashSet<String>)>,
    /// Its disks are used while the store is away, too.
    offline: bool,
}

impl Engine {
    /// Opens the store and the disks' directory of a home.
    ///
    /// # Errors
    /// Any error from [`open_store`] and from the entropy source.
    pub async fn open(home: &Home, config: &Config, what_for: StoreUse) -> Result<Arc<Self>> {
        Self::open_with(home, config, what_for, None).await
    }

    /// The same; ephemeral disks keep their private blocks in `room`, if there is one.
    ///
    /// # Errors
    /// Any error from [`open_store`] and from the entropy source.
    pub async fn open_with(
        home: &Home,
        config: &Config,
        what_for: StoreUse,
        room: Option<Arc<dyn Room>>,
    ) -> Result<Arc<Self>> {
        Ok(Self::prepare(home, config, what_for).await?.open(room))
    }

    /// Opens the store of a home, and nothing else yet.
    ///
    /// # Errors
    /// Any error from [`open_store`] and from the entropy source.
    pub async fn prepare(
        home: &Home,
        config: &Config,
        what_for: StoreUse,
    ) -> Result<PreparedEngine> {
        if what_for.lasts() {
            cache_size(config.cache.size.0).map_err(|e| e.context("cache.size"))?;
        }
        let secret = async || crate::key::given(home, config);
        let (store, link, configured) = open_with_sources(home, config, what_for, secret).await?;
        let sources = match what_for {
            StoreUse::Server | StoreUse::MachineServer | StoreUse::Keeper => {
                Some(configured.open(&store, home, config).await)
            }
            StoreUse::Command | StoreUse::Inspection => None,
        };
        // More may come while attached disks are used.
        let sources = sources.filter(|(found, _)| config.attach.is_some() || !found.is_empty());
        if let Some((sources, _)) = &sources {
            sources.judge_store_by(Arc::new(StoreWay(link.clone())));
            store.ask_for_maps(Arc::new(NearbyMaps::new(Arc::clone(sources), link.clone())));
        }
        let mut seed = [0; 8];
        crate::world::system().entropy.fill(&mut seed)?;
        let cache = cache::Config {
            capacity: config.cache.size.0,
            policy: config.cache.policy,
            seed: u64::from_le_bytes(seed),
        };
        let loads = LoadOptions {
            most: config.serve.loads as usize,
            share: config.cache.single_flight,
            ahead: config.serve.read_ahead.0,
            is_ordered_below: read_order(config, what_for) != DiskReadOrder::Arrival,
        };
        let (home, offline) = (home.clone(), config.attach.is_some());
        Ok(PreparedEngine { store, link, what_for, home, cache, loads, sources, offline })
    }

    /// The way from the store into the cache.
    pub fn loader(&self) -> &Arc<Loader> {
        &self.loader
    }

    /// Gives the cache another size, in bytes, and another policy, while it is used; what is `None`
    /// stays.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a policy that is for comparisons only, and for a size
    /// that holds no chunk or that the machine has not got.
    pub async fn change_cache(&self, size: Option<u64>, policy: Option<PolicyKind>) -> Result<()> {
        check_cache(size, policy.as_ref())?;
        let cache = Arc::clone(&self.cache);
        block::offload(move || {
            cache.change(size, policy);
            Ok(())
        })
        .await
    }

    /// From now on a disk or the store is called slow when somebody has to wait for longer than this;
    /// 0 is never.
    pub fn call_slow(&self, bound: Duration) {
        self.loader.call_slow(bound);
    }

    /// What took long of the reads of the store since this was asked last.
    pub fn slow_store(&self) -> Option<disk::Slow> {
        self.loader.slow()
    }

    /// Whether a guest waits for the store.
    pub fn has_demand(&self) -> bool {
        self.loader.has_demand()
    }

    /// What each source of chunks did, the store last; nothing when the store is the only one.
    pub fn sources(&self) -> Vec<SourceReport> {
        let sources = self.loader.sources().filter(|sources| !sources.is_empty());
        sources.map(|sources| sources.report()).unwrap_or_default()
    }

    /// Has a place asked for chunks, too, from now on. One that is asked already is looked at anew, as it may
    /// have been plugged in again, and does not rest any more. Several may be added side by side: one that hangs keeps
    /// no other waiting.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when nothing is there, or it is not indexed; any error from what is
    /// opened; [`Unavailable`](block::ErrorKind::Unavailable) when it does not answer in time, which is as long as a
    /// server that begins waits; [`Unsupported`](block::ErrorKind::Unsupported) where nobody but the store is asked.
    pub async fn add_source(&self, place: &str, home: &Home, config: &Config) -> Result<()> {
        let sources = self.loader.sources().ok_or_else(|| {
            Error::unsupported("sources are added to a process of attached disks")
        })?;
        let place = home.store_url(place);
        let found = sources::place_at(&place).await?;
        let is_new = self.asked.lock().insert(place.clone());
        // A store that two have asked for is opened once: each time it would heal once more.
        if matches!(found, SourcePlace::Store(_)) && !is_new {
            sources.wake(&place);
            return Ok(());
        }
        match sources::chunk_source_at(&self.store, &place, &found, home, config).await {
            Ok(source) => {
                sources.add(source);
                tracing::info!(source = place, "is asked for chunks from now on");
                Ok(())
            }
            Err(e) => {
                if is_new {
                    self.asked.lock().remove(&place);
                }
                Err(e)
            }
        }
    }

    /// The read-only device of an image version; one for all who use it.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
    pub async fn image(&self, record: &RefRecord) -> Result<Arc<Image>> {
        let id = images::manifest_of(record)?;
        if let Some(image) = self.images.lock().get(&id).and_then(Weak::upgrade) {
            return Ok(image);
        }
        let manifest = self.store.manifest(&id).await?;
        let image = Arc::new(Image::through(&self.loader, manifest));
        let mut images = self.images.lock();
        images.retain(|_, image| image.strong_count() > 0);
        if let Some(other) = images.get(&id).and_then(Weak::upgrade) {
            return Ok(other);
        }
        images.insert(id, Arc::downgrade(&image));
        Ok(image)
    }
}

impl PreparedEngine {
    /// Opens the disks' directory, too. Ephemeral disks keep their private blocks in `room`, if there is
    /// one.
    pub fn open(self, room: Option<Arc<dyn Room>>) -> Arc<Engine> {
        let Self { store, link, what_for, home, cache, loads, sources, offline } = self;
        let cache = Arc::new(Cache::new(cache));
        let (sources, asked) = sources.unzip();
        let asked = Mutex::new(asked.unwrap_or_default());
        let loader = Loader::with_sources(store.clone(), Arc::clone(&cache), loads, sources);
        let disks = Disks::through(home.disks(), Arc::clone(&loader));
        let disks = if offline { disks.opening_offline() } else { disks };
        let disks = Arc::new(match room {
            Some(room) => disks.with_room(room),
            None => disks,
        });
        let open = OpenDisks::new(Arc::clone(&disks));
        let images = Mutex::default();
        let _sweeping = sweeping(&disks, what_for);
        Arc::new(Engine { store, link, cache, home, loader, asked, disks, open, images, _sweeping })
    }
}

/// Has a server clear away what crashes left of disks. Nobody waits for it. Others may be at work in
/// the home, as the lock of the home is not needed to make a disk: the disks have a lock for that.
fn sweeping(disks: &Arc<Disks>, what_for: StoreUse) -> JoinSet<()> {
    let mut sweeping = JoinSet::new();
    if what_for.lasts() {
        let disks = Arc::clone(disks);
        sweeping.spawn(async move { disks.sweep().await });
    }
    sweeping
}

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreUse {
    /// A command that somebody waits for.
    Command,
    /// A command that reads everything from the store itself and not from what is kept of it.
    Inspection,
    /// A server, whose clients rather wait than fail.
    Server,
    /// A server that was started for machines of its home, which go on while the store is away. Whoever asked for one
    /// has just read the store's settings, if it answers.
    MachineServer,
    /// A server of the memory of a machine: its pages lie scattered, and what lies beside one is not read next.
    Keeper,
}

impl StoreUse {
    /// Whether it is for a process that stays, and would rather wait for the store than fail.
    fn lasts(self) -> bool {
        matches!(self, Self::Server | Self::MachineServer | Self::Keeper)
    }
}

/// Opens the backend of a home's store. Nothing is asked over the network yet.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a place that is none, and any error from a gateway's certificates.
pub fn backend(home: &Home, config: &Config, what_for: StoreUse) -> Result<Opened> {
    let options = options(home, config, what_for);
    let certificates = home.resolve(Path::new(&config.tls.dir));
    places::open(&home.store_url(&config.store), &certificates, &options)
}

/// How a home opens its store.
pub fn options(home: &Home, config: &Config, what_for: StoreUse) -> OpenStoreOptions {
    let patience = match what_for {
        StoreUse::Command | StoreUse::Inspection => Patience::COMMAND,
        StoreUse::Server | StoreUse::MachineServer | StoreUse::Keeper => {
            Patience::lasting(Duration::from_secs(config.serve.store_seconds))
        }
    };
    let pieces = PieceOptions {
        dir: home.resolve(Path::new(&config.pieces.dir)),
        limit: config.pieces.size.0,
    };
    let pieces = (what_for != StoreUse::Inspection).then_some(pieces);
    let is_distant = config.attach.is_some();
    let is_scattered = what_for == StoreUse::Keeper;
    // A command opens the store before it begins a keeper, and that its server.
    let settings = match what_for {
        StoreUse::Command => KeepSettings::ForNext,
        StoreUse::MachineServer | StoreUse::Keeper => KeepSettings::Always,
        StoreUse::Server | StoreUse::Inspection => KeepSettings::Never,
    };
    let order = read_order(config, what_for);
    OpenStoreOptions {
        patience,
        pieces,
        is_distant,
        is_scattered,
        settings,
        order,
        ..OpenStoreOptions::default()
    }
}

/// Whether so many bytes that are read from the store of a home are kept on this host.
pub fn keeps_what_it_reads(config: &Config, bytes: u64) -> bool {
    objects::is_remote(&config.store) && config.pieces.size.0 > bytes
}

/// In which order chunks are read from a store in a directory. A command reads alone, and from a network nothing is
/// ordered here.
fn read_order(config: &Config, what_for: StoreUse) -> DiskReadOrder {
    let serves = matches!(what_for, StoreUse::Server | StoreUse::MachineServer);
    if !serves || objects::is_remote(&config.store) {
        return DiskReadOrder::Arrival;
    }
    // The value was checked when the configuration was read: only a profile's file can be gone since.
    disk_profile::read_order(&config.serve.store_disk).unwrap_or_else(|error| {
        tracing::warn!(%error, "the store is read in order of arrival");
        DiskReadOrder::Arrival
    })
}

/// Opens the store of a home for a command.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) with the remedy when there is none,
/// [`Unsupported`](block::ErrorKind::Unsupported) when its format is newer.
pub async fn open_store(home: &Home, config: &Config) -> Result<Store> {
    Ok(open_store_for(home, config, StoreUse::Command).await?.0)
}

/// Opens the store of a home.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) with the remedy when there is none,
/// [`Unsupported`](block::ErrorKind::Unsupported) when its format is newer.
pub async fn open_store_for(
    home: &Home,
    config: &Config,
    what_for: StoreUse,
) -> Result<(Store, Link)> {
    open_store_with(home, config, what_for, async || crate::key::given(home, config)).await
}

/// Does what [`open_store_for`] does, and asks `secret` for what opens an encrypted store.
///
/// # Errors
/// Any error from [`open_store_for`] and from `secret`.
pub async fn open_store_with(
    home: &Home,
    config: &Config,
    what_for: StoreUse,
    secret: impl AsyncFnOnce() -> Result<Option<Secret>>,
) -> Result<(Store, Link)> {
    let (store, link, _) = open_with_sources(home, config, what_for, secret).await?;
    Ok((store, link))
}

/// Opens the store of a home; also gives what else the configuration names as sources.
async fn open_with_sources(
    home: &Home,
    config: &Config,
    what_for: StoreUse,
    secret: impl AsyncFnOnce() -> Result<Option<Secret>>,
) -> Result<(Store, Link, ConfiguredSources)> {
    let place = home.store_url(&config.store);
    let opened = backend(home, config, what_for)?;
    let for_machines = matches!(what_for, StoreUse::Keeper | StoreUse::MachineServer);
    let slots = KeptSlots::of(home, config.attach.is_some() || for_machines);
    let kept = slots.read();
    let world = crate::world::system();
    let (store, read) = Store::open_with_slots(opened.backend, world, secret, kept.as_deref())
        .await
        .map_err(|e| e.context(format!("store {place}")))?;
    if !store.settings().is_encrypted() {
        key::refuse_clear(config, kept.is_some())
            .map_err(|e| e.context(format!("store {place}")))?;
    }
    if let Some(read) = read {
        slots.keep(&read);
    }
    let configured = sources::add_configured(&store, home, config).await;
    let media = configured.media();
    if what_for == StoreUse::Command && !media.is_empty() {
        let (settings, link) = (store.settings().clone(), opened.link.clone());
        let cost = sources::store_cost(home, config).await;
        store.ask_for_maps(Arc::new(MapsOnDemand::new(settings, media, link, cost)));
    }
    Ok((store, opened.link, configured))
}

/// The least memory of a cache: a few chunks of the largest size.
const LEAST_CACHE: u64 = 1 << 20;

/// Refuses what the block cache cannot be: a size in bytes that is of no use on this machine, a policy that serves
/// nobody.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid).
pub fn check_cache(size: Option<u64>, policy: Option<&PolicyKind>) -> Result<()> {
    if let Some(policy) = policy.filter(|policy| !policy.serves()) {
        return Err(Error::invalid(format!(
            "cache policy {policy} is for comparisons only; use fmpq or another that \
             docs/simulate.md names"
        )));
    }
    size.map_or(Ok(()), cache_size)
}

/// Refuses a size of the cache that is of no use: one that is neither nothing nor room for chunks, or more
/// than the machine's memory.
fn cache_size(bytes: u64) -> Result<()> {
    let system = rustix::system::sysinfo();
    let memory = (system.totalram as u64).saturating_mul(system.mem_unit.into());
    let what = match bytes {
        0 => return Ok(()),
        _ if bytes < LEAST_CACHE => "holds no chunk".to_owned(),
        _ if bytes > memory => format!("is more than this machine's {}", ByteSize(memory)),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "a cache of {} {what}; give 0 to switch it off, or 1MiB up to what the machine has",
        ByteSize(bytes)
    )))
}

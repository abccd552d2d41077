//! A home's store, cache and disks, opened together, and the verbs on disks.
//!
//! | module | concept |
//! |---|---|
//! | [`open`] | the disks that are open now, and who holds them |
//! | [`verbs`] | what a [`DiskRequest`](crate::control::api::DiskRequest) does |
//! | [`boot_list`] | what a boot of an image version reads |
//! | [`images`] | image versions: finding and describing them |

pub(crate) mod boot_list;
pub(crate) mod images;
pub(crate) mod open;
pub(crate) mod verbs;

use crate::config::Config;
use crate::home::Home;
use block::{Error, Result};
use cache::Cache;
use disk::{Disks, Image};
use open::OpenDisks;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use store::backend::OpenOptions;
use store::{ManifestId, RefRecord, Store};

/// What a home holds, ready to use. The same for a command and for the server.
pub(crate) struct Engine {
    pub(crate) store: Store,
    pub(crate) cache: Arc<Cache>,
    pub(crate) disks: Arc<Disks>,
    pub(crate) open: OpenDisks,
    images: Mutex<HashMap<ManifestId, Weak<Image>>>,
}

impl Engine {
    /// Opens the store and the disks' directory of a home.
    ///
    /// # Errors
    /// Those of [`open_store`], and of the entropy source.
    pub(crate) async fn open(home: &Home, config: &Config) -> Result<Arc<Self>> {
        let store = open_store(home, config).await?;
        let mut seed = [0; 8];
        crate::world::system().entropy.fill(&mut seed)?;
        let cache = Arc::new(Cache::new(cache::Config {
            capacity: config.cache.size.0,
            policy: config.cache.policy,
            seed: u64::from_le_bytes(seed),
        }));
        let disks = Arc::new(Disks::new(home.disks(), store.clone(), Arc::clone(&cache)));
        let open = OpenDisks::new(Arc::clone(&disks));
        Ok(Arc::new(Self { store, cache, disks, open, images: Mutex::default() }))
    }

    /// The read-only device of an image version; one for all who use it.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn image(&self, record: &RefRecord) -> Result<Arc<Image>> {
        let id = images::manifest_of(record)?;
        if let Some(image) = self.images.lock().get(&id).and_then(Weak::upgrade) {
            return Ok(image);
        }
        let manifest = self.store.manifest(&id).await?;
        let image = Arc::new(Image::new(self.store.clone(), manifest, Arc::clone(&self.cache)));
        let mut images = self.images.lock();
        images.retain(|_, image| image.strong_count() > 0);
        if let Some(other) = images.get(&id).and_then(Weak::upgrade) {
            return Ok(other);
        }
        images.insert(id, Arc::downgrade(&image));
        Ok(image)
    }
}

/// Opens the store of a home.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) with the remedy when there is none,
/// [`Unsupported`](block::ErrorKind::Unsupported) when its format is newer.
pub(crate) async fn open_store(home: &Home, config: &Config) -> Result<Store> {
    let place = place(home, &config.store);
    let opened = store::backend::open(&place, &OpenOptions::default())?;
    let secret = async || crate::key::given(home, config);
    Store::open_with(opened.backend, crate::world::system(), secret)
        .await
        .map_err(|e| e.context(format!("store {place}")))
}

/// The store's place as an absolute path or a URL.
pub(crate) fn place(home: &Home, store: &str) -> String {
    if store.contains("://") {
        store.to_owned()
    } else {
        home.resolve(std::path::Path::new(store)).display().to_string()
    }
}

/// The error of an image version whose ref points nowhere.
fn no_manifest(name: &str) -> Error {
    Error::corrupt(format!(
        "the ref of image {name} names no manifest; remove the version and import it again"
    ))
}

//! Whoever else may have a chunk of the home's store: other stores, media, indexed trees and images.
//!
//! One parser reads the places that `serve --source`, `repair --from`, `media index` and the configuration
//! name. Stores heal what is missing or damaged for all who read the home's store; a server asks all
//! kinds beside it ([`lookaside::Sources`]).

use crate::config::Config;
use crate::home::Home;
use block::{Device, Error, ErrorKind, Result, offload};
use futures::future::join_all;
use lookaside::tree::{self, ContentIndex, FileStamp, IndexReport, Indexed};
use lookaside::{ChunkSource, CostEstimate, Replica, Sources, media};
use objects::OpenStoreOptions;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::{OtherStore, Progress, Settings, Store};

/// How long a server that begins waits for another store's list of what it has. One that takes longer only
/// heals.
const LEARN: Duration = Duration::from_secs(10);
/// How long a place may take to say what it is: a mount point of which the server is gone may never do.
const LOOK: Duration = Duration::from_secs(10);
/// How long it may take to be opened: a long index is read.
const OPEN: Duration = Duration::from_secs(60);
/// The longest index of a tree that is read.
const LONGEST_INDEX: u64 = 1 << 30;

/// What a place is, as far as its name and its directory tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourcePlace {
    /// A store: a URL, or a directory with a store in it.
    Store(String),
    /// An export of an NBD server.
    Export(String),
    /// A medium.
    Media(PathBuf),
    /// A directory tree.
    Tree(PathBuf),
    /// An image file or a block device.
    Image(PathBuf),
}

impl SourcePlace {
    /// Reads what the user wrote.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when it is a path and nothing is there.
    pub fn of(place: &str) -> Result<Self> {
        if place.contains("://") {
            return Ok(match place.starts_with("nbd") {
                true => Self::Export(place.to_owned()),
                false => Self::Store(place.to_owned()),
            });
        }
        let path = PathBuf::from(place);
        let metadata = std::fs::metadata(&path)
            .map_err(|e| Error::io(path.display(), e).context(format!("source {place}")))?;
        Ok(match metadata.is_dir() {
            true if path.join("store.json").exists() => Self::Store(place.to_owned()),
            true if media::is_at(&path) => Self::Media(path),
            true => Self::Tree(path),
            false => Self::Image(path),
        })
    }
}

/// Opens another store, a directory or a URL; an encrypted one with the key of the home's.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is no store, [`Denied`](ErrorKind::Denied) when its key is
/// not the home's, [`Unavailable`](ErrorKind::Unavailable) when it cannot be reached; each names the place.
pub async fn open(place: &str, home: &Home, config: &Config) -> Result<Store> {
    let opened = async {
        let certificates = home.resolve(Path::new(&config.tls.dir));
        let options = OpenStoreOptions::default();
        let backend = crate::places::open(place, &certificates, &options)?.backend;
        let secret = async || crate::key::given(home, config);
        Store::open_with(backend, crate::world::system(), secret).await
    };
    opened.await.map_err(|e: Error| e.context(format!("source {place}")))
}

/// Adds stores that the user named for this one command.
///
/// # Errors
/// Any error from [`open`]; [`Invalid`](block::ErrorKind::Invalid) when one has another hash key.
pub async fn add(store: &Store, places: &[String], home: &Home, config: &Config) -> Result<()> {
    for place in places {
        add_one(store, place, home, config).await?;
    }
    Ok(())
}

async fn add_one(store: &Store, place: &str, home: &Home, config: &Config) -> Result<OtherStore> {
    let source = open(place, home, config).await?;
    store.add_source(source).map_err(|e| e.context(format!("source {place}")))
}

/// The configured places. Stores among them heal from now on. One that is not there now, such as a disk
/// that is not plugged in, is left out.
#[derive(Debug, Default)]
pub struct ConfiguredSources {
    stores: Vec<(String, OtherStore)>,
    others: Vec<(String, SourcePlace)>,
}

/// A configured place, as it was found.
enum FoundSource {
    Store(Store),
    Other(SourcePlace),
}

/// Adds the configured stores, and says what else is configured. All are looked at side by side: one that hangs keeps
/// no other waiting.
pub async fn add_configured(store: &Store, home: &Home, config: &Config) -> ConfiguredSources {
    let places: Vec<_> = config.sources.iter().map(|place| home.store_url(place)).collect();
    let found = join_all(places.iter().map(|place| look(place, home, config))).await;
    let mut configured = ConfiguredSources::default();
    for (place, found) in places.into_iter().zip(found) {
        let outcome = match found {
            Ok(FoundSource::Store(source)) => {
                let added = store.add_source(source);
                added
                    .map_err(|e| e.context(format!("source {place}")))
                    .map(|other| configured.stores.push((place, other)))
            }
            Ok(FoundSource::Other(other)) => {
                configured.others.push((place, other));
                Ok(())
            }
            Err(e) => Err(e),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a source of the configuration is left out");
        }
    }
    configured
}

/// What a place is, if it says so soon.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when it is a path and nothing is there; [`Unavailable`](ErrorKind::Unavailable)
/// when it does not answer.
pub async fn place_at(place: &str) -> Result<SourcePlace> {
    let asked = place.to_owned();
    soon(place, LOOK, offload(move || SourcePlace::of(&asked))).await
}

/// Looks at a configured place, and opens it if it is a store.
async fn look(place: &str, home: &Home, config: &Config) -> Result<FoundSource> {
    match place_at(place).await? {
        SourcePlace::Store(_) => open(place, home, config).await.map(FoundSource::Store),
        other => Ok(FoundSource::Other(other)),
    }
}

impl ConfiguredSources {
    /// The media among them.
    pub(crate) fn media(&self) -> Vec<PathBuf> {
        let media = self.others.iter().filter_map(|(_, place)| match place {
            SourcePlace::Media(path) => Some(path.clone()),
            _ => None,
        });
        media.collect()
    }

    /// Opens all of them for a server, side by side; also gives the places that were opened.
    pub async fn open(
        self,
        store: &Store,
        home: &Home,
        config: &Config,
    ) -> (Arc<Sources>, HashSet<String>) {
        let Self { stores, others } = self;
        let opening = others.iter().map(|(place, other)| {
            let opened = chunk_source(other, store.settings(), home);
            soon(place, OPEN, opened)
        });
        let learning = stores.into_iter().map(|(place, other)| async {
            let source = replica(&place, other).await;
            (place, source)
        });
        let (learned, opened) = tokio::join!(join_all(learning), join_all(opening));
        let (mut list, mut places) = (Vec::new(), HashSet::new());
        for (place, source) in learned {
            list.push(source);
            places.insert(place);
        }
        for ((place, _), opened) in others.iter().zip(opened) {
            match opened {
                Ok(source) => {
                    list.push(source);
                    places.insert(place.clone());
                }
                Err(error) => {
                    tracing::warn!(source = place, %error, "a source of the configuration is left out");
                }
            }
        }
        let (name, cost) = store_cost(home, config).await;
        (Arc::new(Sources::new(store.settings().clone(), name, cost, list)), places)
    }
}

/// What a place answers, unless it takes too long.
async fn soon<T>(
    place: &str,
    limit: Duration,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
        Err(Error::unavailable(format!("{place} does not answer in {} s", limit.as_secs())))
    })
}

/// The store of a home, and what a request to it takes before any was measured. A share is as far away as a
/// server; so is one of attached disks that is not there now.
pub(crate) async fn store_cost(home: &Home, config: &Config) -> (String, CostEstimate) {
    let name = home.store_url(&config.store);
    let is_away = config.attach.is_some() && !name.contains("://") && {
        let settings = Path::new(&name).join("store.json");
        let looked = soon(&name, LOOK, offload(move || Ok(settings.exists()))).await;
        !looked.unwrap_or(false)
    };
    let cost = if is_away { CostEstimate::DISTANT } else { estimate(&name).await };
    (name, cost)
}

/// What a request to a store takes before any was measured. A directory that does not answer soon is taken for one
/// of a network.
async fn estimate(place: &str) -> CostEstimate {
    let path = PathBuf::from(place);
    let is_distant = place.contains("://")
        || soon(place, LOOK, offload(move || Ok(crate::places::is_over_network(&path))))
            .await
            .unwrap_or(true);
    if is_distant { CostEstimate::DISTANT } else { CostEstimate::DIRECTORY }
}

/// Another store as a source. One that does not say soon what it has only heals.
async fn replica(place: &str, other: OtherStore) -> Arc<dyn ChunkSource> {
    match tokio::time::timeout(LEARN, other.learn()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(source = place, %error, "it only heals"),
        Err(_) => tracing::warn!(source = place, "it is too slow to do more than heal"),
    }
    Arc::new(Replica::new(place, other, estimate(place).await))
}

/// Opens a place of any kind, for chunks of `store`. Another store also heals that one from now on.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when it is not indexed; [`Unavailable`](ErrorKind::Unavailable) when it does not
/// answer; any error from what is opened.
pub(crate) async fn chunk_source_at(
    store: &Store,
    place: &str,
    found: &SourcePlace,
    home: &Home,
    config: &Config,
) -> Result<Arc<dyn ChunkSource>> {
    match found {
        SourcePlace::Store(_) => {
            let added = soon(place, OPEN, add_one(store, place, home, config)).await?;
            Ok(replica(place, added).await)
        }
        other => soon(place, OPEN, chunk_source(other, store.settings(), home))
            .await
            .map_err(|e| e.context(format!("source {place}"))),
    }
}

/// Opens a medium, or a tree or image that was indexed.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when it is not indexed; [`Invalid`](ErrorKind::Invalid) for a store or
/// an export, which answer no chunk ids of a file; any error from what is opened.
pub async fn chunk_source(
    place: &SourcePlace,
    settings: &Settings,
    home: &Home,
) -> Result<Arc<dyn ChunkSource>> {
    match place {
        SourcePlace::Media(path) => {
            let (settings, path) = (settings.clone(), path.clone());
            let source = offload(move || media::MediaSource::open(&settings, &path)).await?;
            Ok(Arc::new(source))
        }
        SourcePlace::Tree(path) | SourcePlace::Image(path) => {
            let asked = path.clone();
            let path = offload(move || canonical(&asked)).await?;
            let index = read_index(settings, home, &path).await?.ok_or_else(|| {
                Error::not_found(format!(
                    "{} is neither a store nor a medium, and not indexed; index it with \
                     `sojourn media index {0}`",
                    path.display()
                ))
            })?;
            let name = path.display().to_string();
            Ok(match place {
                SourcePlace::Image(_) => {
                    let device = open_image(home, &path).await?;
                    Arc::new(Indexed::image(name, index, device)?)
                }
                _ => Arc::new(offload(move || Indexed::tree(name, index)).await?),
            })
        }
        SourcePlace::Export(place) => Err(Error::invalid(format!(
            "{place}: an export can heal a store (`sojourn repair --from`), and no more"
        ))),
        SourcePlace::Store(place) => {
            Err(Error::invalid(format!("{place} is a store, not a medium, a tree or an image")))
        }
    }
}

/// Opens an image file or a block device for reading.
///
/// # Errors
/// Any error from the format.
pub async fn open_image(home: &Home, path: &Path) -> Result<Arc<dyn Device>> {
    let scratch = home.scratch();
    std::fs::create_dir_all(&scratch).map_err(|e| Error::io(scratch.display(), e))?;
    let options = formats::OpenOptions { format: None, read_only: true, scratch };
    formats::open(path, options).await
}

/// Indexes a directory tree or an image file under the store's key, and keeps the index in the home. What
/// did not change since the last time is not read again.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) for a place that needs no index; any error from reading it and from writing
/// the index.
pub async fn index(
    place: &str,
    settings: &Settings,
    home: &Home,
    progress: &dyn Progress,
) -> Result<IndexReport> {
    let place = SourcePlace::of(place)?;
    let (SourcePlace::Tree(path) | SourcePlace::Image(path)) = &place else {
        return Err(Error::invalid(
            "only directory trees and image files are indexed; a store or a medium answers as it is",
        ));
    };
    let path = canonical(path)?;
    let before = read_index(settings, home, &path).await?;
    let (index, report) = match place {
        SourcePlace::Tree(_) => tree::index_tree(settings, &path, before, progress).await?,
        _ => {
            let metadata = std::fs::metadata(&path).map_err(|e| Error::io(path.display(), e))?;
            let device = open_image(home, &path).await?;
            let stamp = FileStamp::of(&metadata);
            tree::index_image(settings, &path, stamp, &*device, before, progress).await?
        }
    };
    write_index(settings, home, &path, index).await?;
    Ok(report)
}

fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|e| Error::io(path.display(), e))
}

/// Where the index of a tree or an image is kept.
fn index_path(settings: &Settings, home: &Home, path: &Path) -> PathBuf {
    let number = settings.file_number(&format!("tree {}", path.display()));
    home.indexes().join(format!("{number:08x}.idx"))
}

/// The index of a tree or an image, if there is a sound one.
async fn read_index(settings: &Settings, home: &Home, path: &Path) -> Result<Option<ContentIndex>> {
    let file = index_path(settings, home, path);
    let (settings, root) = (settings.clone(), path.to_owned());
    offload(move || {
        let len = match std::fs::metadata(&file) {
            Ok(metadata) => metadata.len(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(file.display(), e)),
        };
        let read = match len > LONGEST_INDEX {
            true => Err(Error::corrupt("it is longer than an index can be")),
            false => std::fs::read(&file)
                .map_err(|e| Error::io(file.display(), e))
                .and_then(|bytes| tree::decode(&settings, &bytes)),
        };
        match read {
            Ok(index) => Ok((index.root() == root).then_some(index)),
            // It is made anew.
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Invalid) => {
                tracing::warn!(index = %file.display(), error = %e, "an index is of no use");
                Ok(None)
            }
            Err(e) => Err(e),
        }
    })
    .await
}

async fn write_index(
    settings: &Settings,
    home: &Home,
    path: &Path,
    index: ContentIndex,
) -> Result<()> {
    let (file, directory) = (index_path(settings, home, path), home.indexes());
    let settings = settings.clone();
    offload(move || {
        let bytes = index.encode(&settings)?;
        std::fs::create_dir_all(&directory).map_err(|e| Error::io(directory.display(), e))?;
        // What only its owner may read may be indexed: ids say what is where.
        let fresh = file.with_extension("new");
        let write = || {
            use std::io::Write;
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = std::fs::OpenOptions::new();
            let mut out =
                options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            out.write_all(&bytes)?;
            out.sync_data()?;
            std::fs::rename(&fresh, &file)
        };
        write().map_err(|e| Error::io(fresh.display(), e))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_attached_share_that_is_not_there_is_far_away_and_a_directory_of_this_machine_is_not()
     {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(&dir.path().join("home"))).unwrap();
        let share = dir.path().join("share");
        let store = share.display().to_string();
        let plain = Config { store, ..Config::default() };
        let attached = Config { attach: Some(Default::default()), ..plain.clone() };
        let cost = async |config: &Config| store_cost(&home, config).await.1;
        assert_eq!(cost(&plain).await, CostEstimate::DIRECTORY);
        assert_eq!(cost(&attached).await, CostEstimate::DISTANT);
        std::fs::create_dir(&share).unwrap();
        assert_eq!(cost(&attached).await, CostEstimate::DISTANT, "an empty mount point");
        std::fs::write(share.join("store.json"), "").unwrap();
        assert_eq!(cost(&attached).await, CostEstimate::DIRECTORY);
        let bucket = Config { store: "s3://b/p".into(), ..plain };
        assert_eq!(cost(&bucket).await, CostEstimate::DISTANT);
    }

    #[tokio::test]
    async fn a_place_that_hangs_keeps_no_other_from_being_added() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let home = Home::with_key_file(Some(&at("home")), None).unwrap();
        let store = at("store").display().to_string();
        let config = Config { store, attach: Some(Default::default()), ..Config::default() };
        for name in ["store", "other"] {
            std::fs::create_dir(at(name)).unwrap();
            let backend = objects::local(at(name)).unwrap();
            Store::create(backend, store::testing::settings(), store::testing::world(1))
                .await
                .unwrap();
        }
        let engine = crate::Engine::open(&home, &config, crate::StoreUse::Server).await.unwrap();
        let (tree, other) = (at("tree"), at("other").display().to_string());
        std::fs::create_dir(&tree).unwrap();
        // Who opens a pipe waits until somebody writes to it.
        let index = index_path(engine.store.settings(), &home, &tree.canonicalize().unwrap());
        std::fs::create_dir_all(home.indexes()).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&index).status().unwrap();
        assert!(made.success());
        let tree = tree.display().to_string();
        {
            let hanging = engine.add_source(&tree, &home, &config);
            let mut hanging = std::pin::pin!(hanging);
            let quick = engine.add_source(&other, &home, &config);
            tokio::select! {
                biased;
                added = &mut hanging => panic!("it hangs: {added:?}"),
                added = quick => added.unwrap(),
            }
            // Asked for once more, it is not waited for either.
            engine.add_source(&other, &home, &config).await.unwrap();
            // Whenever it comes to open the pipe, on a busy machine, it finds somebody who has just closed it.
            loop {
                std::fs::OpenOptions::new().read(true).write(true).open(&index).unwrap();
                match tokio::time::timeout(Duration::from_millis(20), &mut hanging).await {
                    Ok(added) => break drop(added.unwrap_err()),
                    Err(_) => continue,
                }
            }
        }
        let names: Vec<String> = engine.sources().into_iter().map(|source| source.name).collect();
        assert!(names.contains(&other) && !names.contains(&tree), "{names:?}");
    }

    #[test]
    fn a_place_is_told_by_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for name in ["store", "tree", "key/sojourn.med"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        std::fs::write(at("store/store.json"), "").unwrap();
        std::fs::write(at("disk.qcow2"), "").unwrap();
        let of = |place: &str| SourcePlace::of(place).unwrap();
        assert_eq!(of(&at("store")), SourcePlace::Store(at("store")));
        assert_eq!(of(&at("tree")), SourcePlace::Tree(at("tree").into()));
        assert_eq!(of(&at("key")), SourcePlace::Media(at("key").into()));
        assert_eq!(of(&at("disk.qcow2")), SourcePlace::Image(at("disk.qcow2").into()));
        assert_eq!(of("s3://b/p"), SourcePlace::Store("s3://b/p".into()));
        assert_eq!(of("nbd://h/x"), SourcePlace::Export("nbd://h/x".into()));
        assert_eq!(SourcePlace::of(&at("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

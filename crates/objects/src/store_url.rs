//! Where a store is: a URL, and how it is opened.
//!
//! | URL | backend | credentials |
//! |---|---|---|
//! | a path, `file:///path` | a directory | |
//! | `s3://bucket/prefix` | S3 and what speaks its language | `AWS_*`, `~/.aws` |
//! | `gs://bucket/prefix` | Google Cloud Storage | `GOOGLE_*` |
//! | `az://container/prefix` | Azure Blob Storage | `AZURE_STORAGE_*` |
//! | `http://…`, `https://…` | any web server; read only, see [`publish`](super::publish) | |

use super::arm::DiskReadOrder;
use super::backend_reads::{BackendReadMeter, BackendReads};
use super::backends::RemoteUrl;
use super::batch::RangeBatches;
use super::create_local;
use super::environment::Environment;
use super::gathered::Gathered;
use super::link_pace::LinkTime;
use super::local::local_metered;
use super::local_disk::{PieceCounters, PieceOptions};
use super::mounted::Mounted;
use super::patient::{LiveRetryCounters, Patience, Patient, RetryCounters};
use super::pieces::{KeepSettings, PieceCache};
use block::{Error, Result};
use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use std::ops::Range;
use std::sync::Arc;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct OpenStoreOptions {
    /// How long a backend over a network is waited for.
    pub patience: Patience,
    /// Where parts of a store over a network are kept; `None`: nowhere.
    pub pieces: Option<PieceOptions>,
    /// Where credentials are looked for.
    pub environment: Environment,
    /// Whether the store may be away for long, its directory too. Then a directory has the layers of a store over a
    /// network; what is written is kept like what is read; and so are the store's settings.
    pub is_distant: bool,
    /// Whether a store over a network that is not distant has its settings kept.
    pub settings: KeepSettings,
    /// Whether what is read lies scattered, and what lies beside it is of no use: packs of a store over a network are
    /// read as they are asked for then, and not in pieces.
    pub is_scattered: bool,
    /// In which order chunks are read from a directory.
    pub order: DiskReadOrder,
}

impl Default for OpenStoreOptions {
    /// That of a command: half a minute of patience, nothing is kept.
    fn default() -> Self {
        Self {
            patience: Patience::COMMAND,
            pieces: None,
            environment: Environment::system(),
            is_distant: false,
            settings: KeepSettings::Never,
            is_scattered: false,
            order: DiskReadOrder::Arrival,
        }
    }
}

/// A backend, and what there is to know of its way here.
#[derive(Clone)]
pub struct Opened {
    /// The backend.
    pub backend: Arc<dyn ObjectStore>,
    /// Figures of the way to it; those of the network stay zero for a directory.
    pub link: Link,
}

/// Figures of the way to a backend. Cheap to clone; clones share them.
#[derive(Clone, Default)]
pub struct Link {
    retries: Arc<LiveRetryCounters>,
    reads: Arc<BackendReadMeter>,
    pieces: Option<PieceCache>,
}

impl Link {
    /// That of a backend over a network, without a piece cache.
    fn of(patient: &Patient) -> Self {
        Self { retries: patient.tally(), reads: patient.reads(), pieces: None }
    }

    /// What was tried again.
    pub fn retries(&self) -> RetryCounters {
        self.retries.snapshot()
    }

    /// What was read from the backend.
    pub fn reads(&self) -> BackendReads {
        self.reads.snapshot()
    }

    /// What a read of so many bytes takes; `None` before there was any, and for a directory.
    pub fn expected(&self, bytes: u64) -> Option<LinkTime> {
        self.retries.pace.expected(bytes)
    }

    /// What the piece cache did; `None` when there is none.
    pub fn pieces(&self) -> Option<PieceCounters> {
        self.pieces.as_ref().map(|pieces| pieces.disk().counters())
    }

    /// Puts a range of an immutable object, which came from elsewhere, into the piece cache. That it cannot
    /// be kept is counted there.
    pub async fn keep_range(&self, object: &Path, range: &Range<u64>, bytes: Bytes) {
        if let Some(pieces) = &self.pieces {
            pieces.keep_range(object, range, bytes).await;
        }
    }

    /// Puts an immutable object, which came from elsewhere, into the piece cache. That it cannot be kept is
    /// counted there.
    pub async fn keep_object(&self, object: &Path, bytes: Bytes) {
        if let Some(pieces) = &self.pieces {
            pieces.keep_object(object, bytes).await;
        }
    }

    /// Whether an object is in the piece cache as a whole; as [`has_range`](Self::has_range).
    pub fn has_object(&self, object: &Path) -> bool {
        self.pieces.as_ref().is_some_and(|pieces| pieces.has_object(object))
    }

    /// Whether all of a range of an object is in the piece cache. Nothing is read: what is there is verified
    /// when it is. Looks into the file system.
    pub fn has_range(&self, object: &Path, range: &Range<u64>) -> bool {
        self.pieces.as_ref().is_some_and(|pieces| pieces.has(object, range))
    }
}

/// What a URL names.
#[derive(Debug, Clone, Copy)]
enum StoreUrl<'a> {
    Directory(&'a str),
    Remote(RemoteUrl<'a>),
}

impl<'a> StoreUrl<'a> {
    fn of(url: &'a str) -> Result<Self> {
        match url.split_once("://") {
            None if url.is_empty() => {
                Err(Error::invalid("the store's URL is empty: give a directory or a URL"))
            }
            None => Ok(Self::Directory(url)),
            Some(("file", path)) if path.starts_with('/') && !path.contains('%') => {
                Ok(Self::Directory(path))
            }
            Some(("file", _)) => Err(Error::invalid(format!(
                "store {url:?}: a file URL needs an absolute path without '%' (file:///path); or \
                 give the plain path"
            ))),
            Some((scheme, rest)) => RemoteUrl::of(url, scheme, rest).map(Self::Remote),
        }
    }
}

/// Whether a URL leads over a network.
pub fn is_remote(url: &str) -> bool {
    matches!(StoreUrl::of(url), Ok(StoreUrl::Remote(_)))
}

/// Checks what can be seen of a URL alone.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) and [`Unsupported`](block::ErrorKind::Unsupported) for one that is none.
pub fn check_url(url: &str) -> Result<()> {
    StoreUrl::of(url).map(drop)
}

/// Opens a backend by its URL.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) and [`Unsupported`](block::ErrorKind::Unsupported) for a URL that is
/// none, [`Denied`](block::ErrorKind::Denied) when credentials are missing, and any error from [`local`]. Nothing is
/// asked over the network yet.
pub fn open(url: &str, options: &OpenStoreOptions) -> Result<Opened> {
    match StoreUrl::of(url)? {
        StoreUrl::Directory(path) if options.is_distant => {
            let bare = Arc::new(Mounted::at(path)?);
            let patient = Patient::of_directory(bare, options.patience);
            Ok(in_front_of(patient, url, options, |patient| patient))
        }
        StoreUrl::Directory(path) => {
            let (backend, reads) = local_metered(path, &options.order)?;
            Ok(Opened { backend, link: Link { reads, ..Link::default() } })
        }
        StoreUrl::Remote(remote) => connect(url, &remote, options),
    }
}

/// Opens the place of a new store: a directory is made if need be. Buckets are not made.
///
/// # Errors
/// Any error from [`open`]; [`Denied`](block::ErrorKind::Denied) for a web server.
pub fn create(url: &str, options: &OpenStoreOptions) -> Result<Opened> {
    match StoreUrl::of(url)? {
        StoreUrl::Directory(path) => {
            Ok(Opened { backend: create_local(path)?, link: Link::default() })
        }
        StoreUrl::Remote(remote) => connect(url, &remote, options),
    }
}

fn connect(url: &str, remote: &RemoteUrl<'_>, options: &OpenStoreOptions) -> Result<Opened> {
    let bare = remote.open(&options.environment)?;
    let bare = match Path::parse(remote.prefix) {
        Ok(prefix) if prefix.as_ref().is_empty() => bare,
        Ok(prefix) => Arc::new(PrefixStore::new(bare, prefix)) as Arc<dyn ObjectStore>,
        Err(e) => return Err(Error::invalid(format!("store {url:?}: {e}")).with_source(e)),
    };
    Ok(layered(bare, url, options, remote.kind.layer))
}

/// The layers of a backend over a network in front of `bare`. `place` tells apart the stores whose
/// pieces lie in one directory; `inner` may put one more layer behind those that join and keep.
pub fn layered(
    bare: Arc<dyn ObjectStore>,
    place: &str,
    options: &OpenStoreOptions,
    inner: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
) -> Opened {
    in_front_of(Patient::new(bare, options.patience), place, options, inner)
}

/// The layers in front of the one that tries again; the rest as for [`layered`].
fn in_front_of(
    patient: Patient,
    place: &str,
    options: &OpenStoreOptions,
    inner: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
) -> Opened {
    let link = Link::of(&patient);
    let gathered = Gathered::new(inner(Arc::new(patient)));
    if !options.is_scattered {
        return kept(Arc::new(gathered), None, link, place, options);
    }
    let gathered = Arc::new(gathered.sparing());
    let as_asked = Arc::clone(&gathered) as Arc<dyn RangeBatches>;
    kept(gathered, Some(as_asked), link, place, options)
}

/// A backend over a network whose reads have to come as they were asked for, because not all that lies
/// between them may be read: they are not joined, and kept as they are, each as it comes. It answers several
/// ranges of an object in one request. `place` as for [`layered`].
pub fn exact(bare: Arc<dyn RangeBatches>, place: &str, options: &OpenStoreOptions) -> Opened {
    let patient = Arc::new(Patient::batching(bare, options.patience));
    let (link, as_asked) = (Link::of(&patient), Arc::clone(&patient) as Arc<dyn RangeBatches>);
    kept(patient, Some(as_asked), link, place, options)
}

/// Puts the piece cache in front, if one is asked for. `as_asked` gives ranges that have to come as they were
/// asked for.
fn kept(
    backend: Arc<dyn ObjectStore>,
    as_asked: Option<Arc<dyn RangeBatches>>,
    link: Link,
    place: &str,
    options: &OpenStoreOptions,
) -> Opened {
    let Some(pieces) = options.pieces.clone().filter(|pieces| pieces.limit > 0) else {
        return Opened { backend, link };
    };
    let pieces = PieceCache::new(backend, place.trim_end_matches('/'), pieces);
    let pieces = match as_asked {
        Some(ranges) => pieces.taking_ranges_from(ranges),
        None => pieces,
    };
    let pieces = match options.is_distant {
        true => pieces.distant(),
        false => pieces.keeping_settings(options.settings),
    };
    let link = Link { pieces: Some(pieces.clone()), ..link };
    Opened { backend: Arc::new(pieces), link }
}

/// A backend that tries again.
pub fn patient(bare: Arc<dyn ObjectStore>, patience: Patience) -> Arc<dyn ObjectStore> {
    Arc::new(Patient::new(bare, patience))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn options(variables: &[(&str, &str)]) -> OpenStoreOptions {
        OpenStoreOptions { environment: Environment::of(variables), ..OpenStoreOptions::default() }
    }

    #[test]
    fn urls_name_places_or_are_refused_with_the_remedy() {
        let parts = |url| match StoreUrl::of(url).unwrap() {
            StoreUrl::Directory(path) => ("", path),
            StoreUrl::Remote(remote) => (remote.bucket, remote.prefix),
        };
        assert_eq!(parts("s3://b/a/c/"), ("b", "a/c"));
        assert_eq!(parts("gs://b"), ("b", ""));
        assert_eq!(parts("az://c/p"), ("c", "p"));
        assert_eq!(parts("https://h/p"), ("", ""));
        assert_eq!(parts("file:///srv/store"), ("", "/srv/store"));
        for (url, kind) in [
            ("", ErrorKind::Invalid),
            ("s3://", ErrorKind::Invalid),
            ("s3:///x", ErrorKind::Invalid),
            ("s3://key:secret@b/x", ErrorKind::Invalid),
            ("https://", ErrorKind::Invalid),
            ("file://relative", ErrorKind::Invalid),
            ("ftp://x", ErrorKind::Unsupported),
        ] {
            assert_eq!(StoreUrl::of(url).unwrap_err().kind(), kind, "{url}");
            assert!(!is_remote(url));
        }
        assert!(is_remote("s3://b") && !is_remote("/srv/store"));
    }

    #[tokio::test]
    async fn each_kind_of_remote_store_opens_without_asking_the_network() {
        let keys = [
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
            ("GOOGLE_SKIP_SIGNATURE", "true"),
        ];
        for url in ["s3://bucket/p", "gs://bucket/p", "az://container/p", "https://host/p"] {
            let opened = open(url, &options(&keys)).unwrap();
            assert_eq!(opened.link.retries(), RetryCounters::default());
            assert!(opened.link.pieces().is_none());
        }
    }

    #[tokio::test]
    async fn missing_credentials_are_named_with_the_remedy() {
        let error = open("az://container/p", &options(&[])).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains("AZURE_STORAGE_ACCOUNT_KEY"), "{error}");
        let half = options(&[("AWS_ACCESS_KEY_ID", "k")]);
        let error = open("s3://bucket/p", &half).err().unwrap();
        assert!(error.message().contains("AWS_SECRET_ACCESS_KEY"), "{error}");
    }

    #[tokio::test]
    async fn scattered_reads_bring_what_was_asked_for_and_no_more() {
        let (dir, path) = (tempfile::tempdir().unwrap(), Path::from("packs/one"));
        let memory = Arc::new(object_store::memory::InMemory::new());
        memory.put_opts(&path, vec![7; 300_000].into(), Default::default()).await.unwrap();
        for is_scattered in [false, true] {
            let dir = dir.path().join(is_scattered.to_string());
            let pieces = Some(PieceOptions { dir, limit: 1 << 30 });
            let options = OpenStoreOptions { pieces, is_scattered, ..OpenStoreOptions::default() };
            let opened = layered(memory.clone(), "s3://test", &options, |patient| patient);
            let parts = opened.backend.get_ranges(&path, std::slice::from_ref(&(1000..2000))).await;
            assert_eq!(parts.unwrap()[0][..], [7; 1000]);
            assert!(opened.link.has_range(&path, &(1000..2000)), "it is kept");
            assert_eq!(opened.link.has_range(&path, &(1000..3000)), !is_scattered);
        }
    }
}

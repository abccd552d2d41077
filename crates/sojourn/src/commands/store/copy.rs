//! `sojourn store copy`.

use crate::output::Output;
use crate::progress::Bar;
use block::{ByteSize, Error, ErrorKind, Result};
use cache::{Cache, PolicyKind};
use disk::Image;
use engine::Config;
use engine::Home;
use engine::{key, world};
use objects::OpenStoreOptions;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use store::copy::Copied;
use store::{RefKind, RefRecord, Session, Settings, Store, images};

/// Cache of the images that are read, in bytes: a chunk is read once, some in two requests.
const CACHE: u64 = 32 << 20;

/// Arguments of `sojourn store copy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The store to read: a directory or a URL
    pub(crate) from: String,
    /// The store to write to: a directory or a URL; where there is none, one in clear is made
    pub(crate) to: String,
    /// The versions, NAME[:TAG] [default: all]
    #[arg(value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    /// The key file of the store that is read [default: as for the home's store]
    #[arg(long, value_name = "FILE")]
    pub(crate) from_key_file: Option<PathBuf>,
    /// The key file of the store that is written to [default: as for the home's store]
    #[arg(long, value_name = "FILE")]
    pub(crate) to_key_file: Option<PathBuf>,
}

/// What became of one version.
#[derive(Serialize)]
struct CopyView {
    image: String,
    size: u64,
    /// `present`, or `made` and the figures of an import.
    outcome: Copied,
}

pub(crate) async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let from = open(&args.from, args.from_key_file.as_ref(), home).await?;
    let records = wanted(&from, &args.images).await?;
    let to = target(args, &from, home).await?;
    let done = copy_all(&from, &to, records).await?;
    output.print(&done, || {
        let line = |view: &CopyView| match &view.outcome {
            Copied::Present => format!("image {} was there\n", view.image),
            Copied::Made(stats) => format!(
                "image {} copied: {}, of which {} were new and took {} in the store\n",
                view.image,
                ByteSize(view.size),
                ByteSize(stats.new_bytes),
                ByteSize(stats.stored_bytes)
            ),
        };
        done.iter().map(line).collect()
    })
}

async fn copy_all(from: &Store, to: &Store, records: Vec<RefRecord>) -> Result<Vec<CopyView>> {
    let mut seed = [0; 8];
    world::system().entropy.fill(&mut seed)?;
    let seed = u64::from_le_bytes(seed);
    let cache = cache::Config { capacity: CACHE, policy: PolicyKind::Lru, seed };
    let cache = Arc::new(Cache::new(cache));
    let mut done = Vec::new();
    for record in records {
        // What is read must not be collected meanwhile; a store that cannot be written to has to do
        // without. One session for each version: it can hold only so many.
        let reading = match from.session(&format!("copy of {} elsewhere", record.name)).await {
            Ok(session) => Some(session),
            Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => None,
            Err(e) => return Err(e),
        };
        let copied = copy_one(from, to, reading.as_ref(), record, &cache).await;
        done.extend(match reading {
            Some(session) => session.close(copied).await?,
            None => copied?,
        });
    }
    Ok(done)
}

/// Copies a version; `None` when it was removed since the listing.
async fn copy_one(
    from: &Store,
    to: &Store,
    reading: Option<&Session>,
    record: RefRecord,
    cache: &Arc<Cache>,
) -> Result<Option<CopyView>> {
    let record = match reading {
        Some(session) => session.hold(RefKind::Image, &record.name).await?,
        None => Some(record),
    };
    let Some(record) = record else { return Ok(None) };
    let manifest = from.manifest(&images::manifest_of(&record)?).await?;
    let view = Image::new(from.clone(), Arc::clone(&manifest), Arc::clone(cache));
    let bar = Bar::bytes(&format!("copying {}", record.name), Some(record.body.size));
    let session = to.session(&format!("copy of {}", record.name)).await?;
    let copied = store::copy::version(from, &record, &manifest, &view, &session, &bar).await;
    let outcome = session.close(copied).await;
    drop(bar);
    let outcome = outcome.map_err(|e| e.context(format!("copying image {}", record.name)))?;
    Ok(Some(CopyView { image: record.name, size: record.body.size, outcome }))
}

/// The store to write to. One is made where there is none, unless that would put in clear what is
/// encrypted.
async fn target(args: &Args, from: &Store, home: &Home) -> Result<Store> {
    let none = match open(&args.to, args.to_key_file.as_ref(), home).await {
        Err(e) if e.kind() == ErrorKind::NotFound => e,
        opened => return opened,
    };
    if from.settings().is_encrypted() || args.to_key_file.is_some() {
        let what = format!(
            "make an encrypted one first: sojourn --home NEW init --encrypt --store {}",
            args.to
        );
        return Err(Error::not_found(format!("{}; {what}", none.message())).with_source(none));
    }
    let world = world::system();
    let settings = Settings::generate(&*world.entropy)?;
    let opened = objects::create(&args.to, &OpenStoreOptions::default())?;
    let made = Store::create(opened.backend, settings, world).await;
    let made = made.map_err(|e| e.context(format!("store {}", args.to)))?;
    tracing::info!(store = args.to, "made, as there was none");
    Ok(made)
}

async fn open(url: &str, key_file: Option<&PathBuf>, home: &Home) -> Result<Store> {
    let opened = engine::places::open(url, &home.dir().join("tls"), &OpenStoreOptions::default())?;
    let secret = async || match key_file {
        Some(path) => key::read(path).map(Some),
        None => {
            let config = match home.exists() {
                true => Config::load(&home.config())?,
                false => Config::default(),
            };
            key::given_for(home, &config, &format!("store {url}"))
        }
    };
    let store = Store::open_with(opened.backend, world::system(), secret).await;
    store.map_err(|e| e.context(format!("store {url}")))
}

/// The versions that were asked for; all when none was.
async fn wanted(from: &Store, images: &[String]) -> Result<Vec<RefRecord>> {
    if images.is_empty() {
        let listing = from.refs().list(RefKind::Image).await?;
        if let Some(damaged) = listing.damaged.into_iter().next() {
            let what = format!("image {}; name the versions to copy without it", damaged.name);
            return Err(damaged.error.context(what));
        }
        if listing.records.is_empty() {
            return Err(Error::not_found("the store to copy has no images"));
        }
        return Ok(listing.records);
    }
    let mut records = Vec::new();
    for image in images {
        records.push(images::resolve(from, &image.parse()?).await?);
    }
    Ok(records)
}

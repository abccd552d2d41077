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

/// Failures that are told one by one.
const TOLD: usize = 5;

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
    /// The key file of the store that is written to; one in clear is refused then [default: as for the home's store]
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

/// What became of all versions that were asked for.
#[derive(Default)]
struct Copies {
    done: Vec<CopyView>,
    /// Why each of the others was not copied.
    failed: Vec<Error>,
    /// How many were not tried any more.
    untried: usize,
}

pub(crate) async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let from = open(&args.from, args.from_key_file.as_ref(), home).await?;
    let records = wanted(&from, &args.images).await?;
    let to = target(args, &from, home).await?;
    let asked = records.len();
    let copies = copy_all(&from, &to, records).await?;
    if copies.failed.is_empty() || !copies.done.is_empty() {
        print(&copies.done, output)?;
    }
    failure(copies, asked).map_or(Ok(()), Err)
}

fn print(done: &[CopyView], output: Output) -> Result<()> {
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

/// One error for the versions that were not copied, of the kind of the first.
fn failure(copies: Copies, asked: usize) -> Option<Error> {
    let (failed, untried) = (copies.failed, copies.untried);
    let mut told: Vec<String> = failed.iter().take(TOLD).map(Error::to_string).collect();
    match failed.len().saturating_sub(TOLD) {
        0 => {}
        more => told.push(format!("and {more} more")),
    }
    if untried > 0 {
        told.push(format!("{untried} were not tried"));
    }
    let missing = failed.len() + untried;
    let first = failed.into_iter().next()?;
    if asked == 1 {
        return Some(first);
    }
    let text = format!("{missing} of {asked} versions were not copied: {}", told.join("; "));
    Some(Error::new(first.kind(), text).with_source(first))
}

/// Copies one version after the other; one that cannot be copied keeps no other from it.
///
/// # Errors
/// That of the source of randomness.
async fn copy_all(from: &Store, to: &Store, records: Vec<RefRecord>) -> Result<Copies> {
    let mut seed = [0; 8];
    world::system().entropy.fill(&mut seed)?;
    let seed = u64::from_le_bytes(seed);
    let cache = cache::Config { capacity: CACHE, policy: PolicyKind::Lru, seed };
    let cache = Arc::new(Cache::new(cache));
    let mut copies = Copies::default();
    let mut records = records.into_iter();
    for record in records.by_ref() {
        let name = record.name.clone();
        match copy_one(from, to, record, &cache).await {
            Ok(copied) => copies.done.extend(copied),
            Err(error) => {
                // Then the next one would fare no better.
                let is_over = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoSpace);
                copies.failed.push(error.context(format!("copying image {name}")));
                if is_over {
                    break;
                }
            }
        }
    }
    copies.untried = records.len();
    Ok(copies)
}

/// Copies a version; `None` when it was removed since the listing.
async fn copy_one(
    from: &Store,
    to: &Store,
    record: RefRecord,
    cache: &Arc<Cache>,
) -> Result<Option<CopyView>> {
    // What is read must not be collected meanwhile; a store that cannot be written to has to do
    // without. One session for each version: it can hold only so many.
    match from.session(&format!("copy of {} elsewhere", record.name)).await {
        Ok(reading) => {
            let copied = copy_held(from, to, Some(&reading), record, cache).await;
            reading.close(copied).await
        }
        Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => {
            copy_held(from, to, None, record, cache).await
        }
        Err(e) => Err(e),
    }
}

/// The same with the session that keeps what is read, if there is one.
async fn copy_held(
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
    let outcome = session.close(copied).await?;
    drop(bar);
    Ok(Some(CopyView { image: record.name, size: record.body.size, outcome }))
}

/// The store to write to. One is made where there is none, unless that would put in clear what is
/// encrypted; one in clear is not written to where a key says that it is another one.
async fn target(args: &Args, from: &Store, home: &Home) -> Result<Store> {
    let none = match open(&args.to, args.to_key_file.as_ref(), home).await {
        Ok(to) if to.settings().is_encrypted() => return Ok(to),
        Ok(to) => {
            refuse_clear(args, home).await?;
            return Ok(to);
        }
        Err(e) if e.kind() == ErrorKind::NotFound => e,
        Err(e) => return Err(e),
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

/// Refuses to write to a store in clear for which a key was given, now or in the home's configuration: whoever reads
/// there would have what is copied.
///
/// # Errors
/// [`Denied`](ErrorKind::Denied).
async fn refuse_clear(args: &Args, home: &Home) -> Result<()> {
    if let Some(key_file) = &args.to_key_file {
        return Err(Error::denied(format!(
            "store {}: it is not encrypted, and what is copied would lie there in clear, although --to-key-file names \
             {}; leave the option out if it is to be so, or copy to an encrypted store",
            args.to,
            key_file.display()
        )));
    }
    if home.exists() {
        let config = Config::load(&home.config())?;
        if is_same_place(&home.store_url(&config.store), &args.to) {
            // Opened as the home's own, it is refused where the home knows better.
            engine::open_store(home, &config).await?;
        }
    }
    Ok(())
}

/// Whether two places are one, as far as this machine can tell.
fn is_same_place(one: &str, other: &str) -> bool {
    let path = |place: &str| place.strip_prefix("file://").unwrap_or(place).to_owned();
    let real = |place: &str| std::fs::canonicalize(path(place)).ok();
    one.trim_end_matches('/') == other.trim_end_matches('/')
        || real(one).is_some_and(|one| real(other) == Some(one))
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

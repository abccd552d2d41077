//! Works on a local store until it is killed.
//!
//! What it does has a verb: `import`, `commit`, `copy` (from the store beside it, `source`), `remove`,
//! `gc` (beside others) and `gc-alone`. An image is made of pieces; its label `pieces` says of which,
//! so that anybody can tell what it must hold.

use block::conformance::Sequence;
use block::{Error, Memory, Result, Span};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use store::copy::{self, Copied};
use store::gc::{GcOptions, collect};
use store::{Grain, RefBody, RefKind, Store, bulk_read, import, testing};

pub(crate) const PAGE: usize = 4096;
/// Pages of a piece, the last one zero.
pub(crate) const PIECE: usize = 6;
/// Different pieces.
const POOL: u64 = 24;

fn image(pieces: &[u64]) -> Vec<u8> {
    let piece = |seed: &u64| {
        let mut bytes = testing::noise(*seed, (PIECE - 1) * PAGE);
        bytes.resize(PIECE * PAGE, 0);
        bytes
    };
    pieces.iter().flat_map(piece).collect()
}

fn label(pieces: &[u64]) -> String {
    pieces.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

/// Says what a process of its own does, and where: `VERB SEED DIRECTORY`.
const WORK: &str = "CRASH_VICTIM";

/// Starts this very program as a victim, and waits until it has begun.
pub(crate) fn spawn(directory: &Path, verb: &str, seed: u64) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim::works_until_it_is_killed", "--ignored", "--nocapture"])
        .env(WORK, format!("{verb} {seed} {}", directory.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // One is not killed before it has begun: that would be no test of anything. What comes before is
    // the test harness's.
    let mut said = Vec::new();
    while !said.ends_with(b"ready\n") {
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other test runs it in processes of its own"]
async fn works_until_it_is_killed() {
    let Ok(arguments) = std::env::var(WORK) else { return };
    let arguments: Vec<&str> = arguments.splitn(3, ' ').collect();
    let [verb, seed, directory] = arguments[..] else { panic!("{arguments:?}") };
    if let Err(error) = work(directory, verb, seed.parse().unwrap()).await {
        println!("error {error}");
    }
}

async fn work(directory: &str, verb: &str, seed: u64) -> Result<()> {
    let store = Store::open(objects::local(directory)?, testing::world(seed)).await?;
    let mut random = Sequence::new(seed);
    let beside = Path::new(directory).with_file_name("source");
    let source = Store::open(objects::local(&beside)?, testing::world(seed | 1 << 50)).await?;
    println!("ready");
    for number in 0.. {
        let name = format!("{verb}-{seed}:{number}");
        let outcome = match verb {
            "import" => import_one(&store, &name, &mut random).await,
            "commit" => commit_one(&store, &name, &mut random).await,
            "copy" => copy_one(&source, &store, &mut random).await,
            "remove" => remove_one(&store, &mut random).await,
            _ => gc_one(&store, verb == "gc-alone").await,
        };
        match outcome {
            Ok(Some(made)) => println!("done {made}"),
            Ok(None) => tokio::time::sleep(Duration::from_millis(2)).await,
            // Another one was quicker, or takes this one for dead.
            Err(e) => println!("failed {name}: {e}"),
        }
    }
    Ok(())
}

async fn import_one(store: &Store, name: &str, random: &mut Sequence) -> Result<Option<String>> {
    let pieces: Vec<u64> = (0..1 + random.below(12)).map(|_| random.below(POOL)).collect();
    let session = store.session(name).await?;
    let outcome = async {
        let device = Memory::from(image(&pieces));
        let done = import::from_device(&session, &device, &()).await?;
        let labels = BTreeMap::from([("pieces".to_owned(), label(&pieces))]);
        let body = RefBody { manifest: Some(done.manifest), size: done.size, created: 0, labels };
        session.publish(RefKind::Image, name, body).await
    }
    .await;
    session.close(outcome).await.map(|record| Some(record.name))
}

async fn commit_one(store: &Store, name: &str, random: &mut Sequence) -> Result<Option<String>> {
    let listed = store.refs().list(RefKind::Image).await?.records;
    if listed.is_empty() {
        return Ok(None);
    }
    let base = &listed[random.below(listed.len() as u64) as usize].name;
    let session = store.session(name).await?;
    let outcome = async {
        let Some(found) = session.hold(RefKind::Image, base).await? else { return Ok(None) };
        let mut pieces: Vec<u64> = found.body.labels["pieces"]
            .split(' ')
            .map(|number| number.parse().map_err(|_| Error::corrupt("a label")))
            .collect::<Result<_>>()?;
        let at = random.below(pieces.len() as u64) as usize;
        pieces[at] = random.below(POOL);
        let view = Memory::from(image(&pieces));
        let manifest = found.body.manifest.ok_or_else(|| Error::corrupt("no manifest"))?;
        let manifest = store.manifest(&manifest).await?;
        let from = (at * PIECE * PAGE) as u64;
        let changed = [Span::between(from, from + (PIECE * PAGE) as u64)];
        let grain = if random.below(2) == 0 { Grain::Content } else { Grain::Blocks };
        let size = manifest.size();
        let done = import::derive(&session, &manifest, size, &view, &changed, grain, &()).await?;
        let labels = BTreeMap::from([("pieces".to_owned(), label(&pieces))]);
        let body = RefBody { manifest: Some(done.manifest), size, created: 0, labels };
        session.publish(RefKind::Image, name, body).await.map(|record| Some(record.name))
    }
    .await;
    session.close(outcome).await
}

/// Copies a version that the other store has, and that may be removed there meanwhile.
async fn copy_one(from: &Store, to: &Store, random: &mut Sequence) -> Result<Option<String>> {
    let listed = from.refs().list(RefKind::Image).await?.records;
    if listed.is_empty() {
        return Ok(None);
    }
    let name = &listed[random.below(listed.len() as u64) as usize].name;
    let reading = from.session("copy elsewhere").await?;
    let outcome = async {
        let Some(found) = reading.hold(RefKind::Image, name).await? else { return Ok(None) };
        let manifest = found.body.manifest.ok_or_else(|| Error::corrupt("no manifest"))?;
        let manifest = from.manifest(&manifest).await?;
        let mut bytes = vec![0; manifest.size() as usize];
        let whole = Span::whole(manifest.size());
        bulk_read::image(from, &manifest, &(), async |span, data| {
            bytes[span.index_in(whole)].copy_from_slice(&data);
            Ok(())
        })
        .await?;
        let session = to.session("copy").await?;
        let view = Memory::from(bytes);
        let copied = copy::version(from, &found, &manifest, &view, &session, &()).await;
        Ok(match session.close(copied).await? {
            Copied::Made(_) => Some(found.name),
            Copied::Present => None,
        })
    }
    .await;
    reading.close(outcome).await
}

async fn remove_one(store: &Store, random: &mut Sequence) -> Result<Option<String>> {
    let listed = store.refs().list(RefKind::Image).await?.records;
    if listed.len() < 12 {
        return Ok(None);
    }
    let victim = &listed[random.below(listed.len() as u64) as usize];
    println!("removing {}", victim.name);
    store.refs().remove(RefKind::Image, &victim.name, victim.sequence).await.map(|()| None)
}

async fn gc_one(store: &Store, alone: bool) -> Result<Option<String>> {
    let stale = Duration::from_secs(if alone { 0 } else { 86_400 });
    let options = GcOptions { grace: Duration::ZERO, rewrite_below: 0.9, stale, dry_run: false };
    collect(store, &options, &()).await.map(|_| None)
}

//! What every backend must be able to do, tried on each of them: a directory, memory, S3 by
//! versitygw, and a network that fails all the time.

// A test speaks by panicking; the servers beside it have threads of their own.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods)]

use block::{ErrorKind, Memory};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::check::{self, CheckOptions};
use objects::testing::{FaultRates, Unreliable};
use objects::{Environment, OpenStoreOptions, Patience, PieceOptions};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use store::copy::{self, Copied};
use store::testing;
use store::{ManifestId, RefBody, RefKind, RefRecord, Store, import, verify};
use tokio::task::JoinSet;

/// An image with noise, a hole, and text.
fn content(seed: u64) -> Vec<u8> {
    let mut content = testing::noise(seed, 3 << 20);
    content.extend(vec![0; 1 << 20]);
    content.extend(b"a line of text\n".repeat(70_000).iter().take(1 << 20));
    content
}

fn body(manifest: ManifestId, size: u64) -> RefBody {
    RefBody { manifest: Some(manifest), size, created: 1, labels: BTreeMap::new() }
}

/// Imports an image under a name.
async fn imported(store: &Store, content: Vec<u8>, name: &str) -> (RefRecord, u64) {
    let session = store.session("import").await.unwrap();
    let done = import::from_device(&session, &Memory::from(content), &()).await.unwrap();
    let body = body(done.manifest, done.size);
    let record = session.publish(RefKind::Image, name, body).await.unwrap();
    (session.close(Ok(record)).await.unwrap(), done.stats.new_chunks)
}

/// Everything an image holds, read back.
async fn holds(store: &Store, record: &RefRecord, content: &[u8]) {
    let manifest = store.manifest(&record.body.manifest.unwrap()).await.unwrap();
    let whole = block::Span::whole(manifest.size());
    for piece in manifest.pieces(whole).await.unwrap() {
        let expected = &content[piece.span.index_in(whole)];
        match piece.content {
            store::Content::Hole => assert!(expected.iter().all(|byte| *byte == 0)),
            store::Content::Chunk { at, skip } => {
                let chunk = store.read_chunk(&at).await.unwrap();
                assert_eq!(chunk[skip as usize..][..expected.len()], *expected);
            }
        }
    }
}

/// One of several who do the same at the same time succeeds, and the others are told.
async fn one_wins(outcomes: JoinSet<block::Result<RefRecord>>) -> RefRecord {
    let (won, lost): (Vec<_>, Vec<_>) =
        outcomes.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    assert!(lost.into_iter().all(|e| e.unwrap_err().kind() == ErrorKind::Conflict));
    won.into_iter().next().unwrap().unwrap()
}

/// The suite.
async fn conformance(backend: Arc<dyn ObjectStore>) {
    let pause = Duration::from_secs(2);
    let options = CheckOptions { rounds: 3, large: 9 << 20, pause, ..CheckOptions::default() };
    let report = check::backend(&backend, [9; 16], &|| testing::NOW, options).await.unwrap();
    assert!(report.passed(), "{report:#?}");

    let none = Store::open(Arc::clone(&backend), testing::world(1)).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    let make =
        async || Store::create(Arc::clone(&backend), testing::settings(), testing::world(1)).await;
    let store = make().await.unwrap();
    // The same bytes again would be taken for a repeated request.
    let other = testing::settings().with_compression_level(7).unwrap();
    let second = Store::create(Arc::clone(&backend), other, testing::world(2)).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Conflict);

    let (record, new) = imported(&store, content(1), "a:1").await;
    assert!(new > 10);
    holds(&store, &record, &content(1)).await;
    let again = Store::open(Arc::clone(&backend), testing::world(3)).await.unwrap();
    let (same, new) = imported(&again, content(1), "a:2").await;
    assert_eq!((same.body.manifest, new), (record.body.manifest, 0));
    let report = verify::manifest(&again, &record.body.manifest.unwrap(), &()).await.unwrap();
    assert_eq!(report.damaged, []);

    let mut creators = JoinSet::new();
    for size in 1..=12 {
        let (refs, body) = (store.refs(), body(record.body.manifest.unwrap(), size * 512));
        creators.spawn(async move { refs.create(RefKind::Image, "race:1", body).await });
    }
    let won = one_wins(creators).await;
    let mut movers = JoinSet::new();
    for size in 1..=12 {
        let (refs, body) = (store.refs(), body(record.body.manifest.unwrap(), size * 512));
        movers
            .spawn(async move { refs.update(RefKind::Image, "race:1", won.sequence, body).await });
    }
    let moved = one_wins(movers).await;
    let found = again.refs().get(RefKind::Image, "race:1").await.unwrap().unwrap();
    assert_eq!((found.sequence, found.body), (moved.sequence, moved.body));
    store.refs().remove(RefKind::Image, "race:1", moved.sequence).await.unwrap();
    let names: Vec<_> = again.refs().list(RefKind::Image).await.unwrap().records;
    assert_eq!(names.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["a:1", "a:2"]);

    copied(&store, &record).await;
}

/// A copy into a store with other keys, twice.
async fn copied(from: &Store, record: &RefRecord) {
    let key = store::Settings::generate(&testing::FixedEntropy::new(77)).unwrap();
    let to = Store::create(Arc::new(InMemory::new()), key, testing::world(5)).await.unwrap();
    let manifest = from.manifest(&record.body.manifest.unwrap()).await.unwrap();
    let view = Memory::from(content(1));
    for turn in 0..2 {
        let session = to.session("copy").await.unwrap();
        let outcome = copy::version(from, record, &manifest, &view, &session, &()).await;
        match session.close(outcome).await.unwrap() {
            Copied::Made(stats) => assert!(turn == 0 && stats.new_chunks > 10),
            Copied::Present => assert_eq!(turn, 1),
        }
    }
    let copy = to.refs().get(RefKind::Image, &record.name).await.unwrap().unwrap();
    assert_ne!(copy.body.manifest, record.body.manifest, "other keys, other ids");
    holds(&to, &copy, &content(1)).await;
    let (other, _) = imported(from, content(2), "b:1").await;
    let clash = RefRecord { name: "a:1".into(), ..other };
    let manifest = from.manifest(&clash.body.manifest.unwrap()).await.unwrap();
    let session = to.session("copy").await.unwrap();
    let refused = copy::version(from, &clash, &manifest, &view, &session, &()).await;
    assert_eq!(session.close(refused).await.unwrap_err().kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn memory() {
    conformance(Arc::new(InMemory::new())).await;
}

#[tokio::test]
async fn a_directory() {
    let dir = tempfile::tempdir().unwrap();
    conformance(objects::local(dir.path()).unwrap()).await;
}

#[tokio::test]
async fn a_network_that_fails_all_the_time() {
    for seed in 1..=3 {
        let faults =
            FaultRates { delay: Duration::from_millis(3), conflict: 0, ..FaultRates::all(40) };
        let faulty = Unreliable::new(Arc::new(InMemory::new()), seed, faults);
        let dir = tempfile::tempdir().unwrap();
        let pieces = Some(PieceOptions { dir: dir.path().into(), limit: 64 << 20 });
        let options = OpenStoreOptions { pieces, ..OpenStoreOptions::default() };
        let opened =
            objects::layered(Arc::new(faulty.clone()), "s3://faulty", &options, |patient| patient);
        conformance(opened.backend).await;
        assert!(faulty.injected() > 20, "seed {seed}");
    }
}

/// A port of this machine's own that nobody listens at. It is below those that the system gives to connections and to
/// whoever binds any, and processes begin at different ones: who binds it later finds it free.
fn free_port() -> u16 {
    const LOWEST: u16 = 11_000;
    const EACH: u16 = 100;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = LOWEST + (std::process::id() % 200) as u16 * EACH;
    (0..EACH)
        .map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % EACH)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

/// A running versitygw, with a bucket `bucket`; ended when dropped.
struct Gateway {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Gateway {
    /// `None`, and a message, when the program is not there.
    fn start() -> Option<Self> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.work/bin/versitygw");
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&paths).map(|dir| dir.join("versitygw"));
        let program = if built.exists() { Some(built) } else { places.find(|path| path.exists()) };
        let Some(program) = program else {
            eprintln!("skipped: no versitygw; scripts/setup s3 builds it");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        for name in ["data/bucket", "sidecar"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for _ in 0..5 {
            let port = free_port();
            let mut child = Self::spawn(&program, dir.path(), port);
            if Self::is_ready(&mut child, port) {
                return Some(Self { child, port, dir, program });
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("versitygw does not start");
    }

    fn spawn(program: &Path, dir: &Path, port: u16) -> Child {
        Command::new(program)
            .args(["--access", "key", "--secret", "secret", "--quiet"])
            .args(["--port", &format!("127.0.0.1:{port}"), "posix", "--sidecar"])
            .args([dir.join("sidecar"), dir.join("data")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn is_ready(child: &mut Child, port: u16) -> bool {
        for _ in 0..1200 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return child.try_wait().unwrap().is_none();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::spawn(&self.program, self.dir.path(), self.port);
        assert!(Self::is_ready(&mut self.child, self.port));
    }

    fn options(&self, more: &[(&str, &str)]) -> OpenStoreOptions {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let mut all = BTreeMap::from([
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_ENDPOINT_URL", &endpoint),
        ]);
        all.extend(more.iter().copied());
        let all: Vec<_> = all.into_iter().collect();
        OpenStoreOptions { environment: Environment::of(&all), ..OpenStoreOptions::default() }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_by_versitygw() {
    let Some(gateway) = Gateway::start() else { return };
    let opened = objects::open("s3://bucket/some/prefix", &gateway.options(&[])).unwrap();
    conformance(opened.backend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_says_what_is_wrong_with_bucket_and_credentials() {
    let Some(gateway) = Gateway::start() else { return };
    for (url, more, kind, word) in [
        ("s3://nowhere/x", [("AWS_REGION", "us-east-1")], ErrorKind::Invalid, "bucket"),
        (
            "s3://bucket/x",
            [("AWS_ACCESS_KEY_ID", "nobody")],
            ErrorKind::Denied,
            "AWS_ACCESS_KEY_ID",
        ),
        (
            "s3://bucket/x",
            [("AWS_SECRET_ACCESS_KEY", "no")],
            ErrorKind::Denied,
            "AWS_SECRET_ACCESS_KEY",
        ),
        ("s3://bucket/x", [("AWS_REGION", "us-east-1")], ErrorKind::NotFound, "sojourn init"),
    ] {
        let opened = objects::open(url, &gateway.options(&more)).unwrap();
        let error = Store::open(opened.backend, testing::world(1)).await.unwrap_err();
        let text = format!("{error:?}");
        assert!(error.kind() == kind && error.message().contains(word), "{url} {more:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_wait_for_s3_to_come_back_and_what_is_on_the_local_disk_is_read_meanwhile() {
    let Some(mut gateway) = Gateway::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = OpenStoreOptions {
        patience: Patience::lasting(Duration::from_secs(60)),
        pieces: Some(PieceOptions { dir: dir.path().into(), limit: 1 << 30 }),
        ..gateway.options(&[])
    };
    let opened = objects::open("s3://bucket", &options).unwrap();
    let store =
        Store::create(opened.backend, testing::settings(), testing::world(1)).await.unwrap();
    let (record, _) = imported(&store, content(1), "a:1").await;
    let chunks =
        store.manifest(&record.body.manifest.unwrap()).await.unwrap().chunks().await.unwrap();
    store.read_chunk(&chunks[0]).await.unwrap();
    gateway.stop();
    // Read before: no network is needed.
    store.read_chunk(&chunks[0]).await.unwrap();
    let waiting = {
        let store = store.clone();
        async move { holds(&store, &record, &content(1)).await }
    };
    let (_, gateway) = tokio::join!(waiting, async {
        let tried = async {
            while opened.link.retries().retries == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), tried).await.expect("it tries again");
        gateway.restart();
        gateway
    });
    assert!(opened.link.retries().retries > 0 && opened.link.retries().given_up == 0);
    drop(gateway);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_given_up_in_time() {
    let port = free_port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let environment = Environment::of(&[
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", &endpoint),
    ]);
    let patience = Patience::lasting(Duration::from_secs(1));
    let options = OpenStoreOptions { environment, patience, ..OpenStoreOptions::default() };
    let opened = objects::open("s3://bucket", &options).unwrap();
    let start = tokio::time::Instant::now();
    let error = Store::open(opened.backend, testing::world(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// Serves a directory over HTTP, with ranges, until the process ends.
fn web_server(dir: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let dir = dir.clone();
            std::thread::spawn(move || answer(stream, &dir));
        }
    });
    port
}

/// Answers one request, and closes.
fn answer(mut stream: TcpStream, dir: &Path) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request).to_lowercase();
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = path.replace("%3a", ":").replace("%40", "@");
    let Ok(whole) = std::fs::read(dir.join(path.trim_start_matches('/'))) else {
        let _ = stream
            .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    let range = request.split_once("range: bytes=").and_then(|(_, rest)| {
        let (start, end) = rest.split("\r\n").next()?.split_once('-')?;
        let start: usize = start.parse().ok()?;
        Some((start, end.parse::<usize>().map_or(whole.len(), |end| end + 1).min(whole.len())))
    });
    let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close";
    let (head, part) = match range {
        Some((start, end)) if start < end => (
            format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{}\r\n\
                 Content-Length: {}\r\n{modified}\r\n\r\n",
                end - 1,
                whole.len(),
                end - start
            ),
            &whole[start..end],
        ),
        _ => (
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{modified}\r\n\r\n", whole.len()),
            &whole[..],
        ),
    };
    let _ = stream.write_all(head.as_bytes());
    if method != "head" {
        let _ = stream.write_all(part);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_store_is_read_through_a_plain_web_server() {
    let dir = tempfile::tempdir().unwrap();
    let local = objects::local(dir.path()).unwrap();
    let store =
        Store::create(Arc::clone(&local), testing::settings(), testing::world(1)).await.unwrap();
    let (record, _) = imported(&store, content(1), "a:1").await;
    let url = format!("http://127.0.0.1:{}", web_server(dir.path().into()));
    let opened = objects::open(&url, &OpenStoreOptions::default()).unwrap();
    let web = Store::open(Arc::clone(&opened.backend), testing::world(2)).await.unwrap();
    let early = web.refs().list(RefKind::Image).await.unwrap_err();
    assert!(early.message().contains("sojourn store publish"), "{early}");
    objects::publish::publish(&*local).await.unwrap();
    let found = web.refs().get(RefKind::Image, "a:1").await.unwrap().unwrap();
    assert_eq!(found, record);
    holds(&web, &found, &content(1)).await;
    let refused = web.refs().create(RefKind::Image, "b:1", record.body).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    let path = object_store::path::Path::from("packs/x");
    assert!(opened.backend.put(&path, "x".into()).await.is_err());
}

/// The suite on any store over a network: `STORE_TEST_URL` names it, credentials are where they
/// always are, and the command `STORE_TEST_DISTURB` breaks a part of it in the middle, which it is
/// built to survive. scripts/test-ceph sets all that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_named_by_the_environment() {
    let Ok(url) = std::env::var("STORE_TEST_URL") else {
        eprintln!("skipped: no STORE_TEST_URL; make test-ceph sets it");
        return;
    };
    let patience = Patience::lasting(Duration::from_secs(180));
    let options = OpenStoreOptions { patience, ..OpenStoreOptions::default() };
    let open = |part: &str| objects::open(&format!("{url}/{part}"), &options).unwrap();
    conformance(open("whole").backend).await;
    eprintln!("passed while all was well");

    let opened = open("disturbed");
    let store = Store::create(Arc::clone(&opened.backend), testing::settings(), testing::world(1))
        .await
        .unwrap();
    let mut records = Vec::new();
    for seed in 1..=9 {
        let disturb = async {
            let command = std::env::var("STORE_TEST_DISTURB").ok().filter(|_| seed == 4)?;
            tokio::time::sleep(Duration::from_millis(100)).await;
            Some(Command::new("sh").args(["-c", &command]).status().unwrap())
        };
        let name = format!("image:{seed}");
        let ((record, _), disturbed) =
            tokio::join!(imported(&store, content(seed), &name), disturb);
        if let Some(status) = disturbed {
            assert!(status.success(), "the disturbance itself failed: {status}");
            eprintln!("disturbed in the middle of an import");
        }
        records.push(record);
    }
    let again = Store::open(opened.backend, testing::world(2)).await.unwrap();
    for (seed, record) in (1..).zip(&records) {
        holds(&again, record, &content(seed)).await;
    }
    eprintln!("nothing was lost; {:?}", opened.link.retries());
    conformance(open("after").backend).await;
    eprintln!("passed without the part that was broken");
}

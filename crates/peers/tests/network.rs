//! Peers that speak to each other over TLS on the loopback address, honest and others.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "sockets work in real time")]

use access::{Authority, PeerCredentials};
use async_trait::async_trait;
use block::{ErrorKind, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use lookaside::conformance::{self, asked_for};
use lookaside::share::{KeptChunks, LinkShare, MemberId, ShareBy};
use lookaside::{
    ChunkBytes, ChunkSource, CostEstimate, LinkSharer, ReadOrder, SourceState, Sources, StoreLink,
    Urgency,
};
use objects::testing::{ScriptedStore, StoreCall, StoreFault};
use peers::shelf::{Shelf, StoredChunk};
use peers::testing::{BadPeer, Manner, MemoryShelf};
use peers::wire::{FetchUrgency, PeerQuestion, tag_of};
use peers::{Inventory, Neighbours, PeerServer, PeerSource};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::{ChunkRef, MapId, Settings, Store, testing};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Certificates of two authorities.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        for name in ["lab", "elsewhere"] {
            let tls = dir.path().join(name);
            Authority::create(&tls, name, 30, now.as_secs()).unwrap();
            Authority::open(&tls, now.as_secs()).unwrap().client("alice", 10).unwrap();
        }
        Self(dir)
    }

    fn of(&self, authority: &str) -> PeerCredentials {
        let dir: PathBuf = self.0.path().join(authority).join("clients/alice");
        PeerCredentials::load(&dir).unwrap()
    }
}

/// A peer, with its share of the way to a store of which reads are counted.
struct Agent {
    shelf: Arc<MemoryShelf>,
    sources: Arc<Sources>,
    neighbours: Arc<Neighbours>,
    server: Arc<PeerServer>,
    address: SocketAddr,
    store_reads: AtomicU64,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Nothing;

impl KeptChunks for Nothing {
    fn has(&self, _: &ChunkRef) -> bool {
        false
    }

    fn was_read(&self, _: &ChunkRef) {}
}

/// A store that takes so long that nobody asks it while a peer that has a chunk is only slow.
#[derive(Debug)]
struct FarStore;

impl StoreLink for FarStore {
    fn expected(&self, _: u64) -> Option<(Duration, bool)> {
        Some((Duration::from_secs(60), true))
    }
}

impl Agent {
    async fn start(
        credentials: &PeerCredentials,
        member: u64,
        settings: &Settings,
        here: &[Bytes],
        distant: &[Bytes],
    ) -> Self {
        let shelf = MemoryShelf::new(settings, here, distant);
        let store = CostEstimate { latency: Duration::from_secs(2), bandwidth: 1 << 20 };
        let sources = Arc::new(Sources::new(settings.clone(), "the store", store, Vec::new()));
        let member = MemberId(member);
        sources.share_link(LinkShare { member, by: ShareBy::Chunk, kept: Arc::new(Nothing) });
        let tls = Arc::clone(&credentials.client);
        let neighbours =
            Neighbours::new(Arc::clone(&sources), Arc::clone(&shelf) as _, member, tls);
        let server =
            PeerServer::new(Arc::clone(&shelf) as _, Arc::clone(&neighbours), &credentials.server);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        neighbours.set_port(address.port());
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&server).serve(listener, std::future::pending()));
        let store_reads = AtomicU64::new(0);
        Self { shelf, sources, neighbours, server, address, store_reads, tasks }
    }

    /// One that answers out of `shelf`, at the address that is given. It ends with the tasks.
    async fn of_shelf(
        credentials: &PeerCredentials,
        shelf: Arc<dyn Shelf>,
    ) -> (SocketAddr, JoinSet<()>) {
        let store = CostEstimate { latency: Duration::from_secs(2), bandwidth: 1 << 20 };
        let settings = shelf.settings().clone();
        let sources = Arc::new(Sources::new(settings, "the store", store, Vec::new()));
        let tls = Arc::clone(&credentials.client);
        let neighbours = Neighbours::new(sources, Arc::clone(&shelf), MemberId(1), tls);
        let server = PeerServer::new(shelf, neighbours, &credentials.server);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(server.serve(listener, std::future::pending()));
        (address, tasks)
    }

    /// Another one, as this one asks it.
    fn source(&self, other: SocketAddr, credentials: &PeerCredentials) -> Arc<PeerSource> {
        PeerSource::new(other, &credentials.client, Arc::clone(&self.shelf) as _).unwrap()
    }

    async fn read(&self, plain: &Bytes) {
        let at = asked_for(&testing::settings(), plain);
        let store = || async {
            self.store_reads.fetch_add(1, Relaxed);
            Ok(plain.clone())
        };
        let read = self.sources.read(&at, ReadOrder::Cheapest, Urgency::Demand, store).await;
        assert_eq!(&read.unwrap(), plain);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.neighbours.stop();
    }
}

fn chunks(from: u64, count: u64) -> Vec<Bytes> {
    (from..from + count).map(|seed| testing::noise(seed, 8192).into()).collect()
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "not {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_passes_the_suite_of_sources() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let here = chunks(0, 20);
    let other = Agent::start(&credentials, 1, &settings, &here, &[]).await;
    let own = Agent::start(&credentials, 2, &settings, &[], &[]).await;
    let source = own.source(other.address, &credentials);
    assert!(!source.claims(&settings.chunk_id(&here[0])), "it was not asked what it has");
    let member = source.greet(MemberId(2), own.address.port()).await.unwrap();
    assert_eq!(member, MemberId(1));
    let following = {
        let source = Arc::clone(&source);
        tokio::spawn(async move { source.follow(member).await })
    };
    until("known what it has", || source.chunks() == 20).await;
    conformance::check(&*source, &settings, &here).await;
    assert!(other.server.counters().given >= 60 && other.shelf.paid() >= 60 * 8192);
    following.abort();
    let know_each_other = || own.neighbours.count() == 1 && other.neighbours.count() == 1;
    until("found by whom it greeted, and found back", know_each_other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_fetches_what_it_has_not_and_a_summary_follows() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let distant = chunks(0, 3);
    let other = Agent::start(&credentials, 1, &settings, &[], &distant).await;
    let own = Agent::start(&credentials, 2, &settings, &[], &[]).await;
    own.neighbours.seen(other.address);
    until("there", || own.neighbours.count() == 1).await;
    let source = own.source(other.address, &credentials);
    let at = asked_for(&settings, &distant[0]);
    let missing = source.chunk(&at).await.unwrap_err();
    assert_eq!((missing.kind(), other.shelf.fetched()), (ErrorKind::NotFound, 0));
    let fetched = source.fetch(&at, true).await.unwrap();
    assert_eq!(fetched.bytes.verify(&settings, &at).unwrap(), distant[0]);
    assert_eq!((other.shelf.fetched(), other.server.counters().fetched), (1, 1));
    until("told of", || own.sources.report()[0].claims == Some(1)).await;
    // Asked again, it gives what it has.
    source.fetch(&at, false).await.unwrap();
    assert_eq!(other.shelf.fetched(), 1);
    // What it cannot have, and then nothing more for who asks so.
    let strange = asked_for(&settings, &testing::noise(99, 8192));
    for _ in 0..40 {
        assert_eq!(source.fetch(&strange, true).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert!(other.shelf.fetched() <= 1 + 16, "{}", other.shelf.fetched());
    assert_eq!(source.member(), None, "nor is it an owner to that one");
}

/// What is kept of a store, which is read for who asks.
struct KeptShelf {
    store: Store,
    link: objects::Link,
    inventory: Arc<Inventory>,
    dir: tempfile::TempDir,
    /// Whether the store gives no answer any more, and how often it was asked for a part of a pack since.
    silence: Arc<(AtomicBool, AtomicU64)>,
}

impl KeptShelf {
    async fn new() -> Self {
        let (dir, silence) =
            (tempfile::tempdir().unwrap(), Arc::<(AtomicBool, AtomicU64)>::default());
        let silent = Arc::clone(&silence);
        let memory = Arc::new(object_store::memory::InMemory::new());
        let scripted = ScriptedStore::new(memory, move |call| match call {
            StoreCall::Get(path) | StoreCall::Ranges(path, _)
                if silent.0.load(Relaxed) && path.as_ref().starts_with("packs/") =>
            {
                silent.1.fetch_add(1, Relaxed);
                StoreFault::Hold
            }
            _ => StoreFault::None,
        });
        let pieces = Some(objects::PieceOptions { dir: dir.path().to_owned(), limit: 1 << 30 });
        let options = objects::OpenStoreOptions { pieces, ..Default::default() };
        let opened = objects::layered(Arc::new(scripted), "s3://test", &options, |patient| patient);
        let made = Store::create(opened.backend, testing::settings(), testing::world(1));
        let (store, link) = (made.await.unwrap(), opened.link);
        Self { store, link, inventory: Arc::new(Inventory::new(7)), dir, silence }
    }

    /// A chunk that is read, and kept by that.
    async fn chunk(&self) -> ChunkRef {
        let session = testing::session(&self.store).await;
        let image = block::Memory::from(testing::noise(1, 1 << 20));
        let imported = store::import::from_device(&session, &image, &()).await.unwrap();
        session.close(Ok(())).await.unwrap();
        let segment = self.store.manifest_segments(&imported.manifest).await.unwrap()[0];
        let at = self.store.segment_chunks(&segment).await.unwrap()[0];
        self.store.read_chunk(&at).await.unwrap();
        at
    }
}

#[async_trait]
impl Shelf for KeptShelf {
    fn settings(&self) -> &Settings {
        self.store.settings()
    }

    fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    async fn chunk_here(&self, at: &ChunkRef) -> Result<Option<StoredChunk>> {
        if !self.store.has_kept(&self.link, at) {
            return Ok(None);
        }
        let (backend, path) = (self.store.object_store(), format!("packs/{}", at.pack).into());
        let stored = objects::get_range(&*backend, &path, at.offset.into(), at.stored.into()).await;
        stored.map(|stored| Some((at.encoding, stored)))
    }

    async fn fetch_chunk(&self, at: &ChunkRef, _: FetchUrgency) -> Result<StoredChunk> {
        self.store.read_chunk(at).await.map(|plain| (store::Encoding::Plain, plain))
    }

    async fn map_here(&self, _: &MapId) -> Option<Bytes> {
        None
    }

    async fn fetch_map(&self, id: &MapId) -> Result<Bytes> {
        self.store.map_object(id).await
    }

    fn keep(&self, _: &ChunkRef, _: &ChunkBytes) {}

    async fn pay(&self, _: u64) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_in_vain_and_leaves_takes_nothing_away_and_is_soon_refused() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let shelf = Arc::new(KeptShelf::new().await);
    let at = shelf.chunk().await;
    let (address, _tasks) = Agent::of_shelf(&credentials, Arc::clone(&shelf) as _).await;
    let bad = Agent::start(&credentials, 2, &settings, &[], &[]).await;
    let source = bad.source(address, &credentials);
    let (silent, asked) = &*shelf.silence;
    silent.store(true, Relaxed);
    let mut refused = 0;
    for number in 0..100 {
        // Everything but the id is that of a chunk which is kept.
        let strange = ChunkRef { id: store::ChunkId([number; 32]), ..at };
        let before = asked.load(Relaxed);
        tokio::select! {
            answer = source.fetch(&strange, true) => {
                assert_eq!(answer.unwrap_err().kind(), ErrorKind::NotFound);
                refused += 1;
            }
            () = until("asked", || asked.load(Relaxed) > before) => {}
        }
    }
    // That somebody left is noticed a moment later.
    assert!(asked.load(Relaxed) <= 20 && refused >= 80, "{asked:?}, {refused}");
    assert!(shelf.store.has_kept(&shelf.link, &at), "{:?}", shelf.dir);
    let kept = source.chunk(&at).await.unwrap();
    assert_eq!(kept.verify(&settings, &at).unwrap().len(), at.len as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_anybody_announces_leave_room_for_peers_that_are_there() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let other = Agent::start(&credentials, 1, &settings, &[], &[]).await;
    let own = Agent::start(&credentials, 2, &settings, &[], &[]).await;
    // Nobody is there: those addresses are for documentation (RFC 5737).
    for last in 1..=200u8 {
        own.neighbours.heard_of(SocketAddr::from(([192, 0, 2, last], 9)));
    }
    own.neighbours.seen(other.address);
    until("there", || own.neighbours.count() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_users_of_other_stores_get_nothing() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let here = chunks(0, 3);
    let agent = Agent::start(&certificates.of("lab"), 1, &settings, &here, &[]).await;
    let stranger = agent.source(agent.address, &certificates.of("elsewhere"));
    let at = asked_for(&settings, &here[0]);
    assert_eq!(stranger.chunk(&at).await.map(|_| ()).unwrap_err().kind(), ErrorKind::Unavailable);
    let other_store = Settings::generate(&*testing::world(9).entropy).unwrap();
    let shelf = MemoryShelf::new(&other_store, &[], &[]);
    let credentials = certificates.of("lab");
    let foreign = PeerSource::new(agent.address, &credentials.client, shelf).unwrap();
    assert_eq!(foreign.chunk(&at).await.map(|_| ()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(foreign.greet(MemberId(5), 1).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(agent.server.counters().given, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_given_but_for_its_hash_and_nothing_is_listed() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let here = chunks(0, 3);
    let agent = Agent::start(&credentials, 1, &settings, &here, &[]).await;
    let (host, port) = (agent.address.ip().to_string(), agent.address.port());
    let http = gateway::http::HttpConnection::new(&host, port, &credentials.client).unwrap();
    let ask = async |path: String| {
        let uri = format!("https://{}{path}", agent.address);
        let answer = http.send(Request::get(uri).body(Full::default()).unwrap()).await.unwrap();
        let status = answer.status();
        (status, answer.into_body().collect().await.unwrap().to_bytes())
    };
    let tag = tag_of(&settings);
    let right = asked_for(&settings, &here[0]);
    let (_, body) = ask(PeerQuestion::Chunk { at: right, fetch: None }.text(&tag)).await;
    assert_eq!(body.len(), 8193);
    // Another id with the place of a chunk that is here, and an id with another length.
    let mut id = right.id;
    id.0[31] ^= 1;
    for at in [ChunkRef { id, ..right }, ChunkRef { len: 4096, stored: 4096, ..right }] {
        let (_, body) = ask(PeerQuestion::Chunk { at, fetch: None }.text(&tag)).await;
        assert_eq!(&body[..], [0xff]);
    }
    let listing = format!("/v1/{}/chunks/", "a5".repeat(16));
    for path in ["/", "/v1/", "/v1/objects/store.json", &listing] {
        assert_eq!(ask(path.to_owned()).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    // A summary has 32 bits of each id.
    let (_, body) = ask(PeerQuestion::Summary { log: 0, from: 0 }.text(&tag)).await;
    assert_eq!(body.len(), 16 + 4 * 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_lies_and_one_that_hangs_fail_no_read_and_are_left_alone() {
    for manner in [Manner::Lying, Manner::Hanging] {
        let (certificates, settings) = (Certificates::new(), testing::settings());
        let credentials = certificates.of("lab");
        let bad = BadPeer::new(&settings, manner);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (serving, tls) = (Arc::clone(&bad), Arc::clone(&credentials.server));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { serving.serve(listener, &tls).await });
        let own = Agent::start(&credentials, 2, &settings, &[], &[]).await;
        own.neighbours.seen(address);
        until("there", || own.neighbours.count() == 1).await;
        let all = chunks(0, 40);
        futures::future::join_all(all.iter().map(|plain| own.read(plain))).await;
        assert!(bad.asked() > 0, "it owns about a half");
        assert_eq!(own.store_reads.load(Relaxed), 40);
        let report = &own.sources.report()[0];
        assert_eq!((report.had, report.wrong > 0), (0, manner == Manner::Lying));
        assert!(report.rests > 0 || report.state == SourceState::Resting, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_dies_is_noticed_at_once_and_found_again() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let all = chunks(0, 30);
    let mut other = Agent::start(&credentials, 1, &settings, &all, &[]).await;
    let own = Agent::start(&credentials, 2, &settings, &[], &[]).await;
    own.sources.judge_store_by(Arc::new(FarStore));
    own.neighbours.seen(other.address);
    until("told of", || own.sources.report()[0].claims == Some(30)).await;
    own.read(&all[0]).await;
    assert_eq!((own.store_reads.load(Relaxed), own.shelf.len()), (0, 1), "given, and kept");
    other.tasks.shutdown().await;
    until("away", || own.neighbours.count() == 0).await;
    own.read(&all[1]).await;
    assert_eq!(own.store_reads.load(Relaxed), 1);
    let listener = loop {
        match TcpListener::bind(other.address).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let again = Arc::clone(&other.server);
    other.tasks.spawn(again.serve(listener, std::future::pending()));
    until("there again", || own.sources.report()[0].claims == Some(30)).await;
    own.read(&all[2]).await;
    assert_eq!(own.store_reads.load(Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_revoked_is_asked_nothing_any_more() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let tls = certificates.0.path().join("lab");
    let authority = Authority::open(&tls, now.as_secs()).unwrap();
    let clients = tls.join("clients");
    authority.client("bob", 10).unwrap();
    let kept = certificates.0.path().join("bob");
    std::fs::rename(clients.join("bob"), &kept).unwrap();
    let (alice, bob) = (certificates.of("lab"), PeerCredentials::load(&kept).unwrap());
    let here = chunks(0, 3);
    let other = Agent::start(&bob, 1, &settings, &here, &[]).await;
    let own = Agent::start(&alice, 2, &settings, &[], &[]).await;
    own.sources.judge_store_by(Arc::new(FarStore));
    own.neighbours.seen(other.address);
    until("told of", || own.sources.report().first().is_some_and(|s| s.claims == Some(3))).await;
    own.read(&here[0]).await;
    let given = other.server.counters().given;
    assert_eq!((own.store_reads.load(Relaxed), given), (0, 1));
    authority.revoke("bob").unwrap();
    std::fs::copy(tls.join("ca-crl.pem"), clients.join("alice/ca-crl.pem")).unwrap();
    let read = alice.reload(&clients.join("alice")).unwrap().unwrap();
    own.neighbours.set_tls(Arc::clone(&read.client));
    own.read(&here[1]).await;
    assert_eq!((own.store_reads.load(Relaxed), other.server.counters().given), (1, given));
    until("gone", || own.neighbours.count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_answers_at_many_ports_leaves_room_to_others() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let here = chunks(0, 3);
    let own = Agent::start(&credentials, 2, &settings, &[], &[]).await;
    // Nobody answers at any of these.
    for port in 1..1000 {
        own.neighbours.seen(SocketAddr::from(([127, 0, 0, 2], port)));
    }
    let other = Agent::start(&credentials, 1, &settings, &here, &[]).await;
    own.neighbours.seen(other.address);
    until("told of", || own.sources.report()[0].claims == Some(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_is_longer_than_its_kind_can_be_is_not_taken_in() {
    let (certificates, settings) = (Certificates::new(), testing::settings());
    let credentials = certificates.of("lab");
    let bad = BadPeer::new(&settings, Manner::Flooding);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (serving, tls) = (Arc::clone(&bad), Arc::clone(&credentials.server));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { serving.serve(listener, &tls).await });
    let own = Agent::start(&credentials, 2, &settings, &[], &[]).await;
    let source = own.source(address, &credentials);
    for kind in [1, 2, 3] {
        let id = MapId::of_kind(kind, [7; 32]).unwrap();
        assert!(id.max_len() <= MapId::MAX_LEN);
        let refused = source.map(&id).await.is_err_and(|error| {
            error.kind() == ErrorKind::Corrupt && error.message().contains("more than was asked")
        });
        // What is as long as it may be is found out by its hash.
        assert_eq!(refused, id.max_len() < MapId::MAX_LEN, "{id}");
    }
}

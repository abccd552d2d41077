//! Answering other peers.

use crate::neighbours::Neighbours;
use crate::shelf::{Shelf, StoredChunk};
use crate::wire::{
    FetchUrgency, Hello, LONGEST_CHUNK, NOT_HERE, PROTOCOL, PeerQuestion, StoreTag, VERSION, tag_of,
};
use arc_swap::ArcSwap;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use gateway::GatewayLimits;
use gateway::http::{
    ClientUsage, ConnectionProgress, Conversation, LiveGatewayCounters, ReplyBody, RequestPermit,
    content, problem, slices,
};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use lookaside::ChunkBytes;
use lookaside::share::MemberId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use store::{ChunkRef, MapId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// How long accepting rests after it failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// So long an answer waits for something new to tell.
const NEWS: Duration = Duration::from_secs(20);
/// Chunks and maps that are loaded for others at a time.
const LOADS: usize = 64;
/// So many loads in vain, less those that were not, …
const IN_VAIN: u32 = 16;
/// … and nothing is loaded for that peer for so long.
const SULK: Duration = Duration::from_secs(60);
/// Peers without a connection that are remembered.
const MOST_IDLE: usize = 256;
/// What a peer may use.
const LIMITS: GatewayLimits = GatewayLimits {
    connections: 32,
    all_connections: 256,
    requests: 128,
    bytes: 64 << 20,
    rate: 4000,
    patience: Duration::from_secs(30),
    idle: Duration::from_secs(300),
};

/// What was given to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PeerCounters {
    /// Connections of others that are open.
    pub connections: u64,
    /// Chunks and maps that were given.
    pub given: u64,
    /// Their bytes, as they are stored.
    pub given_bytes: u64,
    /// The ones that were read from the store for others.
    pub fetched: u64,
    /// Questions for what is not here.
    pub missed: u64,
}

#[derive(Debug, Default)]
struct GivenTally {
    given: AtomicU64,
    bytes: AtomicU64,
    fetched: AtomicU64,
    missed: AtomicU64,
}

/// Another peer, by its name and address: all its connections.
struct AskingPeer {
    name: String,
    usage: ClientUsage,
    /// Connections.
    open: AtomicU64,
    /// Loads in vain, and until when there are no others.
    in_vain: Mutex<(u32, Option<Instant>)>,
}

/// Answers peers of one store.
pub struct PeerServer {
    tag: StoreTag,
    member: MemberId,
    shelf: Arc<dyn Shelf>,
    neighbours: Arc<Neighbours>,
    tls: ArcSwap<ServerConfig>,
    peers: Mutex<HashMap<(IpAddr, String), Arc<AskingPeer>>>,
    connections: Arc<LiveGatewayCounters>,
    places: Arc<Semaphore>,
    loads: Semaphore,
    tally: GivenTally,
}

impl PeerServer {
    /// One that gives what is on `shelf`, and tells `neighbours` of who asks. Certificates are asked for as `tls` says.
    pub fn new(
        shelf: Arc<dyn Shelf>,
        neighbours: Arc<Neighbours>,
        tls: &ServerConfig,
    ) -> Arc<Self> {
        Arc::new(Self {
            tag: tag_of(shelf.settings()),
            member: neighbours.member(),
            shelf,
            neighbours,
            tls: ArcSwap::from_pointee(speaking(tls)),
            peers: Mutex::default(),
            connections: Arc::default(),
            places: Arc::new(Semaphore::new(LIMITS.all_connections)),
            loads: Semaphore::new(LOADS),
            tally: GivenTally::default(),
        })
    }

    /// Shows and trusts other certificates from the next peer on.
    pub fn set_tls(&self, tls: &ServerConfig) {
        self.tls.store(Arc::new(speaking(tls)));
    }

    /// What was given.
    pub fn counters(&self) -> PeerCounters {
        PeerCounters {
            connections: self.connections.snapshot().connections,
            given: self.tally.given.load(Relaxed),
            given_bytes: self.tally.bytes.load(Relaxed),
            fetched: self.tally.fetched.load(Relaxed),
            missed: self.tally.missed.load(Relaxed),
        }
    }

    /// Answers at `listener` until `stop`; connections end with it.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: impl Future<Output = ()>) {
        let (mut connections, mut stop) = (JoinSet::new(), std::pin::pin!(stop));
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => match Arc::clone(&self.places).try_acquire_owned() {
                        Ok(place) => {
                            let server = Arc::clone(&self);
                            connections.spawn(async move {
                                server.welcome(stream, from).await;
                                drop(place);
                            });
                        }
                        Err(_) => tracing::debug!(%from, "a peer found no place"),
                    },
                    Err(error) => {
                        tracing::debug!(%error, "a peer cannot be accepted");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Lets a peer in that shows who it is.
    async fn welcome(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let acceptor = TlsAcceptor::from(self.tls.load_full());
        let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%from, %error, "a peer cannot encrypt"),
            Err(_) => return tracing::debug!(%from, "the TLS handshake did not end in time"),
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let name = shown.map(|certificate| access::name::of_certificate(certificate));
        let Some(Ok(name)) = name else {
            return tracing::debug!(%from, "a peer's certificate names nobody");
        };
        if stream.get_ref().1.alpn_protocol() != Some(PROTOCOL) {
            return tracing::debug!(%from, peer = name, "a peer does not speak HTTP/2");
        }
        let peer = self.peer(from.ip(), &name);
        if peer.open.fetch_add(1, Relaxed) < LIMITS.connections as u64 {
            tracing::debug!(peer = name, %from, "a peer came");
            let (server, asking) = (Arc::clone(self), Arc::clone(&peer));
            let answer = move |request, progress| {
                let (server, asking) = (Arc::clone(&server), Arc::clone(&asking));
                async move { server.answer(&asking, from.ip(), &progress, request).await }
            };
            let tally = Arc::clone(&self.connections);
            let conversation = Conversation { client: name, limits: LIMITS, tally };
            conversation.serve(stream, answer, std::future::pending(), &Notify::new()).await;
        }
        peer.open.fetch_sub(1, Relaxed);
    }

    fn peer(&self, address: IpAddr, name: &str) -> Arc<AskingPeer> {
        let mut peers = self.peers.lock();
        if peers.len() > MOST_IDLE {
            peers.retain(|_, peer| peer.open.load(Relaxed) > 0 || Arc::strong_count(peer) > 1);
        }
        let made = || {
            Arc::new(AskingPeer {
                name: name.to_owned(),
                usage: ClientUsage::new(LIMITS),
                open: AtomicU64::new(0),
                in_vain: Mutex::default(),
            })
        };
        Arc::clone(peers.entry((address, name.to_owned())).or_insert_with(made))
    }

    async fn answer(
        self: &Arc<Self>,
        peer: &Arc<AskingPeer>,
        from: IpAddr,
        progress: &Arc<ConnectionProgress>,
        request: Request<Incoming>,
    ) -> Response<ReplyBody> {
        let answered = async {
            let text = request.uri().path_and_query().map_or("", |text| text.as_str());
            let question =
                PeerQuestion::parse(&self.tag, text).filter(|_| request.method() == Method::GET);
            // Another store's is told no more than one that makes no sense.
            let question =
                question.ok_or_else(|| Error::not_found("there is nothing here by that name"))?;
            let mut turn = peer.usage.turn().await?;
            Ok::<_, Error>(match question {
                PeerQuestion::Hello { member, port } => {
                    if member != self.member && port > 0 {
                        self.neighbours.seen(SocketAddr::new(from, port));
                    }
                    content("application/json", self.hello()?, progress, Some(turn))
                }
                PeerQuestion::Summary { log, from } => {
                    let inventory = Arc::clone(self.shelf.inventory());
                    let news = tokio::time::timeout(NEWS, inventory.news(log, from)).await;
                    let part = news.unwrap_or_else(|_| inventory.since(log, from)).encode();
                    content(BYTES, part.into(), progress, Some(turn))
                }
                PeerQuestion::Chunk { at, fetch } => {
                    peer.usage.memory(&mut turn, LONGEST_CHUNK).await?;
                    let (server, peer) = (Arc::clone(self), Arc::clone(peer));
                    let given = async move { server.chunk(&peer, &at, fetch).await };
                    streamed(given, progress, turn)
                }
                PeerQuestion::Map { id, fetch } => {
                    peer.usage.memory(&mut turn, LONGEST_CHUNK).await?;
                    let (server, peer) = (Arc::clone(self), Arc::clone(peer));
                    streamed(async move { server.map(&peer, &id, fetch).await }, progress, turn)
                }
            })
        };
        answered.await.unwrap_or_else(|error| problem(&error, progress))
    }

    fn hello(&self) -> Result<Bytes> {
        let hello = Hello {
            peer: VERSION,
            member: format!("{:016x}", self.member.0),
            sojourn: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let text = serde_json::to_vec(&hello);
        text.map(Bytes::from)
            .map_err(|e| Error::internal("an answer cannot be written").with_source(e))
    }

    /// The number of a chunk's encoding, and its bytes; `None` when it is not here, nor loaded.
    async fn chunk(
        &self,
        peer: &AskingPeer,
        at: &ChunkRef,
        fetch: Option<FetchUrgency>,
    ) -> Result<Option<(u8, Bytes)>> {
        // Verified, so that nothing is given but for the hash of it.
        let verified = |(encoding, bytes): StoredChunk| {
            let given = ChunkBytes::Stored(encoding, bytes.clone());
            given.verify(self.shelf.settings(), at).map(|_| (encoding as u8, bytes))
        };
        let here = self.shelf.chunk_here(at).await?.and_then(|stored| verified(stored).ok());
        let (given, is_fetched) = match (here, fetch) {
            (Some(here), _) => (Some(here), false),
            (None, None) => (None, false),
            (None, Some(urgency)) => {
                let fetched = async { verified(self.shelf.fetch_chunk(at, urgency).await?) };
                (self.load(peer, fetched).await?, true)
            }
        };
        self.count(given.as_ref().map(|(_, bytes)| bytes), is_fetched).await;
        Ok(given)
    }

    /// The object of a map, behind the number 0.
    async fn map(&self, peer: &AskingPeer, id: &MapId, fetch: bool) -> Result<Option<(u8, Bytes)>> {
        let verified = |object: Bytes| {
            let is_right = id.verify(self.shelf.settings(), object.clone());
            is_right.map(|_| object)
        };
        let here = self.shelf.map_here(id).await.and_then(|object| verified(object).ok());
        let (given, is_fetched) = match (here, fetch) {
            (Some(here), _) => (Some(here), false),
            (None, false) => (None, false),
            (None, true) => {
                let fetched = async { verified(self.shelf.fetch_map(id).await?) };
                (self.load(peer, fetched).await?, true)
            }
        };
        self.count(given.as_ref(), is_fetched).await;
        Ok(given.map(|object| (0, object)))
    }

    /// Counts what is about to be given, and pays for it.
    async fn count(&self, given: Option<&Bytes>, is_fetched: bool) {
        let Some(bytes) = given.map(Bytes::len) else {
            self.tally.missed.fetch_add(1, Relaxed);
            return;
        };
        self.tally.given.fetch_add(1, Relaxed);
        self.tally.bytes.fetch_add(bytes as u64, Relaxed);
        self.tally.fetched.fetch_add(is_fetched.into(), Relaxed);
        self.shelf.pay(bytes as u64).await;
    }

    /// Loads something for a peer; `None` when there is no such thing, or not for this machine, or when that peer asked
    /// in vain too often.
    async fn load<T>(
        &self,
        peer: &AskingPeer,
        loaded: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        if peer.is_refused() {
            return Ok(None);
        }
        let _turn = self.loads.acquire().await;
        // By what became of other loads while this one waited for its turn.
        if peer.is_refused() {
            return Ok(None);
        }
        let mut begun = BegunLoad { peer, is_in_vain: true };
        let outcome = loaded.await;
        match outcome {
            Ok(loaded) => {
                begun.is_in_vain = false;
                Ok(Some(loaded))
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl AskingPeer {
    /// Whether nothing is loaded for it.
    fn is_refused(&self) -> bool {
        self.in_vain.lock().1.is_some_and(|until| Instant::now() < until)
    }
}

/// A load that has begun. It was in vain unless something comes of it: also when the asker leaves before, or the store
/// cannot be read, since it took a turn and may have gone to the store.
struct BegunLoad<'a> {
    peer: &'a AskingPeer,
    is_in_vain: bool,
}

impl Drop for BegunLoad<'_> {
    fn drop(&mut self) {
        let mut in_vain = self.peer.in_vain.lock();
        if !self.is_in_vain {
            in_vain.0 = in_vain.0.saturating_sub(1);
            return;
        }
        in_vain.0 += 1;
        if in_vain.0 >= IN_VAIN {
            *in_vain = (0, Some(Instant::now() + SULK));
            let peer = &self.peer.name;
            tracing::info!(peer, "nothing is loaded for a peer that asks in vain");
        }
    }
}

/// What is sent as bytes.
const BYTES: &str = "application/octet-stream";

/// An answer whose headers go at once, so that the asker sees that somebody is there.
fn streamed(
    given: impl Future<Output = Result<Option<(u8, Bytes)>>> + Send + 'static,
    progress: &Arc<ConnectionProgress>,
    turn: RequestPermit,
) -> Response<ReplyBody> {
    // A task of its own, which ends with the answer: it may hold a turn while it waits, and an answer that its asker
    // does not take is not polled.
    let mut task = JoinSet::new();
    task.spawn(given);
    let given = async move {
        let joined = task.join_next().await.and_then(std::result::Result::ok);
        joined.unwrap_or_else(|| Err(Error::internal("what a peer asked for was not got")))
    };
    let body = stream::once(given).flat_map(|given| {
        let parts = match given {
            Ok(Some((first, bytes))) => {
                let first = Bytes::copy_from_slice(&[first]);
                std::iter::once(first).chain(slices(bytes)).map(Ok).collect::<Vec<_>>()
            }
            Ok(None) => vec![Ok(Bytes::from_static(&[NOT_HERE]))],
            // The stream is reset.
            Err(error) => vec![Err(io::Error::other(error.message().to_owned()))],
        };
        stream::iter(parts)
    });
    Response::new(ReplyBody::new(body.boxed(), progress, turn))
}

/// TLS that speaks our protocol.
pub(crate) fn speaking(tls: &ServerConfig) -> ServerConfig {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    tls
}

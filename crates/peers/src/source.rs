//! Asking another peer.

use crate::claims::{ClaimRoom, PeerClaims};
use crate::shelf::Shelf;
use crate::summary::{LONGEST, SummaryPart};
use crate::wire::{FetchUrgency, Hello, LONGEST_CHUNK, NOT_HERE, PeerQuestion, StoreTag, tag_of};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use block::{Error, ErrorKind, Result};
use bytes::{Buf, Bytes, BytesMut};
use gateway::http::HttpConnection;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::{Request, StatusCode};
use lookaside::share::MemberId;
use lookaside::{ChunkBytes, ChunkSource, CostEstimate, Fetched, LinkSharer, SourceKind};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkId, ChunkRef, Encoding, MapId};
use tokio::time::{Instant, timeout};
use tokio_rustls::rustls::ClientConfig;

/// A machine in the same LAN.
const NEAR: CostEstimate = CostEstimate { latency: Duration::from_millis(3), bandwidth: 40 << 20 };
/// How long a peer is left alone that had nothing to tell, and said so.
const NOTHING_NEW: Duration = Duration::from_secs(1);
/// Whoever is there shows that so soon.
const HEADERS: Duration = Duration::from_secs(2);
/// How long an answer may take that waits for something, and one that does not.
const SLOWEST: Duration = Duration::from_secs(60);
const BODY: Duration = Duration::from_secs(20);
/// So many chunks at a time are asked of a peer.
const TURNS: usize = 32;
/// After so many answers in a row that it cannot read something, a peer is no owner …
const REFUSALS: u32 = 8;
/// … for so long.
const ASIDE: Duration = Duration::from_secs(60);
/// What a map is taken to have: nobody says how long it is.
const TYPICAL_MAP: u64 = 64 << 10;
/// The longest hello, in bytes.
const LONGEST_HELLO: u64 = 4 << 10;

/// A peer, as a source of chunks. It claims nothing before [`greet`](Self::greet), and while it is away.
pub struct PeerSource {
    name: String,
    address: SocketAddr,
    tag: StoreTag,
    connection: ArcSwap<HttpConnection>,
    shelf: Arc<dyn Shelf>,
    known: Mutex<KnownPeer>,
}

struct KnownPeer {
    /// While it is there.
    member: Option<MemberId>,
    claims: PeerClaims,
    /// Answers in a row that it cannot read what was asked of it as the owner.
    refusals: u32,
    aside: Option<Instant>,
}

/// What came of a question, and the time that it took but for what was waited for its first byte.
struct PeerAnswer {
    body: Bytes,
    took: Duration,
}

/// A connection that is made when something is sent.
fn connect(address: SocketAddr, tls: &ClientConfig) -> Result<HttpConnection> {
    HttpConnection::new(&address.ip().to_string(), address.port(), tls)
}

fn network_error(name: &str, e: std::io::Error) -> Error {
    Error::unavailable(format!("peer {name}: {e}")).with_source(e)
}

fn late(name: &str) -> Error {
    Error::unavailable(format!("peer {name} does not answer in time"))
}

/// The body of a peer's answer, of at most `most` bytes, and when the first of them came. One that gives a byte now and
/// then has no longer for all of them than one that is honest.
async fn body_of<B>(name: &str, mut body: B, most: u64) -> Result<(Bytes, Option<Instant>)>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let taking = async {
        let (mut bytes, mut first) = (BytesMut::new(), None);
        loop {
            // The first byte may wait for the peer's own read of the store.
            let patience = if first.is_none() { SLOWEST } else { BODY };
            let frame = timeout(patience, body.frame()).await.map_err(|_| late(name))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|e| network_error(name, std::io::Error::other(e)))?;
            let Ok(data) = frame.into_data() else { continue };
            first.get_or_insert_with(Instant::now);
            if (bytes.len() + data.len()) as u64 > most {
                return Err(Error::corrupt(format!("peer {name} gives more than was asked for")));
            }
            bytes.extend_from_slice(&data);
        }
        Ok((bytes.freeze(), first))
    };
    timeout(SLOWEST + BODY, taking).await.unwrap_or_else(|_| Err(late(name)))
}

impl PeerSource {
    /// The peer at an address; what it gives is kept on `shelf`. `tls` says who is trusted and what is shown. Nothing
    /// is asked of the network yet.
    ///
    /// # Errors
    /// None for an IP address.
    pub fn new(
        address: SocketAddr,
        tls: &ClientConfig,
        shelf: Arc<dyn Shelf>,
    ) -> Result<Arc<Self>> {
        Self::among(&Arc::default(), address, tls, shelf)
    }

    /// The same, with `room` for what it claims, which it shares with others.
    ///
    /// # Errors
    /// None for an IP address.
    pub(crate) fn among(
        room: &Arc<ClaimRoom>,
        address: SocketAddr,
        tls: &ClientConfig,
        shelf: Arc<dyn Shelf>,
    ) -> Result<Arc<Self>> {
        let claims = PeerClaims::new(address.ip(), Arc::clone(room));
        Ok(Arc::new(Self {
            name: address.to_string(),
            address,
            tag: tag_of(shelf.settings()),
            connection: ArcSwap::from_pointee(connect(address, tls)?),
            shelf,
            known: Mutex::new(KnownPeer { member: None, claims, refusals: 0, aside: None }),
        }))
    }

    /// Asks by another connection from now on, on which `tls` says who is trusted and what is shown.
    ///
    /// # Errors
    /// None for an IP address.
    pub fn set_tls(&self, tls: &ClientConfig) -> Result<()> {
        self.connection.store(Arc::new(connect(self.address, tls)?));
        Ok(())
    }

    /// Asks who it is, and says that we are `member` and answer at `port`.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when it has another store,
    /// [`Unsupported`](ErrorKind::Unsupported) when it speaks another version; [`Unavailable`](ErrorKind::Unavailable).
    pub async fn greet(&self, member: MemberId, port: u16) -> Result<MemberId> {
        let answer =
            self.ask(&PeerQuestion::Hello { member, port }, LONGEST_HELLO, HEADERS).await?;
        let hello: Option<Hello> = serde_json::from_slice(&answer.body).ok();
        hello.and_then(|hello| hello.member()).ok_or_else(|| {
            Error::unsupported(format!(
                "{} speaks another version of the peers' protocol",
                self.name
            ))
        })
    }

    /// Follows what it has, as the member that it is, until it is away; then it claims nothing. Gives why.
    pub async fn follow(&self, member: MemberId) -> Error {
        self.known.lock().member = Some(member);
        let error = loop {
            if let Err(error) = self.catch_up().await {
                break error;
            }
        };
        let mut known = self.known.lock();
        known.claims.clear();
        (known.member, known.refusals, known.aside) = (None, 0, None);
        error
    }

    async fn catch_up(&self) -> Result<()> {
        let (log, from) = self.known.lock().claims.known();
        let answer =
            self.ask(&PeerQuestion::Summary { log, from }, LONGEST as u64, SLOWEST).await?;
        let none = || Error::corrupt("its summary is none");
        let part = SummaryPart::decode(&answer.body).ok_or_else(none)?;
        if !self.known.lock().claims.take(&part) {
            return Err(none());
        }
        if part.bits.is_empty() {
            // An honest peer answers when it has something.
            tokio::time::sleep(NOTHING_NEW).await;
        }
        Ok(())
    }

    /// Sends a question, and takes an answer of at most `most` bytes, whose headers come within `headers`.
    async fn ask(
        &self,
        question: &PeerQuestion,
        most: u64,
        headers: Duration,
    ) -> Result<PeerAnswer> {
        let began = Instant::now();
        let uri = format!("https://{}{}", self.address, question.text(&self.tag));
        let request = Request::get(uri).body(Full::default());
        let request =
            request.map_err(|e| Error::internal("a question cannot be written").with_source(e))?;
        let connection = self.connection.load_full();
        let answer = timeout(headers, connection.send(request)).await;
        let answer =
            answer.map_err(|_| late(&self.name))?.map_err(|e| network_error(&self.name, e))?;
        let to_headers = began.elapsed();
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                return Err(Error::not_found(format!("peer {} has another store", self.name)));
            }
            status => {
                return Err(Error::unavailable(format!("peer {}: status {status}", self.name)));
            }
        }
        let (body, first) = body_of(&self.name, answer.into_body(), most).await?;
        let took = to_headers + first.map_or(Duration::ZERO, |first| first.elapsed());
        Ok(PeerAnswer { body, took })
    }

    /// The chunk, and the peer's own time.
    async fn chunk_for(&self, at: &ChunkRef, fetch: Option<FetchUrgency>) -> Result<Fetched> {
        let question = PeerQuestion::Chunk { at: *at, fetch };
        let PeerAnswer { mut body, took } = self.ask(&question, LONGEST_CHUNK + 1, HEADERS).await?;
        let first = (!body.is_empty()).then(|| body.get_u8());
        match first.and_then(Encoding::from_number) {
            Some(encoding) => Ok(Fetched { bytes: ChunkBytes::Stored(encoding, body), took }),
            None if first == Some(NOT_HERE) => {
                Err(Error::not_found(format!("chunk {} is not at peer {}", at.id, self.name)))
            }
            None => Err(Error::corrupt(format!("peer {} gives what is no chunk", self.name))),
        }
    }

    async fn map_for(&self, id: &MapId, fetch: bool) -> Result<Bytes> {
        let question = PeerQuestion::Map { id: *id, fetch };
        let mut body = self.ask(&question, id.max_len() + 1, HEADERS).await?.body;
        match (!body.is_empty()).then(|| body.get_u8()) {
            Some(0) => Ok(body),
            Some(NOT_HERE) => Err(Error::not_found(format!("{id} is not at peer {}", self.name))),
            _ => Err(Error::corrupt(format!("peer {} gives what is no map", self.name))),
        }
    }

    /// Notes what an owner answered. One that cannot read what it is asked for is none for a while.
    fn was_owner<T>(&self, outcome: &Result<T>) {
        let mut known = self.known.lock();
        match outcome {
            Ok(_) => known.refusals = 0,
            Err(e) if e.kind() == ErrorKind::NotFound => known.refusals += 1,
            Err(_) => {}
        }
        if known.refusals >= REFUSALS {
            (known.refusals, known.aside) = (0, Some(Instant::now() + ASIDE));
        }
    }
}

#[async_trait]
impl ChunkSource for PeerSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Peer
    }

    fn estimate(&self) -> CostEstimate {
        NEAR
    }

    fn is_distant(&self) -> bool {
        false
    }

    fn turns(&self) -> usize {
        TURNS
    }

    fn claims(&self, id: &ChunkId) -> bool {
        self.known.lock().claims.claims(id.as_bytes())
    }

    fn chunks(&self) -> u64 {
        self.known.lock().claims.len()
    }

    async fn chunk(&self, at: &ChunkRef) -> Result<ChunkBytes> {
        self.chunk_for(at, None).await.map(|fetched| fetched.bytes)
    }

    fn disown(&self, id: &ChunkId) {
        self.known.lock().claims.disown(id.as_bytes());
    }

    fn gave(&self, at: &ChunkRef, given: &ChunkBytes) {
        self.shelf.keep(at, given);
    }

    fn claims_map(&self, id: &MapId) -> Option<u64> {
        self.known.lock().claims.claims(id.as_bytes()).then_some(TYPICAL_MAP)
    }

    async fn map(&self, id: &MapId) -> Result<Bytes> {
        self.map_for(id, false).await
    }

    fn disown_map(&self, id: &MapId) {
        self.known.lock().claims.disown(id.as_bytes());
    }

    fn sharer(&self) -> Option<&dyn LinkSharer> {
        Some(self)
    }
}

#[async_trait]
impl LinkSharer for PeerSource {
    fn member(&self) -> Option<MemberId> {
        let known = self.known.lock();
        known.member.filter(|_| known.aside.is_none_or(|until| until <= Instant::now()))
    }

    async fn fetch(&self, at: &ChunkRef, urgent: bool) -> Result<Fetched> {
        let urgency = if urgent { FetchUrgency::Demand } else { FetchUrgency::Ahead };
        let outcome = self.chunk_for(at, Some(urgency)).await;
        self.was_owner(&outcome);
        outcome
    }

    async fn fetch_map(&self, id: &MapId) -> Result<Bytes> {
        let outcome = self.map_for(id, true).await;
        self.was_owner(&outcome);
        outcome
    }
}

impl std::fmt::Debug for PeerSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerSource({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use std::convert::Infallible;

    /// A body of so many bytes, each of which comes half as long after the one before as it may.
    fn dripping(bytes: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let drops = stream::iter(0..bytes).then(|_| async {
            tokio::time::sleep(BODY / 2).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x")))
        });
        StreamBody::new(Box::pin(drops))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_gives_a_byte_now_and_then_is_not_waited_for_longer_than_an_honest_one() {
        let (whole, _) = body_of("a peer", dripping(5), 1 << 20).await.unwrap();
        assert_eq!(whole.len(), 5);
        let began = Instant::now();
        let told = body_of("a peer", dripping(1000), 1 << 20).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Unavailable, "{told}");
        assert!(began.elapsed() < Duration::from_secs(100), "{:?}", began.elapsed());
    }
}

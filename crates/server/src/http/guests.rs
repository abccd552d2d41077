//! HTTP clients in their places: not too many at a time, and none for ever, so that clients that ask
//! nothing neither use up the server's descriptors nor keep monitoring out.

use super::HttpClients;
use super::holding::{HoldingBody, HoldingUntil};
use crate::origin::{ClientPlace, Origin};
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Clients at a time, without those for which something is being carried out. One more takes the place of one that asks
/// nothing, or if there is none of any other: of the one that got nothing for longest.
pub(crate) const MOST: usize = 64;
/// Connections at a time, with those that were told to leave and have not gone yet.
const CONNECTIONS: usize = 2 * MOST;
/// How long a client keeps its place without getting anything: from its connection, from its last
/// answer, or from the first byte that it asked with since. It bounds a request that never ends, a client
/// that takes no answers, and one that is idle.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// How long accepting rests after it failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener whose clients have a place.
pub(crate) struct Guests {
    socket: TcpListener,
    places: Vec<Arc<GuestPlace>>,
}

/// A client's place.
struct GuestPlace {
    /// When it got something last.
    served: parking_lot::Mutex<Instant>,
    /// When its time began.
    since: parking_lot::Mutex<Instant>,
    /// It was told to leave.
    told: AtomicBool,
    leave: Notify,
    /// What it asked for that is being carried out: it is not silent then.
    awaits: AtomicUsize,
    /// What it asked for and did not get in full.
    requests: AtomicUsize,
}

impl GuestPlace {
    fn is_awaiting(&self) -> bool {
        self.awaits.load(SeqCst) > 0
    }

    /// The client with the least leaves first: one that asks nothing before one that asked, then by when it got
    /// something last.
    fn standing(&self) -> (bool, Instant) {
        (self.requests.load(SeqCst) > 0, *self.served.lock())
    }
}

impl ClientPlace for GuestPlace {
    fn begin_work(&self) {
        self.awaits.fetch_add(1, SeqCst);
    }

    fn end_work(&self) {
        *self.since.lock() = Instant::now();
        self.awaits.fetch_sub(1, SeqCst);
    }

    fn begin_request(&self) {
        self.requests.fetch_add(1, SeqCst);
    }

    fn end_request(&self) {
        self.requests.fetch_sub(1, SeqCst);
    }
}

/// A client on its place.
pub(crate) struct Guest {
    stream: TcpStream,
    place: Arc<GuestPlace>,
    /// Ready when it has to leave.
    patience: Pin<Box<dyn Future<Output = io::Error> + Send>>,
    left: bool,
    /// Something came from it since it got something.
    asks: bool,
}

impl Guests {
    /// Those who come by `socket`.
    pub(crate) fn new(socket: TcpListener) -> Self {
        Self { socket, places: Vec::new() }
    }

    /// Gives a client a place, for which another one may have to leave. `None` when those do not go.
    fn admit(&mut self, stream: TcpStream) -> Option<Guest> {
        self.places.retain(|place| Arc::strong_count(place) > 1);
        if self.places.len() >= CONNECTIONS {
            return None;
        }
        let stays = |place: &&Arc<GuestPlace>| !place.told.load(SeqCst) && !place.is_awaiting();
        let stay: Vec<_> = self.places.iter().filter(stays).collect();
        if stay.len() >= MOST
            && let Some(leaves) = stay.iter().min_by_key(|place| place.standing())
        {
            leaves.told.store(true, SeqCst);
            leaves.leave.notify_one();
        }
        let place = Arc::new(GuestPlace {
            served: Instant::now().into(),
            since: Instant::now().into(),
            told: AtomicBool::new(false),
            leave: Notify::new(),
            awaits: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        });
        self.places.push(Arc::clone(&place));
        let patience = Box::pin(patience(Arc::clone(&place)));
        Some(Guest { stream, place, patience, left: false, asks: false })
    }
}

/// The same routes, whose clients keep their places until the first part of their answer is there, `most` of them at a
/// time: it may take longer than a client may be silent, and who waits for it is not idle. Others have the usual time.
pub(crate) fn patiently(router: Router, most: usize) -> Router {
    router.layer(from_fn_with_state(Arc::new(Semaphore::new(most)), keep_place))
}

async fn keep_place(
    State(turns): State<Arc<Semaphore>>,
    ConnectInfo(origin): ConnectInfo<Origin>,
    request: Request,
    next: Next,
) -> Response {
    let kept = turns.try_acquire_owned().ok().map(|turn| (origin.keep_place(), turn));
    let answer = next.run(request).await;
    answer.map(|body| HoldingBody::wrap(body, kept, HoldingUntil::FirstPart))
}

/// Waits until a client has to leave, and says why.
async fn patience(place: Arc<GuestPlace>) -> io::Error {
    loop {
        let end = *place.since.lock() + SILENCE;
        tokio::select! {
            () = place.leave.notified() => {
                return io::Error::other("too many HTTP clients: this one got nothing for longest");
            }
            () = tokio::time::sleep_until(end) => {}
        }
        if place.is_awaiting() {
            *place.since.lock() = Instant::now();
        }
        if *place.since.lock() + SILENCE <= end {
            return io::Error::new(io::ErrorKind::TimedOut, "the HTTP client asks nothing");
        }
    }
}

impl Guests {
    /// The next guest. Nothing is lost when this is cancelled.
    pub(super) async fn accept(&mut self) -> (Guest, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok((stream, from)) => match self.admit(stream) {
                    Some(guest) => return (guest, from),
                    None => tracing::debug!(%from, "closed: there are too many HTTP clients"),
                },
                Err(error) => {
                    tracing::warn!(%error, "accepting an HTTP client failed");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

impl HttpClients for Guests {
    type Stream = Guest;

    async fn next(&mut self) -> (Guest, Origin) {
        let (guest, from) = self.accept().await;
        let origin = guest.origin(from);
        (guest, origin)
    }
}

impl Guest {
    /// Where what it asks for comes from.
    pub(super) fn origin(&self, from: SocketAddr) -> Origin {
        Origin::tcp(from).on(Arc::clone(&self.place) as _)
    }

    /// Fails when it has to leave; otherwise sees to it that the task wakes then.
    fn stays(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.left {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match self.patience.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(why) => {
                self.left = true;
                tracing::debug!(%why, "closed");
                Err(why)
            }
        }
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stays(cx)?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if !self.asks && buf.filled().len() > before {
            self.asks = true;
            *self.place.since.lock() = Instant::now();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stays(cx)?;
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        let now = Instant::now();
        (*self.place.served.lock(), *self.place.since.lock()) = (now, now);
        self.asks = false;
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer;
    use super::*;
    use crate::signals::Switch;
    use axum::body::Body;
    use axum::http::header::CONTENT_LENGTH;
    use axum::routing::get;
    use futures::stream;
    use std::convert::Infallible;
    use std::sync::Weak;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::task::JoinSet;

    /// More than sockets hold.
    const LARGE: usize = 64 << 20;
    /// Clients that keep their places until they get something, at a time.
    const PATIENT: usize = 2;

    /// Time that passes only where a test lets it: tokio has it go on by itself as soon as nothing else is to be done,
    /// also while something is on its way between two sockets.
    struct Still(Option<std::sync::mpsc::Sender<()>>);

    impl Still {
        #[allow(
            clippy::disallowed_methods,
            reason = "time does not go on by itself while a thread works"
        )]
        fn begin() -> Self {
            let (end, work) = std::sync::mpsc::channel();
            tokio::task::spawn_blocking(move || work.recv());
            Self(Some(end))
        }

        async fn pass(&mut self, time: Duration) {
            self.0 = None;
            tokio::time::sleep(time).await;
            *self = Self::begin();
        }
    }

    /// Guests whose places the test sees.
    struct Watched(Guests, UnboundedSender<Weak<GuestPlace>>);

    impl HttpClients for Watched {
        type Stream = Guest;

        async fn next(&mut self) -> (Guest, Origin) {
            let (guest, origin) = self.0.next().await;
            let _ = self.1.send(Arc::downgrade(&guest.place));
            (guest, origin)
        }
    }

    /// A server, which ends with this, in time that stands still.
    struct Served {
        address: SocketAddr,
        still: Still,
        places: UnboundedReceiver<Weak<GuestPlace>>,
        /// Answers that were begun and take their time.
        begun: UnboundedReceiver<()>,
        _tasks: JoinSet<()>,
    }

    struct Client {
        stream: TcpStream,
        place: Weak<GuestPlace>,
    }

    impl Served {
        async fn start() -> Self {
            let still = Still::begin();
            let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            let (begins, begun) = unbounded_channel();
            let (carries_out, reads) = (begins.clone(), begins.clone());
            let slow = move || async move {
                begins.send(()).unwrap();
                tokio::time::sleep(SILENCE * 3 / 4).await;
                "ok\n"
            };
            let carry_out = async move |ConnectInfo(origin): ConnectInfo<Origin>| {
                let _kept = origin.keep_place();
                carries_out.send(()).unwrap();
                tokio::time::sleep(SILENCE * 5 / 2).await;
                "ok\n"
            };
            let read_slowly = async move || {
                reads.send(()).unwrap();
                tokio::time::sleep(SILENCE * 5 / 4).await;
                let part = stream::once(async {
                    tokio::time::sleep(SILENCE * 5 / 4).await;
                    Ok::<_, Infallible>("ok\n")
                });
                ([(CONTENT_LENGTH, "3")], Body::from_stream(part))
            };
            let router = Router::new()
                .route("/read", get(read_slowly))
                .route("/healthz", get(|| async { "ok\n" }))
                .route("/large", get(|| async { vec![0; LARGE] }));
            let router =
                patiently(router, PATIENT).route("/slow", get(slow)).route("/kept", get(carry_out));
            let (seen, places) = unbounded_channel();
            let mut tasks = JoinSet::new();
            let guests = Watched(Guests::new(socket), seen);
            tasks.spawn(answer(guests, router, Switch::new(), || false));
            Self { address, still, places, begun, _tasks: tasks }
        }

        /// A client that has its place.
        async fn connect(&mut self) -> Client {
            let stream = TcpStream::connect(self.address).await.unwrap();
            Client { stream, place: self.places.recv().await.unwrap() }
        }

        /// Asks for what takes so long, and takes the answer.
        async fn ask_slowly(&mut self, client: &mut Client, path: &str, time: Duration) {
            client.begins(path).await;
            self.begun.recv().await.unwrap();
            self.still.pass(time).await;
            client.takes().await;
        }

        /// How long it takes until a client is let go.
        async fn let_go(&mut self, client: &mut Client) -> Duration {
            let began = Instant::now();
            while client.has_its_place() {
                assert!(began.elapsed() < SILENCE * 10, "it stays for ever");
                self.still.pass(Duration::from_millis(100)).await;
            }
            let took = began.elapsed();
            client.is_closed().await;
            took
        }
    }

    impl Client {
        async fn begins(&mut self, path: &str) {
            let ask = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            self.stream.write_all(ask.as_bytes()).await.unwrap();
        }

        async fn takes(&mut self) {
            let mut answer = Vec::new();
            while !answer.ends_with(b"ok\n") {
                assert_ne!(self.stream.read_buf(&mut answer).await.unwrap(), 0, "cut off");
            }
        }

        /// Asks, and takes the answer.
        async fn asks(&mut self) {
            self.begins("/healthz").await;
            self.takes().await;
        }

        /// Whether the server has it still: it keeps the place itself, and the client's connection does.
        fn has_its_place(&self) -> bool {
            self.place.strong_count() > 1
        }

        /// Waits until it is told that it was let go.
        async fn is_closed(&mut self) {
            assert!(matches!(self.stream.read(&mut [0]).await, Ok(0) | Err(_)));
        }
    }

    fn is_silence(time: Duration) -> bool {
        (SILENCE..SILENCE + Duration::from_secs(1)).contains(&time)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_nothing_is_let_go() {
        let mut server = Served::start().await;
        let mut client = server.connect().await;
        assert!(is_silence(server.let_go(&mut client).await));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_its_time_anew_after_each_answer() {
        let mut server = Served::start().await;
        let mut client = server.connect().await;
        for _ in 0..3 {
            server.still.pass(SILENCE * 3 / 4).await;
            client.asks().await;
        }
        assert!(is_silence(server.let_go(&mut client).await));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_late_is_served_in_its_time() {
        let mut server = Served::start().await;
        let mut client = server.connect().await;
        for _ in 0..3 {
            server.still.pass(SILENCE * 3 / 4).await;
            server.ask_slowly(&mut client, "/slow", SILENCE * 3 / 4).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_what_is_being_carried_out_keeps_its_place() {
        let mut server = Served::start().await;
        let mut client = server.connect().await;
        for _ in 0..2 {
            server.ask_slowly(&mut client, "/kept", SILENCE * 5 / 2).await;
        }
        assert!(is_silence(server.let_go(&mut client).await));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_first_part_of_its_answer_keeps_its_place_and_others_have_their_time()
    {
        let mut server = Served::start().await;
        let mut clients = Vec::new();
        for _ in 0..=PATIENT {
            let mut client = server.connect().await;
            client.begins("/read").await;
            server.begun.recv().await.unwrap();
            clients.push(client);
        }
        let mut late = clients.pop().unwrap();
        assert!(is_silence(server.let_go(&mut late).await), "one more than may wait so");
        server.still.pass(SILENCE * 3 / 2).await;
        for client in &mut clients {
            client.takes().await;
        }
        // Their time has begun anew, and others may wait so.
        server.let_go(&mut clients[0]).await;
        let mut next = server.connect().await;
        server.ask_slowly(&mut next, "/read", SILENCE * 5 / 2).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_an_answer_stays_while_others_ask_nothing() {
        let moment = Duration::from_millis(1);
        let mut server = Served::start().await;
        let mut waits = server.connect().await;
        waits.begins("/slow").await;
        server.begun.recv().await.unwrap();
        let mut idle = Vec::new();
        for _ in 1..MOST {
            server.still.pass(moment).await;
            idle.push(server.connect().await);
        }
        // The one that waits got nothing for longest.
        let mut newcomers = Vec::new();
        for leaves in idle.iter_mut().take(3) {
            let mut newcomer = server.connect().await;
            newcomer.asks().await;
            newcomers.push(newcomer);
            leaves.is_closed().await;
        }
        server.still.pass(SILENCE * 3 / 4).await;
        waits.takes().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_comes_byte_by_byte_is_not_waited_for() {
        let mut server = Served::start().await;
        let mut client = server.connect().await;
        let began = Instant::now();
        client.stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x").await.unwrap();
        while client.has_its_place() {
            assert!(began.elapsed() < SILENCE * 10, "it stays for ever");
            server.still.pass(Duration::from_secs(2)).await;
            // It may have been let go just now.
            let _ = client.stream.write_all(b"x").await;
        }
        assert!(began.elapsed() < SILENCE + Duration::from_secs(7), "{:?}", began.elapsed());
        client.is_closed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_its_answer_is_let_go() {
        let mut server = Served::start().await;
        let mut client = server.connect().await;
        client.begins("/large").await;
        let began = Instant::now();
        while client.has_its_place() {
            assert!(began.elapsed() < SILENCE * 10, "it stays for ever");
            server.still.pass(SILENCE / 3).await;
        }
        let mut answer = Vec::new();
        let _ = client.stream.read_to_end(&mut answer).await;
        assert!(answer.len() < LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_too_many_takes_the_place_of_the_one_that_got_nothing_for_longest() {
        let moment = Duration::from_millis(1);
        let mut server = Served::start().await;
        let mut clients = Vec::new();
        for _ in 0..MOST {
            clients.push(server.connect().await);
            server.still.pass(moment).await;
        }
        for busy in [0, MOST - 1] {
            clients[busy].asks().await;
            server.still.pass(moment).await;
        }
        for _ in 0..3 {
            let mut brief = server.connect().await;
            brief.asks().await;
            drop(brief); // it leaves again
            let mut late = server.connect().await;
            late.asks().await;
            clients.push(late);
            server.still.pass(moment).await;
        }
        for gone in &mut clients[1..=3] {
            gone.is_closed().await;
        }
        for stays in [0, MOST - 1, MOST, MOST + 2] {
            clients[stays].asks().await;
        }
    }
}

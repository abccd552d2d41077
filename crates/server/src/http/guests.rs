//! HTTP clients in their places: not too many at a time, and none for ever, so that clients that ask
//! nothing neither use up the server's descriptors nor keep monitoring out.

use super::HttpClients;
use crate::origin::{ClientPlace, Origin};
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
use tokio::sync::Notify;
use tokio::time::Instant;

/// Clients at a time; one more takes the place of the one that got nothing for longest.
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
}

impl GuestPlace {
    fn is_awaiting(&self) -> bool {
        self.awaits.load(SeqCst) > 0
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
        let stay = || self.places.iter().filter(|place| !place.told.load(SeqCst));
        if stay().count() >= MOST
            && let Some(longest) =
                stay().filter(|place| !place.is_awaiting()).min_by_key(|place| *place.served.lock())
        {
            longest.told.store(true, SeqCst);
            longest.leave.notify_one();
        }
        let place = Arc::new(GuestPlace {
            served: Instant::now().into(),
            since: Instant::now().into(),
            told: AtomicBool::new(false),
            leave: Notify::new(),
            awaits: AtomicUsize::new(0),
        });
        self.places.push(Arc::clone(&place));
        let patience = Box::pin(patience(Arc::clone(&place)));
        Some(Guest { stream, place, patience, left: false, asks: false })
    }
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
    use axum::Router;
    use axum::extract::ConnectInfo;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinSet;

    const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    /// More than sockets hold.
    const LARGE: usize = 64 << 20;

    async fn slow() -> &'static str {
        tokio::time::sleep(SILENCE * 3 / 4).await;
        "ok\n"
    }

    /// A server, which ends with the tasks.
    async fn served() -> (SocketAddr, JoinSet<()>) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let router = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/large", get(|| async { vec![0; LARGE] }))
            .route("/slow", get(slow));
        let mut tasks = JoinSet::new();
        tasks.spawn(answer(Guests::new(socket), router, Switch::new(), || false));
        (address, tasks)
    }

    async fn connect(to: SocketAddr) -> TcpStream {
        TcpStream::connect(to).await.unwrap()
    }

    /// Asks, and takes the answer.
    async fn asks(client: &mut TcpStream) {
        client.write_all(ASK).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
        }
    }

    /// How long it takes until a client is let go, in seconds.
    async fn let_go(client: &mut TcpStream) -> u64 {
        let began = Instant::now();
        let mut byte = [0];
        let read = client.read(&mut byte);
        let read = tokio::time::timeout(SILENCE * 10, read).await.expect("it stays for ever");
        assert!(matches!(read, Ok(0) | Err(_)));
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_nothing_is_let_go() {
        let (address, _tasks) = served().await;
        let mut client = connect(address).await;
        assert_eq!(let_go(&mut client).await, SILENCE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_its_time_anew_after_each_answer() {
        let (address, _tasks) = served().await;
        let mut client = connect(address).await;
        for _ in 0..3 {
            tokio::time::sleep(SILENCE * 3 / 4).await;
            asks(&mut client).await;
        }
        assert_eq!(let_go(&mut client).await, SILENCE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_late_is_served_in_its_time() {
        let (address, _tasks) = served().await;
        let mut client = connect(address).await;
        for _ in 0..3 {
            tokio::time::sleep(SILENCE * 3 / 4).await;
            client.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"ok\n") {
                assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "cut off");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_what_is_being_carried_out_keeps_its_place() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let carry_out = async |ConnectInfo(origin): ConnectInfo<Origin>| {
            let _kept = origin.keep_place();
            tokio::time::sleep(SILENCE * 5 / 2).await;
            "ok\n"
        };
        let router = Router::new().route("/healthz", get(carry_out));
        let mut tasks = JoinSet::new();
        tasks.spawn(answer(Guests::new(socket), router, Switch::new(), || false));
        let mut client = connect(address).await;
        asks(&mut client).await;
        asks(&mut client).await;
        assert_eq!(let_go(&mut client).await, SILENCE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_comes_byte_by_byte_is_not_waited_for() {
        let (address, _tasks) = served().await;
        let mut client = connect(address).await;
        let (began, mut sent) = (Instant::now(), 0);
        let unended = &ASK[..ASK.len() - 4];
        while client.write_all(if sent == 0 { unended } else { b"x" }).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(2)).await;
            sent += 1;
            assert!(sent < 100, "it stays for ever");
        }
        assert!(began.elapsed() < SILENCE + Duration::from_secs(7), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_its_answer_is_let_go() {
        let (address, _tasks) = served().await;
        let mut client = connect(address).await;
        client.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        tokio::time::sleep(SILENCE * 3).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(SILENCE, client.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.len() < LARGE);
    }

    #[tokio::test]
    async fn one_client_too_many_takes_the_place_of_the_one_that_got_nothing_for_longest() {
        let (address, _tasks) = served().await;
        let mut clients = Vec::new();
        for _ in 0..MOST {
            clients.push(connect(address).await);
        }
        for busy in [0, MOST - 1] {
            asks(&mut clients[busy]).await;
        }
        for _ in 0..3 {
            asks(&mut connect(address).await).await; // it leaves again
            let mut late = connect(address).await;
            asks(&mut late).await;
            clients.push(late);
        }
        for gone in &mut clients[1..=3] {
            tokio::time::timeout(SILENCE / 3, let_go(gone)).await.unwrap();
        }
        for stays in [0, MOST - 1, MOST, MOST + 2] {
            asks(&mut clients[stays]).await;
        }
    }
}

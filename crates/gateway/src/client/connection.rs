//! The connection to a server: one, for all requests, and made again when it breaks.

use super::GatewayUrl;
use super::upload::{SentBody, in_time};
use super::upload_turns::UploadTurns;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long connecting may take, with the handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// The first pause after a connection that failed, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often a silent server is asked whether it still is, and how long its word is waited for.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(30);
/// What is kept for the network of one request's body, and encrypted of all: over a thin link the question whether
/// the server still is waits behind it.
const SEND_AHEAD: usize = 64 << 10;
const ENCRYPTED_AHEAD: usize = 32 << 10;
/// What the server may send ahead of one reader, and of all: 100 Mb/s over half a second.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The way to a server.
pub struct HttpConnection {
    url: GatewayUrl,
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    live: Option<LiveConnection>,
    /// Connections that failed since the last one that did not.
    failures: u32,
    /// No attempt begins before this.
    after: Option<Instant>,
}

struct LiveConnection {
    sender: SendRequest<SentBody>,
    turns: Arc<UploadTurns>,
    _driver: JoinSet<()>,
}

impl HttpConnection {
    /// The way to a port of a host; nothing is asked of the network yet.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a host that no certificate can name.
    pub fn new(host: &str, port: u16, config: &ClientConfig) -> block::Result<Self> {
        Self::to(GatewayUrl { host: host.to_owned(), port, certificates: None }, config)
    }

    /// The way to `url`, as [`new`](Self::new).
    pub(crate) fn to(url: GatewayUrl, config: &ClientConfig) -> block::Result<Self> {
        let mut config = config.clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(url.host.clone()).map_err(|_| {
            block::Error::invalid(format!("{:?} cannot be in a certificate", url.host))
        })?;
        Ok(Self { url, tls: Arc::new(config), name, state: Mutex::default() })
    }

    pub(crate) fn url(&self) -> &GatewayUrl {
        &self.url
    }

    /// Sends a request; gives the answer when its headers are here. However long its body takes, it is given up only
    /// when nothing goes on.
    ///
    /// # Errors
    /// Any error from the network, TLS and HTTP.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> io::Result<Response<Incoming>> {
        let (sender, turns) = self.sender().await?;
        send_by(sender, &turns, request).await
    }

    async fn sender(&self) -> io::Result<(SendRequest<SentBody>, Arc<UploadTurns>)> {
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live
            && !live.sender.is_closed()
        {
            return Ok((live.sender.clone(), Arc::clone(&live.turns)));
        }
        state.live = None;
        if let Some(after) = state.after {
            tokio::time::sleep_until(after).await;
        }
        match timeout(CONNECT, self.connect()).await {
            Ok(Ok(live)) => {
                (state.failures, state.after) = (0, None);
                let by = (live.sender.clone(), Arc::clone(&live.turns));
                state.live = Some(live);
                Ok(by)
            }
            failed => {
                let pause = FIRST_PAUSE * 2u32.saturating_pow(state.failures.min(10));
                state.failures += 1;
                state.after = Some(Instant::now() + pause.min(LONGEST_PAUSE));
                match failed {
                    Ok(Err(error)) => Err(error),
                    _ => Err(late("the server cannot be reached")),
                }
            }
        }
    }

    async fn connect(&self) -> io::Result<LiveConnection> {
        let stream = TcpStream::connect((self.url.host.as_str(), self.url.port)).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let mut stream = connector.connect(self.name.clone(), stream).await?;
        stream.get_mut().1.set_buffer_limit(Some(ENCRYPTED_AHEAD));
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{} does not speak HTTP/2: is it the right port?", self.url),
            ));
        }
        LiveConnection::over(stream, self.url.to_string()).await
    }
}

impl LiveConnection {
    /// Speaks HTTP/2 over a stream; `url` is how it is called in the log.
    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        url: String,
    ) -> io::Result<Self> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(16 << 10)
            .max_send_buf_size(SEND_AHEAD)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(url, %error, "an HTTP/2 connection ended");
            }
        });
        Ok(Self { sender, turns: Arc::default(), _driver: driver })
    }
}

async fn send_by(
    mut sender: SendRequest<SentBody>,
    turns: &Arc<UploadTurns>,
    request: Request<Full<Bytes>>,
) -> io::Result<Response<Incoming>> {
    let (head, body) = request.into_parts();
    let is_upload = head.method == Method::PUT;
    let _awaited = (!is_upload).then(|| turns.ask());
    let (body, progress) = SentBody::of(body, is_upload.then_some(turns)).await;
    let answer = async {
        sender.ready().await.map_err(broken)?;
        sender.send_request(Request::from_parts(head, body)).await.map_err(broken)
    };
    in_time(&progress, answer).await.ok_or_else(|| late("the server does not answer"))?
}

/// Errors of HTTP/2: the connection broke, or the stream was reset. Either may be tried again.
pub(crate) fn broken(error: hyper::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// Nothing came for too long.
pub(crate) fn late(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// A server that takes whole bodies and says how long they were, behind a link that brings `rate` bytes in a
    /// second there until it has brought `most` of them.
    fn server_behind_a_link(rate: usize, most: usize, tasks: &mut JoinSet<()>) -> DuplexStream {
        let (here, link) = tokio::io::duplex(16 << 10);
        let (there, server) = tokio::io::duplex(16 << 10);
        let ((mut asks, mut is_told), (mut answers, mut to_server)) =
            (tokio::io::split(link), tokio::io::split(there));
        tasks.spawn(async move {
            let (mut brought, mut buffer) = (0, vec![0; rate]);
            while let Ok(len @ 1..) = asks.read(&mut buffer).await {
                brought += len;
                if brought > most {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_secs(1).mul_f64(len as f64 / rate as f64)).await;
                if to_server.write_all(&buffer[..len]).await.is_err() {
                    break;
                }
            }
        });
        tasks.spawn(async move {
            let _ = tokio::io::copy(&mut answers, &mut is_told).await;
        });
        tasks.spawn(async move {
            let answer = service_fn(async |request: Request<Incoming>| {
                let body = request.into_body().collect().await?.to_bytes();
                Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(body.len().to_string()))))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(server), answer).await;
        });
        here
    }

    fn upload(len: usize) -> Request<Full<Bytes>> {
        let request = Request::put("https://localhost/v1/objects/x");
        request.body(Full::new(Bytes::from(vec![7; len]))).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_over_a_thin_link_takes_as_long_as_it_needs() {
        let mut tasks = JoinSet::new();
        let link = server_behind_a_link(4 << 10, usize::MAX, &mut tasks);
        let live = LiveConnection::over(link, "test".to_owned()).await.unwrap();
        let began = Instant::now();
        let answer = send_by(live.sender.clone(), &live.turns, upload(1 << 20)).await.unwrap();
        let said = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(said, (1 << 20).to_string());
        assert!(began.elapsed() > Duration::from_secs(240), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_during_an_upload_waits_for_little_of_it() {
        let mut tasks = JoinSet::new();
        let link = server_behind_a_link(16 << 10, usize::MAX, &mut tasks);
        let live = LiveConnection::over(link, "test".to_owned()).await.unwrap();
        let (sender, turns) = (live.sender.clone(), Arc::clone(&live.turns));
        let mut uploads = JoinSet::new();
        uploads.spawn(async move { send_by(sender, &turns, upload(512 << 10)).await });
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut took = Vec::new();
        while uploads.try_join_next().is_none() {
            let began = Instant::now();
            let ask = Request::get("https://localhost/v1/").body(Full::default()).unwrap();
            send_by(live.sender.clone(), &live.turns, ask).await.unwrap();
            took.push(began.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        took.sort_unstable();
        let (median, count) = (took[took.len() / 2], took.len());
        // A slice takes a second. Without turns each waits for all that the connection takes, five of them.
        assert!(median < Duration::from_millis(2500), "{median:?} of {count}");
        assert!((10..200).contains(&count), "{count}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_stands_still_is_given_up() {
        let mut tasks = JoinSet::new();
        let link = server_behind_a_link(4 << 10, 64 << 10, &mut tasks);
        let live = LiveConnection::over(link, "test".to_owned()).await.unwrap();
        let began = Instant::now();
        send_by(live.sender.clone(), &live.turns, upload(1 << 20)).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(180), "{:?}", began.elapsed());
    }
}

//! The connection to a server: one, for all requests, and made again when it breaks.

use super::GatewayUrl;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long connecting may take, with the handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the headers of an answer are waited for.
const ANSWER: Duration = Duration::from_secs(60);
/// The first pause after a connection that failed, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often a silent server is asked whether it still is, and how long its word is waited for.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(20);
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
    sender: SendRequest<Full<Bytes>>,
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

    /// Sends a request; gives the answer when its headers are here.
    ///
    /// # Errors
    /// Any error from the network, TLS and HTTP.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> io::Result<Response<Incoming>> {
        let mut sender = self.sender().await?;
        let answer = async {
            sender.ready().await.map_err(broken)?;
            sender.send_request(request).await.map_err(broken)
        };
        timeout(ANSWER, answer).await.map_err(|_| late("the server does not answer"))?
    }

    async fn sender(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live
            && !live.sender.is_closed()
        {
            return Ok(live.sender.clone());
        }
        state.live = None;
        if let Some(after) = state.after {
            tokio::time::sleep_until(after).await;
        }
        match timeout(CONNECT, self.connect()).await {
            Ok(Ok(live)) => {
                (state.failures, state.after) = (0, None);
                let sender = live.sender.clone();
                state.live = Some(live);
                Ok(sender)
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
        let stream = connector.connect(self.name.clone(), stream).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{} does not speak HTTP/2: is it the right port?", self.url),
            ));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(16 << 10)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let mut driver = JoinSet::new();
        let url = self.url.to_string();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(url, %error, "an HTTP/2 connection ended");
            }
        });
        Ok(LiveConnection { sender, _driver: driver })
    }
}

/// Errors of HTTP/2: the connection broke, or the stream was reset. Either may be tried again.
pub(crate) fn broken(error: hyper::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// Nothing came for too long.
pub(crate) fn late(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

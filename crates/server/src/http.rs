//! The HTTP port: metrics, health and status, for monitoring, the dashboard, and the API.

pub(crate) mod guests;
mod holding;
mod https;

use super::listen;
use super::running::RunningServer;
use super::security::Security;
use super::signals::Switch;
use super::{metrics, status};
use crate::answers::problem;
use crate::bearer::{self, Authority};
use crate::dashboard::{self, Dashboard, Guard};
use crate::http_api::{self, HttpApi};
use crate::origin::Origin;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use block::{Error, Result};
use engine::config::Serve;
use engine::config::listener::{ConfiguredListener, HttpAccess, TlsMode};
use guests::Guests;
use holding::{HoldingBody, HoldingUntil};
use https::Encrypted;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower_service::Service;

/// How long a stop waits for clients in the middle of a request: they may never end it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpRules {
    /// Names by which it may be asked, beside the machine's own.
    pub(crate) names: Vec<String>,
    /// Whether one may look without a token.
    pub(crate) access: HttpAccess,
}

impl HttpRules {
    /// The terms that a configuration sets.
    pub(crate) fn of(config: &Serve) -> Self {
        Self { names: config.http_names.clone(), access: config.http_access }
    }
}

/// A port that is open.
pub(crate) struct Port {
    /// The listener that the user asked for.
    place: ConfiguredListener,
    socket: TcpListener,
    local: SocketAddr,
    rules: HttpRules,
    /// The server behind it.
    stop: Switch,
}

impl Port {
    /// Listens at `place`, or goes on with the socket that another server `had` there.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the port is in use,
    /// [`Denied`](block::ErrorKind::Denied) for an address that other machines reach, and where no
    /// certificate is asked for.
    pub(crate) async fn open(
        place: ConfiguredListener,
        rules: HttpRules,
        insecure: bool,
        had: Option<OwnedFd>,
    ) -> Result<Self> {
        let address: SocketAddr = place
            .address
            .parse()
            .map_err(|_| Error::invalid(format!("HTTP port {}: write IP:PORT", place.address)))?;
        listen::check_http(address, place.tls.unwrap_or_default(), insecure)?;
        let fail = |e| Error::io(format!("HTTP port {address}; choose another with --http"), e);
        let socket = match had {
            Some(socket) => TcpListener::from_std(socket.into()), // it does not block already
            None => TcpListener::bind(address).await,
        };
        let socket = socket.map_err(fail)?;
        let local = socket.local_addr().map_err(fail)?;
        Ok(Self { place, socket, local, rules, stop: Switch::new() })
    }

    /// What the user asked for.
    pub(crate) fn place(&self) -> &ConfiguredListener {
        &self.place
    }

    /// Who is answered.
    pub(crate) fn rules(&self) -> &HttpRules {
        &self.rules
    }

    /// Whether it is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.place.is_encrypted()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.local
    }

    /// The socket, for a successor.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn share(&self) -> Result<OwnedFd> {
        self.socket
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::io(format!("HTTP port {}", self.local), e))
    }

    /// A socket to [`serve`](Self::serve) at.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn listen(&self) -> Result<TcpListener> {
        let fail = |e| Error::io(format!("HTTP port {}", self.local), e);
        let socket = std::net::TcpListener::from(self.share()?);
        TcpListener::from_std(socket).map_err(fail)
    }

    /// Answers at `socket` in a task until [`close`](Self::close).
    ///
    /// # Errors
    /// When it is to be encrypted and there are no certificates.
    pub(crate) fn serve(
        &self,
        socket: TcpListener,
        running: &Arc<RunningServer>,
        security: &Security,
        tasks: &mut JoinSet<()>,
    ) -> Result<()> {
        let dashboard = Dashboard::new(running, self.stop.clone(), guests::MOST / 2);
        tasks.spawn(dashboard.clone().follow());
        let guard = Guard::new(self.place.is_encrypted(), &self.rules.names);
        let authority = Authority::new(&running.home, self.rules.access);
        let router = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/metrics", get(send_metrics))
            .route("/v1/status", get(send_status))
            .with_state(Arc::clone(running))
            .merge(dashboard::routes(dashboard))
            .merge(http_api::routes(HttpApi::new(running)))
            .layer(from_fn_with_state(authority, bearer::authorize))
            .layer(from_fn_with_state(guard, dashboard::guard))
            .layer(from_fn_with_state(Arc::clone(running), http_api::note_refusals));
        let (stop, never) = (self.stop.clone(), || false);
        let clients = Guests::new(socket);
        match self.place.tls.unwrap_or_default() {
            TlsMode::Off => {
                tasks.spawn(async move { answer(clients, router, stop, never).await });
            }
            tls => {
                let certified = tls == TlsMode::Required;
                let encrypted = Encrypted::new(clients, security.credentials()?, certified);
                tasks.spawn(async move { answer(encrypted, router, stop, never).await });
            }
        }
        tracing::info!(address = %self.local, tls = %self.place.tls.unwrap_or_default(), "listening for HTTP");
        Ok(())
    }

    /// Takes no more clients.
    pub(crate) fn close(&self) {
        self.stop.throw();
    }
}

/// Where clients come from.
pub(crate) trait HttpClients: Send + 'static {
    /// A client's connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next client, and where it comes from. Nothing is lost when this is cancelled.
    fn next(&mut self) -> impl Future<Output = (Self::Stream, Origin)> + Send;
}

/// Answers until `stop`, and for as long after it as something is `busy`: clients that never end
/// their request are cut off. HTTP/1 alone: on one connection of HTTP/2 a client may ask for hundreds of things and
/// take no answer, while places and their time are counted by connections.
pub(crate) async fn answer(
    mut clients: impl HttpClients,
    router: Router,
    stop: Switch,
    busy: impl Fn() -> bool,
) {
    let mut conversations = JoinSet::new();
    let mut stopped = pin!(stop.wait());
    loop {
        tokio::select! {
            (stream, origin) = clients.next() => {
                conversations.spawn(talk(stream, origin, router.clone(), stop.wait()));
            }
            Some(_) = conversations.join_next() => {}
            () = &mut stopped => break,
        }
    }
    drop(clients);
    let patience = async {
        tokio::time::sleep(PATIENCE).await;
        if busy() {
            while busy() {
                tokio::time::sleep(PATIENCE).await;
            }
            // What came of it is still to be answered.
            tokio::time::sleep(PATIENCE).await;
        }
    };
    tokio::select! {
        () = async { while conversations.join_next().await.is_some() {} } => {}
        () = patience => tracing::debug!("HTTP clients were cut off"),
    }
}

/// Answers a client until it has asked for the last time; from `stop` on only what it has begun to ask.
async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    origin: Origin,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(origin.clone()));
        let open = origin.open_request();
        let answering = router.clone().call(request);
        async move {
            let answer = answering.await?;
            Ok::<_, Infallible>(answer.map(|body| match open {
                Some(open) => HoldingBody::wrap(body, open, HoldingUntil::End),
                None => body,
            }))
        }
    });
    let conversation = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut conversation = pin!(conversation.with_upgrades());
    let ended = tokio::select! {
        ended = conversation.as_mut() => ended,
        () = stop => {
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "an HTTP client's connection broke");
    }
}

async fn send_metrics(State(running): State<Arc<RunningServer>>) -> Response {
    match status::collect(&running).await.and_then(metrics::text) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(e) => problem(&e),
    }
}

pub(crate) async fn send_status(State(running): State<Arc<RunningServer>>) -> Response {
    match status::collect(&running).await {
        Ok(status) => Json(status).into_response(),
        Err(e) => problem(&e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn a_client_that_never_ends_its_request_does_not_hold_up_the_stop() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let (stop, busy) = (Switch::new(), AtomicBool::new(true));
        let half = async {
            client.write_all(b"GET /healthz HTTP/1.1\r\nHo").await.unwrap();
            // Nothing shows that it has come, and a paused clock may go on before it has: the socket is real.
            tokio::time::sleep(Duration::from_millis(200)).await;
            stop.throw();
            tokio::time::sleep(PATIENCE * 3 / 2).await;
            busy.store(false, SeqCst);
        };
        let answering = async {
            answer(Guests::new(listener), router, stop.clone(), || busy.load(SeqCst)).await;
            assert!(!busy.load(SeqCst), "what is being carried out is waited for");
        };
        let both = async { tokio::join!(answering, half) };
        tokio::time::timeout(PATIENCE * 10, both).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_begins_with_http_2_is_not_answered_in_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let mut tasks = JoinSet::new();
        tasks.spawn(answer(Guests::new(listener), router, Switch::new(), || false));
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        client.write_all(preface).await.unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    }
}

//! One connection of a client: TLS, HTTP/2, and how long it may stand still.

use super::counters::LiveGatewayCounters;
use super::limits::GatewayLimits;
use super::progress::ConnectionProgress;
use super::reply::ReplyBody;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Requests of one connection at the same time.
const STREAMS: u32 = 100;
/// The longest list of headers, in bytes.
const HEADERS: u32 = 16 << 10;
/// What a client may send ahead of one request, and of all of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// How often a silent connection is asked whether it still is.
const PING: Duration = Duration::from_secs(20);

/// Requests are tasks of their connection, and end with it.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            task.await;
        });
    }
}

/// A connection that counts as open until this is dropped.
struct OpenConnection<'a>(&'a LiveGatewayCounters);

impl<'a> OpenConnection<'a> {
    fn new(tally: &'a LiveGatewayCounters) -> Self {
        tally.connected();
        Self(tally)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

/// A connection of a client, and what that may use.
pub struct Conversation {
    /// Who the client is, for the log.
    pub client: String,
    /// What it may use.
    pub limits: GatewayLimits,
    /// Where it is counted.
    pub tally: Arc<LiveGatewayCounters>,
}

impl Conversation {
    /// Has `answer` answer the requests of a connection until it ends, stands still or has to `leave`; after `draining`
    /// no new ones.
    pub async fn serve<A>(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        answer: impl Fn(Request<Incoming>, Arc<ConnectionProgress>) -> A,
        draining: impl Future<Output = ()>,
        leave: &Notify,
    ) where
        A: Future<Output = Response<ReplyBody>> + Send + 'static,
    {
        let (limits, client) = (&self.limits, &self.client);
        let _open = OpenConnection::new(&self.tally);
        let progress = Arc::new(ConnectionProgress::new(Arc::clone(&self.tally)));
        let tasks = Tasks::default();
        let service = service_fn(|request| {
            let answer = answer(request, Arc::clone(&progress));
            async move { Ok::<_, std::convert::Infallible>(answer.await) }
        });
        let connection = http2::Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADERS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(256 << 10)
            .keep_alive_interval(PING)
            .keep_alive_timeout(limits.patience)
            .serve_connection(TokioIo::new(stream), service);
        let (mut connection, mut draining) = (std::pin::pin!(connection), std::pin::pin!(draining));
        let mut drains = false;
        let mut look = Duration::ZERO;
        loop {
            tokio::select! {
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!(client, %error, "an HTTP/2 connection ended");
                    }
                    break;
                }
                () = &mut draining, if !drains => {
                    drains = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = leave.notified() => break,
                () = tokio::time::sleep(look) => match progress.next_look(limits) {
                    Some(next) => look = next.min(limits.patience),
                    None => {
                        tracing::debug!(client, "an HTTP/2 connection stood still");
                        break;
                    }
                },
            }
        }
        tasks.0.lock().abort_all();
    }
}

//! What is asked of the server itself: over the control socket, and over HTTP.

use crate::api::{CacheRequest, Draining, Reloaded};
use crate::running::{RunningServer, ServerOrder};
use crate::status::CacheView;
use block::{Error, Result};
use std::time::Duration;
use tokio::sync::oneshot;

/// The longest that a draining server waits for its clients, in seconds: a day.
const LONGEST: u64 = 86_400;

/// Reads the configuration again.
///
/// # Errors
/// What is wrong with the configuration: nothing is changed then.
pub(crate) async fn reload(running: &RunningServer) -> Result<Reloaded> {
    ask(running, ServerOrder::Reload).await
}

/// Takes no new clients, and ends when the last one has left, or after so many seconds.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when the server ends already.
pub(crate) fn drain(running: &RunningServer, seconds: Option<u64>) -> Result<Draining> {
    let connections = running.waited_for();
    let patience = seconds.map(|seconds| Duration::from_secs(seconds.min(LONGEST)));
    let sent = running.orders.send(ServerOrder::Drain(patience));
    sent.map(|()| Draining { connections, successor: None }).map_err(|_| stopping())
}

/// Starts a successor and hands everything over to it.
///
/// # Errors
/// Why that is not possible now.
pub(crate) async fn succeed(running: &RunningServer) -> Result<Draining> {
    ask(running, ServerOrder::Succeed).await
}

/// Hands everything over to the successor that asks for it.
///
/// # Errors
/// Why that is not possible now.
pub(crate) async fn hand_over(running: &RunningServer) -> Result<Draining> {
    ask(running, ServerOrder::HandOver).await
}

/// Changes the block cache; gives its state.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a size or a policy that cannot be.
pub(crate) async fn change_cache(
    running: &RunningServer,
    request: &CacheRequest,
) -> Result<CacheView> {
    running.engine.change_cache(request.size, request.policy).await?;
    Ok(CacheView::of(&running.engine.cache))
}

/// What the server itself answers to an order.
async fn ask<T>(
    running: &RunningServer,
    order: impl FnOnce(oneshot::Sender<Result<T>>) -> ServerOrder,
) -> Result<T> {
    let (send, receive) = oneshot::channel();
    let _ = running.orders.send(order(send));
    receive.await.map_err(|_| stopping()).flatten()
}

fn stopping() -> Error {
    Error::unavailable("the server is stopping; start it again with `sojourn serve`")
}

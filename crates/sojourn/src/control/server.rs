//! The server's side of the control socket.

use super::api::{
    CACHE_PATH, CacheRequest, DISK_PATH, DRAIN_PATH, DiskRequest, DrainRequest, Draining,
    HAND_OVER_PATH, Problem, RELOAD_PATH, STATUS_PATH,
};
use crate::engine::verbs;
use crate::home::Home;
use crate::serve::daemon::{Order, Running};
use crate::serve::http::{answer, send_status};
use crate::serve::signals::Switch;
use crate::serve::status::CacheView;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use block::{Error, ErrorKind, Result};
use serde::Serialize;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// Listens on the home's control socket, for its owner alone. The caller holds the home's lock, so
/// what is left of an earlier server may be replaced.
///
/// # Errors
/// That of the system call; a path that is too long for a socket is named.
pub(crate) fn bind(home: &Home) -> Result<UnixListener> {
    let path = home.control();
    let fresh = path.with_extension("new");
    let io = |e| Error::io(path.display(), e);
    if path.as_os_str().len() > 100 {
        return Err(Error::invalid(format!(
            "{} is too long for a unix socket; use a shorter --home",
            path.display()
        )));
    }
    let _ = std::fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh).map_err(io)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600)).map_err(io)?;
    std::fs::rename(&fresh, &path).map_err(io)?;
    Ok(listener)
}

/// Answers until `stop`, and finishes what it began.
pub(crate) async fn serve(listener: UnixListener, running: Arc<Running>, stop: Switch) {
    let router = Router::new()
        .route(DISK_PATH, post(disk))
        .route(STATUS_PATH, get(send_status))
        .route(RELOAD_PATH, post(reload))
        .route(DRAIN_PATH, post(drain))
        .route(CACHE_PATH, post(cache))
        .route(HAND_OVER_PATH, post(hand_over))
        .with_state(Arc::clone(&running));
    answer(listener, router, stop, || running.is_busy()).await;
}

/// What was asked, for the log.
fn in_words(request: &impl Serialize) -> String {
    serde_json::to_string(request).unwrap_or_default()
}

/// Carries out a verb in a task of its own: it is finished even when the command that asked goes
/// away.
async fn disk(State(running): State<Arc<Running>>, Json(request): Json<DiskRequest>) -> Response {
    tracing::info!(verb = in_words(&request), "control");
    running.all_attached().await;
    let (send, receive) = oneshot::channel();
    let engine = Arc::clone(&running.engine);
    let verb = async move {
        let _ = send.send(verbs::perform(&engine, request).await);
    };
    if let Err(e) = running.begin(verb) {
        return problem(&e);
    }
    match receive.await {
        Ok(Ok(reply)) => Json(reply).into_response(),
        Ok(Err(e)) => problem(&e),
        Err(_) => problem(&Error::internal("the verb failed inside the server; see its log")),
    }
}

async fn reload(State(running): State<Arc<Running>>) -> Response {
    ask(&running, Order::Reload).await
}

async fn hand_over(State(running): State<Arc<Running>>) -> Response {
    ask(&running, Order::HandOver).await
}

/// What the server itself answers to an order.
async fn ask<T: serde::Serialize>(
    running: &Running,
    order: impl FnOnce(oneshot::Sender<Result<T>>) -> Order,
) -> Response {
    let (send, receive) = oneshot::channel();
    let _ = running.orders.send(order(send));
    match receive.await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(e)) => problem(&e),
        Err(_) => problem(&stopping()),
    }
}

async fn drain(State(running): State<Arc<Running>>, Json(request): Json<DrainRequest>) -> Response {
    if request.to_successor {
        return ask(&running, Order::Succeed).await;
    }
    let connections = running.nbd.counters().connections;
    let patience = request.seconds.map(|seconds| Duration::from_secs(seconds.min(86_400)));
    match running.orders.send(Order::Drain(patience)) {
        Ok(()) => Json(Draining { connections, successor: None }).into_response(),
        Err(_) => problem(&stopping()),
    }
}

async fn cache(State(running): State<Arc<Running>>, Json(request): Json<CacheRequest>) -> Response {
    tracing::info!(cache = in_words(&request), "control");
    match running.engine.change_cache(request.size, request.policy).await {
        Ok(()) => Json(CacheView::of(&running.engine.cache)).into_response(),
        Err(e) => problem(&e),
    }
}

fn stopping() -> Error {
    Error::unavailable("the server is stopping; start it again with `sojourn serve`")
}

/// An error as an answer.
pub(crate) fn problem(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict | ErrorKind::Fenced => StatusCode::CONFLICT,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(Problem::from(error))).into_response()
}

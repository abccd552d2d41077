//! The HTTP port: metrics, health and status, for this machine's monitoring. Nothing can be
//! changed through it.

use super::daemon::Running;
use super::signals::Switch;
use super::{metrics, status};
use crate::control::server::problem;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use block::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Listens.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the port is in use.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| {
        let remedy = format!("HTTP port {address}; choose another with --http");
        Error::io(remedy, e)
    })
}

/// Answers until `stop`.
pub(crate) async fn serve(listener: TcpListener, running: Arc<Running>, stop: Switch) {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(send_metrics))
        .route("/v1/status", get(send_status))
        .with_state(running);
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.wait());
    if let Err(e) = served.await {
        tracing::error!(error = %e, "the HTTP port failed");
    }
}

async fn send_metrics(State(running): State<Arc<Running>>) -> Response {
    match status::collect(&running).await.and_then(metrics::text) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(e) => problem(&e),
    }
}

pub(crate) async fn send_status(State(running): State<Arc<Running>>) -> Response {
    match status::collect(&running).await {
        Ok(status) => Json(status).into_response(),
        Err(e) => problem(&e),
    }
}

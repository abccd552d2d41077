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
use std::time::Duration;
use tokio::net::TcpListener;

/// How long a stop waits for clients in the middle of a request: they may never end it.
const PATIENCE: Duration = Duration::from_secs(2);

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
    answer(listener, router, stop).await;
}

async fn answer(listener: TcpListener, router: Router, stop: Switch) {
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.wait());
    let patience = async {
        stop.wait().await;
        tokio::time::sleep(PATIENCE).await;
    };
    tokio::select! {
        served = served.into_future() => if let Err(e) = served {
            tracing::error!(error = %e, "the HTTP port failed");
        },
        () = patience => tracing::debug!("HTTP clients were cut off"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn a_client_that_never_ends_its_request_does_not_hold_up_the_stop() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let stop = Switch::new();
        let half = async {
            client.write_all(b"GET /healthz HTTP/1.1\r\nHo").await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            stop.throw();
        };
        let both = async { tokio::join!(answer(listener, router, stop.clone()), half) };
        tokio::time::timeout(PATIENCE * 10, both).await.unwrap();
    }
}

//! From a request to its answer.

use super::Gateway;
use super::client::Client;
use super::listing;
use super::progress::ConnectionProgress;
use super::read::{self, absent};
use super::reply::{ReplyBody, announced, content, empty, problem, receive};
use super::write;
use crate::wire::{LONGEST_BATCH, ObjectKey, Route, parse_batch};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use std::sync::Arc;

const JSON: &str = "application/json";

/// Ends a request's part in the connection's progress, whatever becomes of it.
struct Working(Arc<ConnectionProgress>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// Answers a request of a client.
pub(crate) async fn answer(
    gateway: &Arc<Gateway>,
    client: &Arc<Client>,
    progress: &Arc<ConnectionProgress>,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    progress.began();
    let _working = Working(Arc::clone(progress));
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(160).collect();
    let mut response = match dispatch(gateway, client, progress, request).await {
        Ok(response) => response,
        Err(error) => {
            if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Fenced)
                && gateway.refusals().note(client.peer())
            {
                let (client, error) = (client.peer(), error.message());
                tracing::warn!(%client, %method, path, error, "refused");
            }
            read::tell_of_failure(gateway, client, &error);
            problem(&error, progress)
        }
    };
    if method == Method::HEAD {
        *response.body_mut() = ReplyBody::of(Bytes::new(), progress, None);
    }
    gateway.tally().answered(response.status().as_u16());
    response
}

async fn dispatch(
    gateway: &Arc<Gateway>,
    client: &Arc<Client>,
    progress: &Arc<ConnectionProgress>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>> {
    let turn = client.usage.turn().await?;
    let (head, body) = request.into_parts();
    let settings = gateway.store().settings();
    let route = Route::parse(settings, head.uri.path()).ok_or_else(absent)?;
    match (route, head.method) {
        (Route::About, Method::GET | Method::HEAD) => {
            Ok(content(JSON, read::about(gateway, client)?, progress, Some(turn)))
        }
        (Route::List(prefix), Method::GET) => {
            let mut turn = turn;
            let listed = listing::list(gateway, client, &prefix, &mut turn).await?;
            Ok(content(JSON, listed, progress, Some(turn)))
        }
        (Route::Object(key), method @ (Method::GET | Method::HEAD)) => {
            read::object(gateway, client, &key, (&method, &head.headers), progress, turn).await
        }
        (Route::Object(key), Method::PUT) => {
            let most = key.longest().ok_or_else(|| no_writing(&key))?;
            client.must_write(&gateway.rules())?;
            let len = announced(&head.headers, most)?;
            let mut turn = turn;
            client.usage.memory(&mut turn, len).await?;
            let bytes = receive(body, len, gateway.limits().patience, progress).await?;
            write::put(gateway, client, &key, bytes, turn).await?;
            gateway.tally().wrote();
            Ok(empty(StatusCode::CREATED, progress))
        }
        (Route::Object(key), Method::DELETE) => {
            write::delete(gateway, client, &key).await?;
            Ok(empty(StatusCode::NO_CONTENT, progress))
        }
        (Route::Ranges, Method::POST) => {
            let len = announced(&head.headers, LONGEST_BATCH as u64)?;
            let bytes = receive(body, len, gateway.limits().patience, progress).await?;
            let parts = parse_batch(settings, &bytes).map_err(Error::invalid)?;
            read::batch(gateway, client, parts, progress, turn).await
        }
        _ => {
            let mut response = empty(StatusCode::METHOD_NOT_ALLOWED, progress);
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, DELETE, POST"));
            Ok(response)
        }
    }
}

fn no_writing(key: &ObjectKey) -> Error {
    Error::denied(format!("no client may write {}", key.text()))
}

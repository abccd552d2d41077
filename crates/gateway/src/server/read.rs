//! Reading: objects, and parts of them.

use super::Gateway;
use super::client::Client;
use super::limits::RequestPermit;
use super::progress::ConnectionProgress;
use super::reply::{ReplyBody, content, slices};
use crate::wire::{
    ABSENT, About, BatchPart, MODIFIED, MOST_BYTES, ObjectKey, VERSION, parse_range,
};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue,
    RANGE,
};
use hyper::{HeaderMap, Method, Response, StatusCode};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use store::segment_columns::{self, CODING};
use tokio::task::JoinSet;

/// What is sent as bytes.
const BYTES: &str = "application/octet-stream";
/// Parts of a batch that are read ahead of the one that is sent.
const AHEAD: usize = 4;

/// The same for what is not there and for what is not for this client.
pub(crate) fn absent() -> Error {
    Error::not_found("no such object, or none that this client may use")
}

/// An error of the backend, as a client may see it.
pub(crate) fn backend_error(error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => absent(),
        error => Error::unavailable("the store cannot be reached just now; ask again later")
            .with_source(error),
    }
}

/// Logs that a request failed by the store, though not each of many.
pub(crate) fn tell_of_failure(gateway: &Gateway, client: &Client, error: &Error) {
    if error.kind() == ErrorKind::Unavailable
        && let Some(source) = std::error::Error::source(error)
        && gateway.failures().note(client.peer())
    {
        tracing::warn!(client = client.name(), error = %source, "the store of a gateway fails");
    }
}

/// Says what this is.
pub(crate) fn about(gateway: &Gateway, client: &Client) -> Result<Bytes> {
    let about = About {
        gateway: VERSION,
        sojourn: env!("CARGO_PKG_VERSION").to_owned(),
        client: client.name().to_owned(),
        encrypted: gateway.store().settings().is_encrypted(),
    };
    json(&about)
}

pub(super) fn json(value: &impl serde::Serialize) -> Result<Bytes> {
    let mut text = serde_json::to_vec(value)
        .map_err(|e| Error::internal("an answer cannot be written").with_source(e))?;
    text.push(b'\n');
    Ok(text.into())
}

/// Which part of an object is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    Whole,
    Part(Range<u64>),
}

/// Whether a client may read an object, or a part of it.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be read;
/// [`Corrupt`](ErrorKind::Corrupt) when what it holds is damaged.
pub(crate) async fn may_read(
    gateway: &Gateway,
    client: &Client,
    key: &ObjectKey,
    asked: &RequestedRange,
) -> Result<bool> {
    client.refresh(gateway).await?;
    if readable(gateway, client, key, asked).await? {
        return Ok(true);
    }
    Ok(client.look_again(gateway).await? && readable(gateway, client, key, asked).await?)
}

async fn readable(
    gateway: &Gateway,
    client: &Client,
    key: &ObjectKey,
    asked: &RequestedRange,
) -> Result<bool> {
    let (store, rights) = (gateway.store(), &client.rights);
    let brought = || gateway.has_brought(client, key);
    match key {
        ObjectKey::Settings | ObjectKey::KeySlots(_) | ObjectKey::Clock => Ok(true),
        // Whoever knows the name of a pin or of a server, 128 random bits, was told it.
        ObjectKey::Pin(_) | ObjectKey::Server(_) | ObjectKey::Condemned(_) => Ok(true),
        ObjectKey::Manifest(id) => Ok(rights.manifest(id) || brought().await?),
        ObjectKey::BootList(id) => Ok(rights.boot_list(id)),
        ObjectKey::Segment(id) => Ok(brought().await? || rights.segment(store, id).await?),
        ObjectKey::Moved(pack) => rights.any_of(store, pack).await,
        ObjectKey::Pack(pack) => match asked {
            RequestedRange::Part(part) if rights.covers(pack, part.start, part.end) => Ok(true),
            _ if brought().await? => Ok(true),
            RequestedRange::Part(part) => rights.range(store, pack, part.start, part.end).await,
            RequestedRange::Whole => rights.whole(store, pack).await,
        },
        ObjectKey::Ref(key) => {
            Ok(client.right_on_row(gateway, key.kind, &key.row, Some(key)).await?.is_some())
        }
    }
}

/// Answers `GET` and `HEAD` of an object.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) for what is not there or not for this client; any error from the store.
pub(crate) async fn object(
    gateway: &Gateway,
    client: &Client,
    key: &ObjectKey,
    (method, headers): (&Method, &HeaderMap),
    progress: &Arc<ConnectionProgress>,
    mut turn: RequestPermit,
) -> Result<Response<ReplyBody>> {
    let range = match headers.get(RANGE) {
        Some(range) => {
            let range = range.to_str().ok().and_then(parse_range);
            Some(range.ok_or_else(|| {
                Error::invalid("write one range of bytes: bytes=FIRST-LAST or bytes=FIRST-")
            })?)
        }
        None => None,
    };
    if method == Method::GET
        && let Some((start, Some(end))) = range
    {
        return part(gateway, client, key, start..end, progress, turn).await;
    }
    if !may_read(gateway, client, key, &RequestedRange::Whole).await? {
        return Err(absent());
    }
    if let ObjectKey::Moved(pack) = key {
        let chunks = client.rights.moved(gateway.store(), pack).await?.ok_or_else(absent)?;
        let bytes = store::offered::encode_moved(gateway.store().settings(), pack, chunks)?;
        gateway_memory(client, &mut turn, bytes.len() as u64).await?;
        let meta = gateway.backend().head(&key.path()).await.map_err(backend_error)?;
        let meta = ObjectMeta { size: bytes.len() as u64, ..meta };
        let bytes = if method == Method::HEAD { Bytes::new() } else { bytes };
        return Ok(described(content(BYTES, bytes, progress, Some(turn)), &meta));
    }
    if method == Method::HEAD {
        let meta = gateway.backend().head(&key.path()).await.map_err(backend_error)?;
        return Ok(described(content(BYTES, Bytes::new(), progress, None), &meta));
    }
    let meta = gateway.backend().head(&key.path()).await.map_err(backend_error)?;
    let start = range.map_or(0, |(start, _)| start);
    if start > 0 && start < meta.size {
        return part(gateway, client, key, start..meta.size, progress, turn).await;
    }
    if start > 0 || meta.size > MOST_BYTES + 4096 {
        return Err(Error::invalid("the object does not go so far, or is longer than an answer"));
    }
    gateway_memory(client, &mut turn, meta.size).await?;
    let read = gateway.backend().get_opts(&key.path(), GetOptions::default()).await;
    let read = read.map_err(backend_error)?;
    let meta = read.meta.clone();
    let bytes = read.bytes().await.map_err(backend_error)?;
    if !takes_columns(key, headers) {
        return Ok(described(content(BYTES, bytes, progress, Some(turn)), &meta));
    }
    // The columns, and what they are compressed to.
    client.usage.more_memory(&mut turn, 2 * meta.size).await?;
    let object = bytes.clone();
    let pack = move || Ok(segment_columns::pack(&object).map(Bytes::from));
    let (columns, turn) = gateway.checks().pack(&client.usage, turn, pack).await?;
    let Some(columns) = columns else {
        return Ok(described(content(BYTES, bytes, progress, Some(turn)), &meta));
    };
    let meta = ObjectMeta { size: columns.len() as u64, ..meta };
    let mut answer = described(content(BYTES, columns, progress, Some(turn)), &meta);
    answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(CODING));
    Ok(answer)
}

/// Whether a client takes an object, which is a segment, by column.
fn takes_columns(key: &ObjectKey, headers: &HeaderMap) -> bool {
    let mut taken = headers.get_all(ACCEPT_ENCODING).iter();
    matches!(key, ObjectKey::Segment(_)) && taken.any(|coding| coding == CODING)
}

async fn gateway_memory(client: &Client, turn: &mut RequestPermit, bytes: u64) -> Result<()> {
    client.usage.memory(turn, bytes).await
}

fn described(mut response: Response<ReplyBody>, meta: &ObjectMeta) -> Response<ReplyBody> {
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, meta.size.into());
    headers.insert(MODIFIED, meta.last_modified.timestamp_millis().into());
    response
}

/// A part of an object.
async fn part(
    gateway: &Gateway,
    client: &Client,
    key: &ObjectKey,
    range: Range<u64>,
    progress: &Arc<ConnectionProgress>,
    mut turn: RequestPermit,
) -> Result<Response<ReplyBody>> {
    let len = range.end - range.start;
    if len > MOST_BYTES {
        return Err(Error::invalid(format!("an answer has at most {MOST_BYTES} bytes")));
    }
    // What is filtered has no parts of its own.
    let filtered = matches!(key, ObjectKey::Moved(_));
    if filtered || !may_read(gateway, client, key, &RequestedRange::Part(range.clone())).await? {
        return Err(absent());
    }
    gateway_memory(client, &mut turn, len).await?;
    let bytes = read_part(gateway.backend(), &key.path(), &range).await?;
    let end = range.start + bytes.len() as u64;
    let mut response = content(BYTES, bytes, progress, Some(turn));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let text = format!("bytes {}-{}/*", range.start, end.saturating_sub(1));
    if let Ok(text) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(CONTENT_RANGE, text);
    }
    Ok(response)
}

/// The bytes of a range, or as many as there are; none is an error.
async fn read_part(backend: &dyn ObjectStore, path: &Path, range: &Range<u64>) -> Result<Bytes> {
    let get = async |range: Range<u64>| {
        let read = backend.get_ranges(path, std::slice::from_ref(&range)).await;
        read.map(|mut parts| parts.pop().unwrap_or_default())
    };
    let read = match get(range.clone()).await {
        Ok(bytes) => Ok(bytes),
        Err(error @ object_store::Error::NotFound { .. }) => Err(error),
        // To some stores it is an error that an object ends before a range does.
        Err(error) => match backend.head(path).await.map_err(backend_error)?.size {
            size if size >= range.end => Err(error),
            size if size <= range.start => Ok(Bytes::new()),
            size => get(range.start..size).await,
        },
    };
    let bytes = read.map_err(backend_error)?;
    if bytes.is_empty() {
        return Err(Error::invalid("the object ends before this range"));
    }
    Ok(bytes)
}

/// Answers a batch. The parts are read while they are sent; when the client resets the stream, no more
/// are.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) when too much is under way for the client.
pub(crate) async fn batch(
    gateway: &Arc<Gateway>,
    client: &Arc<Client>,
    parts: Vec<BatchPart>,
    progress: &Arc<ConnectionProgress>,
    mut turn: RequestPermit,
) -> Result<Response<ReplyBody>> {
    let total: u64 = parts.iter().map(|part| part.range.end - part.range.start).sum();
    gateway_memory(client, &mut turn, total).await?;
    let (gateway, client) = (Arc::clone(gateway), Arc::clone(client));
    let (telling, told) = (Arc::clone(&gateway), Arc::clone(&client));
    let read = stream::iter(parts)
        .map(move |part| {
            let (gateway, client) = (Arc::clone(&gateway), Arc::clone(&client));
            // A task of its own, which ends with the answer: a part may hold a lock while it waits, and an answer
            // that its client does not take is not polled.
            let mut task = JoinSet::new();
            task.spawn(async move { batch_part(&gateway, &client, part).await });
            async move { task.join_next().await }
        })
        .buffered(AHEAD)
        .map(move |joined| {
            let read = match joined {
                Some(Ok(read)) => read,
                _ => Err(Error::internal("a part of a batch was not read to its end")),
            };
            let pieces = match read {
                Ok(Some(bytes)) => {
                    let head = Bytes::copy_from_slice(&(bytes.len() as u32).to_le_bytes());
                    std::iter::once(head).chain(slices(bytes)).map(Ok).collect::<Vec<_>>()
                }
                Ok(None) => vec![Ok(Bytes::copy_from_slice(&ABSENT.to_le_bytes()))],
                // The stream is reset: the client sees that it is not a matter of one part.
                Err(e) => {
                    tell_of_failure(&telling, &told, &e);
                    vec![Err(io::Error::other(e.message().to_owned()))]
                }
            };
            stream::iter(pieces)
        })
        .flatten();
    let mut response = Response::new(ReplyBody::new(read.boxed(), progress, turn));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(BYTES));
    Ok(response)
}

/// One part of a batch; `None` when it is not there, or not for this client.
async fn batch_part(gateway: &Gateway, client: &Client, part: BatchPart) -> Result<Option<Bytes>> {
    let asked = RequestedRange::Part(part.range.clone());
    if matches!(part.key, ObjectKey::Moved(_))
        || !may_read(gateway, client, &part.key, &asked).await?
    {
        return Ok(None);
    }
    match read_part(gateway.backend(), &part.key.path(), &part.range).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => Ok(None),
        Err(e) => Err(e),
    }
}

//! Answers, and the bodies of requests.

use super::limits::RequestPermit;
use super::progress::ConnectionProgress;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes that are handed to a connection at once: what it holds of an answer beside the client's window.
const SLICE: usize = 64 << 10;

/// The body of an answer. It is made while the client takes it, and counts for the client until then.
pub struct ReplyBody {
    parts: BoxStream<'static, io::Result<Bytes>>,
    /// Bytes that are still to come, when that is known.
    rest: Option<u64>,
    progress: Arc<ConnectionProgress>,
    _turn: Option<RequestPermit>,
}

impl ReplyBody {
    /// What a stream gives; how long that is shows only at its end.
    pub fn new(
        parts: BoxStream<'static, io::Result<Bytes>>,
        progress: &Arc<ConnectionProgress>,
        turn: RequestPermit,
    ) -> Self {
        progress.began();
        Self { parts, rest: None, progress: Arc::clone(progress), _turn: Some(turn) }
    }

    /// Bytes that are in memory.
    pub(crate) fn of(
        bytes: Bytes,
        progress: &Arc<ConnectionProgress>,
        turn: Option<RequestPermit>,
    ) -> Self {
        progress.began();
        let rest = Some(bytes.len() as u64);
        Self {
            parts: stream::iter(slices(bytes)).map(Ok).boxed(),
            rest,
            progress: Arc::clone(progress),
            _turn: turn,
        }
    }
}

/// Bytes in pieces that a connection takes at once.
pub fn slices(mut bytes: Bytes) -> Vec<Bytes> {
    let mut slices = Vec::with_capacity(bytes.len().div_ceil(SLICE));
    while bytes.len() > SLICE {
        slices.push(bytes.split_to(SLICE));
    }
    if !bytes.is_empty() {
        slices.push(bytes);
    }
    slices
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.progress.ended();
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = self.parts.poll_next_unpin(context);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            self.rest = self.rest.map(|rest| rest.saturating_sub(bytes.len() as u64));
            self.progress.sent(bytes.len());
        }
        next.map(|next| next.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.rest.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// An answer without content.
pub(crate) fn empty(status: StatusCode, progress: &Arc<ConnectionProgress>) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::of(Bytes::new(), progress, None));
    *response.status_mut() = status;
    response
}

/// An answer with a body in memory.
pub fn content(
    kind: &'static str,
    bytes: Bytes,
    progress: &Arc<ConnectionProgress>,
    turn: Option<RequestPermit>,
) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::of(bytes, progress, turn));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The answer that tells an error.
pub fn problem(error: &Error, progress: &Arc<ConnectionProgress>) -> Response<ReplyBody> {
    let status = match error.kind() {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Conflict | ErrorKind::Fenced => StatusCode::CONFLICT,
        ErrorKind::Invalid | ErrorKind::Corrupt => StatusCode::BAD_REQUEST,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let text = Bytes::from(format!("{}\n", error.message()));
    let mut response = content("text/plain; charset=utf-8", text, progress, None);
    *response.status_mut() = status;
    response
}

/// How long the body of a request is, by its header.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) when it does not say, or more than `most`.
pub(crate) fn announced(headers: &hyper::HeaderMap, most: u64) -> Result<u64> {
    let len = headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok());
    let len = len.and_then(|len| len.parse::<u64>().ok());
    let len = len.ok_or_else(|| Error::invalid("the request lacks its Content-Length"))?;
    if len > most {
        return Err(Error::invalid(format!(
            "the request has {len} bytes; an object of this key has at most {most}"
        )));
    }
    Ok(len)
}

/// Receives the body of a request, of `len` bytes.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) when it is longer or shorter, or stands still for `patience`.
pub(crate) async fn receive(
    mut body: Incoming,
    len: u64,
    patience: Duration,
    progress: &ConnectionProgress,
) -> Result<Bytes> {
    let mut bytes = Vec::with_capacity(len.min(SLICE as u64) as usize);
    loop {
        let frame = match tokio::time::timeout(patience, body.frame()).await {
            Err(_) => return Err(Error::invalid("the request does not go on")),
            Ok(None) => break,
            Ok(Some(Err(e))) => {
                return Err(Error::invalid("the request was cut off").with_source(e));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        if let Ok(data) = frame.into_data() {
            if (bytes.len() + data.len()) as u64 > len {
                return Err(Error::invalid("the request is longer than it said"));
            }
            progress.received(data.len());
            bytes.extend_from_slice(&data);
        }
    }
    if bytes.len() as u64 != len {
        return Err(Error::invalid("the request is shorter than it said"));
    }
    Ok(bytes.into())
}

//! The gateway as an object store.

use super::GatewayUrl;
use super::connection::{HttpConnection, broken, late};
use crate::wire::{ABSENT, ListedObject, MODIFIED, MOST_BYTES, MOST_PARTS, PART, batch_line};
use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use chrono::DateTime;
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, RANGE,
};
use hyper::{Method, Request, Response, StatusCode};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use objects::RangeBatches;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::segment_columns::{self, CODING};
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

/// How we are called in errors.
const STORE: &str = "gateway";
/// How long a body may stand still.
const STALL: Duration = Duration::from_secs(60);
/// The longest text of an error that is read, and the longest listing, in bytes.
const LONGEST_TEXT: u64 = 4 << 10;
const LONGEST_LISTING: u64 = 64 << 20;

/// A server's store, as far as its rules let this client use it. Cheap to clone; clones share the
/// connection.
#[derive(Clone)]
pub struct GatewayStore {
    connection: Arc<HttpConnection>,
}

impl GatewayStore {
    /// The gateway at `url`; `config` says whose servers are trusted and what is shown to them. Nothing is
    /// asked of the network yet.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a host that no certificate can name.
    pub fn new(url: GatewayUrl, config: &ClientConfig) -> block::Result<Self> {
        Ok(Self { connection: Arc::new(HttpConnection::to(url, config)?) })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        header: Option<(HeaderName, String)>,
        body: Bytes,
    ) -> io::Result<Response<Incoming>> {
        let url = self.connection.url();
        let host =
            if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        let mut request = Request::builder()
            .method(&method)
            .uri(format!("https://{host}:{}/v1/{path}", url.port));
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        if matches!(method, Method::PUT | Method::POST) {
            request = request.header(CONTENT_LENGTH, body.len());
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.connection.send(request).await
    }

    /// Sends a request about an object; an answer that tells an error is one.
    async fn ask(
        &self,
        method: Method,
        location: &Path,
        header: Option<(HeaderName, String)>,
        body: Bytes,
    ) -> Result<Response<Incoming>> {
        let path = format!("objects/{location}");
        let sent = self.send(method, &path, header, body).await.map_err(failure)?;
        checked(location, sent).await
    }
}

/// Hands on an answer that is none of an error.
async fn checked(location: &Path, answer: Response<Incoming>) -> Result<Response<Incoming>> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let said = read(answer.into_body(), LONGEST_TEXT).await.unwrap_or_default();
    let text: String =
        String::from_utf8_lossy(&said).trim_end().chars().filter(|c| !c.is_control()).collect();
    let path = location.to_string();
    Err(match status {
        StatusCode::NOT_FOUND => Error::NotFound { path, source: text.into() },
        StatusCode::CONFLICT => Error::AlreadyExists { path, source: text.into() },
        StatusCode::FORBIDDEN => Error::PermissionDenied { path, source: text.into() },
        StatusCode::NOT_IMPLEMENTED | StatusCode::METHOD_NOT_ALLOWED => {
            Error::NotSupported { source: text.into() }
        }
        StatusCode::INSUFFICIENT_STORAGE => {
            failure(io::Error::new(io::ErrorKind::StorageFull, text))
        }
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            failure(io::Error::new(io::ErrorKind::WouldBlock, text))
        }
        status if status.is_server_error() => failure(io::Error::other(text)),
        // What was asked is not possible; asking again would not help.
        _ => {
            failure(io::Error::new(io::ErrorKind::InvalidInput, format!("status {status}: {text}")))
        }
    })
}

fn failure(error: io::Error) -> Error {
    Error::Generic { store: STORE, source: Box::new(error) }
}

/// The frames of a body; one that stands still is an error.
fn frames(body: Incoming) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold(body, async |mut body| {
        loop {
            let frame = timeout(STALL, body.frame()).await;
            match frame.map_err(|_| late("the gateway's answer does not go on"))? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(broken)?.into_data() {
                        return Ok(Some((data, body)));
                    }
                }
            }
        }
    })
}

/// All of a body of at most `most` bytes.
async fn read(body: Incoming, most: u64) -> io::Result<Bytes> {
    let mut bytes = BytesMut::new();
    let mut frames = std::pin::pin!(frames(body));
    while let Some(data) = frames.try_next().await? {
        if (bytes.len() + data.len()) as u64 > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is too long"));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn number(headers: &HeaderMap, name: &str) -> Option<i64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn meta(location: Path, size: u64, modified: i64) -> ObjectMeta {
    let last_modified = DateTime::from_timestamp_millis(modified).unwrap_or_default();
    ObjectMeta { location, last_modified, size, e_tag: None, version: None }
}

/// Whether an object is a segment, which is asked for by column.
fn is_segment(location: &Path) -> bool {
    location.as_ref().starts_with("segments/")
}

/// A segment that comes by column: how long it is its first bytes say. What comes is told of by empty parts, so that it
/// is waited for, and the whole object follows the last one.
async fn by_column(location: &Path, body: Incoming, modified: i64) -> Result<GetResult> {
    let (mut frames, mut sent) = (frames(body).boxed(), BytesMut::new());
    let len = loop {
        if let Some(len) = segment_columns::object_len(&sent).map_err(unreadable)? {
            break len;
        }
        match frames.try_next().await.map_err(failure)? {
            Some(data) => sent.extend_from_slice(&data),
            None => return Err(failure(io::ErrorKind::UnexpectedEof.into())),
        }
    };
    let body = stream::try_unfold(Some((frames, sent)), |coming| async {
        let Some((mut frames, mut sent)) = coming else { return Ok(None) };
        let Some(data) = frames.try_next().await.map_err(failure)? else {
            let object = block::offload(move || segment_columns::unpack(&sent)).await;
            return Ok(Some((object.map_err(unreadable)?, None)));
        };
        if (sent.len() + data.len()) as u64 > segment_columns::MAX_LEN {
            return Err(failure(io::Error::new(io::ErrorKind::InvalidData, "it is too long")));
        }
        sent.extend_from_slice(&data);
        Ok(Some((Bytes::new(), Some((frames, sent)))))
    });
    Ok(GetResult {
        payload: GetResultPayload::Stream(body.boxed()),
        meta: meta(location.clone(), len, modified),
        range: 0..len,
        attributes: Attributes::new(),
        extensions: Default::default(),
    })
}

fn unreadable(error: block::Error) -> Error {
    failure(io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Parts of a batch's answer, in the order in which they were asked for.
struct Parts<S> {
    frames: S,
    held: BytesMut,
}

impl<S: Stream<Item = io::Result<Bytes>> + Unpin> Parts<S> {
    async fn fill(&mut self, len: usize) -> io::Result<()> {
        while self.held.len() < len {
            match self.frames.try_next().await? {
                Some(data) => self.held.extend_from_slice(&data),
                None => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "a batch was cut off",
                    ));
                }
            }
        }
        Ok(())
    }

    /// The next part, of at most `most` bytes; `None` when it is not there.
    async fn next(&mut self, most: u64) -> io::Result<Option<Bytes>> {
        self.fill(PART).await?;
        let len = self.held.get_u32_le();
        if len == ABSENT {
            return Ok(None);
        }
        if u64::from(len) > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a part is longer than asked for",
            ));
        }
        self.fill(len as usize).await?;
        Ok(Some(self.held.split_to(len as usize).freeze()))
    }
}

/// Ranges in groups that a batch may have. One that is too long for any batch is alone.
fn groups(ranges: &[Range<u64>]) -> Vec<&[Range<u64>]> {
    let (mut groups, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (index, range) in ranges.iter().enumerate() {
        let len = range.end.saturating_sub(range.start);
        if index > start && (bytes + len > MOST_BYTES || index - start == MOST_PARTS) {
            groups.push(&ranges[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += len;
    }
    groups.push(&ranges[start..]);
    groups
}

impl GatewayStore {
    async fn one_range(&self, location: &Path, range: &Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        let answer = self.ask(Method::GET, location, Some((RANGE, header)), Bytes::new()).await?;
        read(answer.into_body(), range.end - range.start).await.map_err(failure)
    }

    /// The parts of one batch, each as it comes.
    fn batch<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> impl Stream<Item = Result<Bytes>> + Send + 'a {
        let answered = async move {
            let lines = ranges.iter().filter(|range| !range.is_empty());
            let body: String = lines.map(|range| batch_line(location, range)).collect();
            let answer =
                self.send(Method::POST, "ranges", None, body.into()).await.map_err(failure)?;
            let answer = checked(location, answer).await?;
            let frames = frames(answer.into_body()).boxed();
            Ok::<_, Error>(Parts { frames, held: BytesMut::new() })
        };
        let absent = move || Error::NotFound {
            path: location.to_string(),
            source: "no such object, or none that this client may use".into(),
        };
        let parts = move |parts: Parts<_>| {
            stream::try_unfold((parts, ranges), move |(mut parts, rest)| async move {
                let Some((range, rest)) = rest.split_first() else { return Ok(None) };
                if range.is_empty() {
                    return Ok(Some((Bytes::new(), (parts, rest))));
                }
                let part = parts.next(range.end - range.start).await.map_err(failure)?;
                Ok(Some((part.ok_or_else(absent)?, (parts, rest))))
            })
        };
        stream::once(answered).map_ok(parts).try_flatten()
    }
}

impl RangeBatches for GatewayStore {
    fn ranges<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> BoxStream<'a, Result<Bytes>> {
        let group = move |group: &'a [Range<u64>]| match group
            .iter()
            .filter(|range| !range.is_empty())
            .count()
        {
            0 | 1 => stream::iter(group).then(move |range| self.one_range(location, range)).boxed(),
            _ => self.batch(location, group).boxed(),
        };
        stream::iter(groups(ranges)).flat_map(group).boxed()
    }
}

#[async_trait]
impl ObjectStore for GatewayStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if matches!(opts.mode, object_store::PutMode::Update(_)) {
            return Err(Error::NotSupported { source: "a gateway updates no objects".into() });
        }
        // The key says what may be there already: content is kept when it is right, names are created.
        self.ask(Method::PUT, location, None, payload.into()).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotSupported { source: "a gateway takes objects whole".into() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let conditional = options.if_match.is_some()
            || options.if_none_match.is_some()
            || options.if_modified_since.is_some()
            || options.if_unmodified_since.is_some()
            || options.version.is_some();
        if conditional {
            return Err(Error::NotSupported { source: "a gateway knows no conditions".into() });
        }
        let (header, bound) = match &options.range {
            None if is_segment(location) && !options.head => {
                (Some((ACCEPT_ENCODING, CODING.to_owned())), None)
            }
            None => (None, None),
            Some(GetRange::Bounded(range)) if range.is_empty() => {
                let source = "the range is empty".into();
                return Err(Error::Generic { store: STORE, source });
            }
            Some(GetRange::Bounded(range)) => (
                Some((RANGE, format!("bytes={}-{}", range.start, range.end - 1))),
                Some(range.clone()),
            ),
            Some(GetRange::Offset(start)) => (Some((RANGE, format!("bytes={start}-"))), None),
            Some(GetRange::Suffix(_)) => {
                let source = "a gateway knows no ranges from the end".into();
                return Err(Error::NotSupported { source });
            }
        };
        let method = if options.head { Method::HEAD } else { Method::GET };
        let answer = self.ask(method, location, header, Bytes::new()).await?;
        let len = number(answer.headers(), CONTENT_LENGTH.as_str());
        let len = len.and_then(|len| u64::try_from(len).ok());
        let len =
            len.ok_or_else(|| failure(io::Error::other("an answer does not say how long it is")))?;
        let modified = number(answer.headers(), MODIFIED).unwrap_or(0);
        if answer.headers().get(CONTENT_ENCODING).is_some_and(|coding| coding == CODING) {
            return by_column(location, answer.into_body(), modified).await;
        }
        let start = match &options.range {
            Some(GetRange::Offset(start)) => *start,
            Some(GetRange::Bounded(range)) => range.start,
            _ => 0,
        };
        if bound.is_some_and(|bound| len > bound.end - bound.start) {
            return Err(failure(io::Error::other("an answer is longer than asked for")));
        }
        // How long all of it is the gateway tells only to who may read all of it.
        let (range, size) = match options.head {
            true => (0..len, len),
            false => (start..start + len, start + len),
        };
        let body = frames(answer.into_body()).map_err(failure).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(body),
            meta: meta(location.clone(), size, modified),
            range,
            attributes: Attributes::new(),
            extensions: Default::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.ranges(location, ranges).try_collect().await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .and_then(move |location| {
                let this = this.clone();
                async move {
                    this.ask(Method::DELETE, &location, None, Bytes::new()).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listed = async move {
            let path = format!("list/{prefix}");
            let answer =
                this.send(Method::GET, &path, None, Bytes::new()).await.map_err(failure)?;
            let answer = checked(&prefix, answer).await.map_err(|error| match error {
                Error::NotFound { path, .. } => Error::PermissionDenied {
                    path,
                    source: "a gateway's clients cannot list this; do it at the server".into(),
                },
                error => error,
            })?;
            let text = read(answer.into_body(), LONGEST_LISTING).await.map_err(failure)?;
            let listed: Vec<ListedObject> = serde_json::from_slice(&text)
                .map_err(|e| failure(io::Error::new(io::ErrorKind::InvalidData, e)))?;
            let listed = listed.into_iter().map(|object| {
                let location = Path::parse(&object.key)
                    .map_err(|e| Error::Generic { store: STORE, source: Box::new(e) })?;
                Ok(meta(location, object.size, object.modified))
            });
            Ok::<_, Error>(stream::iter(listed))
        };
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(Error::NotSupported { source: "a gateway lists whole prefixes".into() })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotSupported { source: "a gateway copies no objects".into() })
    }
}

impl fmt::Display for GatewayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.connection.url(), f)
    }
}

impl fmt::Debug for GatewayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GatewayStore({})", self.connection.url())
    }
}

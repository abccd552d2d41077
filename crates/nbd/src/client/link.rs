//! The connection of a client: sending, receiving, and connecting again.
//!
//! One task drives it. Requests come over a channel, wait in a [`RequestTable`] and are answered by
//! one-shot channels. When the connection is lost, what is in the table is sent again.

use super::negotiate::{Terms, negotiate};
use super::table::{QueuedRequest, RequestTable};
use super::{ClientOptions, Stream};
use crate::codec::constants::{chunk, command};
use crate::codec::reply::{self, ReplyHeader};
use crate::codec::request::RequestHeader;
use crate::codec::{Parsed, ReplyStyle, fault};
use crate::{Address, Uri, socket};
use block::{Error, ErrorKind, Result, Span};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Requests are gathered up to this many bytes for one send.
const BATCH: usize = 256 << 10;
/// Payloads longer than this are sent from where they are.
const LONG: usize = 32 << 10;
/// The longest chunk that is neither data nor a hole, in bytes.
const LONGEST_CHUNK: u64 = 8 << 20;
/// Pauses between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A connection that was negotiated.
pub(super) struct Link {
    stream: Box<dyn Stream>,
    pub(super) terms: Terms,
}

/// Connects and negotiates once.
///
/// # Errors
/// See [`Remote::connect`](super::Remote::connect).
pub(super) async fn open(uri: &Uri, options: &ClientOptions) -> Result<Link> {
    let attempt = async {
        let stream = dial(uri, options).await?.boxed();
        let (stream, terms) = negotiate(stream, uri, options).await?;
        Ok::<Link, Error>(Link { stream, terms })
    };
    in_time(uri, options, attempt).await
}

/// Negotiates over a connection that was made already.
///
/// # Errors
/// See [`Remote::over`](super::Remote::over).
pub(super) async fn over(
    stream: Box<dyn Stream>,
    uri: &Uri,
    options: &ClientOptions,
) -> Result<Link> {
    let attempt = async {
        let (stream, terms) = negotiate(stream, uri, options).await?;
        Ok(Link { stream, terms })
    };
    in_time(uri, options, attempt).await
}

/// A connected socket.
pub(super) enum Dialed {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Dialed {
    pub(super) fn boxed(self) -> Box<dyn Stream> {
        match self {
            Self::Unix(stream) => Box::new(stream),
            Self::Tcp(stream) => Box::new(stream),
        }
    }
}

/// Connects to the server of `uri`; nothing is said yet.
pub(super) async fn dial(uri: &Uri, options: &ClientOptions) -> Result<Dialed> {
    match &uri.address {
        Address::Unix(path) => {
            UnixStream::connect(path).await.map(Dialed::Unix).map_err(unreachable)
        }
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
            socket::tune(&stream, options.keepalive);
            Ok(Dialed::Tcp(stream))
        }
    }
}

/// What `attempt` gives, if it ends within the time that an attempt to connect may take.
pub(super) async fn in_time<T>(
    uri: &Uri,
    options: &ClientOptions,
    attempt: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(options.connect, attempt).await {
        Ok(result) => result.map_err(|e| e.context(uri)),
        Err(_) => Err(Error::unavailable(format!(
            "{uri}: no answer in {:?}: check that the server runs",
            options.connect
        ))),
    }
}

fn unreachable(error: io::Error) -> Error {
    Error::unavailable(format!("cannot connect: {error}: check that the server runs"))
        .with_source(error)
}

/// How a connection ended.
enum LinkEnd {
    /// The client is done.
    Closed,
    Lost(Error),
}

/// Drives the connection until the client is done.
pub(super) async fn drive(
    uri: Uri,
    options: ClientOptions,
    link: Link,
    mut orders: mpsc::UnboundedReceiver<QueuedRequest>,
) {
    let agreed = link.terms.clone();
    let mut link = Some(link);
    let table = Mutex::new(RequestTable::default());
    let mut outage = None;
    loop {
        let answered = lock(&table).answered();
        let error = match link.take() {
            Some(link) => match run(link, &table, &mut orders).await {
                LinkEnd::Closed => return,
                LinkEnd::Lost(error) => error.context(&uri),
            },
            None => {
                // The last attempts failed: the next request starts new ones.
                let Some(order) = orders.recv().await else { return };
                lock(&table).insert(order);
                outage = None;
                Error::unavailable(format!("{uri}: the connection was lost: connect again"))
            }
        };
        if lock(&table).answered() > answered {
            outage = None;
        }
        lock(&table).interrupt(&error);
        tracing::warn!(%error, "the connection to the server was lost");
        // A server that breaks the protocol would do so again.
        let again = match error.kind() {
            ErrorKind::Invalid => Err(error),
            _ => reconnect(&uri, &options, &agreed, &mut outage, error).await,
        };
        match again {
            Ok(new) => {
                tracing::info!(%uri, "connected again");
                link = Some(new);
            }
            Err(error) => {
                tracing::error!(%error, "requests fail");
                let mut table = lock(&table);
                while let Ok(order) = orders.try_recv() {
                    table.insert(order);
                }
                table.fail(&error);
            }
        }
    }
}

/// A time without any answer.
struct Outage {
    deadline: Instant,
    pause: Duration,
}

/// Connects again, until the deadline of the outage.
async fn reconnect(
    uri: &Uri,
    options: &ClientOptions,
    agreed: &Terms,
    outage: &mut Option<Outage>,
    mut error: Error,
) -> Result<Link> {
    if options.reconnect.is_zero() {
        return Err(error);
    }
    let (shortest, longest) = PAUSES;
    let Outage { deadline, pause } = match outage {
        Some(outage) => {
            // The last connection gave nothing: do not hurry to the next one.
            if Instant::now() + outage.pause >= outage.deadline {
                return Err(error);
            }
            tokio::time::sleep(outage.pause).await;
            outage.pause = (outage.pause * 2).min(longest);
            outage
        }
        None => {
            outage.insert(Outage { deadline: Instant::now() + options.reconnect, pause: shortest })
        }
    };
    let deadline = *deadline;
    loop {
        match tokio::time::timeout_at(deadline, open(uri, options)).await {
            Ok(Ok(link)) if agreed.continues_as(&link.terms) => return Ok(link),
            Ok(Ok(_)) => {
                return Err(Error::conflict(format!(
                    "{uri}: the export is not what it was before the connection was lost: connect anew"
                )));
            }
            Ok(Err(e)) => error = e,
            Err(_) => return Err(error),
        }
        if Instant::now() + *pause >= deadline {
            return Err(error);
        }
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(longest);
    }
}

fn lock(table: &Mutex<RequestTable>) -> MutexGuard<'_, RequestTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves requests over one connection.
async fn run(
    link: Link,
    table: &Mutex<RequestTable>,
    orders: &mut mpsc::UnboundedReceiver<QueuedRequest>,
) -> LinkEnd {
    let Link { stream, terms } = link;
    let (reader, writer) = tokio::io::split(stream);
    tokio::select! {
        error = receive(reader, &terms, table) => LinkEnd::Lost(error),
        sent = send(writer, terms.style, table, orders) => match sent {
            Ok(()) => LinkEnd::Closed,
            Err(e) => LinkEnd::Lost(Error::unavailable(format!("sending requests: {e}")).with_source(e)),
        },
    }
}

/// Sends what the table holds, then what comes, until the client is done.
async fn send(
    mut writer: WriteHalf<Box<dyn Stream>>,
    style: ReplyStyle,
    table: &Mutex<RequestTable>,
    orders: &mut mpsc::UnboundedReceiver<QueuedRequest>,
) -> io::Result<()> {
    let mut out = Vec::new();
    let left = lock(table).cookies();
    for cookie in left {
        let again = lock(table).get(cookie).map(|p| (*p.request(), p.order.payload.clone()));
        let Ok((request, payload)) = again else { continue };
        request.put(style, &mut out);
        put_payload(&mut writer, &mut out, &payload).await?;
        if out.len() >= BATCH {
            writer.write_all(&out).await?;
            out.clear();
        }
    }
    loop {
        if out.len() < BATCH {
            let order = match orders.try_recv() {
                Ok(order) => Some(order),
                Err(mpsc::error::TryRecvError::Disconnected) => None,
                Err(mpsc::error::TryRecvError::Empty) => {
                    writer.write_all(&out).await?;
                    writer.flush().await?;
                    out.clear();
                    orders.recv().await
                }
            };
            let Some(order) = order else { break };
            // Inserted before anything can fail: it is sent again then.
            let taken = lock(table).insert(order).map(|p| (*p.request(), p.order.payload.clone()));
            if let Some((request, payload)) = taken {
                request.put(style, &mut out);
                put_payload(&mut writer, &mut out, &payload).await?;
            }
        } else {
            writer.write_all(&out).await?;
            out.clear();
        }
    }
    let goodbye =
        RequestHeader { flags: 0, command: command::DISCONNECT, cookie: 0, offset: 0, len: 0 };
    goodbye.put(style, &mut out);
    writer.write_all(&out).await?;
    writer.shutdown().await
}

async fn put_payload(
    writer: &mut WriteHalf<Box<dyn Stream>>,
    out: &mut Vec<u8>,
    payload: &[u8],
) -> io::Result<()> {
    if payload.len() <= LONG {
        out.extend_from_slice(payload);
        return Ok(());
    }
    writer.write_all(out).await?;
    out.clear();
    writer.write_all(payload).await
}

/// Receives replies until the connection fails or the server breaks the protocol.
async fn receive(
    reader: ReadHalf<Box<dyn Stream>>,
    terms: &Terms,
    table: &Mutex<RequestTable>,
) -> Error {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    loop {
        if let Err(e) = receive_one(&mut reader, terms, table).await {
            return e;
        }
    }
}

type LinkReader = BufReader<ReadHalf<Box<dyn Stream>>>;

async fn read_exact(reader: &mut LinkReader, buf: &mut [u8]) -> Result<()> {
    reader.read_exact(buf).await.map(|_| ()).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => Error::unavailable("the server closed the connection"),
        _ => Error::unavailable(format!("receiving replies: {e}")).with_source(e),
    })
}

async fn receive_one(
    reader: &mut LinkReader,
    terms: &Terms,
    table: &Mutex<RequestTable>,
) -> Result<()> {
    let mut bytes = [0; reply::EXTENDED];
    let mut have = 4;
    read_exact(reader, &mut bytes[..have]).await?;
    let header = loop {
        match ReplyHeader::parse(terms.style, &bytes[..have])? {
            Parsed::Complete(header, _) => break header,
            Parsed::Incomplete(needed) => {
                read_exact(reader, &mut bytes[have..needed]).await?;
                have = needed;
            }
        }
    };
    match header {
        ReplyHeader::Simple { cookie, error } => {
            let request = *lock(table).get(cookie)?.request();
            let reads = request.command == command::READ && error == 0;
            if reads && terms.style != ReplyStyle::Simple {
                return Err(Error::invalid("the server answers a read without a chunk"));
            }
            if reads && request.len > 0 {
                data(reader, table, cookie, request.offset, request.len).await?;
            }
            let mut table = lock(table);
            if error != 0 {
                table.get(cookie)?.error = Some(refusal(error, ""));
            }
            table.finish(cookie)
        }
        ReplyHeader::Chunk { cookie, done, kind, len } => {
            let request = *lock(table).get(cookie)?.request();
            one_chunk(reader, terms, table, &request, kind, len).await?;
            if done { lock(table).finish(cookie) } else { Ok(()) }
        }
    }
}

fn refusal(number: u32, text: &str) -> Error {
    let message = match text {
        "" => format!("the server answered with error {number}"),
        text => text.to_owned(),
    };
    Error::new(fault::kind(number), message)
}

async fn one_chunk(
    reader: &mut LinkReader,
    terms: &Terms,
    table: &Mutex<RequestTable>,
    request: &RequestHeader,
    kind: u16,
    len: u64,
) -> Result<()> {
    let wrong = |why: &str| Err(Error::invalid(format!("the server sent {why}")));
    if kind == chunk::OFFSET_DATA {
        if request.command != command::READ || len <= reply::DATA_OFFSET as u64 {
            return wrong("a data chunk that does not fit");
        }
        let mut offset = [0; reply::DATA_OFFSET];
        read_exact(reader, &mut offset).await?;
        let len = len - reply::DATA_OFFSET as u64;
        return data(reader, table, request.cookie, u64::from_be_bytes(offset), len).await;
    }
    if len > LONGEST_CHUNK {
        return wrong("a chunk that is too long");
    }
    let mut payload = vec![0; len as usize];
    read_exact(reader, &mut payload).await?;
    let mut table = lock(table);
    let pending = table.get(request.cookie)?;
    match kind {
        chunk::NONE if len == 0 => Ok(()),
        chunk::OFFSET_HOLE if request.command == command::READ => {
            let (offset, len) = reply::parse_hole(&payload)?;
            pending.cover(offset, u64::from(len)).map(|_| ()) // its buffer is zero already
        }
        chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT
            if request.command == command::BLOCK_STATUS
                && (kind == chunk::BLOCK_STATUS_EXT) == (terms.style == ReplyStyle::Extended) =>
        {
            let end = request.offset.saturating_add(request.len);
            let asked = Span::between(request.offset, end);
            let (context, extents) = reply::parse_extents(terms.style, asked, &payload)?;
            if Some(context) == terms.allocation {
                pending.extents = extents;
            }
            Ok(())
        }
        kind if kind & chunk::ERROR_BIT != 0 => {
            let (number, text) = reply::parse_error(&payload)?;
            if number == 0 {
                return wrong("an error without a number");
            }
            pending.error.get_or_insert(refusal(number, &text));
            Ok(())
        }
        _ => wrong("a chunk that does not fit its request"),
    }
}

/// Receives a part of a read's data.
async fn data(
    reader: &mut LinkReader,
    table: &Mutex<RequestTable>,
    cookie: u64,
    offset: u64,
    len: u64,
) -> Result<()> {
    // The buffer alone leaves the table, so that the request stays there whatever happens.
    let (place, mut buffer) = {
        let mut table = lock(table);
        let pending = table.get(cookie)?;
        (pending.cover(offset, len)?, std::mem::take(&mut pending.data))
    };
    read_exact(reader, &mut buffer[place]).await?;
    lock(table).get(cookie)?.data = buffer;
    Ok(())
}

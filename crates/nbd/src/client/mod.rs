//! The client: an export of some server as a device.
//!
//! | module | concept |
//! |---|---|
//! | `negotiate` | agreeing with the server |
//! | `handed` | a negotiated socket for the kernel's driver |
//! | `tls` | encryption |
//! | `list` | what a server exports |
//! | `link` | the connection: sending, receiving, connecting again |
//! | `table` | the requests that wait for their answer |

mod handed;
mod link;
mod list;
mod negotiate;
mod table;
mod tls;

#[cfg(test)]
mod tests;

use crate::Uri;
use crate::codec::ReplyStyle;
use crate::codec::constants::{command, command_flags as flag, export_flags};
use crate::codec::option::Reinstatement;
use crate::codec::request::RequestHeader;
use async_trait::async_trait;
use block::{Device, Durability, Error, Extent, ExtentKind, Limits, Result, Span, ZeroMode};
use bytes::Bytes;
use futures::future::try_join_all;
use link::Link;
use std::sync::Arc;
use std::time::Duration;
use table::{Answer, QueuedRequest};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

pub use handed::{HandedSocket, Relay, connect_socket};
pub use list::list_exports;
pub use negotiate::{Terms, negotiate};
pub use tls::ClientTls;

/// A connection of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Payload bytes that may be under way at a time, in units of [`UNIT`].
const WINDOW: u32 = (64 << 20) / UNIT as u32;
/// The grain of the window, in bytes.
const UNIT: u64 = 1 << 10;
/// The longest trim, zeroing or block status without extended headers, in bytes.
const LONGEST_EFFECT: u64 = 1 << 30;

/// How a client behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// How long one attempt to connect and negotiate may take.
    pub connect: Duration,
    /// How long to try again after the connection is lost; requests wait meanwhile. Zero: they
    /// fail at once.
    pub reconnect: Duration,
    /// Silence on a TCP connection until the server is probed.
    pub keepalive: Duration,
    /// What `nbds://` is encrypted with; without it there is no connection to such a URI.
    pub tls: Option<ClientTls>,
    /// The connections that this one takes the place of. A server that does not know of that is used all
    /// the same.
    pub reinstates: Option<Reinstatement>,
    /// Beside that: the system of this client has just begun, and every other connection of it to the export is of one
    /// that has ended.
    pub initial_contact: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            reconnect: Duration::from_secs(30),
            keepalive: Duration::from_secs(60),
            tls: None,
            reinstates: None,
            initial_contact: false,
        }
    }
}

/// An export of a server, as a device.
///
/// Any number of requests run at a time over one connection. When it is lost, it is made again and
/// what was not answered is sent again. A server that crashed may have lost writes that it
/// acknowledged but had not flushed; the client cannot know, so the first flush after a lost
/// connection fails if there were such writes.
///
/// A server without FLUSH is taken to write through, as the Linux kernel's client does. One
/// without TRIM keeps what is discarded; one without WRITE_ZEROES is sent zeroes.
///
/// Dropping it closes the connection without a goodbye; see [`close`](Self::close).
#[derive(Debug)]
pub struct Remote {
    uri: Uri,
    terms: Terms,
    orders: mpsc::UnboundedSender<QueuedRequest>,
    window: Arc<Semaphore>,
    driver: JoinSet<()>,
}

impl Remote {
    /// Connects to an export.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached,
    /// [`NotFound`](block::ErrorKind::NotFound) when it has no such export,
    /// [`Denied`](block::ErrorKind::Denied) when it refuses it or one of the two does not trust the
    /// other's certificate,
    /// [`Invalid`](block::ErrorKind::Invalid) when it is no NBD server.
    pub async fn connect(uri: &Uri, options: ClientOptions) -> Result<Self> {
        let link = link::open(uri, &options).await?;
        Ok(Self::drive(uri, options, link))
    }

    /// The same over a connection that was made already, by which `uri` is meant. It is not made again when it is lost.
    ///
    /// # Errors
    /// Any error from [`connect`](Self::connect).
    pub async fn over(stream: Box<dyn Stream>, uri: &Uri, options: ClientOptions) -> Result<Self> {
        let options = ClientOptions { reconnect: Duration::ZERO, ..options };
        let link = link::over(stream, uri, &options).await?;
        Ok(Self::drive(uri, options, link))
    }

    fn drive(uri: &Uri, options: ClientOptions, link: Link) -> Self {
        let terms = link.terms.clone();
        let (orders, incoming) = mpsc::unbounded_channel(); // bounded by the window
        let mut driver = JoinSet::new();
        driver.spawn(link::drive(uri.clone(), options, link, incoming));
        let window = Arc::new(Semaphore::new(WINDOW as usize));
        Self { uri: uri.clone(), terms, orders, window, driver }
    }

    /// The export.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Ends the session cleanly: tells the server that the client is done. Flush before, if what
    /// was written is to last.
    pub async fn close(self) {
        let Self { orders, mut driver, .. } = self;
        drop(orders);
        while driver.join_next().await.is_some() {}
    }

    async fn ask(&self, command: u16, flags: u16, span: Span, payload: Bytes) -> Result<Answer> {
        let carries = matches!(command, command::READ | command::WRITE);
        let bytes = if carries { span.len() } else { 0 };
        let units = (bytes / UNIT + 1).min(u64::from(WINDOW)) as u32;
        let share = Arc::clone(&self.window).acquire_many_owned(units).await;
        let share = share.map_err(|_| Error::internal("the window of a client is closed"))?;
        let extended_write = self.terms.style == ReplyStyle::Extended && command == command::WRITE;
        let request = RequestHeader {
            flags: flags | if extended_write { flag::PAYLOAD_LEN } else { 0 },
            command,
            cookie: 0,
            offset: span.offset(),
            len: span.len(),
        };
        let (answer, answered) = oneshot::channel();
        let gone = || Error::internal(format!("{}: the client ended by a fault", self.uri));
        let order = QueuedRequest { request, payload, answer, share };
        self.orders.send(order).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?.map_err(|e| e.context(&self.uri))
    }

    /// Refuses a change of a read-only export.
    fn writable(&self) -> Result<()> {
        if self.read_only() {
            return Err(Error::denied(format!("{} is read-only", self.uri)));
        }
        Ok(())
    }

    /// Runs a change piece by piece, durable if asked for.
    async fn change(
        &self,
        command: u16,
        flags: u16,
        pieces: impl Iterator<Item = (Span, Bytes)>,
        durability: Durability,
    ) -> Result<()> {
        let durable = durability == Durability::Durable;
        let unit_access = durable && self.terms.has(export_flags::SEND_FUA);
        let flags = flags | if unit_access { flag::FUA } else { 0 };
        try_join_all(pieces.map(|(span, payload)| self.ask(command, flags, span, payload))).await?;
        if durable && !unit_access { self.flush().await } else { Ok(()) }
    }

    fn effects(&self, span: Span) -> impl Iterator<Item = (Span, Bytes)> + use<> {
        let longest = match self.terms.style {
            ReplyStyle::Extended => u64::MAX,
            _ => LONGEST_EFFECT,
        };
        span.pieces(longest).map(|piece| (piece, Bytes::new()))
    }

    fn longest(&self) -> u64 {
        u64::from(self.terms.limits.maximum)
    }
}

#[async_trait]
impl Device for Remote {
    fn size(&self) -> u64 {
        self.terms.size
    }

    fn limits(&self) -> Limits {
        self.terms.limits
    }

    fn read_only(&self) -> bool {
        self.terms.has(export_flags::READ_ONLY)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        let mut parts = Vec::new();
        for piece in span.pieces(self.longest()) {
            let (part, behind) = rest.split_at_mut(piece.len() as usize);
            rest = behind;
            parts.push(async move {
                match self.ask(command::READ, 0, piece, Bytes::new()).await? {
                    Answer::Data(data) if data.len() == part.len() => {
                        part.copy_from_slice(&data);
                        Ok(())
                    }
                    _ => Err(Error::internal("a read was answered without its data")),
                }
            });
        }
        try_join_all(parts).await.map(|_| ())
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.writable()?;
        let data = Bytes::copy_from_slice(data);
        let pieces = span.pieces(self.longest());
        let pieces = pieces.map(|piece| (piece, data.slice(piece.index_in(span))));
        self.change(command::WRITE, 0, pieces, durability).await
    }

    async fn flush(&self) -> Result<()> {
        if !self.terms.has(export_flags::SEND_FLUSH) {
            return Ok(());
        }
        self.ask(command::FLUSH, 0, Span::whole(0), Bytes::new()).await.map(|_| ())
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        self.writable()?;
        if !self.terms.has(export_flags::SEND_TRIM) {
            return Ok(());
        }
        self.change(command::TRIM, 0, self.effects(span), durability).await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.writable()?;
        let needed = match mode.only_if_fast {
            true => export_flags::SEND_WRITE_ZEROES | export_flags::SEND_FAST_ZERO,
            false => export_flags::SEND_WRITE_ZEROES,
        };
        if self.terms.flags & needed == needed {
            let mut flags = 0;
            if !mode.may_punch {
                flags |= flag::NO_HOLE;
            }
            if mode.only_if_fast {
                flags |= flag::FAST_ZERO;
            }
            return self.change(command::WRITE_ZEROES, flags, self.effects(span), durability).await;
        }
        if mode.only_if_fast {
            return Err(Error::unsupported(format!("{} does not zero fast", self.uri)));
        }
        let longest = self.longest();
        let zeroes = Bytes::from(vec![0; longest.min(span.len()) as usize]);
        for piece in span.pieces(longest) {
            let payload = zeroes.slice(..piece.len() as usize);
            let one = std::iter::once((piece, payload));
            self.change(command::WRITE, 0, one, durability).await?;
        }
        Ok(())
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        if self.terms.allocation.is_none() {
            block::extent::push(&mut list, span, ExtentKind::Data);
            return Ok(list);
        }
        let Some((piece, _)) = self.effects(span).next() else { return Ok(list) };
        let flags = if limit == 1 { flag::REQ_ONE } else { 0 };
        match self.ask(command::BLOCK_STATUS, flags, piece, Bytes::new()).await? {
            Answer::Extents(mut list) => {
                list.truncate(limit);
                Ok(list)
            }
            _ => Err(Error::internal("block status was answered without extents")),
        }
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        if self.terms.has(export_flags::SEND_CACHE) {
            for (piece, _) in self.effects(span) {
                self.ask(command::CACHE, 0, piece, Bytes::new()).await?;
            }
        }
        Ok(())
    }
}

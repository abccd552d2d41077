//! The items of a hand-over: what is written to the socket, and read from it.

use super::super::listen::InheritedListener;
use crate::estate::Estate;
use block::{Error, Result};
use nbd::codec::ReplyStyle;
use nbd::codec::option::Reinstatement;
use nbd::server::{ConnectionRemainder, Interrupted, PassedConnection};
use nbd::{Listener, Peer, Transport};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// The version of the items, and the oldest that is understood.
const VERSION: u32 = 2;
const OLDEST: u32 = 1;
const MAGIC: &[u8; 4] = b"SJHO";
const HEADER: usize = 12;
/// The longest JSON of an item, in bytes: an export's name and a client's.
const LONGEST_TEXT: u32 = 64 << 10;
/// The longest raw bytes of an item: what a client has not taken of its answers, and what was received
/// of its requests and not taken.
const LONGEST_RAW: u32 = 128 << 20;
/// The most items.
const MOST: usize = 100_000;
/// The longest that a server may say it waits for its disks, in seconds.
const LONGEST_WAIT: u64 = 86_400;
/// "I have everything."
pub(super) const DONE: u8 = b'A';
/// "It is yours."
pub(super) const YOURS: u8 = b'Y';

/// One thing of an [`Estate`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "snake_case")]
pub(super) enum EstateItem {
    Hello {
        version: u32,
        /// How long the other items may take to come, in seconds.
        #[serde(default)]
        wait: u64,
    },
    Listener {
        asked: Option<String>,
        /// The file of a unix socket is to be removed at the end.
        file: bool,
    },
    Http {
        asked: String,
    },
    Gateway {
        asked: String,
    },
    Client(Box<ClientRecord>),
    End,
}

/// [`Interrupted`], written down, but for the bytes of what is left of its streams.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ClientRecord {
    pub(super) via: TransportRecord,
    pub(super) identity: String,
    pub(super) certificate: Option<String>,
    pub(super) export: String,
    /// [`Peer::asked`]; one of an earlier version does not say.
    #[serde(default)]
    pub(super) asked: Option<String>,
    pub(super) style: Style,
    pub(super) allocation: bool,
    pub(super) size: u64,
    pub(super) read_only: bool,
    /// [`Interrupted::content`]; one of an earlier version does not say.
    #[serde(default)]
    pub(super) content: Option<String>,
    /// [`Interrupted::order`]; one of an earlier version does not say.
    #[serde(default)]
    pub(super) order: Option<u64>,
    /// [`Interrupted::reinstates`]: the id, and the number.
    #[serde(default)]
    pub(super) reinstates: Option<([u8; 16], u64)>,
    /// So many of the raw bytes are what the client has not taken of its answers.
    #[serde(default)]
    pub(super) unsent: usize,
    /// [`ConnectionRemainder::skip`].
    #[serde(default)]
    pub(super) skip: u64,
}

/// [`Transport`], written down.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TransportRecord {
    Unix { uid: u32, pid: Option<i32> },
    Tcp(SocketAddr),
    Stdio,
}

/// [`ReplyStyle`], written down.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Style {
    Simple,
    Structured,
    Extended,
}

impl ClientRecord {
    fn of(session: &Interrupted) -> Self {
        let ConnectionRemainder { unsent, skip, .. } = &session.rest;
        Self {
            via: match session.peer.transport {
                Transport::Unix { uid, pid } => TransportRecord::Unix { uid, pid },
                Transport::Tcp(from) => TransportRecord::Tcp(from),
                Transport::Stdio => TransportRecord::Stdio,
            },
            identity: session.peer.identity.clone(),
            certificate: session.peer.certificate.clone(),
            export: session.export.clone(),
            asked: session.peer.asked(),
            style: match session.style {
                ReplyStyle::Simple => Style::Simple,
                ReplyStyle::Structured => Style::Structured,
                ReplyStyle::Extended => Style::Extended,
            },
            allocation: session.allocation,
            size: session.size,
            read_only: session.read_only,
            content: session.content.clone(),
            order: session.order,
            reinstates: session.reinstates.map(|one| (one.id, one.number)),
            unsent: unsent.len(),
            skip: *skip,
        }
    }

    /// The session, of which `raw` is left: first what was not sent.
    fn session(self, mut raw: Vec<u8>) -> Result<Interrupted> {
        if self.unsent > raw.len() {
            return Err(unreadable("a client's answers are cut short"));
        }
        let received = raw.split_off(self.unsent);
        let transport = match self.via {
            TransportRecord::Unix { uid, pid } => Transport::Unix { uid, pid },
            TransportRecord::Tcp(from) => Transport::Tcp(from),
            TransportRecord::Stdio => Transport::Stdio,
        };
        Ok(Interrupted {
            peer: Peer::known(transport, self.identity, self.certificate, self.asked),
            export: self.export,
            style: match self.style {
                Style::Simple => ReplyStyle::Simple,
                Style::Structured => ReplyStyle::Structured,
                Style::Extended => ReplyStyle::Extended,
            },
            allocation: self.allocation,
            size: self.size,
            read_only: self.read_only,
            content: self.content,
            order: self.order,
            reinstates: self.reinstates.map(|(id, number)| Reinstatement { id, number }),
            rest: ConnectionRemainder { received, unsent: raw, skip: self.skip },
        })
    }
}

pub(super) fn gone(e: &std::io::Error) -> Error {
    Error::unavailable(format!("the other server went away in the middle of the hand-over: {e}"))
}

pub(super) fn unreadable(why: &str) -> Error {
    Error::invalid(format!(
        "the other server is of a version that cannot be understood ({why}); stop the first one, \
         then start the second"
    ))
}

/// Sends the first item: everything comes after `wait` at the latest.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when the successor has gone.
pub(super) async fn greet(stream: &mut UnixStream, wait: Duration) -> Result<()> {
    let hello = EstateItem::Hello { version: VERSION, wait: wait.as_secs() };
    send(stream, &hello, &[], None).await
}

/// Sends all other items.
pub(super) async fn send_all(stream: &mut UnixStream, estate: &Estate) -> Result<()> {
    for InheritedListener { asked, listener } in &estate.listeners {
        // The one who is last removes the file: from now on that is the successor.
        let item = EstateItem::Listener { asked: asked.clone(), file: listener.leave_file() };
        send(stream, &item, &[], Some(listener.as_fd())).await?;
    }
    if let Some((asked, socket)) = &estate.http {
        let item = EstateItem::Http { asked: asked.clone() };
        send(stream, &item, &[], Some(socket.as_fd())).await?;
    }
    if let Some((asked, socket)) = &estate.gateway {
        let item = EstateItem::Gateway { asked: asked.clone() };
        send(stream, &item, &[], Some(socket.as_fd())).await?;
    }
    for PassedConnection { stream: socket, session, .. } in &estate.clients {
        let ConnectionRemainder { received, unsent, .. } = &session.rest;
        if received.len() + unsent.len() > LONGEST_RAW as usize {
            tracing::warn!(peer = %session.peer, "it has too much under way to be handed over");
            continue;
        }
        let item = EstateItem::Client(Box::new(ClientRecord::of(session)));
        send(stream, &item, &[unsent, received], Some(socket.as_fd())).await?;
    }
    send(stream, &EstateItem::End, &[], None).await
}

async fn send(
    stream: &mut UnixStream,
    item: &EstateItem,
    raw: &[&[u8]],
    socket: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let json = serde_json::to_vec(item)
        .map_err(|e| Error::internal("cannot write an item").with_source(e))?;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(MAGIC);
    header[4..8].copy_from_slice(&(json.len() as u32).to_le_bytes());
    let length: usize = raw.iter().map(|part| part.len()).sum();
    header[8..].copy_from_slice(&(length as u32).to_le_bytes());
    let to = &*stream;
    let sent = to
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let sockets: Vec<BorrowedFd<'_>> = socket.into_iter().collect();
            if !sockets.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&sockets));
            }
            let bytes = [IoSlice::new(&header)];
            Ok(sendmsg(to, &bytes, &mut control, SendFlags::NOSIGNAL)?)
        })
        .await
        .map_err(|e| gone(&e))?;
    for bytes in [&header[sent..], &json[..]].iter().chain(raw) {
        stream.write_all(bytes).await.map_err(|e| gone(&e))?;
    }
    Ok(())
}

/// Receives the first item; gives how long the others may take to come.
pub(super) async fn greeting(stream: &mut UnixStream) -> Result<Duration> {
    match receive(stream).await? {
        (EstateItem::Hello { version: OLDEST..=VERSION, wait }, ..) => {
            Ok(Duration::from_secs(wait.min(LONGEST_WAIT)))
        }
        (EstateItem::Hello { version, .. }, ..) => Err(unreadable(&format!("version {version}"))),
        _ => Err(unreadable("it does not begin with its version")),
    }
}

/// Receives all other items.
pub(super) async fn receive_all(stream: &mut UnixStream) -> Result<Estate> {
    let mut estate = Estate::default();
    for _ in 0..MOST {
        let (item, raw, socket) = receive(stream).await?;
        let socket = || socket.ok_or_else(|| unreadable("a descriptor is missing"));
        match item {
            EstateItem::Listener { asked, file } => {
                let mut listener = Listener::from_fd(socket()?)?;
                if file {
                    listener = listener.take_file();
                    listener.leave_file(); // until it is ours
                }
                estate.listeners.push(InheritedListener { asked, listener });
            }
            EstateItem::Http { asked } => estate.http = Some((asked, socket()?)),
            EstateItem::Gateway { asked } => estate.gateway = Some((asked, socket()?)),
            EstateItem::Client(client) => {
                let (stream, session) = (socket()?, client.session(raw)?);
                estate.clients.push(PassedConnection {
                    stream,
                    session,
                    carrier: None,
                    place: None,
                });
            }
            EstateItem::End => return Ok(estate),
            EstateItem::Hello { .. } => return Err(unreadable("it begins twice")),
        }
    }
    Err(unreadable("it does not end"))
}

async fn receive(stream: &mut UnixStream) -> Result<(EstateItem, Vec<u8>, Option<OwnedFd>)> {
    let mut header = [0; HEADER];
    let (mut filled, mut socket) = (0, None);
    while filled < HEADER {
        let (from, part) = (&*stream, &mut header[filled..]);
        let got = from.async_io(Interest::READABLE, || receive_part(from, part, &mut socket));
        match got.await.map_err(|e| gone(&e))? {
            0 => return Err(gone(&std::io::ErrorKind::UnexpectedEof.into())),
            got => filled += got,
        }
    }
    let number = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (text, raw) = (number(4), number(8));
    if &header[..4] != MAGIC || text > LONGEST_TEXT || raw > LONGEST_RAW {
        return Err(unreadable("what it sends is something else"));
    }
    let mut json = vec![0; text as usize];
    stream.read_exact(&mut json).await.map_err(|e| gone(&e))?;
    let mut bytes = vec![0; raw as usize];
    stream.read_exact(&mut bytes).await.map_err(|e| gone(&e))?;
    let item = serde_json::from_slice(&json).map_err(|e| unreadable(&e.to_string()))?;
    Ok((item, bytes, socket))
}

/// Receives once, with the descriptor that is tied to these bytes.
fn receive_part(
    stream: &UnixStream,
    part: &mut [u8],
    socket: &mut Option<OwnedFd>,
) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(part)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(stream, &mut bytes, &mut control, flags) {
        Err(Errno::INTR) => return Err(std::io::ErrorKind::WouldBlock.into()),
        got => got?,
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sockets) = message {
            *socket = sockets.last().or(socket.take());
        }
    }
    Ok(got.bytes)
}

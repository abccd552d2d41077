//! One server follows another on the same home, and no client notices: the sockets that listen and
//! those of clients go from process to process over a unix socket (`SCM_RIGHTS`, unix(7)).
//!
//! The successor listens at `successor.sock` in the home and asks over the control socket; the
//! server connects there, and sends items: a header of 12 bytes (`SJHO`, the lengths of what
//! follows, little-endian), to which the descriptor is tied if there is one, JSON, and raw bytes. The
//! first one comes at once and says how long the server may wait for its disks until it sends the
//! others. The successor prepares [all that can fail](super::prepared), and answers one byte when it is
//! done, the server one that they are the successor's now. Until then both can go back to what was. Then the server closes its disks, lets
//! go of the home's lock, for which the successor waits, and ends; unless it has connections that are
//! encrypted: their keys are in its memory, so it carries what passes over them to their end.

use super::listen::Had;
use super::prepared::Prepared;
use super::reload::Changeable;
use crate::control;
use crate::control::api::Draining;
use crate::control::client::Client;
use crate::home::Home;
use block::fs::FsPath;
use block::lock::LockFile;
use block::{Error, ErrorKind, Result};
use nbd::codec::ReplyStyle;
use nbd::server::{Interrupted, Passed, Rest};
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
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::Instant;

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
/// "I have everything."
const DONE: u8 = b'A';
/// "It is yours."
const YOURS: u8 = b'Y';
/// How long one of the two waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that a server may say it waits for its disks, in seconds.
const LONGEST_WAIT: u64 = 86_400;
/// How long a successor waits for the reason of a server that breaks off.
const REASON: Duration = Duration::from_secs(2);

/// How long a successor waits for the disks to be closed, and how often it looks.
const CLOSING: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// The flag of a successor.
const TAKE_OVER: &str = "--take-over";

/// What a server hands to the next one.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    pub(crate) listeners: Vec<Had>,
    /// The HTTP port, and the address that was asked for.
    pub(crate) http: Option<(String, OwnedFd)>,
    pub(crate) clients: Vec<Passed>,
}

/// One thing of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "snake_case")]
enum Item {
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
    Client {
        via: Via,
        identity: String,
        certificate: Option<String>,
        export: String,
        /// [`Peer::asked`]; one of an earlier version does not say.
        #[serde(default)]
        asked: Option<String>,
        style: Style,
        allocation: bool,
        size: u64,
        read_only: bool,
        /// So many of the raw bytes are what the client has not taken of its answers.
        #[serde(default)]
        unsent: usize,
        /// [`Rest::skip`].
        #[serde(default)]
        skip: u64,
    },
    End,
}

/// [`Transport`], written down.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Via {
    Unix { uid: u32, pid: Option<i32> },
    Tcp(SocketAddr),
    Stdio,
}

/// [`ReplyStyle`], written down.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Style {
    Simple,
    Structured,
    Extended,
}

/// Where a successor waits.
pub(crate) struct Waiting {
    listener: UnixListener,
    path: PathBuf,
}

impl Waiting {
    /// Listens at `successor.sock`, for the owner alone.
    ///
    /// # Errors
    /// As [`listen_alone`](control::server::listen_alone).
    pub(crate) fn listen(home: &Home) -> Result<Self> {
        let path = home.successor();
        Ok(Self { listener: control::server::listen_alone(&path)?, path })
    }

    /// Takes everything that the server sends. It is the server's until [`Offer::accept`].
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it sends nothing, or not all.
    pub(crate) async fn take(self) -> Result<Offer> {
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept());
        let accepted = accepted.await.map_err(|_| late())?;
        let (mut stream, _) = accepted.map_err(|e| Error::io(self.path.display(), e))?;
        let greeted = tokio::time::timeout(PATIENCE * 2, greeting(&mut stream));
        let wait = greeted.await.map_err(|_| late())??;
        let estate = tokio::time::timeout(wait + PATIENCE * 2, receive_all(&mut stream));
        let estate = estate.await.map_err(|_| late())??;
        Ok(Offer { stream, estate })
    }
}

fn late() -> Error {
    Error::unavailable("the server does not hand over in time; see its log")
}

/// What a server hands over, and takes back when this is dropped.
pub(crate) struct Offer {
    stream: UnixStream,
    estate: Estate,
}

impl Offer {
    /// Says that this server is ready for it; when this returns, it is its own.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server does not let go of it.
    async fn accept(&mut self) -> Result<()> {
        let agreed = tokio::time::timeout(PATIENCE * 2, async {
            self.stream.write_u8(DONE).await.map_err(|e| gone(&e))?;
            match self.stream.read_u8().await.map_err(|e| gone(&e))? {
                YOURS => Ok(()),
                _ => Err(unreadable("it does not let go")),
            }
        });
        agreed.await.map_err(|_| late())?
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = FsPath::from(&*self.path).remove_synced();
    }
}

/// A server's connection to its successor.
pub(crate) struct Successor {
    stream: UnixStream,
    /// Its process.
    pub(crate) pid: Option<i32>,
}

impl Successor {
    /// Connects to the successor that waits.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when none does.
    pub(crate) async fn connect(home: &Home) -> Result<Self> {
        let path = home.successor();
        let none = |e| Error::unavailable(format!("no successor waits at {}: {e}", path.display()));
        let stream = UnixStream::connect(&path).await.map_err(none)?;
        let pid = stream.peer_cred().map_err(none)?.pid().filter(|pid| *pid > 0);
        Ok(Self { stream, pid })
    }

    /// Says that everything comes after `wait` at the latest.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the successor has gone.
    pub(crate) async fn greet(&mut self, wait: Duration) -> Result<()> {
        let hello = Item::Hello { version: VERSION, wait: wait.as_secs() };
        send(&mut self.stream, &hello, &[], None).await
    }

    /// Hands everything over. When this returns, the successor has it.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the successor does not take it.
    pub(crate) async fn give(&mut self, estate: &Estate) -> Result<()> {
        let given = tokio::time::timeout(PATIENCE, async {
            send_all(&mut self.stream, estate).await?;
            match self.stream.read_u8().await {
                Ok(DONE) => self.stream.write_u8(YOURS).await.map_err(|e| gone(&e)),
                Ok(other) => Err(unreadable(&format!("it answers {other}"))),
                Err(e) => Err(gone(&e)),
            }
        });
        given.await.map_err(|_| Error::unavailable("the successor takes too long"))?
    }
}

impl Changeable {
    /// Hands listeners and clients over to the successor that waits. On an error the server goes on
    /// as before. Gives how many clients went, and the successor's process.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while a verb is carried out on a disk;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the successor does not take everything.
    pub(crate) async fn hand_over(&mut self) -> Result<Draining> {
        let mut successor = Successor::connect(&self.running.home).await?;
        if !self.running.hold_verbs() {
            let why = "a command is at work on a disk; try again when it is done";
            return Err(Error::conflict(why));
        }
        let given = self.give(&mut successor).await;
        if given.is_err() {
            // The clients that go on here have no disks for a moment: verbs wait for that, too.
            self.running.attached.send_replace(false);
            let (running, attached) = (Arc::clone(&self.running), self.listeners.attached());
            self.others.spawn(async move {
                attached.await;
                running.attached.send_replace(true);
            });
            self.running.release_verbs();
        }
        given
    }

    async fn give(&mut self, successor: &mut Successor) -> Result<Draining> {
        let listeners = self.listeners.share()?;
        let http = match &self.http {
            Some(port) => Some((port.place().address.clone(), port.share()?)),
            None => None,
        };
        let patience = Duration::from_secs(self.config.serve.stop_seconds);
        successor.greet(patience).await?;
        let clients = self.listeners.interrupt(patience).await;
        let connections = clients.len() as u64;
        let estate = Estate { listeners, http, clients };
        if let Err(e) = successor.give(&estate).await {
            tracing::error!(error = e.message(), "nothing was handed over; this server goes on");
            self.listeners.resume(estate.clients, estate.listeners, &self.security);
            self.tell_places();
            return Err(e);
        }
        let successor = successor.pid.and_then(|pid| u32::try_from(pid).ok());
        tracing::info!(connections, ?successor, "handed over");
        Ok(Draining { connections, successor })
    }
}

/// Takes over from the server of this home; `None` when none runs. `prepare` does all that can fail with
/// what that server hands over: when it fails, that server goes on with it. Gives what was prepared, the
/// clients, and the home itself as soon as that server has let go of it.
///
/// # Errors
/// Those of `prepare`, and when the server refuses, or does not let go of the home.
pub(crate) async fn take_over(
    home: &Home,
    prepare: impl AsyncFnOnce(&mut Estate) -> Result<Prepared>,
) -> Result<Option<(Prepared, Vec<Passed>, LockFile)>> {
    let Some(running) = Client::connect(home).await? else { return Ok(None) };
    let waiting = Waiting::listen(home)?;
    let refused = async {
        match running.hand_over().await {
            Err(e) => e,
            Ok(_) => std::future::pending().await, // all of it is on its way
        }
    };
    let mut refused = std::pin::pin!(refused);
    let mut offer = tokio::select! {
        offer = waiting.take() => match offer {
            Ok(offer) => offer,
            // The server knows better why.
            Err(e) => return Err(tokio::time::timeout(REASON, refused).await.unwrap_or(e)),
        },
        e = &mut refused => return Err(e),
    };
    let mut prepared = tokio::select! {
        prepared = prepare(&mut offer.estate) => prepared.map_err(|e| {
            e.context("nothing was taken over, and the server that runs goes on")
        })?,
        e = &mut refused => return Err(e),
    };
    tokio::select! {
        accepted = offer.accept() => if let Err(e) = accepted {
            return Err(tokio::time::timeout(REASON, refused).await.unwrap_or(e));
        },
        e = &mut refused => return Err(e),
    }
    let Offer { estate: Estate { listeners: unwanted, clients, .. }, .. } = offer;
    // The files of those that are not gone on with are removed, too.
    let ours = prepared.bound.iter().map(|bound| &bound.listener);
    ours.chain(unwanted.iter().map(|had| &had.listener)).for_each(Listener::keep_file);
    tracing::info!(
        clients = clients.len(),
        listeners = prepared.bound.len(),
        "taken over; waiting for the disks"
    );
    // Commands that come from now on wait for this server.
    prepared.control.publish()?;
    let deadline = Instant::now() + CLOSING;
    loop {
        match home.lock() {
            Ok(lock) => return Ok(Some((prepared, clients, lock))),
            Err(e) if e.kind() == ErrorKind::Conflict && Instant::now() < deadline => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(e) => return Err(e),
        }
    }
}

/// A successor that this server started and that has not taken over yet.
#[derive(Debug, Default)]
pub(crate) struct Succession(Option<(Child, oneshot::Sender<Result<Draining>>)>);

impl Succession {
    /// Starts one; `answer` hears what comes of it.
    pub(crate) fn start(&mut self, answer: oneshot::Sender<Result<Draining>>) {
        let child = match &self.0 {
            Some(_) => Err(Error::conflict("a successor is being started already")),
            None => start_successor(),
        };
        match child {
            Ok(child) => self.0 = Some((child, answer)),
            Err(e) => {
                let _ = answer.send(Err(e));
            }
        }
    }

    /// It has taken over.
    pub(crate) fn done(&mut self, what: &Draining) {
        if let Some((_, answer)) = self.0.take() {
            let _ = answer.send(Ok(what.clone()));
        }
    }

    /// Waits until it has ended without taking over; for ever when there is none.
    pub(crate) async fn failed(&mut self) {
        let Some((child, _)) = &mut self.0 else { return std::future::pending().await };
        let ended = match child.wait().await {
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        tracing::error!(ended, "the successor did not take over; this server goes on");
        if let Some((_, answer)) = self.0.take() {
            let why = format!(
                "the successor ended ({ended}) and has not taken over; its reason is in the \
                 server's log, and the server goes on"
            );
            let _ = answer.send(Err(Error::unavailable(why)));
        }
    }
}

/// Starts a successor with the command line of this process.
///
/// # Errors
/// When the program cannot be started.
fn start_successor() -> Result<Child> {
    let program = std::env::current_exe().map_err(|e| Error::io("this program", e))?;
    // The name of a program that was replaced since, as by an upgrade.
    let name = program.as_os_str().to_string_lossy();
    let program = name.strip_suffix(" (deleted)").map_or(program.clone(), PathBuf::from);
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != TAKE_OVER);
    Command::new(&program)
        .args(arguments)
        .arg(TAKE_OVER)
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_PID")
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| Error::io(program.display(), e))
}

fn gone(e: &std::io::Error) -> Error {
    Error::unavailable(format!("the other server went away in the middle of the hand-over: {e}"))
}

fn unreadable(why: &str) -> Error {
    Error::invalid(format!(
        "the other server is of a version that cannot be understood ({why}); stop the first one, \
         then start the second"
    ))
}

async fn send_all(stream: &mut UnixStream, estate: &Estate) -> Result<()> {
    for Had { asked, listener } in &estate.listeners {
        // The one who is last removes the file: from now on that is the successor.
        let item = Item::Listener { asked: asked.clone(), file: listener.leave_file() };
        send(stream, &item, &[], Some(listener.as_fd())).await?;
    }
    if let Some((asked, socket)) = &estate.http {
        let item = Item::Http { asked: asked.clone() };
        send(stream, &item, &[], Some(socket.as_fd())).await?;
    }
    for Passed { stream: socket, session, .. } in &estate.clients {
        let Rest { received, unsent, skip } = &session.rest;
        if received.len() + unsent.len() > LONGEST_RAW as usize {
            tracing::warn!(peer = %session.peer, "it has too much under way to be handed over");
            continue;
        }
        let item = Item::Client {
            via: match session.peer.transport {
                Transport::Unix { uid, pid } => Via::Unix { uid, pid },
                Transport::Tcp(from) => Via::Tcp(from),
                Transport::Stdio => Via::Stdio,
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
            unsent: unsent.len(),
            skip: *skip,
        };
        send(stream, &item, &[unsent, received], Some(socket.as_fd())).await?;
    }
    send(stream, &Item::End, &[], None).await
}

async fn send(
    stream: &mut UnixStream,
    item: &Item,
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
async fn greeting(stream: &mut UnixStream) -> Result<Duration> {
    match receive(stream).await? {
        (Item::Hello { version: OLDEST..=VERSION, wait }, ..) => {
            Ok(Duration::from_secs(wait.min(LONGEST_WAIT)))
        }
        (Item::Hello { version, .. }, ..) => Err(unreadable(&format!("version {version}"))),
        _ => Err(unreadable("it does not begin with its version")),
    }
}

/// Receives all other items.
async fn receive_all(stream: &mut UnixStream) -> Result<Estate> {
    let mut estate = Estate::default();
    for _ in 0..MOST {
        let (item, mut raw, socket) = receive(stream).await?;
        let socket = || socket.ok_or_else(|| unreadable("a descriptor is missing"));
        match item {
            Item::Listener { asked, file } => {
                let mut listener = Listener::from_fd(socket()?)?;
                if file {
                    listener = listener.take_file();
                    listener.leave_file(); // until it is ours
                }
                estate.listeners.push(Had { asked, listener });
            }
            Item::Http { asked } => estate.http = Some((asked, socket()?)),
            Item::Client {
                via,
                identity,
                certificate,
                export,
                asked,
                style,
                allocation,
                size,
                read_only,
                unsent,
                skip,
            } => {
                if unsent > raw.len() {
                    return Err(unreadable("a client's answers are cut short"));
                }
                let received = raw.split_off(unsent);
                let rest = Rest { received, unsent: raw, skip };
                let transport = match via {
                    Via::Unix { uid, pid } => Transport::Unix { uid, pid },
                    Via::Tcp(from) => Transport::Tcp(from),
                    Via::Stdio => Transport::Stdio,
                };
                let style = match style {
                    Style::Simple => ReplyStyle::Simple,
                    Style::Structured => ReplyStyle::Structured,
                    Style::Extended => ReplyStyle::Extended,
                };
                let peer = Peer::known(transport, identity, certificate, asked);
                let session =
                    Interrupted { peer, export, style, allocation, size, read_only, rest };
                estate.clients.push(Passed { stream: socket()?, session, carrier: None });
            }
            Item::End => return Ok(estate),
            Item::Hello { .. } => return Err(unreadable("it begins twice")),
        }
    }
    Err(unreadable("it does not end"))
}

async fn receive(stream: &mut UnixStream) -> Result<(Item, Vec<u8>, Option<OwnedFd>)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        (dir, home)
    }

    async fn accepted(waiting: Waiting) -> Result<Estate> {
        let mut offer = waiting.take().await?;
        offer.accept().await?;
        Ok(offer.estate)
    }

    #[tokio::test]
    async fn what_was_offered_and_not_accepted_stays_where_it_was() {
        let (dir, home) = home();
        let path = dir.path().join("s");
        let listener = Listener::bind(&nbd::Address::unix(&path).unwrap(), 16).await.unwrap();
        let had = Had { asked: None, listener: listener.share().unwrap() };
        let estate = Estate { listeners: vec![had], ..Estate::default() };
        let waiting = Waiting::listen(&home).unwrap();
        let give = async {
            let mut successor = Successor::connect(&home).await.unwrap();
            successor.greet(Duration::ZERO).await.unwrap();
            successor.give(&estate).await.unwrap_err()
        };
        let refuse = async { drop(waiting.take().await.unwrap()) };
        let (error, ()) = tokio::join!(give, refuse);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(path.exists(), "the file is the first server's");
        listener.keep_file();
        drop((listener, estate));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn sockets_and_what_is_known_of_them_arrive() {
        let (dir, home) = home();
        let path = dir.path().join("s");
        let listener = Listener::bind(&nbd::Address::unix(&path).unwrap(), 16).await.unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer::unix(7, Some(9)).certified("alice".to_owned());
        peer.note_asked("d\u{e9}bian:latest");
        let session = Interrupted {
            peer,
            export: "d\u{e9}bian".to_owned(),
            style: ReplyStyle::Extended,
            allocation: true,
            size: 1 << 40,
            read_only: false,
            rest: Rest {
                received: (0..200_000).map(|i| i as u8).collect(),
                unsent: (0..3_000_000).map(|i| (i % 199) as u8).collect(),
                skip: 1 << 31,
            },
        };
        let shared = listener.share().unwrap();
        let estate = Estate {
            listeners: vec![Had { asked: Some("unix:s".to_owned()), listener: shared }],
            http: None,
            clients: vec![Passed {
                stream: theirs.into(),
                session: session.clone(),
                carrier: None,
            }],
        };
        let waiting = Waiting::listen(&home).unwrap();
        let give = async {
            let mut successor = Successor::connect(&home).await.unwrap();
            assert_eq!(successor.pid, Some(std::process::id() as i32));
            successor.greet(Duration::from_secs(7)).await.unwrap();
            successor.give(&estate).await.unwrap();
        };
        let (taken, ()) = tokio::join!(accepted(waiting), give);
        let taken = taken.unwrap();
        drop((estate, listener));
        assert!(!home.successor().exists());
        taken.listeners[0].listener.keep_file();
        assert_eq!(taken.clients[0].session, session);
        let asked = taken.clients[0].session.peer.asked();
        assert_eq!(asked.as_deref(), Some("d\u{e9}bian:latest"));
        assert_eq!(taken.listeners[0].asked.as_deref(), Some("unix:s"));
        let mut passed =
            std::os::unix::net::UnixStream::from(taken.clients[0].stream.try_clone().unwrap());
        std::io::Write::write_all(&mut passed, b"x").unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(&mut &ours, &mut byte).unwrap();
        assert_eq!(byte, *b"x");
        assert!(path.exists(), "the file is the successor's now");
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(taken);
        assert!(!path.exists());
    }

    #[test]
    fn servers_that_do_not_know_what_was_asked_for_and_that_know_more_are_understood() {
        let item = |more: &str| {
            let json = format!(
                r#"{{"item": "client", "via": "stdio", "identity": "stdio", "certificate": null,
                    "export": "d", "style": "simple", "allocation": false, "size": 1,
                    "read_only": true{more}}}"#
            );
            match serde_json::from_str(&json).unwrap() {
                Item::Client { asked, .. } => asked,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(item(""), None);
        assert_eq!(item(r#", "asked": "e", "later": [1]"#).as_deref(), Some("e"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_has_as_long_as_it_said_to_wait_for_its_disks() {
        for (said, comes_after, comes) in [(300, 290, true), (10, 290, false), (0, 50, true)] {
            let (_dir, home) = home();
            let waiting = Waiting::listen(&home).unwrap();
            let give = async {
                let mut successor = Successor::connect(&home).await.unwrap();
                successor.greet(Duration::from_secs(said)).await.unwrap();
                tokio::time::sleep(Duration::from_secs(comes_after)).await;
                successor.give(&Estate::default()).await
            };
            let (taken, given) = tokio::join!(accepted(waiting), give);
            assert_eq!((taken.is_ok(), given.is_ok()), (comes, comes), "{said} {comes_after}");
        }
    }

    #[tokio::test]
    async fn a_successor_that_goes_away_is_an_error_and_so_is_nonsense() {
        let (_dir, home) = home();
        assert_eq!(Successor::connect(&home).await.err().unwrap().kind(), ErrorKind::Unavailable);
        let waiting = Waiting::listen(&home).unwrap();
        let mut successor = Successor::connect(&home).await.unwrap();
        drop(waiting);
        let error = successor.give(&Estate::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SJHO\xff\xff\xff\xff\0\0\0\0", b"SJHO"] {
            let waiting = Waiting::listen(&home).unwrap();
            let mut stream = UnixStream::connect(home.successor()).await.unwrap();
            stream.write_all(nonsense).await.unwrap();
            drop(stream);
            assert!(waiting.take().await.is_err());
        }
    }
}

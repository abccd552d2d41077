//! The successor of a server.

use super::super::prepared::PreparedServer;
use super::PATIENCE;
use super::wire::{self, DONE, YOURS, gone, unreadable};
use crate::client::ControlClient;
use crate::control;
use crate::estate::Estate;
use block::fs::FsPath;
use block::lock::LockFile;
use block::{Error, ErrorKind, Result};
use engine::home::Home;
use nbd::Listener;
use nbd::server::PassedConnection;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

/// How long a successor waits for the reason of a server that breaks off.
const REASON: Duration = Duration::from_secs(2);
/// How long a successor waits for the disks to be closed, and how often it looks.
const CLOSING: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// Where a successor waits.
pub(crate) struct WaitingSuccessor {
    listener: UnixListener,
    path: PathBuf,
}

impl WaitingSuccessor {
    /// Listens at `successor.sock`, for the owner alone.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when something other than a socket is at that path; an I/O
    /// error when the socket cannot be made.
    pub(crate) fn listen(home: &Home) -> Result<Self> {
        let path = home.successor();
        Ok(Self { listener: control::listen_alone(&path)?, path })
    }

    /// Takes everything that the server sends. It is the server's until [`Offer::accept`].
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it sends nothing, or not all.
    pub(crate) async fn take(self) -> Result<Offer> {
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept());
        let accepted = accepted.await.map_err(|_| late())?;
        let (mut stream, _) = accepted.map_err(|e| Error::io(self.path.display(), e))?;
        let greeted = tokio::time::timeout(PATIENCE * 2, wire::greeting(&mut stream));
        let wait = greeted.await.map_err(|_| late())??;
        let estate = tokio::time::timeout(wait + PATIENCE * 2, wire::receive_all(&mut stream));
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
    pub(super) estate: Estate,
}

impl Offer {
    /// Says that this server is ready for it; when this returns, it is its own.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server does not let go of it.
    pub(super) async fn accept(&mut self) -> Result<()> {
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

impl Drop for WaitingSuccessor {
    fn drop(&mut self) {
        let _ = FsPath::from(&*self.path).remove_synced();
    }
}

/// Takes over from the server of this home; `None` when none runs. `prepare` does all that can fail with
/// what that server hands over: when it fails, that server goes on with it. Gives what was prepared, the
/// clients, and the home itself as soon as that server has let go of it.
///
/// # Errors
/// Any error from `prepare`, and when the server refuses, or does not let go of the home.
pub(crate) async fn take_over(
    home: &Home,
    prepare: impl AsyncFnOnce(&mut Estate) -> Result<PreparedServer>,
) -> Result<Option<(PreparedServer, Vec<PassedConnection>, LockFile)>> {
    let Some(running) = ControlClient::connect(home).await? else { return Ok(None) };
    let waiting = WaitingSuccessor::listen(home)?;
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

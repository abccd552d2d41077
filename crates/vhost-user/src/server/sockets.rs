//! The sockets of the exports, opened and closed as their names come and go.

use super::is_socket_name;
use block::{Error, Result};
use nbd::server::BindingTurn;
use nbd::{Address, Listener};
use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Clients of one export that may wait to be accepted.
pub(super) const BACKLOG: u32 = 16;
/// How long accepting rests after it failed, for want of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long it takes until sockets that could not be opened are tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// A client, and the export whose socket it came to.
pub(super) type Arrival = (String, UnixStream);

/// The sockets in a directory.
pub(super) struct Sockets {
    dir: PathBuf,
    accepted: mpsc::Sender<Arrival>,
    wanted: BTreeSet<String>,
    open: HashMap<String, Socket>,
    /// A pass over those that are missing: one at a time, away from who waits for other things, as another process may
    /// be at work in the directory.
    opening: JoinSet<Vec<(String, Result<Socket>)>>,
    /// Why others could not be opened, which was logged, by their names.
    failed: HashMap<String, String>,
    /// When those are tried again.
    again: Option<Instant>,
}

impl Sockets {
    /// None yet. Clients go to `accepted`.
    pub(super) fn new(dir: &Path, accepted: mpsc::Sender<Arrival>) -> Self {
        let (wanted, open, failed) = Default::default();
        let (dir, opening) = (dir.to_owned(), JoinSet::new());
        Self { dir, accepted, wanted, open, opening, failed, again: None }
    }

    /// From now on there is one for each of these names.
    pub(super) fn want(&mut self, names: BTreeSet<String>) {
        self.open.retain(|name, _| names.contains(name));
        self.failed.retain(|name, _| names.contains(name));
        self.wanted = names;
        self.begin();
    }

    /// Whether none is wanted.
    pub(super) fn are_none(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether all have been tried.
    pub(super) fn are_tried(&self) -> bool {
        self.opening.is_empty()
    }

    /// Opens what is missing, step by step: to be called over and over. It may be dropped at any time.
    pub(super) async fn work(&mut self) {
        if let Some(passed) = self.opening.join_next().await {
            return self.take(passed.unwrap_or_default());
        }
        match self.again {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.begin();
    }

    /// Closes all.
    pub(super) async fn close(mut self) {
        self.opening.shutdown().await;
    }

    /// Begins a pass, unless one is under way.
    fn begin(&mut self) {
        if !self.opening.is_empty() {
            return;
        }
        self.again = None;
        let is_missing = |name: &&String| !self.open.contains_key(*name);
        let (missing, hopeless): (Vec<_>, Vec<_>) =
            self.wanted.iter().filter(is_missing).cloned().partition(|name| is_socket_name(name));
        for name in hopeless {
            self.note(&name, "that cannot be the name of a socket");
        }
        if missing.is_empty() {
            return;
        }
        let (dir, accepted) = (self.dir.clone(), self.accepted.clone());
        self.opening.spawn(async move {
            let turn = BindingTurn::take(&dir).await;
            let mut tried = Vec::new();
            for name in missing {
                let socket = Socket::open(&dir, &name, &accepted, &turn);
                tried.push((name, socket));
                tokio::task::yield_now().await;
            }
            tried
        });
    }

    /// Takes what came of a pass.
    fn take(&mut self, tried: Vec<(String, Result<Socket>)>) {
        let names: BTreeSet<_> = tried.iter().map(|(name, _)| name.clone()).collect();
        for (name, socket) in tried {
            match socket {
                // It went meanwhile.
                _ if !self.wanted.contains(&name) => {}
                Ok(socket) => {
                    self.failed.remove(&name);
                    self.open.insert(name, socket);
                }
                Err(e) => self.note(&name, e.message()),
            }
        }
        let missing = |name: &&String| !self.open.contains_key(*name) && is_socket_name(name);
        if self.wanted.iter().filter(missing).any(|name| !names.contains(name)) {
            self.begin();
        } else if self.wanted.iter().any(|name| missing(&name)) {
            self.again = Some(Instant::now() + AGAIN);
        }
    }

    /// Logs why there is no socket of that name, unless that is in the log.
    fn note(&mut self, name: &str, why: &str) {
        if self.failed.insert(name.to_owned(), why.to_owned()).as_deref() != Some(why) {
            tracing::error!(export = name, error = why, "no vhost-user");
        }
    }
}

/// An export's socket. Its file goes with it.
struct Socket {
    _listener: Listener,
    _accepting: JoinSet<()>,
}

impl Socket {
    fn open(
        dir: &Path,
        name: &str,
        accepted: &mpsc::Sender<Arrival>,
        turn: &BindingTurn,
    ) -> Result<Self> {
        let address = Address::unix(dir.join(name))?;
        let listener = Listener::bind_in_turn(&address, BACKLOG, turn)?;
        let failed = |e| Error::io(&address, e);
        let socket = listener.as_fd().try_clone_to_owned().map_err(failed)?;
        let socket = UnixListener::from_std(socket.into()).map_err(failed)?;
        let (name, accepted) = (name.to_owned(), accepted.clone());
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            loop {
                match socket.accept().await {
                    Ok((stream, _)) => {
                        if accepted.send((name.clone(), stream)).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accepting a vhost-user connection failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        Ok(Self { _listener: listener, _accepting: accepting })
    }
}

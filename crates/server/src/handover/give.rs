//! The server that hands over.

use super::super::reload::Changeable;
use super::PATIENCE;
use super::wire::{self, DONE, YOURS, gone, unreadable};
use crate::api::Draining;
use crate::estate::Estate;
use block::{Error, Result};
use engine::home::Home;
use nbd::server::KeptPlace;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

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
        wire::greet(&mut self.stream, wait).await
    }

    /// Hands everything over. When this returns, the successor has it.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the successor does not take it.
    pub(crate) async fn give(&mut self, estate: &Estate) -> Result<()> {
        let given = tokio::time::timeout(PATIENCE, async {
            wire::send_all(&mut self.stream, estate).await?;
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
    /// The successor that waits. No verb begins from now on, until [`hand_over`](Self::hand_over) has failed.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when none waits,
    /// [`Conflict`](block::ErrorKind::Conflict) while a verb is carried out on a disk.
    pub(crate) async fn successor(&self) -> Result<Successor> {
        let successor = Successor::connect(&self.running.home).await?;
        if !self.running.hold_verbs() {
            let why = "a command is at work on a disk; try again when it is done";
            return Err(Error::conflict(why));
        }
        // Who looks may do so again, at the successor.
        self.running.looks.end().await;
        Ok(successor)
    }

    /// Hands listeners and clients over to the [`successor`](Self::successor). On an error the server goes on
    /// as before. Gives how many clients went, and the successor's process.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the successor does not take everything.
    pub(crate) async fn hand_over(&mut self, mut successor: Successor) -> Result<Draining> {
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
        let gateway = match &self.gateway {
            Some(port) => Some((port.asked().to_owned(), port.share()?)),
            None => None,
        };
        successor.greet(patience).await?;
        let clients = self.listeners.interrupt(patience).await;
        let connections = clients.len() as u64;
        let estate = Estate { listeners, http, gateway, clients };
        if let Err(e) = successor.give(&estate).await {
            tracing::error!(error = e.message(), "nothing was handed over; this server goes on");
            self.listeners.resume(estate.clients, estate.listeners, &self.security);
            self.tell_places();
            return Err(e);
        }
        // Those that go on there are not lost here, however long the disks take to close.
        let kept = estate.clients.into_iter().filter_map(|client| client.place);
        kept.for_each(KeptPlace::hand_over);
        let successor = successor.pid.and_then(|pid| u32::try_from(pid).ok());
        tracing::info!(connections, ?successor, "handed over");
        Ok(Draining { connections, successor })
    }
}

//! Who writes a disk, and when an ephemeral one becomes that of its image again.
//!
//! A client may attach any number of times (its connections); another one has to wait. When the
//! last attachment of an ephemeral disk ends cleanly, the disk is reset. When it was lost, the disk
//! waits a while for the same client; while the client's connections are on their way to another process
//! it waits without end ([`PassedAttachment`]). The timer is a future that the disk's owner polls
//! ([`Disk::expire`]): this crate starts no task that outlives its owner.

use crate::{Disk, Mode};
use block::{Error, Result};
use std::sync::Arc;

/// How an attachment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The client said that it leaves.
    Clean,
    /// Its connection broke; it may come back.
    Lost,
}

/// The right of one connection of a client to use a disk. Dropping it counts as a lost connection.
#[derive(Debug)]
pub struct Attachment {
    disk: Arc<Disk>,
    ended: bool,
}

impl Attachment {
    /// The disk.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Ends it. When it was the last one of an ephemeral disk and ended cleanly, the disk is reset
    /// before this returns.
    ///
    /// # Errors
    /// Any error from the reset; it is tried again by [`Disk::expire`] then.
    pub async fn detach(mut self, ending: Ending) -> Result<()> {
        let disk = Arc::clone(&self.disk);
        let _leaving = disk.lease.leave();
        self.ended = true;
        if !self.leave() {
            return Ok(());
        }
        match (disk.mode(), ending) {
            (Mode::Persistent | Mode::WriteThrough, _) => {
                disk.lease.release();
                Ok(())
            }
            (Mode::Ephemeral, Ending::Lost) => {
                disk.lease.linger();
                Ok(())
            }
            (Mode::Ephemeral, Ending::Clean) => {
                // Should the caller go away meanwhile, it is still due.
                disk.lease.linger();
                disk.reset_ephemeral().await
            }
        }
    }

    /// Ends it for a client whose connection goes on in another process, or in this one where no other takes it.
    /// However long that takes, the disk is the client's and is not reset, until what comes out is dropped.
    pub fn pass(mut self) -> PassedAttachment {
        let disk = Arc::clone(&self.disk);
        {
            let mut state = disk.lease.state.lock();
            state.attachments -= 1;
            state.passed += 1;
        }
        self.ended = true;
        PassedAttachment { disk, handed_over: false }
    }

    /// Counts one attachment less; whether it was the last one.
    fn leave(&self) -> bool {
        let mut state = self.disk.lease.state.lock();
        state.attachments -= 1;
        !state.is_used()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.ended && self.leave() {
            self.disk.lose_client();
        }
    }
}

/// A client's right to a disk while a connection of it is on its way. Dropped, the client is there again,
/// or counts as lost.
#[derive(Debug)]
pub struct PassedAttachment {
    disk: Arc<Disk>,
    handed_over: bool,
}

impl PassedAttachment {
    /// Another process goes on with the client: here the disk is nobody else's any more, and is not reset.
    pub fn hand_over(mut self) {
        self.handed_over = true;
    }
}

impl Drop for PassedAttachment {
    fn drop(&mut self) {
        if self.handed_over {
            return;
        }
        let is_last = {
            let mut state = self.disk.lease.state.lock();
            state.passed -= 1;
            !state.is_used()
        };
        if is_last {
            self.disk.lose_client();
        }
    }
}

impl Disk {
    /// Gives `client` the right to use the disk; it may ask any number of times.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict), naming the holder, when another client has it or
    /// is waited for, or while the disk is being changed as a whole;
    /// [`Unavailable`](block::ErrorKind::Unavailable) to a client whose writes lay in borrowed room
    /// of an earlier process, and to all while an ephemeral disk [has failed](Self::has_failed), or the store does not
    /// answer that takes what is written through; [`Fenced`](block::ErrorKind::Fenced) when another server has that one.
    pub async fn attach(self: &Arc<Self>, client: &str) -> Result<Attachment> {
        self.attach_process(client, None).await
    }

    /// The same for a client that others may be called like before and after it, as by the number of a process.
    /// `process` tells it from those: hexadecimal digits, `-` and `/`. What such another one left is not given to it:
    /// an ephemeral disk that waits for that one is reset at once, and is free then.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach); [`Conflict`](block::ErrorKind::Conflict) also when it is another process
    /// that has the disk or had it.
    pub async fn attach_process(
        self: &Arc<Self>,
        client: &str,
        process: Option<&str>,
    ) -> Result<Attachment> {
        if self.mode() == Mode::Ephemeral {
            // What a client left on one that failed is reset after it was opened again, and not shown to
            // the next one.
            self.shadow.check()?;
        }
        self.must_write_through().await?;
        let process = {
            if let Some(away) = &self.away {
                away.check(self.name())?;
            }
            let mut state = self.lease.state.lock();
            if let Some(busy) = state.busy {
                return Err(Error::conflict(format!(
                    "disk {:?}: a {busy} is under way; try again when it is done",
                    self.name()
                )));
            }
            if let Some(holder) = state.holder.as_deref().filter(|holder| *holder != client) {
                let how = if state.deadline.is_some() { "kept for" } else { "attached by" };
                return Err(Error::conflict(format!(
                    "disk {:?} is {how} {holder}; use another disk, or wait until it is free",
                    self.name()
                )));
            }
            if let (Some(holder), Some(process)) = (&state.process, process)
                && *holder != process
            {
                self.lease.linger_no_more(&mut state);
                return Err(Error::conflict(format!(
                    "disk {:?} is kept for an earlier process that was {client}, too; try again when it was reset",
                    self.name()
                )));
            }
            state.holder = Some(client.to_owned());
            state.process = process.map(str::to_owned).or(state.process.take());
            state.deadline = None;
            state.attachments += 1;
            state.process.clone()
        };
        // From here on dropping it undoes it.
        let attachment = Attachment { disk: Arc::clone(self), ended: false };
        // What is left of the client before must not change what this one writes.
        self.shadow.until_zeroed().await;
        if self.mode() == Mode::Ephemeral {
            self.note_client(client, process).await?;
        }
        Ok(attachment)
    }

    /// Waits until nothing is under way that keeps clients away: a client's last writes being noted, the
    /// reset after it.
    pub async fn until_free(&self) {
        loop {
            let freed = self.lease.free.notified();
            let is_free = {
                let state = self.lease.state.lock();
                state.busy.is_none() && state.leaving == 0
            };
            if is_free {
                return;
            }
            freed.await;
        }
    }

    /// Its client is gone, and did not say that it leaves.
    fn lose_client(&self) {
        match self.mode() {
            Mode::Persistent | Mode::WriteThrough => self.lease.release(),
            Mode::Ephemeral => self.lease.linger(),
        }
    }

    /// Who has the disk attached, or is waited for.
    pub fn holder(&self) -> Option<String> {
        self.lease.state.lock().holder.clone()
    }

    /// Resets an ephemeral disk whenever its client was lost and has not come back in time. Never
    /// returns: its owner polls it beside its other work as long as the disk is open. One caller at
    /// a time.
    pub async fn expire(&self) {
        loop {
            let deadline = self.lease.state.lock().deadline;
            match deadline {
                None => self.lease.changed.notified().await,
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = self.lease.changed.notified() => continue,
                    }
                    if self.lease.lingering_is_over()
                        && let Err(error) = self.reset_ephemeral().await
                    {
                        tracing::warn!(disk = self.name(), %error, "cannot reset an ephemeral disk");
                    }
                }
            }
        }
    }

    /// Resets the disk after its last client left; when that fails it is due again later.
    async fn reset_ephemeral(&self) -> Result<()> {
        match self.reset().await {
            Ok(()) => self.lease.release(),
            // The same client was quick to come back.
            Err(_) if self.lease.state.lock().is_used() => {}
            // Its record still says whose it was: it is reset after it was opened again.
            Err(error) if self.has_failed() => {
                self.lease.release();
                return Err(error);
            }
            Err(error) => {
                self.lease.linger();
                return Err(error);
            }
        }
        Ok(())
    }
}

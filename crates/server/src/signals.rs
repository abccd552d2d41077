//! What stops and reloads a server: SIGTERM and SIGINT, SIGHUP.

use block::{Error, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The signals that a server listens to.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalAction {
    Stop,
    Reload,
}

impl Signals {
    /// Starts listening; from now on the signals do not end the process by themselves.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the process may have no more open files.
    pub fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Error::io("cannot listen to signals", e));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hangup.recv() => SignalAction::Reload,
        }
    }

    /// The next signal that asks to stop. One that asks for something else stays for
    /// [`next`](Self::next).
    pub async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// A switch that many tasks wait for.
#[derive(Debug, Clone)]
pub(crate) struct Switch(watch::Sender<bool>);

impl Switch {
    /// Not thrown yet.
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Wakes all who wait, now and later.
    pub(crate) fn throw(&self) {
        self.0.send_replace(true);
    }

    /// Waits for it.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut watch = self.0.subscribe();
        async move {
            let _ = watch.wait_for(|thrown| *thrown).await;
        }
    }
}

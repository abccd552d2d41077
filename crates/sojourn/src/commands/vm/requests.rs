//! What a keeper is asked: by commands over its socket, and by signals.

use super::folder::MachineFolder;
use super::wire::{self, KeeperCaller, KeeperReply, KeeperRequest, StartingView};
use block::{Error, Result};
use std::pin::pin;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout_at};

/// How long who connects has to ask.
pub(super) const ASKS: Duration = Duration::from_secs(5);
/// How soon connections are taken again where the system is short of what one takes.
const AGAIN: Duration = Duration::from_millis(100);

/// What a keeper is asked.
pub(super) enum KeeperInput {
    /// By a signal.
    ToEnd,
    /// By a command.
    Command(UnixStream, Result<KeeperRequest>),
    /// Somebody connected, and said nothing.
    Nothing,
}

/// Where what a keeper is asked comes in.
pub(super) struct Requests {
    folder: MachineFolder,
    /// Where commands come in, once there is something to say.
    listener: Option<UnixListener>,
    /// Who connected last and has not asked yet, and until when.
    caller: Option<(KeeperCaller, Instant)>,
    terminate: Signal,
    /// Who had a start end, and waits for that.
    stoppers: Vec<UnixStream>,
}

impl Requests {
    /// Hears signals from now on, and commands not yet.
    ///
    /// # Errors
    /// Any error from the system.
    pub(super) fn new(folder: &MachineFolder) -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).map_err(|e| Error::io("signals", e))?;
        let (folder, stoppers) = (folder.clone(), Vec::new());
        Ok(Self { folder, listener: None, caller: None, terminate, stoppers })
    }

    /// Whether it listens for commands.
    pub(super) fn listens(&self) -> bool {
        self.listener.is_some()
    }

    /// Listens for commands from now on, if it did not.
    ///
    /// # Errors
    /// Any error from the socket.
    pub(super) fn listen(&mut self) -> Result<()> {
        if self.listener.is_none() {
            let socket = self.folder.socket();
            let bound = UnixListener::bind(&socket);
            self.listener = Some(bound.map_err(|e| Error::io(socket.display(), e))?);
        }
        Ok(())
    }

    /// Waits for a signal or a command. When this is dropped before, who connected is heard by the next call. A system
    /// that is short of what a connection takes is asked again soon: no machine ends for that.
    pub(super) async fn next(&mut self) -> KeeperInput {
        let Some(listener) = &self.listener else {
            self.terminate.recv().await;
            return KeeperInput::ToEnd;
        };
        if self.caller.is_none() {
            let accepted = tokio::select! {
                _ = self.terminate.recv() => return KeeperInput::ToEnd,
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "nobody can connect to the keeper now; it is tried again");
                    tokio::select! {
                        _ = self.terminate.recv() => return KeeperInput::ToEnd,
                        () = sleep(AGAIN) => return KeeperInput::Nothing,
                    }
                }
            };
            // Whoever asks writes at once; nothing waits for longer than that.
            self.caller = Some((KeeperCaller::new(stream), Instant::now() + ASKS));
        }
        let Some((caller, until)) = &mut self.caller else { return KeeperInput::Nothing };
        let asked = timeout_at(*until, caller.request()).await;
        match (asked, self.caller.take()) {
            (Ok(request), Some((caller, _))) => KeeperInput::Command(caller.into_stream(), request),
            _ => KeeperInput::Nothing,
        }
    }

    /// Does a part of a start, and serves commands meanwhile; `None` when a signal or a command had the start end
    /// before that was done.
    pub(super) async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let asked = tokio::select! {
                done = &mut work => return Some(done),
                asked = self.next() => asked,
            };
            let (stream, request) = match asked {
                KeeperInput::Nothing => continue,
                KeeperInput::Command(stream, request) => (stream, request),
                KeeperInput::ToEnd => return None,
            };
            let name = self.folder.name();
            let reply = match request {
                Err(e) => Err(e),
                Ok(KeeperRequest::Status) => {
                    Ok(KeeperReply::Starting(StartingView { keeper: std::process::id() }))
                }
                Ok(KeeperRequest::Stop { force: true }) => {
                    self.stoppers.push(stream);
                    return None;
                }
                Ok(_) => Err(Error::conflict(format!(
                    "machine {name:?} is starting; wait for it, or end that with 'sojourn vm stop --force {name}'"
                ))),
            };
            wire::answer(stream, reply).await;
        }
    }

    /// Answers who had a start end. All of it has ended by now.
    pub(super) async fn answer_stoppers(&mut self) {
        for stream in self.stoppers.drain(..) {
            wire::answer(stream, Ok(KeeperReply::Stopped)).await;
        }
    }
}

/// What is said of a start that was ended.
pub(super) fn start_ended() -> Error {
    Error::conflict("the machine was ended while it started")
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Home;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn a_start_is_told_of_refuses_what_has_to_wait_and_ends_when_it_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::with_key_file(Some(dir.path()), None).unwrap();
        let folder = MachineFolder::of(&home, "work").unwrap();
        folder.make_directory().unwrap();
        let mut requests = Requests::new(&folder).unwrap();
        requests.listen().unwrap();
        assert_eq!(requests.unless_ended(ready(7)).await, Some(7));
        let ask = async |request: KeeperRequest| wire::call(&folder, &request).await;
        let asking = async {
            let status = ask(KeeperRequest::Status).await.unwrap();
            assert!(matches!(status, Some(KeeperReply::Starting(_))), "{status:?}");
            for request in [KeeperRequest::Checkpoint, KeeperRequest::Stop { force: false }] {
                let refused = ask(request).await.unwrap_err();
                assert_eq!(refused.kind(), block::ErrorKind::Conflict);
            }
            ask(KeeperRequest::Stop { force: true }).await.unwrap()
        };
        let starting = async {
            assert!(requests.unless_ended(pending::<()>()).await.is_none());
            requests.answer_stoppers().await;
        };
        let (stopped, ()) = tokio::join!(asking, starting);
        assert!(matches!(stopped, Some(KeeperReply::Stopped)), "{stopped:?}");
    }
}

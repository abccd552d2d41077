//! The successor's process, where the server starts it itself.
//!
//! A server that carries encrypted connections lives for as long as these do. Were it the successor's parent, the
//! service manager would hear nothing of a crash of the successor: so another process starts that, and ends at once.

use crate::api::Draining;
use block::program::own_program;
use block::{Error, Result};
use std::ffi::OsString;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::path::Path;
use std::process::Stdio;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::oneshot;

/// The flag of a successor.
const TAKE_OVER: &str = "--take-over";
const SHELL: &str = "/bin/sh";
/// Starts its arguments in the background, with its own standard input, and ends.
const DETACH: &str = r#"exec 3<&0; "$@" <&3 3<&- &"#;

/// A successor that this server started and that has not taken over yet.
#[derive(Debug, Default)]
pub(crate) struct Succession(Option<(Lifeline, oneshot::Sender<Result<Draining>>)>);

impl Succession {
    /// Starts one; `answer` hears what comes of it.
    pub(crate) async fn start(&mut self, answer: oneshot::Sender<Result<Draining>>) {
        let started = match &self.0 {
            Some(_) => Err(Error::conflict("a successor is being started already")),
            None => start_successor().await,
        };
        match started {
            Ok(lifeline) => self.0 = Some((lifeline, answer)),
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
        let Some((lifeline, _)) = &mut self.0 else { return std::future::pending().await };
        lifeline.ended().await;
        tracing::error!("the successor ended and did not take over; this server goes on");
        if let Some((_, answer)) = self.0.take() {
            let why = "the successor ended and has not taken over; its reason is in the server's log, and the server \
                       goes on";
            let _ = answer.send(Err(Error::unavailable(why)));
        }
    }
}

/// Starts a successor with the command line of this process.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) where no successor would outlive this process; when the program cannot
/// be started.
async fn start_successor() -> Result<Lifeline> {
    must_not_be_first(std::process::id())?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != TAKE_OVER);
    let arguments = arguments.chain([OsString::from(TAKE_OVER)]).collect();
    detached(&own_program()?, arguments).await
}

/// The other end of a process's standard input: by it the end of a process is seen that is nobody's child here.
#[derive(Debug)]
struct Lifeline(UnixStream);

impl Lifeline {
    /// Waits until the process has ended.
    async fn ended(&mut self) {
        while matches!(self.0.read(&mut [0; 64]).await, Ok(1..)) {}
    }
}

/// Starts a program whose parent is the service manager, or the first process.
///
/// # Errors
/// When the shell that starts it cannot be started, or fails.
async fn detached(program: &Path, arguments: Vec<OsString>) -> Result<Lifeline> {
    let failed = |e| Error::io(program.display(), e);
    let (ours, theirs) = Pair::pair().map_err(failed)?;
    // There is nothing to read for it.
    ours.shutdown(Shutdown::Write).map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let lifeline = Lifeline(UnixStream::from_std(ours).map_err(failed)?);
    let mut shell = Command::new(SHELL);
    shell.args(["-c", DETACH, SHELL]).arg(program).args(arguments);
    shell.env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
    shell.stdin(Stdio::from(OwnedFd::from(theirs)));
    let ended = shell.status().await.map_err(|e| Error::io(SHELL, e))?;
    match ended.success() {
        true => Ok(lifeline),
        false => Err(Error::unavailable(format!("{SHELL} cannot start the successor ({ended})"))),
    }
}

/// Fails for the first process of a container: with it the kernel ends all others.
fn must_not_be_first(pid: u32) -> Result<()> {
    match pid {
        1 => Err(Error::unsupported(
            "this server is process 1 of its container, which ends with it and would take a successor along; start the \
             container anew, or give it an init ('podman run --init')",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use std::time::Duration;

    #[test]
    fn the_first_process_of_a_container_starts_no_successor() {
        assert_eq!(must_not_be_first(1).unwrap_err().kind(), ErrorKind::Unsupported);
        must_not_be_first(2).unwrap();
    }

    #[tokio::test]
    async fn the_parent_of_a_successor_is_the_service_manager_and_its_end_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let script = "cd \"$0\"; until [ -e go ]; do sleep 0.05; done; \
                      cut -d ' ' -f 4 /proc/$$/stat >parent";
        let arguments = vec!["-c".into(), script.into(), dir.path().into()];
        let mut lifeline = detached(Path::new(SHELL), arguments).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(200), lifeline.ended()).await;
        assert!(early.is_err(), "it goes on");
        std::fs::write(dir.path().join("go"), "").unwrap();
        lifeline.ended().await;
        let parent = std::fs::read_to_string(dir.path().join("parent")).unwrap();
        assert!(!parent.trim().is_empty());
        assert_ne!(parent.trim(), std::process::id().to_string());
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_started_ends_at_once() {
        let program = Path::new("/no/such/program");
        detached(program, Vec::new()).await.unwrap().ended().await;
    }
}

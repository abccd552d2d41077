//! The successor's process, where the server starts it itself.

use crate::api::Draining;
use block::program::own_program;
use block::{Error, Result};
use std::process::Stdio;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

/// The flag of a successor.
const TAKE_OVER: &str = "--take-over";

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
/// [`Unsupported`](block::ErrorKind::Unsupported) where no successor would outlive this process; when the program cannot
/// be started.
fn start_successor() -> Result<Child> {
    must_not_be_first(std::process::id())?;
    let program = own_program()?;
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
    use super::must_not_be_first;
    use block::ErrorKind;

    #[test]
    fn the_first_process_of_a_container_starts_no_successor() {
        assert_eq!(must_not_be_first(1).unwrap_err().kind(), ErrorKind::Unsupported);
        must_not_be_first(2).unwrap();
    }
}

//! The successor's process, where the server starts it itself.

use crate::api::Draining;
use block::{Error, Result};
use std::path::PathBuf;
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

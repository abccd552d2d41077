//! Errands: commands of this program that are carried out for who asks over HTTP, each in a process of its own, as a
//! person would run them. They are verbs that the server has no part in: machines have keepers, and media are read and
//! written by whoever wants that. What a command says, and what it ends with, is the answer.
//!
//! A process that a command leaves behind, as the keeper of a machine, is nobody's child then, in a group of its own; it
//! has none of the server's descriptors, all of which are closed when another program is begun.

use crate::study::{all_of, own_program};
use block::{Error, ErrorKind, Result};
use engine::Home;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

/// Errands at a time that change something: each is a process that has the store open.
const ERRANDS: usize = 8;
/// Errands at a time that only look; more wait.
const LOOKS: usize = 4;
/// The longest answer, in bytes.
const LONGEST: u64 = 16 << 20;
/// The end of what a command says of its failure that is looked at, in bytes.
const WHY_END: usize = 8 << 10;
/// How long one that is to end has for that, before it is killed.
const FAREWELL: Duration = Duration::from_secs(10);
/// How long a server that ends waits for one.
const ENDING: Duration = Duration::from_secs(20);
/// Variables of the server that are about itself: where it listens and whom it notifies, and which server a command of
/// somebody else is for.
const OWN_VARIABLES: [&str; 11] = [
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "SOJOURN_HOME",
    "SOJOURN_KEY_FILE",
    "SOJOURN_SERVER",
    "SOJOURN_TOKEN",
    "SOJOURN_TOKEN_FILE",
];

/// The errands of a server.
#[derive(Debug, Clone)]
pub(crate) struct Errands {
    turns: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    program: Option<PathBuf>,
}

/// An errand: the arguments of a command, and how long it may take.
#[derive(Debug, Clone)]
pub(crate) struct Errand {
    pub(crate) arguments: Vec<String>,
    pub(crate) time: Duration,
}

/// What came of one.
#[derive(Debug)]
pub(crate) struct ErrandResult {
    /// What it printed.
    pub(crate) printed: Vec<u8>,
    /// Why it failed.
    pub(crate) failure: Option<Error>,
}

impl ErrandResult {
    /// What it printed, as JSON.
    ///
    /// # Errors
    /// Why it failed; [`Internal`](ErrorKind::Internal) when that is no JSON.
    pub(crate) fn json(self) -> Result<Value> {
        match self.failure {
            Some(error) => Err(error),
            None => self.report(),
        }
    }

    /// What it printed as JSON, although what it tells of made it fail.
    ///
    /// # Errors
    /// Why it failed, if it printed no JSON; [`Internal`](ErrorKind::Internal) when it did not fail either.
    pub(crate) fn report(self) -> Result<Value> {
        let Self { printed, failure } = self;
        serde_json::from_slice(&printed).map_err(|e| {
            failure.unwrap_or_else(|| {
                Error::internal("a command does not print what is expected").with_source(e)
            })
        })
    }
}

impl Errands {
    /// Nobody runs one yet.
    pub(crate) fn new() -> Self {
        let (turns, looks) = (Semaphore::new(ERRANDS), Semaphore::new(LOOKS));
        Self { turns: Arc::new(turns), looks: Arc::new(looks), program: own_program() }
    }

    /// The turn of an errand that changes something.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when as many are run as may be.
    pub(crate) fn turn(&self) -> Result<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.turns).try_acquire_owned();
        turn.map_err(|_| {
            let why =
                format!("the server runs {ERRANDS} such commands already; try again in a moment");
            Error::unavailable(why)
        })
    }

    /// The turn of one that only looks.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the server is stopping.
    pub(crate) async fn turn_to_look(&self) -> Result<SemaphorePermit<'_>> {
        let turn = self.looks.acquire().await;
        turn.map_err(|_| Error::unavailable("the server is stopping"))
    }

    /// Runs one on a home. It is interrupted, as a person interrupts a command, when it takes longer than it may, or
    /// some time after `ending`; and killed when this is dropped.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when it was interrupted; [`Internal`](ErrorKind::Internal) when the
    /// command cannot be run. Its own failure is in its result.
    pub(crate) async fn run(
        &self,
        home: &Home,
        errand: &Errand,
        ending: impl Future<Output = ()>,
    ) -> Result<ErrandResult> {
        let program = self.program.as_ref().ok_or_else(|| Error::internal("no name of its own"))?;
        let failed = |e| Error::internal("a command cannot be run").with_source(e);
        let mut command = Command::new(program);
        command.args(["--json", "--log", "error", "--home"]).arg(home.dir());
        if let Some(key_file) = home.key_file() {
            command.arg("--key-file").arg(key_file);
        }
        for variable in OWN_VARIABLES {
            command.env_remove(variable);
        }
        command.args(&errand.arguments).current_dir("/");
        // What interrupts the server at its terminal is not for whom the server works.
        command.process_group(0).stdin(Stdio::null());
        let spawned =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
        let mut child = spawned.map_err(failed)?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (out, why) = (child.stdout.take(), child.stderr.take());
        let mut work = Box::pin(async {
            let (printed, why) = tokio::try_join!(all_of(out, LONGEST), end_of(why))?;
            Ok::<_, std::io::Error>((printed, why, child.wait().await?))
        });
        let late = format!("it takes longer than {} s", errand.time.as_secs());
        let stopped = tokio::select! {
            done = &mut work => {
                let (printed, why, status) = done.map_err(failed)?;
                let failure = (!status.success()).then(|| failure(status.code(), &why));
                return Ok(ErrandResult { printed, failure });
            }
            () = sleep(errand.time) => late,
            () = async { ending.await; sleep(ENDING).await } => "the server is stopping".to_owned(),
        };
        // It has not been waited for: the number is still its own.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = timeout(FAREWELL, work).await;
        Err(Error::unavailable(format!(
            "the command was interrupted, as {stopped}; see what it did, and repeat it"
        )))
    }
}

/// The error of a command that ended with this code, or was killed, and said `why`.
fn failure(code: Option<i32>, why: &[u8]) -> Error {
    let why = String::from_utf8_lossy(why);
    let line = why.trim().lines().last().unwrap_or("the command says nothing");
    let line = line.strip_prefix("sojourn: ").unwrap_or(line).to_owned();
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Error::new(ErrorKind::of_exit_code(code), line),
        None => Error::internal(format!("the command was killed: {line}")),
    }
}

/// The end of what comes.
async fn end_of(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut end = Vec::new();
    if let Some(mut from) = from {
        while from.read_buf(&mut end).await? > 0 {
            let spare = end.len().saturating_sub(WHY_END);
            end.drain(..spare);
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::tests::script;
    use serde_json::json;
    use std::future::pending;
    use std::path::Path;

    const LONG: Duration = Duration::from_secs(600);

    async fn run(dir: &Path, text: &str, time: Duration) -> Result<ErrandResult> {
        let home = Home::with_key_file(Some(dir), Some(&dir.join("key"))).unwrap();
        let errands = Errands { program: Some(script(dir, text)), ..Errands::new() };
        let errand = Errand { arguments: vec!["vm".into(), "list".into()], time };
        errands.run(&home, &errand, pending()).await
    }

    #[tokio::test]
    async fn a_command_has_the_home_and_its_key_and_what_it_prints_is_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let done = run(dir.path(), "echo \"[\\\"$*\\\", \\\"$PWD\\\"]\"", LONG).await.unwrap();
        let at = dir.path().display();
        let line = format!("--json --log error --home {at} --key-file {at}/key vm list");
        assert_eq!(done.json().unwrap(), json!([line, "/"]));
        let done = run(dir.path(), "echo nothing", LONG).await.unwrap();
        assert_eq!(done.json().unwrap_err().kind(), ErrorKind::Internal);
    }

    #[tokio::test]
    async fn a_failure_has_the_kind_of_its_exit_code_and_the_last_line_that_was_said() {
        let dir = tempfile::tempdir().unwrap();
        for kind in ErrorKind::ALL {
            let code = kind.exit_code();
            let text = format!("echo 'work@5 goes up' >&2; echo 'sojourn: no' >&2; exit {code}");
            let error = run(dir.path(), &text, LONG).await.unwrap().json().unwrap_err();
            assert_eq!((error.kind(), error.message()), (kind, "no"));
        }
        let damaged = ErrorKind::Corrupt.exit_code();
        let text = format!("echo '{{}}'; echo 'sojourn: damaged' >&2; exit {damaged}");
        let done = run(dir.path(), &text, LONG).await.unwrap();
        assert_eq!(done.failure.as_ref().unwrap().kind(), ErrorKind::Corrupt);
        assert_eq!(done.report().unwrap(), json!({}));
        let killed = run(dir.path(), "kill -9 $$", LONG).await.unwrap();
        assert_eq!(killed.json().unwrap_err().kind(), ErrorKind::Internal);
    }

    #[tokio::test]
    async fn one_that_takes_too_long_is_interrupted_as_by_a_person() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("interrupted");
        let text = format!(
            "trap 'kill $!; echo told >{}; exit 0' TERM; sleep 60 >/dev/null 2>&1 & wait",
            mark.display()
        );
        let error = run(dir.path(), &text, Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("longer than 1 s"), "{error}");
        assert!(mark.exists());
    }

    #[tokio::test]
    async fn nothing_is_said_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let text = "yes 12345678 | head -c 20000000; yes no | head -c 999999 >&2; exit 4";
        let done = run(dir.path(), text, LONG).await.unwrap();
        assert_eq!(done.printed.len() as u64, LONGEST);
        assert_eq!(done.failure.unwrap().message(), "no");
    }

    #[test]
    fn few_go_on_at_a_time() {
        let errands = Errands::new();
        let turns: Vec<_> = (0..ERRANDS).map(|_| errands.turn().unwrap()).collect();
        assert_eq!(errands.turn().unwrap_err().kind(), ErrorKind::Unavailable);
        drop(turns);
        drop(errands.turn().unwrap());
    }
}

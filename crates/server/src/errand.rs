//! Errands: commands of this program that are carried out for who asks over HTTP, each in a process of its own, as a
//! person would run them. They are verbs that the server has no part in: machines have keepers, and media are read and
//! written by whoever wants that. What a command says, and what it ends with, is the answer.
//!
//! A process that a command leaves behind, as the keeper of a machine, is nobody's child then, in a group of its own; it
//! has none of the server's descriptors, all of which are closed when another program is begun.

use crate::study::all_of;
use block::program::own_program;
use block::{Error, ErrorKind, Result};
use engine::Home;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::HashSet;
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
/// Errands at a time that wait until a suspension is in the store. A link that is cut keeps them for as long as they
/// may take, and nobody else for it.
const WAITS: usize = 8;
/// Errands at a time that change media: each may take hours.
const MEDIA: usize = 4;
/// Errands at a time that only look; more wait.
const LOOKS: usize = 4;
/// How long they wait, and how long a look may take. With its end that is less than the HTTP port waits for an answer.
const LOOK_WAITS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(20);
const LOOK_ENDS: Duration = Duration::from_secs(2);
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
    waits: Arc<Semaphore>,
    media: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    /// Those of which there is one at a time.
    alone: Arc<Mutex<HashSet<AloneErrand>>>,
    program: Option<PathBuf>,
}

/// A kind of errand that changes something.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ErrandKind<'a> {
    /// It is done soon.
    Verb,
    /// It waits until a suspension of this machine is in the store.
    Wait(&'a str),
    /// It changes this medium.
    Medium(&'a str),
}

/// An errand of which there is one at a time: a second one would do nothing that the first one does not, or be refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum AloneErrand {
    Wait(String),
    Medium(String),
}

/// The turn of an errand, until this is dropped.
#[derive(Debug)]
pub(crate) struct ErrandTurn {
    _turn: OwnedSemaphorePermit,
    _alone: Option<AloneTurn>,
}

#[derive(Debug)]
struct AloneTurn {
    errand: AloneErrand,
    all: Arc<Mutex<HashSet<AloneErrand>>>,
}

impl Drop for AloneTurn {
    fn drop(&mut self) {
        self.all.lock().remove(&self.errand);
    }
}

/// An errand: the arguments of a command, how long it may take, and how long it has when it is to end, before it is
/// killed.
#[derive(Debug, Clone)]
pub(crate) struct Errand {
    arguments: Vec<String>,
    time: Duration,
    farewell: Duration,
}

impl Errand {
    /// One that only looks.
    pub(crate) fn look(arguments: Vec<String>) -> Self {
        Self { arguments, time: LOOK, farewell: LOOK_ENDS }
    }

    /// One that changes something, which may take so long.
    pub(crate) fn change(arguments: Vec<String>, time: Duration) -> Self {
        Self { arguments, time, farewell: FAREWELL }
    }
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
        let [turns, waits, media, looks] =
            [ERRANDS, WAITS, MEDIA, LOOKS].map(|most| Arc::new(Semaphore::new(most)));
        Self { turns, waits, media, looks, alone: Arc::default(), program: own_program().ok() }
    }

    /// The turn of an errand that changes something.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when as many of its kind are run as may be;
    /// [`Conflict`](ErrorKind::Conflict) when its machine is waited for, or its medium changed, already.
    pub(crate) fn turn(&self, kind: ErrandKind<'_>) -> Result<ErrandTurn> {
        let (turns, most, alone) = match kind {
            ErrandKind::Verb => (&self.turns, ERRANDS, None),
            ErrandKind::Wait(vm) => (&self.waits, WAITS, Some(AloneErrand::Wait(vm.to_owned()))),
            ErrandKind::Medium(name) => {
                (&self.media, MEDIA, Some(AloneErrand::Medium(name.to_owned())))
            }
        };
        let _alone = alone.map(|errand| self.turn_alone(errand)).transpose()?;
        let turn = Arc::clone(turns).try_acquire_owned();
        let _turn = turn.map_err(|_| {
            let why = format!("the server runs {most} such commands already; try again in a while");
            Error::unavailable(why)
        })?;
        Ok(ErrandTurn { _turn, _alone })
    }

    fn turn_alone(&self, errand: AloneErrand) -> Result<AloneTurn> {
        let all = Arc::clone(&self.alone);
        if all.lock().insert(errand.clone()) {
            return Ok(AloneTurn { errand, all });
        }
        Err(Error::conflict(match errand {
            AloneErrand::Wait(vm) => format!(
                "somebody waits already until machine {vm:?} is in the store; look at it to see how far that is"
            ),
            AloneErrand::Medium(name) => {
                format!("medium {name:?} is being changed; wait for that, and try again")
            }
        }))
    }

    /// The turn of one that only looks.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the others do not come to an end, or the server is stopping.
    pub(crate) async fn turn_to_look(&self) -> Result<SemaphorePermit<'_>> {
        match timeout(LOOK_WAITS, self.looks.acquire()).await {
            Ok(turn) => turn.map_err(|_| Error::unavailable("the server is stopping")),
            Err(_) => Err(Error::unavailable(format!(
                "the server looks at {LOOKS} machines or media, which do not answer; try again in a moment"
            ))),
        }
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
        let _ = timeout(errand.farewell, work).await;
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
        let errand = Errand::change(vec!["vm".into(), "list".into()], time);
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
            "trap 'kill $!; echo told >{}; exit 0' TERM; sleep 600 >/dev/null 2>&1 & wait",
            mark.display()
        );
        // On a busy machine it may not even have begun when its time is over.
        for seconds in [1, 4, 16, 64] {
            let error = run(dir.path(), &text, Duration::from_secs(seconds)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.message().contains(&format!("longer than {seconds} s")), "{error}");
            if mark.exists() {
                break;
            }
        }
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
    fn few_go_on_at_a_time_and_those_that_wait_keep_nobody_else_waiting() {
        let errands = Errands::new();
        let names: Vec<String> = (0..WAITS).map(|number| format!("vm{number}")).collect();
        let waits = names.iter().map(|name| errands.turn(ErrandKind::Wait(name)).unwrap());
        let waits: Vec<_> = waits.collect();
        let refused = errands.turn(ErrandKind::Wait("other")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        let turns: Vec<_> = (0..ERRANDS).map(|_| errands.turn(ErrandKind::Verb).unwrap()).collect();
        let refused = errands.turn(ErrandKind::Verb).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        drop((turns, waits));
        drop(errands.turn(ErrandKind::Verb).unwrap());
        drop(errands.turn(ErrandKind::Wait("other")).unwrap());
    }

    #[test]
    fn a_machine_is_waited_for_and_a_medium_changed_by_one_at_a_time() {
        let errands = Errands::new();
        for kind in [ErrandKind::Wait("one"), ErrandKind::Medium("one")] {
            let turn = errands.turn(kind).unwrap();
            assert_eq!(errands.turn(kind).unwrap_err().kind(), ErrorKind::Conflict);
            drop(turn);
            drop(errands.turn(kind).unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_others_keep_waiting_is_told_so_before_the_port_gives_it_up() {
        let errands = Errands::new();
        let mut turns = Vec::new();
        for _ in 0..LOOKS {
            turns.push(errands.turn_to_look().await.unwrap());
        }
        assert_eq!(errands.turn_to_look().await.unwrap_err().kind(), ErrorKind::Unavailable);
        drop(turns);
        drop(errands.turn_to_look().await.unwrap());
    }
}

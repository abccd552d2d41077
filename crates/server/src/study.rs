//! Studies of traces, for who asks over HTTP: the same command that a person would run, in a process of its own. A
//! trace is whatever somebody sends: what it makes the command do ends with that process, which may take so much
//! memory and time and no more, and is killed when nobody waits for it.

use block::program::own_program;
use block::{Error, ErrorKind, Result};
use rustix::process::{Pid, Resource, Rlimit, prlimit, setpriority_process};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Studies at a time: each takes a processor.
const STUDIES: usize = 2;
/// What one may take.
const LIMITS: StudyLimits =
    StudyLimits { time: Duration::from_secs(120), memory: 2 << 30, answer: 16 << 20 };
/// How much of what a command says of its failure is told, in bytes.
const LONGEST_WHY: u64 = 2048;
/// Guests go first.
const NICE: i32 = 10;
/// The name of the trace, for a command that has it as its input.
pub(crate) const TRACE: &str = "/dev/stdin";

/// What a study may take.
#[derive(Debug, Clone, Copy)]
struct StudyLimits {
    /// Time of a processor, and time until it is over.
    time: Duration,
    /// Bytes of memory.
    memory: u64,
    /// Bytes of the answer.
    answer: u64,
}

/// The studies of a server.
#[derive(Debug, Clone)]
pub(crate) struct Studies {
    turns: Arc<Semaphore>,
    program: Option<PathBuf>,
    limits: StudyLimits,
}

impl Studies {
    /// Nothing is studied yet.
    pub(crate) fn new() -> Self {
        let program = own_program().ok();
        Self { turns: Arc::new(Semaphore::new(STUDIES)), program, limits: LIMITS }
    }

    /// The turn of a study.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when as many go on as may.
    pub(crate) fn turn(&self) -> Result<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.turns).try_acquire_owned();
        turn.map_err(|_| {
            let why = format!("the server studies {STUDIES} traces already; try again in a moment");
            Error::unavailable(why)
        })
    }

    /// What the command of these arguments prints as JSON of a trace, whose name for it is [`TRACE`]. It ends when
    /// this is dropped.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid), in the command's own words, for what is wrong with the trace or the
    /// arguments, and for a trace that takes too long or too much memory; [`Internal`](ErrorKind::Internal) when the
    /// command cannot be run.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        arguments: &[String],
        trace: File,
    ) -> Result<T> {
        let program = self.program.as_ref().ok_or_else(|| Error::internal("no name of its own"))?;
        let failed = |e| Error::internal("a study cannot be run").with_source(e);
        let mut child = Command::new(program)
            .args(["--json", "--log", "error"])
            .args(arguments)
            // The server's own may hold secrets.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(trace))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        self.restrain(&child)?;
        let StudyLimits { time, answer, .. } = self.limits;
        let (out, why) = (child.stdout.take(), child.stderr.take());
        let work = async {
            let read = tokio::try_join!(all_of(out, answer), all_of(why, LONGEST_WHY));
            let (out, why) = read.map_err(failed)?;
            let status = child.wait().await.map_err(failed)?;
            Ok::<_, Error>((out, why, status.code(), status.success()))
        };
        let Ok(done) = tokio::time::timeout(time, work).await else { return Err(self.too_much()) };
        let (out, why, code, is_good) = done?;
        if is_good {
            return serde_json::from_slice(&out).map_err(|e| {
                Error::internal("a study does not print what is expected").with_source(e)
            });
        }
        let why = String::from_utf8_lossy(&why);
        match code.and_then(|code| u8::try_from(code).ok()).map(ErrorKind::of_exit_code) {
            // Killed, for what it took.
            None => Err(self.too_much()),
            Some(ErrorKind::Internal) => Err(Error::internal("a study failed; see the log"))
                .inspect_err(|_| tracing::error!(why = &*why, "a study failed")),
            // Whatever is wrong with it, the server is not.
            Some(_) => Err(Error::invalid(in_its_words(&why))),
        }
    }

    /// Limits what a process may take, from its beginning on but for a moment.
    fn restrain(&self, child: &Child) -> Result<()> {
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let failed = |e: rustix::io::Errno| {
            Error::internal("a study cannot be limited").with_source(std::io::Error::from(e))
        };
        let limit = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
        let ours = prlimit(pid, Resource::As, limit(self.limits.memory)).map(drop);
        let ours = ours.and_then(|()| {
            prlimit(pid, Resource::Cpu, limit(self.limits.time.as_secs())).map(drop)
        });
        match ours {
            // One that has ended already needs none.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(e) => return Err(failed(e)),
        }
        // Without that it is only less polite.
        let _ = setpriority_process(pid, NICE);
        Ok(())
    }

    fn too_much(&self) -> Error {
        Error::invalid(format!(
            "the trace takes more than {} s or {}: take a part of it, with `sojourn trace cut` or `sojourn \
             trace sample`, or study it with the command on a machine of your own",
            self.limits.time.as_secs(),
            block::ByteSize(self.limits.memory)
        ))
    }
}

/// What comes, of which so much is expected at the most.
pub(crate) async fn all_of(
    from: Option<impl AsyncRead + Unpin>,
    most: u64,
) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(most).read_to_end(&mut all).await?;
        // The rest is taken, so that whoever writes it comes to an end.
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(all)
}

/// What the command said, without what a person at a terminal is told.
fn in_its_words(why: &str) -> String {
    let line = why.trim().lines().last().unwrap_or_default();
    let line = line.strip_prefix("sojourn: ").unwrap_or(line);
    line.replace(&format!("{TRACE}: "), "").replace(TRACE, "the trace")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::Value;
    use std::io::Write;

    /// A shell script in place of the program.
    pub(crate) fn script(dir: &std::path::Path, text: &str) -> PathBuf {
        let program = dir.join("program");
        // By another process: a file that this one writes is held open by whatever another test starts meanwhile, and
        // cannot be run then.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 700 \"$0\"";
        let mut writer = std::process::Command::new("sh");
        let wrote = writer.args(["-c", write]).arg(&program).arg(text).status().unwrap();
        assert!(wrote.success());
        program
    }

    fn studies(dir: &std::path::Path, text: &str, limits: StudyLimits) -> Studies {
        Studies { program: Some(script(dir, text)), limits, ..Studies::new() }
    }

    async fn ask(script: &str, limits: StudyLimits) -> Result<Value> {
        let dir = tempfile::tempdir().unwrap();
        let mut trace = tempfile::tempfile().unwrap();
        trace.write_all(b"[7]").unwrap();
        std::io::Seek::rewind(&mut trace).unwrap();
        studies(dir.path(), script, limits).ask(&["x".into()], trace).await
    }

    #[tokio::test]
    async fn a_study_has_the_trace_as_its_input_and_what_it_prints_is_the_answer() {
        assert_eq!(ask("cat", LIMITS).await.unwrap(), serde_json::json!([7]));
        let told = ask("echo \"[\\\"$*\\\", \\\"$HOME\\\"]\"", LIMITS).await.unwrap();
        assert_eq!(told, serde_json::json!(["--json --log error x", ""]));
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_trace_is_told_in_the_words_of_the_command() {
        let bad = ErrorKind::Corrupt.exit_code();
        let script = format!("echo 'sojourn: /dev/stdin: no trace' >&2; exit {bad}");
        let error = ask(&script, LIMITS).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, "no trace"));
        assert_eq!(ask("echo x", LIMITS).await.unwrap_err().kind(), ErrorKind::Internal);
    }

    #[tokio::test]
    async fn a_study_that_takes_too_much_ends() {
        let limits = StudyLimits { time: Duration::from_secs(1), memory: 1 << 30, answer: 100 };
        for script in ["sleep 60", "while :; do :; done", "kill -9 $$"] {
            let error = ask(script, limits).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{script}: {error}");
            assert!(error.message().contains("trace cut"), "{script}: {error}");
        }
        let limits = StudyLimits { time: Duration::from_secs(60), ..limits };
        let long = ask("yes 1234567 | head -c 1000000", limits).await.unwrap_err();
        assert_eq!(long.kind(), ErrorKind::Internal, "{long}");
    }

    #[tokio::test]
    async fn a_study_that_nobody_waits_for_is_killed_and_few_go_on_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 60", mark.display());
        let studies = studies(dir.path(), &script, LIMITS);
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        let begun = async {
            loop {
                if let Ok(pid) = std::fs::read_to_string(&mark) {
                    return pid.trim().to_owned();
                }
                assert!(tokio::time::Instant::now() < end, "it does not begin");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let trace = tempfile::tempfile().unwrap();
        let pid = tokio::select! {
            done = studies.ask::<Value>(&[], trace) => panic!("{done:?}"),
            pid = begun => pid,
        };
        // It is gone, or waits to be reaped.
        let stat = PathBuf::from(format!("/proc/{pid}/stat"));
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(tokio::time::Instant::now() < end, "it goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let turns = [studies.turn().unwrap(), studies.turn().unwrap()];
        assert_eq!(studies.turn().unwrap_err().kind(), ErrorKind::Unavailable);
        drop(turns);
        drop(studies.turn().unwrap());
    }
}

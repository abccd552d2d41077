//! QEMU as a child process: it ends when its keeper does, and its memory is not read in huge pages.
//!
//! QEMU advises the kernel that guest memory should be huge pages (`madvise(MADV_HUGEPAGE)`, and no option
//! turns it off). On a file system this makes the kernel read 2 MiB around each page that is touched,
//! whatever read-ahead was set: a guest that needs 7 MiB to go on fetches 90. `PR_SET_THP_DISABLE` does not
//! help, since the read-around goes by the advice alone. So a seccomp filter has that one call fail: QEMU
//! takes the advice for unsupported and goes on. The filter is that of the thread which starts QEMU, and
//! of what it starts.

#![allow(unsafe_code)] // one call of `pre_exec`, see `arm`

use block::{Error, Result};
use rustix::process::{Pid, Signal};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How much of its log is told when QEMU fails, in bytes.
const LAST_WORDS: u64 = 600;

/// How long QEMU has to end when it is asked to.
pub const GOODBYE: Duration = Duration::from_secs(5);

/// A QEMU that was started. It is killed when this is dropped, and when this process ends.
#[derive(Debug)]
pub struct Launched {
    pid: Pid,
    ended: watch::Receiver<Option<String>>,
    log: PathBuf,
}

/// Starts QEMU. What it says is appended to `log`.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is no such program; else any error from the system.
#[allow(clippy::disallowed_methods)] // a thread, which has to last as long as QEMU does
pub fn qemu(program: &Path, arguments: &[OsString], log: &Path) -> Result<Launched> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| Error::io(log.display(), e))?;
    let other = file.try_clone().map_err(|e| Error::io(log.display(), e))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::from(file))
        .stderr(Stdio::from(other));
    // Its own group: an interrupt typed at the keeper's terminal is not meant for it.
    command.process_group(0);
    arm(&mut command);
    let filter = without_huge_pages()?;
    let (started, hear) = std::sync::mpsc::channel();
    let (tell, ended) = watch::channel(None);
    // The kernel sends the signal of `arm` when the thread that started the child ends.
    std::thread::Builder::new()
        .name("qemu".into())
        .spawn(move || {
            let filtered = seccompiler::apply_filter(&filter).map_err(|e| {
                Error::unsupported(format!("this kernel takes no seccomp filter: {e}"))
            });
            let child = filtered
                .and_then(|()| command.spawn().map_err(|e| Error::io("cannot start QEMU", e)));
            match child {
                Ok(mut child) => {
                    let _ = started.send(Ok(child.id()));
                    let _ = tell.send(Some(describe(child.wait())));
                }
                Err(e) => drop(started.send(Err(e))),
            }
        })
        .map_err(|e| Error::io("cannot start a thread for QEMU", e))?;
    let id = hear.recv().map_err(|_| Error::internal("the thread that starts QEMU ended"))?;
    let id = id.map_err(|e| e.context(program.display()))?;
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::internal("QEMU has a process id that cannot be"))?;
    Ok(Launched { pid, ended, log: log.to_owned() })
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    status.map_or_else(|e| e.to_string(), |status| status.to_string())
}

/// Has the kernel kill the child when the thread that starts it ends.
fn arm(command: &mut Command) {
    let die = || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(std::io::Error::from)
    };
    // SAFETY: the closure runs in the child between fork and exec, where only what is async-signal-safe
    // may be called. It is one system call (`prctl`), and neither allocates nor takes a lock.
    unsafe { command.pre_exec(die) };
}

/// Allows everything, but lets `madvise(.., MADV_HUGEPAGE)` fail as on a kernel without huge pages.
fn without_huge_pages() -> Result<BpfProgram> {
    let wrong = |e: seccompiler::BackendError| {
        Error::unsupported(format!("no seccomp filter can be made for this processor: {e}"))
    };
    let advice = libc::MADV_HUGEPAGE as u64;
    let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, advice)
        .map_err(wrong)?;
    let rule = SeccompRule::new(vec![condition]).map_err(wrong)?;
    let filter = SeccompFilter::new(
        [(libc::SYS_madvise, vec![rule])].into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EINVAL as u32),
        std::env::consts::ARCH.try_into().map_err(wrong)?,
    );
    filter.map_err(wrong)?.try_into().map_err(wrong)
}

impl Launched {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for its end; says how it ended.
    pub async fn wait(&mut self) -> String {
        match self.ended.wait_for(Option::is_some).await {
            Ok(status) => status.clone().unwrap_or_default(),
            Err(_) => "nobody knows how".to_owned(),
        }
    }

    /// Has it end as `ask` asks it to. It is killed when that takes longer than [`GOODBYE`]: it may wait for a disk whose
    /// server has gone, for minutes, and what it was told that it wrote is with that server already. `let_go` is called
    /// once it was killed, and ends what it waits for in the kernel, where it cannot die.
    pub async fn end<T>(&mut self, ask: impl Future<Output = T>, let_go: impl FnOnce()) {
        let ended = async {
            // It may be gone before it answers.
            drop(ask.await);
            self.wait().await
        };
        if timeout(GOODBYE, ended).await.is_err() {
            self.kill();
            let_go();
            self.wait().await;
        }
    }

    /// Kills it, if it runs.
    pub fn kill(&self) {
        if self.ended.borrow().is_none() {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        }
    }

    /// The end of its log.
    pub fn last_words(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.log)?;
            let len = file.metadata()?.len();
            file.seek(SeekFrom::Start(len.saturating_sub(LAST_WORDS)))?;
            let mut bytes = Vec::new();
            file.take(LAST_WORDS).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        read().unwrap_or_default()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_that_fails_leaves_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let arguments = ["-c", "echo no such machine >&2; exit 3"].map(OsString::from);
        let mut launched = qemu(Path::new("/bin/sh"), &arguments, &log).unwrap();
        assert!(launched.wait().await.contains('3'));
        assert_eq!(launched.last_words(), "no such machine");
        let missing = qemu(Path::new("/no/such/qemu"), &[], &log).unwrap_err();
        assert_eq!(missing.kind(), block::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_child_is_killed_when_nobody_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = ["600"].map(OsString::from);
        let launched = qemu(Path::new("/bin/sleep"), &arguments, &dir.path().join("log")).unwrap();
        let mut ended = launched.ended.clone();
        drop(launched);
        let status = ended.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert!(status.contains("signal"), "{status}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_that_does_not_end_when_it_is_asked_to_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = ["600"].map(OsString::from);
        let log = dir.path().join("log");
        let mut launched = qemu(Path::new("/bin/sleep"), &arguments, &log).unwrap();
        let let_go = std::cell::Cell::new(false);
        launched.end(std::future::pending::<()>(), || let_go.set(true)).await;
        assert!(let_go.get(), "it may wait for a page of its memory");
        assert!(launched.wait().await.contains("signal"));
    }

    #[tokio::test]
    async fn advice_for_huge_pages_fails_and_other_advice_does_not() {
        // Python calls madvise for us; the numbers are MADV_HUGEPAGE and MADV_SEQUENTIAL.
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        if !Path::new("/usr/bin/python3").exists() {
            return; // nothing to try it with
        }
        let script = "import mmap\nm = mmap.mmap(-1, 1 << 22)\nm.madvise(2)\nm.madvise(14)";
        let arguments = ["-c", script].map(OsString::from);
        let mut launched = qemu(Path::new("/usr/bin/python3"), &arguments, &log).unwrap();
        launched.wait().await;
        let said = launched.last_words();
        assert!(said.contains("line 4") && said.contains("Invalid argument"), "{said}");
    }
}

//! Which keepers of a home use its server. The last of them has it end, if a keeper started it.
//!
//! Each keeper has a file of the home locked, shared with the others. Who leaves takes the lock alone, which only the
//! last one gets; while that one has it, and the server ends, a keeper that comes waits. The file names the processes
//! that keepers started as servers, each in a line: its number, and when it began in ticks since the host booted, which
//! tells it from a later one of that number. A server that somebody else started stays, and one whose keeper was killed
//! is ended by a later one.

use block::{Error, Result};
use engine::Home;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The file, in the home.
const FILE: &str = "vm-server";
/// The most of the file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
const STEP: Duration = Duration::from_millis(20);

/// A keeper's use of the server; it ends when this is dropped.
pub(super) struct ServerUse {
    path: PathBuf,
    file: File,
}

/// That of the last keeper: nobody else begins to use the server until this is dropped.
pub(super) struct LastUse(ServerUse);

impl ServerUse {
    /// Begins to use it. Waits while it is being ended.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when that lasts until `until`; any error from the file system.
    pub(super) async fn begin(home: &Home, until: Instant) -> Result<Self> {
        let path = home.dir().join(FILE);
        let mut options = OpenOptions::new();
        // Several note what they started.
        options.read(true).append(true).create(true).mode(0o600);
        let file = options.open(&path).map_err(|e| Error::io(path.display(), e))?;
        loop {
            match file.try_lock_shared() {
                Ok(()) => return Ok(Self { path, file }),
                Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(STEP).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::unavailable(format!(
                        "the server of this home's machines is being ended, and does not end; who ends it has {} locked",
                        path.display()
                    )));
                }
                Err(TryLockError::Error(e)) => return Err(Error::io(path.display(), e)),
            }
        }
    }

    /// Notes that a keeper started this process as a server, whether or not it comes to be the home's.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn note_started(&self, server: u32) -> Result<()> {
        // One that has ended already is nobody's server.
        let Some(began) = began(server) else { return Ok(()) };
        let line = format!("{server} {began}\n");
        let noted = (&self.file).write_all(line.as_bytes());
        noted.map_err(|e| Error::io(self.path.display(), e))
    }

    /// Ends the use; `None` when others use the server still.
    pub(super) fn end(self) -> Option<LastUse> {
        // What fails leaves the server to the next one.
        self.file.try_lock().is_ok().then_some(LastUse(self))
    }
}

impl Drop for ServerUse {
    fn drop(&mut self) {
        // Closing is not enough: the child of a fork has the same open file until its exec.
        let _ = self.file.unlock();
    }
}

impl LastUse {
    /// Whether a keeper started this process as a server.
    pub(super) fn started(&self, server: u32) -> bool {
        self.running().contains(&server)
    }

    /// Forgets what keepers started, once all of it has ended.
    pub(super) fn forget_ended(&self) {
        // What fails is done by the next one.
        if self.running().is_empty() {
            let _ = self.0.file.set_len(0);
        }
    }

    /// The processes that keepers started and that run.
    fn running(&self) -> Vec<u32> {
        let mut text = String::new();
        let read =
            File::open(&self.0.path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        if let Err(error) = read {
            tracing::debug!(%error, "it is not known which servers were started for machines");
        }
        let noted = text.lines().filter_map(|line| {
            let (server, at) = line.split_once(' ')?;
            Some((server.parse::<u32>().ok()?, at.parse::<u64>().ok()?))
        });
        noted.filter(|(server, at)| began(*server) == Some(*at)).map(|(server, _)| server).collect()
    }
}

/// When a process began, in ticks since the host booted; `None` when it has ended.
fn began(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of its program is in brackets, and may be anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    match fields.next()? {
        // Its parent has not asked how it ended.
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_of_those_who_use_a_server_ends_it_and_who_comes_meanwhile_waits() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::with_key_file(Some(dir.path()), None).unwrap();
        let now = Instant::now();
        let one = ServerUse::begin(&home, now).await.unwrap();
        let other = ServerUse::begin(&home, now).await.unwrap();
        assert!(one.end().is_none(), "another one uses it");
        let last = other.end().unwrap();
        let late = ServerUse::begin(&home, now).await.err().unwrap();
        assert_eq!(late.kind(), block::ErrorKind::Unavailable);
        let waits = ServerUse::begin(&home, now + Duration::from_secs(60));
        let ends = async {
            sleep(STEP).await;
            drop(last);
        };
        let (next, ()) = tokio::join!(waits, ends);
        assert!(next.unwrap().end().is_some());
    }

    #[tokio::test]
    async fn what_keepers_started_is_told_from_later_processes_of_that_number_until_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::with_key_file(Some(dir.path()), None).unwrap();
        let path = dir.path().join(FILE);
        let here = std::process::id();
        let mut server = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let one = ServerUse::begin(&home, Instant::now()).await.unwrap();
        let other = ServerUse::begin(&home, Instant::now()).await.unwrap();
        one.note_started(server.id()).unwrap();
        // One that was quicker to come up is there still.
        other.note_started(here).unwrap();
        drop(other);
        let last = one.end().unwrap();
        assert!(last.started(server.id()) && last.started(here) && !last.started(1));
        std::fs::write(
            &path,
            format!(
                "{here} 1\n{here}\n{}",
                std::fs::read_to_string(&path).unwrap().lines().next().unwrap()
            ),
        )
        .unwrap();
        assert!(last.started(server.id()) && !last.started(here), "that began at another time");
        last.forget_ended();
        assert!(last.started(server.id()));
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(!last.started(server.id()));
        last.forget_ended();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}

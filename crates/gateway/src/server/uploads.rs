//! What clients have brought: who wrote a pack knows what is in it, and may read it and name it.
//!
//! A line for each object, `<Unix seconds> <client> <key>`, is appended to a file before the client is
//! answered, so that a client goes on after the server was killed. Lines older than two days are of no
//! use: a session that is older has ended. A torn line is passed over.

use block::{Error, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How long a line holds, in seconds.
const HOLDS: u64 = 2 * 86_400;
/// The most objects that are remembered of a client; the oldest go first. Packs of 8 MiB: 512 GiB.
const MOST: usize = 65_536;
/// A file longer than this is written anew without what is of no use.
const LONG: u64 = 32 << 20;
/// The most bytes that are read of a file.
const LONGEST: u64 = 256 << 20;

/// The log of what clients brought.
pub(crate) struct Uploads {
    path: PathBuf,
    log: Mutex<UploadLogFile>,
}

#[derive(Default)]
struct UploadLogFile {
    file: Option<File>,
    /// How much of the file was read.
    read: u64,
    clients: HashMap<String, RecentUploads>,
}

#[derive(Default)]
struct RecentUploads {
    keys: HashMap<String, u64>,
    order: VecDeque<(u64, String)>,
}

impl RecentUploads {
    fn add(&mut self, time: u64, key: &str) {
        self.keys.insert(key.to_owned(), time);
        self.order.push_back((time, key.to_owned()));
        while self.order.len() > MOST
            && let Some((time, key)) = self.order.pop_front()
        {
            if self.keys.get(&key) == Some(&time) {
                self.keys.remove(&key);
            }
        }
    }
}

impl Uploads {
    /// The log in the file `path`, which is made if need be.
    ///
    /// # Errors
    /// Any error from the file system, naming the file.
    pub(crate) fn open(path: &Path, now: u64) -> Result<Self> {
        let uploads = Self { path: path.to_owned(), log: Mutex::default() };
        {
            let mut log = uploads.log.lock();
            uploads.read(&mut log, now)?;
            if log.read > LONG {
                uploads.rewrite(&mut log, now)?;
            }
        }
        Ok(uploads)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::io(format!("the log of uploads {}", self.path.display()), error)
    }

    fn append_to(path: &Path) -> std::io::Result<File> {
        OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)
    }

    /// Reads what was appended since the last time, perhaps by another process.
    fn read(&self, log: &mut UploadLogFile, now: u64) -> Result<()> {
        let file = match log.file.take() {
            Some(file) => file,
            None => Self::append_to(&self.path).map_err(|e| self.failed(e))?,
        };
        let file = log.file.insert(file);
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(log.read)).map_err(|e| self.failed(e))?;
        file.take(LONGEST).read_to_end(&mut text).map_err(|e| self.failed(e))?;
        // A line that is being written is read the next time.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        log.read += whole as u64;
        for line in text[..whole].split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let mut words = line.split(' ');
            let (Some(time), Some(client), Some(key), None) = (
                words.next().and_then(|t| t.parse().ok()),
                words.next(),
                words.next(),
                words.next(),
            ) else {
                continue;
            };
            if now.saturating_sub(time) <= HOLDS {
                log.clients.entry(client.to_owned()).or_default().add(time, key);
            }
        }
        Ok(())
    }

    /// Writes the file anew, with what is remembered.
    fn rewrite(&self, log: &mut UploadLogFile, now: u64) -> Result<()> {
        let fresh = self.path.with_extension("new");
        let mut text = String::new();
        for (client, brought) in &log.clients {
            for (time, key) in &brought.order {
                if now.saturating_sub(*time) <= HOLDS {
                    text.push_str(&format!("{time} {client} {key}\n"));
                }
            }
        }
        let _ = std::fs::remove_file(&fresh);
        let mut file = Self::append_to(&fresh).map_err(|e| self.failed(e))?;
        file.write_all(text.as_bytes()).map_err(|e| self.failed(e))?;
        std::fs::rename(&fresh, &self.path).map_err(|e| self.failed(e))?;
        (log.file, log.read) = (Some(file), text.len() as u64);
        Ok(())
    }

    /// Notes that a client has brought an object. `client` and `key` have no spaces.
    ///
    /// # Errors
    /// Any error from the file system: then the client must be told that it has brought nothing.
    pub(crate) fn note(&self, client: &str, key: &str, now: u64) -> Result<()> {
        let mut log = self.log.lock();
        self.read(&mut log, now)?;
        let read = log.read;
        let Some(file) = &mut log.file else { return Err(Error::internal("the log is closed")) };
        let len = file.metadata().map_err(|e| self.failed(e))?.len();
        // Who was killed in the middle of a line must not take this one along.
        let end = if len > read { "\n" } else { "" };
        let line = format!("{end}{now} {client} {key}\n");
        file.write_all(line.as_bytes()).map_err(|e| self.failed(e))?;
        self.read(&mut log, now)
    }

    /// Whether a client has brought an object lately.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn has(&self, client: &str, key: &str, now: u64) -> Result<bool> {
        let mut log = self.log.lock();
        let lately = |log: &UploadLogFile| {
            let time = log.clients.get(client)?.keys.get(key)?;
            Some(now.saturating_sub(*time) <= HOLDS)
        };
        match lately(&log) {
            Some(lately) => Ok(lately),
            None => {
                self.read(&mut log, now)?;
                Ok(lately(&log).unwrap_or(false))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn what_a_client_brought_outlives_the_server_and_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uploads");
        let uploads = Uploads::open(&path, NOW).unwrap();
        uploads.note("alice", "packs/1", NOW).unwrap();
        assert!(uploads.has("alice", "packs/1", NOW).unwrap());
        assert!(!uploads.has("bob", "packs/1", NOW).unwrap());
        let again = Uploads::open(&path, NOW).unwrap();
        assert!(again.has("alice", "packs/1", NOW + HOLDS).unwrap());
        assert!(!again.has("alice", "packs/1", NOW + HOLDS + 1).unwrap());
        // The other process has written since.
        uploads.note("alice", "packs/2", NOW).unwrap();
        assert!(again.has("alice", "packs/2", NOW).unwrap());
    }

    #[test]
    fn torn_and_foreign_lines_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uploads");
        std::fs::write(&path, format!("x\n{NOW} alice\n\u{0}\n{NOW} alice packs/1\n{NOW} ali"))
            .unwrap();
        let uploads = Uploads::open(&path, NOW).unwrap();
        assert!(uploads.has("alice", "packs/1", NOW).unwrap());
        uploads.note("alice", "packs/2", NOW).unwrap();
        assert!(uploads.has("alice", "packs/2", NOW).unwrap());
    }

    #[test]
    fn a_log_is_written_anew_with_what_is_of_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uploads");
        let uploads = Uploads::open(&path, NOW).unwrap();
        uploads.note("alice", "packs/old", NOW - HOLDS - 1).unwrap();
        uploads.note("alice", "packs/1", NOW).unwrap();
        uploads.rewrite(&mut uploads.log.lock(), NOW).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{NOW} alice packs/1\n"));
        uploads.note("alice", "packs/2", NOW).unwrap();
        assert!(Uploads::open(&path, NOW).unwrap().has("alice", "packs/2", NOW).unwrap());
    }
}

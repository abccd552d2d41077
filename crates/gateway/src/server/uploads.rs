//! What clients have brought: who wrote a pack knows what is in it, and may read it and name it.
//!
//! A line for each object, `<Unix seconds> <client> <key>`, is appended to a file before the client is
//! answered, so that a client goes on after the server was killed. A line holds for 30 days, and when the client
//! comes back to the object later than a day after it, there is a new one: an upload over a thin link takes weeks, and
//! what it brought first is named last. A torn line is passed over.

use block::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How long a line holds, in seconds.
const HOLDS: u64 = 30 * 86_400;
/// A line is older than this, in seconds, when a new one is made of the same object.
const RECENT: u64 = 86_400;
/// The most objects that are remembered of a client: 1 TiB in packs of 512 KiB, and its maps. They take up to 90 MB.
const MOST: usize = (2 << 20) + (64 << 10);
/// The most objects that are remembered of all clients together.
const MOST_OF_ALL: usize = 2 * MOST;
/// One in so many is forgotten when there are too many, the oldest first.
const SHARE: usize = 8;
/// A file longer than this is written anew when most of it is of no use.
const LONG: u64 = 32 << 20;
/// No line is longer, in bytes.
const LONGEST_LINE: u64 = 4096;

/// The log of what clients brought.
pub(crate) struct Uploads {
    path: PathBuf,
    log: Mutex<UploadLogFile>,
}

#[derive(Default)]
struct UploadLogFile {
    file: Option<File>,
    /// How much of the file was read, in bytes and in lines.
    read: u64,
    lines: usize,
    clients: HashMap<String, RecentUploads>,
    /// Objects of all clients together.
    remembered: usize,
}

/// What stands for a key in memory: the first letter of its folder, and 15 bytes of the hash in its name. Nobody makes
/// an object with as much of another one's hash.
type BroughtObject = [u8; 16];

/// The objects of a client, and when they were noted last, in Unix seconds.
type RecentUploads = HashMap<BroughtObject, u32>;

/// `None` for the key of what is not called by its hash.
fn short(key: &str) -> Option<BroughtObject> {
    let (folder, hash) = key.split_once('/')?;
    let mut object = [0; 16];
    object[0] = *folder.as_bytes().first()?;
    let digit = |c: u8| char::from(c).to_digit(16);
    let digits = hash.as_bytes().get(..30).filter(|_| hash.len() == 64)?;
    for (byte, pair) in object[1..].iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(object)
}

/// A line without its end, taken apart.
fn parse(line: &[u8]) -> Option<(u32, &str, BroughtObject)> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (time, client, key) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    words.next().is_none().then_some((time, client, short(key)?))
}

fn holds(time: u32, now: u64) -> bool {
    now.saturating_sub(u64::from(time)) <= HOLDS
}

/// Forgets the oldest objects; gives how many.
fn forget_some(objects: &mut RecentUploads) -> usize {
    let before = objects.len();
    let mut times: Vec<u32> = objects.values().copied().collect();
    let mut rest = times.len().div_ceil(SHARE);
    if rest == 0 {
        return 0;
    }
    let (_, last, _) = times.select_nth_unstable(rest - 1);
    let last = *last;
    objects.retain(|_, time| {
        let goes = *time <= last && rest > 0;
        rest -= usize::from(goes);
        !goes
    });
    before - objects.len()
}

impl UploadLogFile {
    fn add(&mut self, client: &str, object: BroughtObject, time: u32) {
        let objects = match self.clients.get_mut(client) {
            Some(objects) => objects,
            None => self.clients.entry(client.to_owned()).or_default(),
        };
        let before = objects.len();
        let at = objects.entry(object).or_default();
        *at = time.max(*at);
        self.remembered += objects.len() - before;
        if objects.len() > MOST {
            self.remembered -= forget_some(objects);
        }
        if self.remembered > MOST_OF_ALL
            && let Some(most) = self.clients.values_mut().max_by_key(|objects| objects.len())
        {
            self.remembered -= forget_some(most);
        }
    }

    /// When a client brought an object.
    fn time(&self, client: &str, object: &BroughtObject) -> Option<u32> {
        self.clients.get(client)?.get(object).copied()
    }

    /// Whether the file is long, and most of it of no use.
    fn is_wasteful(&self) -> bool {
        self.read > LONG && self.lines > 2 * self.remembered
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
            if log.is_wasteful() {
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

    /// The file; from its start, if another process has written it anew.
    fn current(&self, log: &mut UploadLogFile) -> std::io::Result<File> {
        if let (Some(file), Ok(there)) = (log.file.take(), std::fs::metadata(&self.path)) {
            let here = file.metadata()?;
            if (here.dev(), here.ino()) == (there.dev(), there.ino()) {
                return Ok(file);
            }
        }
        (log.read, log.lines) = (0, 0);
        Self::append_to(&self.path)
    }

    /// Reads what was appended since the last time, perhaps by another process.
    fn read(&self, log: &mut UploadLogFile, now: u64) -> Result<()> {
        let mut file = self.current(log).map_err(|e| self.failed(e))?;
        file.seek(SeekFrom::Start(log.read)).map_err(|e| self.failed(e))?;
        let len = each_line(&mut file, |line| {
            log.lines += 1;
            if let Some((time, client, object)) = parse(line).filter(|(time, ..)| holds(*time, now))
            {
                log.add(client, object, time);
            }
            Ok(())
        });
        log.read += len.map_err(|e| self.failed(e))?;
        log.file = Some(file);
        Ok(())
    }

    /// Writes the file anew, without what is of no use.
    fn rewrite(&self, log: &mut UploadLogFile, now: u64) -> Result<()> {
        self.write_anew(log, now).map_err(|e| self.failed(e))
    }

    fn write_anew(&self, log: &mut UploadLogFile, now: u64) -> std::io::Result<()> {
        let name = self.path.with_extension("new");
        let _ = std::fs::remove_file(&name);
        let mut fresh = BufWriter::new(Self::append_to(&name)?);
        let (mut written, mut lines) = (0, 0);
        each_line(&mut File::open(&self.path)?, |line| {
            let is_last = |(time, client, object): &(u32, &str, BroughtObject)| {
                holds(*time, now) && log.time(client, object) == Some(*time)
            };
            if parse(line).as_ref().is_some_and(is_last) {
                fresh.write_all(line)?;
                fresh.write_all(b"\n")?;
                (written, lines) = (written + line.len() as u64 + 1, lines + 1);
            }
            Ok(())
        })?;
        let file = fresh.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        // The old file must not go before the new one is there.
        file.sync_all()?;
        std::fs::rename(&name, &self.path)?;
        (log.file, log.read, log.lines) = (Some(file), written, lines);
        Ok(())
    }

    /// Notes that a client has brought an object. `client` has no spaces.
    ///
    /// # Errors
    /// Any error from the file system: then the client must be told that it has brought nothing.
    pub(crate) fn note(&self, client: &str, key: &str, now: u64) -> Result<()> {
        self.append(&mut self.log.lock(), client, key, now)
    }

    fn append(&self, log: &mut UploadLogFile, client: &str, key: &str, now: u64) -> Result<()> {
        self.read(log, now)?;
        if log.is_wasteful() {
            self.rewrite(log, now)?;
        }
        let read = log.read;
        let Some(file) = &mut log.file else { return Err(Error::internal("the log is closed")) };
        let len = file.metadata().map_err(|e| self.failed(e))?.len();
        // Who was killed in the middle of a line must not take this one along.
        let end = if len > read { "\n" } else { "" };
        let line = format!("{end}{now} {client} {key}\n");
        file.write_all(line.as_bytes()).map_err(|e| self.failed(e))?;
        self.read(log, now)
    }

    /// Whether a client has brought an object; that it comes back to it is noted.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn has(&self, client: &str, key: &str, now: u64) -> Result<bool> {
        let Some(object) = short(key) else { return Ok(false) };
        let mut log = self.log.lock();
        if log.time(client, &object).is_none() {
            self.read(&mut log, now)?;
        }
        let Some(time) = log.time(client, &object).filter(|time| holds(*time, now)) else {
            return Ok(false);
        };
        if now.saturating_sub(u64::from(time)) > RECENT
            && let Err(error) = self.append(&mut log, client, key, now)
        {
            // The line that is there holds for a while.
            tracing::debug!(%error, "the log of uploads cannot be written");
        }
        Ok(true)
    }
}

/// Hands on each line of a file from where it is, without its end; gives how many bytes they have. A line that is being
/// written is left for the next time.
fn each_line(
    file: &mut File,
    mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<u64> {
    let (mut reader, mut line, mut bytes) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        let len = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? as u64;
        if line.pop_if(|last| *last == b'\n').is_none() && len < LONGEST_LINE {
            return Ok(bytes);
        }
        bytes += len;
        take(&line)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn pack(number: u64) -> String {
        format!("packs/{number:030x}{}", "7".repeat(34))
    }

    #[test]
    fn what_a_client_brought_outlives_the_server_and_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uploads");
        let uploads = Uploads::open(&path, NOW).unwrap();
        uploads.note("alice", &pack(1), NOW).unwrap();
        assert!(uploads.has("alice", &pack(1), NOW).unwrap());
        assert!(!uploads.has("bob", &pack(1), NOW).unwrap());
        assert!(!uploads.has("alice", &pack(1).replace("packs", "segments"), NOW).unwrap());
        let again = Uploads::open(&path, NOW).unwrap();
        assert!(!again.has("alice", &pack(1), NOW + HOLDS + 1).unwrap());
        assert!(again.has("alice", &pack(1), NOW + HOLDS).unwrap());
        // The other process has written since.
        uploads.note("alice", &pack(2), NOW).unwrap();
        assert!(again.has("alice", &pack(2), NOW).unwrap());
    }

    #[test]
    fn an_upload_may_take_weeks_and_what_its_client_comes_back_to_any_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uploads");
        let uploads = Uploads::open(&path, NOW).unwrap();
        uploads.note("alice", &pack(1), NOW).unwrap();
        uploads.note("alice", &pack(2), NOW).unwrap();
        for weeks in 1..20 {
            assert!(uploads.has("alice", &pack(1), NOW + weeks * 7 * 86_400).unwrap());
        }
        let later = NOW + 19 * 7 * 86_400;
        assert!(!uploads.has("alice", &pack(2), later).unwrap());
        let again = Uploads::open(&path, later).unwrap();
        assert!(again.has("alice", &pack(1), later).unwrap());
        assert!(!again.has("alice", &pack(2), later).unwrap());
    }

    #[test]
    fn a_client_may_bring_a_tebibyte_in_small_packs_and_then_the_oldest_go() {
        let mut log = UploadLogFile::default();
        let object = |number: usize| {
            let mut object = [b'p'; 16];
            object[1..9].copy_from_slice(&number.to_le_bytes());
            object
        };
        let time = |number: usize| NOW as u32 + (number / 1000) as u32;
        for number in 0..MOST {
            log.add("alice", object(number), time(number));
        }
        assert_eq!(log.remembered, MOST);
        log.add("alice", object(MOST), time(MOST));
        assert!((MOST / 2..MOST).contains(&log.remembered));
        assert_eq!(log.time("alice", &object(0)), None);
        assert!(log.time("alice", &object(MOST - 1)).is_some());
        // Many that bring much cost one that brings little nothing.
        log.add("bob", object(1), NOW as u32);
        for number in 0..MOST {
            log.add(["carol", "dave"][number % 2], object(number), time(number));
            log.add("erin", object(number), time(number));
            if log.remembered > MOST_OF_ALL - 10 {
                break;
            }
        }
        for number in MOST..MOST + 20 {
            log.add("carol", object(number), time(number));
        }
        assert!(log.remembered < MOST_OF_ALL - MOST / 10);
        assert_eq!(log.time("bob", &object(1)), Some(NOW as u32));
        assert_eq!(log.remembered, log.clients.values().map(HashMap::len).sum::<usize>());
    }

    #[test]
    fn torn_and_foreign_lines_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uploads");
        let (first, long) = (pack(1), "x".repeat(3 * LONGEST_LINE as usize));
        std::fs::write(
            &path,
            format!("x\n{NOW} alice\n\u{0}\n{long}\n{NOW} alice {first}\n{NOW} ali"),
        )
        .unwrap();
        let uploads = Uploads::open(&path, NOW).unwrap();
        assert!(uploads.has("alice", &pack(1), NOW).unwrap());
        uploads.note("alice", &pack(2), NOW).unwrap();
        assert!(uploads.has("alice", &pack(2), NOW).unwrap());
    }

    #[test]
    fn a_log_is_written_anew_with_what_is_of_use_and_another_process_goes_on_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uploads");
        let uploads = Uploads::open(&path, NOW).unwrap();
        let other = Uploads::open(&path, NOW).unwrap();
        uploads.note("alice", &pack(3), NOW - HOLDS - 1).unwrap();
        uploads.note("alice", &pack(1), NOW - 5).unwrap();
        uploads.note("alice", &pack(1), NOW).unwrap();
        uploads.rewrite(&mut uploads.log.lock(), NOW).unwrap();
        let text = format!("{NOW} alice {}\n", pack(1));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        uploads.note("alice", &pack(2), NOW).unwrap();
        other.note("alice", &pack(4), NOW).unwrap();
        let again = Uploads::open(&path, NOW).unwrap();
        for number in [1, 2, 4] {
            assert!(uploads.has("alice", &pack(number), NOW).unwrap());
            assert!(again.has("alice", &pack(number), NOW).unwrap());
        }
    }
}

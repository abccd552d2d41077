//! A client that writes to its disk and remembers everything, until its server ends.

use crate::dice::Dice;
use crate::history::BLOCK;
use crate::ledger::Disk;
use crate::recorder::Record;
use sojourn_tests::Client;
use sojourn_tests::client::{FLUSH, READ, TRIM, WRITE, header};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const WRITE_ZEROES: u16 = 6;
/// Blocks that one read takes.
const PART: usize = 256;
/// The server says goodbye.
const ESHUTDOWN: u32 = 108;
const PATIENCE: Duration = Duration::from_secs(60);

/// Attaches to an export. `Ok(Err)` when the server refuses, with its words.
///
/// # Errors
/// Any error from a connection whose server ends.
pub(crate) fn attach(socket: &Path, export: &str) -> io::Result<Result<Client, String>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Client::negotiate(stream, export)
}

/// Reads `length` bytes.
///
/// # Errors
/// Any error from the connection and from the disk.
pub(crate) fn read(client: &mut Client, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    answer(client.try_request(READ, offset, length as u32, &[])?)?;
    let mut bytes = vec![0; length];
    client.stream().read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Whether an answer is success. A server that ends may say so; anything else is a fault.
fn answer(error: u32) -> io::Result<()> {
    match error {
        0 => Ok(()),
        ESHUTDOWN => Err(io::ErrorKind::ConnectionAborted.into()),
        error => panic!("the disk answers with error {error}"),
    }
}

/// A writer and its disk.
pub(crate) struct Writer<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) record: &'a Record,
    pub(crate) dice: Dice,
}

impl Writer<'_> {
    /// Writes until `stop`, or until the server is gone.
    pub(crate) fn work(mut self, socket: &Path, stop: &AtomicBool) {
        // Whoever is gone will be followed by another one.
        let _ = self.session(socket, |_| !stop.load(SeqCst));
    }

    /// Writes some batches and flushes them; gives whether the server lived on.
    pub(crate) fn write_some(mut self, socket: &Path, batches: usize) -> bool {
        self.session(socket, |done| done < batches).is_ok()
    }

    fn session(&mut self, socket: &Path, go_on: impl Fn(usize) -> bool) -> io::Result<()> {
        let Ok(mut client) = attach(socket, &self.disk.name)? else {
            return Err(io::ErrorKind::ConnectionRefused.into()); // another one is attached still
        };
        self.observe(&mut client)?;
        let mut batches = 0;
        while go_on(batches) {
            self.batch(&mut client)?;
            batches += 1;
            if self.dice.below(4) == 0 {
                self.flush(&mut client)?;
            }
            std::thread::sleep(Duration::from_micros(self.dice.below(4000)));
        }
        if self.dice.below(2) == 0 {
            self.flush(&mut client)?;
        }
        Ok(())
    }

    /// Reads the whole disk: flushed blocks are as they were, and what the others hold is theirs now.
    fn observe(&mut self, client: &mut Client) -> io::Result<()> {
        let blocks = self.disk.history.lock().expect("history").blocks();
        for first in (0..blocks).step_by(PART) {
            let bytes = read(client, (first * BLOCK) as u64, PART * BLOCK)?;
            let mut history = self.disk.history.lock().expect("history");
            for (index, bytes) in bytes.chunks(BLOCK).enumerate() {
                let observed = history.observe(first + index, bytes, self.record.position());
                observed.unwrap_or_else(|e| panic!("after a kill, {}: {e}", self.disk.name));
            }
        }
        Ok(())
    }

    /// Sends some requests to different blocks at once, and takes their answers.
    fn batch(&mut self, client: &mut Client) -> io::Result<()> {
        let mut history = self.disk.history.lock().expect("history");
        let position = self.record.position();
        let (mut bytes, mut touched, mut durable) = (Vec::new(), Vec::new(), Vec::new());
        let mut requests = 0;
        for _ in 0..1 + self.dice.below(8) {
            let count = [1, 1, 1, 1, 2, 4, 8, 16][self.dice.below(8) as usize];
            let first = self.place(history.blocks() - count);
            let mut these = first..first + count;
            if these.clone().any(|block| touched.contains(&block)) {
                continue; // requests in flight together may be carried out in any order
            }
            let kind = match self.dice.below(16) {
                0 => TRIM,
                1 => WRITE_ZEROES,
                _ => WRITE,
            };
            requests += 1;
            let length = (count * BLOCK) as u32;
            let mut head = header(kind, requests, (first * BLOCK) as u64, length);
            if kind == WRITE && self.dice.below(24) == 0 {
                head[5] |= 1; // NBD_CMD_FLAG_FUA
                durable.extend(these.clone());
            }
            bytes.extend(head);
            touched.extend(these.clone());
            these.by_ref().for_each(|block| {
                let content = history.write(block, kind != WRITE, position);
                if kind == WRITE {
                    bytes.extend(content);
                }
            });
        }
        drop(history);
        client.stream().write_all(&bytes)?;
        for _ in 0..requests {
            answer(client.reply()?.1)?;
        }
        let position = self.record.position();
        let mut history = self.disk.history.lock().expect("history");
        touched.into_iter().for_each(|block| history.answered(block));
        durable.into_iter().for_each(|block| history.durable(block, position));
        Ok(())
    }

    /// A block below `bound`; half of them in a part of the disk that is written again and again.
    fn place(&mut self, bound: usize) -> usize {
        let bound = if self.dice.below(2) == 0 { bound } else { bound.min(64) };
        self.dice.below(bound as u64) as usize
    }

    fn flush(&self, client: &mut Client) -> io::Result<()> {
        answer(client.try_request(FLUSH, 0, 0, &[])?)?;
        self.disk.history.lock().expect("history").flushed(self.record.position());
        Ok(())
    }
}

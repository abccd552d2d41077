//! Clients that know what their disk may hold.

use crate::World;
use sojourn_tests::client::{FLUSH, READ, TRIM, WRITE, header};
use sojourn_tests::tool::shell;
use sojourn_tests::{Client, content};
use std::borrow::Cow;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const BLOCKS: usize = (super::MIB << 20) / BLOCK;
/// The longest request, in bytes.
pub(crate) const LONGEST: usize = 1 << 20;
/// Random bytes that what is written is taken from, so that most of the processors' time goes to
/// the server and not into making them: bytes.
pub(crate) const POOL: usize = 4 << 20;
/// MiB of the disk with a file system.
pub(crate) const FILE_SYSTEM: usize = 32;
/// How long a server may be away.
const PATIENCE: Duration = Duration::from_secs(120);
/// `NBD_CMD_WRITE_ZEROES` is not among them: a trimmed block may hold anything that it held.
const ENOSPC: u32 = 28;

/// What a block may hold: after a flush one thing, else anything since.
#[derive(Clone)]
struct Held {
    /// What a read gives as long as the connection stands; `None` when that is not known.
    now: Option<u64>,
    /// What it may hold after a crash.
    possible: Vec<u64>,
}

/// A random number generator of a client's own (xorshift64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Connects, as soon as a server is there.
fn attach(world: &World, export: &str) -> Client {
    let end = Instant::now() + PATIENCE;
    loop {
        let connected = UnixStream::connect(&world.socket).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Client::negotiate(stream, export)
        });
        match connected {
            Ok(Ok(client)) => return client,
            other => {
                let why = other.map(|refused| refused.err());
                assert!(Instant::now() < end, "{export} cannot be attached: {why:?}");
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Attaches a disk and reads all of it.
pub(crate) fn attach_once(world: &World, export: &str) {
    let mut client = attach(world, export);
    (0..super::MIB as u64).for_each(|part| drop(client.read(part << 20, 1 << 20)));
    client.detach();
}

/// A block's content, from its number and version; version 0 is the image's. The others begin with
/// both, and go on with random bytes that lie elsewhere in the pool for each.
fn block(world: &World, seed: u64, number: usize, version: u64) -> Cow<'_, [u8]> {
    if version == 0 {
        return world.image[number * BLOCK..][..BLOCK].into();
    }
    let head = [(seed << 48) | number as u64, version];
    let mut dice = Dice((head[0] ^ (version << 16)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let at = dice.below((POOL - BLOCK) as u64) as usize;
    let mut bytes = world.pool[at..][..BLOCK].to_vec();
    bytes[..8].copy_from_slice(&head[0].to_le_bytes());
    bytes[8..16].copy_from_slice(&head[1].to_le_bytes());
    bytes.into()
}

/// Works until it is over, and checks everything at the end.
pub(crate) fn work(world: &World, export: &str, seed: u64) {
    let mut held = vec![Held { now: Some(0), possible: vec![0] }; BLOCKS];
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut version = 0;
    loop {
        let mut client = attach(world, export);
        let session = Session { world, export, seed, held: &mut held, dice: &mut dice };
        if session.run(&mut client, &mut version).is_ok() {
            client.detach();
            return;
        }
        world.broken.fetch_add(1, SeqCst);
        for held in &mut held {
            held.now = None;
        }
    }
}

/// One connection.
struct Session<'a> {
    world: &'a World,
    export: &'a str,
    seed: u64,
    held: &'a mut Vec<Held>,
    dice: &'a mut Dice,
}

impl Session<'_> {
    /// Works until it is over; an error is a connection that broke, or was broken off.
    fn run(mut self, client: &mut Client, version: &mut u64) -> io::Result<()> {
        self.check_all(client)?;
        while !self.world.over.load(SeqCst) {
            self.write_some(client, version)?;
            if self.dice.below(3) == 0 {
                self.flush(client)?;
            }
            self.read_some(client)?;
            if self.dice.below(150) == 0 {
                // Killed in the middle of a request.
                client.stream().shutdown(std::net::Shutdown::Both)?;
            }
            std::thread::sleep(Duration::from_millis(self.dice.below(60)));
        }
        self.check_all(client)?;
        self.flush(client)
    }

    /// Writes up to 16 blocks, all under way at once.
    fn write_some(&mut self, client: &mut Client, version: &mut u64) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut numbers = Vec::new();
        for cookie in 0..1 + self.dice.below(16) {
            let number = self.dice.below(BLOCKS as u64) as usize;
            if numbers.contains(&number) {
                continue; // writes in flight together are applied in any order
            }
            let held = &mut self.held[number];
            if self.dice.below(20) == 0 {
                batch.extend(header(TRIM, cookie, (number * BLOCK) as u64, BLOCK as u32));
                held.possible.push(u64::MAX);
            } else {
                *version += 1;
                batch.extend(header(WRITE, cookie, (number * BLOCK) as u64, BLOCK as u32));
                batch.extend_from_slice(&block(self.world, self.seed, number, *version));
                held.possible.push(*version);
            }
            held.now = None;
            numbers.resize(cookie as usize + 1, usize::MAX);
            numbers[cookie as usize] = number;
        }
        let count = numbers.iter().filter(|number| **number != usize::MAX).count();
        io::Write::write_all(client.stream(), &batch)?;
        for _ in 0..count {
            let (cookie, error) = client.reply()?;
            let held = &mut self.held[numbers[cookie as usize]];
            match error {
                0 => {
                    held.now = held.possible.last().copied().filter(|now| *now != u64::MAX);
                    self.world.writes.fetch_add(1, SeqCst);
                }
                ENOSPC => drop(self.world.refused_for_room.fetch_add(1, SeqCst)),
                // While the server stops. Everything else is a fault.
                108 => return Err(io::ErrorKind::ConnectionReset.into()),
                other => panic!("{}: a write fails with {other}", self.export),
            }
        }
        Ok(())
    }

    fn flush(&mut self, client: &mut Client) -> io::Result<()> {
        match client.try_request(FLUSH, 0, 0, &[])? {
            0 => {}
            ENOSPC => return Ok(()), // nothing is promised then
            108 => return Err(io::ErrorKind::ConnectionReset.into()),
            other => panic!("{}: a flush fails with {other}", self.export),
        }
        self.world.flushes.fetch_add(1, SeqCst);
        for held in self.held.iter_mut() {
            if let Some(now) = held.now {
                held.possible = vec![now];
            }
        }
        Ok(())
    }

    fn read(&mut self, client: &mut Client, first: usize, count: usize) -> io::Result<Vec<u8>> {
        let length = count * BLOCK;
        match client.try_request(READ, (first * BLOCK) as u64, length as u32, &[])? {
            0 => {}
            108 => return Err(io::ErrorKind::ConnectionReset.into()),
            other => panic!("{}: a read fails with {other}", self.export),
        }
        let mut bytes = vec![0; length];
        client.stream().read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read_some(&mut self, client: &mut Client) -> io::Result<()> {
        let count = 1 + self.dice.below(32) as usize;
        let first = self.dice.below((BLOCKS - count) as u64) as usize;
        let bytes = self.read(client, first, count)?;
        self.check(first, &bytes);
        Ok(())
    }

    /// Reads everything. What it is, and was flushed, it stays.
    fn check_all(&mut self, client: &mut Client) -> io::Result<()> {
        for first in (0..BLOCKS).step_by(LONGEST / BLOCK) {
            let bytes = self.read(client, first, LONGEST / BLOCK)?;
            self.check(first, &bytes);
        }
        Ok(())
    }

    fn check(&mut self, first: usize, bytes: &[u8]) {
        for (number, bytes) in (first..).zip(bytes.chunks(BLOCK)) {
            let held = &self.held[number];
            let allowed = match held.now {
                Some(ref now) => std::slice::from_ref(now),
                None => &held.possible[..],
            };
            let mut versions = allowed.iter().copied().filter(|version| *version != u64::MAX);
            let found = versions.find(|v| *block(self.world, self.seed, number, *v) == *bytes);
            // A trimmed block reads as zeroes.
            let trimmed = allowed.contains(&u64::MAX) && bytes.iter().all(|byte| *byte == 0);
            assert!(
                found.is_some() || trimmed,
                "{}: block {number} holds none of {allowed:?}",
                self.export
            );
            self.held[number].now = found;
        }
    }
}

/// Changes a file system, as a guest does, and brings every state of it to the disk; in the end it
/// is whole, and the last state is there.
pub(crate) fn keep_a_file_system(world: &World, dir: &Path) {
    let run = |script: &str| shell(dir, &[], script);
    run(&format!("mkfs.ext4 -q -F fs.img {FILE_SYSTEM}M"));
    let path = dir.join("fs.img");
    let mut on_disk = vec![0; FILE_SYSTEM << 20];
    let (mut round, mut client) = (0u64, None);
    loop {
        let last = world.over.load(SeqCst);
        round += 1;
        let (file, length) = (round % 20, 1000 + round * 7919 % 500_000);
        run(&format!(
            "head -c {length} /dev/urandom > part
             debugfs -w -R 'rm f{file}' fs.img 2>/dev/null
             debugfs -w -R 'write part f{file}' fs.img 2>/dev/null"
        ));
        let wanted = std::fs::read(&path).expect("image of the file system");
        while !bring(world, &mut client, &mut on_disk, &wanted) {
            std::thread::sleep(Duration::from_millis(200));
        }
        if last {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(client.take());
    let mut client = attach(world, "fs");
    let got: Vec<u8> =
        (0..FILE_SYSTEM as u64).flat_map(|part| client.read(part << 20, 1 << 20)).collect();
    content::assert_same("the file system", &got, &on_disk);
    client.detach();
    std::fs::write(dir.join("got.img"), got).expect("copy of the file system");
    run("e2fsck -fn got.img");
}

/// Writes what is different and flushes; false when that has to be done again.
fn bring(world: &World, client: &mut Option<Client>, on_disk: &mut [u8], wanted: &[u8]) -> bool {
    let present = client.get_or_insert_with(|| attach(world, "fs"));
    let blocks = on_disk.chunks(BLOCK).zip(wanted.chunks(BLOCK)).enumerate();
    let changed: Vec<usize> =
        blocks.filter(|(_, (old, new))| old != new).map(|(number, _)| number).collect();
    let mut write_all = || {
        for number in &changed {
            let at = number * BLOCK;
            let data = &wanted[at..at + BLOCK];
            if present.try_request(WRITE, at as u64, BLOCK as u32, data)? != 0 {
                return Ok(false);
            }
        }
        Ok::<_, io::Error>(present.try_request(FLUSH, 0, 0, &[])? == 0)
    };
    match write_all() {
        Ok(true) => {
            on_disk.copy_from_slice(wanted);
            true
        }
        // No room, or the server stops: what was written is written again.
        Ok(false) => false,
        Err(_) => {
            *client = None;
            false
        }
    }
}

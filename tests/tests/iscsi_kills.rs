//! The server is killed again and again under an iSCSI initiator that stays: QEMU's in qemu-storage-daemon, through
//! which the test reads and writes. Sessions come back by themselves, no request fails, nothing that was answered
//! is lost.
//!
//! `ISCSI_KILLS` is how often (a handful unless it is set), `ISCSI_KILLS_SEED` the seed.

#![allow(clippy::disallowed_methods, reason = "a kill comes at a real moment")]
#![allow(clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "a failed test shows what its initiator said")]

use sojourn_tests::client::{WRITE, header};
use sojourn_tests::home::free_port;
use sojourn_tests::{Client, Home, Server, content, require};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 16;
const BLOCK: usize = 4096;
const BLOCKS: usize = (MIB << 20) / BLOCK;
/// `NBD_CMD_WRITE_ZEROES`, which becomes WRITE SAME.
const WRITE_ZEROES: u16 = 6;
/// Requests that are sent ahead of their answers, at the most: more than the initiator has in flight.
const AHEAD: u64 = 64;
/// How long a program may take to start, and a session to come back.
const PATIENCE: Duration = Duration::from_secs(60);

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => default,
    }
}

/// QEMU's iSCSI initiator, which offers its disk by NBD. Killed when it is dropped.
struct Initiator {
    process: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Initiator {
    fn start(dir: &Path, portal: SocketAddr) -> Self {
        let (socket, log) = (dir.join("initiator.sock"), dir.join("initiator.log"));
        let mut command = Command::new("qemu-storage-daemon");
        command.arg("--blockdev").arg(format!(
            "driver=iscsi,node-name=disk,transport=tcp,portal={portal},lun=0,cache.direct=on,\
             target=iqn.2026-11.io.sojourn:alice"
        ));
        let address = format!("addr.type=unix,addr.path={}", socket.display());
        command.arg("--nbd-server").arg(address);
        command.args(["--export", "type=nbd,id=export,node-name=disk,name=disk,writable=on"]);
        let file = std::fs::File::create(&log).expect("log");
        let process = command.stdin(Stdio::null()).stderr(file).spawn().expect("initiator");
        let mut initiator = Self { process, socket, log };
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&initiator.socket).is_err() {
            let ended = initiator.process.try_wait().expect("initiator");
            assert!(ended.is_none() && Instant::now() < end, "{}", initiator.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        initiator
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- initiator's log\n{}", self.log());
        }
    }
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Image,
    Zeroes,
    /// What was written with this number.
    Version(u64),
}

impl Held {
    fn bytes(self, image: &[u8], number: usize) -> Vec<u8> {
        match self {
            Self::Image => image[number * BLOCK..][..BLOCK].to_vec(),
            Self::Zeroes => vec![0; BLOCK],
            Self::Version(version) => content::random((version << 20) | number as u64, BLOCK),
        }
    }
}

/// Requests of one client, and what the disk has to hold.
struct Load {
    image: Vec<u8>,
    oracle: Vec<Held>,
    versions: u64,
    state: u64,
}

impl Load {
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 16
    }

    /// Requests that change different blocks, and how many: in flight together they are carried out in any
    /// order.
    fn requests(&mut self) -> (Vec<u8>, usize) {
        let mut numbers: Vec<usize> =
            (0..1 + self.next() % AHEAD).map(|_| self.next() as usize % BLOCKS).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut bytes = Vec::new();
        for number in &numbers {
            self.versions += 1;
            let (cookie, offset) = (self.versions, (number * BLOCK) as u64);
            self.oracle[*number] = if self.next().is_multiple_of(8) {
                bytes.extend(header(WRITE_ZEROES, cookie, offset, BLOCK as u32));
                Held::Zeroes
            } else {
                let held = Held::Version(cookie);
                bytes.extend(header(WRITE, cookie, offset, BLOCK as u32));
                bytes.extend(held.bytes(&self.image, *number));
                held
            };
        }
        (bytes, numbers.len())
    }

    /// Reads the whole disk, all requests of which were answered.
    fn check(&self, client: &mut Client, when: &str) {
        let blocks = 256;
        for (part, expected) in self.oracle.chunks(blocks).enumerate() {
            let first = part * blocks;
            let got = client.read((first * BLOCK) as u64, expected.len() * BLOCK);
            for (index, (bytes, held)) in got.chunks(BLOCK).zip(expected).enumerate() {
                let number = first + index;
                let same = bytes == held.bytes(&self.image, number);
                assert!(same, "{when}: block {number} does not hold {held:?}");
            }
        }
    }
}

/// Waits until sessions began so many times.
fn await_sessions(server: &Server, count: usize) {
    let end = Instant::now() + PATIENCE;
    while sessions(server) < count {
        assert!(Instant::now() < end, "the session does not come back\n{}", server.log());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn sessions(server: &Server) -> usize {
    server.log().matches("iSCSI session begins").count()
}

#[test]
fn an_initiator_that_stays_loses_nothing_when_the_server_is_killed_again_and_again() {
    require!("qemu-storage-daemon");
    let (kills, seed) = (number("ISCSI_KILLS", 5), number("ISCSI_KILLS_SEED", 1).max(1));
    let home = Home::new();
    let image = content::image(61, MIB);
    home.import("golden", &image);
    home.disk("alice", "golden");
    let portal = free_port();
    let serve = || home.serve_with(&["--iscsi", &portal.to_string()]);
    let mut server = serve();
    let initiator = Initiator::start(home.dir(), portal);
    let mut client = Client::attach(&initiator.socket, "disk");
    let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut load = Load { image, oracle: vec![Held::Image; BLOCKS], versions: 0, state };
    for kill in 1..=kills {
        for _ in 0..load.next() % 8 {
            let (bytes, count) = load.requests();
            client.send(&bytes);
            client.replies(count);
            if load.next().is_multiple_of(3) {
                assert_eq!(client.flush(), 0);
            }
        }
        // The kill finds requests in flight, unless all of these were answered before it.
        let (bytes, count) = load.requests();
        client.send(&bytes);
        let answered = load.next() as usize % count;
        client.replies(answered);
        let mut begun = sessions(&server);
        server.kill();
        server = serve();
        if load.next().is_multiple_of(4) {
            // And one in the middle of the login, or right behind it.
            begun += 1;
            await_sessions(&server, begun);
            server.kill();
            server = serve();
        }
        client.replies(count - answered);
        assert_eq!(client.flush(), 0);
        assert!(sessions(&server) > begun, "no session began");
        if kill % 10 == 0 || kill == kills {
            load.check(&mut client, &format!("after kill {kill}"));
        }
    }
    drop(client);
    drop(initiator);
    server.stop();
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "alice");
    load.check(&mut client, "by NBD, after all kills");
    client.detach();
    server.stop();
    println!("{kills} kills, {} requests", load.versions);
}

use super::rig::{Daemon, Prober, Rig, Shelf, request};
use crate::codec::ReplyStyle;
use crate::codec::constants::{command, errno};
use crate::server::{
    ExportSummary, Exports, Peer, Purpose, Rates, ServerLimits, Session, SessionEnding,
};
use crate::{Address, ClientOptions, Remote, Uri};
use async_trait::async_trait;
use block::{Device, Fault, Memory, Operation, Result, ScriptedDevice, Span};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

const SIZE: u64 = 1 << 20;

#[tokio::test]
async fn a_panic_in_a_request_ends_its_connection_and_no_other() {
    let cursed = |operation| {
        if let Operation::Read(span) | Operation::Write(span) = operation {
            assert_ne!(span.offset(), 13, "cursed");
        }
        Fault::None
    };
    let mut rig = Rig::new(ScriptedDevice::new(Memory::new(SIZE), cursed).with_fast_reads());
    let mut witness = rig.attach(ReplyStyle::Structured).await;
    for command in [command::READ, command::WRITE] {
        let mut prober = rig.attach(ReplyStyle::Structured).await;
        prober.post(&request(command, 0, 13, 16), &[0; 16]).await;
        assert!(prober.is_closed().await);
        assert!(rig.ended().await.is_err());
    }
    witness.is_in_step().await;
    assert_eq!(rig.server.counters().panics, 2);
    assert_eq!(rig.endings.lock().unwrap().len(), 2, "the sessions were closed");
    assert_eq!(rig.server.counters().connections, 1);
}

#[tokio::test]
async fn a_bad_magic_closes_and_is_counted() {
    for style in [ReplyStyle::Simple, ReplyStyle::Extended] {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.attach(style).await;
        prober.send(&[0xff; 32]).await;
        assert!(prober.is_closed().await);
        assert!(rig.ended().await.is_err());
        assert_eq!(rig.server.counters().protocol_errors, 1);
        assert_eq!(*rig.endings.lock().unwrap(), [("disk".to_owned(), SessionEnding::Lost)]);
    }
}

#[tokio::test]
async fn a_client_that_vanishes_in_a_write_changes_nothing() {
    let device = Arc::new(Memory::new(SIZE));
    for sent in [1, 4096, 200_000] {
        let mut rig = Rig::new(Arc::clone(&device));
        let mut prober = rig.attach(ReplyStyle::Simple).await;
        prober.post(&request(command::WRITE, 0, 0, 200_001), &vec![9; sent]).await;
        drop(prober);
        rig.ended().await.unwrap();
        assert_eq!(*rig.endings.lock().unwrap(), [("disk".to_owned(), SessionEnding::Lost)]);
    }
    assert!(device.to_vec().iter().all(|b| *b == 0));
}

#[tokio::test]
async fn an_announced_length_of_four_gib_costs_no_memory_and_is_refused() {
    let mut rig = Rig::new(Memory::new(SIZE));
    let mut prober = rig.attach(ReplyStyle::Structured).await;
    let write = request(command::WRITE, 0, 0, u64::from(u32::MAX));
    assert_eq!(prober.ask(&write, &[]).await.error, errno::EINVAL);
    let read = request(command::READ, 0, 0, u64::from(u32::MAX));
    let mut other = rig.attach(ReplyStyle::Structured).await;
    assert_eq!(other.ask(&read, &[]).await.error, errno::EINVAL);
}

type Noted = ScriptedDevice<Memory, fn(Operation) -> Fault>;

/// A device that notes what it is asked, and has every read wait.
fn noted() -> Arc<Noted> {
    Arc::new(ScriptedDevice::noting(Memory::new(SIZE)))
}

/// The bytes that were read from it.
fn bytes_read(device: &Noted) -> u64 {
    device.bytes(|call| matches!(call, Operation::Read(_)))
}

#[tokio::test]
async fn a_client_that_never_reads_its_replies_is_not_served_beyond_its_limit() {
    let device = noted();
    let limits = ServerLimits { in_flight_bytes: 1 << 20, ..ServerLimits::default() };
    let mut rig = Rig::with(Arc::clone(&device), limits);
    let (mut prober, _stop) = rig.connect_with(64 << 10);
    prober.attach(ReplyStyle::Simple).await;
    let mut all = Vec::new();
    for i in 0..10_000 {
        request(command::READ, 0, i % 200 * 4096, 4096).put(ReplyStyle::Simple, &mut all);
    }
    let stuck = tokio::time::timeout(Duration::from_millis(500), prober.stream.write_all(&all));
    assert!(stuck.await.is_err(), "the server took everything");
    let read = bytes_read(&device);
    assert!(read > 0 && read <= (1 << 20) + (64 << 10), "{read} bytes were read for it");
    // Once it reads, all that was taken is answered.
    let mut reply = vec![0; 16 + 4096];
    for _ in 0..500 {
        prober.stream.read_exact(&mut reply).await.unwrap();
    }
    drop(prober);
    let _ = rig.ended().await;
}

/// A client that asked for `reads` times 64 KiB and closed its side.
async fn closed_with_replies_due(rig: &mut Rig, reads: u64) -> Prober {
    let (mut prober, _stop) = rig.connect_with(4 << 10);
    prober.attach(ReplyStyle::Simple).await;
    for i in 0..reads {
        prober.post(&request(command::READ, 0, i * 65536, 65536), &[]).await;
    }
    prober.post(&request(command::DISCONNECT, 0, 0, 0), &[]).await;
    prober
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_replies_is_dropped_after_a_while() {
    for (reads, periods) in [(1, 1), (8, 10)] {
        let stall_deadline = Duration::from_millis(500);
        let mut rig = Rig::with(
            Memory::new(SIZE),
            ServerLimits { stall_deadline, ..ServerLimits::default() },
        );
        let start = tokio::time::Instant::now();
        let prober = closed_with_replies_due(&mut rig, reads).await;
        let _ = rig.ended().await;
        let took = start.elapsed();
        assert!(took >= stall_deadline * periods && took < stall_deadline * (periods + 2));
        assert_eq!(rig.endings.lock().unwrap().len(), 1, "the session is closed");
        drop(prober);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closed_its_side_and_is_slow_gets_all_its_replies() {
    let stall_deadline = Duration::from_secs(3);
    let mut rig =
        Rig::with(Memory::new(SIZE), ServerLimits { stall_deadline, ..ServerLimits::default() });
    let mut prober = closed_with_replies_due(&mut rig, 8).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        prober.receive(16 + 65536).await;
    }
    assert!(prober.is_closed().await && rig.ended().await.is_ok());
}

fn another_client() -> Peer {
    Peer::tcp(([10, 0, 0, 9], 1).into())
}

#[tokio::test(start_paused = true)]
async fn clients_that_hold_all_memory_and_take_no_replies_give_way_to_others() {
    let limits = ServerLimits {
        total_bytes: 4 << 20,
        max_request: 1 << 20,
        stall_deadline: Duration::from_secs(1),
        ..ServerLimits::default()
    };
    let device = noted();
    let mut rig = Rig::with(Arc::clone(&device), limits);
    let mut rude = Vec::new();
    for _ in 0..4 {
        let (mut prober, stop) = rig.connect_with(4 << 10);
        prober.attach(ReplyStyle::Simple).await;
        rude.push((prober, stop));
    }
    for (prober, _stop) in &mut rude {
        for _ in 0..16 {
            prober.post(&request(command::READ, 0, 0, 1 << 20), &[]).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let held = bytes_read(&device);
    assert!(held <= 6 << 20, "{held} bytes are held for clients that take nothing");
    let (mut good, _stop) = rig.connect_as(another_client(), 1 << 20);
    good.attach(ReplyStyle::Simple).await;
    let read = request(command::READ, 0, 0, 4096);
    let small = good.ask(&read, &[]);
    let small = tokio::time::timeout(Duration::from_secs(1), small).await;
    assert_eq!(small.expect("small requests need no share").error, 0);
    let read = request(command::READ, 0, 0, 1 << 20);
    let large = good.ask(&read, &[]);
    let large = tokio::time::timeout(Duration::from_secs(9), large).await;
    assert_eq!(large.expect("those in the way are dropped").error, 0);
    drop((rude, good));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_holds_much_memory_and_sends_little_gives_way_to_others() {
    const LARGE: u64 = 4 << 20;
    let limits = ServerLimits {
        total_bytes: LARGE,
        max_request: LARGE as u32,
        stall_deadline: Duration::from_secs(1),
        ..ServerLimits::default()
    };
    let mut rig = Rig::with(Memory::new(LARGE), limits);
    let mut rude = rig.attach(ReplyStyle::Simple).await;
    rude.post(&request(command::WRITE, 0, 0, LARGE), &[]).await;
    let (mut good, _stop) = rig.connect_as(another_client(), 1 << 20);
    good.attach(ReplyStyle::Simple).await;
    let trickle = async {
        // More than 64 KiB a second, and a minute for all of it.
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if rude.stream.write_all(&[7; 40 << 10]).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let read = request(command::READ, 0, 0, 2 << 20);
    let large = tokio::time::timeout(Duration::from_secs(9), good.ask(&read, &[]));
    tokio::select! {
        () = trickle => unreachable!(),
        large = large => assert_eq!(large.expect("it is dropped").error, 0),
    }
}

#[tokio::test(start_paused = true)]
async fn one_client_leaves_half_of_the_memory_to_others_at_once() {
    let peer = |host| Peer::tcp(([10, 0, 0, host], 1).into());
    let limits =
        ServerLimits { total_bytes: 4 << 20, max_request: 1 << 20, ..ServerLimits::default() };
    let mut rig = Rig::with(Memory::new(SIZE), limits.clone());
    let mut rude = Vec::new();
    for _ in 0..4 {
        let (mut prober, stop) = rig.connect_as(peer(1), 64 << 10);
        prober.attach(ReplyStyle::Simple).await;
        rude.push((prober, stop));
    }
    for (prober, _stop) in &mut rude {
        prober.post(&request(command::WRITE, 0, 0, SIZE), &[]).await;
    }
    let (mut good, _stop) = rig.connect_as(peer(2), 64 << 10);
    good.attach(ReplyStyle::Simple).await;
    let began = tokio::time::Instant::now();
    let read = request(command::READ, 0, 0, SIZE);
    assert_eq!(good.ask(&read, &[]).await.error, 0);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // Half of more is more, also for those that are there.
    rig.server.set_limits(ServerLimits { total_bytes: 8 << 20, ..limits });
    for (prober, _stop) in rude.iter_mut().rev() {
        prober.send(&vec![7; SIZE as usize]).await;
        assert_eq!(prober.reply(0).await.error, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_client_has_a_bounded_number_of_requests_at_the_device() {
    let device = Arc::new(ScriptedDevice::new(Memory::new(SIZE), |operation| match operation {
        Operation::Flush => Fault::Hold,
        _ => Fault::None,
    }));
    let mut rig = Rig::new(Arc::clone(&device));
    let mut prober = rig.attach(ReplyStyle::Simple).await;
    let mut all = Vec::new();
    for _ in 0..2000 {
        request(command::FLUSH, 0, 0, 0).put(ReplyStyle::Simple, &mut all);
    }
    prober.send(&all).await;
    // The clock goes on when nobody has anything to do: no more of them are let in.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waiting = device.calls.log().held;
    assert!((1..=256).contains(&waiting), "{waiting} flushes at a time");
    drop(prober);
}

#[tokio::test]
async fn many_payloads_at_once_stay_within_the_limit_and_all_arrive() {
    let limits = ServerLimits { in_flight_bytes: 256 << 10, ..ServerLimits::default() };
    let device = Arc::new(ScriptedDevice::new(Memory::new(8 << 20), |operation| match operation {
        Operation::Write(_) => Fault::Delay(Duration::from_millis(1)),
        _ => Fault::None,
    }));
    let mut rig = Rig::with(Arc::clone(&device), limits);
    let mut prober = rig.attach(ReplyStyle::Simple).await;
    let lens = [100_000u64, 4096, 70_000, 512, 300_000, 65_536, 65_537, 1];
    let (mut all, mut expected, mut at) = (Vec::new(), vec![0; 8 << 20], 0);
    for i in 0..64usize {
        let len = lens[i % lens.len()];
        request(command::WRITE, 0, at, len).put(ReplyStyle::Simple, &mut all);
        all.resize(all.len() + len as usize, i as u8 + 1);
        expected[at as usize..(at + len) as usize].fill(i as u8 + 1);
        at += len;
    }
    prober.send(&all).await;
    for _ in 0..64 {
        assert_eq!(prober.reply(0).await.error, 0);
    }
    assert!(device.inner().to_vec() == expected);
    let most = device.calls.log().most.bytes;
    assert!(most <= 300_000, "{most} bytes in flight");
    assert!(most > 100_000, "requests run side by side");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_clients_that_come_at_once_are_all_served() {
    for tcp in [true, false] {
        let mut daemon = Daemon::start(tcp, ServerLimits::default()).await;
        let mut clients = JoinSet::new();
        for _ in 0..500 {
            let uri = Uri::new(daemon.address.clone(), "disk");
            clients.spawn(async move {
                let remote = Remote::connect(&uri, ClientOptions::default()).await?;
                let mut buf = vec![0; 4096];
                remote.read(Span::whole(4096), &mut buf).await?;
                remote.close().await;
                Ok::<_, block::Error>(buf == [3; 4096])
            });
        }
        while let Some(served) = clients.join_next().await {
            assert!(served.unwrap().unwrap());
        }
        daemon.stop().await;
        let counters = daemon.server.counters();
        assert_eq!((counters.accepted, counters.connections), (500, 0));
        assert_eq!(counters.total.reads, 500);
    }
}

#[tokio::test]
async fn clients_beyond_the_limit_are_closed_at_once_and_counted() {
    let limits = ServerLimits { connections: 2, ..ServerLimits::default() };
    let mut daemon = Daemon::start(true, limits).await;
    let first = daemon.remote().await.unwrap();
    let second = daemon.remote().await.unwrap();
    assert!(daemon.remote().await.is_err());
    second.close().await;
    let mut again = daemon.remote().await;
    for _ in 0..200 {
        if again.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        again = daemon.remote().await;
    }
    again.unwrap().close().await;
    let mut buf = [0; 16];
    first.read(Span::whole(16), &mut buf).await.unwrap();
    assert!(daemon.server.counters().refused >= 1);
    daemon.stop().await;
}

/// A client that takes the greeting of a server at this port, and says so much.
async fn says(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.read_exact(&mut [0; 18]).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Longer than a test takes on a busy machine.
const HOUR: Duration = Duration::from_secs(3600);

/// Lets so much time pass at once.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn who_is_silent_in_its_negotiation_gives_its_place_to_a_newcomer_and_nobody_else_does() {
    let limits =
        ServerLimits { connections: 3, handshake_deadline: HOUR, ..ServerLimits::default() };
    let mut daemon = Daemon::start(true, limits).await;
    let Address::Tcp(_, port) = daemon.address.clone() else { panic!() };
    let mut old = says(port, b"").await;
    let first = daemon.remote().await.unwrap();
    let mut late = says(port, b"\0\0\0\x03IHAVE").await;
    assert!(daemon.remote().await.is_err(), "they may be about to speak");
    pass(HOUR / 6).await;
    let second = daemon.remote().await.unwrap();
    assert_eq!(old.read(&mut [0]).await.unwrap(), 0);
    let third = daemon.remote().await.unwrap();
    assert_eq!(late.read(&mut [0]).await.unwrap(), 0);
    assert!(daemon.remote().await.is_err(), "all places are in use");
    let counters = daemon.server.counters();
    assert_eq!((counters.connections, counters.failed_handshakes, counters.refused), (3, 2, 2));
    for remote in [first, second, third] {
        remote.read(Span::whole(16), &mut [0; 16]).await.unwrap();
        remote.close().await;
    }
    daemon.stop().await;
    assert_eq!(daemon.server.counters().connections, 0);
}

/// A server whose exports take long to open.
struct Slow(Shelf);

#[async_trait]
impl Exports for Slow {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        self.0.list(peer).await
    }
    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        tokio::time::sleep(HOUR / 4).await;
        self.0.open(name, peer, purpose).await
    }
}

#[tokio::test]
async fn who_waits_for_the_server_in_its_negotiation_keeps_its_place() {
    let limits =
        ServerLimits { connections: 1, handshake_deadline: HOUR, ..ServerLimits::default() };
    let mut daemon = Daemon::serve(true, limits, Slow(Shelf::default())).await;
    let Address::Tcp(_, port) = daemon.address.clone() else { panic!() };
    let mut patient = says(port, b"\0\0\0\x03IHAVEOPT\0\0\0\x06\0\0\0\x06\0\0\0\0\0\0").await;
    // Until the server has received it and is at work.
    while !daemon.server.state.negotiations.all_are_served() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pass(HOUR / 6).await;
    let mut refused = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    assert!(!matches!(refused.read(&mut [0]).await, Ok(1..)));
    pass(HOUR / 6).await;
    let mut answer = [0; 8];
    patient.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, 0x3e889045565a9u64.to_be_bytes());
    daemon.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_its_limits_hold_it_back_is_not_waited_for() {
    let client_rates = Rates { requests: 0, bytes: 1 };
    let stall_deadline = Duration::from_millis(1500);
    for tcp in [true, false] {
        let limits = ServerLimits { client_rates, stall_deadline, ..ServerLimits::default() };
        let mut daemon = Daemon::start(tcp, limits).await;
        let remote = daemon.remote().await.unwrap();
        let mut buf = vec![0; 4096];
        remote.read(Span::whole(4096), &mut buf).await.unwrap(); // an hour's worth
        let held = remote.read(Span::whole(4096), &mut buf);
        let held = tokio::time::timeout(Duration::from_millis(300), held).await;
        assert!(held.is_err(), "it is held back");
        assert_eq!(daemon.server.counters().connections, 1);
        drop(remote);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while daemon.server.counters().connections > 0 {
            assert!(tokio::time::Instant::now() < deadline, "tcp: {tcp}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        daemon.stop().await;
    }
}

#[tokio::test]
async fn a_stop_closes_the_listener_and_every_client_even_in_the_negotiation() {
    let mut daemon = Daemon::start(false, ServerLimits::default()).await;
    let Address::Unix(path) = daemon.address.clone() else { panic!() };
    let remote = daemon.remote().await.unwrap();
    let mut silent = UnixStream::connect(&path).await.unwrap();
    let mut greeting = [0; 18];
    silent.read_exact(&mut greeting).await.unwrap();
    daemon.stop().await;
    assert!(!path.exists());
    assert_eq!(silent.read(&mut greeting).await.unwrap(), 0);
    assert!(remote.read(Span::whole(1), &mut [0]).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_rude_clients_leave_a_good_one_undisturbed() {
    let mut daemon = Daemon::start(true, ServerLimits::default()).await;
    let Address::Tcp(_, port) = daemon.address.clone() else { panic!() };
    let good = daemon.remote().await.unwrap();
    let mut rude = JoinSet::new();
    for i in 0..200u32 {
        rude.spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let mut bytes = vec![0, 0, 0, 3];
            if i % 2 == 0 {
                bytes.extend_from_slice(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk");
            }
            let mut random = block::conformance::Sequence::new(u64::from(i));
            for _ in 0..random.below(200) {
                let n = random.below(1 << 20);
                request((n % 9) as u16, (n % 64) as u16, n, n % 9000)
                    .put(ReplyStyle::Simple, &mut bytes);
                bytes.resize(bytes.len() + (n % 7000) as usize, n as u8);
            }
            let cut = random.below(bytes.len() as u64) as usize;
            let _ = stream.write_all(&bytes[..cut]).await;
        });
    }
    let mut buf = vec![0; 4096];
    while rude.join_next().await.is_some() {
        good.read(Span::whole(4096), &mut buf).await.unwrap();
    }
    good.close().await;
    daemon.stop().await;
    let counters = daemon.server.counters();
    assert_eq!((counters.connections, counters.panics), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_end_the_server_or_leave_a_session_behind(
        attach: bool, style in 0usize..3, seed: u64,
        noise in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut rig = Rig::new(Memory::new(SIZE));
            let mut prober = rig.connect();
            if attach {
                let styles = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
                prober.attach(styles[style]).await;
            }
            let mut random = block::conformance::Sequence::new(seed);
            let mut bytes = Vec::new();
            for _ in 0..random.below(20) {
                let r = random.number();
                request((r % 9) as u16, (r >> 8 & 0x3f) as u16, r >> 44, r >> 20 & 0x3ff)
                    .put(prober.style, &mut bytes);
                bytes.resize(bytes.len() + (r >> 30 & 0x1ff) as usize, 0x25);
            }
            bytes.extend_from_slice(&noise);
            let _ = prober.stream.write_all(&bytes).await;
            drop(prober);
            let _ = rig.ended().await;
            let counters = rig.server.counters();
            assert_eq!((counters.connections, counters.panics), (0, 0));
            assert_eq!(rig.endings.lock().unwrap().len(), usize::from(attach));
        });
    }
}

//! Clients at work while one server after another goes on with their connections.

use super::rig::{Prober, request};
use crate::codec::ReplyStyle;
use crate::codec::constants::{command, errno};
use crate::server::schedule::budget::{BudgetHold, FREE};
use crate::server::{
    ExportSummary, Exports, Listener, PassedConnection, PassedUse, Peer, Phase, Purpose, Server,
    ServerLimits, Session, SessionEnding,
};
use crate::{Address, ClientOptions, Remote, Uri};
use async_trait::async_trait;
use block::{Device, Durability, Fault, Memory, Result, ScriptedDevice, Span};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

const MIB: u64 = 1 << 20;

struct One(Arc<dyn Device>);

#[async_trait]
impl Exports for One {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(Vec::new())
    }
    async fn open(&self, _: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }
}

#[async_trait]
impl Session for One {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "disk"
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}

/// A server with its tasks, and a handle on its listener for the next one.
struct Running {
    server: Server,
    listener: Listener,
    phase: watch::Sender<Phase>,
    passed: mpsc::UnboundedReceiver<PassedConnection>,
    tasks: JoinSet<Result<()>>,
}

impl Running {
    fn start(device: &Arc<dyn Device>, listener: Listener, clients: Vec<PassedConnection>) -> Self {
        Self::serve(Arc::new(One(Arc::clone(device))), listener, clients)
    }

    fn serve(
        exports: Arc<dyn Exports>,
        listener: Listener,
        clients: Vec<PassedConnection>,
    ) -> Self {
        let server = Server::new(exports, ServerLimits::default());
        let (phase, phases) = watch::channel(Phase::Serving);
        let (passing, passed) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let (shared, serving) = (listener.share().unwrap(), server.clone());
        let (for_new, for_old) = (passing.clone(), phases.clone());
        tasks.spawn(async move { serving.serve_phases(shared, phases, Some(for_new)).await });
        let serving = server.clone();
        tasks.spawn(
            async move { serving.serve_passed(clients, for_old, Some(passing), || {}).await },
        );
        Self { server, listener, phase, passed, tasks }
    }

    /// Ends, and gives what the next one goes on with.
    async fn pass(mut self) -> (Listener, Vec<PassedConnection>) {
        self.phase.send_replace(Phase::Passing);
        let mut all = Vec::new();
        while let Some(passed) = self.passed.recv().await {
            all.push(passed);
        }
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap().unwrap();
        }
        assert_eq!(self.server.counters().connections, 0);
        self.listener.leave_file();
        let socket = self.listener.as_fd().try_clone_to_owned().unwrap();
        drop(self.listener);
        (Listener::from_fd(socket).unwrap().take_file(), all)
    }
}

/// Writes pieces of every length in the client's own part, reads them again; any lost connection
/// is an error.
async fn work(uri: &Uri, place: u64, rounds: u64) {
    let options = ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() };
    let remote = Remote::connect(uri, options).await.unwrap();
    for round in 0..rounds {
        let lengths = [512, 4096, 70_000, 200_000, MIB as usize];
        let data: Vec<Vec<u8>> = lengths.iter().map(|len| vec![round as u8 + 1; *len]).collect();
        let span = |i: usize| {
            let at = place * 8 * MIB + i as u64 * MIB;
            Span::between(at, at + lengths[i] as u64)
        };
        let writes = (0..5).map(|i| remote.write(span(i), &data[i], Durability::Buffered));
        futures::future::try_join_all(writes).await.unwrap();
        let reads = (0..5).map(async |i| {
            let mut buf = vec![0; lengths[i]];
            remote.read(span(i), &mut buf).await.map(|()| buf == data[i])
        });
        let right = futures::future::try_join_all(reads).await.unwrap();
        assert_eq!(right, [true; 5], "client {place}, round {round}");
        remote.flush().await.unwrap();
    }
    remote.close().await;
}

async fn many_passings(address: &Address) {
    let calls = AtomicU32::new(0);
    let slow = move |_| match calls.fetch_add(1, Relaxed) % 16 {
        0 => Fault::Delay(Duration::from_micros(300)),
        _ => Fault::None,
    };
    let device: Arc<dyn Device> = Arc::new(ScriptedDevice::new(Memory::new(64 * MIB), slow));
    let listener = Listener::bind(address, 64).await.unwrap();
    let uri = Uri::new(listener.address().clone(), "disk");
    let mut running = Running::start(&device, listener, Vec::new());
    let mut clients = JoinSet::new();
    for place in 0..6 {
        let uri = uri.clone();
        clients.spawn(async move { work(&uri, place, 40).await });
    }
    let (mut passings, mut carried) = (0, 0);
    while !clients.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (listener, passed) = running.pass().await;
        (passings, carried) = (passings + 1, carried + passed.len());
        running = Running::start(&device, listener, passed);
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap();
        }
    }
    assert!(passings > 2 && carried > 6, "{passings} passings of {carried} connections");
    let (mut listener, mut passed) = running.pass().await;
    // It may not have been seen yet that a client is gone.
    for _ in 0..1000 {
        if passed.is_empty() {
            break;
        }
        let running = Running::start(&device, listener, passed);
        tokio::time::sleep(Duration::from_millis(10)).await;
        (listener, passed) = running.pass().await;
    }
    assert!(passed.is_empty());
    drop(listener);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_clients_at_work_do_not_notice_that_servers_follow_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    many_passings(&Address::unix(&path).unwrap()).await;
    assert!(!path.exists(), "the last one removes the file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_do_tcp_clients() {
    many_passings(&"127.0.0.1:0".parse().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_export_has_become_another_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::unix(dir.path().join("s")).unwrap();
    let device: Arc<dyn Device> = Arc::new(Memory::new(4 * MIB));
    let listener = Listener::bind(&address, 64).await.unwrap();
    let running = Running::start(&device, listener, Vec::new());
    let options = ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() };
    let remote = Remote::connect(&Uri::new(address, "disk"), options).await.unwrap();
    remote.write(Span::whole(4096), &[1; 4096], Durability::Buffered).await.unwrap();
    let (listener, passed) = running.pass().await;
    assert_eq!((passed.len(), passed[0].session.size), (1, 4 * MIB));
    let smaller: Arc<dyn Device> = Arc::new(Memory::new(MIB));
    let running = Running::start(&smaller, listener, passed);
    let mut buf = [0; 4096];
    assert!(remote.read(Span::whole(4096), &mut buf).await.is_err());
    drop(running);
}

/// An export with a number for what it holds, and what became of its sessions.
#[derive(Clone)]
struct Noted {
    device: Arc<dyn Device>,
    content: u32,
    notes: Arc<Mutex<Vec<&'static str>>>,
}

impl Noted {
    fn note(&self, what: &'static str) {
        self.notes.lock().unwrap().push(what);
    }

    /// What was noted since this was asked last.
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.notes.lock().unwrap())
    }
}

#[async_trait]
impl Exports for Noted {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(Vec::new())
    }
    async fn open(&self, _: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        self.note("open");
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Session for Noted {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    fn name(&self) -> &str {
        "disk"
    }
    fn content(&self) -> Option<String> {
        Some(self.content.to_string())
    }
    async fn close(self: Box<Self>, _: SessionEnding) {
        self.note("close");
    }
    async fn pass(self: Box<Self>) -> Option<Box<dyn PassedUse>> {
        self.note("pass");
        Some(Box::new(Awaited(*self)))
    }
}

struct Awaited(Noted);

impl PassedUse for Awaited {
    fn hand_over(self: Box<Self>) {
        self.0.note("hand over");
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.note("no more awaited");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_waits_until_its_client_is_back_and_one_that_holds_something_else_is_not_given() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::unix(dir.path().join("s")).unwrap();
    let (device, notes) = (Arc::new(Memory::new(4 * MIB)), Arc::default());
    let mut exports = Noted { device, content: 1, notes };
    let listener = Listener::bind(&address, 64).await.unwrap();
    let start = |exports: &Noted, listener, passed| {
        Running::serve(Arc::new(exports.clone()), listener, passed)
    };
    let running = start(&exports, listener, Vec::new());
    let options = ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() };
    let remote = Remote::connect(&Uri::new(address, "disk"), options).await.unwrap();
    let mut buf = [0; 4096];
    remote.read(Span::whole(4096), &mut buf).await.unwrap();
    exports.take();
    let (listener, passed) = running.pass().await;
    assert_eq!(exports.take(), ["pass"]);
    let running = start(&exports, listener, passed);
    remote.read(Span::whole(4096), &mut buf).await.unwrap();
    assert_eq!(exports.take(), ["open", "no more awaited"]);
    let (listener, passed) = running.pass().await;
    exports.content = 2;
    let running = start(&exports, listener, passed);
    assert!(remote.read(Span::whole(4096), &mut buf).await.is_err());
    drop(running);
    assert_eq!(exports.take(), ["pass", "open", "no more awaited", "close"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_cannot_be_flushed_are_not_passed_on_as_if_they_could() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::unix(dir.path().join("s")).unwrap();
    let broken = |operation| match operation {
        block::Operation::Flush => Fault::Fail(block::ErrorKind::Internal),
        _ => Fault::None,
    };
    let device: Arc<dyn Device> = Arc::new(ScriptedDevice::new(Memory::new(4 * MIB), broken));
    let listener = Listener::bind(&address, 64).await.unwrap();
    let running = Running::start(&device, listener, Vec::new());
    let options = ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() };
    let remote = Remote::connect(&Uri::new(address, "disk"), options).await.unwrap();
    remote.write(Span::whole(4096), &[1; 4096], Durability::Buffered).await.unwrap();
    let (_listener, passed) = running.pass().await;
    assert!(passed.is_empty());
    assert!(remote.flush().await.is_err(), "the client learns that its writes are in doubt");
}

/// A unix socket's server, and clients of it that say what they like.
struct Lab {
    device: Arc<Memory>,
    address: Address,
    running: Option<Running>,
    _dir: tempfile::TempDir,
}

impl Lab {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::unix(dir.path().join("s")).unwrap();
        let bytes: Vec<u8> = (0..24 * MIB).map(|i| (i / 512 % 251) as u8).collect();
        let device = Arc::new(Memory::from(bytes));
        let listener = Listener::bind(&address, 64).await.unwrap();
        let shared = Arc::clone(&device) as Arc<dyn Device>;
        let running = Some(Running::start(&shared, listener, Vec::new()));
        Self { device, address, running, _dir: dir }
    }

    async fn connect(&self) -> Prober<UnixStream> {
        let Address::Unix(path) = &self.address else { panic!() };
        let stream = UnixStream::connect(path).await.unwrap();
        Prober { stream, style: ReplyStyle::Simple }
    }

    /// Another server follows, which goes on with what it was passed.
    async fn follow(&mut self) -> usize {
        // What was sent has arrived by then, mostly; whether or not makes no difference to a client.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let passing = self.running.take().unwrap().pass();
        let passing = tokio::time::timeout(Duration::from_secs(20), passing);
        let (listener, passed) = passing.await.expect("somebody is waited for");
        let count = passed.len();
        let shared = Arc::clone(&self.device) as Arc<dyn Device>;
        self.running = Some(Running::start(&shared, listener, passed));
        count
    }
}

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_silent_in_a_request_is_passed_in_the_middle_of_it() {
    for style in STYLES {
        let mut lab = Lab::start().await;
        let mut client = lab.connect().await;
        client.attach(style).await;
        let flag = client.payload_flag();
        let data: Vec<u8> = (0..300_000u32).map(|i| (i % 239) as u8).collect();
        // In a header, in a payload that is received beside it, in one of a buffer of its own, and in
        // one that is skipped, because its request is refused.
        let size = lab.device.size();
        for (offset, len, cut, error) in [
            (0, 5000usize, 10, 0),
            (4096, 60_000, 20_000, 0),
            (70_000, 300_000, 100_000, 0),
            (70_000, 300_000, 300_031, 0),
            (size, 300_000, 200_000, errno::ENOSPC),
            (size, 5000, 30, errno::ENOSPC),
        ] {
            let header = request(command::WRITE, flag, offset, len as u64);
            let mut bytes = Vec::new();
            header.put(style, &mut bytes);
            bytes.extend_from_slice(&data[..len]);
            let cut = cut.min(bytes.len() - 1);
            client.send(&bytes[..cut]).await;
            assert_eq!(lab.follow().await, 1);
            client.send(&bytes[cut..]).await;
            let reply = client.reply(0).await;
            assert_eq!((reply.cookie, reply.error), (header.cookie, error), "{style:?} {cut}");
            if error == 0 {
                let read = client.ask(&request(command::READ, 0, offset, len as u64), &[]).await;
                assert!(read.data == data[..len], "{style:?} {cut}");
            }
            client.is_in_step().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_no_answers_is_passed_with_them() {
    // Of the first and second, all requests and the goodbye are taken while answers wait.
    let many = [(0, 4 * MIB), (4 * MIB, 512), (5 * MIB, 3 * MIB), (9 * MIB, 100_000)];
    let one = [(MIB, 2 * MIB)]; // more than a socket holds
    let cases = [(&one[..], false), (&one, true), (&many, false)];
    for (style, (places, leaves)) in STYLES.into_iter().zip(cases) {
        let mut lab = Lab::start().await;
        let expected = lab.device.to_vec();
        let mut client = lab.connect().await;
        client.attach(style).await;
        for (offset, len) in places {
            client.post(&request(command::READ, 0, *offset, *len), &[]).await;
        }
        if leaves {
            client.disconnect().await;
        }
        for _ in 0..3 {
            assert_eq!(lab.follow().await, 1, "{style:?}");
        }
        let mut left = places.to_vec();
        while let Some((_, only)) = left.first() {
            let reply = client.reply(*only as usize).await; // they come in any order
            let at = left.iter().position(|(offset, _)| offset ^ 0xabcd == reply.cookie).unwrap();
            let (offset, len) = left.remove(at);
            assert_eq!(reply.error, 0);
            assert!(reply.data == expected[offset as usize..(offset + len) as usize]);
        }
        if leaves {
            assert!(client.is_closed().await);
        } else {
            client.is_in_step().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_passed_client_does_not_take_is_a_part_of_the_memory_that_all_may_hold() {
    const HEADER: usize = 16;
    let mut lab = Lab::start().await;
    let mut client = lab.connect().await;
    client.attach(ReplyStyle::Simple).await;
    client.post(&request(command::READ, 0, 0, 12 * MIB), &[]).await;
    client.receive(HEADER).await; // the answer is on its way
    let (_listener, passed) = lab.running.take().unwrap().pass().await;
    let unsent = passed[0].session.rest.unsent.len() as u64;
    assert!(unsent > 4 * MIB, "{unsent}");

    let limits =
        ServerLimits { total_bytes: 16 * MIB, max_request: 16 << 20, ..ServerLimits::default() };
    let server = Server::new(Arc::new(One(lab.device)), limits);
    let (_phase, phases) = watch::channel(Phase::Serving);
    let mut tasks = JoinSet::new();
    tasks.spawn(server.serve_passed(passed, phases, None, || {}));
    let is_free = |bytes: u64| BudgetHold::new(&server.state.budget).covers(FREE + bytes);
    let until = async |bytes: u64, free: bool| {
        let changed = async {
            while is_free(bytes) != free {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), changed).await.expect("the budget");
    };
    until(16 * MIB - unsent + MIB, false).await;
    client.receive(12 * MIB as usize).await;
    until(16 * MIB, true).await;
    client.is_in_step().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_silent_in_its_negotiation_is_cut_off_and_no_other() {
    let mut lab = Lab::start().await;
    let mut good = lab.connect().await;
    good.attach(ReplyStyle::Extended).await;
    let mut silent = lab.connect().await;
    silent.greet().await;
    let mut mute = lab.connect().await;
    assert_eq!(lab.follow().await, 1);
    good.is_in_step().await;
    assert!(silent.is_closed().await && mute.is_closed().await);
}

/// A client with an older connection that owes the rest of a write, and a newer one which waits for that with
/// another write to the same place. Gives the rest of the older write.
async fn write_twice(older: &mut Prober<UnixStream>, newer: &mut Prober<UnixStream>) -> Vec<u8> {
    older.attach(ReplyStyle::Simple).await;
    let mut write = Vec::new();
    request(command::WRITE, 0, 0, 512).put(ReplyStyle::Simple, &mut write);
    write.extend([1; 512]);
    older.send(&write[..100]).await;
    // So that the older one has attached and received it.
    tokio::time::sleep(Duration::from_millis(30)).await;
    newer.attach(ReplyStyle::Simple).await;
    newer.post(&request(command::WRITE, 0, 0, 512), &[2; 512]).await;
    write.split_off(100)
}

#[tokio::test]
async fn what_an_older_connection_wrote_does_not_land_behind_what_a_newer_one_did_when_both_are_passed()
 {
    let mut lab = Lab::start().await;
    let (mut older, mut newer) = (lab.connect().await, lab.connect().await);
    let rest = write_twice(&mut older, &mut newer).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let (listener, mut passed) = lab.running.take().unwrap().pass().await;
    assert!(lab.device.to_vec()[..512] == [0; 512], "neither is carried out yet");
    // Whichever comes first: the newer one here.
    passed.sort_by_key(|one| one.session.rest.received.len());
    let received: Vec<_> = passed.iter().map(|one| one.session.rest.received.len()).collect();
    assert_eq!(received, [0, 100]);
    let shared = Arc::clone(&lab.device) as Arc<dyn Device>;
    lab.running = Some(Running::start(&shared, listener, passed));
    tokio::time::sleep(Duration::from_millis(100)).await;
    older.send(&rest).await;
    assert_eq!(older.reply(0).await.error, 0);
    assert_eq!(newer.reply(0).await.error, 0);
    assert!(lab.device.to_vec()[..512] == [2; 512], "the newer write was replaced");
}

#[tokio::test]
async fn a_newer_connection_does_not_go_on_here_when_the_older_one_is_passed_before_it() {
    let lab = Lab::start().await;
    let mut running = lab.running.unwrap();
    // The newer one comes by another listener, which is told later.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let other = Listener::bind(&Address::unix(&path).unwrap(), 64).await.unwrap();
    let (later, phases) = watch::channel(Phase::Serving);
    let (passing, mut passed) = mpsc::unbounded_channel();
    let server = running.server.clone();
    running.tasks.spawn(async move { server.serve_phases(other, phases, Some(passing)).await });
    let Address::Unix(first) = &lab.address else { panic!() };
    let prober = async |path| Prober {
        stream: UnixStream::connect(path).await.unwrap(),
        style: ReplyStyle::Simple,
    };
    let (mut older, mut newer) = (prober(first).await, prober(&path).await);
    write_twice(&mut older, &mut newer).await;
    running.phase.send_replace(Phase::Passing);
    let one = running.passed.recv().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(lab.device.to_vec()[..512] == [0; 512], "the newer write was carried out");
    later.send_replace(Phase::Passing);
    let two = passed.recv().await.unwrap();
    assert!(one.session.order < two.session.order);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_told_when_every_passed_client_has_its_export_again() {
    /// Exports that open when they are told to.
    struct Late(Arc<dyn Device>, watch::Receiver<bool>);

    #[async_trait]
    impl Exports for Late {
        async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
            Ok(Vec::new())
        }
        async fn open(&self, _: &str, _: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
            assert_eq!(purpose, Purpose::Resume);
            self.1.clone().wait_for(|open| *open).await.unwrap();
            Ok(Box::new(One(Arc::clone(&self.0))))
        }
    }

    let lab = Lab::start().await;
    let mut client = lab.connect().await;
    client.attach(ReplyStyle::Simple).await;
    let (_listener, passed) = lab.running.unwrap().pass().await;
    let (open, opens) = watch::channel(false);
    let server = Server::new(Arc::new(Late(lab.device, opens)), ServerLimits::default());
    let (phase, phases) = watch::channel(Phase::Serving);
    let (attached, mut heard) = oneshot::channel();
    let mut tasks = JoinSet::new();
    let serving = server.serve_passed(passed, phases, None, move || attached.send(()).unwrap());
    assert_eq!(server.counters().connections, 1, "it has its place before new clients come");
    tasks.spawn(serving);
    // Time in which it could be told too early.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(heard.try_recv().is_err(), "its export is not open yet");
    open.send_replace(true);
    heard.await.unwrap();
    client.is_in_step().await;
    phase.send_replace(Phase::Stopping);
    assert_eq!(client.stream.read(&mut [0]).await.unwrap(), 0);
    tasks.join_next().await.unwrap().unwrap().unwrap();
}

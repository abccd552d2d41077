//! Clients at work while one server after another goes on with their connections.

use crate::server::{
    Ending, ExportSummary, Exports, Limits, Listener, Passed, Peer, Phase, Purpose, Server, Session,
};
use crate::{Address, ClientOptions, Remote, Uri};
use async_trait::async_trait;
use block::{Device, Durability, Fault, Faulty, Memory, Result, Span};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
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
    async fn close(self: Box<Self>, _: Ending) {}
}

/// A server with its tasks, and a handle on its listener for the next one.
struct Running {
    server: Server,
    listener: Listener,
    phase: watch::Sender<Phase>,
    passed: mpsc::UnboundedReceiver<Passed>,
    tasks: JoinSet<Result<()>>,
}

impl Running {
    fn start(device: &Arc<dyn Device>, listener: Listener, clients: Vec<Passed>) -> Self {
        let server = Server::new(Arc::new(One(Arc::clone(device))), Limits::default());
        let (phase, phases) = watch::channel(Phase::Serving);
        let (passing, passed) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let (shared, serving) = (listener.share().unwrap(), server.clone());
        let (for_new, for_old) = (passing.clone(), phases.clone());
        tasks.spawn(async move { serving.serve_phases(shared, phases, Some(for_new)).await });
        let serving = server.clone();
        tasks.spawn(async move { serving.serve_passed(clients, for_old, Some(passing)).await });
        Self { server, listener, phase, passed, tasks }
    }

    /// Ends, and gives what the next one goes on with.
    async fn pass(mut self) -> (Listener, Vec<Passed>) {
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
    let device: Arc<dyn Device> = Arc::new(Faulty::new(Memory::new(64 * MIB), slow));
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
    let (listener, passed) = running.pass().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_cannot_be_flushed_are_not_passed_on_as_if_they_could() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::unix(dir.path().join("s")).unwrap();
    let broken = |operation| match operation {
        block::Operation::Flush => Fault::Fail(block::ErrorKind::Internal),
        _ => Fault::None,
    };
    let device: Arc<dyn Device> = Arc::new(Faulty::new(Memory::new(4 * MIB), broken));
    let listener = Listener::bind(&address, 64).await.unwrap();
    let running = Running::start(&device, listener, Vec::new());
    let options = ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() };
    let remote = Remote::connect(&Uri::new(address, "disk"), options).await.unwrap();
    remote.write(Span::whole(4096), &[1; 4096], Durability::Buffered).await.unwrap();
    let (_listener, passed) = running.pass().await;
    assert!(passed.is_empty());
    assert!(remote.flush().await.is_err(), "the client learns that its writes are in doubt");
}

//! Replays against a real server in the same process.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use async_trait::async_trait;
use block::{Device, Error, ErrorKind, Fault, Memory, Operation, Result, ScriptedDevice};
use nbd::{
    Address, ExportSummary, Exports, Listener, Peer, Purpose, Server, Session, SessionEnding, Uri,
};
use replay::{Hub, Pace, ReplayPlan, ReplayReport, Script, ScriptSelection};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trace::{Flags, Header, Op, Request};

const SIZE: u64 = 1 << 20;

/// What a disk was asked: operation, offset, length.
type Log = Vec<(Op, u64, u64)>;

/// A disk in memory that a script may make slow, or have it fail or lie.
type Disk = ScriptedDevice<Memory, Plan>;

type Plan = Box<dyn Fn(Operation) -> Fault + Send + Sync>;

fn disk(plan: impl Fn(Operation) -> Fault + Send + Sync + 'static) -> Disk {
    ScriptedDevice::new(Memory::new(SIZE), Box::new(plan))
}

/// A disk that does what it is asked, after so long.
fn taking(pause: Duration) -> Disk {
    let fault = if pause.is_zero() { Fault::None } else { Fault::Delay(pause) };
    disk(move |operation| if is_logged(operation) { fault } else { Fault::None })
}

fn quick() -> Disk {
    taking(Duration::ZERO)
}

fn is_logged(operation: Operation) -> bool {
    !matches!(operation, Operation::Extents(_) | Operation::Prefetch(_))
}

/// A disk to which this happens wherever writes touch the byte at `at`.
fn spoilt(at: u64, fault: Fault) -> Disk {
    disk(move |operation| match operation {
        Operation::Write(span) if (span.offset()..span.end()).contains(&at) => fault,
        _ => Fault::None,
    })
}

fn logged(operation: Operation) -> (Op, u64, u64) {
    let op = match operation {
        Operation::Read(_) => Op::Read,
        Operation::Write(_) => Op::Write,
        Operation::Discard(_) => Op::Trim,
        Operation::Zero(_) => Op::Zero,
        _ => Op::Flush,
    };
    operation.span().map_or((op, 0, 0), |span| (op, span.offset(), span.len()))
}

/// Disks by name.
struct Disks(HashMap<String, Arc<Disk>>);

struct Open(Arc<dyn Device>, String);

#[async_trait]
impl Exports for Disks {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(Vec::new())
    }
    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        let disk = self.0.get(name).ok_or_else(|| Error::not_found(format!("no {name:?}")))?;
        Ok(Box::new(Open(Arc::clone(disk) as Arc<dyn Device>, name.to_owned())))
    }
}

#[async_trait]
impl Session for Open {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        &self.1
    }
    fn description(&self) -> Option<&str> {
        None
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}

/// A server with these disks, and a directory for its socket.
struct Lab {
    disks: HashMap<String, Arc<Disk>>,
    directory: tempfile::TempDir,
}

impl Lab {
    fn new(disks: impl IntoIterator<Item = (&'static str, Disk)>) -> Self {
        let disks = disks.into_iter().map(|(name, disk)| (name.to_owned(), Arc::new(disk)));
        Self { disks: disks.collect(), directory: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn uri(&self, export: &str) -> Uri {
        Uri::new(Address::unix(self.socket()).unwrap(), export)
    }

    fn log(&self, disk: &str) -> Log {
        let calls = self.disks[disk].calls.log();
        calls.asked.iter().filter(|call| is_logged(**call)).map(|call| logged(*call)).collect()
    }

    /// Replays while a server runs.
    async fn replay(
        &self,
        requests: Vec<Request>,
        export: &str,
        change: impl FnOnce(&mut ReplayPlan),
    ) -> Result<ReplayReport> {
        let never = std::future::pending();
        self.replay_until(requests, export, never, change).await
    }

    async fn replay_until(
        &self,
        requests: Vec<Request>,
        export: &str,
        stop: impl Future<Output = ()>,
        change: impl FnOnce(&mut ReplayPlan),
    ) -> Result<ReplayReport> {
        let mut source = trace::Memory::new(Header::default(), requests);
        let script = Arc::new(Script::load(&mut source, ScriptSelection::default())?);
        let mut plan = ReplayPlan::new(self.uri(export), &script);
        change(&mut plan);
        let _ = std::fs::remove_file(self.socket());
        let address = Address::unix(self.socket()).unwrap();
        let listener = Listener::bind(&address, nbd::server::DEFAULT_BACKLOG).await?;
        let exports = Arc::new(Disks(self.disks.clone()));
        let server = Server::new(exports, nbd::ServerLimits::default());
        let hub = Hub::default();
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        let served = server.serve(listener, async {
            let _ = end.await;
        });
        let replayed = async {
            let result = replay::run(script, plan, &hub, stop).await;
            let _ = ended.send(());
            result
        };
        let (served, replayed) = futures::join!(served, replayed);
        served?;
        if let Ok(report) = &replayed {
            assert_eq!(hub.progress().answers, report.answers);
        }
        replayed
    }
}

fn request(client: u32, op: Op, offset: u64, length: u32) -> Request {
    Request { client, op, offset, length, ..Request::default() }
}

/// A mix of everything, 40 requests for each client, spread over 40 ms.
fn mixed(clients: u32) -> Vec<Request> {
    let mut all = Vec::new();
    for i in 0..40u32 {
        for client in 0..clients {
            let op = Op::ALL[(i % 7).min(4) as usize];
            let offset = u64::from(i * 7919 % 200) * 4096;
            let mut one = request(client, op, offset, if op == Op::Flush { 0 } else { 8192 });
            one.time = u64::from(i) * 1_000_000;
            if i % 14 == 1 {
                one.flags = Flags::FUA;
            }
            all.push(one);
        }
    }
    all
}

fn expected(requests: &[Request], client: u32) -> Log {
    let of = requests.iter().filter(|one| one.client == client);
    let whole = |one: &Request| (one.op, one.offset, u64::from(one.length));
    // The server may turn forced unit access into a flush behind the write: those are not counted.
    of.map(whole).filter(|(op, ..)| *op != Op::Flush).collect()
}

fn without_flushes(log: Log) -> Log {
    log.into_iter().filter(|(op, ..)| *op != Op::Flush).collect()
}

#[tokio::test]
async fn clients_and_stretches_of_time_are_told_apart_when_that_is_asked_for() {
    let lab = Lab::new([("a", quick()), ("b", quick())]);
    let request = |client, at: u64, length| Request {
        client,
        disk: client,
        time: at * 1_000_000,
        offset: at * 4096,
        length,
        ..Request::default()
    };
    let requests = vec![request(0, 0, 4096), request(1, 1, 512), request(0, 30, 4096)];
    for (name, number) in [("a", 1), ("b", 2)] {
        let mine: Vec<Request> = requests
            .iter()
            .filter(|one| one.client + 1 == number)
            .map(|one| Request { client: 0, disk: 0, ..*one })
            .collect();
        let report = lab
            .replay(mine.clone(), name, |plan| {
                (plan.clients, plan.by_client) = (2, true);
                (plan.pace, plan.interval) = (Pace::Times(1.0), Some(Duration::from_millis(10)));
            })
            .await
            .unwrap();
        let of: Vec<(u32, u64)> =
            report.by_client.iter().map(|one| (one.client, one.answers.requests)).collect();
        assert_eq!(of, [(1, mine.len() as u64), (2, mine.len() as u64)]);
        let all: u64 = report.intervals.iter().map(|one| one.answers.requests).sum();
        assert_eq!(all, report.requests);
        // None is answered before it is due.
        let late = report.intervals.iter().filter(|one| one.from >= 0.03);
        let late: u64 = late.map(|one| one.answers.requests).sum();
        assert!(late >= if name == "a" { 2 } else { 0 }, "{:?}", report.intervals);
    }
    let plain = lab.replay(requests, "a", |_| {}).await.unwrap();
    assert!(plain.by_client.is_empty() && plain.intervals.is_empty());
}

#[tokio::test]
async fn every_client_sends_its_requests_once_in_order_to_its_own_export() {
    let disks = ["d1", "d2", "d3"].map(|name| (name, quick()));
    let lab = Lab::new(disks);
    let requests = mixed(3);
    let report =
        lab.replay(requests.clone(), "d{client}", |plan| plan.allow_writes = true).await.unwrap();
    assert_eq!((report.requests, report.answers, report.errors), (120, 120, 0));
    assert!(report.complete && report.throughput > 0.0);
    assert_eq!(report.ops.iter().map(|op| op.requests).sum::<u64>(), 120);
    for client in 0..3 {
        let log = lab.log(&format!("d{}", client + 1));
        assert_eq!(without_flushes(log), expected(&requests, client));
    }
}

#[tokio::test]
async fn more_clients_than_the_trace_has_repeat_it_on_few_connections() {
    let lab = Lab::new([("x", quick())]);
    let requests: Vec<_> = (0..50).map(|i| request(0, Op::Read, i * 4096, 4096)).collect();
    let report = lab
        .replay(requests, "x", |plan| (plan.clients, plan.connections) = (300, Some(3)))
        .await
        .unwrap();
    assert_eq!((report.clients, report.connections), (300, 3));
    assert_eq!((report.requests, report.bytes), (15_000, 15_000 * 4096));
    assert_eq!(lab.log("x").len(), 15_000);
}

#[tokio::test]
async fn a_clients_next_request_waits_for_its_last_unless_the_depth_allows_more() {
    for (depth, clients, most) in [(1, 1, 1), (1, 4, 4), (3, 2, 6)] {
        let lab = Lab::new([("x", taking(Duration::from_millis(2)))]);
        let requests: Vec<_> = (0..12).map(|i| request(0, Op::Read, i * 4096, 4096)).collect();
        let report = lab
            .replay(requests, "x", |plan| (plan.depth, plan.clients) = (depth, clients))
            .await
            .unwrap();
        assert_eq!(lab.disks["x"].calls.log().most.calls, most);
        assert!(report.mean_us >= 2000.0, "{}", report.mean_us);
        assert!((report.ops[0].latency.mean_us - report.mean_us).abs() < 1e-6);
    }
}

#[tokio::test]
async fn original_times_are_kept_and_scaled() {
    for (speed, least) in [(1.0, 39), (4.0, 9)] {
        let lab = Lab::new([("x", quick())]);
        let report = lab
            .replay(mixed(2), "x", |plan| {
                (plan.pace, plan.depth, plan.allow_writes) = (Pace::Times(speed), 16, true);
            })
            .await
            .unwrap();
        assert_eq!(report.requests, 80);
        assert!(report.seconds * 1e3 >= f64::from(least), "{}", report.seconds);
        assert!((report.planned_seconds.unwrap() - 0.039 / speed).abs() < 1e-9);
        let lateness = report.lateness;
        assert!(lateness.all.unwrap().max_us >= lateness.own.max_us);
    }
}

#[tokio::test]
async fn waiting_for_a_slow_server_is_lateness_but_not_the_replayers() {
    let lab = Lab::new([("x", taking(Duration::from_millis(20)))]);
    let requests: Vec<_> =
        (0..10).map(|i| Request { time: i * 1_000_000, ..request(0, Op::Read, 0, 512) }).collect();
    let report = lab.replay(requests, "x", |plan| plan.pace = Pace::Times(1.0)).await.unwrap();
    // The last was due at 9 ms and had to wait for nine answers of 20 ms.
    let late = report.lateness.all.unwrap();
    assert!(late.max_us >= 171_000.0, "{late:?}");
    assert!(report.lateness.own.p50_us < late.p50_us / 4.0, "{:?}", report.lateness);
}

#[tokio::test]
async fn a_window_of_time_is_measured_while_clients_go_round() {
    let lab = Lab::new([("x", taking(Duration::from_millis(1)))]);
    let requests = vec![request(0, Op::Read, 0, 4096)];
    let report = lab
        .replay(requests, "x", |plan| {
            plan.clients = 2;
            plan.repeat = true;
            plan.warm_up = Duration::from_millis(50);
            plan.until = Some(Duration::from_millis(250));
        })
        .await
        .unwrap();
    assert!((report.seconds - 0.2).abs() < 1e-9);
    assert!(report.requests > 10 && report.answers > report.requests);
    // Little's law: two clients that are always waiting, and whose first answers were waited for before the
    // window, too. What is waited for at its end is not counted.
    let clients = report.throughput * report.mean_us / 1e6;
    let longest = report.ops.iter().map(|op| op.latency.max_us).fold(0.0, f64::max) / 1e6;
    let most = 2.0 * (0.2 + longest) / 0.2 + 1e-6;
    assert!(clients > 0.0 && clients <= most, "{clients}, not more than {most}");
}

#[tokio::test]
async fn a_stop_ends_it_and_the_report_tells_what_was_done() {
    let lab = Lab::new([("x", quick())]);
    let far = Request { time: 3_600_000_000_000, ..request(0, Op::Read, 0, 512) };
    let requests = vec![request(0, Op::Read, 0, 512), far];
    let stop = async {
        while lab.log("x").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let report =
        lab.replay_until(requests, "x", stop, |plan| plan.pace = Pace::Times(1.0)).await.unwrap();
    assert_eq!(report.requests, 1);
    assert!(!report.complete);
}

#[tokio::test]
async fn reads_of_written_blocks_are_verified() {
    for (loses, wrong) in [(None, false), (Some(5 * 4096 + 700), true)] {
        let disk = loses.map_or_else(quick, |at| spoilt(at, Fault::Lose));
        let lab = Lab::new([("d1", disk)]);
        let mut requests = Vec::new();
        for round in 0..3u64 {
            for at in 0..20 {
                requests.push(request(0, Op::Write, at * 4096 + round * 512, 4096));
                requests.push(request(0, Op::Read, at * 4096, 4096));
            }
            requests.push(request(0, Op::Trim, round * 8192, 8192));
        }
        let report = lab
            .replay(requests, "d{client}", |plan| {
                (plan.allow_writes, plan.verify, plan.depth) = (true, true, 4);
            })
            .await
            .unwrap();
        let verified = report.verified.unwrap();
        assert!(verified.grains > 0);
        assert_eq!(verified.wrong > 0, wrong, "{verified:?}");
        if wrong {
            let first = verified.first_wrong.unwrap();
            assert!(first.starts_with("export \"d1\" at 2"), "{first}");
        }
    }
}

#[tokio::test]
async fn errors_are_counted_and_the_first_is_told() {
    let lab = Lab::new([("x", spoilt(3 * 4096, Fault::Fail(ErrorKind::NoSpace)))]);
    let requests: Vec<_> = (0..10).map(|i| request(0, Op::Write, i * 4096, 4096)).collect();
    let report = lab.replay(requests, "x", |plan| plan.allow_writes = true).await.unwrap();
    assert_eq!((report.requests, report.errors, report.ops[0].errors), (10, 1, 1));
    let first = report.first_error.unwrap();
    assert!(first.contains("write at 12288") && first.contains("28"), "{first}");
}

#[tokio::test]
async fn exports_that_do_not_fit_are_refused_before_anything_is_sent() {
    let fixed = quick().with_read_only(true);
    let lab = Lab::new([("x", quick()), ("fixed", fixed)]);
    let beyond = vec![request(0, Op::Read, SIZE - 512, 1024)];
    let error = lab.replay(beyond.clone(), "x", |_| ()).await.unwrap_err();
    assert!(error.message().contains("--wrap"), "{error}");
    let write = vec![request(0, Op::Write, 0, 512)];
    let error = lab.replay(write.clone(), "fixed", |plan| plan.allow_writes = true).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(lab.replay(write, "x", |_| ()).await.unwrap_err().kind(), ErrorKind::Denied);
    let long = vec![request(0, Op::Read, 0, 2 << 20)];
    let error = lab.replay(long, "x", |plan| plan.wrap = true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = lab.replay(beyond.clone(), "missing", |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(lab.log("x").is_empty() && lab.log("fixed").is_empty());

    let report = lab.replay(beyond, "x", |plan| plan.wrap = true).await.unwrap();
    assert_eq!(report.requests, 1);
    let (_, offset, length) = lab.log("x")[0];
    assert!(offset + length <= SIZE && length == 1024 && offset % 512 == 0);
}

#[tokio::test]
async fn a_server_that_goes_away_is_an_error_that_names_the_export() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let mut source = trace::Memory::new(Header::default(), vec![request(0, Op::Read, 0, 512)]);
    let script = Arc::new(Script::load(&mut source, ScriptSelection::default()).unwrap());
    let plan = ReplayPlan::new(Uri::new(Address::unix(path).unwrap(), "x"), &script);
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        drop(stream);
    };
    let hub = Hub::default();
    let replayed = replay::run(script, plan, &hub, std::future::pending());
    let ((), result) = futures::join!(server, replayed);
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("/x?socket"), "{error}");
}

#[tokio::test]
async fn a_server_that_falls_silent_is_an_error_and_a_slow_one_is_not() {
    let requests: Vec<_> = (0..6).map(|i| request(0, Op::Read, i * 4096, 4096)).collect();
    for (pause, silent) in [(Duration::from_millis(60), false), (Duration::from_millis(1500), true)]
    {
        let lab = Lab::new([("x", taking(pause))]);
        let patience = Duration::from_millis(if silent { 200 } else { 30_000 });
        let replayed = lab.replay(requests.clone(), "x", |plan| plan.patience = patience);
        let replayed = tokio::time::timeout(Duration::from_secs(60), replayed).await.unwrap();
        match replayed {
            Ok(report) => assert!(!silent && report.requests == 6),
            Err(error) => {
                assert!(silent);
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert!(error.message().contains("though 1 requests wait"), "{error}");
            }
        }
    }
}

//! Connections polled by hand.

use super::*;
use crate::codec::ReplyStyle;
use crate::server::counters::registry::{CounterRegistry, Share};
use crate::server::schedule::budget::Budget;
use crate::server::schedule::order::LightCounts;
use crate::server::schedule::pace::Rates;
use crate::server::sockets::stream::ConnectedSocket;
use block::testing::Blank;
use block::{Device, ErrorKind, Fault, Memory, Operation, ScriptedDevice};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Waker;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

fn terms(device: impl Device + 'static) -> EngineSetup {
    EngineSetup {
        device: Arc::new(device),
        export: "disk".to_owned(),
        style: ReplyStyle::Simple,
        allocation: false,
        max_request: 32 << 20,
        in_flight_bytes: 16 << 20,
        budget: Budget::new(1 << 30),
        part: Budget::new(1 << 30),
        meter: Arc::default(),
        observer: None,
        goes_on_elsewhere: false,
    }
}

/// The order of a server with one connection.
fn order() -> TurnOrder {
    TurnOrder::new(&LightCounts::default())
}

const STALL: Duration = Duration::from_secs(30);
const LEN: usize = 200;

fn read_request(cookie: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let request =
        RequestHeader { flags: 0, command: command::READ, cookie, offset: 0, len: LEN as u64 };
    request.put(ReplyStyle::Simple, &mut out);
    out
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_falls_quiet_gives_its_buffers_back() {
    let (mut client, mut stream) = tokio::io::duplex(1 << 20);
    let share = CounterRegistry::new(Rates::default()).join("disk", "client");
    let terms = terms(Memory::new(1 << 20));
    let mut connection =
        Connection::new(&mut stream, terms, STALL, &share, ConnectionRemainder::default(), order());
    let out: Vec<u8> = (0..3000).flat_map(read_request).collect();
    client.write_all(&out).await.unwrap();
    let mut replies = vec![0; 3000 * 216];
    for (time, grown) in [(1, true), (3, true), (7, false)] {
        let poll = std::future::poll_fn(|cx| connection.poll(cx));
        assert!(tokio::time::timeout(Duration::from_secs(time), poll).await.is_err());
        assert_eq!(connection.input.is_grown(), grown);
        assert_eq!(connection.engine.replies.is_grown(), grown);
    }
    client.read_exact(&mut replies).await.unwrap();
    assert_eq!(replies[2999 * 216 + 8..2999 * 216 + 16], 2999u64.to_be_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_finds_its_export_elsewhere_is_cut_off_and_told_no_error() {
    for goes_on_elsewhere in [false, true] {
        let (mut client, mut stream) = tokio::io::duplex(1 << 20);
        let share = CounterRegistry::new(Rates::default()).join("disk", "client");
        let device = ScriptedDevice::new(Memory::new(1 << 20), |_| Fault::Fail(ErrorKind::Fenced));
        let terms = EngineSetup { goes_on_elsewhere, ..terms(device) };
        let rest = ConnectionRemainder::default();
        let mut connection = Connection::new(&mut stream, terms, STALL, &share, rest, order());
        client.write_all(&read_request(7)).await.unwrap();
        let polling = std::future::poll_fn(|cx| connection.poll(cx));
        let ended = tokio::time::timeout(Duration::from_secs(1), polling).await.ok();
        drop(connection);
        drop(stream);
        let mut told = Vec::new();
        client.read_to_end(&mut told).await.unwrap();
        assert_eq!(told.is_empty(), goes_on_elsewhere);
        assert_eq!(matches!(ended, Some(ConnectionEnd::Broken(_))), goes_on_elsewhere);
    }
}

/// The client's side of a connection.
struct Client {
    socket: UnixStream,
    /// While it is set, its next request is there before it has the answer.
    quick: Arc<AtomicBool>,
}

/// Both sides, and what the server's needs.
fn pair() -> (Client, ConnectedSocket, impl Device) {
    let (socket, theirs) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let quick = Arc::new(AtomicBool::new(false));
    let (asking, is_quick) = (socket.try_clone().unwrap(), Arc::clone(&quick));
    let device = ScriptedDevice::new(Blank(1 << 20), move |_| {
        if is_quick.load(Relaxed) {
            (&asking).write_all(&read_request(7)).unwrap();
        }
        Fault::None
    });
    let device = device.with_fast_reads();
    (Client { socket, quick }, ConnectedSocket::new(theirs.into()), device)
}

impl Client {
    fn ask(&self) {
        (&self.socket).write_all(&read_request(7)).unwrap();
    }

    /// How many answers are there.
    fn answers(&self) -> usize {
        let mut buf = vec![0; (LEN + 16) * (TURNS + 1)];
        match (&self.socket).read(&mut buf) {
            Ok(got) => got / (LEN + 16),
            Err(_) => 0,
        }
    }
}

type Served<'a> = Connection<'a, ConnectedSocket>;

fn served<'a>(
    stream: &'a mut ConnectedSocket,
    device: impl Device + 'static,
    share: &'a Share,
    processors: &'a Processors,
) -> Served<'a> {
    let watch = stream.watch();
    let mut connection = Connection::new(
        stream,
        terms(device),
        STALL,
        share,
        ConnectionRemainder::default(),
        order(),
    );
    connection.notice(Some(watch));
    connection.set_busy_poll(BusyPoll::Always(Duration::from_millis(10)), processors);
    connection
}

/// Polls it once; gives the end, if it has come.
async fn poll_once(connection: &mut Served<'_>) -> Option<ConnectionEnd> {
    std::future::poll_fn(|cx| match connection.poll(cx) {
        Poll::Ready(end) => Poll::Ready(Some(end)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Polls it until there are answers; gives how many the last poll brought.
async fn answered(connection: &mut Served<'_>, client: &Client) -> usize {
    loop {
        assert!(poll_once(connection).await.is_none());
        match client.answers() {
            0 => tokio::task::yield_now().await,
            answers => return answers,
        }
    }
}

/// One request after the other, until the connection is known to be alone.
async fn warm_up(connection: &mut Served<'_>, client: &Client) {
    for _ in 0..20 {
        client.ask();
        assert_eq!(answered(connection, client).await, 1);
    }
}

fn found(registry: &CounterRegistry) -> u64 {
    registry.snapshot().total.busy_polled
}

// The clock stands, so that every wait is short.
#[tokio::test(start_paused = true)]
async fn the_next_request_is_found_by_polling_and_no_poll_takes_more_than_its_turns() {
    let (registry, processors) = (CounterRegistry::new(Rates::default()), Processors::new(2));
    let share = registry.join("disk", "client");
    let (client, mut stream, device) = pair();
    let mut connection = served(&mut stream, device, &share, &processors);
    warm_up(&mut connection, &client).await;
    assert_eq!(found(&registry), 0, "polling was in vain");
    client.quick.store(true, Relaxed);
    client.ask();
    let mut all = 0;
    for _ in 0..10 {
        let answers = answered(&mut connection, &client).await;
        assert!((2..=TURNS).contains(&answers), "{answers}");
        all += answers as u64;
    }
    assert!(found(&registry) >= all - 10, "{} of {all}", found(&registry));

    connection.stop();
    assert!(matches!(poll_once(&mut connection).await, Some(ConnectionEnd::Stopped)), "at once");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_polled_for_beside_a_busy_neighbour_or_enough_that_poll() {
    let (registry, processors) = (CounterRegistry::new(Rates::default()), Processors::new(2));
    let share = registry.join("disk", "client");
    let (client, mut stream, device) = pair();
    let mut connection = served(&mut stream, device, &share, &processors);
    let (other_client, mut other_stream, other_device) = pair();
    let mut other = served(&mut other_stream, other_device, &share, &processors);
    warm_up(&mut connection, &client).await;
    client.quick.store(true, Relaxed);

    let taken = processors.take(BusyPoll::Always(Duration::MAX));
    client.ask();
    for _ in 0..20 {
        assert_eq!(answered(&mut connection, &client).await, 1);
    }
    assert_eq!(found(&registry), 0, "another one polls");
    drop(taken);
    for _ in 0..20 {
        other_client.ask();
        assert_eq!(answered(&mut other, &other_client).await, 1);
        assert_eq!(answered(&mut connection, &client).await, 1);
    }
    assert_eq!(found(&registry), 0, "another one is at work");
    for _ in 0..20 {
        answered(&mut connection, &client).await;
    }
    assert!(found(&registry) > 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_polled_for_until_there_are_processors_to_spare() {
    let (registry, processors) = (CounterRegistry::new(Rates::default()), Processors::new(2));
    let share = registry.join("disk", "client");
    let (client, mut stream, device) = pair();
    let mut connection = served(&mut stream, device, &share, &processors);
    connection.set_busy_poll(BusyPoll::WhileSpare(Duration::from_millis(10)), &processors);
    warm_up(&mut connection, &client).await;
    client.quick.store(true, Relaxed);
    client.ask();
    for _ in 0..20 {
        assert_eq!(answered(&mut connection, &client).await, 1);
    }
    assert_eq!(found(&registry), 0);
    processors.set_spare(1);
    for _ in 0..20 {
        answered(&mut connection, &client).await;
    }
    let all = found(&registry);
    assert!(all > 0);
    processors.set_spare(0);
    for _ in 0..20 {
        answered(&mut connection, &client).await;
    }
    assert!(found(&registry) <= all + 1, "those of the turn that was under way");
}

#[tokio::test]
async fn a_client_that_was_polled_for_is_heard_when_it_comes_back_late() {
    let (registry, processors) = (CounterRegistry::new(Rates::default()), Processors::new(2));
    let share = registry.join("disk", "client");
    let (client, mut stream, device) = pair();
    let mut connection = served(&mut stream, device, &share, &processors);
    for _ in 0..3 {
        warm_up(&mut connection, &client).await;
        client.quick.store(true, Relaxed);
        client.ask();
        for _ in 0..10 {
            answered(&mut connection, &client).await;
        }
        client.quick.store(false, Relaxed);
        while poll_once(&mut connection).await.is_none() && client.answers() > 0 {}
        // Now it sleeps, and has to be woken.
        client.ask();
        let woken = std::future::poll_fn(|cx| {
            assert!(connection.poll(cx).is_pending());
            if client.answers() > 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(Duration::from_secs(20), woken).await.expect("it was not heard");
    }
}

#[tokio::test]
async fn a_client_on_another_thread_is_found_and_answered() {
    const REQUESTS: u64 = 5000;
    let (registry, processors) = (CounterRegistry::new(Rates::default()), Processors::new(2));
    let share = registry.join("disk", "client");
    let (client, mut stream, device) = pair();
    let mut connection = served(&mut stream, device, &share, &processors);
    // Longer than anybody waits: it finds the client at last, on the slowest machine.
    connection.set_busy_poll(BusyPoll::Always(Duration::from_secs(2)), &processors);
    client.socket.set_nonblocking(false).unwrap();
    let asking = block::offload(move || {
        let mut reply = [0; LEN + 16];
        for cookie in 0..REQUESTS {
            (&client.socket).write_all(&read_request(cookie)).unwrap();
            (&client.socket).read_exact(&mut reply).unwrap();
            assert_eq!(reply[8..16], cookie.to_be_bytes());
        }
        client.socket.shutdown(Shutdown::Both).unwrap(); // the device has it, too
        Ok(())
    });
    let serving = std::future::poll_fn(|cx| connection.poll(cx));
    let (end, asked) = tokio::join!(serving, asking);
    asked.unwrap();
    assert!(matches!(end, ConnectionEnd::Vanished));
    assert!(found(&registry) > 0);
    assert_eq!(registry.snapshot().total.reads, REQUESTS);
}

/// Sends so many requests, which wakes the connection at once.
async fn ask(client: &mut DuplexStream, requests: u64) {
    let out: Vec<u8> = (0..requests).flat_map(read_request).collect();
    client.write_all(&out).await.unwrap();
}

/// Polls it once; gives how many answers that brought.
async fn answers_of_a_poll(
    connection: &mut Connection<'_, DuplexStream>,
    client: &mut DuplexStream,
) -> usize {
    tokio::task::yield_now().await; // the runtime allows a task only so much at a time
    // Not the runtime's: that of a test's own task is not known again by its clones.
    let waker = Waker::noop().clone();
    assert!(connection.poll(&mut Context::from_waker(&waker)).is_pending());
    let mut buf = vec![0; 64 << 10];
    let read = std::pin::pin!(client.read(&mut buf));
    match futures::poll!(read) {
        Poll::Ready(got) => got.unwrap() / (LEN + 16),
        Poll::Pending => 0,
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_much_to_do_answers_nothing_while_one_with_little_waits() {
    const MANY: usize = 32;
    let share = CounterRegistry::new(Rates::default()).join("disk", "client");
    let light = LightCounts::default();
    let start = |stream| {
        let terms = terms(Memory::new(1 << 20));
        let (rest, order) = (ConnectionRemainder::default(), TurnOrder::new(&light));
        Connection::new(stream, terms, STALL, &share, rest, order)
    };
    let (mut busy_client, mut busy_stream) = tokio::io::duplex(1 << 20);
    let (mut calm_client, mut calm_stream) = tokio::io::duplex(1 << 20);
    let (mut busy, mut calm) = (start(&mut busy_stream), start(&mut calm_stream));
    for _ in 0..8 {
        ask(&mut busy_client, MANY as u64).await;
        assert_eq!(answers_of_a_poll(&mut busy, &mut busy_client).await, MANY, "nobody waits");
        ask(&mut calm_client, 1).await;
        assert_eq!(answers_of_a_poll(&mut calm, &mut calm_client).await, 1);
    }
    for _ in 0..3 {
        ask(&mut calm_client, 1).await;
        ask(&mut busy_client, MANY as u64).await;
        assert_eq!(answers_of_a_poll(&mut busy, &mut busy_client).await, 0);
        assert_eq!(answers_of_a_poll(&mut calm, &mut calm_client).await, 1);
        assert_eq!(answers_of_a_poll(&mut busy, &mut busy_client).await, MANY);
    }
    // The one that waits ends.
    ask(&mut calm_client, 1).await;
    ask(&mut busy_client, MANY as u64).await;
    assert_eq!(answers_of_a_poll(&mut busy, &mut busy_client).await, 0);
    drop(calm);
    assert_eq!(answers_of_a_poll(&mut busy, &mut busy_client).await, MANY);
}

/// Polls the connection until the client has `len` bytes; gives how often the device was asked in the
/// poll that asked most.
async fn most_asked_in_a_poll(
    connection: &mut Connection<'_, DuplexStream>,
    client: &mut DuplexStream,
    device: &ScriptedDevice<Blank, fn(Operation) -> Fault>,
    len: usize,
) -> usize {
    let asked = || device.calls.log().asked.len();
    let (mut got, mut most) = (0, 0);
    while got < len {
        let before = asked();
        std::future::poll_fn(|cx| Poll::Ready(connection.poll(cx).is_pending())).await;
        most = most.max(asked() - before);
        tokio::task::yield_now().await; // its wakes are kept until the runtime has been asked
        let mut buf = vec![0; 64 << 10];
        let read = std::pin::pin!(client.read(&mut buf));
        if let Poll::Ready(read) = futures::poll!(read) {
            got += read.unwrap();
        }
    }
    most
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_requests_that_go_through_the_map_is_answered_in_many_small_turns() {
    const BURST: u64 = 200;
    let share = CounterRegistry::new(Rates::default()).join("disk", "client");
    // One piece each, and several.
    for len in [1 << 20, 3 * (256 << 20)] {
        for (command, reply) in [(command::CACHE, 20), (command::BLOCK_STATUS, 32)] {
            let device = Arc::new(ScriptedDevice::noting(Blank(1 << 30)));
            let style = ReplyStyle::Structured;
            let terms = EngineSetup { style, allocation: true, ..terms(Arc::clone(&device)) };
            let (mut client, mut stream) = tokio::io::duplex(1 << 20);
            let mut connection = Connection::new(
                &mut stream,
                terms,
                STALL,
                &share,
                ConnectionRemainder::default(),
                order(),
            );
            let mut out = Vec::new();
            for cookie in 0..BURST {
                RequestHeader { flags: 0, command, cookie, offset: 0, len }.put(style, &mut out);
            }
            client.write_all(&out).await.unwrap();
            let replies = BURST as usize * reply;
            let most = most_asked_in_a_poll(&mut connection, &mut client, &device, replies).await;
            assert!((1..=8).contains(&most), "{most} times in one poll");
        }
    }
}

//! What one client may take: connections, requests and bytes in a second; and how long requests
//! took.

use super::rig::{Prober, Rig, request};
use crate::codec::ReplyStyle;
use crate::codec::constants::command;
use crate::server::admission::seat::ConnectionSeat;
use crate::server::{Peer, Rates, ServerLimits, TimedOperation};
use block::{Fault, Memory, Operation, ScriptedDevice};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

const SIZE: u64 = 1 << 20;

fn rig(requests: u64, bytes: u64) -> Rig {
    let client_rates = Rates { requests, bytes };
    Rig::with(Memory::new(SIZE), ServerLimits { client_rates, ..ServerLimits::default() })
}

/// Sends so many reads at once, and takes the answers.
async fn reads(prober: &mut Prober, count: u64, len: u64) {
    for cookie in 0..count {
        prober.post(&request(command::READ, 0, cookie * len % SIZE, len), &[]).await;
    }
    for _ in 0..count {
        assert_eq!(prober.reply(len as usize).await.error, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn all_connections_of_a_client_share_its_rates() {
    for (requests, bytes) in [(100, 0), (0, 100 * 4096)] {
        let mut rig = rig(requests, bytes);
        let mut one = rig.attach(ReplyStyle::Simple).await;
        let mut two = rig.attach(ReplyStyle::Structured).await;
        let began = Instant::now();
        tokio::join!(reads(&mut one, 300, 4096), reads(&mut two, 300, 4096));
        let took = began.elapsed().as_secs_f64();
        assert!((5.8..6.5).contains(&took), "600 requests at 100 a second took {took} s");
        let counters = rig.server.counters();
        assert_eq!(counters.total.reads, 600);
        assert!(counters.total.paced > 2);
        assert_eq!(counters.clients["stdio"].connections, 2);
        assert_eq!(counters.clients["stdio"].traffic.reads, 600);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_longer_than_a_seconds_worth_is_let_in_and_delays_the_next() {
    let mut rig = rig(0, 64 << 10);
    let mut prober = rig.attach(ReplyStyle::Extended).await;
    let began = Instant::now();
    assert_eq!(prober.write(0, &vec![7; 256 << 10]).await.error, 0);
    assert!(began.elapsed() < Duration::from_millis(100));
    prober.is_in_step().await;
    assert!(began.elapsed() >= Duration::from_millis(3_900), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn rates_change_while_clients_are_there() {
    let mut rig = rig(1, 0);
    let mut prober = rig.attach(ReplyStyle::Simple).await;
    reads(&mut prober, 2, 512).await;
    let began = Instant::now();
    rig.server.set_limits(ServerLimits::default());
    reads(&mut prober, 1000, 512).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let client_rates = Rates { requests: 10, bytes: 0 };
    rig.server.set_limits(ServerLimits { client_rates, ..ServerLimits::default() });
    let began = Instant::now();
    reads(&mut prober, 50, 512).await;
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_its_turn_learns_of_higher_rates() {
    let mut rig = rig(0, 1);
    let mut prober = rig.attach(ReplyStyle::Simple).await;
    reads(&mut prober, 1, 4096).await;
    prober.post(&request(command::READ, 0, 0, 4096), &[]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.server.counters().total.paced, 1, "it is held back once, for an hour");
    let began = Instant::now();
    let client_rates = Rates { requests: 0, bytes: 1 << 20 };
    rig.server.set_limits(ServerLimits { client_rates, ..ServerLimits::default() });
    assert_eq!(prober.reply(4096).await.error, 0);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_requests_that_are_held_back() {
    let mut rig = rig(1, 0);
    let (mut prober, stop) = rig.connect_with(1 << 20);
    prober.attach(ReplyStyle::Simple).await;
    reads(&mut prober, 1, 512).await;
    let began = Instant::now();
    for _ in 0..100 {
        prober.post(&request(command::READ, 0, 0, 512), &[]).await;
    }
    tokio::task::yield_now().await;
    stop.send(()).unwrap();
    let mut rest = Vec::new();
    prober.stream.read_to_end(&mut rest).await.unwrap();
    // Those that their turn had come for, and no error: who is held back asks the next server.
    let is_answer = |reply: &[u8]| reply.len() == 16 + 512 && reply[4..8] == [0; 4];
    assert!(rest.chunks(16 + 512).all(is_answer), "{} bytes", rest.len());
    rig.ended().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_held_back_when_the_server_stops_gets_no_error() {
    let device = Arc::new(ScriptedDevice::new(Memory::new(SIZE), |op| match op {
        Operation::Write(_) => Fault::Hold,
        _ => Fault::None,
    }));
    let client_rates = Rates { requests: 1, bytes: 0 };
    let limits = ServerLimits { client_rates, ..ServerLimits::default() };
    let mut rig = Rig::with(Arc::clone(&device), limits);
    let (mut prober, stop) = rig.connect_with(1 << 20);
    prober.attach(ReplyStyle::Simple).await;
    prober.post(&request(command::WRITE, 0, 4096, 512), &[1; 512]).await;
    device.calls.until(|log| log.held == 1).await;
    prober.post(&request(command::READ, 0, 0, 512), &[]).await;
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    stop.send(()).unwrap();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    device.calls.release(1);
    let reply = prober.reply(0).await;
    assert_eq!((reply.cookie, reply.error), (4096 ^ 0xabcd, 0));
    let mut rest = Vec::new();
    prober.stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    rig.ended().await.unwrap();
    assert!(rig.server.counters().total.paced > 0);
}

#[tokio::test]
async fn connections_of_one_client_beyond_its_limit_are_closed_and_counted() {
    let limits = ServerLimits { client_connections: 2, ..ServerLimits::default() };
    let mut rig = Rig::with(Memory::new(SIZE), limits);
    let mut one = rig.attach(ReplyStyle::Simple).await;
    let two = rig.attach(ReplyStyle::Simple).await;
    assert!(rig.connect().is_closed().await);
    assert!(rig.ended().await.unwrap_err().message().contains("of one client"));
    assert_eq!(rig.server.counters().refused, 1);
    drop(two);
    rig.ended().await.unwrap();
    rig.attach(ReplyStyle::Simple).await.is_in_step().await;
    one.is_in_step().await;
}

#[tokio::test]
async fn every_request_that_succeeded_is_timed_once() {
    let mut rig = Rig::new(Memory::new(SIZE));
    let mut prober = rig.attach(ReplyStyle::Extended).await;
    reads(&mut prober, 50, 4096).await;
    for _ in 0..20 {
        prober.write(0, &[1; 4096]).await;
    }
    prober.ask(&request(command::FLUSH, 0, 0, 0), &[]).await;
    prober.ask(&request(command::TRIM, 0, 0, 4096), &[]).await;
    prober.ask(&request(command::READ, 0, SIZE, 1), &[]).await; // fails
    prober.ask(&request(command::WRITE_ZEROES, 0, 0, 4096), &[]).await;
    let counts = |rig: &Rig| {
        let counters = rig.server.counters();
        let times = &counters.exports["disk"].latencies;
        TimedOperation::ALL.map(|operation| times.of(operation).count())
    };
    prober.is_in_step().await;
    assert_eq!(counts(&rig), [51, 20, 1, 1, 1]);
    prober.disconnect().await;
    rig.ended().await.unwrap();
    assert_eq!(counts(&rig), [51, 20, 1, 1, 1], "what is gone stays counted");
    let times = rig.server.counters().exports["disk"].latencies.clone();
    let sum: u64 = times.of(TimedOperation::Read).buckets().map(|(most, count)| most * count).sum();
    assert!(sum >= times.of(TimedOperation::Read).nanos());
}

#[tokio::test]
async fn a_connection_that_is_refused_behind_its_certificate_does_not_count_as_accepted() {
    let limits = ServerLimits { client_connections: 1, ..ServerLimits::default() };
    let rig = Rig::with(Memory::new(SIZE), limits);
    let counted = || (rig.server.counters().accepted, rig.server.counters().refused);
    let peer = Peer::tcp(([10, 0, 0, 1], 1).into());
    let place = || ConnectionSeat::take(&rig.server.state, &peer).unwrap();
    let first = place();
    first.sit_down(&peer.clone().certified("a".to_owned())).unwrap();
    let second = place();
    assert!(second.sit_down(&peer.clone().certified("a".to_owned())).is_err());
    drop(second);
    assert_eq!(counted(), (0, 1), "nobody knows yet of the first");
    drop(first);
    assert_eq!(counted(), (1, 1));
}

//! A client that attaches anew, and what its older connection left behind.

use super::rig::{Daemon, Prober, request};
use crate::Address;
use crate::codec::ReplyStyle;
use crate::codec::constants::command;
use crate::codec::constants::option_reply::ERR_INVALID;
use crate::codec::option::{InfoRequest, OptionRequest, Reinstatement};
use crate::server::{Rates, ServerLimits};
use block::{Fault, Memory, Operation, ScriptedDevice};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

const SIZE: u64 = 1 << 20;
const BLOCK: usize = 512;
const WRITES: u64 = 40;

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// A connection of this process, behind its negotiation.
async fn attach(daemon: &Daemon) -> Prober<Box<dyn Socket>> {
    let stream: Box<dyn Socket> = match &daemon.address {
        Address::Tcp(_, port) => {
            let stream = TcpStream::connect(("127.0.0.1", *port)).await.unwrap();
            stream.set_nodelay(true).unwrap();
            Box::new(stream)
        }
        Address::Unix(path) => Box::new(UnixStream::connect(path).await.unwrap()),
    };
    let mut prober = Prober { stream, style: ReplyStyle::Simple };
    prober.attach(ReplyStyle::Simple).await;
    prober
}

/// The same for a connection that takes the place of others.
async fn attach_in_place(daemon: &Daemon, number: u64) -> Prober<Box<dyn Socket>> {
    let mut prober = greet(daemon).await;
    say(&mut prober, &OptionRequest::Reinstate(Reinstatement { id: [7; 16], number })).await;
    say(&mut prober, &go("disk")).await;
    prober
}

/// A connection of this process by TCP that has chosen nothing yet.
async fn greet(daemon: &Daemon) -> Prober<Box<dyn Socket>> {
    let Address::Tcp(_, port) = &daemon.address else { panic!("on TCP") };
    let stream = TcpStream::connect(("127.0.0.1", *port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut prober =
        Prober { stream: Box::new(stream) as Box<dyn Socket>, style: ReplyStyle::Simple };
    prober.greet().await;
    prober
}

fn go(name: &str) -> OptionRequest<'_> {
    OptionRequest::Go(InfoRequest { name, wanted: vec![3] })
}

/// Sends an option that is acknowledged.
async fn say(prober: &mut Prober<Box<dyn Socket>>, option: &OptionRequest<'_>) {
    assert_eq!(prober.option(option).await.last(), Some(&(1, Vec::new())), "{option:?}");
}

fn slow() -> ServerLimits {
    ServerLimits { client_rates: Rates { requests: 40, bytes: 0 }, ..ServerLimits::default() }
}

/// Writes `byte` to every block.
async fn post_writes(prober: &mut Prober<Box<dyn Socket>>, byte: u8) {
    let mut all = Vec::new();
    for number in 0..WRITES {
        let write = request(command::WRITE, 0, number * BLOCK as u64, BLOCK as u64);
        write.put(ReplyStyle::Simple, &mut all);
        all.resize(all.len() + BLOCK, byte);
    }
    prober.send(&all).await;
}

async fn write_and_flush(prober: &mut Prober<Box<dyn Socket>>, byte: u8) {
    post_writes(prober, byte).await;
    for _ in 0..WRITES {
        assert_eq!(prober.reply(0).await.error, 0);
    }
    assert_eq!(prober.ask(&request(command::FLUSH, 0, 0, 0), &[]).await.error, 0);
}

fn assert_all(device: &Memory, byte: u8) {
    let bytes = device.to_vec();
    let old = bytes[..WRITES as usize * BLOCK].iter().filter(|b| **b != byte).count();
    assert_eq!(old, 0, "bytes that older requests have replaced");
}

#[tokio::test]
async fn what_a_half_closed_connection_left_does_not_land_behind_newer_writes() {
    for tcp in [false, true] {
        let device = Arc::new(Memory::new(SIZE));
        let daemon = Daemon::of(tcp, slow(), Arc::clone(&device)).await;
        let mut old = attach(&daemon).await;
        for _ in 0..3 {
            post_writes(&mut old, 1).await;
        }
        old.stream.shutdown().await.unwrap();
        let mut new = attach(&daemon).await;
        write_and_flush(&mut new, 2).await;
        assert!(old.is_closed().await);
        assert_all(&device, 2);
    }
}

#[tokio::test]
async fn what_a_silent_connection_left_does_not_land_behind_newer_writes() {
    for tcp in [false, true] {
        let device = Arc::new(Memory::new(SIZE));
        let daemon = Daemon::of(tcp, slow(), Arc::clone(&device)).await;
        let mut old = attach(&daemon).await;
        for _ in 0..5 {
            post_writes(&mut old, 1).await;
        }
        let mut new = attach(&daemon).await;
        write_and_flush(&mut new, 2).await;
        assert!(old.is_closed().await, "what it left is dropped");
        assert_all(&device, 2);
    }
}

#[tokio::test]
async fn the_rest_of_a_request_that_comes_after_newer_writes_is_not_taken() {
    const LEN: usize = 300_000;
    for (tcp, sent) in [(false, 10), (false, 100_000), (true, 1000), (true, LEN - 1)] {
        let device = Arc::new(Memory::new(SIZE));
        let daemon = Daemon::of(tcp, ServerLimits::default(), Arc::clone(&device)).await;
        let mut old = attach(&daemon).await;
        let mut bytes = Vec::new();
        request(command::WRITE, 0, 0, LEN as u64).put(ReplyStyle::Simple, &mut bytes);
        bytes.resize(bytes.len() + LEN, 1);
        old.send(&bytes[..sent]).await;
        let mut new = attach(&daemon).await;
        write_and_flush(&mut new, 2).await;
        let _ = old.stream.write_all(&bytes[sent..]).await;
        let mut answers = Vec::new();
        let end =
            tokio::time::timeout(Duration::from_secs(20), old.stream.read_to_end(&mut answers));
        assert!(end.await.is_ok() && answers.is_empty(), "it was answered");
        assert_all(&device, 2);
    }
}

#[tokio::test]
async fn what_the_network_brings_late_of_a_replaced_connection_is_not_taken() {
    let device = Arc::new(Memory::new(SIZE));
    let daemon = Daemon::of(true, ServerLimits::default(), Arc::clone(&device)).await;
    // Everything that it sent was answered: to the server it looks like one of two in use.
    let mut old = attach_in_place(&daemon, 1).await;
    write_and_flush(&mut old, 1).await;
    let mut beside = attach(&daemon).await;
    let mut new = attach_in_place(&daemon, 2).await;
    write_and_flush(&mut new, 2).await;
    post_writes(&mut old, 1).await;
    assert!(old.is_closed().await, "it goes on");
    assert_all(&device, 2);
    // One that is in use beside them stays.
    write_and_flush(&mut beside, 3).await;
    assert_all(&device, 3);
}

#[tokio::test]
async fn a_system_that_begins_anew_gets_the_export_when_its_old_connections_have_ended() {
    let gated = Arc::new(ScriptedDevice::new(Memory::new(SIZE), |operation| match operation {
        Operation::Write(span) if span.len() == SIZE / 2 => Fault::Hold,
        _ => Fault::None,
    }));
    let daemon = Daemon::of(true, ServerLimits::default(), Arc::clone(&gated)).await;
    // One that keeps a device, and one that does not say what it is.
    let (mut kept, mut plain) = (attach_in_place(&daemon, 1).await, attach(&daemon).await);
    write_and_flush(&mut plain, 1).await;
    kept.post(&request(command::WRITE, 0, 0, SIZE / 2), &[1; SIZE as usize / 2]).await;
    gated.calls.until(|log| log.held == 1).await;
    let mut new = greet(&daemon).await;
    say(&mut new, &OptionRequest::Reinstate(Reinstatement { id: [8; 16], number: 1 })).await;
    say(&mut new, &OptionRequest::InitialContact).await;
    // By another name of the same export, and before the device has done what it was asked.
    let wish = go("");
    let mut opened = Box::pin(say(&mut new, &wish));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut opened);
    assert!(early.await.is_err(), "the old write would land behind new ones");
    // The one that has nothing under way is over already: the network may bring what it likes of it.
    post_writes(&mut plain, 1).await;
    assert!(plain.is_closed().await);
    gated.calls.release(1);
    opened.await;
    write_and_flush(&mut new, 2).await;
    assert!(kept.is_closed().await);
    assert_all(gated.inner(), 2);
    // Those of the new system are not its earlier ones.
    let mut beside = greet(&daemon).await;
    say(&mut beside, &OptionRequest::Reinstate(Reinstatement { id: [8; 16], number: 1 })).await;
    say(&mut beside, &OptionRequest::InitialContact).await;
    say(&mut beside, &go("disk")).await;
    write_and_flush(&mut new, 3).await;
}

#[tokio::test]
async fn answers_that_an_old_system_does_not_take_hold_up_no_new_one() {
    let hours = Duration::from_secs(36_000);
    let limits = ServerLimits { stall_deadline: hours, ..ServerLimits::default() };
    let daemon = Daemon::of(true, limits, Memory::new(SIZE)).await;
    let mut old = attach(&daemon).await;
    // More than the sockets hold.
    for _ in 0..64 {
        old.post(&request(command::READ, 0, 0, SIZE), &[]).await;
    }
    let mut new = greet(&daemon).await;
    say(&mut new, &OptionRequest::Reinstate(Reinstatement { id: [8; 16], number: 1 })).await;
    say(&mut new, &OptionRequest::InitialContact).await;
    say(&mut new, &go("disk")).await;
    write_and_flush(&mut new, 2).await;
    let mut taken = Vec::new();
    let _ = old.stream.read_to_end(&mut taken).await;
    assert!((taken.len() as u64) < 64 * SIZE, "all was answered");
}

#[tokio::test]
async fn whose_connections_are_over_has_to_say_which_are_not() {
    let daemon = Daemon::of(true, ServerLimits::default(), Memory::new(SIZE)).await;
    let mut old = attach(&daemon).await;
    let mut new = greet(&daemon).await;
    let answers = new.option(&OptionRequest::InitialContact).await;
    assert_eq!(answers.last().unwrap().0, ERR_INVALID);
    say(&mut new, &go("disk")).await;
    write_and_flush(&mut old, 1).await;
}

#[tokio::test]
async fn a_new_connection_waits_for_what_the_device_still_does_for_a_lost_one() {
    for tcp in [false, true] {
        let gated = Arc::new(ScriptedDevice::new(Memory::new(SIZE), |operation| match operation {
            Operation::Write(span) if span.len() == SIZE / 2 => Fault::Hold,
            _ => Fault::None,
        }));
        let daemon = Daemon::of(tcp, ServerLimits::default(), Arc::clone(&gated)).await;
        let mut old = attach(&daemon).await;
        old.post(&request(command::WRITE, 0, 0, SIZE / 2), &[1; SIZE as usize / 2]).await;
        gated.calls.until(|log| log.held == 1).await;
        drop(old);
        let mut new = attach(&daemon).await;
        let writes = write_and_flush(&mut new, 2);
        let early = tokio::time::timeout(Duration::from_millis(300), writes);
        assert!(early.await.is_err(), "the old write would land behind them");
        gated.calls.release(1);
        for _ in 0..WRITES {
            assert_eq!(new.reply(0).await.error, 0);
        }
        assert_all(gated.inner(), 2);
    }
}

type Gated = ScriptedDevice<Memory, fn(Operation) -> Fault>;

/// A device whose reads of half of it wait until they are released.
fn holding_long_reads() -> Arc<Gated> {
    let plan: fn(Operation) -> Fault = |operation| match operation {
        Operation::Read(span) if span.len() == SIZE / 2 => Fault::Hold,
        _ => Fault::None,
    };
    Arc::new(ScriptedDevice::new(Memory::new(SIZE), plan))
}

/// Begins a read that is held.
async fn begin_held_read(old: &mut Prober<Box<dyn Socket>>, gated: &Gated) {
    old.post(&request(command::READ, 0, 0, SIZE / 2), &[]).await;
    gated.calls.until(|log| log.held == 1).await;
}

#[tokio::test]
async fn a_new_connection_does_not_wait_for_a_read_of_the_one_whose_place_it_takes() {
    for closes in [true, false] {
        let gated = holding_long_reads();
        let daemon = Daemon::of(true, ServerLimits::default(), Arc::clone(&gated)).await;
        let mut old = attach_in_place(&daemon, 1).await;
        begin_held_read(&mut old, &gated).await;
        if closes {
            old.stream.shutdown().await.unwrap();
        }
        let mut new = attach_in_place(&daemon, 2).await;
        write_and_flush(&mut new, 2).await;
        assert!(old.is_closed().await, "its read keeps it");
        gated.calls.until(|log| log.held == 0).await;
        assert_all(gated.inner(), 2);
    }
}

#[tokio::test]
async fn a_system_that_begins_anew_does_not_wait_for_a_read_of_the_one_before() {
    let gated = holding_long_reads();
    let daemon = Daemon::of(true, ServerLimits::default(), Arc::clone(&gated)).await;
    let mut old = attach(&daemon).await;
    begin_held_read(&mut old, &gated).await;
    let mut new = greet(&daemon).await;
    say(&mut new, &OptionRequest::Reinstate(Reinstatement { id: [8; 16], number: 1 })).await;
    say(&mut new, &OptionRequest::InitialContact).await;
    say(&mut new, &go("disk")).await;
    write_and_flush(&mut new, 2).await;
    assert!(old.is_closed().await);
}

#[tokio::test]
async fn a_new_connection_does_not_wait_for_a_read_of_one_that_was_closed() {
    for tcp in [false, true] {
        let gated = holding_long_reads();
        let daemon = Daemon::of(tcp, ServerLimits::default(), Arc::clone(&gated)).await;
        let mut old = attach(&daemon).await;
        begin_held_read(&mut old, &gated).await;
        // Of its sending side alone: it still takes the answer.
        old.stream.shutdown().await.unwrap();
        let mut new = attach(&daemon).await;
        write_and_flush(&mut new, 2).await;
        gated.calls.release(1);
        let answer = old.reply(SIZE as usize / 2).await;
        assert_eq!((answer.error, answer.data.len() as u64), (0, SIZE / 2));
        assert!(old.is_closed().await);
    }
}

#[tokio::test]
async fn a_read_ends_when_its_client_has_gone() {
    let gated = holding_long_reads();
    let daemon = Daemon::of(false, ServerLimits::default(), Arc::clone(&gated)).await;
    let mut old = attach(&daemon).await;
    begin_held_read(&mut old, &gated).await;
    drop(old);
    gated.calls.until(|log| log.held == 0).await;
    write_and_flush(&mut attach(&daemon).await, 2).await;
}

#[tokio::test]
async fn connections_that_are_used_side_by_side_all_go_on() {
    for tcp in [false, true] {
        let daemon = Daemon::of(tcp, slow(), Memory::new(SIZE)).await;
        let mut first = attach(&daemon).await;
        let write = |number: u64| request(command::WRITE, 0, number * 512, BLOCK as u64);
        for number in 0..8 {
            first.post(&write(number), &[1; BLOCK]).await;
        }
        let mut second = None;
        // Held back by its limits for longer than a silent one would live, with eight under way.
        for number in 8..140 {
            assert_eq!(first.reply(0).await.error, 0);
            first.post(&write(number), &[1; BLOCK]).await;
            if number == 20 {
                second = Some(attach(&daemon).await);
            }
        }
        let second = second.as_mut().unwrap();
        assert_eq!(second.ask(&write(1), &[2; BLOCK]).await.error, 0);
        for _ in 0..8 {
            assert_eq!(first.reply(0).await.error, 0);
        }
        assert_eq!(first.ask(&write(1), &[3; BLOCK]).await.error, 0);
    }
}

//! Initiators that break the protocol, or take what is others'.

use super::rig::{Initiator, READY, Rig, SIZE, await_writes, gated_disk, read, write};
use crate::InitiatorLimits;
use crate::codec::RequestPdu;
use crate::codec::request::{LoginPdu, Simple};
use crate::server::room::OWN;
use block::{Attempt, Device, Memory, Result, Sink, Span};
use std::sync::Arc;
use std::time::Duration;

const REJECTED: u8 = 0x3f;

#[tokio::test]
async fn commands_out_of_order_are_ignored_and_the_next_one_is_served() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    for cmd_sn in [0, initiator.cmd_sn + 1, initiator.cmd_sn + 1000, u32::MAX] {
        let next = initiator.cmd_sn;
        let mut command = initiator.command(READY, 0, &[]);
        (command.cmd_sn, initiator.cmd_sn) = (cmd_sn, next);
        initiator.send(RequestPdu::Command(command), &[]).await;
    }
    assert_eq!(initiator.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn more_commands_than_the_window_has_are_not_taken() {
    let gated = gated_disk();
    let rig = Rig::of(Arc::clone(&gated) as _, InitiatorLimits::default(), None).await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let window = super::super::session::WINDOW;
    for block in 0..window + 10 {
        initiator.begin(write(block, 1), 0, &[1; 512]).await;
    }
    await_writes(&gated, window).await;
    let ping = initiator.ping().await;
    let answer = initiator.receive().await.expect("an answer");
    let (expected, most) =
        (crate::codec::u32_at(&answer.header, 28), crate::codec::u32_at(&answer.header, 32));
    assert_eq!(answer.tag(), ping);
    assert_eq!(most.wrapping_add(1), expected, "the window is closed");
    assert_eq!(gated.calls.log().held, window as usize);
    gated.calls.release(window as usize);
    for _ in 0..window {
        assert_eq!(initiator.receive().await.expect("an answer").status(), 0);
    }
    initiator.cmd_sn -= 10; // those that were not taken
    assert_eq!(initiator.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn what_has_no_meaning_is_rejected_and_the_session_goes_on() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    for (opcode, reason) in [(0x10, 3), (0x1c, 5), (0x3f, 5)] {
        initiator.send(RequestPdu::Other(opcode), &[]).await;
        let answer = initiator.receive().await.expect("a rejection");
        assert_eq!((answer.opcode(), answer.reason()), (REJECTED, reason), "{opcode:#x}");
    }
    // Both directions at once, which no command of ours has.
    let mut command = initiator.command(read(0, 1), 512, &[]);
    command.writes = true;
    initiator.send(RequestPdu::Command(command), &[]).await;
    assert_eq!(initiator.receive().await.expect("a rejection").opcode(), REJECTED);
    assert_eq!(initiator.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn two_commands_of_one_tag_are_not_both_taken() {
    let gated = gated_disk();
    let rig = Rig::of(Arc::clone(&gated) as _, InitiatorLimits::default(), None).await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let tag = initiator.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    let mut second = initiator.command(write(1, 1), 0, &[2; 512]);
    second.tag = tag;
    initiator.send(RequestPdu::Command(second), &[2; 512]).await;
    assert_eq!(initiator.receive().await.expect("a rejection").opcode(), REJECTED);
    gated.calls.release(1);
    assert_eq!(initiator.receive().await.expect("an answer").tag(), tag);
    assert_eq!(initiator.ask(read(1, 1), 512, &[]).await.data, [0; 512]);
}

#[tokio::test]
async fn a_segment_that_is_longer_than_was_agreed_ends_the_session_before_it_came() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let command = initiator.command(write(0, 1), 0, &[1; 512]);
    let mut bytes = initiator.bytes(RequestPdu::Command(command), &[]);
    bytes[5..8].copy_from_slice(&[0xff; 3]);
    initiator.send_bytes(&bytes).await;
    assert!(initiator.receive().await.is_none());
}

#[tokio::test]
async fn a_login_within_a_session_ends_it() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    initiator.offer("a", 1, &[]).await;
    assert!(initiator.receive().await.is_none());
}

#[tokio::test]
async fn whatever_comes_instead_of_a_login_ends_the_connection() {
    let rig = Rig::new().await;
    let requests = [
        RequestPdu::Command(Initiator::connect(&rig).await.command(READY, 0, &[])),
        RequestPdu::Other(0x15),
        RequestPdu::NopOut(Simple {
            immediate: true,
            flags: 0x80,
            lun: [0; 8],
            tag: 1,
            transfer: u32::MAX,
            cmd_sn: 1,
        }),
    ];
    for request in requests {
        let mut initiator = Initiator::connect(&rig).await;
        initiator.send(request, &[]).await;
        assert!(initiator.receive().await.is_none(), "{request:?}");
    }
    let mut initiator = Initiator::connect(&rig).await;
    initiator.send_bytes(b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n").await;
    assert!(initiator.receive().await.is_none());
    assert_eq!(rig.server.counters().sessions, 0);
}

#[tokio::test]
async fn a_login_that_asks_for_more_again_and_again_is_refused() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::connect(&rig).await;
    let login = LoginPdu {
        transit: false,
        more: true,
        stage: 1,
        next: 0,
        version: 0,
        isid: [0x80, 0, 0, 0, 0, 1],
        tsih: 0,
        tag: 1,
        cid: 0,
        cmd_sn: 1,
    };
    let mut refused = None;
    while refused.is_none() {
        initiator.send(RequestPdu::Login(login), &[b'x'; 4096]).await;
        let answer = initiator.receive().await.expect("an answer");
        refused = Some((answer.header[36], answer.header[37])).filter(|status| *status != (0, 0));
    }
    assert_eq!(refused.map(|status| status.0), Some(2), "the initiator's fault");
    assert!(initiator.receive().await.is_none());
    assert_eq!(rig.server.counters().refused, 1);
}

#[tokio::test]
async fn logins_that_are_never_finished_keep_nobody_out() {
    let limits = InitiatorLimits { connections: 40, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::new(block::Memory::new(super::rig::SIZE)), limits, None).await;
    let mut session = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut half_open = Vec::new();
    for _ in 0..200 {
        half_open.push(Initiator::connect(&rig).await);
        assert_eq!(session.ask(READY, 0, &[]).await.status(), 0);
    }
    let mut late = Initiator::log_in(&rig, "b", 1, &[]).await;
    assert_eq!(late.ask(READY, 0, &[]).await.status(), 0);
    assert!(half_open[0].receive().await.is_none(), "the oldest one had to leave");
    assert_eq!(session.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn sessions_of_one_client_keep_no_other_one_out() {
    let limits = InitiatorLimits { connections: 40, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::new(Memory::new(SIZE)), limits, None).await;
    let mut greedy = Vec::new();
    loop {
        let mut session = Initiator::connect(&rig).await;
        session.offer("a", greedy.len() as u8, &[]).await;
        let status = session.offered().await;
        if status != (0, 0) {
            assert_eq!(status, (3, 2), "out of resources");
            break;
        }
        greedy.push(session);
    }
    assert_eq!(greedy.len(), 20);
    let _half_open: Vec<_> =
        futures::future::join_all((0..40).map(|_| Initiator::connect(&rig))).await;
    // Those that had to leave are gone in a moment: until then there may be no place for one that comes.
    let other = async {
        loop {
            let mut other = Initiator::connect_from(&rig, 2).await;
            other.offer("b", 1, &[]).await;
            if let Some(answer) = other.receive().await {
                return (answer.header[36], answer.header[37]);
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(60), other).await;
    assert_eq!(status.expect("it is let in"), (0, 0));
}

/// Data that is sent with commands and never ends, in one session.
async fn half_sent(rig: &Rig, isid: u8) -> Initiator {
    let keys = [("InitialR2T", "No"), ("FirstBurstLength", "262144")];
    let mut initiator = Initiator::log_in(rig, "a", isid, &keys).await;
    for _ in 0..32 {
        let mut command = initiator.command(write(0, 512), 0, &[]);
        (command.writes, command.last, command.expected) = (true, false, 256 << 10);
        initiator.send(RequestPdu::Command(command), &[]).await;
    }
    let ping = initiator.ping().await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), ping);
    initiator
}

/// Waits until something is so, which is in a moment.
async fn soon(is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), so).await.expect("it comes to be so");
}

#[tokio::test]
async fn writes_that_are_never_sent_whole_take_half_of_the_budget_and_keep_nobody_else_waiting() {
    const BUSY: u8 = 0x08;
    let limits = InitiatorLimits { held_bytes: 8 * OWN, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::new(Memory::new(SIZE)), limits, None).await;
    let first = half_sent(&rig, 1).await;
    let second = half_sent(&rig, 2).await;
    assert_eq!(rig.server.inner.room.taken(), 4 * OWN, "half of it");
    let mut same = Initiator::log_in(&rig, "b", 3, &[]).await;
    let mut large = same.command(write(0, 4096), 0, &[]);
    (large.writes, large.expected) = (true, 2 << 20);
    same.send(RequestPdu::Command(large), &[]).await;
    assert_eq!(same.receive().await.expect("an answer").status(), BUSY);
    assert_eq!(same.ask(read(0, 4096), 2 << 20, &[]).await.status(), BUSY);
    assert_eq!(same.ask(write(0, 1), 0, &[1; 512]).await.status(), 0);
    assert_eq!(same.ask(read(0, 16), 8 << 10, &[]).await.data.len(), 8 << 10);
    let mut other = Initiator::connect_from(&rig, 2).await;
    other.offer("c", 4, &[]).await;
    assert_eq!(other.offered().await, (0, 0));
    assert_eq!(other.ask(READY, 0, &[]).await.status(), 2, "a new session's attention");
    let answer = other.ask(read(0, 4096), 2 << 20, &[]).await;
    assert_eq!((answer.opcode(), answer.data.len()), (0x25, 8 << 10));
    drop((first, second, same, other));
    soon(|| rig.server.counters().connections == 0).await;
    assert_eq!(rig.server.inner.room.taken(), 0);
}

#[tokio::test]
async fn a_read_that_waits_for_what_the_one_before_it_holds_goes_on_when_that_is_sent() {
    let limits = InitiatorLimits { held_bytes: 0, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::new(Memory::new(SIZE)), limits, None).await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut bytes = Vec::new();
    let mut last = 0;
    for (blocks, length) in [(512, 256 << 10), (2048, 1 << 20), (512, 256 << 10), (2048, 1 << 20)] {
        let command = initiator.command(read(0, blocks), length, &[]);
        last = command.tag;
        bytes.extend(initiator.bytes(RequestPdu::Command(command), &[]));
    }
    initiator.send_bytes(&bytes).await;
    let mut came = 0;
    loop {
        let answer = initiator.receive().await.expect("an answer");
        assert_eq!(answer.opcode(), 0x25, "data, and no refusal");
        came += answer.data.len();
        if answer.tag() == last && answer.header[1] & 1 != 0 {
            break;
        }
    }
    assert_eq!(came, 2 * (256 << 10) + 2 * (1 << 20));
}

/// A disk that is only read.
struct Image(Memory);

impl block::Layer for Image {
    type Below = Memory;
    fn below(&self) -> &Memory {
        &self.0
    }
    fn read_only(&self) -> bool {
        true
    }
    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.0.try_read(span, buf)
    }
    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        self.0.try_read_to(span, sink)
    }
    fn try_write(&self, _: Span, _: &[u8]) -> Result<Attempt> {
        panic!("nobody writes to it")
    }
}

#[tokio::test]
async fn what_is_to_be_written_to_a_target_that_is_only_read_is_not_kept() {
    let limits = InitiatorLimits { held_bytes: 0, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::new(Image(Memory::new(SIZE))), limits, None).await;
    let mut initiator = half_sent(&rig, 1).await;
    assert_eq!(initiator.ask(write(0, 1), 0, &[1; 512]).await.sense(), (7, 0x27, 0));
}

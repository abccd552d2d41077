//! Sessions that begin anew, that end, and that are asked to.

use super::rig::{Initiator, READY, Rig, SIZE, await_writes, gated_disk, read, write};
use crate::codec::{text, u32_at};
use crate::{InitiatorLimits, SessionEnding};
use block::{Fault, Memory, Operation, ScriptedDevice};
use std::sync::Arc;
use std::time::Duration;

/// How long something is given to happen that must not.
const MOMENT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_login_of_the_same_initiator_and_isid_ends_the_old_session_and_waits_for_its_writes() {
    let gated = gated_disk();
    let rig = Rig::of(Arc::clone(&gated) as _, InitiatorLimits::default(), None).await;
    let mut old = Initiator::log_in(&rig, "a", 1, &[]).await;
    old.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    let mut new = Initiator::connect(&rig).await;
    new.offer("a", 1, &[]).await;
    assert_eq!(rig.server.counters().sessions, 1);
    gated.calls.release(1);
    assert_eq!(new.offered().await, (0, 0));
    // The old session has ended with its write: nothing of it lands behind the first one of the new session.
    assert_eq!(rig.endings(1).await, [SessionEnding::Lost]);
    while old.receive().await.is_some() {}
    assert_eq!(new.ask(READY, 0, &[]).await.sense(), (6, 0x29, 0));
    assert_eq!(new.ask(read(0, 1), 512, &[]).await.data, [1; 512]);
}

#[tokio::test]
async fn no_login_waits_for_the_reads_of_an_older_session() {
    let plan: fn(Operation) -> Fault = |operation| match operation {
        Operation::Read(_) => Fault::Hold,
        _ => Fault::None,
    };
    // A session that is begun anew, and one whose connection has ended.
    for (isid, closes) in [(1, false), (2, true)] {
        let disk = Arc::new(ScriptedDevice::new(Memory::new(SIZE), plan));
        let limits = InitiatorLimits { login_deadline: MOMENT * 33, ..InitiatorLimits::default() };
        let rig = Rig::of(Arc::clone(&disk) as _, limits, None).await;
        let mut old = Initiator::log_in(&rig, "a", 1, &[]).await;
        old.begin(read(0, 1), 512, &[]).await;
        disk.calls.until(|log| log.held == 1).await;
        let _open = (!closes).then_some(old);
        let mut new = Initiator::log_in(&rig, "a", isid, &[]).await;
        assert_eq!(rig.endings(1).await, [SessionEnding::Lost]);
        assert_eq!(disk.calls.log().held, 0, "the read goes on");
        assert_eq!(new.ask(write(0, 1), 0, &[2; 512]).await.status(), 0);
    }
}

#[tokio::test]
async fn a_session_of_any_isid_waits_for_the_writes_of_those_that_its_client_has_lost() {
    let gated = gated_disk();
    let rig = Rig::of(Arc::clone(&gated) as _, InitiatorLimits::default(), None).await;
    let mut old = Initiator::log_in(&rig, "a", 1, &[]).await;
    old.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    drop(old);
    let mut new = Initiator::connect(&rig).await;
    new.offer("a", 2, &[]).await;
    assert!(tokio::time::timeout(MOMENT, new.offered()).await.is_err(), "the write is under way");
    gated.calls.release(1);
    assert_eq!(new.offered().await, (0, 0));
    assert_eq!(rig.endings(1).await, [SessionEnding::Lost]);
    assert_eq!(new.ask(READY, 0, &[]).await.sense(), (6, 0x29, 0));
    // Nothing of the old session lands behind this.
    gated.calls.release(1);
    assert_eq!(new.ask(write(0, 1), 0, &[2; 512]).await.status(), 0);
    assert_eq!(new.ask(read(0, 1), 512, &[]).await.data, [2; 512]);
}

#[tokio::test]
async fn a_login_behind_writes_that_do_not_end_is_refused_in_time() {
    let gated = gated_disk();
    let limits = InitiatorLimits { login_deadline: MOMENT * 33, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::clone(&gated) as _, limits, None).await;
    let mut old = Initiator::log_in(&rig, "a", 1, &[]).await;
    old.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    drop(old);
    let mut new = Initiator::connect(&rig).await;
    new.offer("a", 2, &[]).await;
    assert_eq!(new.offered().await, (3, 1));
    gated.calls.release(1);
    assert_eq!(rig.endings(2).await, [SessionEnding::Lost; 2]);
    drop(Initiator::log_in(&rig, "a", 2, &[]).await);
}

#[tokio::test]
async fn sessions_that_are_used_side_by_side_do_not_wait_for_each_other() {
    let gated = gated_disk();
    let rig = Rig::of(Arc::clone(&gated) as _, InitiatorLimits::default(), None).await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    one.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    let _other = Initiator::log_in(&rig, "a", 2, &[]).await;
    gated.calls.release(1);
    assert_eq!(one.receive().await.expect("an answer").status(), 0);
}

#[tokio::test]
async fn machines_of_one_image_do_not_end_each_others_sessions() {
    let secrets = Some("alice:open sesame!!");
    let disk = Arc::new(Memory::new(SIZE));
    let rig = Rig::of(disk, InitiatorLimits::default(), secrets).await;
    let alice = ("alice", "open sesame!!");
    let mut sessions = Vec::new();
    for address in [1, 2] {
        let mut machine = Initiator::connect_from(&rig, address).await;
        machine.prove("golden", 1, alice).await;
        assert_eq!(machine.offered().await, (0, 0));
        assert_eq!(machine.ask(READY, 0, &[]).await.sense(), (6, 0x29, 0));
        sessions.push(machine);
    }
    for machine in &mut sessions {
        assert_eq!(machine.ask(READY, 0, &[]).await.status(), 0);
    }
    // The same machine begins its session anew.
    let mut again = Initiator::connect_from(&rig, 2).await;
    again.prove("golden", 1, alice).await;
    assert_eq!(again.offered().await, (0, 0));
    assert!(sessions[1].receive().await.is_none());
    assert_eq!(sessions[0].ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn another_isid_and_another_initiator_are_other_sessions() {
    let rig = Rig::new().await;
    let mut all = Vec::new();
    for (name, isid) in [("a", 1), ("a", 2), ("b", 1)] {
        all.push(Initiator::log_in(&rig, name, isid, &[]).await);
    }
    for initiator in &mut all {
        assert_eq!(initiator.ask(READY, 0, &[]).await.status(), 0);
    }
    assert_eq!(rig.server.counters().sessions, 3);
}

#[tokio::test]
async fn who_logs_out_ends_cleanly_and_who_vanishes_does_not() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let tag = initiator.log_out().await;
    let answer = initiator.receive().await.expect("an answer");
    assert_eq!((answer.opcode(), answer.tag(), answer.reason()), (0x26, tag, 0));
    assert!(initiator.receive().await.is_none());
    assert_eq!(rig.endings(1).await, [SessionEnding::Clean]);
    drop(Initiator::log_in(&rig, "a", 1, &[]).await);
    assert_eq!(rig.endings(2).await, [SessionEnding::Clean, SessionEnding::Lost]);
}

#[tokio::test]
async fn a_login_that_fails_behind_the_disk_leaves_it_to_its_client() {
    let rig = Rig::new().await;
    *rig.kept.lock().unwrap() = Some("damaged".into());
    let mut initiator = Initiator::connect(&rig).await;
    initiator.offer("a", 1, &[]).await;
    assert_ne!(initiator.offered().await, (0, 0));
    assert_eq!(rig.endings(1).await, [SessionEnding::Lost]);
    *rig.kept.lock().unwrap() = None;
    let mut again = Initiator::log_in(&rig, "a", 1, &[]).await;
    assert_eq!(again.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn a_server_that_stops_asks_initiators_to_log_out_and_serves_them_until_they_do() {
    let mut rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    rig.begin_stop();
    let asked = initiator.receive().await.expect("a request");
    // Asynchronous message, event 1: log out within some seconds.
    assert_eq!((asked.opcode(), asked.header[36]), (0x32, 1));
    assert!(u16::from_be_bytes([asked.header[42], asked.header[43]]) > 0);
    assert_eq!(initiator.ask(write(0, 1), 0, &[1; 512]).await.status(), 0);
    initiator.log_out().await;
    assert_eq!(initiator.receive().await.expect("an answer").opcode(), 0x26);
    rig.ended().await.unwrap();
    // It comes back by itself: what an ephemeral disk was told is kept for it.
    assert_eq!(rig.endings(1).await, [SessionEnding::Lost]);
}

#[tokio::test]
async fn who_does_not_log_out_is_cut_off_when_what_it_has_begun_is_done() {
    let gated = gated_disk();
    let mut rig = Rig::of(Arc::clone(&gated) as _, InitiatorLimits::default(), None).await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    initiator.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    rig.begin_stop();
    assert_eq!(initiator.receive().await.expect("a request").opcode(), 0x32);
    gated.calls.release(1);
    assert_eq!(initiator.receive().await.expect("an answer").status(), 0);
    assert!(initiator.receive().await.is_none());
    rig.ended().await.unwrap();
    assert_eq!(rig.endings(1).await, [SessionEnding::Lost]);
}

/// RESERVE (6).
const RESERVE: [u8; 16] = [0x16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// PERSISTENT RESERVE OUT with an action, for a reservation of this type.
fn persistent_out(action: u8, kind: u8) -> [u8; 16] {
    [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0]
}

#[tokio::test]
async fn who_may_only_read_reserves_nothing_and_resets_nobody_else() {
    let disk = ScriptedDevice::noting(Memory::new(SIZE)).with_read_only(true);
    let rig = Rig::of(Arc::new(disk), InitiatorLimits::default(), None).await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut second = Initiator::log_in(&rig, "a", 2, &[]).await;
    let mut other = Initiator::connect_from(&rig, 2).await;
    other.offer("b", 1, &[]).await;
    assert_eq!(other.offered().await, (0, 0));
    assert_eq!(other.ask(READY, 0, &[]).await.sense(), (6, 0x29, 0));
    // A registration that outlives the server, as far as it may, and a reservation.
    let mut keys = [0; 24];
    (keys[15], keys[20]) = (1, 1);
    for (cdb, data) in [(RESERVE, &[][..]), (persistent_out(0, 0), &keys)] {
        assert_eq!(one.ask(cdb, 0, data).await.sense(), (7, 0x27, 0));
    }
    let reset = one.manage(5, u32::MAX).await;
    assert_eq!(one.receive().await.expect("an answer").tag(), reset);
    assert_eq!(second.ask(READY, 0, &[]).await.sense(), (6, 0x29, 3), "of the same client");
    assert_eq!(other.ask(READY, 0, &[]).await.status(), 0);
    assert_eq!(other.ask(read(0, 1), 512, &[]).await.data, [0; 512]);
}

#[tokio::test]
async fn a_session_that_is_cut_off_leaves_no_reservation() {
    let gated = gated_disk();
    let limits = InitiatorLimits { stop_deadline: MOMENT, ..InitiatorLimits::default() };
    let mut rig = Rig::of(Arc::clone(&gated) as _, limits, None).await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    assert_eq!(one.ask(RESERVE, 0, &[]).await.status(), 0);
    one.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    assert!(rig.ended().await.is_err(), "its write is under way still");
    rig.listen_again().await;
    let mut other = Initiator::log_in(&rig, "b", 1, &[]).await;
    assert_eq!(other.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn all_listeners_together_have_no_more_connections_than_the_server_may() {
    let limits = InitiatorLimits { connections: 1, ..InitiatorLimits::default() };
    let mut rig = Rig::of(Arc::new(Memory::new(SIZE)), limits, None).await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    rig.listen_beside().await;
    assert!(Initiator::connect(&rig).await.receive().await.is_none(), "one too many");
    assert_eq!(rig.server.counters().refused, 1, "it was let in");
    assert_eq!(one.ask(READY, 0, &[]).await.status(), 0);
    one.log_out().await;
    assert_eq!(one.receive().await.expect("an answer").opcode(), 0x26);
    assert!(one.receive().await.is_none());
    while rig.server.counters().connections > 0 {
        tokio::task::yield_now().await;
    }
    drop(Initiator::log_in(&rig, "a", 1, &[]).await);
}

#[tokio::test]
async fn a_client_has_no_more_connections_than_it_may_and_may_begin_a_session_anew() {
    let limits = InitiatorLimits { client_connections: 2, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::new(Memory::new(SIZE)), limits, None).await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut discovery = Initiator::connect(&rig).await;
    discovery.offer("a", 2, &[("SessionType", "Discovery")]).await;
    assert_eq!(discovery.offered().await, (0, 0));
    for keys in [&[][..], &[("SessionType", "Discovery")]] {
        let mut third = Initiator::connect(&rig).await;
        third.offer("a", 3, keys).await;
        assert_eq!(third.offered().await, (3, 2));
    }
    let mut other = Initiator::connect_from(&rig, 2).await;
    other.offer("a", 1, &[]).await;
    assert_eq!(other.offered().await, (0, 0), "another client has its own places");
    let _again = Initiator::log_in(&rig, "a", 1, &[]).await;
    assert!(one.receive().await.is_none());
}

#[tokio::test]
async fn a_discovery_session_that_is_silent_ends_and_others_do_not() {
    let limits = InitiatorLimits { discovery_silence: MOMENT * 10, ..InitiatorLimits::default() };
    let rig = Rig::of(Arc::new(Memory::new(SIZE)), limits, None).await;
    let mut session = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut discovery = Initiator::connect(&rig).await;
    discovery.offer("a", 2, &[("SessionType", "Discovery")]).await;
    assert_eq!(discovery.offered().await, (0, 0));
    let ping = discovery.ping().await;
    assert_eq!(discovery.receive().await.expect("an answer").tag(), ping);
    assert!(discovery.receive().await.is_none());
    assert_eq!(session.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn targets_are_listed_once_for_each_request_and_in_as_many_pieces_as_it_takes() {
    let rig = Rig::new().await;
    let mut discovery = Initiator::connect(&rig).await;
    let keys = [("SessionType", "Discovery"), ("MaxRecvDataSegmentLength", "512")];
    discovery.offer("a", 2, &keys).await;
    assert_eq!(discovery.offered().await, (0, 0));
    let twice = discovery.text(b"SendTargets=All\0SendTargets=All\0", u32::MAX).await;
    assert_eq!(twice.opcode(), 0x3f, "a rejection");
    // What is not understood makes an answer of several pieces.
    let mut asked = b"SendTargets=All\0".to_vec();
    (0..50).for_each(|i| asked.extend_from_slice(format!("X-test-{i}=1\0").as_bytes()));
    let (mut answer, mut whole) = (discovery.text(&asked, u32::MAX).await, Vec::new());
    loop {
        assert_eq!(answer.opcode(), 0x24);
        assert!(answer.data.len() <= 512);
        whole.extend_from_slice(&answer.data);
        let transfer = u32_at(&answer.header, 20);
        if transfer == u32::MAX {
            break;
        }
        answer = discovery.text(&[], transfer).await;
    }
    let answers = text::parse(&whole).unwrap();
    assert_eq!(answers.len(), 52);
    assert_eq!(answers[0], ("TargetName", "iqn.2026-11.io.sojourn:disk"));
    assert_eq!(answers[51], ("X-test-49", "NotUnderstood"));
}

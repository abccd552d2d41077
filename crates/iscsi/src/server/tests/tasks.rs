//! Task management, and the data of commands.

use super::rig::{Gated, Initiator, READY, Rig, await_writes, gated_disk, read, write};
use crate::InitiatorLimits;
use crate::codec::request::DataOut;
use crate::codec::{NO_TAG, RequestPdu, u32_at};
use std::sync::Arc;

const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const RESET_UNIT: u8 = 5;

const COMPLETE: u8 = 0;
const NO_SUCH_TASK: u8 = 1;
const NO_SUCH_UNIT: u8 = 2;

async fn gated() -> (Rig, Arc<Gated>) {
    let gated = gated_disk();
    (Rig::of(Arc::clone(&gated) as _, InitiatorLimits::default(), None).await, gated)
}

#[tokio::test]
async fn an_aborted_command_is_not_answered_and_its_abort_waits_until_it_is_over() {
    let (rig, gated) = gated().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let tag = initiator.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    let abort = initiator.manage(ABORT_TASK, tag).await;
    // The write may still land: the abort is not answered before.
    let ping = initiator.ping().await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), ping);
    gated.calls.release(1);
    let answer = initiator.receive().await.expect("an answer");
    assert_eq!((answer.opcode(), answer.tag(), answer.reason()), (0x22, abort, COMPLETE));
    // Its place in the window is free, and its tag as well.
    assert_eq!(initiator.ask(read(0, 1), 512, &[]).await.data, [1; 512]);
}

#[tokio::test]
async fn an_abort_of_a_command_that_is_over_says_so() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let tag = initiator.ask(READY, 0, &[]).await.tag();
    initiator.manage(ABORT_TASK, tag).await;
    assert_eq!(initiator.receive().await.expect("an answer").reason(), NO_SUCH_TASK);
}

#[tokio::test]
async fn an_aborted_write_that_waits_for_its_data_ignores_what_is_on_its_way() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut command = initiator.command(write(0, 8), 0, &[1; 4096]);
    command.expected = 4096;
    initiator.send(RequestPdu::Command(command), &[1; 512]).await;
    let asks = initiator.receive().await.expect("a request to transfer");
    assert_eq!((asks.opcode(), u32_at(&asks.header, 40)), (0x31, 512));
    initiator.manage(ABORT_TASK, command.tag).await;
    assert_eq!(initiator.receive().await.expect("an answer").reason(), COMPLETE);
    let transfer = u32_at(&asks.header, 20);
    let late = DataOut { last: true, tag: command.tag, transfer, data_sn: 0, offset: 512 };
    initiator.send(RequestPdu::DataOut(late), &[1; 4096 - 512]).await;
    assert_eq!(initiator.ask(read(0, 8), 4096, &[]).await.data, [0; 4096]);
}

#[tokio::test]
async fn an_aborted_task_set_ends_all_commands_and_those_that_come_later_are_served() {
    let (rig, gated) = gated().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    for block in 0..5 {
        initiator.begin(write(block, 1), 0, &[1; 512]).await;
    }
    await_writes(&gated, 5).await;
    let abort = initiator.manage(ABORT_TASK_SET, NO_TAG).await;
    let later = initiator.begin(read(100, 1), 512, &[]).await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), later);
    gated.calls.release(5);
    let answer = initiator.receive().await.expect("an answer");
    assert_eq!((answer.tag(), answer.reason()), (abort, COMPLETE));
    assert_eq!(initiator.ask(READY, 0, &[]).await.status(), 0);
}

#[tokio::test]
async fn a_reset_ends_the_commands_of_all_sessions_and_tells_the_others() {
    let (rig, gated) = gated().await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut other = Initiator::log_in(&rig, "b", 1, &[]).await;
    other.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    let reset = one.manage(RESET_UNIT, NO_TAG).await;
    let ping = one.ping().await;
    assert_eq!(one.receive().await.expect("an answer").tag(), ping, "the write is under way");
    gated.calls.release(1);
    let answer = one.receive().await.expect("an answer");
    assert_eq!((answer.tag(), answer.reason()), (reset, COMPLETE));
    // Its write is not answered; it is told why.
    let told = other.ask(READY, 0, &[]).await;
    assert_eq!((told.status(), told.sense().0, told.sense().1), (2, 6, 0x29));
    assert_eq!(one.ask(READY, 0, &[]).await.status(), 0, "who resets is not told");
}

#[tokio::test]
async fn task_management_of_a_unit_that_is_not_there_is_refused() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let tag = 7;
    let manage = crate::codec::request::Manage {
        immediate: true,
        function: RESET_UNIT,
        lun: [0, 9, 0, 0, 0, 0, 0, 0],
        tag,
        referenced: NO_TAG,
        cmd_sn: initiator.cmd_sn,
    };
    initiator.send(RequestPdu::Manage(manage), &[]).await;
    assert_eq!(initiator.receive().await.expect("an answer").reason(), NO_SUCH_UNIT);
}

#[tokio::test]
async fn writes_up_to_256_kib_are_never_asked_for_and_longer_ones_in_whole_bursts() {
    const KIB: usize = 1024;
    let rig = Rig::new().await;
    let keys = [
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("FirstBurstLength", "262144"),
        ("MaxBurstLength", "16776192"),
    ];
    let mut initiator = Initiator::log_in(&rig, "a", 1, &keys).await;
    for length in [512, 64 * KIB, 256 * KIB] {
        let data = vec![length as u8 | 1; length];
        let answer = initiator.ask(write(0, (length / 512) as u16), 0, &data).await;
        assert_eq!((answer.opcode(), answer.status()), (0x21, 0), "{length}");
    }
    // 256 KiB at once, and one burst of 1 MiB for the rest.
    let data: Vec<u8> = (0..1280 * KIB).map(|at| (at / 512) as u8).collect();
    let mut command = initiator.command(write(0, 2560), 0, &data);
    command.expected = data.len() as u32;
    initiator.send(RequestPdu::Command(command), &data[..256 * KIB]).await;
    let asks = initiator.receive().await.expect("a request to transfer");
    let (offset, length) = (u32_at(&asks.header, 40), u32_at(&asks.header, 44));
    assert_eq!((asks.opcode(), offset, length), (0x31, 256 << 10, 1 << 20));
    let transfer = u32_at(&asks.header, 20);
    for (data_sn, piece) in data[256 * KIB..].chunks(256 * KIB).enumerate() {
        let (data_sn, last) = (data_sn as u32, data_sn == 3);
        let offset = (256 << 10) * (data_sn + 1);
        let header = DataOut { last, tag: command.tag, transfer, data_sn, offset };
        initiator.send(RequestPdu::DataOut(header), piece).await;
    }
    assert_eq!(initiator.receive().await.expect("an answer").status(), 0);
    for at in [0, 600 * KIB, 1279 * KIB] {
        let answer = initiator.ask(read((at / 512) as u32, 2), 1024, &[]).await;
        assert_eq!(answer.data, data[at..at + KIB], "at {at}");
    }
}

#[tokio::test]
async fn reads_of_more_than_is_sent_at_a_time_are_all_answered() {
    let rig = Rig::new().await;
    let keys = [("MaxRecvDataSegmentLength", "262144")];
    let mut initiator = Initiator::log_in(&rig, "a", 1, &keys).await;
    // 14 MiB, asked for before anything is taken.
    let mut tags = Vec::new();
    for _ in 0..56 {
        tags.push(initiator.begin(read(0, 512), 512 * 512, &[]).await);
    }
    for tag in tags {
        let answer = initiator.receive().await.expect("an answer");
        assert_eq!((answer.tag(), answer.data.len()), (tag, 512 * 512));
    }
}

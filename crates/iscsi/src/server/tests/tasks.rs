//! Task management, and the data of commands.

use super::rig::{
    Answer, Gated, Initiator, READY, Rig, SIZE, await_writes, gated_disk, read, write,
};
use crate::InitiatorLimits;
use crate::codec::request::DataOut;
use crate::codec::{NO_TAG, RequestPdu, u32_at};
use block::{Fault, Memory, Operation, ScriptedDevice};
use std::sync::Arc;

const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const CLEAR_TASK_SET: u8 = 4;
const RESET_UNIT: u8 = 5;

const COMPLETE: u8 = 0;
const NO_SUCH_TASK: u8 = 1;
const NO_SUCH_UNIT: u8 = 2;
const FUNCTION_REJECTED: u8 = 255;

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
async fn requests_that_wait_for_a_command_are_so_many_at_most() {
    let (rig, gated) = gated().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let tag = initiator.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    let mut waiting = Vec::new();
    for _ in 0..64 {
        waiting.push(initiator.manage(ABORT_TASK, tag).await);
    }
    for function in [ABORT_TASK, ABORT_TASK_SET, RESET_UNIT] {
        let more = initiator.manage(function, tag).await;
        let answer = initiator.receive().await.expect("an answer");
        assert_eq!((answer.tag(), answer.reason()), (more, FUNCTION_REJECTED));
    }
    gated.calls.release(1);
    for abort in waiting {
        let answer = initiator.receive().await.expect("an answer");
        assert_eq!((answer.tag(), answer.reason()), (abort, COMPLETE));
    }
    // There is room again, for resets too.
    for _ in 0..100 {
        let reset = initiator.manage(RESET_UNIT, u32::MAX).await;
        let answer = initiator.receive().await.expect("an answer");
        assert_eq!((answer.tag(), answer.reason()), (reset, COMPLETE));
    }
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
async fn a_cleared_task_set_is_that_of_all_sessions_and_leaves_the_reservation() {
    let (rig, gated) = gated().await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut other = Initiator::log_in(&rig, "b", 1, &[]).await;
    other.begin(write(0, 1), 0, &[1; 512]).await;
    await_writes(&gated, 1).await;
    let reserve = [0x16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(one.ask(reserve, 0, &[]).await.status(), 0);
    let clear = one.manage(CLEAR_TASK_SET, NO_TAG).await;
    let ping = one.ping().await;
    assert_eq!(one.receive().await.expect("an answer").tag(), ping, "the write is under way");
    gated.calls.release(1);
    let answer = one.receive().await.expect("an answer");
    assert_eq!((answer.opcode(), answer.tag(), answer.reason()), (0x22, clear, COMPLETE));
    // Its write is not answered; it is told why.
    let told = other.ask(READY, 0, &[]).await;
    assert_eq!((told.status(), told.sense()), (2, (6, 0x2f, 0)));
    assert_eq!(other.ask(READY, 0, &[]).await.status(), 0x18, "it is reserved still");
    assert_eq!(one.ask(READY, 0, &[]).await.status(), 0, "who clears is not told");
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

/// The whole disk, as blocks and as bytes.
const ALL: (u16, u32) = ((SIZE / 512) as u16, SIZE as u32);

/// Begins a write of the whole disk, whose data is to be asked for, with this task attribute; its tag.
async fn begin_large(initiator: &mut Initiator, attribute: u8) -> u32 {
    let mut command = initiator.command(write(0, ALL.0), 0, &[]);
    (command.writes, command.expected, command.attribute) = (true, ALL.1, attribute);
    initiator.send(RequestPdu::Command(command), &[]).await;
    command.tag
}

/// Sends the data that a request to transfer asks for.
async fn transfer(initiator: &mut Initiator, asks: &Answer) {
    assert_eq!(asks.opcode(), 0x31);
    let (tag, transfer) = (asks.tag(), u32_at(&asks.header, 20));
    let (mut offset, length) = (u32_at(&asks.header, 40), u32_at(&asks.header, 44));
    let end = offset + length;
    let mut data_sn = 0;
    while offset < end {
        let piece = (end - offset).min(256 << 10);
        let header = DataOut { last: offset + piece == end, tag, transfer, data_sn, offset };
        initiator.send(RequestPdu::DataOut(header), &vec![7; piece as usize]).await;
        (offset, data_sn) = (offset + piece, data_sn + 1);
    }
}

/// Sends what is asked for until so many commands are done; their tags.
async fn finish(initiator: &mut Initiator, count: usize) -> Vec<u32> {
    let mut done = Vec::new();
    while done.len() < count {
        let answer = initiator.receive().await.expect("an answer");
        if answer.opcode() == 0x31 {
            transfer(initiator, &answer).await;
        } else {
            assert_eq!((answer.opcode(), answer.status()), (0x21, 0));
            done.push(answer.tag());
        }
    }
    done
}

const NOTHING_UNASKED: [(&str, &str); 3] =
    [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("MaxBurstLength", "1048576")];

#[tokio::test]
async fn writes_of_many_bursts_do_not_wait_for_one_that_waits_for_room() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &NOTHING_UNASKED).await;
    // Four have all the room that there is, and a burst of it each.
    for _ in 0..5 {
        begin_large(&mut initiator, 1).await;
    }
    assert_eq!(finish(&mut initiator, 5).await.len(), 5);
}

#[tokio::test]
async fn an_ordered_command_waits_for_older_ones_whose_data_is_to_come_and_newer_ones_for_it() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut older = initiator.command(write(0, 8), 0, &[1; 4096]);
    older.expected = 4096;
    initiator.send(RequestPdu::Command(older), &[1; 512]).await;
    let asks = initiator.receive().await.expect("a request to transfer");
    let mut ordered = initiator.command(write(0, 1), 0, &[2; 512]);
    ordered.attribute = 2;
    initiator.send(RequestPdu::Command(ordered), &[2; 512]).await;
    let newer = initiator.begin(write(0, 1), 0, &[3; 512]).await;
    let ping = initiator.ping().await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), ping, "all of them wait");
    transfer(&mut initiator, &asks).await;
    for tag in [older.tag, ordered.tag, newer] {
        let answer = initiator.receive().await.expect("an answer");
        assert_eq!((answer.tag(), answer.status()), (tag, 0));
    }
    assert_eq!(initiator.ask(read(0, 1), 512, &[]).await.data, [3; 512]);
}

#[tokio::test]
async fn newer_commands_wait_for_an_ordered_one_whose_data_is_to_come() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &NOTHING_UNASKED).await;
    let ordered = begin_large(&mut initiator, 2).await;
    let newer = initiator.begin(read(0, 1), 512, &[]).await;
    assert_eq!(finish(&mut initiator, 1).await, [ordered]);
    let answer = initiator.receive().await.expect("an answer");
    assert_eq!((answer.tag(), answer.data), (newer, vec![7; 512]));
}

#[tokio::test]
async fn commands_that_wait_for_an_older_one_leave_it_room_for_its_data() {
    let rig = Rig::new().await;
    let keys = [("InitialR2T", "No"), ("ImmediateData", "No"), ("FirstBurstLength", "65536")];
    let mut initiator = Initiator::log_in(&rig, "a", 1, &keys).await;
    let mut older = initiator.command(write(0, ALL.0), 0, &[]);
    (older.writes, older.expected, older.last) = (true, ALL.1, false);
    initiator.send(RequestPdu::Command(older), &[]).await;
    // They take all the room that there is, and stay in it until the older one is done.
    for attribute in [2, 1, 2, 1] {
        begin_large(&mut initiator, attribute).await;
    }
    for _ in 0..ALL.1 / (256 << 10) * 4 {
        let asks = initiator.receive().await.expect("a request to transfer");
        transfer(&mut initiator, &asks).await;
    }
    let header = DataOut { last: true, tag: older.tag, transfer: NO_TAG, data_sn: 0, offset: 0 };
    initiator.send(RequestPdu::DataOut(header), &[1; 65536]).await;
    assert_eq!(finish(&mut initiator, 5).await[0], older.tag);
}

#[tokio::test]
async fn an_aborted_command_that_waited_for_room_asks_for_nothing_under_its_tag() {
    let rig = Rig::new().await;
    let keys = [("InitialR2T", "No"), ("ImmediateData", "Yes")];
    let mut initiator = Initiator::log_in(&rig, "a", 1, &keys).await;
    let mut large = Vec::new();
    for _ in 0..4 {
        large.push(begin_large(&mut initiator, 1).await);
        assert_eq!(initiator.receive().await.expect("a request to transfer").opcode(), 0x31);
    }
    let first = begin_large(&mut initiator, 1).await;
    let waits = begin_large(&mut initiator, 1).await;
    initiator.manage(ABORT_TASK, waits).await;
    assert_eq!(initiator.receive().await.expect("an answer").reason(), COMPLETE);
    // Another one of its tag, whose data comes unasked.
    let mut again = initiator.command(write(0, 2), 0, &[1; 1024]);
    (again.tag, again.last) = (waits, false);
    initiator.send(RequestPdu::Command(again), &[1; 512]).await;
    initiator.manage(ABORT_TASK, large[0]).await;
    let asks = initiator.receive().await.expect("a request to transfer");
    assert_eq!((asks.opcode(), asks.tag()), (0x31, first));
    assert_eq!(initiator.receive().await.expect("an answer").reason(), COMPLETE);
    initiator.manage(ABORT_TASK, large[1]).await;
    let answer = initiator.receive().await.expect("an answer");
    assert_eq!((answer.opcode(), answer.reason()), (0x22, COMPLETE));
    let ping = initiator.ping().await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), ping, "nothing was asked for");
    let rest = DataOut { last: true, tag: waits, transfer: NO_TAG, data_sn: 0, offset: 512 };
    initiator.send(RequestPdu::DataOut(rest), &[1; 512]).await;
    assert_eq!(initiator.receive().await.expect("an answer").status(), 0);
}

#[tokio::test]
async fn a_reset_frees_the_tags_and_the_window_of_reads_that_are_under_way_still() {
    let plan: fn(Operation) -> Fault = |operation| match operation {
        Operation::Read(_) => Fault::Hold,
        _ => Fault::None,
    };
    let disk = Arc::new(ScriptedDevice::new(Memory::new(SIZE), plan));
    let rig = Rig::of(Arc::clone(&disk) as _, InitiatorLimits::default(), None).await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    let window = super::super::session::WINDOW;
    let mut tag = 0;
    for _ in 0..window {
        tag = initiator.begin(read(0, 1), 512, &[]).await;
    }
    disk.calls.until(|log| log.held == window as usize).await;
    let reset = initiator.manage(RESET_UNIT, NO_TAG).await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), reset);
    let mut again = initiator.command(read(1, 1), 512, &[]);
    again.tag = tag;
    initiator.send(RequestPdu::Command(again), &[]).await;
    disk.calls.until(|log| log.held == window as usize + 1).await;
    disk.calls.release(window as usize + 1);
    let answer = initiator.receive().await.expect("an answer");
    assert_eq!((answer.opcode(), answer.tag()), (0x25, tag));
    let ping = initiator.ping().await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), ping, "it is the only one");
}

#[tokio::test]
async fn what_a_reset_by_another_session_found_waiting_is_not_carried_out() {
    let (rig, gated) = gated().await;
    let mut one = Initiator::log_in(&rig, "a", 1, &[]).await;
    let mut other = Initiator::log_in(&rig, "b", 1, &[]).await;
    // The second one is ordered, and waits for the first one.
    other.begin(write(0, 1), 0, &[1; 512]).await;
    let mut ordered = other.command(write(1, 1), 0, &[2; 512]);
    ordered.attribute = 2;
    other.send(RequestPdu::Command(ordered), &[2; 512]).await;
    other.begin(write(2, 1), 0, &[3; 512]).await;
    await_writes(&gated, 1).await;
    let ping = other.ping().await;
    assert_eq!(other.receive().await.expect("an answer").tag(), ping, "all of them have come");
    let reset = one.manage(RESET_UNIT, NO_TAG).await;
    let ping = one.ping().await;
    assert_eq!(one.receive().await.expect("an answer").tag(), ping, "a write is under way");
    gated.calls.release(3);
    assert_eq!(one.receive().await.expect("an answer").tag(), reset);
    let told = other.ask(READY, 0, &[]).await;
    assert_eq!((told.status(), told.sense()), (2, (6, 0x29, 3)));
    assert_eq!(other.ask(read(1, 2), 1024, &[]).await.data, [0; 1024]);
}

use super::rig::{Rig, request};
use crate::codec::ReplyStyle;
use crate::codec::constants::{chunk, command, command_flags as flag, errno};
use crate::codec::reply;
use crate::server::SessionEnding;
use block::testing::Blank;
use block::{
    Device, ErrorKind, Extent, ExtentKind, Fault, Memory, Operation, ScriptedDevice, Span, extent,
};
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;
const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

/// A device with every kind of extent, that zeroes fast, or is read-only.
fn special(read_only: bool) -> impl Device {
    ScriptedDevice::noting(Memory::new(SIZE))
        .with_read_only(read_only)
        .with_fast_reads()
        .with_fast_zeroes()
        .with_extents(|span, limit| {
            let kinds = [ExtentKind::Data, ExtentKind::Data, ExtentKind::Zero, ExtentKind::Hole];
            let kind = |piece: &Span| kinds[(piece.offset() / 4096 % 4) as usize];
            span.pieces(4096).take(limit).map(|span| Extent { span, kind: kind(&span) }).collect()
        })
}

#[tokio::test]
async fn what_is_written_is_read_in_every_style_aligned_or_not() {
    for style in STYLES {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.attach(style).await;
        for (offset, len) in
            [(0u64, 4096usize), (1, 1), (4095, 2), (70_000, 300_000), (SIZE - 1, 1)]
        {
            let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
            assert_eq!(prober.write(offset, &data).await.error, 0);
            let read = request(command::READ, 0, offset, len as u64);
            assert_eq!(prober.ask(&read, &[]).await.data, data);
        }
        prober.disconnect().await;
        assert!(prober.is_closed().await);
        rig.ended().await.unwrap();
        assert_eq!(*rig.endings.lock().unwrap(), [("disk".to_owned(), SessionEnding::Clean)]);
        let counters = rig.server.counters();
        assert_eq!((counters.total.reads, counters.total.writes), (5, 5));
        assert_eq!(counters.total.read_bytes, 304_100);
        assert_eq!(counters.exports["disk"].connections, 0);
    }
}

#[tokio::test]
async fn a_long_write_waits_once_for_a_device_that_is_written_through() {
    let torn = |through| async move {
        let device = ScriptedDevice::noting(Memory::new(16 << 20));
        let device = Arc::new(if through { device.with_write_through() } else { device });
        let mut rig = Rig::new(Arc::clone(&device));
        let mut prober = rig.attach(ReplyStyle::Structured).await;
        assert_eq!(prober.write(0, &vec![7; 16 << 20]).await.error, 0);
        device.calls.log().asked.iter().filter(|call| matches!(call, Operation::Write(_))).count()
    };
    assert_eq!((torn(false).await, torn(true).await), (4, 1));
}

#[tokio::test]
async fn every_command_works_with_forced_unit_access_in_every_style() {
    for style in STYLES {
        let mut rig = Rig::new(special(false));
        let mut prober = rig.attach(style).await;
        for command in [
            command::READ,
            command::FLUSH,
            command::TRIM,
            command::CACHE,
            command::WRITE_ZEROES,
            command::BLOCK_STATUS,
        ] {
            if command == command::BLOCK_STATUS && style == ReplyStyle::Simple {
                continue;
            }
            for flags in [0, flag::FUA] {
                let len = if command == command::FLUSH { 0 } else { 8192 };
                let reply = prober.ask(&request(command, flags, 0, len), &[]).await;
                assert_eq!(reply.error, 0, "{command} {style:?}: {}", reply.text);
            }
        }
        let write = request(command::WRITE, flag::FUA | prober.payload_flag(), 512, 3);
        assert_eq!(prober.ask(&write, b"abc").await.error, 0);
        for flags in [flag::NO_HOLE, flag::FAST_ZERO, flag::NO_HOLE | flag::FAST_ZERO | flag::FUA] {
            let zero = request(command::WRITE_ZEROES, flags, 0, SIZE);
            assert_eq!(prober.ask(&zero, &[]).await.error, 0);
        }
        prober.is_in_step().await;
    }
}

#[tokio::test]
async fn zeroing_that_is_not_fast_is_refused_when_it_has_to_be() {
    let mut rig = Rig::new(Memory::new(SIZE));
    let mut prober = rig.attach(ReplyStyle::Structured).await;
    let zero = request(command::WRITE_ZEROES, flag::FAST_ZERO, 0, SIZE);
    assert_eq!(prober.ask(&zero, &[]).await.error, errno::ENOTSUP);
}

#[tokio::test]
async fn bad_requests_are_refused_in_step_with_the_right_number_and_a_text() {
    for style in STYLES {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.attach(style).await;
        let df = if style == ReplyStyle::Simple { flag::DF } else { 0x100 };
        for (command, flags, offset, len, error) in [
            (command::READ, 0, SIZE - 1, 2, errno::EINVAL),
            (command::READ, 0, u64::MAX - 1, 4, errno::EINVAL),
            (command::READ, 0, 0, (32 << 20) + 1, errno::EINVAL),
            (command::READ, 0, 0, 64 << 20, errno::EINVAL),
            (command::READ, df, 0, 512, errno::EINVAL),
            (command::READ, flag::NO_HOLE, 0, 512, errno::EINVAL),
            (command::TRIM, 0, SIZE, 1, errno::EINVAL),
            (command::TRIM, flag::FAST_ZERO, 0, 1, errno::EINVAL),
            (command::WRITE_ZEROES, 0, SIZE, 1, errno::ENOSPC),
            (command::WRITE_ZEROES, 0, u64::MAX, 2, errno::EINVAL),
            (command::WRITE_ZEROES, 0x8000, 0, 1, errno::EINVAL),
            (command::CACHE, 0, SIZE, 1, errno::EINVAL),
            (command::FLUSH, flag::DF, 0, 0, errno::EINVAL),
            (command::BLOCK_STATUS, 0, 0, 0, errno::EINVAL),
            (command::BLOCK_STATUS, 0, SIZE, 1, errno::EINVAL),
            (command::RESIZE, 0, 0, 1, errno::EINVAL),
            (u16::MAX, 0, 0, 0, errno::EINVAL),
        ] {
            let reply = prober.ask(&request(command, flags, offset, len), &[]).await;
            assert_eq!(reply.error, error, "{command} at {offset}+{len} {style:?}");
            assert_eq!(reply.text.is_empty(), style == ReplyStyle::Simple);
        }
        prober.is_in_step().await;
        let errors = rig.server.counters().total.errors;
        assert_eq!(errors, 18);
    }
}

#[tokio::test]
async fn the_payload_of_a_refused_write_is_skipped() {
    for style in STYLES {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.attach(style).await;
        let payload = prober.payload_flag();
        for (flags, offset, len, error) in [
            (0, SIZE - 1, 2, errno::ENOSPC),
            (0, SIZE, 300_000, errno::ENOSPC),
            (0, u64::MAX, 2, errno::EINVAL),
            (flag::DF, 0, 4096, errno::EINVAL),
            (0, 0, 40 << 20, errno::EINVAL),
        ] {
            for payload in [0, payload] {
                let write = request(command::WRITE, flags | payload, offset, len);
                let reply = prober.ask(&write, &vec![0x25; len as usize]).await;
                assert_eq!(reply.error, error, "{len} at {offset} {style:?}");
            }
        }
        prober.is_in_step().await;
    }
}

#[tokio::test]
async fn the_longest_request_that_is_told_works() {
    let len = 32usize << 20;
    let mut rig = Rig::new(Memory::new(40 << 20));
    for style in STYLES {
        let mut prober = rig.attach(style).await;
        let data: Vec<u8> = (0..len).map(|i| (i / 4096 % 255) as u8).collect();
        assert_eq!(prober.write(4096, &data).await.error, 0);
        let read = request(command::READ, 0, 4096, len as u64);
        assert!(prober.ask(&read, &[]).await.data == data);
    }
}

#[tokio::test]
async fn a_write_carries_its_payload_with_or_without_the_flag_that_says_so() {
    for style in STYLES {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.attach(style).await;
        for (offset, len) in [(0, 1), (4096, 4096), (1, 70_000), (100_000, 300_000)] {
            for flags in [0, flag::FUA, flag::PAYLOAD_LEN, flag::FUA | flag::PAYLOAD_LEN] {
                let data = vec![flags as u8 + 1; len];
                let write = request(command::WRITE, flags, offset, len as u64);
                assert_eq!(prober.ask(&write, &data).await.error, 0, "{flags:#x} {style:?}");
                let read = request(command::READ, 0, offset, len as u64);
                assert!(prober.ask(&read, &[]).await.data == data, "{flags:#x} {style:?}");
            }
        }
        prober.is_in_step().await;
    }
}

/// The bytes behind a header: those of a WRITE always, and else those that extended headers announce.
fn payload_of(style: ReplyStyle, command: u16, flags: u16, len: u64) -> usize {
    let announced = style == ReplyStyle::Extended && flags & flag::PAYLOAD_LEN != 0;
    if command == command::WRITE || announced { len as usize } else { 0 }
}

#[tokio::test]
async fn no_request_leaves_its_payload_to_be_taken_for_requests() {
    const LEN: usize = 70_000; // more than is received into the common buffer
    for (style, read_only) in STYLES.into_iter().flat_map(|style| [(style, false), (style, true)]) {
        let mut rig = Rig::new(special(read_only));
        let mut prober = rig.attach(style).await;
        // Taken for requests it would write, and be answered with cookies that nobody sent.
        let mut poison = Vec::new();
        while poison.len() < LEN {
            request(command::WRITE, flag::PAYLOAD_LEN, 512, 0).put(style, &mut poison);
        }
        for command in (0..=8).chain([9, 77, u16::MAX]).filter(|c| *c != command::DISCONNECT) {
            for (flags, len) in (0..64).flat_map(|flags| [(flags, 0), (flags, 900), (flags, LEN)]) {
                for offset in [4096, SIZE - 1, SIZE, u64::MAX - 5] {
                    let request = request(command, flags, offset, len as u64);
                    let payload = payload_of(style, command, flags, len as u64);
                    let reply = prober.ask(&request, &poison[..payload]).await;
                    let legal = match command {
                        command::WRITE => flag::FUA | flag::PAYLOAD_LEN,
                        command::READ if style != ReplyStyle::Simple => flag::FUA | flag::DF,
                        command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
                        command::BLOCK_STATUS => flag::FUA | flag::REQ_ONE,
                        _ => flag::FUA,
                    };
                    let unknown = command > command::BLOCK_STATUS;
                    if unknown || flags & !legal != 0 {
                        assert_eq!(reply.error, errno::EINVAL, "{request:?} {style:?}");
                    }
                    let last = (command, flags, offset, len) == (77, 63, SIZE, LEN);
                    if last || (len == LEN && offset == 4096) {
                        prober.is_in_step().await;
                    }
                }
            }
        }
        let untouched = prober.ask(&request(command::READ, 0, 0, 4096), &[]).await;
        assert!(untouched.data.iter().all(|b| *b == 0));
    }
}

#[tokio::test]
async fn a_payload_without_end_closes_the_connection() {
    for (command, flags) in [
        (command::WRITE, 0),
        (command::WRITE, flag::PAYLOAD_LEN),
        (command::BLOCK_STATUS, flag::PAYLOAD_LEN),
        (77, flag::PAYLOAD_LEN),
    ] {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.attach(ReplyStyle::Extended).await;
        let huge = request(command::WRITE_ZEROES, 0, 0, 1 << 40);
        assert_eq!(prober.ask(&huge, &[]).await.error, errno::ENOSPC, "64-bit lengths are known");
        prober.post(&request(command, flags, 0, 1 << 60), &[]).await;
        assert!(prober.is_closed().await, "it cannot be skipped");
        let error = rig.ended().await.unwrap_err();
        assert!(error.message().contains("payload"), "{error}");
        assert_eq!(rig.server.counters().protocol_errors, 1);
    }
}

#[tokio::test]
async fn empty_requests_succeed_and_change_nothing() {
    for style in STYLES {
        let mut rig = Rig::new(Memory::from(vec![7; SIZE as usize]));
        let mut prober = rig.attach(style).await;
        assert_eq!(prober.write(0, &[]).await.error, 0);
        for command in [command::READ, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            for offset in [0, SIZE] {
                let reply = prober.ask(&request(command, 0, offset, 0), &[]).await;
                assert_eq!((reply.error, reply.data.len()), (0, 0), "{command}");
            }
        }
        let read = prober.ask(&request(command::READ, 0, 0, SIZE), &[]).await;
        assert!(read.data.iter().all(|b| *b == 7));
    }
}

#[tokio::test]
async fn a_read_only_export_says_so_and_refuses_every_change() {
    for style in STYLES {
        let mut rig = Rig::new(special(true));
        let mut prober = rig.attach(style).await;
        assert_eq!(prober.write(0, &[1; 512]).await.error, errno::EPERM);
        assert_eq!(prober.write(SIZE, &[1; 512]).await.error, errno::EPERM);
        for command in [command::TRIM, command::WRITE_ZEROES] {
            let reply = prober.ask(&request(command, 0, 0, 512), &[]).await;
            assert_eq!(reply.error, errno::EPERM);
        }
        assert_eq!(prober.ask(&request(command::FLUSH, 0, 0, 0), &[]).await.error, 0);
        prober.is_in_step().await;
    }
}

#[tokio::test]
async fn block_status_tells_joined_extents_and_one_when_asked() {
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let mut rig = Rig::new(special(false));
        let mut prober = rig.attach(style).await;
        let span = Span::between(4096, 36_864);
        let ask = request(command::BLOCK_STATUS, 0, span.offset(), span.len());
        let answer = prober.ask(&ask, &[]).await;
        let wide = style == ReplyStyle::Extended;
        assert_eq!(answer.kind, if wide { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS });
        let (_, list) = reply::parse_extents(style, span, &answer.data).unwrap();
        let lens: Vec<_> = list.iter().map(|e| (e.span.len() / 4096, e.kind)).collect();
        use ExtentKind::{Data, Hole, Zero};
        assert_eq!(
            lens,
            [(1, Data), (1, Zero), (1, Hole), (2, Data), (1, Zero), (1, Hole), (1, Data)]
        );
        let one = request(command::BLOCK_STATUS, flag::REQ_ONE, span.offset(), span.len());
        let answer = prober.ask(&one, &[]).await;
        assert_eq!(reply::parse_extents(style, span, &answer.data).unwrap().1.len(), 1);
        let end = request(command::BLOCK_STATUS, 0, SIZE - 5, 5);
        assert_eq!(prober.ask(&end, &[]).await.error, 0);
    }
}

const GIB: u64 = 1 << 30;

/// What a device of a TiB says that is a hole in its second GiB, and knows nothing beyond `known`.
fn vast(span: Span, known: u64) -> Vec<Extent> {
    let (known, _) = span.split_at(known);
    let (before, behind) = known.split_at(GIB);
    let (hole, behind) = behind.split_at(2 * GIB);
    let mut list = Vec::new();
    extent::push(&mut list, before, ExtentKind::Data);
    extent::push(&mut list, hole, ExtentKind::Hole);
    extent::push(&mut list, behind, ExtentKind::Data);
    list
}

#[tokio::test]
async fn a_range_without_end_is_told_of_and_read_ahead_for_four_gib() {
    // What the device knows, and the ends of the extents that the client is told.
    for (known, ends) in [(1024 * GIB, vec![1, 2, 4]), (GIB, vec![1]), (2 * GIB, vec![1, 2])] {
        let device = ScriptedDevice::noting(Blank(1024 * GIB))
            .with_extents(move |span, _| vast(span, known));
        let device = Arc::new(device);
        let mut rig = Rig::new(Arc::clone(&device));
        let mut prober = rig.attach(ReplyStyle::Extended).await;
        let whole = Span::whole(1024 * GIB);
        for (flags, told) in [(0, ends.len()), (flag::REQ_ONE, 1)] {
            let ask = request(command::BLOCK_STATUS, flags, 0, whole.len());
            let answer = prober.ask(&ask, &[]).await;
            let (_, list) = reply::parse_extents(prober.style, whole, &answer.data).unwrap();
            let list: Vec<_> = list.iter().map(|extent| extent.span.end() / GIB).collect();
            assert_eq!(list, ends[..told]);
        }
        let ask = request(command::CACHE, 0, 0, whole.len());
        assert_eq!(prober.ask(&ask, &[]).await.error, 0);
        assert_eq!(device.bytes(|call| matches!(call, Operation::Prefetch(_))), 4 * GIB);
    }
}

#[tokio::test]
async fn a_devices_error_reaches_the_client_with_its_number_and_text() {
    for (kind, error) in [
        (ErrorKind::NoSpace, errno::ENOSPC),
        (ErrorKind::Corrupt, errno::EIO),
        (ErrorKind::Unavailable, errno::EIO),
        (ErrorKind::Denied, errno::EPERM),
        (ErrorKind::Fenced, errno::EPERM),
        (ErrorKind::Invalid, errno::EINVAL),
        (ErrorKind::Unsupported, errno::ENOTSUP),
        (ErrorKind::Internal, errno::EIO),
    ] {
        let mut rig = Rig::new(ScriptedDevice::new(Memory::new(SIZE), move |op| match op {
            Operation::Read(span) if span.len() == 512 => Fault::None,
            _ => Fault::Fail(kind),
        }));
        let mut prober = rig.attach(ReplyStyle::Structured).await;
        for command in [command::READ, command::FLUSH, command::TRIM, command::BLOCK_STATUS] {
            let reply = prober.ask(&request(command, 0, 0, 4096), &[]).await;
            assert_eq!(reply.error, error, "{kind:?}");
            assert!(reply.text.contains("injected fault"));
        }
        assert_eq!(prober.write(0, &[1; 4096]).await.error, error);
        prober.is_in_step().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_request_holds_up_no_other_and_is_answered_out_of_order() {
    let mut rig = Rig::new(ScriptedDevice::new(Memory::new(SIZE), |op| match op {
        Operation::Read(span) => Fault::Delay(Duration::from_millis(span.len())),
        _ => Fault::None,
    }));
    let mut prober = rig.attach(ReplyStyle::Simple).await;
    for len in [3000, 1000, 2000] {
        prober.post(&request(command::READ, 0, len, len), &[]).await;
    }
    for len in [1000, 2000, 3000] {
        assert_eq!(prober.reply(len).await.cookie, len as u64 ^ 0xabcd);
    }
    assert_eq!(rig.server.counters().total.waited, 3);
}

#[tokio::test]
async fn a_hundred_requests_at_once_are_all_answered() {
    for style in STYLES {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.attach(style).await;
        let mut all = Vec::new();
        for i in 0..100u64 {
            request(command::READ, 0, i * 4096, 4096).put(style, &mut all);
        }
        prober.send(&all).await;
        for i in 0..100u64 {
            assert_eq!(prober.reply(4096).await.cookie, (i * 4096) ^ 0xabcd);
        }
        let counters = rig.server.counters();
        assert_eq!((counters.total.reads, counters.total.waited), (100, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn replies_in_flight_are_delivered_to_a_half_closed_client() {
    use tokio::io::AsyncWriteExt;
    let slow = |op| match op {
        Operation::Read(_) => Fault::Delay(Duration::from_secs(1)),
        _ => Fault::None,
    };
    let mut rig = Rig::new(ScriptedDevice::new(Memory::new(SIZE), slow));
    let mut prober = rig.attach(ReplyStyle::Simple).await;
    for offset in 0..8 {
        prober.post(&request(command::READ, 0, offset, 4096), &[]).await;
    }
    prober.send(&[0x25, 0x60]).await; // half a header
    prober.stream.shutdown().await.unwrap();
    for _ in 0..8 {
        assert_eq!(prober.reply(4096).await.error, 0);
    }
    assert!(prober.is_closed().await);
    rig.ended().await.unwrap();
    assert_eq!(*rig.endings.lock().unwrap(), [("disk".to_owned(), SessionEnding::Lost)]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_is_in_flight_leaves_the_rest_unanswered_and_flushes() {
    use tokio::io::AsyncReadExt;
    for style in STYLES {
        let device = Arc::new(ScriptedDevice::new(Memory::new(SIZE), |op| match op {
            Operation::Write(_) => Fault::Hold,
            _ => Fault::None,
        }));
        let mut rig = Rig::new(Arc::clone(&device));
        let (mut prober, stop) = rig.connect_with(1 << 20);
        prober.attach(style).await;
        let flags = prober.payload_flag();
        prober.post(&request(command::WRITE, flags, 4096, 512), &[1; 512]).await;
        device.calls.until(|log| log.held == 1).await;
        stop.send(()).unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        // The kernel's driver would take an error for the read's last word.
        prober.post(&request(command::READ, 0, 0, 512), &[]).await;
        prober.post(&request(command::WRITE, flags, 0, 512), &[2; 512]).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        device.calls.release(1);
        let reply = prober.reply(0).await;
        assert_eq!((reply.cookie, reply.error), (4096 ^ 0xabcd, 0));
        let mut rest = Vec::new();
        prober.stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"", "who is not answered asks again");
        rig.ended().await.unwrap();
        let log = device.calls.log();
        assert_eq!(log.count(|call| matches!(call, Operation::Write(_))), 1);
        assert_eq!(log.count(|call| *call == Operation::Flush), 1);
        drop(log);
        assert_eq!(*rig.endings.lock().unwrap(), [("disk".to_owned(), SessionEnding::Lost)]);
    }
}

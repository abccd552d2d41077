use super::log::BUFFER;
use super::{Collector, ConnectionLog, Recorder, WAITING};
use crate::{
    Flags, Header, MergeOptions, Merged, Op, OpenTraceOptions, Request, Source, TraceDisk, read,
};
use block::{Action, Answered, Observer, Span};
use proptest::prelude::*;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, advance};

fn disk(name: &str) -> TraceDisk {
    TraceDisk { name: name.into(), size: 1 << 20, base: "image:1".into() }
}

fn one(action: Action, offset: u64, length: u64) -> Answered {
    let span = Span::between(offset, offset + length);
    Answered { span, action, durable: false, failed: false }
}

/// Notes a request that is answered now.
fn note(log: &ConnectionLog, took: Duration, request: Answered) {
    log.answered(Instant::now() - took, took, &[request]);
}

fn requests(bytes: Vec<u8>) -> (Header, Vec<Request>) {
    let mut source = read(Box::new(Cursor::new(bytes)), "t", &OpenTraceOptions::default()).unwrap();
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while source.read(&mut batch).unwrap() {
        all.extend_from_slice(&batch);
    }
    (source.header().clone(), all)
}

fn finish(collector: Collector<Vec<u8>>) -> (Header, Vec<Request>) {
    let (bytes, count, length) = collector.finish().unwrap();
    assert_eq!(length, bytes.len() as u64);
    let (header, all) = requests(bytes);
    assert_eq!(all.len() as u64, count);
    (header, all)
}

fn collector(recorder: &Arc<Recorder>) -> Collector<Vec<u8>> {
    Collector::new(Arc::clone(recorder), Vec::new(), "t", u64::MAX, "").unwrap()
}

#[tokio::test(start_paused = true)]
async fn requests_are_written_as_they_were_made() {
    let recorder = Recorder::new(1_000_000_007);
    let mut collector = collector(&recorder);
    let (a, b) = (recorder.log("a".into(), disk("x")), recorder.log("b".into(), disk("y")));
    let durable = Answered { durable: true, ..one(Action::Write, 4096, 4096) };
    note(&a, Duration::ZERO, durable);
    advance(Duration::from_millis(5)).await;
    note(&b, Duration::from_millis(2), one(Action::Read, 0, 512));
    advance(Duration::from_millis(5)).await;
    let batch = [one(Action::Flush, 0, 0), one(Action::Trim, 8192, 6 << 32)];
    a.answered(Instant::now(), Duration::from_micros(3), &batch);
    collector.pass().unwrap();
    advance(Duration::from_secs(3)).await;
    drop(b);
    collector.pass().unwrap();
    assert_eq!(collector.written().0, 10);
    let (header, all) = finish(collector);
    assert_eq!(header.clients, ["a", "b"]);
    assert_eq!(header.disks, [disk("x"), disk("y")]);
    assert_eq!(header.start, 1_000_000_007);
    let short = |r: &Request| (r.time, r.client, r.op, r.offset, r.length, r.latency, r.flags);
    let (ms, part) = (1_000_000, u32::MAX / 4096 * 4096);
    assert_eq!(
        all.iter().take(5).map(short).collect::<Vec<_>>(),
        [
            (0, 0, Op::Write, 4096, 4096, 1, Flags::FUA),
            (3 * ms, 1, Op::Read, 0, 512, 2_000_000, Flags::NONE),
            (10 * ms, 0, Op::Flush, 0, 0, 3000, Flags::NONE),
            (10 * ms, 0, Op::Trim, 8192, part, 3000, Flags::NONE),
            (10 * ms, 0, Op::Trim, 8192 + u64::from(part), part, 3000, Flags::NONE),
        ]
    );
    assert_eq!(all[3..].iter().map(|r| u64::from(r.length)).sum::<u64>(), 6 << 32);
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_failed_request_is_recorded_when_it_ends() {
    for seconds in [4, 20] {
        let recorder = Recorder::new(0);
        let mut collector = collector(&recorder);
        let slow = recorder.log("slow".into(), disk("x"));
        let fast = recorder.log("fast".into(), disk("y"));
        for _ in 0..seconds * 10 {
            advance(Duration::from_millis(100)).await;
            note(&fast, Duration::ZERO, one(Action::Flush, 0, 0));
            collector.pass().unwrap();
        }
        note(&slow, Duration::from_secs(seconds), one(Action::Read, 0, 512));
        advance(Duration::from_millis(1)).await;
        let failed = Answered { failed: true, ..one(Action::Flush, 0, 0) };
        note(&slow, Duration::ZERO, failed);
        let (header, all) = finish(collector);
        let late = all.iter().find(|r| r.op == Op::Read).unwrap();
        assert!(late.flags.has(Flags::LATE));
        assert_eq!(late.time + u64::from(late.latency), seconds * 1_000_000_000);
        assert!(all.last().unwrap().flags.has(Flags::FAILED));
        assert!(header.notes.contains("1 requests took so long"), "{}", header.notes);
    }
}

#[tokio::test]
async fn what_nobody_takes_is_dropped_and_counted() {
    let recorder = Recorder::new(0);
    let collector = collector(&recorder);
    let log = recorder.log("c".into(), disk("x"));
    let batch = [one(Action::Read, 0, 512); 100];
    let whole = BUFFER / batch.len() * batch.len();
    for _ in 0..(WAITING + 4) * (BUFFER / batch.len()) {
        log.answered(Instant::now(), Duration::ZERO, &batch);
    }
    assert_eq!(recorder.dropped(), 3 * whole as u64);
    let (header, all) = finish(collector);
    assert_eq!(all.len(), (WAITING + 1) * whole);
    assert!(header.notes.contains("3000 requests were dropped"), "{}", header.notes);
}

#[tokio::test]
async fn a_stopped_recorder_notes_nothing() {
    let recorder = Recorder::new(0);
    let collector = collector(&recorder);
    let log = recorder.log("c".into(), disk("x"));
    recorder.stop();
    note(&log, Duration::ZERO, one(Action::Flush, 0, 0));
    assert!(finish(collector).1.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_recording_goes_on_in_the_next_file_and_loses_nothing() {
    let recorder = Recorder::new(5_000_000_000);
    let log = recorder.log("c".into(), disk("x"));
    let mut collector =
        Collector::new(Arc::clone(&recorder), Vec::new(), "1", 2000, "a note").unwrap();
    let (mut files, mut count) = (Vec::new(), 0);
    while files.len() < 4 {
        for _ in 0..50 {
            advance(Duration::from_millis(10)).await;
            note(&log, Duration::ZERO, one(Action::Read, count * 4096, 4096));
            count += 1;
        }
        collector.pass().unwrap();
        if collector.is_full() {
            files.push(collector.rotate(Vec::new(), "next").unwrap().0);
        }
    }
    files.push(collector.finish().unwrap().0);
    let mut at = 0;
    for bytes in files {
        let (header, all) = requests(bytes);
        assert_eq!((header.clients, header.notes), (vec!["c".to_owned()], "a note".to_owned()));
        assert!(all.first().is_none_or(|first| first.time <= 10_000_000));
        for request in all {
            assert_eq!(request.offset, at * 4096);
            at += 1;
            // The clock of the file and the time in it make the moment.
            assert_eq!(header.start + request.time, 5_000_000_000 + at * 10_000_000);
        }
    }
    assert_eq!(at, count);
}

#[tokio::test(start_paused = true)]
async fn the_parts_of_a_recording_are_one_again_when_merged_by_the_clock() {
    let recorder = Recorder::new(5_000_000_000);
    let logs = ["b", "a"].map(|name| recorder.log(name.into(), disk(name)));
    let mut collector = Collector::new(Arc::clone(&recorder), Vec::new(), "1", 2000, "").unwrap();
    let (mut files, mut count) = (Vec::new(), 0);
    while files.len() < 3 {
        for _ in 0..50 {
            advance(Duration::from_millis(10)).await;
            note(&logs[count as usize % 2], Duration::ZERO, one(Action::Read, count * 512, 512));
            count += 1;
        }
        collector.pass().unwrap();
        if collector.is_full() {
            files.push(collector.rotate(Vec::new(), "next").unwrap().0);
        }
    }
    files.push(collector.finish().unwrap().0);
    // In any order, and without the first.
    for (skip, order) in [(0, [2, 0, 3, 1]), (1, [3, 2, 1, 0])] {
        let parts = order.into_iter().filter(|part| *part >= skip).map(|part| {
            let file = Cursor::new(files[part].clone());
            let source = read(Box::new(file), "t", &OpenTraceOptions::default()).unwrap();
            (format!("part {part}"), source)
        });
        let same = MergeOptions { disks: true, clients: true };
        let mut merged = Merged::by_clock(parts.collect(), same).unwrap();
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        while merged.read(&mut batch).unwrap() {
            all.extend_from_slice(&batch);
        }
        let header = merged.header();
        assert_eq!((header.clients.len(), header.disks.len()), (2, 2));
        let first = if skip == 0 { 0 } else { requests(files[0].clone()).1.len() as u64 };
        assert_eq!(all.len() as u64, count - first);
        for (number, request) in (first..).zip(&all) {
            assert_eq!(request.offset, number * 512);
            assert_eq!(header.start + request.time, 5_000_000_000 + (number + 1) * 10_000_000);
            let name = ["b", "a"][number as usize % 2];
            assert_eq!(header.clients[request.client as usize], name);
            assert_eq!(header.disks[request.disk as usize], disk(name));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_short_lived_clients_cost_their_names_once() {
    let recorder = Recorder::new(0);
    let mut collector = collector(&recorder);
    let (rounds, each) = (40, 500);
    for round in 0..rounds {
        for client in 0..each {
            let name = format!("pid:{}", round * each + client);
            let log = recorder.log(name, disk("x"));
            note(&log, Duration::ZERO, one(Action::Read, 0, 4096));
        }
        advance(Duration::from_secs(2)).await;
        collector.pass().unwrap();
    }
    let (bytes, count, _) = collector.finish().unwrap();
    assert_eq!(count, rounds * each);
    assert!(bytes.len() < 40 * count as usize, "{} bytes", bytes.len());
    let (header, all) = requests(bytes);
    for (number, request) in all.iter().enumerate() {
        assert_eq!(header.clients[request.client as usize], format!("pid:{number}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Against the simplest model: a list that is sorted at the end.
    #[test]
    fn batches_of_many_connections_come_in_order_of_time(
        batches in prop::collection::vec((0usize..5, 0u64..400, 1usize..40), 1..300),
        passes in prop::collection::vec(1usize..30, 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let recorder = Recorder::new(0);
            let start = Instant::now();
            let mut collector = collector(&recorder);
            let mut logs: Vec<_> =
                (0..5).map(|n| recorder.log(format!("{n}"), disk(&format!("{n}")))).collect();
            let mut expected = Vec::new();
            let (mut passes, mut left) = (passes.iter().cycle(), 1);
            for (number, (who, took, size)) in batches.iter().enumerate() {
                advance(Duration::from_millis(7)).await;
                let took = Duration::from_millis(*took).min(start.elapsed());
                let batch: Vec<_> = (0..*size as u64)
                    .map(|i| one(Action::Read, (number as u64 * 64 + i) * 512, 512))
                    .collect();
                logs[*who].answered(Instant::now() - took, took, &batch);
                let began = (start.elapsed() - took).as_nanos() as u64;
                expected.extend(batch.iter().map(|r| (began, r.span.offset(), *who)));
                left -= 1;
                if left == 0 {
                    left = *passes.next().unwrap();
                    collector.pass().unwrap();
                    // A connection that ends and comes again.
                    logs[*who] = recorder.log(format!("{who}"), disk(&format!("{who}")));
                }
            }
            let (header, all) = finish(collector);
            let mut got: Vec<_> = all
                .iter()
                .map(|r| {
                    let who = header.clients[r.client as usize].parse::<usize>().unwrap();
                    (r.time, r.offset, who)
                })
                .collect();
            assert!(all.is_sorted_by_key(|r| r.time));
            got.sort_unstable();
            expected.sort_unstable();
            assert_eq!(got, expected);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_falls_quiet_keeps_no_buffer() {
    let recorder = Recorder::new(0);
    let log = recorder.log("c".into(), disk("x"));
    let batch = [one(Action::Read, 0, 512); BUFFER];
    log.answered(Instant::now(), Duration::ZERO, &batch);
    log.answered(Instant::now(), Duration::ZERO, &batch);
    assert!(log.holds_buffer());
    note(&log, Duration::ZERO, one(Action::Flush, 0, 0));
    let mut collector = collector(&recorder);
    collector.pass().unwrap();
    collector.pass().unwrap();
    assert!(!log.holds_buffer());
    note(&log, Duration::ZERO, one(Action::Flush, 0, 0));
    assert_eq!(finish(collector).1.len(), 2 * BUFFER + 2);
}

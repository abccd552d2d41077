use super::{BUFFER, Collector, Note, Recorded, Recorder, WAITING};
use crate::{Disk, Flags, Header, Op, OpenOptions, Request, read};
use block::{Device, Durability, Fault, Faulty, Memory, Operation, Span, conformance};
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

fn disk(name: &str) -> Disk {
    Disk { name: name.into(), size: 1 << 20, base: "image:1".into() }
}

fn span(offset: u64, len: u64) -> Span {
    Span::within(offset, len, 1 << 20).unwrap()
}

fn finish(collector: Collector<Vec<u8>>) -> (Header, Vec<Request>) {
    let (bytes, requests, length) = collector.finish().unwrap();
    assert_eq!(length, bytes.len() as u64);
    let mut source = read(Box::new(Cursor::new(bytes)), "t", &OpenOptions::default()).unwrap();
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while source.read(&mut batch).unwrap() {
        all.extend_from_slice(&batch);
    }
    assert_eq!(all.len() as u64, requests);
    (source.header().clone(), all)
}

fn collector(recorder: &Arc<Recorder>) -> Collector<Vec<u8>> {
    Collector::new(Arc::clone(recorder), Vec::new(), "t", u64::MAX, "").unwrap()
}

#[tokio::test]
async fn the_layer_keeps_the_contract_of_a_device() {
    let recorder = Recorder::new();
    conformance::check(|size| {
        let device = Recorded::new(Memory::new(size), &recorder, "c", &disk("d"));
        async { Arc::new(device) as Arc<dyn Device> }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_are_written_as_they_were_made() {
    let recorder = Recorder::new();
    let mut collector = collector(&recorder);
    let memory = Arc::new(Memory::new(1 << 20));
    let a = Recorded::new(Arc::clone(&memory), &recorder, "a", &disk("x"));
    let b = Recorded::new(memory, &recorder, "b", &disk("y"));
    a.write(span(4096, 4096), &[1; 4096], Durability::Durable).await.unwrap();
    tokio::time::advance(Duration::from_millis(5)).await;
    b.read(span(0, 512), &mut [0; 512]).await.unwrap();
    tokio::time::advance(Duration::from_millis(5)).await;
    a.flush().await.unwrap();
    a.discard(span(8192, 4096), Durability::Buffered).await.unwrap();
    collector.pass().unwrap();
    tokio::time::advance(Duration::from_secs(3)).await;
    drop(b);
    collector.pass().unwrap();
    assert_eq!(collector.written().0, 4);
    let (header, all) = finish(collector);
    assert_eq!(header.clients, ["a", "b"]);
    assert_eq!(header.disks, [disk("x"), disk("y")]);
    let short = |r: &Request| (r.time / 1_000_000, r.client, r.op, r.offset, r.length, r.flags);
    assert_eq!(
        all.iter().map(short).collect::<Vec<_>>(),
        [
            (0, 0, Op::Write, 4096, 4096, Flags::FUA),
            (5, 1, Op::Read, 0, 512, Flags::NONE),
            (10, 0, Op::Flush, 0, 0, Flags::NONE),
            (10, 0, Op::Trim, 8192, 4096, Flags::NONE),
        ]
    );
    assert!(all.iter().all(|r| r.latency >= 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_failed_request_is_recorded_when_it_ends() {
    let recorder = Recorder::new();
    let mut collector = collector(&recorder);
    let faulty = Faulty::new(Memory::new(1 << 20), |operation| match operation {
        Operation::Read(_) => Fault::Delay(Duration::from_secs(4)),
        Operation::Flush => Fault::Fail(block::ErrorKind::Unavailable),
        _ => Fault::None,
    });
    let slow = Recorded::new(faulty, &recorder, "slow", &disk("x"));
    let fast = Recorded::new(Memory::new(1 << 20), &recorder, "fast", &disk("y"));
    let mut buffer = [0; 512];
    let waiting = slow.read(span(0, 512), &mut buffer);
    tokio::pin!(waiting);
    for _ in 0..35 {
        let limit = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
        assert!(limit.is_err());
        fast.flush().await.unwrap();
        collector.pass().unwrap();
    }
    waiting.await.unwrap();
    assert!(slow.flush().await.is_err());
    let (header, all) = finish(collector);
    let late = all.iter().find(|r| r.op == Op::Read).unwrap();
    assert!(late.flags.has(Flags::LATE));
    let answered = late.time + u64::from(late.latency);
    assert!(answered.abs_diff(4_000_000_000) < 10_000_000, "{late:?}");
    assert!(all.last().unwrap().flags.has(Flags::FAILED));
    assert!(header.notes.contains("1 requests took so long"), "{}", header.notes);
}

#[tokio::test]
async fn what_nobody_takes_is_dropped_and_counted() {
    let recorder = Recorder::new();
    let collector = collector(&recorder);
    let device = Recorded::new(Memory::new(1 << 20), &recorder, "c", &disk("x"));
    let made = (WAITING + 3) * BUFFER;
    let mut buffer = [0; 512];
    for _ in 0..made {
        device.read(span(0, 512), &mut buffer).await.unwrap();
    }
    assert_eq!(recorder.dropped(), 3 * BUFFER as u64);
    let (header, all) = finish(collector);
    assert_eq!(all.len(), WAITING * BUFFER);
    assert!(header.notes.contains("3072 requests were dropped"), "{}", header.notes);
}

#[test]
fn recording_ends_at_its_limit() {
    let recorder = Recorder::new();
    let mut collector = Collector::new(recorder, Vec::new(), "t", 100, "").unwrap();
    let error = collector.pass().unwrap_err();
    assert_eq!(error.kind(), block::ErrorKind::NoSpace);
}

#[tokio::test(start_paused = true)]
async fn a_late_request_tells_its_answer_however_long_it_took() {
    let recorder = Recorder::new();
    let mut collector = collector(&recorder);
    let slow = Faulty::new(Memory::new(1 << 20), |operation| match operation {
        Operation::Read(_) => Fault::Delay(Duration::from_secs(20)),
        _ => Fault::None,
    });
    let slow = Recorded::new(slow, &recorder, "slow", &disk("x"));
    let fast = Recorded::new(Memory::new(1 << 20), &recorder, "fast", &disk("y"));
    let mut buffer = [0; 512];
    let waiting = slow.read(span(0, 512), &mut buffer);
    tokio::pin!(waiting);
    for _ in 0..199 {
        let limit = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
        assert!(limit.is_err());
        fast.flush().await.unwrap();
        collector.pass().unwrap();
    }
    waiting.await.unwrap();
    let (_, all) = finish(collector);
    let late = all.iter().find(|r| r.op == Op::Read).unwrap();
    assert!(late.flags.has(Flags::LATE));
    let answered = late.time + u64::from(late.latency);
    assert!(answered.abs_diff(20_000_000_000) < 10_000_000, "{late:?}");
}

#[test]
fn a_latency_that_is_not_known_stays_unknown_when_its_request_comes_late() {
    let note = Note::new(&Request { time: 5, length: 512, ..Request::default() }, 0);
    let (early, late) = (note.request(0, 0, 5), note.request(0, 0, 9));
    assert_eq!((early.time, early.latency, early.flags), (5, 0, Flags::NONE));
    assert_eq!((late.time, late.latency, late.flags), (9, 0, Flags::LATE));
}

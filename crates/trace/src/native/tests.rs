use super::column::Effort;
use super::reader::NativeReader;
use super::writer::Writer;
use crate::{Flags, Header, Op, Request, Source, TraceDisk};
use block::ErrorKind;
use proptest::prelude::*;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

fn write(header: Header, requests: &[Request], every: usize, effort: Effort) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "t", header, effort).unwrap();
    for (i, request) in requests.iter().enumerate() {
        writer.push(request).unwrap();
        if (i + 1) % every == 0 {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap()
}

fn drain(source: &mut dyn Source) -> block::Result<Vec<Request>> {
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while source.read(&mut batch)? {
        assert!(!batch.is_empty() && batch.len() <= super::MAX_REQUESTS);
        all.extend_from_slice(&batch);
    }
    assert!(batch.is_empty());
    Ok(all)
}

fn file(bytes: &[u8]) -> block::Result<NativeReader<Cursor<Vec<u8>>>> {
    NativeReader::file(Cursor::new(bytes.to_vec()), PathBuf::from("t"), None)
}

fn read(bytes: &[u8]) -> block::Result<(Header, Vec<Request>)> {
    let mut reader = file(bytes)?;
    let all = drain(&mut reader)?;
    Ok((reader.header().clone(), all))
}

fn some(n: u64) -> Vec<Request> {
    let request = |i: u64| Request {
        time: i * 1000 + (i % 7) * 13,
        client: (i % 5) as u32,
        disk: (i % 3) as u32,
        op: Op::ALL[(i % 11 % 5) as usize],
        offset: (i * 2_654_435_761) % (1 << 38) * 512,
        length: [4096, 8192, 512, 65536][(i % 4) as usize],
        latency: (i * 7919 % 100_000) as u32,
        flags: Flags((i % 8) as u8),
    };
    (0..n).map(request).collect()
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let wide = prop_oneof![Just(0u64), 0..10_000u64, any::<u64>()];
    let one = (wide.clone(), wide.clone(), wide.clone(), wide, 0usize..5, 0u8..8);
    // Spread over few or many bits, with steps or without, as real columns are.
    (prop::collection::vec(one, 0..300), 0u32..64, 0u32..40, 1u64..5000).prop_map(
        |(all, bits, spread, step)| {
            let mut time = 0u64;
            let build = |(t, o, l, c, op, flags): (u64, u64, u64, u64, usize, u8)| {
                time = time.saturating_add((t >> bits.max(20)).saturating_mul(step));
                let length = (l >> 32 >> (spread % 32)) as u32;
                Request {
                    time,
                    client: (c >> 44) as u32 >> (spread % 21),
                    disk: (o >> 44) as u32 >> (spread % 20),
                    op: Op::ALL[op],
                    offset: ((o >> 1 >> spread) / step * step).min((1 << 63) - u64::from(length)),
                    length,
                    latency: c as u32,
                    flags: Flags(flags),
                }
            };
            all.into_iter().map(build).collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_written_is_read(all in requests(), every in 1usize..200, low: bool) {
        let effort = if low { Effort::Low } else { Effort::Normal };
        let bytes = write(Header::default(), &all, every, effort);
        let (header, back) = read(&bytes).unwrap();
        prop_assert_eq!(&back, &all);
        prop_assert_eq!(header.requests, Some(all.len() as u64));
        prop_assert!(header.complete);
        let clients = all.iter().map(|r| r.client + 1).max().unwrap_or(0);
        prop_assert_eq!(header.clients.len(), clients as usize);
        let mut stream = NativeReader::stream(&bytes[..], PathBuf::from("t")).unwrap();
        prop_assert_eq!(&drain(&mut stream).unwrap(), &all);
        prop_assert!(stream.header().complete);
        prop_assert_eq!(stream.header().clients.len(), clients as usize);
    }

    #[test]
    fn a_cut_trace_gives_its_whole_blocks_and_says_that_it_is_cut(cut in 0usize..100_000) {
        let all = some(1000);
        let bytes = write(Header::default(), &all, 100, Effort::Normal);
        let cut = cut % bytes.len();
        match read(&bytes[..cut]) {
            Ok((header, back)) => {
                prop_assert!(!header.complete);
                prop_assert_eq!(header.requests, Some(back.len() as u64));
                prop_assert!(back.len() % 100 == 0 && all.starts_with(&back));
                let mut stream = NativeReader::stream(&bytes[..cut], PathBuf::from("t")).unwrap();
                prop_assert_eq!(drain(&mut stream).unwrap(), back);
                let before_the_index = header.requests != Some(1000);
                prop_assert!(!before_the_index || !stream.header().complete);
            }
            Err(e) => {
                prop_assert_eq!(e.kind(), ErrorKind::Corrupt);
                prop_assert!(cut < 400, "only without a header: {}", e);
            }
        }
    }

    #[test]
    fn a_changed_byte_is_found_or_changes_nothing(at in 0usize..100_000, bit in 0u8..8) {
        let all = some(700);
        let mut bytes = write(Header::default(), &all, 100, Effort::Normal);
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        for result in [
            read(&bytes),
            NativeReader::stream(&bytes[..], PathBuf::from("t"))
                .and_then(|mut s| drain(&mut s).map(|all| (s.header().clone(), all))),
        ] {
            match result {
                // A broken trailer: as if it had never been finished. Damage is seen as an end
                // only behind the last whole frame.
                Ok((header, back)) => prop_assert!(
                    back == all || (!header.complete && all.starts_with(&back)),
                    "wrong requests"
                ),
                Err(e) => prop_assert!(e.to_string().starts_with("t: "), "{}", e),
            }
        }
    }

    #[test]
    fn nothing_makes_the_block_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400), count in 0u32..70_000,
    ) {
        let mut payload = count.to_le_bytes().to_vec();
        payload.extend(bytes);
        let mut reader = super::block::BlockReader::new().unwrap();
        let _ = reader.decode(&payload, 0, &mut Vec::new());
    }
}

#[test]
fn names_that_come_late_are_kept() {
    let mut writer = Writer::new(Vec::new(), "t", Header::default(), Effort::Low).unwrap();
    let all = some(300);
    for (i, request) in all.iter().enumerate() {
        if i == 150 {
            writer.flush().unwrap();
            let header = writer.header_mut();
            header.clients = vec!["late".into()];
            header.disks = vec![TraceDisk { name: "d".into(), size: 1 << 30, base: "b:1".into() }];
            header.note("a note");
        }
        writer.push(request).unwrap();
    }
    writer.flush().unwrap();
    let (header, back) = read(&writer.finish().unwrap()).unwrap();
    assert_eq!(back, all);
    assert_eq!((header.clients[0].as_str(), header.clients.len()), ("late", 5));
    assert_eq!((header.disks[0].size, header.disks.len()), (1 << 30, 3));
    assert_eq!(header.notes, "a note");
}

#[test]
fn a_range_of_times_skips_whole_blocks() {
    let all = some(100_000);
    let bytes = write(Header::default(), &all, 1000, Effort::Normal);
    let times = all[50_500].time..all[52_500].time;
    let cursor = Cursor::new(bytes);
    let mut reader = NativeReader::file(cursor, PathBuf::from("t"), Some(times)).unwrap();
    assert_eq!(drain(&mut reader).unwrap(), all[50_000..53_000]);
    assert_eq!(reader.header().requests, Some(3000));
}

#[test]
fn requests_out_of_order_or_range_are_refused() {
    let mut writer = Writer::new(Vec::new(), "t", Header::default(), Effort::Low).unwrap();
    writer.push(&Request { time: 5, ..Request::default() }).unwrap();
    let back = writer.push(&Request { time: 4, ..Request::default() }).unwrap_err();
    assert!(back.to_string().contains("request 2") && back.to_string().contains("sort"), "{back}");
    for bad in [
        Request { time: 9, offset: 1 << 63, length: 1, ..Request::default() },
        Request { time: 9, offset: u64::MAX, length: 9, ..Request::default() },
        Request { time: 9, client: 1 << 20, ..Request::default() },
    ] {
        assert_eq!(writer.push(&bad).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_newer_version_is_refused_by_its_number() {
    let mut bytes = write(Header::default(), &some(1), 10, Effort::Normal);
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let error = read(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn an_empty_trace_is_a_trace() {
    let (header, all) = read(&write(Header::default(), &[], 10, Effort::Normal)).unwrap();
    assert!(all.is_empty() && header.complete && header.requests == Some(0));
}

#[test]
fn sequential_requests_take_almost_no_room() {
    let request =
        |i: u64| Request { time: i * 1000, offset: i * 4096, length: 4096, ..Request::default() };
    let all: Vec<Request> = (0..100_000).map(request).collect();
    let bytes = write(Header::default(), &all, usize::MAX, Effort::Normal);
    assert!(bytes.len() < 5000, "{} bytes", bytes.len());
    assert_eq!(read(&bytes).unwrap().1, all);
}

#[test]
fn a_last_block_whose_payload_never_reached_the_disk_costs_only_itself() {
    let mut writer = Writer::new(Vec::new(), "t", Header::default(), Effort::Low).unwrap();
    let requests = some(300);
    writer.append(&requests[..200]).unwrap();
    writer.flush().unwrap();
    let whole = writer.output().len();
    writer.append(&requests[200..]).unwrap();
    writer.flush().unwrap();
    let mut bytes = writer.output().clone();
    bytes[whole + super::frame::HEAD..].fill(0);
    let (header, read) = read(&bytes).unwrap();
    assert!(!header.complete);
    assert_eq!(read, requests[..200]);
}

/// A file on a disk that is full for a moment: one write fails, the next ones do not.
#[derive(Clone, Debug, Default)]
struct Full(Arc<Mutex<(Vec<u8>, bool)>>);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let (written, full) = &mut *self.0.lock().unwrap();
        if std::mem::take(full) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_a_failed_write_what_was_flushed_can_be_read_and_nothing_follows() {
    let (out, all) = (Full::default(), some(300));
    let mut writer = Writer::new(out.clone(), "t", Header::default(), Effort::Low).unwrap();
    writer.append(&all[..200]).unwrap();
    writer.flush().unwrap();
    out.0.lock().unwrap().1 = true;
    writer.append(&all[200..]).unwrap();
    assert_eq!(writer.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    // The disk has room again, but where the file stands is not known.
    assert!(writer.finish().unwrap_err().message().contains("an earlier write failed"));
    let (header, back) = read(&out.0.lock().unwrap().0).unwrap();
    assert!(!header.complete);
    assert_eq!(back, all[..200]);
}

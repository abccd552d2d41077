//! Real traces, where they are at hand: numbers of requests as those who published them count.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::PathBuf;
use trace::{Format, Op, OpenTraceOptions, Request};

/// The folder of traces beside the repository.
fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if !folder.is_dir() {
        eprintln!("skipped: there are no traces in ../shared/traces");
        return None;
    }
    Some(folder)
}

fn count(path: &str, options: &OpenTraceOptions, mut each: impl FnMut(&Request)) -> (Format, u64) {
    let path = folder().unwrap().join(path);
    let format = trace::guess(&path, options).unwrap();
    let mut source = trace::open(&path, options).unwrap();
    let (mut batch, mut requests) = (Vec::new(), 0);
    while source.read(&mut batch).unwrap() {
        requests += batch.len() as u64;
        batch.iter().for_each(&mut each);
    }
    assert_eq!(source.header().requests, Some(requests));
    (format, requests)
}

#[test]
fn published_traces_are_recognised_and_have_as_many_requests_as_published() {
    if folder().is_none() {
        return;
    }
    for (path, format, requests) in [
        ("arc/P3.lis.zst", Format::Lis, 238_578),
        ("arc/OLTP.lis.zst", Format::Lis, 914_145),
        ("cloudphysics/cloudPhysicsIO.vscsi.zst", Format::Vscsi, 113_872),
        ("blkreplay/linux-mysql.load.gz", Format::Load, 80_794),
        ("blkreplay/windows-shared-server.load.gz", Format::Load, 1_371),
        ("mqsim/wsrch-small.trace", Format::Mqsim, 24_783),
        ("mqsim/tpcc-small.trace", Format::Mqsim, 6_999),
        ("lirs/loop.trace.gz", Format::Ids, 505_500),
        ("lirs/sprite.trace.gz", Format::Ids, 133_996),
        ("vm/boot-base.csv.gz", Format::Csv, 1_289),
    ] {
        let got = count(path, &OpenTraceOptions::default(), |_| ());
        assert_eq!(got, (format, requests), "{path}");
    }
    let ids = OpenTraceOptions { format: Some(Format::Ids32), ..OpenTraceOptions::default() };
    assert_eq!(count("cloudphysics/w106.trace.xz", &ids, |_| ()).1, 5_292_456);
}

#[test]
fn a_shift_aligns_a_partition_and_reads_are_told_from_writes() {
    if folder().is_none() {
        return;
    }
    let mut aligned = 0;
    let shift = OpenTraceOptions { shift: 512, ..OpenTraceOptions::default() };
    let (mut reads, mut blocks) = (0u64, 0u64);
    let (_, requests) = count("cloudphysics/cloudPhysicsIO.vscsi.zst", &shift, |r| {
        aligned += u64::from(r.offset.is_multiple_of(4096));
        reads += u64::from(r.op == Op::Read);
        blocks += r.end().div_ceil(4096) - r.offset / 4096;
    });
    assert!(aligned > requests / 2, "{aligned} of {requests}");
    assert_eq!(((reads as f64 * 1000.0 / requests as f64).round(), blocks), (413.0, 1_053_519));
}

#[test]
fn recorded_boots_have_the_requests_that_their_page_tells() {
    let boots = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/boots");
    for (name, reads, writes, flushes) in [
        ("idle", 1_062, 249, 48),
        ("office-a", 3_225, 441, 66),
        ("office-b", 3_220, 360, 57),
        ("update", 3_727, 628, 102),
        ("scan", 17_583, 295, 52),
    ] {
        let path = boots.join(format!("{name}.csv.zst"));
        let sorted = OpenTraceOptions { sort: true, ..OpenTraceOptions::default() };
        let mut source = trace::open(&path, &sorted).unwrap();
        let (mut batch, mut counts) = (Vec::new(), [0; 5]);
        while source.read(&mut batch).unwrap() {
            batch.iter().for_each(|r| counts[r.op as usize] += 1);
        }
        assert_eq!(counts, [reads, writes, flushes, 0, 0], "{name}");
    }
}

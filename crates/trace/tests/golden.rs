//! A file of every version of our format stays readable.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use trace::{Flags, Op, OpenTraceOptions, Request, open};

/// The requests of the golden files.
fn golden(i: u64) -> Request {
    let op = Op::ALL[(i % 5) as usize];
    let flush = op == Op::Flush;
    Request {
        time: i * 1000 + i % 7,
        client: (i % 3) as u32,
        disk: 0,
        op,
        offset: if flush { 0 } else { i * 7919 % 1000 * 4096 },
        length: if flush { 0 } else { 4096 * (1 + i % 4) as u32 },
        latency: (i * i % 5000) as u32,
        flags: if i.is_multiple_of(9) { Flags::FUA } else { Flags::NONE },
    }
}

#[test]
fn version_1_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1.sjt");
    let mut source = open(&path, &OpenTraceOptions::default()).unwrap();
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while source.read(&mut batch).unwrap() {
        all.extend_from_slice(&batch);
    }
    assert_eq!(all, (0..200).map(golden).collect::<Vec<_>>());
    let header = source.header();
    assert_eq!(header.clients, ["c0", "c1", "c2"]);
    assert_eq!((header.disks[0].name.as_str(), header.complete), ("d", true));
}

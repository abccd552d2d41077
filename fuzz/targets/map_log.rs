//! The map log of a shadow: any file, or sound records around any payload.
#![no_main]

use block::{Device, Memory, Span};
use disk::Shadow;
use libfuzzer_sys::fuzz_target;
use sojourn_fuzz::{block_on, scratch};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

const DISK: [u8; 16] = [3; 16];
const SIZE: u64 = 64 << 20;
const RECORDS: usize = 4096;

/// A directory with an empty shadow, and its map.
fn made() -> &'static (PathBuf, Vec<u8>) {
    static MADE: OnceLock<(PathBuf, Vec<u8>)> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = scratch().join("shadow");
        std::fs::create_dir(&directory).expect("a directory");
        let base = Arc::new(Memory::new(4096));
        drop(block_on(Shadow::create(&directory, DISK, base, SIZE)).expect("a shadow"));
        let map = std::fs::read(directory.join("0001.map")).expect("a map");
        (directory, map)
    })
}

/// Records around payloads, each preceded by its length in one byte; `acknowledged` of them are
/// said to be durable.
fn sealed(header: &[u8], acknowledged: u8, mut payloads: &[u8]) -> Vec<u8> {
    let mut file = header[..RECORDS].to_vec();
    let mut chain = u32::from_le_bytes([file[508], file[509], file[510], file[511]]);
    let mut sequence = 0_u64;
    let mut slot = (0, RECORDS as u64, chain);
    while let Some((len, rest)) = payloads.split_first() {
        let (payload, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        payloads = rest;
        sequence += 1;
        let mut head = b"SJMR".to_vec();
        head.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        head.extend_from_slice(&sequence.to_le_bytes());
        head.extend_from_slice(&(sequence - 1).to_le_bytes());
        head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
        chain = crc32c::crc32c_append(crc32c::crc32c_append(chain, &head), payload);
        head.extend_from_slice(&chain.to_le_bytes());
        file.extend_from_slice(&head);
        file.extend_from_slice(payload);
        if sequence <= u64::from(acknowledged) {
            slot = (sequence, file.len() as u64, chain);
        }
    }
    let mut bytes = slot.0.to_le_bytes().to_vec();
    bytes.extend_from_slice(&slot.1.to_le_bytes());
    bytes.extend_from_slice(&slot.2.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    for at in [512, 1024] {
        file[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    file
}

fuzz_target!(|data: &[u8]| {
    let Some(([mode, acknowledged], rest)) = data.split_first_chunk() else { return };
    let (directory, map) = made();
    let file = match mode & 3 {
        0 => rest.to_vec(),
        1 => [&map[..RECORDS], rest].concat(),
        _ => sealed(map, *acknowledged, rest),
    };
    std::fs::write(directory.join("0001.map"), file).expect("written");
    block_on(async {
        let base = Arc::new(Memory::new(4096));
        let Ok(shadow) = Shadow::open(directory, DISK, &[1], base, SIZE).await else { return };
        let extents = shadow.extents(Span::whole(SIZE), 1000).await.expect("extents");
        let mut at = 0;
        for extent in extents {
            assert_eq!(extent.span.offset(), at);
            at = extent.span.end();
        }
        let mut buf = vec![0; 64 << 10];
        shadow.read(Span::whole(64 << 10), &mut buf).await.expect("a read");
    });
});

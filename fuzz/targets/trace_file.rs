//! A trace in our own format, as it is and sealed: whatever is read keeps what every trace promises.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sojourn_fuzz::trace::drain;

/// A frame as docs/trace.md describes it, its checksums right.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = vec![kind, 0, 0, 0];
    head.extend((payload.len() as u32).to_le_bytes());
    head.extend(crc32c::crc32c(payload).to_le_bytes());
    head.extend(crc32c::crc32c(&head).to_le_bytes());
    [&head, payload].concat()
}

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first() else { return };
    let mut file = b"\x89SJTRC\r\n\x01\0\0\0".to_vec();
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    match how % 4 {
        0 => file = rest.to_vec(),
        1 => {
            file.extend(frame(1, b"{}"));
            file.extend(frame(2, rest));
        }
        2 => {
            file.extend(frame(1, rest));
            file.extend(frame(3, rest));
        }
        _ => {
            file.extend(frame(1, b"{}"));
            file.extend(frame(4, rest));
        }
    }
    drain(&file, Some(trace::Format::Sojourn));
});

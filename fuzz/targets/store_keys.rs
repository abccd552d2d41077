//! The settings and the key slots of an encrypted store, as documents and behind the opening.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::testing::{Format, decode};

/// A document with the right checksum: what `format.md` says of its last member.
fn sealed(rest: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(rest);
    let body = format!("{},\n", text.trim_end().trim_end_matches('}').trim_end());
    let sum = crc32c::crc32c(body.as_bytes());
    format!("{body}  \"checksum\": \"{sum:08x}\"\n}}\n").into_bytes()
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    let bytes = if mode & 1 == 0 { rest.to_vec() } else { sealed(rest) };
    let format = if mode & 2 == 0 { Format::Keys } else { Format::Settings };
    let _ = decode(format, &bytes);
});

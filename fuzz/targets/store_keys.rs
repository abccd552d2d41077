//! The settings and the key slots of an encrypted store; boot lists, where chunks were moved, what is
//! condemned, pins and servers' leases.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::testing::{ObjectFormat, decode};

/// By the second and higher bits of the first byte.
const FORMATS: [ObjectFormat; 7] = [
    ObjectFormat::Keys,
    ObjectFormat::Settings,
    ObjectFormat::BootList,
    ObjectFormat::Moved,
    ObjectFormat::Condemned,
    ObjectFormat::Pin,
    ObjectFormat::Server,
];

/// A document with the right checksum: what `format.md` says of its last member.
fn sealed(rest: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(rest);
    let body = format!("{},\n", text.trim_end().trim_end_matches('}').trim_end());
    let sum = crc32c::crc32c(body.as_bytes());
    format!("{body}  \"checksum\": \"{sum:08x}\"\n}}\n").into_bytes()
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    let format = FORMATS[usize::from(mode >> 1) % FORMATS.len()];
    let bytes = match format.magic() {
        _ if mode & 1 == 0 => rest.to_vec(),
        Some(magic) => sojourn_fuzz::seal(&magic, 1, rest),
        None => sealed(rest),
    };
    let _ = decode(format, &bytes);
});

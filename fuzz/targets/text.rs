//! What people type: sizes, addresses, URIs, names. What is accepted is written and read back the
//! same.
#![no_main]

use block::ByteSize;
use cache::PolicyKind;
use formats::Format;
use libfuzzer_sys::fuzz_target;
use nbd::{Address, Uri};
use std::fmt::{Debug, Display};
use std::str::FromStr;
use store::{ChunkId, ImageName};

fn round<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    let Ok(value) = text.parse::<T>() else { return };
    let again = value.to_string().parse::<T>().ok();
    assert_eq!(again.as_ref(), Some(&value), "{text:?} is written as {value}");
}

fuzz_target!(|data: &[u8]| {
    let Some((selector, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match selector % 7 {
        0 => drop(text.parse::<ByteSize>()),
        1 => round::<Address>(text),
        2 => round::<Uri>(text),
        3 => round::<ImageName>(text),
        4 => round::<PolicyKind>(text),
        5 => round::<Format>(text),
        _ => round::<ChunkId>(text),
    }
});

//! The index, the records and the maps of a medium, and the index of a tree or an image.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lookaside::testing::MediaFormat;
use store::testing::settings;

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    let format = MediaFormat::ALL[usize::from(mode >> 1) % MediaFormat::ALL.len()];
    let settings = settings();
    let bytes = match mode & 1 {
        0 => rest.to_vec(),
        _ => format.frame(&settings, rest).expect("a frame"),
    };
    let _ = format.decode(&settings, &bytes);
});

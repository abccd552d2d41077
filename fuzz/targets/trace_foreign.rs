//! Traces in everybody else's formats, told by their content or said to be one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sojourn_fuzz::trace::drain;
use trace::Format;

fuzz_target!(|data: &[u8]| {
    let Some((format, rest)) = data.split_first() else { return };
    let format = Format::ALL.get(usize::from(*format)).copied();
    drain(rest, format.filter(|format| *format != Format::Sojourn));
});

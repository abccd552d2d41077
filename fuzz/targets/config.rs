//! The configuration file.
#![no_main]

use engine::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Err(error) = Config::parse(text)
    {
        assert!(error.message().len() < 4096 + 2 * text.len());
    }
});

//! Image files of every format, opened for reading or writing. `run` gives no PATH, so what needs
//! a tool is refused.
#![no_main]

use block::{Durability, Span, ZeroMode};
use formats::{Format, OpenOptions};
use libfuzzer_sys::fuzz_target;
use sojourn_fuzz::{block_on, scratch};
use std::sync::Once;

const PART: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    // The crate turns panics of the library behind it into errors: the harness must not end there.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        std::panic::set_hook(Box::new(|_| {}));
        std::fs::write(scratch().join("disk-flat.image"), [1; 4096]).expect("written");
    });
    let Some((selector, image)) = data.split_first() else { return };
    let format = match selector & 7 {
        0 => Some(Format::Vmdk),
        1 => Some(Format::Vhd),
        2 => None,
        _ => Some(Format::Qcow2),
    };
    let path = scratch().join("disk.image");
    std::fs::write(&path, image).expect("written");
    let read_only = selector & 128 == 0;
    let options = OpenOptions { format, read_only, scratch: scratch().to_owned() };
    block_on(async {
        let Ok(device) = formats::open(&path, options).await else { return };
        let part = Span::whole(device.size().min(PART));
        let mut buf = vec![0; part.len() as usize];
        let _ = device.read(part, &mut buf).await;
        let _ = device.extents(part, 100).await;
        if !read_only {
            let mode = ZeroMode { may_punch: selector & 64 == 0, only_if_fast: false };
            let _ = device.write(part, &buf, Durability::Buffered).await;
            let _ = device.zero(part, mode, Durability::Buffered).await;
            let _ = device.flush().await;
        }
    });
});

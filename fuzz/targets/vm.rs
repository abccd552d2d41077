//! What a parcel and QEMU say: monitor messages, machines, layouts, resume sets. What is accepted is written
//! and read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vm::image::MemoryLayout;
use vm::{MachineSpec, qmp::QmpMessage, resume_set};

fuzz_target!(|data: &[u8]| {
    let Some((selector, rest)) = data.split_first() else { return };
    if selector % 4 == 0 {
        drop(QmpMessage::parse(rest));
        return;
    }
    if selector % 4 == 1 {
        if let Ok(extents) = resume_set::decode(rest, 1 << 30) {
            assert_eq!(resume_set::encode(&extents), rest);
        }
        if let Ok(pages) = resume_set::decode_pages(rest, 1 << 30) {
            assert_eq!(resume_set::encode_pages(&pages), rest);
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    if selector % 4 == 2 {
        if let Ok(spec) = MachineSpec::decode(text) {
            let again = spec.encode().and_then(|text| MachineSpec::decode(&text));
            assert_eq!(again.ok(), Some(spec));
        }
    } else if let Ok(layout) = MemoryLayout::decode(text) {
        assert!(layout.size() >= 2 * layout.memory);
    }
});

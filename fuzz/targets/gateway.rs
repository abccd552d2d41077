//! What a client asks of a gateway: paths, ranges, batches; and what it offers to write.
#![no_main]

use bytes::Bytes;
use gateway::wire::{self, MOST_BYTES, MOST_PARTS, ObjectKey, Route};
use libfuzzer_sys::fuzz_target;
use store::{ManifestId, PackId, SegmentId, offered, segment_columns, testing};

fuzz_target!(|data: &[u8]| {
    let Some((selector, rest)) = data.split_first() else { return };
    let settings = testing::settings();
    let text = String::from_utf8_lossy(rest);
    match selector % 9 {
        0 | 1 => {
            if let Some(Route::Object(key)) = Route::parse(&settings, &text) {
                let again = format!("/v1/objects/{}", key.text());
                assert_eq!(again, text, "a key has one form");
                assert_eq!(key.path().as_ref(), key.text());
                // A name may have dots in a row, and is no step upwards.
                assert!(key.text().split('/').all(|part| !["", ".", ".."].contains(&part)));
            }
        }
        2 => {
            if let Some((start, Some(end))) = wire::parse_range(&text) {
                assert!(start < end);
            }
        }
        3 => {
            if let Ok(parts) = wire::parse_batch(&settings, rest) {
                let lens = parts.iter().map(|part| part.range.end - part.range.start);
                assert!(lens.sum::<u64>() <= MOST_BYTES && parts.len() <= MOST_PARTS);
            }
        }
        4 => {
            if let Some(key) = ObjectKey::parse(&settings, &text) {
                assert_eq!(key.text(), text);
            }
        }
        5 => {
            let bytes = Bytes::copy_from_slice(rest);
            let _ = offered::OfferedPack::check(&settings, PackId([1; 32]), bytes);
        }
        6 => {
            let bytes = Bytes::copy_from_slice(rest);
            let _ = offered::check_segment(&settings, SegmentId([1; 32]), bytes.clone());
            let _ = offered::check_manifest(&settings, ManifestId([1; 32]), bytes);
        }
        7 => {
            if let Ok(object) = segment_columns::unpack(rest)
                && let Some(sent) = segment_columns::pack(&object)
            {
                assert_eq!(segment_columns::unpack(&sent).ok(), Some(object));
            }
        }
        _ => {
            let _ = offered::check_pin(&settings, "pins/x", Bytes::copy_from_slice(rest));
        }
    }
});

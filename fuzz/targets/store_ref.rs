//! The record of a ref.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sojourn_fuzz::{Objects, block_on};
use store::RefKind;

const KEY: &str = "refs/disk/x/00000000000000000001";

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    let record = if mode & 1 == 0 {
        rest.to_vec()
    } else {
        let sum = crc32c::crc32c(rest);
        let mut record = format!("sojourn-ref 1 {sum:08x} {}\n", rest.len()).into_bytes();
        record.extend_from_slice(rest);
        record
    };
    let objects = Objects::shared();
    objects.put(KEY, record);
    block_on(async {
        let refs = objects.store.refs();
        if let Ok(Some(record)) = refs.get(RefKind::Disk, "x").await {
            assert_eq!((record.name.as_str(), record.sequence), ("x", 1));
        }
        let _ = refs.list(RefKind::Disk).await;
    });
    objects.remove(KEY);
});

//! A disk whose kernel is looked for: tables, ext4, FAT, unified kernels. The input is its first bytes; the rest are
//! zeroes.
#![no_main]

use block::{Device, Durability, Memory, Span};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use netboot::kernel::{BootFile, find};
use std::sync::Arc;

const SIZE: u64 = 4 << 20;

fuzz_target!(|data: &[u8]| {
    let _ = netboot::kernel::entry::of_grub(&String::from_utf8_lossy(data));
    let _ = netboot::kernel::entry::of_specification("x.conf", &String::from_utf8_lossy(data));
    let _ = netboot::kernel::uki::sections(data);
    let data = &data[..data.len().min(SIZE as usize)];
    sojourn_fuzz::block_on(async {
        let disk = Memory::new(SIZE);
        let span = Span::between(0, data.len() as u64);
        disk.write(span, data, Durability::Buffered).await.expect("memory");
        let disk: Arc<dyn Device> = Arc::new(disk);
        if let Ok(found) = find(Arc::clone(&disk)).await {
            let _ = found.read(Arc::clone(&disk), BootFile::Kernel, Bytes::new()).await;
            let _ = found.read(disk, BootFile::Initrd, Bytes::new()).await;
        }
    });
});

//! The index of a pack in a store that is imported into, and a chunk in it.
#![no_main]

use block::Memory;
use libfuzzer_sys::fuzz_target;
use sojourn_fuzz::{Objects, block_on};
use store::{ChunkId, ChunkRef, Encoding, PackId};

const MAGIC: &[u8; 8] = b"SOJPACK\n";
const ENTRY: usize = 44;

/// A pack whose index has the entries as they are, but for their offsets when `tidy`.
fn pack(entries: &[u8], chunks: &[u8], tidy: bool) -> (blake3::Hash, Vec<u8>) {
    let mut index = entries[..entries.len() / ENTRY * ENTRY].to_vec();
    if tidy {
        let mut offset = 16_u32;
        for entry in index.chunks_exact_mut(ENTRY) {
            entry[32..36].copy_from_slice(&offset.to_le_bytes());
            entry[38..40].fill(0);
            offset += u32::from(u16::from_le_bytes([entry[36], entry[37]]));
        }
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(chunks);
    if tidy {
        let stored: usize = index
            .chunks_exact(ENTRY)
            .map(|entry| usize::from(u16::from_le_bytes([entry[36], entry[37]])))
            .sum();
        bytes.resize(16 + stored, 7);
    }
    bytes.extend_from_slice(&index);
    let mut trailer = ((index.len() / ENTRY) as u32).to_le_bytes().to_vec();
    trailer.extend_from_slice(&[1, 0, 0, 0]);
    trailer.extend_from_slice(&((bytes.len() + 32) as u64).to_le_bytes());
    let salt = [0; 4];
    trailer.extend_from_slice(&salt);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&index), &trailer);
    trailer.extend_from_slice(&checksum.to_le_bytes());
    trailer.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&trailer);
    index.extend_from_slice(&salt);
    (Objects::shared().id("pack", &index), bytes)
}

fuzz_target!(|data: &[u8]| {
    let Some(([mode, split], rest)) = data.split_first_chunk() else { return };
    let objects = Objects::shared();
    let (chunks, entries) = rest.split_at(usize::from(*split).min(rest.len()));
    let (id, bytes) = match mode & 3 {
        0 => (objects.id("pack", rest), rest.to_vec()),
        1 => pack(entries, chunks, false),
        _ => pack(entries, chunks, true),
    };
    let key = format!("packs/{id}");
    objects.put(&key, bytes);
    block_on(async {
        let session = store::testing::session(&objects.store).await;
        let _ = store::import::from_device(&session, &Memory::from(vec![1; 4096]), &()).await;
        let at = ChunkRef {
            id: objects.id("chunk", chunks).to_hex().parse::<ChunkId>().expect("an id"),
            len: 4096 * (1 + u32::from(mode >> 4)),
            pack: id.to_hex().parse::<PackId>().expect("an id"),
            offset: 16,
            stored: chunks.len() as u32,
            encoding: if mode & 4 == 0 { Encoding::Zstd } else { Encoding::Plain },
        };
        if let Ok(bytes) = objects.store.read_chunk(&at).await {
            assert_eq!(bytes.len(), at.len as usize);
        }
    });
    objects.remove(&key);
});

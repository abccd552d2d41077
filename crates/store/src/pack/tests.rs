use super::builder::{Builder, FULL, Finished, SMALL};
use super::format::{MAGIC, TRAILER, check_head, make_newer, seal};
use super::index::{MAX_LEN, PackIndex};
use super::{path, put};
use crate::chunker::{MAX_CHUNK, PAGE};
use crate::{ChunkId, Encoding, PackId, Settings, chunk, testing};
use block::{ErrorKind, Result};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::HashMap;

#[test]
fn a_small_pack_takes_little_memory_and_a_large_one_no_more_than_it_may_need() {
    let (mut pack, chunk) = (Builder::new(), vec![1; MAX_CHUNK as usize]);
    let add = |pack: &mut Builder| {
        pack.add(ChunkId([1; 32]), MAX_CHUNK, Encoding::Plain, &chunk);
        pack.bytes.capacity()
    };
    assert!(add(&mut pack) < SMALL);
    while !pack.is_full() {
        assert!(add(&mut pack) <= FULL + 2 * MAX_CHUNK as usize);
    }
}

fn sample(chunks: usize) -> (Settings, Finished) {
    let settings = testing::settings();
    let pack = filled(&settings, chunks).finish(&settings, |_| false).unwrap();
    (settings, pack)
}

fn filled(settings: &Settings, chunks: usize) -> Builder {
    let mut builder = Builder::new();
    for i in 0..chunks {
        add(&mut builder, settings, Bytes::from(vec![i as u8 + 1; 4096]));
    }
    builder
}

fn add(builder: &mut Builder, settings: &Settings, plain: Bytes) -> ChunkId {
    let (id, len) = (chunk::id_of(settings, &plain), plain.len() as u32);
    let (encoding, stored) = chunk::encode(settings, &id, plain).unwrap();
    builder.add(id, len, encoding, &stored);
    id
}

fn decode(settings: &Settings, id: PackId, bytes: &[u8]) -> Result<PackIndex> {
    PackIndex::decode(settings, id, "packs/x", bytes, bytes.len() as u64)
}

#[test]
fn any_truncation_or_flipped_bit_of_a_pack_is_refused_or_harmless() {
    for settings in [testing::settings(), testing::encrypted_settings()] {
        let pack = filled(&settings, 3).finish(&settings, |_| false).unwrap();
        any_change_is_refused_or_harmless(&settings, &pack);
    }
}

fn any_change_is_refused_or_harmless(settings: &Settings, pack: &Finished) {
    let whole = decode(settings, pack.id, &pack.bytes).unwrap();
    assert_eq!(whole.chunks().len(), 3);
    for len in 0..pack.bytes.len() {
        assert!(decode(settings, pack.id, &pack.bytes[..len]).is_err(), "{len} bytes");
    }
    for at in 0..pack.bytes.len() {
        for bit in 0..8 {
            let mut bad = pack.bytes.to_vec();
            bad[at] ^= 1 << bit;
            let bad = Bytes::from(bad);
            // The index is refused, or still true: then each chunk gives its bytes or refuses.
            let Ok(index) = decode(settings, pack.id, &bad) else { continue };
            for (chunk, original) in index.chunks().zip(whole.chunks()) {
                assert_eq!(chunk, original);
                let (start, end) = (chunk.offset as usize, (chunk.offset + chunk.stored) as usize);
                if let Ok(plain) = chunk.decode(settings, bad.slice(start..end)) {
                    assert_eq!(chunk::id_of(settings, &plain), chunk.id);
                }
            }
        }
    }
}

#[test]
fn a_pack_whose_id_is_taken_gets_another_one_and_is_read() {
    for settings in [testing::settings(), testing::encrypted_settings()] {
        let first = filled(&settings, 2).finish(&settings, |_| false).unwrap();
        let second = filled(&settings, 2).finish(&settings, |id| *id == first.id).unwrap();
        assert_ne!(first.id, second.id);
        let read = decode(&settings, second.id, &second.bytes).unwrap();
        assert_eq!(read.chunks().len(), 2);
        assert!(decode(&settings, first.id, &second.bytes).is_err());
    }
}

#[test]
fn a_pack_in_clear_does_not_pass_in_an_encrypted_store_nor_the_reverse() {
    let (plain, encrypted) = (testing::settings(), testing::encrypted_settings());
    for (writer, reader) in [(&plain, &encrypted), (&encrypted, &plain)] {
        let pack = filled(writer, 2).finish(writer, |_| false).unwrap();
        let error = decode(reader, pack.id, &pack.bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("encrypted"), "{error}");
    }
}

#[test]
fn the_same_chunks_are_the_same_pack() {
    let ((_, a), (_, b), (_, c)) = (sample(4), sample(4), sample(5));
    assert_eq!((a.id, &a.bytes), (b.id, &b.bytes));
    assert_ne!(a.id, c.id);
}

async fn load(settings: &Settings, id: &PackId, bytes: Vec<u8>) -> Result<PackIndex> {
    let backend = object_store::memory::InMemory::new();
    objects::put_over(&backend, path(id).as_ref(), bytes.into()).await.unwrap();
    let meta = objects::head(&backend, path(id).as_ref()).await.unwrap();
    PackIndex::load(&backend, settings, &meta).await
}

#[tokio::test]
async fn a_newer_version_is_refused_by_its_number_and_a_flipped_bit_is_no_newer_version() {
    for settings in [testing::settings(), testing::encrypted_settings()] {
        let pack = filled(&settings, 2).finish(&settings, |_| false).unwrap();
        let mut newer = pack.bytes.to_vec();
        make_newer(&mut newer, 7, 0);
        let error = load(&settings, &pack.id, newer).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("version 7"), "{error}");
        let end = pack.bytes.len();
        for at in (0..16).chain(end - TRAILER..end) {
            for bit in 0..8 {
                let mut bad = pack.bytes.to_vec();
                bad[at] ^= 1 << bit;
                // Readers of chunks do not look at the head, and the head alone says nothing.
                let error = match check_head("packs/x", &bad) {
                    Err(error) => error,
                    Ok(()) => load(&settings, &pack.id, bad).await.unwrap_err(),
                };
                assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit} of byte {at}");
            }
        }
    }
}

#[tokio::test]
async fn a_pack_is_written_over_a_damaged_one_and_never_over_one_of_a_newer_format() {
    let backend = object_store::memory::InMemory::new();
    let (_, pack) = sample(3);
    let Finished { id, bytes, tail } = pack;
    let there = async || {
        let found = objects::get(&backend, path(&id).as_ref(), 2 * MAX_LEN).await;
        found.unwrap().to_vec()
    };
    let is_put = async |found: Vec<u8>| {
        objects::put_over(&backend, path(&id).as_ref(), found.into()).await.unwrap();
        put(&backend, &id, bytes.clone(), tail).await
    };
    put(&backend, &id, bytes.clone(), tail).await.unwrap();
    assert_eq!(there().await, bytes);
    let end = bytes.len();
    for at in [end - 1, end - TRAILER + 1, end - TRAILER - 5] {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1;
        is_put(damaged).await.unwrap();
        assert_eq!(there().await, bytes, "byte {at}");
    }
    is_put(Vec::new()).await.unwrap();
    assert_eq!(there().await, bytes);
    let mut newer = bytes.to_vec();
    make_newer(&mut newer, 2, 0);
    let mut longer = newer[..100].to_vec();
    longer.resize(MAX_LEN as usize + 1, 0);
    longer.extend_from_slice(&newer[100..]);
    // The end of a format that looks otherwise: only the start says what it is.
    let mut other = vec![0; 300];
    other[..16].copy_from_slice(&newer[..16]);
    for found in [newer, longer, other] {
        let error = is_put(found.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("version 2"), "{error}");
        assert!(there().await == found, "it was replaced");
    }
}

#[test]
fn an_unknown_encoding_asks_for_a_newer_build() {
    let (settings, pack) = sample(1);
    let mut newer = pack.bytes.to_vec();
    let at = newer.len() - TRAILER - 6;
    newer[at] = 4;
    seal(&mut newer);
    let error = PackIndex::decode_unnamed(&settings, &newer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("encoding 4"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_pack_gives_back_what_a_map_does(
        chunks in prop::collection::vec((1usize..=64, any::<u8>(), any::<bool>()), 1..40),
        encrypted in any::<bool>(),
    ) {
        let settings =
            if encrypted { testing::encrypted_settings() } else { testing::settings() };
        let mut builder = Builder::new();
        let mut model = HashMap::new();
        for (blocks, byte, noisy) in chunks {
            let mut plain = vec![byte; blocks * PAGE];
            if noisy {
                plain = testing::noise(u64::from(byte), blocks * PAGE);
            }
            let id = add(&mut builder, &settings, Bytes::from(plain.clone()));
            model.insert(id, plain);
        }
        let pack = builder.finish(&settings, |_| false).unwrap();
        let index = decode(&settings, pack.id, &pack.bytes).unwrap();
        let found: HashMap<_, _> = index
            .chunks()
            .map(|at| {
                let place = at.offset as usize..(at.offset + at.stored) as usize;
                (at.id, at.decode(&settings, pack.bytes.slice(place)).unwrap().to_vec())
            })
            .collect();
        prop_assert_eq!(found, model);
    }

    #[test]
    fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut bytes = bytes;
        let settings = testing::settings();
        prop_assert!(decode(&settings, PackId([0; 32]), &bytes).is_err());
        bytes.extend_from_slice(&MAGIC);
        prop_assert!(decode(&settings, PackId([0; 32]), &bytes).is_err());
    }
}

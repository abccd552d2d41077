use super::*;
use block::ErrorKind;
use proptest::prelude::*;

fn chunk(number: u8, pack: u8, blocks: u32, plain: bool) -> ChunkRef {
    let len = blocks * PAGE as u32;
    ChunkRef {
        id: ChunkId([number; 32]),
        len,
        pack: PackId([pack; 32]),
        offset: 16 + u32::from(number),
        stored: if plain { len } else { len / 2 },
        encoding: if plain { Encoding::Plain } else { Encoding::Zstd },
    }
}

fn sample() -> Bytes {
    Moved::encode([chunk(9, 2, 3, true), chunk(1, 1, 64, false), chunk(5, 2, 1, true)]).into()
}

#[test]
fn broken_rules_are_refused_by_their_reader() {
    let good = sample();
    Moved::decode("m", good.clone()).unwrap();
    for len in 0..good.len() {
        assert!(Moved::decode("m", good.slice(..len)).is_err(), "{len} bytes");
    }
    let first = HEADER + 2 * 32;
    // Field, its place in the first entry, a value that breaks a rule.
    let cases: [(&str, usize, &[u8]); 8] = [
        ("id above the next", 0, &[6; 32]),
        ("pack", 32, &[2, 0, 0, 0]),
        ("offset", 36, &[0, 0, 0, 0]),
        ("offset", 36, &[0, 0, 0, 255]),
        ("stored", 40, &[0, 0, 0, 0]),
        ("blocks", 44, &[65, 0]),
        ("encoding", 46, &[0]),
        ("reserved", 47, &[1]),
    ];
    for (field, at, value) in cases {
        let mut bad = good.to_vec();
        bad[first + at..first + at + value.len()].copy_from_slice(value);
        let error = Moved::decode("m", bad.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{field}");
    }
    let mut newer = good.to_vec();
    newer[first + 46] = 9;
    let error = Moved::decode("m", newer.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("encoding 9"), "{error}");
}

#[test]
fn the_first_of_two_places_counts() {
    let body = Moved::encode([chunk(1, 1, 2, true), chunk(1, 2, 2, true)]);
    let moved = Moved::decode("m", body.into()).unwrap();
    assert_eq!(moved.find(&ChunkId([1; 32])).unwrap().pack, PackId([1; 32]));
}

proptest! {
    #[test]
    fn every_chunk_is_found_and_no_other(
        rows in prop::collection::btree_map(any::<u8>(), (0u8..5, 1u32..=64, any::<bool>()), 0..80),
    ) {
        let chunks: Vec<_> =
            rows.iter().map(|(id, (pack, blocks, plain))| chunk(*id, *pack, *blocks, *plain)).collect();
        let moved = Moved::decode("m", Moved::encode(chunks.iter().rev().copied()).into()).unwrap();
        prop_assert_eq!(moved.chunks().collect::<Vec<_>>(), chunks.clone());
        for number in 0..=u8::MAX {
            let expected = chunks.iter().find(|at| at.id.0[0] == number).copied();
            prop_assert_eq!(moved.find(&ChunkId([number; 32])), expected);
        }
    }

    #[test]
    fn any_body_is_refused_or_keeps_the_rules(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300), packs in 0u8..3, entries in 0u8..4,
    ) {
        let len = HEADER + usize::from(packs) * 32 + usize::from(entries) * size_of::<MovedEntry>();
        bytes.resize(len, 0);
        bytes[..HEADER].fill(0);
        (bytes[0], bytes[4]) = (packs, entries);
        if let Ok(moved) = Moved::decode("m", bytes.into()) {
            for at in moved.chunks() {
                prop_assert_eq!(moved.find(&at.id), Some(at));
                prop_assert!(at.encoding.allows(at.stored, at.len));
            }
        }
    }
}

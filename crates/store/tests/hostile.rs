//! The readers of all formats, given objects that were made to look right.

#![allow(clippy::unwrap_used)] // tests

use proptest::prelude::*;
use store::testing::{Format, decode, seal};

/// The object of each format in the golden store.
fn golden(format: Format) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let encrypted = folder.with_file_name("v1-encrypted");
    let mut path = match format {
        Format::Settings => folder.join("store.json"),
        Format::Pack => folder.join("packs"),
        Format::Segment => folder.join("segments"),
        Format::Root => folder.join("manifests"),
        Format::Ref => folder.join("refs/image/example:1"),
        Format::Keys => encrypted.join("keys"),
    };
    if path.is_dir() {
        path = path.read_dir().unwrap().next().unwrap().unwrap().path();
    }
    std::fs::read(path).unwrap()
}

#[test]
fn the_golden_objects_are_well_formed() {
    for format in Format::ALL {
        let mut bytes = golden(format);
        decode(format, &bytes).unwrap();
        seal(format, &mut bytes);
        assert!(bytes == golden(format), "{format:?} is sealed already");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_changed_object_with_the_right_checksum_never_panics(
        which in 0..Format::ALL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        near_end in any::<bool>(),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let format = Format::ALL[which];
        let mut bytes = golden(format);
        let start = if near_end { bytes.len().saturating_sub(150) } else { 0 };
        for (at, value) in changes {
            let at = start + at.index(bytes.len() - start);
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        seal(format, &mut bytes);
        let _ = decode(format, &bytes);
    }
}

//! The readers of all formats, given objects that were made to look right.

#![allow(clippy::unwrap_used)] // tests

use proptest::prelude::*;
use store::testing::{ObjectFormat, decode, seal};

/// An object with this body, as `docs/format.md` has it.
fn framed(format: ObjectFormat, parts: &[&[u8]]) -> Vec<u8> {
    let magic = format.magic().unwrap();
    let mut bytes = [&magic[..], &[1, 0, 0, 0, 0, 0, 0, 0], &parts.concat()].concat();
    seal(format, &mut bytes);
    bytes
}

/// A good object of each format: from the golden store, or as `docs/format.md` has it.
fn golden(format: ObjectFormat) -> Vec<u8> {
    let number = |n: u32| n.to_le_bytes();
    let place = [number(16), number(100)].concat();
    match format {
        ObjectFormat::BootList => {
            return framed(format, &[&number(0), &number(2), &[0; 8], &[1; 32], &[2; 32]]);
        }
        ObjectFormat::Moved => {
            let (first, second) = ([&[1; 32][..], &number(0)], [&[2; 32][..], &number(1)]);
            let rest: &[u8] = &[5, 0, 1, 0];
            return framed(
                format,
                &[
                    &[&number(2)[..], &number(2), &[0; 8], &[8; 32], &[9; 32]].concat(),
                    &[&first.concat(), &place, rest, &second.concat(), &place, rest].concat(),
                ],
            );
        }
        ObjectFormat::Condemned => {
            let items = [[&[1, 0, 0, 0][..], &number(100), &[1; 32]].concat()];
            let more = [&[4, 0, 0, 0][..], &number(200), &[1; 32]].concat();
            return framed(format, &[&[7; 16], &number(2), &[0; 4], &items.concat(), &more]);
        }
        ObjectFormat::Pin => {
            let held = "7".repeat(64);
            let body = format!(r#"{{"sequence":1,"age":0,"what":"import","holds":["{held}"]}}"#);
            return framed(format, &[body.as_bytes()]);
        }
        ObjectFormat::Server => {
            let id = "7".repeat(32);
            let body = format!(r#"{{"server":"{id}","host":"lab","seconds":60}}"#);
            return framed(format, &[body.as_bytes()]);
        }
        _ => {}
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let encrypted = folder.with_file_name("v1-encrypted");
    let mut path = match format {
        ObjectFormat::Settings => folder.join("store.json"),
        ObjectFormat::Pack => folder.join("packs"),
        ObjectFormat::Segment => folder.join("segments"),
        ObjectFormat::Root => folder.join("manifests"),
        ObjectFormat::Ref => folder.join("refs/image/example:1"),
        ObjectFormat::Keys => encrypted.join("keys"),
        other => unreachable!("{other:?} is made above"),
    };
    if path.is_dir() {
        path = path.read_dir().unwrap().next().unwrap().unwrap().path();
    }
    std::fs::read(path).unwrap()
}

#[test]
fn the_golden_objects_are_well_formed() {
    for format in ObjectFormat::ALL {
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
        which in 0..ObjectFormat::ALL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        near_end in any::<bool>(),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let format = ObjectFormat::ALL[which];
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

//! What holds for every file system: setting any mark of trouble refuses it, marking more blocks
//! used never adds to the answer.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

mod common;

use common::mutate::is_subset;
use common::{dumpe2fs, must};
use freespace::{Code, FileSystem, FreeSpaceOptions, Level, Window, read};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::OnceLock;

/// An ext2 of 8 MiB without checksums: every change reaches the check that it is meant for.
fn image() -> &'static (Vec<u8>, Vec<block::Span>) {
    static IMAGE: OnceLock<(Vec<u8>, Vec<block::Span>)> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("image");
        let text = path.to_str().unwrap();
        must(60, "mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", "-g", "2048", text, "8M"]);
        (std::fs::read(&path).unwrap(), dumpe2fs(&path))
    })
}

#[allow(clippy::ptr_arg)] // a slice has no size, and so is no `dyn Source`
fn code(image: &Vec<u8>) -> Result<(), Code> {
    let options = FreeSpaceOptions { level: Some(Level::Fast), ..FreeSpaceOptions::default() };
    read(FileSystem::EXT4, &Window::whole(image), &options)
        .map(|_| ())
        .map_err(|refusal| refusal.code)
}

#[test]
fn every_mark_of_trouble_turns_acceptance_into_refusal() {
    let (clean, _) = image();
    assert_eq!(code(clean), Ok(()));
    let marks: [(usize, u8, Code); 9] = [
        (0x3A, 0, Code::Unclean),
        (0x3A, 3, Code::Errors),
        (0x3A, 5, Code::Orphans),
        (0x194, 1, Code::Errors),
        (0xE8, 11, Code::Orphans),
        (0x60, 0x02 | 0x04, Code::NeedsReplay),
        (0x60, 0x02 | 0x08, Code::UnsupportedFeature),
        (0x66, 0x01, Code::Orphans),
        (0x65, 0x40, Code::UnsupportedFeature),
    ];
    for (at, value, expected) in marks {
        let mut image = clean.clone();
        image[1024 + at] = value;
        assert_eq!(code(&image), Err(expected), "byte {at:#x} = {value}");
    }
    assert_eq!(code(&clean[..clean.len() - 1024].to_vec()), Err(Code::Geometry));
    assert_eq!(code(&clean[..1500].to_vec()), Err(Code::OutsideFileSystem));
}

#[test]
fn every_unknown_feature_bit_is_refused() {
    let (clean, _) = image();
    let known: [(usize, u32); 3] = [(0x5C, 0x1E3F), (0x60, 0x3_F7DF), (0x64, 0x1_EF7F)];
    for (word, known) in known {
        for bit in 0..32 {
            if known & (1 << bit) != 0 {
                continue;
            }
            let mut image = clean.clone();
            image[1024 + word + bit / 8] |= 1 << (bit % 8);
            assert_eq!(code(&image), Err(Code::UnknownFeature), "word {word:#x} bit {bit}");
        }
    }
}

#[test]
fn an_inode_that_claims_a_free_block_is_seen_by_the_walk_only() {
    let (clean, free) = image();
    let mut image = clean.clone();
    // Inode 11 is lost+found; its second block pointer moves into free space.
    let table = u32::from_le_bytes(image[2048 + 8..2048 + 12].try_into().unwrap()) as usize;
    let size = usize::from(u16::from_le_bytes(image[1024 + 0x58..1024 + 0x5A].try_into().unwrap()));
    let pointer = table * 1024 + 10 * size + 0x28 + 4;
    let block = (free.last().unwrap().offset() / 1024) as u32;
    image[pointer..pointer + 4].copy_from_slice(&block.to_le_bytes());
    assert_eq!(code(&image), Ok(()));
    let deep = read(FileSystem::EXT4, &Window::whole(&image), &FreeSpaceOptions::default());
    assert_eq!(deep.unwrap_err().code, Code::Conflict);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn marking_more_blocks_used_never_adds_to_the_answer(
        marked in proptest::collection::btree_set(0usize..2048, 1..40),
        group in 0usize..4,
    ) {
        let (clean, free) = image();
        let mut image = clean.clone();
        let descriptor = 2048 + 32 * group;
        let bitmap =
            u32::from_le_bytes(image[descriptor..descriptor + 4].try_into().unwrap()) as usize * 1024;
        let mut count = 0u32;
        for bit in marked {
            if image[bitmap + bit / 8] & (1 << (bit % 8)) == 0 {
                image[bitmap + bit / 8] |= 1 << (bit % 8);
                count += 1;
            }
        }
        let less = |image: &mut Vec<u8>, at: usize, width: usize| {
            let mut raw = [0; 4];
            raw[..width].copy_from_slice(&image[at..at + width]);
            let value = u32::from_le_bytes(raw) - count;
            image[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        };
        less(&mut image, descriptor + 12, 2);
        less(&mut image, 1024 + 12, 4);
        let found = read(FileSystem::EXT4, &Window::whole(&image), &FreeSpaceOptions::default()).unwrap();
        prop_assert!(is_subset(&found.free, free));
        let total = |list: &[block::Span]| list.iter().map(|span| span.len()).sum::<u64>();
        prop_assert_eq!(total(&found.free) + u64::from(count) * 1024, total(free));
    }
}

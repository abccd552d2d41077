//! Ext2, ext3 and ext4 against e2fsprogs: the test images of e2fsprogs itself, the same after
//! repair, and aged file systems.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

mod common;

use block::Span;
use common::{dumpe2fs, each, hash, images, must, run, unpack};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use transient::{Code, Found, HostDisk, Kind, Level, Options, Refusal, Window};

/// What is free, at the level that is chosen without being asked, or at `level`.
fn free(image: &Path, level: Option<Level>) -> Result<Found, Refusal> {
    let disk = HostDisk::open(image)?;
    let options = Options { level, ..Options::default() };
    transient::read(Kind::Ext4, &Window::whole(&disk), &options)
}

fn is_subset(mine: &[Span], theirs: &[Span]) -> bool {
    mine.iter().all(|span| {
        let i = theirs.partition_point(|other| other.end() <= span.offset());
        theirs.get(i).is_some_and(|other| other.intersect(*span) == Some(*span))
    })
}

struct Case {
    name: String,
    path: PathBuf,
    block_size: u64,
    /// Blocks in use although the bitmap says free, after e2fsck: first and last.
    in_use: Vec<(u64, u64)>,
}

fn cases(images: &Path) -> Vec<Case> {
    let truth = std::fs::read_to_string(images.join("e2fsprogs/TRUTH.tsv")).unwrap();
    let rows = truth.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let in_use = match fields[9] {
            "-" => Vec::new(),
            list => list
                .split(',')
                .map(|range| range.split_once('-').unwrap())
                .map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()))
                .collect(),
        };
        Case {
            name: fields[0].to_owned(),
            path: images.join(format!("e2fsprogs/{}.{}", fields[0], fields[1])),
            block_size: fields[2].parse().unwrap_or(1024),
            in_use,
        }
    })
    .collect()
}

#[test]
fn no_image_of_e2fsprogs_yields_a_block_in_use() {
    let Some(images) = images() else { return };
    let cases = cases(&images);
    let accepted = Mutex::new(Vec::new());
    each(&cases, |case| {
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(&case.path, dir.path());
        let before = hash(&image);
        for level in [None, Some(Level::Deep)] {
            let Ok(found) = free(&image, level) else { continue };
            let name = &case.name;
            assert!(is_subset(&found.free, &dumpe2fs(&image)), "{name}: more than the bitmap");
            for (first, last) in &case.in_use {
                let used = Span::between(first * case.block_size, (last + 1) * case.block_size);
                let hit = found.free.iter().find(|span| span.intersect(used).is_some());
                assert_eq!(hit, None, "{name}: blocks {first} to {last} are in use");
            }
            accepted.lock().unwrap().push(name.clone());
        }
        assert_eq!(hash(&image), before, "{} was written", case.name);
    });
    let accepted = accepted.into_inner().unwrap();
    assert!(accepted.len() >= cases.len() / 2, "only {} were accepted", accepted.len());
}

#[test]
fn repaired_images_of_e2fsprogs_are_accepted_and_equal_to_dumpe2fs() {
    let Some(images) = images() else { return };
    let cases = cases(&images);
    let result = Mutex::new((0, Vec::new()));
    each(&cases, |case| {
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(&case.path, dir.path());
        let text = image.to_str().unwrap();
        run(60, "e2fsck", &["-fy", text]);
        if run(60, "e2fsck", &["-fy", text]).status.code() != Some(0) {
            return;
        }
        let theirs = dumpe2fs(&image);
        for level in [Level::Fast, Level::Deep] {
            match free(&image, Some(level)) {
                Ok(found) => assert!(found.free == theirs, "{}: {level:?} differs", case.name),
                // Files that share blocks are never accepted.
                Err(refusal) if refusal.code == Code::UnsupportedFeature => {
                    let head = must(60, "dumpe2fs", &["-h", text]);
                    assert!(head.contains("shared_blocks"), "{}: {refusal}", case.name);
                    return;
                }
                Err(refusal) => {
                    result.lock().unwrap().1.push(format!("{} {level:?}: {refusal}", case.name));
                    return;
                }
            }
        }
        result.lock().unwrap().0 += 1;
    });
    let (accepted, refused) = result.into_inner().unwrap();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(accepted * 100 >= cases.len() * 90, "only {accepted} of {} were accepted", cases.len());
}

/// The ranges of a truth file: `offset length` in bytes, a line each.
fn truth(packed: &Path, dir: &Path) -> Vec<Span> {
    let text = std::fs::read_to_string(unpack(packed, dir)).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let (offset, len) = line.split_once(' ').unwrap();
        let offset: u64 = offset.parse().unwrap();
        Span::between(offset, offset + len.parse::<u64>().unwrap())
    })
    .collect()
}

#[test]
fn aged_file_systems_give_exactly_what_dumpe2fs_gives() {
    let Some(images) = images() else { return };
    each(&["aged-ext4-4k-8g", "aged-ext4-bigalloc-8g"], |name| {
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(&images.join(format!("generated/{name}.img.zst")), dir.path());
        let expected = truth(&images.join(format!("generated/{name}.free.txt.zst")), dir.path());
        let before = hash(&image);
        for level in [Level::Fast, Level::Deep] {
            let found = free(&image, Some(level)).unwrap();
            assert!(found.free == expected, "{name} {level:?}");
            assert_eq!((found.level, found.dropped), (level, 0));
        }
        assert_eq!(hash(&image), before, "{name} was written");
    });
}

#[test]
fn file_systems_that_lost_power_or_sleep_are_refused() {
    let Some(images) = images() else { return };
    for name in ["crash-ext4", "hib-ext4"] {
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(&images.join(format!("generated/{name}.img.zst")), dir.path());
        assert_eq!(free(&image, None).unwrap_err().code, Code::NeedsReplay, "{name}");
    }
}

//! Swap, FAT, exFAT, NTFS, XFS and btrfs against their own tools: fresh file systems with files in
//! them, aged ones, and those that lost power or sleep.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

mod common;

use block::Span;
use common::mutate::{is_subset, well_formed};
use common::oracle::{
    btrfs_in_use, clear_bits, clusters_of_files, joined, merged, numbers, xfs_db,
};
use common::sparse::{Changed, Sparse};
use common::{each, hash, images, make, must, run, unpack};
use freespace::{
    Code, FileSystem, FreeSpace, FreeSpaceOptions, Level, Refusal, UnheldDisk, Window,
};
use std::path::Path;

/// All that a caller can allow.
const CONSENT: FreeSpaceOptions =
    FreeSpaceOptions { level: None, btrfs: true, shadow_copies: true };

/// What an image yields; it must not have been written.
fn read(kind: FileSystem, image: &Path, options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let before = hash(image);
    let disk = UnheldDisk::open(image)?;
    let found = freespace::read(kind, &Window::whole(&disk), options);
    assert_eq!(hash(image), before, "{} was written", image.display());
    if let Ok(found) = &found {
        assert!(well_formed(found, image.metadata().unwrap().len()), "{}", image.display());
        assert_eq!(found.dropped, 0);
    }
    found
}

fn code(kind: FileSystem, image: &Path) -> Code {
    read(kind, image, &CONSENT).unwrap_err().code
}

/// What an image yields after some of its bytes were changed.
fn with(kind: FileSystem, image: &Sparse, changes: &[(u64, &[u8])]) -> Result<FreeSpace, Refusal> {
    let changes = changes.iter().map(|(at, bytes)| (*at, bytes.to_vec())).collect();
    freespace::read(kind, &Window::whole(&Changed { image, changes }), &CONSENT)
}

fn bytes(list: &[Span]) -> u64 {
    list.iter().map(|span| span.len()).sum()
}

fn path(image: &Path) -> &str {
    image.to_str().unwrap()
}

#[test]
fn swap_space_is_free_but_for_its_header() {
    let dir = tempfile::tempdir().unwrap();
    let image = make::swap(dir.path(), &["-L", "scratch"]);
    let found = read(FileSystem::SWAP, &image, &FreeSpaceOptions::default()).unwrap();
    assert_eq!(found.free, [Span::between(4096, 16 << 20)]);
    assert_eq!(found.volume.label.as_deref(), Some("scratch"));
    let uuid = must(10, "swaplabel", &[path(&image)]);
    assert!(uuid.contains(&found.volume.uuid.unwrap()), "{uuid}");
}

#[test]
fn fat_agrees_with_mtools_and_fsck() {
    for (bits, kind, options) in [
        (16, FileSystem::FAT16, &[][..]),
        (32, FileSystem::FAT32, &[][..]),
        (32, FileSystem::FAT32, &["-f", "1", "-n", "ONE TABLE"][..]),
        (16, FileSystem::FAT16, &["-S", "2048", "-s", "1"][..]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = make::fat(dir.path(), bits, options);
        let found = read(kind, &image, &FreeSpaceOptions::default()).unwrap();
        assert_eq!((found.kind, found.level), (kind, Level::Deep));
        let unit = u64::from(found.unit);
        // "image: 37 files, 1234/5678 clusters"
        let checked = must(60, "fsck.fat", &["-n", path(&image)]);
        let counts = numbers(checked.lines().last().unwrap().rsplit(' ').nth(1).unwrap());
        assert_eq!(bytes(&found.free) / unit, counts[1] - counts[0], "{checked}");
        // Cluster 2 lies behind all others: the data ends with the last cluster.
        let head = Sparse::load(&image).bytes(0, 512);
        let half = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let whole = |at: usize| half(at) | half(at + 2) << 16;
        let fat = if bits == 32 { whole(36) } else { half(22) };
        let data = (half(14) + u64::from(head[16]) * fat) * half(11) + half(17) * 32;
        let files = clusters_of_files(&image);
        assert!(files.len() > 20);
        for (first, last) in files {
            let used = Span::between(data + (first - 2) * unit, data + (last - 1) * unit);
            assert!(found.free.iter().all(|span| span.intersect(used).is_none()), "{used:?}");
        }
        assert!(found.free.len() > 3, "files were deleted between others");
    }
}

#[test]
fn fat_in_doubt_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let wide = Sparse::load(&make::fat(dir.path(), 32, &[]));
    let refused =
        |changes: &[(u64, &[u8])]| with(FileSystem::FAT32, &wide, changes).unwrap_err().code;
    // mkfs.fat leaves 32 sectors before the first table.
    let fat = 32 * 512;
    let second = {
        let head = wide.bytes(0, 512);
        fat + u64::from(u32::from_le_bytes(head[36..40].try_into().unwrap())) * 512
    };
    let both = |at: u64, bytes: &'static [u8]| [(fat + at, bytes), (second + at, bytes)];
    assert!(with(FileSystem::FAT32, &wide, &[]).is_ok());
    assert_eq!(refused(&[(65, &[1])]), Code::Unclean, "as Linux marks it");
    assert_eq!(refused(&both(4, &[0xFF, 0xFF, 0xFF, 0x07])), Code::Unclean, "as Windows does");
    assert_eq!(refused(&both(4, &[0xFF, 0xFF, 0xFF, 0x0B])), Code::Errors);
    assert_eq!(refused(&[(fat + 4000, &[0xFF, 0xFF, 0xFF, 0x0F])]), Code::Structure, "one copy");
    assert_eq!(refused(&[(60, &[1])]), Code::Structure, "the copy of the boot sector differs");
    assert_eq!(refused(&[(40, &[0x80])]), Code::UnsupportedFeature, "tables that differ");
    assert_eq!(refused(&[(13, &[2])]), Code::Geometry, "too few for FAT32");
    // A file's second cluster marked free, in both tables; then lost clusters.
    let files = wide.bytes(fat, 8000);
    let chained = (10..1000).find(|i| files[4 * i..4 * i + 4] == (*i as u32 + 1).to_le_bytes());
    let at = 4 * (chained.unwrap() as u64 + 1);
    assert_eq!(refused(&both(at, &[0, 0, 0, 0])), Code::Conflict);
    assert_eq!(refused(&both(260_000, &[0xFF, 0xFF, 0xFF, 0x0F])), Code::Counts);
    let short = wide.clone().resized(20 << 20);
    let cut = freespace::read(FileSystem::FAT32, &Window::whole(&short), &CONSENT);
    assert_eq!(cut.unwrap_err().code, Code::Geometry);
}

#[test]
fn exfat_agrees_with_its_tools() {
    let dir = tempfile::tempdir().unwrap();
    let image = make::exfat(dir.path(), &["-L", "Stick"]);
    let checked = must(60, "fsck.exfat", &["-n", path(&image)]);
    assert!(checked.contains("clean. directories 3, files 6"), "{checked}");
    let found = read(FileSystem::EXFAT, &image, &FreeSpaceOptions::default()).unwrap();
    assert_eq!(found.volume.label.as_deref(), Some("Stick"));
    let dump = must(60, "dump.exfat", &[path(&image)]);
    let free = dump.lines().find(|line| line.starts_with("Free Clusters:")).unwrap();
    assert_eq!(bytes(&found.free) / 4096, numbers(free)[0], "{dump}");
    let heap = dump.lines().find(|line| line.starts_with("Cluster Heap Offset")).unwrap();
    let heap = numbers(heap)[0] * 512;
    for cluster in [100, 120, 130, 129, 140, 150, 156, 200, 229, 299, 302, 304, 310, 1000, 2036] {
        let used = Span::between(heap + (cluster - 2) * 4096, heap + (cluster - 1) * 4096);
        assert!(found.free.iter().all(|span| span.intersect(used).is_none()), "{cluster}");
    }
    assert_eq!(found.level, Level::Deep);
}

#[test]
fn exfat_in_doubt_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = Sparse::load(&make::exfat(dir.path(), &[]));
    let refused =
        |changes: &[(u64, &[u8])]| with(FileSystem::EXFAT, &image, changes).unwrap_err().code;
    let number = |at: u64| u32::from_le_bytes(image.bytes(at, 4).try_into().unwrap());
    let (fat, heap) = (u64::from(number(80)) * 512, u64::from(number(88)) * 512);
    assert!(with(FileSystem::EXFAT, &image, &[(112, &[50])]).is_ok(), "the fill level is a hint");
    assert_eq!(refused(&[(106, &[2])]), Code::Unclean);
    assert_eq!(refused(&[(106, &[4])]), Code::Errors);
    assert_eq!(refused(&[(106, &[1])]), Code::UnknownFeature, "the second FAT is active");
    assert_eq!(refused(&[(109, &[4])]), Code::Checksum);
    // The bitmap lies in cluster 2: cluster 300 is a file's.
    assert_eq!(refused(&[(heap + 298 / 8, &[0])]), Code::Conflict);
    assert_eq!(
        refused(&[(fat + 4 * 302, &[45, 1])]),
        Code::Conflict,
        "a chain into a free cluster"
    );
    assert_eq!(refused(&[(fat + 4 * 302, &[0x2C, 1])]), Code::Conflict, "a chain into itself");
    let root = heap + (u64::from(number(96)) - 2) * 4096;
    assert_eq!(refused(&[(root + 96 + 40, &[7])]), Code::Checksum, "an entry set");
    assert_eq!(refused(&[(root + 96, &[0x84])]), Code::UnknownFeature);
    assert_eq!(refused(&[(root + 96 + 33, &[0])]), Code::Structure, "clusters that cannot be");
    // A bad cluster is not free, and is not an error.
    let bad =
        with(FileSystem::EXFAT, &image, &[(fat + 4 * 2500, &[0xF7, 0xFF, 0xFF, 0xFF])]).unwrap();
    let lost = Span::between(heap + 2498 * 4096, heap + 2499 * 4096);
    assert!(bad.free.iter().all(|span| span.intersect(lost).is_none()));
}

#[test]
fn ntfs_agrees_with_ntfscat() {
    for options in [&[][..], &["-c", "512", "-L", "Daten"], &["-c", "65536"], &["-s", "4096"]] {
        let dir = tempfile::tempdir().unwrap();
        let image = make::ntfs(dir.path(), options);
        let found = read(FileSystem::NTFS, &image, &FreeSpaceOptions::default()).unwrap();
        let map = run(60, "ntfscat", &["-f", path(&image), "$Bitmap"]);
        assert!(map.status.success());
        let unit = u64::from(found.unit);
        assert_eq!(found.free, clear_bits(&map.stdout, found.size / unit, unit), "{options:?}");
    }
}

#[test]
fn ntfs_in_doubt_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = make::ntfs(dir.path(), &[]);
    let image = Sparse::load(&path);
    let refused =
        |changes: &[(u64, &[u8])]| with(FileSystem::NTFS, &image, changes).unwrap_err().code;
    let mft = u64::from_le_bytes(image.bytes(48, 8).try_into().unwrap()) * 4096;
    let mirror = u64::from_le_bytes(image.bytes(56, 8).try_into().unwrap()) * 4096;
    let find = |record: u64, kind: u32| {
        let bytes = image.bytes(mft + record * 1024, 1024);
        let mut at = usize::from(u16::from_le_bytes([bytes[0x14], bytes[0x15]]));
        while u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) != kind {
            at += u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        }
        at as u64
    };
    // The flags of $Volume, in the file table and its copy.
    let flags = 3 * 1024 + find(3, 0x70) + 0x18 + 10;
    let set = |value: &'static [u8]| [(mft + flags, value), (mirror + flags, value)];
    assert!(
        with(FileSystem::NTFS, &image, &set(&[0x80, 0])).is_ok(),
        "0x80 is set on sound volumes"
    );
    assert_eq!(refused(&set(&[1, 0])), Code::Unclean);
    for value in [[2, 0], [4, 0], [0x20, 0], [0, 0x40], [0, 0x80]] {
        let changes: Vec<(u64, &[u8])> = [mft, mirror].map(|at| (at + flags, &value[..])).into();
        assert_eq!(refused(&changes), Code::Errors, "{value:?}");
    }
    assert_eq!(refused(&[(mft + flags, &[0x80])]), Code::Structure, "the copy differs");
    assert_eq!(refused(&[(0x0D, &[4])]), Code::Structure, "the copy of the boot sector differs");
    // The flags of a file record, and the list of those in use.
    assert_eq!(refused(&[(mft + 64 * 1024 + 0x16, &[0])]), Code::Structure);
    // One of the system's files that nothing else leads to.
    assert_eq!(refused(&[(mft + 9 * 1024, b"BAAD")]), Code::Structure);
    assert_eq!(refused(&[(mft + 13 * 1024, b"BAAD")]), Code::Structure, "kept for the system");
    // A shadow copy's header with a catalogue.
    let id =
        [0x6B, 0x87, 0x08, 0x38, 0x76, 0xC1, 0x48, 0x4E, 0xB7, 0xAE, 4, 4, 0x6E, 0x6C, 0xC7, 0x52];
    let shadow = Changed { image: &image, changes: vec![(0x1E00, id.to_vec()), (0x1E30, vec![1])] };
    let strict =
        freespace::read(FileSystem::NTFS, &Window::whole(&shadow), &FreeSpaceOptions::default());
    assert_eq!(strict.unwrap_err().code, Code::Snapshots);
    assert!(freespace::read(FileSystem::NTFS, &Window::whole(&shadow), &CONSENT).is_ok());
    let short = image.clone().resized((8 << 20) - 512);
    let cut = freespace::read(FileSystem::NTFS, &Window::whole(&short), &CONSENT);
    assert_eq!(cut.unwrap_err().code, Code::Geometry);
}

#[test]
fn a_file_table_with_holes_is_refused_without_work() {
    let dir = tempfile::tempdir().unwrap();
    let image = Sparse::load(&make::ntfs(dir.path(), &[]));
    let code = |image: &Sparse| {
        let window = Window::whole(image);
        let refusal = freespace::read(FileSystem::NTFS, &window, &CONSENT).unwrap_err();
        assert!(window.work() < 3 * window.size(), "{} bytes were read", window.work());
        (refusal.code, refusal.sentence)
    };
    const RECORDS: u64 = 1 << 42;
    // A file table of all sizes; 2^42 records, of which the map says that none is in use.
    let long = make::with_ntfs_hole(&image, 0x80, 1 << 39, |room| room);
    let mapped = make::with_ntfs_hole(&image, 0x80, RECORDS / 4, |_| RECORDS * 1024);
    let mapped = make::with_ntfs_hole(&mapped, 0xB0, RECORDS / 8 / 4096, |_| RECORDS / 8);
    let short = make::with_ntfs_hole(&image, 0x80, 1, |room| room);
    for damaged in [long, mapped, short] {
        let (code, sentence) = code(&damaged);
        assert_eq!(code, Code::Structure, "{sentence}");
        assert!(sentence.contains("the file table has a hole"), "{sentence}");
    }
    let map = make::with_ntfs_hole(&image, 0xB0, 1, |room| room - 4096);
    let (code, sentence) = code(&map);
    assert_eq!(code, Code::Structure, "{sentence}");
    assert!(sentence.contains("the map of records in use has a hole"), "{sentence}");
}

#[test]
fn windows_that_sleeps_in_hiberfil_is_refused() {
    for (name, head, refused) in [
        ("hiberfil.sys", &[0u8; 16][..], None),
        ("hiberfil.sys", b"HIBR", Some(Code::Hibernated)),
        ("HiberFil.SYS", b"wake", Some(Code::Hibernated)),
        ("hiberfil.sys", b"what?", Some(Code::Hibernated)),
        ("other.sys", b"HIBR", None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = make::ntfs(dir.path(), &[]);
        let mut content = head.to_vec();
        content.resize(20_000, 0);
        std::fs::write(dir.path().join("content"), content).unwrap();
        must(60, "ntfscp", &["-f", path(&image), path(&dir.path().join("content")), name]);
        let result = read(FileSystem::NTFS, &image, &CONSENT);
        assert_eq!(result.err().map(|refusal| refusal.code), refused, "{name} {head:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make::ntfs(dir.path(), &[]);
    std::fs::write(dir.path().join("short"), [0; 100]).unwrap();
    must(60, "ntfscp", &["-f", path(&image), path(&dir.path().join("short")), "hiberfil.sys"]);
    assert_eq!(code(FileSystem::NTFS, &image), Code::Hibernated, "shorter than a header");
    // The same on a volume that is refused for something else.
    let image = Sparse::load(&image);
    let mft = u64::from_le_bytes(image.bytes(48, 8).try_into().unwrap()) * 4096;
    let damaged = with(FileSystem::NTFS, &image, &[(mft + 6 * 1024, b"BAAD")]);
    assert_eq!(damaged.unwrap_err().code, Code::Hibernated, "its bitmap is lost too");
}

#[test]
fn xfs_agrees_with_xfs_db() {
    for options in [
        &[][..],
        &["-b", "size=1024"],
        &["-m", "reflink=0,finobt=0,rmapbt=0", "-i", "sparse=0"],
        &["-m", "rmapbt=1", "-i", "size=2048"],
        &["-s", "size=4096", "-l", "su=256k", "-L", "scratch"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = make::xfs(dir.path(), options);
        let found = read(FileSystem::XFS, &image, &FreeSpaceOptions::default()).unwrap();
        let (theirs, kept) = xfs_db(&image);
        assert!(is_subset(&found.free, &joined(theirs.clone())), "{options:?}");
        assert_eq!(bytes(&found.free) + kept, bytes(&theirs), "{options:?}");
    }
}

#[test]
fn xfs_in_doubt_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = make::xfs(dir.path(), &[]);
    let image = Sparse::load(&path);
    let refused =
        |changes: &[(u64, &[u8])]| with(FileSystem::XFS, &image, changes).unwrap_err().code;
    // Changes the superblock and mends its checksum.
    let superblock = |at: usize, bytes: &[u8]| {
        let mut head = image.bytes(0, 512);
        head[at..at + bytes.len()].copy_from_slice(bytes);
        head[224..228].fill(0);
        let sum = crc32c(&head);
        head[224..228].copy_from_slice(&sum.to_le_bytes());
        refused(&[(0, &head)])
    };
    assert_eq!(superblock(126, &[1]), Code::Unclean);
    assert_eq!(superblock(219, &[0x1B]), Code::Errors, "in need of repair");
    assert_eq!(superblock(216, &[0x80]), Code::UnknownFeature);
    assert_eq!(superblock(212, &[0x80]), Code::UnknownFeature);
    assert_eq!(superblock(223, &[1]), Code::NeedsReplay);
    assert_eq!(superblock(48, &[0; 8]), Code::UnsupportedFeature, "an external log");
    assert_eq!(superblock(31, &[1]), Code::MultiDevice, "a real-time part");
    assert_eq!(superblock(101, &[4]), Code::UnsupportedFeature, "version 4");
    assert_eq!(refused(&[(31, &[1])]), Code::Checksum);
    assert_eq!(refused(&[(512 + 55, &[9])]), Code::Checksum, "a group's header");
    assert_eq!(refused(&[(1024 + 40, &[0])]), Code::Checksum);
    // The mark of the unmount.
    let number = |at: u64| u64::from_be_bytes(image.bytes(at, 8).try_into().unwrap());
    let shift = image.bytes(124, 1)[0];
    let group = u64::from(u32::from_be_bytes(image.bytes(84, 4).try_into().unwrap()));
    let log = number(48);
    let log = ((log >> shift) * group + (log & ((1 << shift) - 1))) * 4096;
    assert_eq!(refused(&[(log + 512 + 9, &[0])]), Code::NeedsReplay);
    assert_eq!(refused(&[(log + 100 * 512, &[0, 0, 0, 1])]), Code::NeedsReplay, "written behind");
}

#[test]
fn windows_may_sleep_in_a_volume_whose_files_are_not_all_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path_of = make::ntfs(dir.path(), &[]);
    let content = dir.path().join("content");
    for (name, head) in [("HiberFil.SYS", b"HIBR"), ("hiberfil.sys", &[0; 4])] {
        std::fs::write(&content, [&head[..], &[0; 20_000]].concat()).unwrap();
        must(60, "ntfscp", &["-f", path(&path_of), path(&content), name]);
    }
    // The one that sleeps comes first.
    assert_eq!(code(FileSystem::NTFS, &path_of), Code::Hibernated, "the other one is clean");
    let image = Sparse::load(&path_of);
    let mft = u64::from_le_bytes(image.bytes(48, 8).try_into().unwrap()) * 4096;
    let named = |name: &str| {
        let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let is_it = |at: &u64| image.bytes(*at, 1024).windows(name.len()).any(|w| w == name);
        (24..100).map(|number| mft + number * 1024).find(is_it).unwrap()
    };
    let (asleep, clean) = (named("HiberFil.SYS"), named("hiberfil.sys"));
    assert!(asleep < clean);
    // How much of it was written, as the file system knows; Windows writes it without asking.
    let bytes = image.bytes(asleep, 1024);
    let mut data = usize::from(u16::from_le_bytes([bytes[0x14], bytes[0x15]]));
    while bytes[data] != 0x80 {
        data += usize::from(u16::from_le_bytes([bytes[data + 4], bytes[data + 5]]));
    }
    let unwritten = [(asleep + data as u64 + 0x38, &[0; 8][..])];
    assert_eq!(with(FileSystem::NTFS, &image, &unwritten).unwrap_err().code, Code::Hibernated);
    // Its record is lost: nobody can say.
    let lost = with(FileSystem::NTFS, &image, &[(asleep, b"BAAD")]).unwrap_err();
    assert_eq!(lost.code, Code::Structure);
    assert!(lost.sentence.contains("may sleep"), "{lost}");
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { (sum >> 1) ^ 0x82F6_3B78 } else { sum >> 1 }
        })
    })
}

#[test]
fn btrfs_agrees_with_its_tool() {
    for options in [
        &[][..],
        &["-R", "^free-space-tree"],
        &["--mixed"],
        &["-m", "single", "-n", "4096", "-L", "scratch"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = make::btrfs(dir.path(), options);
        let strict = read(FileSystem::BTRFS, &image, &FreeSpaceOptions::default());
        assert_eq!(strict.unwrap_err().code, Code::NeedsConsent);
        for level in [Some(Level::Fast), None] {
            let found =
                read(FileSystem::BTRFS, &image, &FreeSpaceOptions { level, ..CONSENT }).unwrap();
            let node = if options.contains(&"4096") || options.contains(&"--mixed") {
                4096
            } else {
                16_384
            };
            let used = btrfs_in_use(&image, node);
            // What is free and what is in use is the whole, and nothing is both.
            let mut all = found.free.clone();
            all.extend(&used);
            let all = merged(all);
            assert_eq!(all, [Span::whole(found.size)], "{options:?}");
            for span in used {
                assert!(found.free.iter().all(|free| free.intersect(span).is_none()), "{span:?}");
            }
        }
    }
}

#[test]
fn btrfs_in_doubt_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = Sparse::load(&make::btrfs(dir.path(), &[]));
    // Changes the superblock and mends its checksum.
    let superblock = |at: usize, bytes: &[u8]| {
        let mut head = image.bytes(64 << 10, 4096);
        head[at..at + bytes.len()].copy_from_slice(bytes);
        let sum = crc32c(&head[32..]);
        head[..4].copy_from_slice(&sum.to_le_bytes());
        with(FileSystem::BTRFS, &image, &[(64 << 10, &head)]).unwrap_err().code
    };
    assert_eq!(superblock(96, &[0, 0, 0x10]), Code::NeedsReplay, "a log tree");
    assert_eq!(superblock(136, &[2]), Code::MultiDevice);
    assert_eq!(superblock(60, &[1]), Code::UnsupportedFeature, "a seed");
    assert_eq!(superblock(56, &[5]), Code::Errors);
    assert_eq!(superblock(189, &[0x10 | 3]), Code::UnknownFeature, "zoned");
    assert_eq!(superblock(187, &[1]), Code::UnknownFeature);
    assert_eq!(superblock(196, &[1]), Code::UnsupportedFeature, "another checksum");
    let torn = with(FileSystem::BTRFS, &image, &[((64 << 10) + 300, b"x")]);
    assert_eq!(torn.unwrap_err().code, Code::Checksum);
}

#[test]
fn aged_file_systems_give_what_their_tools_gave() {
    let Some(images) = images() else { return };
    each(&["ntfs-4g", "xfs-8g", "btrfs-8g"], |name| {
        let dir = tempfile::tempdir().unwrap();
        let generated = images.join("generated");
        let image = unpack(&generated.join(format!("aged-{name}.img.zst")), dir.path());
        match *name {
            "ntfs-4g" => {
                let found = read(FileSystem::NTFS, &image, &FreeSpaceOptions::default()).unwrap();
                let map = std::fs::read(generated.join("aged-ntfs-4g.bitmap.bin")).unwrap();
                assert!(found.free == clear_bits(&map, found.size / 4096, 4096));
                assert!(found.free.len() > 300);
            }
            "xfs-8g" => {
                let found = read(FileSystem::XFS, &image, &FreeSpaceOptions::default()).unwrap();
                let truth = unpack(&generated.join("aged-xfs-8g.free.txt.zst"), dir.path());
                let text = std::fs::read_to_string(truth).unwrap();
                let rows = text.lines().filter(|line| !line.starts_with('#')).map(numbers);
                let theirs: Vec<Span> =
                    rows.map(|row| Span::between(row[0], row[0] + row[1])).collect();
                let (again, kept) = xfs_db(&image);
                assert!(joined(again) == joined(theirs.clone()));
                assert!(is_subset(&found.free, &joined(theirs.clone())));
                assert_eq!(bytes(&found.free) + kept, bytes(&theirs));
                assert!(found.free.len() > 1000);
            }
            _ => {
                let fast = read(FileSystem::BTRFS, &image, &CONSENT).unwrap();
                let deep = FreeSpaceOptions { level: Some(Level::Deep), ..CONSENT };
                let deep = read(FileSystem::BTRFS, &image, &deep).unwrap();
                assert!(fast.free == deep.free);
                let mut all = btrfs_in_use(&image, 16_384);
                for used in &all {
                    let i = fast.free.partition_point(|free| free.end() <= used.offset());
                    let next = fast.free.get(i);
                    assert!(next.is_none_or(|free| free.intersect(*used).is_none()), "{used:?}");
                }
                all.extend(&fast.free);
                assert_eq!(merged(all), [Span::whole(fast.size)]);
                assert!(fast.free.len() > 1000);
            }
        }
    });
}

#[test]
fn file_systems_that_lost_power_or_sleep_are_refused() {
    let Some(images) = images() else { return };
    let dir = tempfile::tempdir().unwrap();
    for (name, kind, expected) in [
        ("crash-exfat.img.zst", FileSystem::EXFAT, Code::Unclean),
        ("crash-fat32.img.zst", FileSystem::FAT32, Code::Unclean),
        ("crash-xfs.img.zst", FileSystem::XFS, Code::NeedsReplay),
        ("crash-btrfs.img.zst", FileSystem::BTRFS, Code::NeedsConsent),
        ("hib-swap-first1MiB.img.zst", FileSystem::SWAP, Code::Hibernated),
    ] {
        let image = unpack(&images.join("generated").join(name), dir.path());
        let refusal = read(kind, &image, &FreeSpaceOptions::default()).unwrap_err();
        assert_eq!(refusal.code, expected, "{name}");
    }
    // This one was clean when the power went, or had no mark of being in use.
    let image = unpack(&images.join("generated/crash-swap-first1MiB.img.zst"), dir.path());
    assert!(read(FileSystem::SWAP, &image, &FreeSpaceOptions::default()).is_ok());
}

#[test]
fn images_of_real_windows_and_of_other_tools_are_read_or_refused() {
    let Some(images) = images() else { return };
    let dir = tempfile::tempdir().unwrap();
    for (name, kind, expected) in [
        ("windows/exfat_win.raw.gz", FileSystem::EXFAT, None),
        ("windows/exfat_encrypted.raw.gz", FileSystem::EXFAT, None),
        ("windows/exfat_orphan.raw.gz", FileSystem::EXFAT, None),
        ("windows/fat12.raw.gz", FileSystem::FAT16, Some(Code::UnsupportedFeature)),
        ("windows/fat16.raw.gz", FileSystem::FAT16, None),
        ("windows/fat32_small.raw.gz", FileSystem::FAT32, Some(Code::UnsupportedFeature)),
        ("windows/ntfs3.raw.gz", FileSystem::NTFS, None),
        ("windows/ntfs-crate-testfs1", FileSystem::NTFS, None),
        ("blkid/ntfs.img.xz", FileSystem::NTFS, None),
        ("blkid/swap0.img.xz", FileSystem::SWAP, Some(Code::UnknownFeature)),
        ("crypt/img_fs_xfs.img.xz", FileSystem::XFS, Some(Code::UnsupportedFeature)),
    ] {
        let image = unpack(&images.join(name), dir.path());
        let result = read(kind, &image, &FreeSpaceOptions::default());
        match (&result, kind) {
            (Ok(found), FileSystem::NTFS) => {
                let map = run(60, "ntfscat", &["-f", path(&image), "$Bitmap"]).stdout;
                let unit = u64::from(found.unit);
                assert!(found.free == clear_bits(&map, found.size / unit, unit), "{name}");
            }
            (Ok(found), FileSystem::EXFAT) => {
                let dump = must(60, "dump.exfat", &[path(&image)]);
                let free = dump.lines().find(|line| line.starts_with("Free Clusters:")).unwrap();
                assert_eq!(bytes(&found.free) / u64::from(found.unit), numbers(free)[0], "{name}");
            }
            _ => {}
        }
        assert_eq!(result.map(|_| ()).map_err(|refusal| refusal.code).err(), expected, "{name}");
    }
}

use super::*;

fn with(size: usize, marks: &[(usize, &[u8])]) -> Vec<u8> {
    let mut disk = vec![0; size];
    for (at, magic) in marks {
        disk[*at..at + magic.len()].copy_from_slice(magic);
    }
    disk
}

#[allow(clippy::ptr_arg)] // a slice has no size, and so is no `dyn Source`
fn code(disk: &Vec<u8>) -> Result<FileSystem, Code> {
    probe(&Window::whole(disk)).map_err(|refusal| refusal.code)
}

#[test]
fn each_mark_is_recognised_by_its_own_name() {
    for mark in MARKS {
        let size = 8 << 20;
        let at = match mark.place {
            MarkOffset::Start(at) => at as usize,
            MarkOffset::Rounded { grain, back } => {
                size / grain as usize * grain as usize - back as usize
            }
        };
        let disk = with(size, &[(at, mark.magic)]);
        let refusal = probe(&Window::whole(&disk)).unwrap_err();
        assert_eq!(refusal.code, mark.code, "{}", mark.name);
        assert!(refusal.sentence.contains(mark.name), "{}: {}", mark.name, refusal.sentence);
    }
}

#[test]
fn stores_of_other_disks_are_told_by_the_kernels_own_headers() {
    // Magic, version, size of blocks; number of blocks, count of commits.
    let mut writecache = vec![0; 64];
    for (at, word) in [(0, 0x2348_9321u32), (4, 1), (8, 4096), (16, 1000), (24, 7)] {
        writecache[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    // Checksum, flags, own block, UUID; magic (octal in the kernel), version, policy.
    let mut cache = vec![0; 64];
    cache[..4].copy_from_slice(b"\x12\x34\x56\x78");
    cache[32..40].copy_from_slice(&0o6142003u64.to_le_bytes());
    cache[40..44].copy_from_slice(&2u32.to_le_bytes());
    cache[44..47].copy_from_slice(b"smq");
    // Magic, validity, version, sectors of a chunk.
    let mut snapshot = vec![0; 16];
    for (at, word) in [(0, 0x7041_6e53u32), (4, 1), (8, 1), (12, 8)] {
        snapshot[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    for (name, header, own, origin) in [
        ("dm-writecache", writecache, Code::CacheMember, Code::CacheMember),
        ("dm-cache", cache, Code::CacheMember, Code::CacheMember),
        ("LVM snapshot", snapshot, Code::VolumeManager, Code::Snapshots),
    ] {
        let mut disk = with(1 << 20, &[(0, &header)]);
        assert_eq!(code(&disk), Err(own), "{name}");
        assert_eq!(store(&Window::whole(&disk)), Some((name, origin)));
        // Also beside what was there before.
        disk[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(code(&disk), Err(own), "{name}");
        assert_eq!(store(&Window::whole(&disk)), Some((name, origin)));
    }
    for other in [vec![0; 1 << 20], Vec::new(), with(1 << 20, &[(1080, b"\x53\xef")])] {
        assert_eq!(store(&Window::whole(&other)), None);
    }
}

#[test]
fn nothing_and_too_little_are_unknown() {
    assert_eq!(code(&vec![0; 1 << 20]), Err(Code::Unknown));
    assert_eq!(code(&vec![0; 100]), Err(Code::Unknown));
    assert_eq!(code(&Vec::new()), Err(Code::Unknown));
}

#[test]
fn two_marks_are_ambiguous_but_what_stands_around_comes_first() {
    let xfs: (usize, &[u8]) = (0, b"XFSB");
    let ext: (usize, &[u8]) = (1080, b"\x53\xef");
    assert_eq!(code(&with(1 << 20, &[xfs])), Ok(FileSystem::XFS));
    assert_eq!(code(&with(1 << 20, &[xfs, ext])), Err(Code::Ambiguous));
    let md: (usize, &[u8]) = ((1 << 20) - 8192, b"\xfc\x4e\x2b\xa9");
    assert_eq!(code(&with(1 << 20, &[ext, md])), Err(Code::RaidMember));
}

#[test]
fn two_bytes_by_chance_do_not_make_a_file_system_ambiguous() {
    // The count of free inodes of ext lies where Minix has its magic number.
    assert_eq!(
        code(&with(1 << 20, &[(1080, b"\x53\xef"), (1040, b"\x7f\x13")])),
        Ok(FileSystem::EXT4)
    );
}

#[test]
fn a_mark_of_two_bytes_counts_beside_another_one_when_what_is_around_it_is_right() {
    // What mkfs of NILFS2, HFS+ and Minix leave of a FAT: its boot sector.
    let mut boot = vec![0; 512];
    boot[..14].copy_from_slice(b"\xEB\x3C\x90MSDOS5.0\0\x02\x04");
    boot[14..22].copy_from_slice(b"\x01\0\x02\0\x02\0\x80\xF8");
    boot[22] = 32;
    boot[510..].copy_from_slice(&[0x55, 0xAA]);
    let stale = |marks: &[(usize, &[u8])]| {
        let all = [&[(0, boot.as_slice())], marks].concat();
        code(&with(1 << 20, &all))
    };
    assert_eq!(stale(&[]), Ok(FileSystem::FAT16));
    let nilfs: (usize, &[u8]) = (1024, b"\x02\0\0\0\0\0\x34\x34\x18\x01");
    assert_eq!(stale(&[nilfs]), Err(Code::Ambiguous));
    assert_eq!(stale(&[(1024, b"H+\0\x04")]), Err(Code::Ambiguous));
    let minix: (usize, &[u8]) =
        (1024, b"\x40\x01\xE8\x03\x01\0\x01\0\x0E\0\0\0\0\x1C\x08\x10\x7f\x13\x01\0");
    assert_eq!(stale(&[minix]), Err(Code::Ambiguous));
    // The same two bytes in a table of clusters.
    assert_eq!(stale(&[(1030, b"\x34\x34")]), Ok(FileSystem::FAT16));
    assert_eq!(stale(&[(1040, b"\x7f\x13")]), Ok(FileSystem::FAT16));
}

#[test]
fn a_fat12_is_left_to_its_reader_which_does_not_read_it() {
    let mut boot = vec![0; 512];
    boot[..14].copy_from_slice(b"\xEB\x3C\x90MSDOS5.0\0\x02\x04");
    boot[14..22].copy_from_slice(b"\x01\0\x02\0\x02\0\x08\xF8");
    boot[22] = 2;
    boot[54..62].copy_from_slice(b"FAT12   ");
    boot[510..].copy_from_slice(&[0x55, 0xAA]);
    let disk = with(1 << 20, &[(0, &boot)]);
    assert_eq!(code(&disk), Ok(FileSystem::FAT16));
    let refusal =
        crate::read(FileSystem::FAT16, &Window::whole(&disk), &crate::FreeSpaceOptions::default())
            .unwrap_err();
    assert_eq!(refusal.code, Code::UnsupportedFeature);
    assert!(refusal.sentence.contains("FAT12"), "{refusal}");
}

#[test]
fn an_ntfs_without_its_first_sector_is_known_by_the_copy_of_it() {
    for sector in [512u16, 4096] {
        let size = 8 << 20;
        let at = size - usize::from(sector);
        let mut copy = vec![0; 512];
        copy[3..11].copy_from_slice(b"NTFS    ");
        copy[11..13].copy_from_slice(&sector.to_le_bytes());
        copy[40..48].copy_from_slice(&(at as u64 / u64::from(sector)).to_le_bytes());
        copy[510..].copy_from_slice(&[0x55, 0xAA]);
        let lost = with(size, &[(at, &copy)]);
        let refusal = probe(&Window::whole(&lost)).unwrap_err();
        assert_eq!(refusal.code, Code::OtherFileSystem);
        assert!(refusal.sentence.contains("without its first sector"), "{refusal}");
        // Of a partition at the end of a disk, it says nothing about the disk.
        let disk = with(size + (1 << 20), &[(at + (1 << 20), &copy)]);
        assert_eq!(code(&disk), Err(Code::Unknown));
        // What was formatted since has left it there.
        assert_eq!(code(&with(size, &[(at, &copy), (1080, b"\x53\xef")])), Ok(FileSystem::EXT4));
    }
}

use super::*;
use crate::Code;
use proptest::prelude::*;

const SECTOR: usize = 512;

fn entry(kind: u8, start: u32, count: u32) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[4] = kind;
    raw[8..12].copy_from_slice(&start.to_le_bytes());
    raw[12..].copy_from_slice(&count.to_le_bytes());
    raw
}

fn record(disk: &mut [u8], sector: usize, entries: &[[u8; 16]]) {
    let at = sector * SECTOR;
    for (i, raw) in entries.iter().enumerate() {
        disk[at + 446 + 16 * i..at + 462 + 16 * i].copy_from_slice(raw);
    }
    disk[at + 510..at + 512].copy_from_slice(&[0x55, 0xAA]);
}

fn mbr_disk() -> Vec<u8> {
    let mut disk = vec![0; 4096 * SECTOR];
    record(&mut disk, 0, &[entry(0x83, 64, 900), entry(0x05, 1000, 3000)]);
    record(&mut disk, 1000, &[entry(0x83, 8, 500), entry(0x05, 600, 600)]);
    record(&mut disk, 1600, &[entry(0x82, 8, 500)]);
    disk
}

/// A disk with a GPT of 128 entries and these partitions (first and last sector).
fn gpt_disk(sectors: usize, sector: usize, partitions: &[(u64, u64)]) -> Vec<u8> {
    let mut disk = vec![0; sectors * sector];
    record(&mut disk, 0, &[entry(0xEE, 1, sectors as u32 - 1)]);
    let mut entries = vec![0; 128 * 128];
    for (raw, (first, last)) in entries.chunks_exact_mut(128).zip(partitions) {
        raw[..16].fill(0x11);
        raw[32..40].copy_from_slice(&first.to_le_bytes());
        raw[40..48].copy_from_slice(&last.to_le_bytes());
        raw[56] = b'x';
    }
    let room = entries.len().div_ceil(sector);
    let last = sectors - 1;
    for (own, other, at) in [(1, last, 2), (last, 1, last - room)] {
        disk[at * sector..at * sector + entries.len()].copy_from_slice(&entries);
        let raw = &mut disk[own * sector..own * sector + 92];
        raw[..8].copy_from_slice(b"EFI PART");
        raw[8..12].copy_from_slice(&0x1_0000u32.to_le_bytes());
        raw[12..16].copy_from_slice(&92u32.to_le_bytes());
        raw[24..32].copy_from_slice(&(own as u64).to_le_bytes());
        raw[32..40].copy_from_slice(&(other as u64).to_le_bytes());
        raw[40..48].copy_from_slice(&(2 + room as u64).to_le_bytes());
        raw[48..56].copy_from_slice(&((last - room - 1) as u64).to_le_bytes());
        raw[72..80].copy_from_slice(&(at as u64).to_le_bytes());
        raw[80..84].copy_from_slice(&128u32.to_le_bytes());
        raw[84..88].copy_from_slice(&128u32.to_le_bytes());
        raw[88..92].copy_from_slice(&gpt::crc32(&entries).to_le_bytes());
        let sum = gpt::crc32(raw);
        raw[16..20].copy_from_slice(&sum.to_le_bytes());
    }
    disk
}

#[test]
fn the_checksum_gives_the_published_check_value() {
    assert_eq!(gpt::crc32(b"123456789"), 0xCBF4_3926);
}

#[test]
fn primary_and_logical_partitions_are_found_with_their_numbers() {
    let table = PartitionTable::read(&mbr_disk()).unwrap();
    let list: Vec<(u32, u64, u64)> = table
        .partitions()
        .iter()
        .map(|p| (p.number, p.span.offset() / 512, p.span.end() / 512))
        .collect();
    assert_eq!(list, [(1, 64, 964), (5, 1008, 1508), (6, 1608, 2108)]);
    assert_eq!(table.partitions()[2].purpose, "0x82");
}

#[test]
fn a_chain_that_leads_back_or_out_is_refused() {
    for link in [0, 8, 4000] {
        let mut disk = mbr_disk();
        record(&mut disk, 1600, &[entry(0x82, 8, 500), entry(0x05, link, 600)]);
        assert_eq!(
            PartitionTable::read(&disk).unwrap_err().code,
            Code::PartitionTable,
            "link {link}"
        );
    }
}

#[test]
fn partitions_that_overlap_or_leave_the_disk_are_refused() {
    for other in [entry(0x83, 963, 10), entry(0x83, 4000, 97)] {
        let mut disk = mbr_disk();
        record(&mut disk, 0, &[entry(0x83, 64, 900), other]);
        assert_eq!(PartitionTable::read(&disk).unwrap_err().code, Code::PartitionTable);
    }
    let disk = gpt_disk(4096, 512, &[(100, 200), (200, 300)]);
    assert_eq!(PartitionTable::read(&disk).unwrap_err().code, Code::PartitionTable);
}

#[test]
fn no_partition_lies_on_a_partition_table() {
    // The first logical partition reaches over the boot record of the second one.
    let mut disk = mbr_disk();
    record(&mut disk, 1000, &[entry(0x83, 8, 600), entry(0x05, 600, 600)]);
    assert_eq!(PartitionTable::read(&disk).unwrap_err().code, Code::PartitionTable);
    let mut disk = gpt_disk(4096, 512, &[(100, 200)]);
    for own in [1, 4095] {
        let raw = &mut disk[own * 512..own * 512 + 92];
        raw[40..48].copy_from_slice(&33u64.to_le_bytes());
        raw[16..20].fill(0);
        let sum = gpt::crc32(raw);
        raw[16..20].copy_from_slice(&sum.to_le_bytes());
    }
    let refusal = PartitionTable::read(&disk).unwrap_err();
    assert!(refusal.sentence.contains("where partitions may be"), "{refusal}");
}

#[test]
fn an_entry_that_cannot_be_beside_one_that_can_is_damage_and_not_boot_code() {
    for odd in [entry(0x83, 0, 10), entry(0x83, 2000, 0)] {
        let mut disk = mbr_disk();
        record(&mut disk, 0, &[entry(0x83, 64, 900), odd]);
        assert_eq!(PartitionTable::read(&disk).unwrap_err().code, Code::PartitionTable);
        let mut disk = mbr_disk();
        record(&mut disk, 0, &[odd, [0; 16]]);
        assert_eq!(PartitionTable::read(&disk).unwrap(), PartitionTable::None);
    }
}

#[test]
fn a_gpt_is_read_with_sectors_of_512_and_of_4096_bytes() {
    for sector in [512, 4096] {
        let disk = gpt_disk(4096, sector, &[(100, 199), (300, 399)]);
        let table = PartitionTable::read(&disk).unwrap();
        assert_eq!(table.as_str(), "gpt");
        let second = &table.partitions()[1];
        assert_eq!(second.span, Span::between(300 * sector as u64, 400 * sector as u64));
        assert_eq!(second.name.as_deref(), Some("x"));
    }
}

#[test]
fn any_changed_byte_of_either_copy_of_a_gpt_is_refused() {
    let disk = gpt_disk(512, 512, &[(100, 199)]);
    let copies = [512..512 + 92, 1024..1024 + 128, 511 * 512..511 * 512 + 92];
    for at in copies.into_iter().flatten() {
        let mut disk = disk.clone();
        disk[at] ^= 1;
        assert_eq!(
            PartitionTable::read(&disk).unwrap_err().code,
            Code::PartitionTable,
            "byte {at}"
        );
    }
    assert_eq!(
        PartitionTable::read(&disk[..511 * 512].to_vec()).unwrap_err().code,
        Code::PartitionTable
    );
}

/// A disk with sectors of 4096 bytes.
struct Large(Vec<u8>);

impl Source for Large {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn sector_size(&self) -> u32 {
        4096
    }
}

#[test]
fn an_mbr_counts_in_the_sectors_of_its_disk() {
    let mut disk = vec![0; 400 * 4096];
    record(&mut disk, 0, &[entry(0x83, 16, 100), entry(0x05, 200, 100)]);
    record(&mut disk, 200 * 8, &[entry(0x83, 8, 50)]);
    let table = PartitionTable::read(&Large(disk)).unwrap();
    let spans: Vec<Span> = table.partitions().iter().map(|partition| partition.span).collect();
    let sectors = |start: u64, end: u64| Span::between(start * 4096, end * 4096);
    assert_eq!(spans, [sectors(16, 116), sectors(208, 258)]);
}

#[test]
fn the_boot_code_of_a_file_system_is_no_table() {
    let mut disk = vec![0x20; 64 << 10];
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    assert_eq!(PartitionTable::read(&disk).unwrap(), PartitionTable::None);
    // What Windows says from an NTFS and from a FAT that it cannot start.
    let ntfs = b"\r\nA disk read error occurred\0\r\nBOOTMGR is compressed\0\r\n\
                 Press Ctrl+Alt+Del to restart\r\n";
    let fat = b"\r\nRemove disks or other media.\xFF\r\nDisk error\xFF\r\n\
                Press any key to restart\r\n";
    for (at, text) in [(0x18C, &ntfs[..]), (0x1AC, &fat[..])] {
        let mut disk = vec![0; 64 << 10];
        let text = &text[..text.len().min(0x1FE - at)];
        disk[at..at + text.len()].copy_from_slice(text);
        disk[510..512].copy_from_slice(&[0x55, 0xAA]);
        assert_eq!(PartitionTable::read(&disk).unwrap(), PartitionTable::None);
    }
}

#[test]
fn the_table_of_a_disk_inside_a_partition_counts_from_the_partition() {
    let inside = mbr_disk();
    let mut disk = vec![0xFF; 64 << 10];
    disk.extend_from_slice(&inside);
    disk.extend_from_slice(&[0xFF; 4096]);
    let window = Window::part(&disk, 64 << 10, inside.len() as u64).unwrap();
    assert_eq!(PartitionTable::within(&window), PartitionTable::read(&inside));
    assert_eq!(PartitionTable::within(&window).unwrap().partitions().len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn whatever_the_bytes_partitions_lie_inside_and_apart(
        gpt in any::<bool>(),
        changes in proptest::collection::vec((0usize..2048, any::<u8>()), 0..6),
        far in proptest::collection::vec((0usize..64, any::<u8>()), 0..4),
    ) {
        let mut disk = if gpt { gpt_disk(4096, 512, &[(100, 200)]) } else { mbr_disk() };
        for (at, byte) in changes {
            disk[at] = byte;
        }
        for (at, byte) in far {
            disk[1000 * SECTOR + 446 + at] = byte;
        }
        if let Ok(table) = PartitionTable::read(&disk) {
            let mut spans: Vec<Span> = table.partitions().iter().map(|p| p.span).collect();
            spans.sort_unstable();
            prop_assert!(spans.iter().all(|span| span.end() <= disk.len() as u64));
            prop_assert!(spans.windows(2).all(|pair| pair[0].end() <= pair[1].offset()));
        }
    }
}

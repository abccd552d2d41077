//! The boot sector of FAT16 and FAT32: geometry and state (Microsoft's FAT32 specification 1.03).

use crate::bytes::{label, le16, le32};
use crate::refusal::refuse;
use crate::{FileSystem, Refusal, Volume, Window};

/// The number of the first cluster.
pub(super) const FIRST: u64 = 2;
/// Fewer clusters make it a FAT12, and from the second on it is a FAT32.
const MIN_FAT16: u64 = 4085;
const MIN_FAT32: u64 = 65_525;
/// More entries would leave no room for the marks in the table.
const MAX_FAT32: u64 = 0x0FFF_FFF5;

/// The geometry, checked against the window. Offsets and sizes in bytes.
#[derive(Debug)]
pub(super) struct FatBoot {
    pub(super) kind: FileSystem,
    pub(super) media: u8,
    pub(super) cluster: u64,
    /// How many clusters there are; they are numbered from 2.
    pub(super) clusters: u64,
    pub(super) size: u64,
    /// The first table; the others follow it.
    pub(super) fat: u64,
    pub(super) fat_size: u64,
    pub(super) fats: u64,
    /// Where cluster 2 lies.
    pub(super) data: u64,
    pub(super) root: RootDirectory,
    pub(super) volume: Volume,
}

/// Where the root directory is.
#[derive(Debug, Clone, Copy)]
pub(super) enum RootDirectory {
    /// FAT16: so many bytes at this offset.
    Fixed { offset: u64, len: u64 },
    /// FAT32: a chain that starts at this cluster.
    Chain(u32),
}

pub(super) fn read(window: &Window<'_>) -> Result<FatBoot, Refusal> {
    let head = window.bytes(0, 512)?;
    let sector = u64::from(le16(&head, 11));
    let per_cluster = u64::from(head[13]);
    if head[510..512] != [0x55, 0xAA]
        || !matches!(sector, 512 | 1024 | 2048 | 4096)
        || !per_cluster.is_power_of_two()
    {
        refuse!(Geometry, "no boot sector of a FAT");
    }
    let wide = le16(&head, 22) == 0;
    let reserved = u64::from(le16(&head, 14));
    let fats = u64::from(head[16]);
    let root_entries = u64::from(le16(&head, 17));
    let fat_sectors = if wide { u64::from(le32(&head, 36)) } else { u64::from(le16(&head, 22)) };
    let sectors = match (le16(&head, 19), le32(&head, 32)) {
        (0, sectors) => u64::from(sectors),
        (sectors, large) if large == 0 || large == u32::from(sectors) => u64::from(sectors),
        (small, large) => refuse!(Geometry, "it has {small} sectors and {large} sectors"),
    };
    if sectors * sector > window.size() {
        refuse!(
            Geometry,
            "it has {sectors} sectors of {sector} bytes, and there are only {} bytes",
            window.size()
        );
    }
    let root_sectors = (root_entries * 32).div_ceil(sector);
    let data = reserved + fats * fat_sectors + root_sectors;
    if reserved == 0 || !matches!(fats, 1 | 2) || fat_sectors == 0 || data >= sectors {
        refuse!(Geometry, "{fats} tables of {fat_sectors} sectors leave no room for data");
    }
    let clusters = (sectors - data) / per_cluster;
    if !wide && &head[54..62] == b"FAT12   " && clusters >= MIN_FAT16 {
        refuse!(UnsupportedFeature, "it says FAT12, and has as many clusters as a FAT16");
    }
    let kind = match (wide, clusters) {
        (_, ..MIN_FAT16) => {
            refuse!(
                UnsupportedFeature,
                "with {clusters} clusters it is a FAT12, which is too small to lend from"
            )
        }
        (false, MIN_FAT16..MIN_FAT32) if root_entries > 0 => FileSystem::FAT16,
        (true, MIN_FAT32..=MAX_FAT32) if root_entries == 0 => FileSystem::FAT32,
        _ => refuse!(
            Geometry,
            "its header is of another kind of FAT than its {clusters} clusters make it"
        ),
    };
    let width = if wide { 4 } else { 2 };
    let needed = ((clusters + FIRST) * width).div_ceil(sector);
    // Tools round a table up to whole clusters or by the specification's formula, never by much
    // more: a larger difference means that one of the two numbers is wrong.
    if fat_sectors < needed || fat_sectors > needed + needed / 16 + per_cluster + 8 {
        refuse!(
            Geometry,
            "its tables have {fat_sectors} sectors, and {clusters} clusters need {needed}"
        );
    }
    if wide {
        wide_rules(window, &head, sector, reserved)?;
    }
    let dirty = if wide { head[65] } else { head[37] };
    if dirty & 1 != 0 {
        refuse!(Unclean, "it was not unmounted; unmount or check it in its own system");
    }
    if dirty & 2 != 0 {
        refuse!(Errors, "its own system wants its surface tested");
    }
    let root = if wide {
        RootDirectory::Chain(le32(&head, 44))
    } else {
        let offset = (reserved + fats * fat_sectors) * sector;
        RootDirectory::Fixed { offset, len: root_entries * 32 }
    };
    Ok(FatBoot {
        kind,
        media: head[21],
        cluster: per_cluster * sector,
        clusters,
        size: sectors * sector,
        fat: reserved * sector,
        fat_size: fat_sectors * sector,
        fats,
        data: data * sector,
        root,
        volume: volume(&head, if wide { 66 } else { 38 }),
    })
}

/// What only a FAT32 has: a version, mirroring, a copy of the boot sector.
fn wide_rules(window: &Window<'_>, head: &[u8], sector: u64, reserved: u64) -> Result<(), Refusal> {
    if le16(head, 42) != 0 {
        refuse!(UnknownFeature, "version {:#06x} of FAT32; only 0 is known", le16(head, 42));
    }
    if le16(head, 40) & 0x80 != 0 {
        refuse!(UnsupportedFeature, "its tables are not copies of each other (mirroring is off)");
    }
    let place = u64::from(le16(head, 50));
    if place == 0 || place >= reserved {
        refuse!(Geometry, "it has no copy of its boot sector to compare with");
    }
    let copy = window.bytes(place * sector, 512)?;
    // Byte 65 is the state, which is kept in the first one only.
    let same = |from: usize, to: usize| head[from..to] == copy[from..to];
    if !same(0, 65) || !same(66, 90) || !same(510, 512) {
        refuse!(Structure, "its boot sector and the copy of it differ; check it with its own tool");
    }
    Ok(())
}

/// Serial number and label, from the extended boot signature at `at` on.
fn volume(head: &[u8], at: usize) -> Volume {
    if !matches!(head[at], 0x28 | 0x29) {
        return Volume::default();
    }
    let serial = le32(head, at + 1);
    let name = (head[at] == 0x29).then(|| label(&head[at + 5..at + 16])).flatten();
    Volume {
        uuid: Some(format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF)),
        label: name.filter(|name| name != "NO NAME"),
    }
}

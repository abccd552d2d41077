//! The marks of what is known by name only. Offsets after the sources of util-linux (libblkid).

use crate::Code;
use crate::Code::{
    CacheMember, Encrypted, OtherFileSystem, PartitionTable, RaidMember, Snapshots, VolumeManager,
};

/// Where a mark is, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum MarkOffset {
    Start(u64),
    /// `back` bytes before the last multiple of `grain`.
    Rounded {
        grain: u64,
        back: u64,
    },
}

/// Bytes that tell what something is.
#[derive(Debug)]
pub(super) struct DiskMark {
    pub(super) code: Code,
    pub(super) name: &'static str,
    pub(super) place: MarkOffset,
    pub(super) magic: &'static [u8],
    /// Two bytes that a file system of another kind may hold by chance: beside one, they count only
    /// when what is around them is right as well.
    pub(super) weak: bool,
    /// What another disk is refused with whose content is in part kept here, and that bears no mark of it.
    pub(super) origin: Option<Code>,
}

const fn mark(code: Code, name: &'static str, offset: u64, magic: &'static [u8]) -> DiskMark {
    let place = MarkOffset::Start(offset);
    DiskMark { code, name, place, magic, weak: magic.len() <= 2, origin: None }
}

/// The mark of a store that belongs to another disk, its origin, which bears none.
const fn store(
    code: Code,
    name: &'static str,
    offset: u64,
    magic: &'static [u8],
    origin: Code,
) -> DiskMark {
    DiskMark { origin: Some(origin), ..mark(code, name, offset, magic) }
}

const fn rounded(
    code: Code,
    name: &'static str,
    grain: u64,
    back: u64,
    magic: &'static [u8],
) -> DiskMark {
    DiskMark {
        code,
        name,
        place: MarkOffset::Rounded { grain, back },
        magic,
        weak: magic.len() <= 2,
        origin: None,
    }
}

/// 4967d63b-2e29-4ad8-8399-f6a339e3d001.
pub(super) const BITLOCKER_TO_GO: [u8; 16] =
    *b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01";
/// 92a84d3b-dd80-4d0e-9e4e-b1e3284eaed8, with only the used space encrypted.
pub(super) const BITLOCKER_USED_SPACE: [u8; 16] =
    *b"\x3b\x4d\xa8\x92\x80\xdd\x0e\x4d\x9e\x4e\xb1\xe3\x28\x4e\xae\xd8";

/// Purposes of partitions that are refused without a look.
pub(super) const PURPOSES: &[(&str, Code, &str)] = &[
    ("5808c8aa-7e8f-42e0-85d2-e1e90434cfb3", VolumeManager, "Windows dynamic disk"),
    ("af9b60a0-1431-4f62-bc68-3311714a69ad", VolumeManager, "Windows dynamic disk"),
    ("e75caf8f-f680-4cee-afa3-b001e56efc2d", VolumeManager, "Windows Storage Spaces"),
    ("0x42", VolumeManager, "Windows dynamic disk"),
];

/// Everything that is told by a few fixed bytes.
pub(super) const MARKS: &[DiskMark] = &[
    mark(Encrypted, "LUKS", 0, b"LUKS\xba\xbe"),
    mark(Encrypted, "LUKS", 0x4000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x8000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x1_0000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x2_0000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x4_0000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x8_0000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x10_0000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x20_0000, b"SKUL\xba\xbe"),
    mark(Encrypted, "LUKS", 0x40_0000, b"SKUL\xba\xbe"),
    mark(Encrypted, "BitLocker", 3, b"-FVE-FS-"),
    mark(Encrypted, "FileVault", 88, b"CS"),
    mark(VolumeManager, "LVM2", 0x18, b"LVM2 001"),
    mark(VolumeManager, "LVM2", 0x218, b"LVM2 001"),
    mark(VolumeManager, "LVM2", 0x418, b"LVM2 001"),
    mark(VolumeManager, "LVM2", 0x618, b"LVM2 001"),
    mark(VolumeManager, "LVM2", 0, b"LABELONE"),
    mark(VolumeManager, "LVM2", 0x200, b"LABELONE"),
    mark(VolumeManager, "LVM2", 0x400, b"LABELONE"),
    mark(VolumeManager, "LVM2", 0x600, b"LABELONE"),
    mark(VolumeManager, "LVM1", 0, b"HM\x01\0"),
    mark(VolumeManager, "LVM1", 0, b"HM\x02\0"),
    // `struct disk_header` of the kernel's dm-snap-persistent.c.
    store(VolumeManager, "LVM snapshot", 0, b"SnAp", Snapshots),
    mark(VolumeManager, "Windows dynamic disk", 0xC00, b"PRIVHEAD"),
    mark(VolumeManager, "Windows Storage Spaces", 0x1000, b"SPACEDB "),
    mark(VolumeManager, "VMFS volume", 0x10_0000, b"\x0d\xd0\x01\xc0"),
    mark(VolumeManager, "Stratis", 0x204, b"!Stra0tis\x86\xff\x02^\x41rh"),
    mark(VolumeManager, "Stratis", 0x1204, b"!Stra0tis\x86\xff\x02^\x41rh"),
    mark(VolumeManager, "dm-integrity", 0, b"integrt\0"),
    mark(VolumeManager, "VDO", 0, b"dmvdo001"),
    mark(VolumeManager, "Ceph BlueStore", 0, b"bluestore block device"),
    mark(VolumeManager, "Oracle ASM", 32, b"ORCLDISK"),
    mark(VolumeManager, "DRBD manager", 0, b"$DRBDmgr=q"),
    mark(VolumeManager, "HSE mpool", 0, b"mpoolDev"),
    mark(RaidMember, "Linux md", 0, b"\xfc\x4e\x2b\xa9"),
    mark(RaidMember, "Linux md", 0x1000, b"\xfc\x4e\x2b\xa9"),
    rounded(RaidMember, "Linux md", 4096, 8192, b"\xfc\x4e\x2b\xa9"),
    rounded(RaidMember, "Linux md", 4096, 12_288, b"\xfc\x4e\x2b\xa9"),
    rounded(RaidMember, "Linux md", 65_536, 65_536, b"\xfc\x4e\x2b\xa9"),
    rounded(RaidMember, "Linux md", 65_536, 65_536, b"\xa9\x2b\x4e\xfc"),
    rounded(RaidMember, "Intel RAID", 512, 1024, b"Intel Raid ISM Cfg Sig. "),
    rounded(RaidMember, "Intel RAID", 4096, 8192, b"Intel Raid ISM Cfg Sig. "),
    rounded(RaidMember, "DDF RAID", 512, 512, b"\xde\x11\xde\x11"),
    rounded(RaidMember, "DDF RAID", 512, 512, b"\x11\xde\x11\xde"),
    rounded(RaidMember, "DDF RAID", 512, 512 * 257, b"\xde\x11\xde\x11"),
    rounded(RaidMember, "Adaptec RAID", 512, 512, b"\x37\xfc\x4d\x1e"),
    rounded(RaidMember, "Nvidia RAID", 512, 1024, b"NVIDIA"),
    rounded(RaidMember, "LSI RAID", 512, 512, b"$XIDE$"),
    rounded(RaidMember, "Silicon Image RAID", 512, 512 - 0x60, b"\0\0\0\x2f"),
    rounded(RaidMember, "JMicron RAID", 512, 512, b"JM"),
    mark(RaidMember, "HighPoint RAID", 0x1220, b"\xf0\x16\x78\x5a"),
    mark(RaidMember, "HighPoint RAID", 0x1220, b"\xfd\x16\x78\x5a"),
    rounded(RaidMember, "HighPoint RAID", 512, 512 * 11, b"\xf3\x16\x78\x5a"),
    rounded(RaidMember, "HighPoint RAID", 512, 512 * 11, b"\xfd\x16\x78\x5a"),
    rounded(RaidMember, "Promise RAID", 512, 512 * 63, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 255, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 256, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 16, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 399, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 591, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 675, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 735, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 911, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 974, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 991, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 951, b"Promise Technology, Inc."),
    rounded(RaidMember, "Promise RAID", 512, 512 * 3087, b"Promise Technology, Inc."),
    rounded(RaidMember, "DRBD", 4096, 4096 - 60, b"\x83\x74\x02\x6b"),
    rounded(RaidMember, "DRBD", 1, 4096 - 60, b"\x83\x74\x02\x6b"),
    rounded(RaidMember, "DRBD", 4096, 4096 - 60, b"\x83\x74\x02\x6c"),
    rounded(RaidMember, "DRBD", 1, 4096 - 60, b"\x83\x74\x02\x6c"),
    rounded(RaidMember, "DRBD", 4096, 4096 - 60, b"\x83\x74\x02\x6d"),
    rounded(RaidMember, "DRBD", 1, 4096 - 60, b"\x83\x74\x02\x6d"),
    mark(
        CacheMember,
        "bcache",
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    // `struct wc_memory_superblock` of the kernel's dm-writecache.c, and `struct cache_disk_superblock` of
    // dm-cache-metadata.c.
    store(CacheMember, "dm-writecache", 0, b"\x21\x93\x48\x23", CacheMember),
    store(CacheMember, "dm-cache", 32, b"\x03\xc4\x18\0\0\0\0\0", CacheMember),
    mark(
        OtherFileSystem,
        "bcachefs",
        0x1018,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    mark(OtherFileSystem, "ReFS", 0, b"\0\0\0ReFS\0"),
    mark(OtherFileSystem, "APFS", 32, b"NXSB"),
    mark(OtherFileSystem, "HFS", 1024, b"BD"),
    mark(OtherFileSystem, "HFS+", 1024, b"H+\0\x04"),
    mark(OtherFileSystem, "HFS+", 1024, b"HX\0\x05"),
    mark(OtherFileSystem, "hashes of dm-verity", 0, b"verity\0\0"),
    mark(OtherFileSystem, "F2FS", 1024, b"\x10\x20\xf5\xf2"),
    mark(OtherFileSystem, "EROFS", 1024, b"\xe2\xe1\xf5\xe0"),
    mark(OtherFileSystem, "NILFS2", 1030, b"\x34\x34"),
    mark(OtherFileSystem, "Minix", 1040, b"\x7f\x13"),
    mark(OtherFileSystem, "Minix", 1040, b"\x8f\x13"),
    mark(OtherFileSystem, "Minix", 1040, b"\x68\x24"),
    mark(OtherFileSystem, "Minix", 1040, b"\x78\x24"),
    mark(OtherFileSystem, "Minix", 1040, b"\x13\x7f"),
    mark(OtherFileSystem, "Minix", 1040, b"\x13\x8f"),
    mark(OtherFileSystem, "Minix", 1040, b"\x24\x68"),
    mark(OtherFileSystem, "Minix", 1040, b"\x24\x78"),
    mark(OtherFileSystem, "Minix", 1048, b"\x5a\x4d"),
    mark(OtherFileSystem, "VxFS", 1024, b"\xf5\xfc\x01\xa5"),
    mark(OtherFileSystem, "VxFS", 8192, b"\xa5\x01\xfc\xf5"),
    mark(OtherFileSystem, "BFS", 0, b"\xce\xfa\xad\x1b"),
    mark(OtherFileSystem, "BeFS", 0x20, b"BFS1"),
    mark(OtherFileSystem, "BeFS", 0x20, b"1SFB"),
    mark(OtherFileSystem, "BeFS", 0x220, b"BFS1"),
    mark(OtherFileSystem, "BeFS", 0x220, b"1SFB"),
    mark(OtherFileSystem, "cramfs", 0, b"\x45\x3d\xcd\x28"),
    mark(OtherFileSystem, "cramfs", 0, b"\x28\xcd\x3d\x45"),
    mark(OtherFileSystem, "cramfs", 512, b"\x45\x3d\xcd\x28"),
    mark(OtherFileSystem, "romfs", 0, b"-rom1fs-"),
    mark(OtherFileSystem, "squashfs", 0, b"hsqs"),
    mark(OtherFileSystem, "squashfs", 0, b"sqsh"),
    mark(OtherFileSystem, "UBIFS", 0, b"\x31\x18\x10\x06"),
    mark(OtherFileSystem, "UBI", 0, b"UBI#"),
    mark(OtherFileSystem, "JFFS2", 0, b"\x19\x85"),
    mark(OtherFileSystem, "JFFS2", 0, b"\x85\x19"),
    mark(OtherFileSystem, "NetWare", 4096, b"SPB5"),
    mark(OtherFileSystem, "scoutfs", 0x1_0004, b"\x8b\x42\x3c\x10"),
    mark(OtherFileSystem, "HPFS", 8192, b"\x49\xe8\x95\xf9"),
    mark(OtherFileSystem, "JFS", 0x8000, b"JFS1"),
    mark(OtherFileSystem, "ISO 9660", 0x8001, b"CD001"),
    mark(OtherFileSystem, "UDF", 0x8001, b"BEA01"),
    mark(OtherFileSystem, "UDF", 0x8801, b"NSR02"),
    mark(OtherFileSystem, "UDF", 0x8801, b"NSR03"),
    mark(OtherFileSystem, "UDF", 0x9001, b"NSR02"),
    mark(OtherFileSystem, "UDF", 0x9001, b"NSR03"),
    mark(OtherFileSystem, "OCFS2", 0x400, b"OCFSV2"),
    mark(OtherFileSystem, "OCFS2", 0x800, b"OCFSV2"),
    mark(OtherFileSystem, "OCFS2", 0x1000, b"OCFSV2"),
    mark(OtherFileSystem, "OCFS2", 0x2000, b"OCFSV2"),
    mark(OtherFileSystem, "OCFS", 8, b"OracleCFS"),
    mark(OtherFileSystem, "GFS2", 0x1_0000, b"\x01\x16\x19\x70"),
    mark(OtherFileSystem, "ReiserFS", 0x2034, b"ReIsErFs"),
    mark(OtherFileSystem, "ReiserFS", 0x1_0034, b"ReIsErFs"),
    mark(OtherFileSystem, "ReiserFS", 0x1_0034, b"ReIsEr2Fs"),
    mark(OtherFileSystem, "ReiserFS", 0x1_0034, b"ReIsEr3Fs"),
    mark(OtherFileSystem, "Reiser4", 0x1_0000, b"ReIsEr4"),
    mark(OtherFileSystem, "UFS", 0x255C, b"\x54\x19\x01\x00"),
    mark(OtherFileSystem, "UFS", 0x255C, b"\x00\x01\x19\x54"),
    mark(OtherFileSystem, "UFS", 0x1_055C, b"\x19\x01\x54\x19"),
    mark(OtherFileSystem, "UFS", 0x1_055C, b"\x54\x19\x01\x00"),
    mark(OtherFileSystem, "UFS", 0x4_055C, b"\x19\x01\x54\x19"),
    mark(OtherFileSystem, "VMFS", 0x20_0000, b"\x5e\xf1\xab\x2f"),
    mark(PartitionTable, "SGI", 0, b"\x0b\xe5\xa9\x41"),
    mark(PartitionTable, "Sun", 508, b"\xda\xbe"),
    mark(PartitionTable, "Apple", 512, b"PM\0\0"),
    mark(PartitionTable, "BSD", 0, b"\x57\x45\x56\x82"),
    mark(PartitionTable, "BSD", 64, b"\x57\x45\x56\x82"),
    mark(PartitionTable, "BSD", 512, b"\x57\x45\x56\x82"),
    mark(PartitionTable, "DASD", 4096, b"\xe5\xd6\xd3\xf1"),
    mark(PartitionTable, "DASD", 8192, b"\xe5\xd6\xd3\xf1"),
    mark(PartitionTable, "DASD", 4096, b"\xd3\xd5\xe7\xf1"),
    mark(PartitionTable, "DASD", 8192, b"\xd3\xd5\xe7\xf1"),
];

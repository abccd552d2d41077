//! Which file systems come over a network.

/// The number of FUSE.
pub const FUSE: u32 = 0x6573_5546;

/// File systems that come over a network, by the numbers that statfs(2) gives them (linux/magic.h and their
/// sources). FUSE counts as one, as sshfs, rclone and GlusterFS do; a disk under ntfs-3g does, too.
const NETWORK: [u32; 16] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2
    FUSE,
    0x0187,      // autofs: what is mounted there comes when it is looked at
    0x5346_414f, // AFS
    0x6b41_4653, // the kernel's AFS
    0x00c3_6400, // Ceph
    0x7375_7245, // Coda
    0x0102_1997, // 9P
    0x0bd0_0bd0, // Lustre
    0x564c,      // NCP
    0x786f_4256, // shared folders of VirtualBox
    0xaad7_aaea, // PanFS
    0x1983_0326, // BeeGFS
];

/// Whether a file system of this kind (`f_type` of statfs(2), as an unsigned number) comes over a network, as far as
/// its kind tells.
pub fn is_network(kind: u32) -> bool {
    NETWORK.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_a_network_and_of_this_machine_are_told_apart() {
        assert!([0x6969, 0xff53_4d42, FUSE].into_iter().all(is_network));
        // ext4, XFS, btrfs, tmpfs, FAT, exFAT, ISO 9660.
        let own = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x4d44, 0x2011_bab0, 0x9660];
        assert!(!own.into_iter().any(is_network));
    }
}

//! What is put in front of a machine's initial RAM disk, so that one that knows nothing of us keeps its root over NBD
//! through restarts of the server and cut links: the program that keeps the disk, and a boot script for
//! initramfs-tools (`boot=diskless`). An archive in the `newc` format of Linux
//! (Documentation/driver-api/early-userspace/buffer-format), not compressed: every kernel reads that.

use bytes::Bytes;

/// The boot script: the file that packages install for machines that make their own initial RAM disk.
const SCRIPT: &str = include_str!("../../../packaging/initramfs-tools/scripts/diskless");
/// Where the script is in the initial RAM disk.
const SCRIPT_PATH: &str = "scripts/diskless";
/// Where the script looks for the program, and the folder of that.
const PROGRAM_PATH: &str = "sojourn/diskless";
const PROGRAM_FOLDER: &str = "sojourn";
/// Ends an archive.
const TRAILER: &str = "TRAILER!!!";

/// Types and rights of entries.
mod mode {
    pub(super) const FOLDER: u32 = 0o040_755;
    pub(super) const PROGRAM: u32 = 0o100_755;
    pub(super) const FILE: u32 = 0o100_644;
    pub(super) const NONE: u32 = 0;
}

/// The archive with the program that keeps a machine's disk (`sojourn-diskless`, linked statically) and its script.
pub fn archive(program: &[u8]) -> Bytes {
    let mut archive = Vec::with_capacity(program.len() + SCRIPT.len() + 1024);
    let entries: [(&str, u32, &[u8]); 5] = [
        ("scripts", mode::FOLDER, b""),
        (SCRIPT_PATH, mode::FILE, SCRIPT.as_bytes()),
        (PROGRAM_FOLDER, mode::FOLDER, b""),
        (PROGRAM_PATH, mode::PROGRAM, program),
        (TRAILER, mode::NONE, b""),
    ];
    for (inode, (path, mode, content)) in (1_u32..).zip(entries) {
        let length = content.len() as u32;
        // inode, mode, user, group, links, time, length, four numbers of devices, length of the path, checksum.
        let path_length = path.len() as u32 + 1;
        let fields = [inode, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, path_length, 0];
        archive.extend_from_slice(b"070701");
        for field in fields {
            archive.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        archive.extend_from_slice(path.as_bytes());
        archive.push(0);
        pad(&mut archive);
        archive.extend_from_slice(content);
        pad(&mut archive);
    }
    archive.into()
}

/// Every header and every content begins at a multiple of four bytes.
fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn a_shell_reads_the_script() {
        let checked = Command::new("sh").args(["-n", "-c", SCRIPT]).status().unwrap();
        assert!(checked.success());
        assert!(SCRIPT.contains(&format!("/{PROGRAM_PATH} ")));
    }

    #[test]
    fn entries_are_where_the_format_says() {
        for length in 0..9 {
            let program = vec![7; length];
            let archive = archive(&program);
            let (mut at, mut found) = (0, Vec::new());
            while at < archive.len() {
                let number = |field: usize| {
                    let start = at + 6 + 8 * field;
                    let digits = std::str::from_utf8(&archive[start..start + 8]).unwrap();
                    usize::from_str_radix(digits, 16).unwrap()
                };
                assert_eq!(&archive[at..at + 6], b"070701");
                let (mode, length, path) = (number(1), number(6), number(11));
                let name = &archive[at + 110..at + 110 + path - 1];
                let content = (at + 110 + path).next_multiple_of(4);
                found.push((
                    String::from_utf8(name.to_vec()).unwrap(),
                    mode,
                    archive[content..content + length].to_vec(),
                ));
                at = (content + length).next_multiple_of(4);
            }
            assert_eq!(at, archive.len());
            let script = SCRIPT.as_bytes().to_vec();
            let expected = [
                ("scripts", 0o040_755, vec![]),
                ("scripts/diskless", 0o100_644, script),
                ("sojourn", 0o040_755, vec![]),
                ("sojourn/diskless", 0o100_755, program),
                ("TRAILER!!!", 0, vec![]),
            ];
            let expected = expected.map(|(path, mode, content)| (path.to_owned(), mode, content));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn another_program_unpacks_it() {
        let Ok(mut cpio) = Command::new("cpio")
            .args(["--list", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            println!("skipped: cpio is not installed");
            return;
        };
        cpio.stdin.take().unwrap().write_all(&archive(b"program")).unwrap();
        let listed = String::from_utf8(cpio.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(listed, "scripts\nscripts/diskless\nsojourn\nsojourn/diskless\n");
    }
}

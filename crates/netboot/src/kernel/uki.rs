//! Unified kernel images (UAPI.5): kernel, initial RAM disk and parameters as sections of one PE file, which UEFI
//! starts. Firmware that is no UEFI, and iPXE with a root over NBD, need the parts.

use super::entry;
use super::tree::FileTree;
use block::Result;
use std::ops::Range;

/// How much of the file its headers may take; real ones take less than a page.
const HEADERS: u64 = 64 << 10;
/// The most sections: the format allows for no more (PE/COFF, "COFF File Header").
const MOST_SECTIONS: usize = 96;
/// The bytes of a section's header.
const SECTION: usize = 40;
/// The bytes of the header before the optional one.
const COFF: usize = 20;
/// The longest text in a section, in bytes.
const LONGEST_TEXT: u64 = 64 << 10;

/// What a version is called in os-release, the best first.
const VERSIONS: [&str; 3] = ["IMAGE_VERSION", "VERSION_ID", "BUILD_ID"];

/// The parts of one, as bytes of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnifiedKernel {
    /// The kernel's version, or else the system's.
    pub version: Option<String>,
    /// The kernel.
    pub kernel: Range<u64>,
    /// Initial RAM disks, in order.
    pub initrds: Vec<Range<u64>>,
    /// The kernel's parameters.
    pub arguments: Vec<String>,
}

/// A section of a PE file, as bytes of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Its bytes in the file.
    pub bytes: Range<u64>,
}

/// Reads one; `None` when there is none with this name, or the file is something else.
///
/// # Errors
/// Damage of the file system, and any error from reading.
pub fn read(tree: &dyn FileTree, path: &str) -> Result<Option<UnifiedKernel>> {
    let Some(length) = tree.length(path)? else { return Ok(None) };
    let mut head = Vec::new();
    if !tree.append_range(path, 0..length.min(HEADERS), &mut head)? {
        return Ok(None);
    }
    let sections = sections(&head);
    // Of several with one name the first counts: others are of profiles that somebody would have to choose.
    let section = |name: &str| {
        let found = sections.iter().find(|section| section.name == name)?;
        let bytes = found.bytes.clone();
        (!bytes.is_empty() && bytes.end <= length).then_some(bytes)
    };
    let text = |name: &str| -> Result<String> {
        let mut text = Vec::new();
        if let Some(bytes) = section(name).filter(|bytes| bytes.end - bytes.start <= LONGEST_TEXT) {
            tree.append_range(path, bytes, &mut text)?;
        }
        let text = String::from_utf8_lossy(&text);
        Ok(text.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned())
    };
    let Some(kernel) = section(".linux") else { return Ok(None) };
    let version = match text(".uname")? {
        kernel if !kernel.is_empty() => Some(kernel),
        _ => version_of(&text(".osrel")?),
    };
    let initrds = [".ucode", ".initrd"].into_iter().filter_map(section).collect();
    let arguments = entry::of_command_line(&text(".cmdline")?);
    Ok(Some(UnifiedKernel { version, kernel, initrds, arguments }))
}

/// The version in the text of os-release.
fn version_of(text: &str) -> Option<String> {
    let value = |key: &&str| {
        let mut lines = text.lines().filter_map(|line| line.trim().split_once('='));
        lines.find(|(found, _)| found == key).map(|(_, value)| value.replace(['"', '\''], ""))
    };
    VERSIONS.iter().find_map(value).filter(|version| !version.is_empty())
}

/// The sections of a PE file that begins with these bytes; none when that is none.
pub fn sections(head: &[u8]) -> Vec<Section> {
    section_table(head).unwrap_or_default()
}

fn section_table(head: &[u8]) -> Option<Vec<Section>> {
    let at = number(head.strip_prefix(b"MZ").and(head.get(0x3c..))?)? as usize;
    let header = head.get(at..)?.strip_prefix(b"PE\0\0")?;
    let half = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    let (count, optional) = (usize::from(half(2)?), usize::from(half(16)?));
    let table = header.get(COFF + optional..)?;
    let section = |bytes: &[u8]| {
        let [size, _, raw, start] = [8, 12, 16, 20].map(|at| number(&bytes[at..]).unwrap_or(0));
        // In the file it is filled up; and what there is not in the file is zeroes.
        let length = if size == 0 { raw } else { raw.min(size) };
        let name = bytes[..8].split(|byte| *byte == 0).next().unwrap_or_default();
        let bytes = u64::from(start)..u64::from(start) + u64::from(length);
        Section { name: String::from_utf8_lossy(name).into_owned(), bytes }
    };
    Some(table.chunks_exact(SECTION).take(count.min(MOST_SECTIONS)).map(section).collect())
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(sections: &[(&[u8; 8], u32, u32)]) -> Vec<u8> {
        let mut head = vec![0; 0x80];
        head[..2].copy_from_slice(b"MZ");
        head[0x3c] = 0x80;
        head.extend_from_slice(b"PE\0\0\x64\x86");
        head.extend_from_slice(&(sections.len() as u16).to_le_bytes());
        head.extend_from_slice(&[0; 12]);
        head.extend_from_slice(&[4, 0, 0, 0, 9, 9, 9, 9]);
        for (name, size, raw) in sections {
            head.extend_from_slice(*name);
            for number in [*size, 0, *raw, 4096, 0, 0, 0, 0] {
                head.extend_from_slice(&number.to_le_bytes());
            }
        }
        head
    }

    #[test]
    fn sections_are_as_long_as_they_are_in_memory_and_in_the_file() {
        let found = sections(&head(&[
            (b".linux\0\0", 700, 1024),
            (b".bss\0\0\0\0", 700, 0),
            (b".initrd\0", 0, 512),
        ]));
        let found: Vec<_> = found.into_iter().map(|it| (it.name, it.bytes)).collect();
        let expected: [(&str, Range<u64>); 3] =
            [(".linux", 4096..4796), (".bss", 4096..4096), (".initrd", 4096..4608)];
        assert_eq!(found, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
        let whole = head(&[(b".linux\0\0", 1, 1)]);
        for length in 0..whole.len() {
            assert!(sections(&whole[..length]).is_empty(), "{length}");
        }
    }

    #[test]
    fn the_system_says_its_version_as_well_as_it_can() {
        let text = "ID=x\nVERSION_ID=\"40\"\nIMAGE_VERSION='40.2'\n";
        assert_eq!(version_of(text).as_deref(), Some("40.2"));
        assert_eq!(version_of("VERSION_ID=\"12\"").as_deref(), Some("12"));
        assert_eq!(version_of("NAME=x\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512), at in any::<u32>()) {
            let mut head = head(&[(b".linux\0\0", 1, 1)]);
            head.extend_from_slice(&bytes);
            prop_assert!(sections(&head).len() == 1);
            head[0x3c..0x40].copy_from_slice(&at.to_le_bytes());
            let _ = (sections(&head), sections(&bytes), version_of(&String::from_utf8_lossy(&bytes)));
        }
    }
}

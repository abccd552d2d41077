//! The text that says what a disk consists of. Keys and types may be written in any case.

use block::{Error, Result};

/// The versions that are read.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;

/// A part of a disk, in the order of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    /// How long it is, in sectors.
    pub(super) sectors: u64,
    pub(super) data: ExtentData,
}

/// Where the data of a part is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExtentData {
    /// Nowhere: it reads as zeroes.
    Zero,
    /// In a file, from this sector on.
    File { name: String, sector: u64 },
}

/// Whether a descriptor says that its disk is the difference to another one.
pub(super) fn has_parent(text: &str) -> bool {
    text.lines().filter_map(key_and_value).any(|(key, value)| match key.as_str() {
        "parentcid" => !value.eq_ignore_ascii_case("ffffffff"),
        "parentfilenamehint" => true,
        _ => false,
    })
}

/// The parts of a disk whose data is in flat files.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) for a line that is neither a part, nor a key with a value;
/// [`Unsupported`](block::ErrorKind::Unsupported) for a type or a version that is not read.
pub(super) fn extents(text: &str) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = trimmed(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let named = |e: Error| e.context(format_args!("line {} of its descriptor", number + 1));
        if let Some(extent) = extent(line).map_err(named)? {
            extents.push(extent);
            continue;
        }
        match key_and_value(line) {
            Some((key, value)) if key == "version" => version(value).map_err(named)?,
            Some(_) => {}
            None => return Err(named(Error::corrupt("it is damaged; fetch it again"))),
        }
    }
    match extents.is_empty() {
        false => Ok(extents),
        true => Err(Error::corrupt("its descriptor names no data; fetch it again")),
    }
}

/// Without blanks, and without the zeroes that fill the room of a descriptor up.
fn trimmed(line: &str) -> &str {
    line.trim_matches(|c: char| c.is_whitespace() || c == '\0')
}

/// The key in small letters, the value without quotes.
fn key_and_value(line: &str) -> Option<(String, &str)> {
    let (key, value) = trimmed(line).split_once('=')?;
    let key = key.trim_end();
    let is_key = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    let value = trimmed(value);
    let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
    (!key.is_empty() && key.chars().all(is_key)).then(|| (key.to_ascii_lowercase(), value))
}

fn version(value: &str) -> Result<()> {
    match value.parse::<u32>() {
        Ok(version) if VERSIONS.contains(&version) => Ok(()),
        _ => Err(Error::unsupported(format!(
            "version {value:?} is not known; convert it with qemu-img convert -O qcow2"
        ))),
    }
}

/// The part that a line is about, if it is: `ACCESS SECTORS TYPE ["FILE" [SECTOR]]`.
fn extent(line: &str) -> Result<Option<Extent>> {
    let damaged = || Error::corrupt("it is damaged; fetch it again");
    let unsupported = |what: String| {
        Error::unsupported(format!("{what} is not read; convert it with qemu-img convert -O qcow2"))
    };
    let (access, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match access.to_ascii_uppercase().as_str() {
        "RW" | "RDONLY" => {}
        "NOACCESS" => return Err(unsupported("an extent without access".to_owned())),
        _ => return Ok(None),
    }
    let (before, file) = match rest.split_once('"') {
        Some((before, file)) => (before, Some(file)),
        None => (rest, None),
    };
    let mut words = before.split_whitespace();
    let sectors = words.next().and_then(|word| word.parse().ok()).ok_or_else(damaged)?;
    let kind = words.next().ok_or_else(damaged)?.to_ascii_uppercase();
    if words.next().is_some() {
        return Err(damaged());
    }
    let data = match (kind.as_str(), file) {
        ("ZERO", None) => ExtentData::Zero,
        // ESX calls its own flat files so.
        ("FLAT" | "VMFS", Some(file)) => {
            let (name, rest) = file.split_once('"').ok_or_else(damaged)?;
            let mut words = rest.split_whitespace();
            let sector = words.next().map_or(Ok(0), str::parse).map_err(|_| damaged())?;
            ExtentData::File { name: name.to_owned(), sector }
        }
        ("ZERO" | "FLAT" | "VMFS", _) => return Err(damaged()),
        _ => return Err(unsupported(format!("an extent of type {kind}"))),
    };
    Ok(Some(Extent { sectors, data }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn file(sectors: u64, name: &str, sector: u64) -> Extent {
        Extent { sectors, data: ExtentData::File { name: name.to_owned(), sector } }
    }

    /// Descriptors of VMware Workstation and ESX, shortened.
    const WORKSTATION: &str = "# Disk DescriptorFile\r\nversion=1\r\nencoding=\"windows-1252\"\r\n\
        CID=7f3d0a11\r\nparentCID=ffffffff\r\nisNativeSnapshot=\"no\"\r\n\
        createType=\"twoGbMaxExtentFlat\"\r\n\r\n# Extent description\r\n\
        RW 4192256 FLAT \"win 7-f001.vmdk\" 0\r\nRW 2048 FLAT \"win 7-f002.vmdk\" 128\r\n\r\n\
        # The Disk Data Base \r\n#DDB\r\n\r\nddb.adapterType = \"lsilogic\"\r\n\
        ddb.uuid = \"60 00 C2 9b\"\r\n";
    const ESX: &str = "# Disk DescriptorFile\nversion=1\nencoding=\"UTF-8\"\nCID=fffffffe\n\
        parentCID=FFFFFFFF\ncreateType=\"vmfs\"\n\nRW 83886080 VMFS \"web-flat.vmdk\"\n\
        # Change Tracking File\nchangeTrackPath=\"web-ctk.vmdk\"\n\nddb.thinProvisioned = \"1\"\n\0\0";

    #[test]
    fn descriptors_of_vmware_are_read() {
        let parts = [file(4_192_256, "win 7-f001.vmdk", 0), file(2048, "win 7-f002.vmdk", 128)];
        assert_eq!(extents(WORKSTATION).unwrap(), parts);
        assert_eq!(extents(ESX).unwrap(), [file(83_886_080, "web-flat.vmdk", 0)]);
        assert!(!has_parent(WORKSTATION) && !has_parent(ESX));
    }

    #[test]
    fn types_and_keys_are_read_in_any_case() {
        let text = "VERSION = 2\nrw 8 flat \"a\" 3\nReadOnly=1\nrdonly 9 Zero\n";
        let zero = Extent { sectors: 9, data: ExtentData::Zero };
        assert_eq!(extents(text).unwrap(), [file(8, "a", 3), zero]);
        assert!(has_parent("ParentCid = 1") && has_parent("parentfilenamehint=\"a\""));
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error_that_names_it() {
        let good = "version=1\nRW 8 FLAT \"a\" 0\n";
        for (line, kind) in [
            ("rubbish", ErrorKind::Corrupt),
            ("RWX 8 FLAT \"b\" 0", ErrorKind::Corrupt),
            ("=5", ErrorKind::Corrupt),
            ("RW", ErrorKind::Corrupt),
            ("RW -8 FLAT \"b\" 0", ErrorKind::Corrupt),
            ("RW 8 FLAT b 0", ErrorKind::Corrupt),
            ("RW 8 FLAT \"b 0", ErrorKind::Corrupt),
            ("RW 8 FLAT \"b\" x", ErrorKind::Corrupt),
            ("RW 8 ZERO \"b\" 0", ErrorKind::Corrupt),
            ("RW 8 9 FLAT \"b\" 0", ErrorKind::Corrupt),
            ("RW 8 SPARSE \"b\"", ErrorKind::Unsupported),
            ("RW 8 VMFSRDM \"b\"", ErrorKind::Unsupported),
            ("NOACCESS 8 ZERO", ErrorKind::Unsupported),
            ("version=4", ErrorKind::Unsupported),
        ] {
            let error = extents(&format!("{good}{line}\n")).unwrap_err();
            assert_eq!(error.kind(), kind, "{line}: {error}");
            assert!(error.message().contains("line 3 of"), "{error}");
        }
        assert_eq!(extents("version=1\n").unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

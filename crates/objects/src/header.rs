//! The first line of text objects: their magic, their version and a checksum.

/// What the first line of a text object says: `<magic> <version> <checksum> …`, with a line feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderLine {
    /// The version: 1, whose checksum is still to be compared, or one that has its checksum.
    Version(u64),
    /// What is wrong with it.
    Damaged(&'static str),
}

/// Reads the version of a text object: `rest` follows its first line. Any version but the first has a
/// checksum of all bytes but its own, so that a flipped bit does not pass for it.
pub fn header_line(magic: &str, line: &str, rest: &[u8]) -> HeaderLine {
    let mut fields = line.splitn(3, ' ');
    if fields.next() != Some(magic) {
        return HeaderLine::Damaged("it does not begin with its magic");
    }
    let version = fields.next().and_then(|version| version.parse::<u64>().ok());
    let Some(version) = version.filter(|version| *version > 0) else {
        return HeaderLine::Damaged("its version is not a number");
    };
    if version == 1 {
        return HeaderLine::Version(version);
    }
    let tail = fields.next().unwrap_or_default();
    let (sum, tail) = tail.split_at_checked(8).unwrap_or_default();
    let first = crc32c::crc32c(format!("{magic} {version} {tail}").as_bytes());
    match u32::from_str_radix(sum, 16) == Ok(crc32c::crc32c_append(first, rest)) {
        true => HeaderLine::Version(version),
        false => HeaderLine::Damaged("its version is not the one that was written"),
    }
}

//! File records, attributes and run lists.
//!
//! Source: the layout structures of ntfs-3g (`layout.h`) and of the kernel's `fs/ntfs3/ntfs.h`.

use crate::Refusal;
use crate::bytes::{le16, le32, le64};
use crate::refusal::refuse;

/// Bytes that one update-sequence number protects.
const STRIDE: usize = 512;

/// Attribute types.
pub(super) mod kind {
    pub(in super::super) const ATTRIBUTE_LIST: u32 = 0x20;
    pub(in super::super) const FILE_NAME: u32 = 0x30;
    pub(in super::super) const VOLUME_NAME: u32 = 0x60;
    pub(in super::super) const VOLUME_INFORMATION: u32 = 0x70;
    pub(in super::super) const DATA: u32 = 0x80;
    pub(in super::super) const BITMAP: u32 = 0xB0;
    pub(in super::super) const END: u32 = 0xFFFF_FFFF;
}

/// Puts the last two bytes of every 512 back where they belong, and checks that the multi-sector
/// structure was written as a whole.
pub(super) fn fix_up(bytes: &mut [u8], what: &str) -> Result<(), Refusal> {
    let at = usize::from(le16(bytes, 4));
    let count = usize::from(le16(bytes, 6));
    let strides = bytes.len() / STRIDE;
    // The array lies in the first stride, before the bytes that it protects.
    if count != strides + 1 || at < 8 || at % 2 != 0 || at + 2 * count > STRIDE - 2 {
        refuse!(Structure, "{what} has no valid update sequence; check it with chkdsk");
    }
    let number = le16(bytes, at);
    for stride in 0..strides {
        let end = (stride + 1) * STRIDE - 2;
        if le16(bytes, end) != number {
            refuse!(Structure, "{what} was written in part only; check it with chkdsk");
        }
        let from = at + 2 * (stride + 1);
        bytes.copy_within(from..from + 2, end);
    }
    Ok(())
}

/// A file record, its update sequence applied.
#[derive(Debug)]
pub(super) struct FileRecord {
    pub(super) number: u64,
    bytes: Vec<u8>,
}

impl FileRecord {
    /// Whether the raw bytes say that the record is in use.
    pub(super) fn in_use(raw: &[u8]) -> bool {
        &raw[..4] == b"FILE" && le16(raw, 0x16) & 1 != 0
    }

    /// The record `number` from its raw bytes; one in use.
    pub(super) fn new(number: u64, mut bytes: Vec<u8>) -> Result<Self, Refusal> {
        if &bytes[..4] != b"FILE" {
            refuse!(Structure, "file record {number} is damaged; check it with chkdsk");
        }
        fix_up(&mut bytes, &format!("file record {number}"))?;
        let used = le32(&bytes, 0x18) as usize;
        let first = usize::from(le16(&bytes, 0x14));
        let sane = used <= bytes.len() && first >= 0x2A && first % 8 == 0 && first + 4 <= used;
        if le16(&bytes, 0x16) & 1 == 0 || !sane {
            refuse!(
                Structure,
                "file record {number} is not in use or damaged; check it with chkdsk"
            );
        }
        // A record knows its number where the update sequence leaves room for it (NTFS 3.1).
        if le16(&bytes, 4) >= 0x30 && u64::from(le32(&bytes, 0x2C)) != number & 0xFFFF_FFFF {
            refuse!(
                Structure,
                "file record {number} says that it is {}; check it with chkdsk",
                le32(&bytes, 0x2C)
            );
        }
        bytes.truncate(used);
        Ok(Self { number, bytes })
    }

    /// The record that this one extends; `None` for a file's first.
    pub(super) fn base(&self) -> Option<u64> {
        let reference = le64(&self.bytes, 0x20);
        (reference != 0).then_some(reference & 0xFFFF_FFFF_FFFF)
    }

    /// All attributes, checked so that their fields can be read.
    pub(super) fn attributes(&self) -> Result<Vec<Attribute<'_>>, Refusal> {
        let mut list = Vec::new();
        let mut at = usize::from(le16(&self.bytes, 0x14));
        loop {
            let rest = self.bytes.get(at..).unwrap_or_default();
            if rest.len() >= 4 && le32(rest, 0) == kind::END {
                return Ok(list);
            }
            let len = if rest.len() >= 24 { le32(rest, 4) as usize } else { 0 };
            if len < 24 || len % 8 != 0 || len > rest.len() {
                refuse!(
                    Structure,
                    "the attributes of file record {} are damaged; check it with chkdsk",
                    self.number
                );
            }
            list.push(Attribute::new(&rest[..len], self.number)?);
            at += len;
        }
    }
}

/// An attribute of a record.
#[derive(Debug)]
pub(super) struct Attribute<'r> {
    bytes: &'r [u8],
    record: u64,
}

impl<'r> Attribute<'r> {
    fn new(bytes: &'r [u8], record: u64) -> Result<Self, Refusal> {
        let attribute = Self { bytes, record };
        let name_end = usize::from(le16(bytes, 10)) + 2 * usize::from(bytes[9]);
        let sane = bytes[8] <= 1
            && name_end <= bytes.len()
            && if bytes[8] == 1 {
                bytes.len() >= 0x40 && usize::from(le16(bytes, 0x20)) < bytes.len()
            } else {
                usize::from(le16(bytes, 0x14)) + le32(bytes, 0x10) as usize <= bytes.len()
            };
        if !sane {
            refuse!(
                Structure,
                "attribute {:#x} of file record {record} is damaged; check it with chkdsk",
                attribute.kind()
            );
        }
        Ok(attribute)
    }

    pub(super) fn kind(&self) -> u32 {
        le32(self.bytes, 0)
    }

    /// Its name in UTF-16 units; empty for most.
    pub(super) fn name(&self) -> Vec<u16> {
        let at = usize::from(le16(self.bytes, 10));
        let len = 2 * usize::from(self.bytes[9]);
        self.bytes[at..at + len].chunks_exact(2).map(|unit| le16(unit, 0)).collect()
    }

    /// Whether it is compressed or encrypted, so that its clusters are not its plain bytes.
    pub(super) fn is_coded(&self) -> bool {
        le16(self.bytes, 12) & 0x40FF != 0
    }

    /// The value of a resident attribute.
    pub(super) fn resident(&self) -> Option<&'r [u8]> {
        let at = usize::from(le16(self.bytes, 0x14));
        (self.bytes[8] == 0).then(|| &self.bytes[at..at + le32(self.bytes, 0x10) as usize])
    }

    /// Whether its value lies in clusters.
    pub(super) fn in_clusters(&self) -> bool {
        self.bytes[8] == 1
    }

    /// The first of the value's clusters that this attribute maps.
    pub(super) fn lowest(&self) -> u64 {
        le64(self.bytes, 0x10)
    }

    /// Bytes of the value; valid where [`lowest`](Self::lowest) is 0.
    pub(super) fn data_size(&self) -> u64 {
        le64(self.bytes, 0x30)
    }

    /// Bytes of the value that were written; the rest reads as zeroes.
    pub(super) fn initialised(&self) -> u64 {
        le64(self.bytes, 0x38)
    }

    /// Its run list: pairs of a signed difference of places and a length, each number as long as
    /// the byte before them says. Every run lies inside the `clusters` of the volume.
    pub(super) fn runs(&self, clusters: u64) -> Result<Vec<DataRun>, Refusal> {
        let damaged = |what: &str| {
            crate::Refusal::new(
                crate::Code::Structure,
                format!("a run list of file record {} {what}; check it with chkdsk", self.record),
            )
        };
        let mut bytes = &self.bytes[usize::from(le16(self.bytes, 0x20))..];
        let mut runs = Vec::new();
        let mut total = 0u64;
        let mut place = 0i64;
        loop {
            let Some((head, rest)) = bytes.split_first() else { return Err(damaged("has no end")) };
            if *head == 0 {
                break;
            }
            let (len_size, place_size) = (usize::from(head & 15), usize::from(head >> 4));
            if len_size == 0 || len_size > 8 || place_size > 8 || rest.len() < len_size + place_size
            {
                return Err(damaged("is damaged"));
            }
            let len = signed(&rest[..len_size]);
            if len <= 0 {
                return Err(damaged("has an empty run"));
            }
            let len = len as u64;
            total = total.checked_add(len).ok_or_else(|| damaged("is too long"))?;
            let first = if place_size == 0 {
                None
            } else {
                let delta = signed(&rest[len_size..len_size + place_size]);
                place = place.checked_add(delta).ok_or_else(|| damaged("leads too far"))?;
                let inside = u64::try_from(place)
                    .is_ok_and(|first| first.checked_add(len).is_some_and(|end| end <= clusters));
                if !inside {
                    return Err(damaged("leads outside of the volume"));
                }
                Some(place as u64)
            };
            runs.push(DataRun { first, len });
            bytes = &rest[len_size + place_size..];
        }
        // An empty value has a highest cluster of -1.
        if self.lowest().wrapping_add(total) != le64(self.bytes, 0x18).wrapping_add(1) {
            return Err(damaged("does not map the clusters that it should"));
        }
        Ok(runs)
    }
}

/// Clusters in a row; without a place they are a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DataRun {
    pub(super) first: Option<u64>,
    pub(super) len: u64,
}

/// A little-endian two's complement number of 1 to 8 bytes.
fn signed(bytes: &[u8]) -> i64 {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut raw = [if negative { 0xFF } else { 0 }; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A non-resident attribute with this run list.
    fn attribute(list: &[u8], total: u64) -> Vec<u8> {
        let mut bytes = vec![0; (0x40 + list.len()).next_multiple_of(8)];
        bytes[0..4].copy_from_slice(&kind::DATA.to_le_bytes());
        bytes[8] = 1;
        bytes[0x18..0x20].copy_from_slice(&total.wrapping_sub(1).to_le_bytes());
        bytes[0x20] = 0x40;
        bytes[0x40..0x40 + list.len()].copy_from_slice(list);
        bytes
    }

    fn encode(value: i64) -> Vec<u8> {
        let mut bytes = value.to_le_bytes().to_vec();
        while bytes.len() > 1 && signed(&bytes[..bytes.len() - 1]) == value {
            bytes.pop();
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn a_run_list_decodes_to_what_was_encoded(
            runs in proptest::collection::vec((proptest::option::of(0u64..1 << 40), 1u64..1 << 30), 0..12),
        ) {
            let mut list = Vec::new();
            let (mut last, mut total) = (0i64, 0);
            for (first, len) in &runs {
                let (len_bytes, place) = (encode(*len as i64), first.map(|f| encode(f as i64 - last)));
                let place = place.unwrap_or_default();
                list.push((place.len() << 4 | len_bytes.len()) as u8);
                list.extend(len_bytes);
                list.extend(place);
                last = first.map_or(last, |first| first as i64);
                total += len;
            }
            list.push(0);
            let bytes = attribute(&list, total);
            let decoded = Attribute::new(&bytes, 7).unwrap().runs(1 << 41).unwrap();
            let expected: Vec<DataRun> =
                runs.iter().map(|(first, len)| DataRun { first: *first, len: *len }).collect();
            prop_assert_eq!(decoded, expected);
            let short = attribute(&list, total + 1);
            prop_assert!(Attribute::new(&short, 7).unwrap().runs(1 << 41).is_err());
        }

        #[test]
        fn no_bytes_make_a_record_panic(bytes in proptest::collection::vec(any::<u8>(), 1024)) {
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(b"FILE");
            bytes[4..8].copy_from_slice(&[0x30, 0, 3, 0]);
            bytes[0x14..0x18].copy_from_slice(&[0x38, 0, 1, 0]);
            bytes[0x18..0x1C].copy_from_slice(&1000u32.to_le_bytes());
            bytes[0x2C..0x30].fill(0);
            let number = [bytes[0x30], bytes[0x31]];
            bytes[510..512].copy_from_slice(&number);
            bytes[1022..1024].copy_from_slice(&number);
            let record = FileRecord::new(0, bytes).unwrap();
            if let Ok(attributes) = record.attributes() {
                for attribute in attributes {
                    attribute.name();
                    if attribute.in_clusters() {
                        let _ = attribute.runs(1000);
                    }
                }
            }
        }
    }
}

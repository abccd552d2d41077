//! The file table of a volume, and the values of its files.

use super::boot::NtfsBoot;
use super::record::{DataRun, FileRecord, kind};
use crate::bytes::{le16, le32, le64};
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// The most bytes of an attribute list (Windows' own limit).
const MAX_LIST: u64 = 256 << 10;
/// The most runs that a value of the system has: beyond it memory would not be bounded.
const MAX_RUNS: usize = 1 << 20;

/// The value of an attribute.
#[derive(Debug)]
pub(super) enum Value {
    Resident(Vec<u8>),
    Clusters(AttributeStream),
}

/// A value that lies in clusters.
#[derive(Debug, Default)]
pub(super) struct AttributeStream {
    pub(super) runs: Vec<DataRun>,
    /// Bytes of the value.
    pub(super) size: u64,
    /// Bytes that were written; the rest reads as zeroes.
    pub(super) initialised: u64,
    /// Whether it is compressed or encrypted.
    pub(super) coded: bool,
}

impl Value {
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Resident(bytes) => bytes.len() as u64,
            Self::Clusters(stream) => stream.size,
        }
    }
}

/// A volume whose file table is known.
pub(super) struct Ntfs<'a> {
    pub(super) window: &'a Window<'a>,
    pub(super) boot: NtfsBoot,
    pub(super) mft: AttributeStream,
}

impl<'a> Ntfs<'a> {
    /// Finds the file table: its own record says where it lies, and where that is not enough, its
    /// attribute list names records in the part known so far.
    pub(super) fn open(window: &'a Window<'a>, boot: NtfsBoot) -> Result<Self, Refusal> {
        let raw = window.bytes(boot.mft * boot.cluster, boot.record)?;
        let record = FileRecord::new(0, raw)?;
        let mut volume = Self { window, boot, mft: AttributeStream::default() };
        let mut first = None;
        for attribute in record.attributes()? {
            if attribute.kind() == kind::DATA
                && attribute.name().is_empty()
                && attribute.in_clusters()
            {
                first = Some(attribute);
                break;
            }
        }
        let Some(first) = first.filter(|first| first.lowest() == 0) else {
            refuse!(Structure, "the file table does not say where it is; check it with chkdsk");
        };
        volume.mft = AttributeStream {
            runs: first.runs(volume.boot.clusters)?,
            size: first.data_size(),
            initialised: first.initialised(),
            coded: first.is_coded(),
        };
        if volume.mft.runs.first().and_then(|run| run.first) != Some(volume.boot.mft) {
            refuse!(
                Structure,
                "boot sector and file table differ in where it is; check it with chkdsk"
            );
        }
        for (number, lowest) in volume.pieces(&record, kind::DATA, &[])? {
            if lowest > 0 {
                let piece = volume.record(number)?;
                let mut stream = std::mem::take(&mut volume.mft);
                volume.append(&mut stream, &piece, kind::DATA, &[], lowest)?;
                volume.mft = stream;
            }
        }
        volume.check_length("the file table", &volume.mft)?;
        volume.check_solid("the file table", &volume.mft)?;
        if volume.mft.coded || !volume.mft.size.is_multiple_of(volume.boot.record as u64) {
            refuse!(Structure, "the size of the file table is impossible; check it with chkdsk");
        }
        Ok(volume)
    }

    /// How many file records were ever written.
    pub(super) fn records(&self) -> u64 {
        self.mft.initialised / self.boot.record as u64
    }

    /// File record `number`, which must be in use.
    pub(super) fn record(&self, number: u64) -> Result<FileRecord, Refusal> {
        let mut raw = vec![0; self.boot.record];
        let at = number.saturating_mul(self.boot.record as u64);
        if number >= self.records() {
            refuse!(Structure, "file record {number} does not exist; check it with chkdsk");
        }
        self.read(&self.mft, at, &mut raw)?;
        FileRecord::new(number, raw)
    }

    /// Reads from a value in clusters. What was never written is zero.
    pub(super) fn read(
        &self,
        stream: &AttributeStream,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Refusal> {
        buf.fill(0);
        let mut nowhere = buf.len() as u64;
        let end = offset.saturating_add(buf.len() as u64).min(stream.initialised.min(stream.size));
        let mut start = 0u64;
        for run in &stream.runs {
            // At most 2^32 clusters in a run with a place, each of at most 2 MiB; a hole may be
            // longer.
            let stop = start.saturating_add(run.len.saturating_mul(self.boot.cluster));
            let from = offset.max(start);
            let to = end.min(stop);
            if let Some(first) = run.first
                && from < to
            {
                let part = &mut buf[(from - offset) as usize..(to - offset) as usize];
                self.window.read(first * self.boot.cluster + (from - start), part)?;
                nowhere -= to - from;
            }
            start = stop;
            if start >= end {
                break;
            }
        }
        self.window.count(nowhere)
    }

    /// The value of the attribute of a file, wherever its pieces are.
    pub(super) fn value(
        &self,
        base: &FileRecord,
        kind: u32,
        name: &[u16],
    ) -> Result<Option<Value>, Refusal> {
        let mut stream = None;
        for (number, lowest) in self.pieces(base, kind, name)? {
            let other;
            let record = if number == base.number {
                base
            } else {
                other = self.record(number)?;
                &other
            };
            if lowest == 0 {
                match find(record, kind, name, 0)? {
                    AttributeValue::Resident(bytes) => return Ok(Some(Value::Resident(bytes))),
                    AttributeValue::Clusters(head) => stream = Some(head),
                }
            }
            let Some(stream) = &mut stream else {
                refuse!(
                    Structure,
                    "a value of file record {number} has no beginning; check it with chkdsk"
                );
            };
            self.append(stream, record, kind, name, lowest)?;
        }
        if let Some(stream) = &stream {
            self.check_length(&format!("a value of file record {}", base.number), stream)?;
        }
        Ok(stream.map(Value::Clusters))
    }

    /// Adds the runs of the piece of a value that begins at cluster `lowest` of it.
    fn append(
        &self,
        stream: &mut AttributeStream,
        record: &FileRecord,
        kind: u32,
        name: &[u16],
        lowest: u64,
    ) -> Result<(), Refusal> {
        let mapped: u64 = stream.runs.iter().map(|run| run.len).fold(0, u64::saturating_add);
        for attribute in record.attributes()? {
            if attribute.kind() == kind
                && attribute.in_clusters()
                && attribute.lowest() == lowest
                && attribute.name() == name
                && mapped == lowest
            {
                stream.runs.extend(attribute.runs(self.boot.clusters)?);
                if stream.runs.len() > MAX_RUNS {
                    refuse!(TooMuchWork, "a system file has more than {MAX_RUNS} pieces");
                }
                return Ok(());
            }
        }
        refuse!(
            Structure,
            "a piece of a value is missing in file record {}; check it with chkdsk",
            record.number
        )
    }

    /// The records that hold the pieces of an attribute, and where each piece begins; in order.
    fn pieces(
        &self,
        base: &FileRecord,
        kind: u32,
        name: &[u16],
    ) -> Result<Vec<(u64, u64)>, Refusal> {
        let mut pieces = Vec::new();
        for attribute in base.attributes()? {
            if attribute.kind() == kind::ATTRIBUTE_LIST {
                let list = match attribute.resident() {
                    Some(bytes) => bytes.to_vec(),
                    None => {
                        let stream = AttributeStream {
                            runs: attribute.runs(self.boot.clusters)?,
                            size: attribute.data_size(),
                            initialised: attribute.initialised(),
                            coded: attribute.is_coded(),
                        };
                        if stream.size > MAX_LIST || stream.coded || attribute.lowest() != 0 {
                            refuse!(
                                Structure,
                                "the attribute list of file record {} is impossible; check it with chkdsk",
                                base.number
                            );
                        }
                        let mut bytes = vec![0; stream.size as usize];
                        self.read(&stream, 0, &mut bytes)?;
                        bytes
                    }
                };
                return listed(&list, base.number, kind, name);
            }
            if attribute.kind() == kind && attribute.name() == name {
                let lowest = if attribute.in_clusters() { attribute.lowest() } else { 0 };
                pieces.push((base.number, lowest));
            }
        }
        Ok(pieces)
    }

    /// A value that says what is in use has no holes, which would make it as long as it likes, and fits into
    /// the volume.
    pub(super) fn check_solid(&self, what: &str, stream: &AttributeStream) -> Result<(), Refusal> {
        if stream.runs.iter().any(|run| run.first.is_none()) {
            refuse!(Structure, "{what} has a hole; check it with chkdsk");
        }
        if stream.size > self.boot.size {
            refuse!(
                Structure,
                "{what} has {} bytes, and the volume {}; check it with chkdsk",
                stream.size,
                self.boot.size
            );
        }
        Ok(())
    }

    /// A value must not be longer than the clusters that it has.
    fn check_length(&self, what: &str, stream: &AttributeStream) -> Result<(), Refusal> {
        let clusters = stream.runs.iter().map(|run| run.len).fold(0, u64::saturating_add);
        let room = clusters.saturating_mul(self.boot.cluster);
        if stream.size > room || stream.initialised > stream.size {
            refuse!(
                Structure,
                "{what} has {} bytes ({} written) in clusters for {room}; check it with chkdsk",
                stream.size,
                stream.initialised
            );
        }
        Ok(())
    }
}

enum AttributeValue {
    Resident(Vec<u8>),
    Clusters(AttributeStream),
}

/// The beginning of a value: all of it, or its sizes without the runs yet.
fn find(
    record: &FileRecord,
    kind: u32,
    name: &[u16],
    lowest: u64,
) -> Result<AttributeValue, Refusal> {
    for attribute in record.attributes()? {
        if attribute.kind() != kind || attribute.name() != name {
            continue;
        }
        if let Some(bytes) = attribute.resident() {
            return Ok(AttributeValue::Resident(bytes.to_vec()));
        }
        if attribute.lowest() == lowest {
            return Ok(AttributeValue::Clusters(AttributeStream {
                runs: Vec::new(),
                size: attribute.data_size(),
                initialised: attribute.initialised(),
                coded: attribute.is_coded(),
            }));
        }
    }
    refuse!(
        Structure,
        "a piece of a value is missing in file record {}; check it with chkdsk",
        record.number
    )
}

/// The entries of an attribute list for one attribute.
fn listed(list: &[u8], number: u64, kind: u32, name: &[u16]) -> Result<Vec<(u64, u64)>, Refusal> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < list.len() {
        let rest = &list[at..];
        let len = if rest.len() >= 26 { usize::from(le16(rest, 4)) } else { 0 };
        let name_at = if len > 0 { usize::from(rest[7]) } else { 0 };
        let name_len = if len > 0 { 2 * usize::from(rest[6]) } else { 0 };
        if len < 26 || len > rest.len() || name_at + name_len > len {
            refuse!(
                Structure,
                "the attribute list of file record {number} is damaged; check it with chkdsk"
            );
        }
        let entry = &rest[..len];
        let named = entry[name_at..name_at + name_len].chunks_exact(2).map(|unit| le16(unit, 0));
        if le32(entry, 0) == kind && named.eq(name.iter().copied()) {
            pieces.push((le64(entry, 16) & 0xFFFF_FFFF_FFFF, le64(entry, 8)));
        }
        at += len;
    }
    Ok(pieces)
}

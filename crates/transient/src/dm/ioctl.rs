//! The messages of device-mapper's control device (Linux, `include/uapi/linux/dm-ioctl.h`,
//! interface 4): a header of 312 bytes, then target specifications or names.

use block::{Error, Result};

/// Bytes of `struct dm_ioctl`.
pub(super) const HEADER: usize = 312;
/// Bytes of `struct dm_target_spec`, before the target's parameters.
const SPEC: usize = 40;
/// The most that a reply may take.
const LONGEST: usize = 64 << 20;

const NAME: std::ops::Range<usize> = 48..176;
const UUID: std::ops::Range<usize> = 176..305;

/// What the kernel is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MapCommand {
    List = 2,
    Create = 3,
    Remove = 4,
    /// Suspends with [`SUSPEND`], resumes without.
    Suspend = 6,
    Status = 7,
    Load = 9,
    Table = 12,
}

impl MapCommand {
    /// The request number, `_IOWR(0xfd, command, struct dm_ioctl)`.
    pub(super) const fn request(self) -> u32 {
        3 << 30 | (HEADER as u32) << 16 | 0xfd << 8 | self as u32
    }
}

/// Ask for tables, and not for the state of targets.
pub(super) const STATUS_TABLE: u32 = 1 << 4;
/// The reply did not fit.
const BUFFER_FULL: u32 = 1 << 8;
/// The kernel wipes its copy of the message.
pub(super) const SECURE_DATA: u32 = 1 << 15;

/// A part of a mapped device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapTarget {
    /// Where it starts on the mapped device, in sectors of 512 bytes.
    pub start: u64,
    /// How long it is, in sectors.
    pub length: u64,
    /// What it is: `linear`, `crypt`.
    pub kind: String,
    /// What it needs to know.
    pub parameters: String,
}

/// A message, and later its reply.
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message about the device `name`, with room for a reply of `room` bytes.
    pub(super) fn new(name: &str, flags: u32, room: usize) -> Result<Self> {
        let mut message = Self { bytes: vec![0; HEADER + room] };
        message.put(0, 4); // the version of the interface: 4.0.0
        message.put(12, (HEADER + room) as u32);
        message.put(16, HEADER as u32);
        message.put(28, flags);
        message.text(NAME, name)?;
        Ok(message)
    }

    /// A message that carries a table.
    pub(super) fn with_table(name: &str, flags: u32, table: &[MapTarget]) -> Result<Self> {
        let mut message = Self::new(name, flags, 0)?;
        for target in table {
            let length = (SPEC + target.parameters.len() + 1).next_multiple_of(8);
            let spec = message.bytes.len();
            message.bytes.resize(spec + length, 0);
            let bytes = &mut message.bytes[spec..];
            bytes[..8].copy_from_slice(&target.start.to_le_bytes());
            bytes[8..16].copy_from_slice(&target.length.to_le_bytes());
            bytes[20..24].copy_from_slice(&(length as u32).to_le_bytes());
            let kind = target.kind.as_bytes();
            if kind.len() >= 16 || target.parameters.contains('\0') {
                return Err(Error::internal(format!("{target:?} is no device-mapper target")));
            }
            bytes[24..24 + kind.len()].copy_from_slice(kind);
            bytes[SPEC..SPEC + target.parameters.len()]
                .copy_from_slice(target.parameters.as_bytes());
        }
        let size = u32::try_from(message.bytes.len())
            .map_err(|_| Error::invalid("a device-mapper table that is too long"))?;
        message.put(12, size);
        message.put(20, table.len() as u32);
        Ok(message)
    }

    /// Sets the identity that the device gets.
    pub(super) fn identity(mut self, uuid: &str) -> Result<Self> {
        self.text(UUID, uuid)?;
        Ok(self)
    }

    /// The bytes, for the kernel.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The same message with more room, when the reply did not fit.
    pub(super) fn grown(&self) -> Option<usize> {
        let room = self.bytes.len() - HEADER;
        (self.number(28) & BUFFER_FULL != 0 && room * 4 <= LONGEST).then_some(room * 4)
    }

    /// The device's number as the system's calls take it.
    pub(super) fn device(&self) -> u64 {
        let old = self.long(40);
        // The kernel's own encoding: 12 bits of minor, 20 of major, the rest of the minor.
        let (major, minor) = ((old >> 8) & 0xfff, (old & 0xff) | ((old >> 12) & 0xf_ff00));
        rustix::fs::makedev(major as u32, minor as u32)
    }

    /// How often the device is open.
    pub(super) fn open_count(&self) -> u32 {
        self.number(24)
    }

    /// The device's identity.
    pub(super) fn uuid(&self) -> String {
        string(&self.bytes[UUID])
    }

    /// The table that the kernel replied with.
    pub(super) fn targets(&self) -> Result<Vec<MapTarget>> {
        let data = self.data()?;
        let mut targets = Vec::new();
        let mut at = 0;
        for _ in 0..self.number(20) {
            let spec: &[u8] = data.get(at..).filter(|d| d.len() >= SPEC).ok_or_else(broken)?;
            targets.push(MapTarget {
                start: le64(spec, 0),
                length: le64(spec, 8),
                kind: string(&spec[24..40]),
                parameters: string(&spec[SPEC..]),
            });
            // Counted from the start of the data, unlike in what is sent.
            at = le32(spec, 20) as usize;
        }
        Ok(targets)
    }

    /// The names that the kernel replied with.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let data = self.data()?;
        let mut names = Vec::new();
        let mut at = 0;
        loop {
            let entry: &[u8] = data.get(at..).filter(|d| d.len() >= 12).ok_or_else(broken)?;
            if le64(entry, 0) == 0 {
                return Ok(names); // there is no device at all
            }
            names.push(string(&entry[12..]));
            match le32(entry, 8) as usize {
                0 => return Ok(names),
                next => at += next,
            }
        }
    }

    fn data(&self) -> Result<&[u8]> {
        self.bytes.get(self.number(16) as usize..).ok_or_else(broken)
    }

    fn number(&self, at: usize) -> u32 {
        le32(&self.bytes, at)
    }

    fn long(&self, at: usize) -> u64 {
        le64(&self.bytes, at)
    }

    fn put(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, place: std::ops::Range<usize>, text: &str) -> Result<()> {
        if text.len() >= place.len() || text.contains(['\0', '/']) {
            return Err(Error::invalid(format!("{text:?} cannot name a mapped device")));
        }
        self.bytes[place.start..place.start + text.len()].copy_from_slice(text.as_bytes());
        Ok(())
    }
}

/// What a kernel in tests does with messages.
#[cfg(test)]
impl Message {
    /// The name of the device that it is about.
    pub(super) fn name(&self) -> String {
        string(&self.bytes[NAME])
    }

    /// The same table as the kernel replies with it: its links count from the start of the data.
    fn replied(&self) -> Self {
        let mut bytes = self.bytes.clone();
        let mut at = HEADER;
        while at < bytes.len() {
            let length = le32(&bytes, at + 20) as usize;
            let next = (at + length - HEADER) as u32;
            bytes[at + 20..at + 24].copy_from_slice(&next.to_le_bytes());
            at += length;
        }
        Self { bytes }
    }

    /// The table that it carries.
    pub(super) fn sent(&self) -> Vec<MapTarget> {
        self.replied().targets().unwrap()
    }

    /// Turns it into the reply about a device.
    pub(super) fn tell(&mut self, uuid: &str, minor: u32, opened: u32) {
        self.text(UUID, uuid).unwrap();
        self.put(40, 253 << 8 | minor);
        self.put(24, opened);
    }

    /// Turns it into the reply that has a table.
    pub(super) fn tell_table(&mut self, table: &[MapTarget]) {
        let replied = Self::with_table("", 0, table).unwrap().replied();
        self.put(20, table.len() as u32);
        self.bytes.truncate(HEADER);
        self.bytes.extend_from_slice(&replied.bytes[HEADER..]);
    }

    /// Turns it into the reply that has names.
    pub(super) fn tell_names(&mut self, names: &[String]) {
        self.bytes.truncate(HEADER);
        for (i, name) in names.iter().enumerate() {
            let length = (12 + name.len() + 1).next_multiple_of(8);
            let next = if i + 1 == names.len() { 0 } else { length as u32 };
            let start = self.bytes.len();
            self.bytes.resize(start + length, 0);
            self.bytes[start] = 1;
            self.bytes[start + 8..start + 12].copy_from_slice(&next.to_le_bytes());
            self.bytes[start + 12..start + 12 + name.len()].copy_from_slice(name.as_bytes());
        }
        if names.is_empty() {
            self.bytes.resize(HEADER + 16, 0);
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.bytes);
    }
}

fn broken() -> Error {
    Error::internal("the kernel's reply about mapped devices is cut short")
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// The text up to the first zero byte.
fn string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_numbers_are_those_of_the_kernels_header() {
        assert_eq!(MapCommand::List.request(), 0xc138_fd02);
        assert_eq!(MapCommand::Create.request(), 0xc138_fd03);
        assert_eq!(MapCommand::Table.request(), 0xc138_fd0c);
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        assert!(Message::new(&"x".repeat(127), 0, 0).is_ok());
        for name in ["x".repeat(128), "a/b".into(), "a\0b".into()] {
            assert!(Message::new(&name, 0, 0).is_err(), "{name:?}");
        }
    }

    #[test]
    fn device_numbers_are_decoded() {
        let mut message = Message::new("x", 0, 0).unwrap();
        // 253:5, and 259:70000 (minor 0x11170).
        for (stored, major, minor) in [(0xfd05u64, 253, 5), (0x1111_0370, 259, 0x11170)] {
            message.bytes[40..48].copy_from_slice(&stored.to_le_bytes());
            assert_eq!(message.device(), rustix::fs::makedev(major, minor));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_table_comes_back_as_it_was_sent(
            targets in proptest::collection::vec((any::<u64>(), any::<u64>(), "[a-z]{1,15}", "[ -~]{0,80}"), 0..20),
        ) {
            let table: Vec<MapTarget> = targets
                .into_iter()
                .map(|(start, length, kind, parameters)| MapTarget { start, length, kind, parameters })
                .collect();
            let message = Message::with_table("name", SECURE_DATA, &table).unwrap();
            prop_assert_eq!(message.bytes.len() as u32, message.number(12));
            prop_assert_eq!(message.sent(), table);
        }

        #[test]
        fn broken_replies_are_errors_or_lists_but_never_a_panic(
            noise in proptest::collection::vec(any::<u8>(), 0..400), count in 0u32..100,
        ) {
            let mut message = Message::new("x", 0, noise.len()).unwrap();
            message.bytes[HEADER..].copy_from_slice(&noise);
            message.put(20, count);
            let _ = message.targets();
            if let Ok(names) = message.names() {
                prop_assert!(names.len() <= noise.len());
            }
        }
    }
}

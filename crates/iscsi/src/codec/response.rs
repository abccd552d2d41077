//! What a target sends, and the buffer that it waits in.

use super::{Digests, HEADER, NO_TAG};

/// The counters that nearly every answer carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of the answer.
    pub stat_sn: u32,
    /// The next command that is expected.
    pub exp_cmd_sn: u32,
    /// The last command that may be sent.
    pub max_cmd_sn: u32,
}

/// A header being filled.
#[derive(Debug, Clone, Copy)]
struct HeaderFields([u8; HEADER]);

impl HeaderFields {
    fn new(opcode: u8, flags: u8, tag: u32, counts: Counts) -> Self {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (opcode, flags);
        Self(header)
            .u32(16, tag)
            .u32(24, counts.stat_sn)
            .u32(28, counts.exp_cmd_sn)
            .u32(32, counts.max_cmd_sn)
    }

    fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u32(self, at: usize, value: u32) -> Self {
        self.bytes(at, &value.to_be_bytes())
    }
}

/// How much of the expected data was not moved, or would have been.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Residual {
    /// All that was expected, and no more.
    #[default]
    None,
    /// So many bytes more than the initiator expected.
    Overflow(u32),
    /// So many bytes less.
    Underflow(u32),
}

impl Residual {
    /// That of `actual` bytes where `expected` were expected.
    pub fn of(expected: u32, actual: u64) -> Self {
        match u64::from(expected) {
            same if same == actual => Self::None,
            more if more > actual => {
                Self::Underflow(u32::try_from(more - actual).unwrap_or(u32::MAX))
            }
            less => Self::Overflow(u32::try_from(actual - less).unwrap_or(u32::MAX)),
        }
    }

    const fn fields(self) -> (u8, u32) {
        match self {
            Self::None => (0, 0),
            Self::Overflow(count) => (0x04, count),
            Self::Underflow(count) => (0x02, count),
        }
    }
}

/// A response to a SCSI command (11.4).
pub fn command(
    tag: u32,
    status: u8,
    residual: Residual,
    exp_data_sn: u32,
    counts: Counts,
) -> [u8; HEADER] {
    let (flags, count) = residual.fields();
    let fields = HeaderFields::new(0x21, 0x80 | flags, tag, counts).bytes(3, &[status]);
    fields.u32(36, exp_data_sn).u32(44, count).0
}

/// A piece of data on its way to the initiator (11.7); with `status` it is the last one of the command
/// and answers it, without it `counts.stat_sn` does not count.
pub fn data_in(
    tag: u32,
    last: bool,
    status: Option<(u8, Residual)>,
    data_sn: u32,
    offset: u32,
    mut counts: Counts,
) -> [u8; HEADER] {
    let (mut flags, mut count, mut code) = (if last { 0x80 } else { 0 }, 0, 0);
    match status {
        Some((status, residual)) => {
            let (residual_flags, residual_count) = residual.fields();
            flags |= 0x01 | residual_flags;
            (count, code) = (residual_count, status);
        }
        None => counts.stat_sn = 0,
    }
    let fields = HeaderFields::new(0x25, flags, tag, counts).bytes(3, &[code]).u32(20, NO_TAG);
    fields.u32(36, data_sn).u32(40, offset).u32(44, count).0
}

/// A request to transfer (11.8).
pub fn ready_to_transfer(
    lun: [u8; 8],
    tag: u32,
    transfer: u32,
    r2t_sn: u32,
    offset: u32,
    length: u32,
    counts: Counts,
) -> [u8; HEADER] {
    let fields = HeaderFields::new(0x31, 0x80, tag, counts).bytes(8, &lun).u32(20, transfer);
    fields.u32(36, r2t_sn).u32(40, offset).u32(44, length).0
}

/// The answer to a task management request (11.6).
pub fn manage(tag: u32, response: u8, counts: Counts) -> [u8; HEADER] {
    HeaderFields::new(0x22, 0x80, tag, counts).bytes(2, &[response]).0
}

/// The answer to a step of the login (11.13).
pub fn login(
    flags: u8,
    isid: [u8; 6],
    tsih: u16,
    tag: u32,
    status: (u8, u8),
    counts: Counts,
) -> [u8; HEADER] {
    let fields = HeaderFields::new(0x23, flags, tag, counts).bytes(8, &isid);
    fields.bytes(14, &tsih.to_be_bytes()).bytes(36, &[status.0, status.1]).0
}

/// The answer to a text request (11.11); with `transfer` there is more to come.
pub fn text(lun: [u8; 8], tag: u32, transfer: Option<u32>, counts: Counts) -> [u8; HEADER] {
    let flags = if transfer.is_some() { 0x40 } else { 0x80 };
    let fields = HeaderFields::new(0x24, flags, tag, counts).bytes(8, &lun);
    fields.u32(20, transfer.unwrap_or(NO_TAG)).0
}

/// The answer to a logout (11.15).
pub fn logout(tag: u32, response: u8, counts: Counts) -> [u8; HEADER] {
    HeaderFields::new(0x26, 0x80, tag, counts).bytes(2, &[response]).0
}

/// The answer to a ping (11.19).
pub fn nop_in(lun: [u8; 8], tag: u32, counts: Counts) -> [u8; HEADER] {
    HeaderFields::new(0x20, 0x80, tag, counts).bytes(8, &lun).u32(20, NO_TAG).0
}

/// A request to log out within so many seconds (11.9).
pub fn please_log_out(seconds: u16, counts: Counts) -> [u8; HEADER] {
    let fields = HeaderFields::new(0x32, 0x80, NO_TAG, counts).bytes(36, &[1]);
    fields.bytes(42, &seconds.to_be_bytes()).0
}

/// Says that a PDU was refused (11.17); its header goes along as data.
pub fn reject(reason: u8, counts: Counts) -> [u8; HEADER] {
    HeaderFields::new(0x3f, 0x80, NO_TAG, counts).bytes(2, &[reason]).0
}

/// PDUs on their way to the initiator.
#[derive(Debug)]
pub struct Output {
    bytes: Vec<u8>,
    sent: usize,
    digests: Digests,
}

/// Room that is kept while there is nothing to send, in bytes.
const KEPT: usize = 256 << 10;

impl Output {
    /// An empty one.
    pub fn new(digests: Digests) -> Self {
        Self { bytes: Vec::new(), sent: 0, digests }
    }

    /// What all further PDUs carry.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// What is to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Notes that the first `count` bytes were sent.
    pub fn consume(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.bytes.len());
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.sent = 0;
        } else if self.sent > KEPT && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Appends a PDU.
    pub fn put(&mut self, header: [u8; HEADER], data: &[u8]) {
        let mark = self.begin(header, data.len());
        self.bytes.extend_from_slice(data);
        self.end(mark);
    }

    /// Appends a PDU whose `length` bytes of data `fill` writes; nothing when it fails.
    ///
    /// # Errors
    /// That of `fill`.
    pub fn put_with<E>(
        &mut self,
        header: [u8; HEADER],
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.bytes.len();
        let mark = self.begin(header, length);
        self.bytes.resize(mark + length, 0);
        match fill(&mut self.bytes[mark..]) {
            Ok(()) => {
                self.end(mark);
                Ok(())
            }
            Err(error) => {
                self.bytes.truncate(before);
                Err(error)
            }
        }
    }

    /// How long all is, to [`take_back`](Self::take_back) what follows.
    pub(crate) fn mark(&self) -> usize {
        self.bytes.len()
    }

    /// Drops all behind a mark that was taken since anything was consumed.
    pub(crate) fn take_back(&mut self, mark: usize) {
        self.bytes.truncate(mark);
    }

    /// Puts a header; where the data begins.
    fn begin(&mut self, mut header: [u8; HEADER], length: usize) -> usize {
        header[5..8].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()[1..]);
        self.bytes.extend_from_slice(&header);
        if self.digests.header {
            self.bytes.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        }
        self.bytes.len()
    }

    /// Pads the data that begins at `mark`.
    fn end(&mut self, mark: usize) {
        let length = self.bytes.len() - mark;
        self.bytes.resize(mark + length.next_multiple_of(4), 0);
        if self.digests.data && length > 0 {
            let sum = crc32c::crc32c(&self.bytes[mark..]);
            self.bytes.extend_from_slice(&sum.to_le_bytes());
        }
    }
}

//! The bytes that came and were not looked at yet.

/// The room of a connection that sends little, in bytes.
const ROOM: usize = 16 << 10;

/// A buffer that grows to the PDU that is expected.
#[derive(Debug)]
pub(super) struct PduBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl PduBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; ROOM], start: 0, end: 0 }
    }

    /// What came.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `count` bytes were looked at.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Has room for a PDU of so many bytes, which the caller has bounded.
    pub(super) fn make_room(&mut self, whole: usize) {
        if self.start + whole <= self.bytes.len() {
            return;
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.bytes.len() < whole {
            self.bytes.resize(whole.next_multiple_of(ROOM), 0);
        }
    }

    /// Where more goes. Never empty after [`make_room`](Self::make_room) for what was short.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// So many bytes came.
    pub(super) fn came(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }
}

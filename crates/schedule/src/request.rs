//! One request as a disk scheduler sees it.

/// A moment or a span of time in nanoseconds. Moments count from the start of the run.
pub type Nanos = u64;

/// Nanoseconds in a millisecond.
pub const MILLISECOND: f64 = 1e6;

/// Bytes of a sector, the unit of positions.
pub const SECTOR: u64 = 512;

/// Milliseconds as nanoseconds; what is negative or not a number is 0.
pub fn from_ms(ms: f64) -> Nanos {
    (ms * MILLISECOND).round() as Nanos
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Op {
    /// Read.
    #[default]
    Read,
    /// Write.
    Write,
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskRequest {
    /// Tells requests apart that are in the system at the same time. Whoever drives the scheduler
    /// gives it; a scheduler hands it back unchanged.
    pub id: u64,
    /// Who asked.
    pub client: u32,
    /// What was asked for.
    pub op: Op,
    /// Somebody waits for the answer; read-ahead and write-back are not waited for.
    pub awaited: bool,
    /// The first sector.
    pub start: u64,
    /// How many sectors.
    pub sectors: u32,
    /// When it arrived.
    pub arrived: Nanos,
    /// The load's own mark; nobody else looks at it.
    pub tag: u32,
}

impl DiskRequest {
    /// The sector behind the last one.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.sectors as u64)
    }
}

//! What is told of boots.

use disk::{WaitCause, WaitReading};
use serde::{Deserialize, Serialize};

/// Who boots now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BootsView {
    /// How many guests boot now.
    pub booting: u64,
    /// What they waited for in the last second.
    pub waits: GuestsByWait,
    /// The boots that go on, those first that began first; not all when there are many.
    pub boots: Vec<BootView>,
    /// The storms that are kept, the newest first; the newest may go on.
    pub storms: Vec<StormSummary>,
}

/// How many guests waited most of all for what; each is counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestsByWait {
    /// Their turn at the store.
    pub queue: u32,
    /// The store.
    pub store: u32,
    /// Somebody nearby.
    pub nearby: u32,
    /// The server's disk, with their private blocks.
    pub disk: u32,
    /// Nothing, for the most part: they compute, or what they ask is in memory.
    pub none: u32,
}

impl GuestsByWait {
    pub(super) fn count(&mut self, wait: BootWait) {
        match wait {
            BootWait::Queue => self.queue += 1,
            BootWait::Store => self.store += 1,
            BootWait::Nearby => self.nearby += 1,
            BootWait::Disk => self.disk += 1,
            BootWait::None => self.none += 1,
        }
    }
}

/// What a guest waited for most of all, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootWait {
    /// Its turn at the store.
    Queue,
    /// The store.
    Store,
    /// Somebody nearby.
    Nearby,
    /// The server's disk.
    Disk,
    /// Nothing, for at least half of the time.
    None,
}

impl BootWait {
    /// The letter by which a lane tells it.
    pub(super) fn letter(self) -> char {
        match self {
            Self::Queue => 'q',
            Self::Store => 's',
            Self::Nearby => 'n',
            Self::Disk => 'd',
            Self::None => '-',
        }
    }
}

/// How long a guest waited for what, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitSeconds {
    /// Its turn at the store.
    pub queue: f64,
    /// The store.
    pub store: f64,
    /// Somebody nearby.
    pub nearby: f64,
    /// The server's disk.
    pub disk: f64,
}

impl From<WaitReading> for WaitSeconds {
    fn from(reading: WaitReading) -> Self {
        let of = |cause| millis(reading.of(cause).as_secs_f64());
        Self {
            queue: of(WaitCause::Queue),
            store: of(WaitCause::Store),
            nearby: of(WaitCause::Nearby),
            disk: of(WaitCause::Disk),
        }
    }
}

/// To the millisecond.
pub(super) fn millis(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// How a boot stands, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootState {
    /// It goes on.
    Booting,
    /// Nothing new of the image was read for a while.
    Done,
    /// The client left before that.
    Left,
    /// It took too long to be one.
    TooLong,
}

/// One boot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BootView {
    /// The disk.
    pub disk: String,
    /// Who used it.
    pub client: String,
    /// The image version that the disk stands on.
    pub image: String,
    /// When it began, in seconds since its storm did.
    pub began_seconds: f64,
    /// How long it took, or has taken: until something new of the image was read last.
    pub seconds: f64,
    /// How it stands.
    pub state: BootState,
    /// Chunks that the boot list of the image names; null when it has none.
    pub list_chunks: Option<u64>,
    /// Listed chunks that the guest has read.
    pub listed_chunks: u32,
    /// Chunks that it has read beside the list.
    pub other_chunks: u32,
    /// The bytes of both.
    pub bytes: u64,
    /// Requests that could not be answered at once.
    pub waits: u64,
    /// What these waited for, of the time that the boot took.
    pub waited: WaitSeconds,
    /// What it waited for in the last second; null when it is over.
    pub now: Option<BootWait>,
}

/// A storm that is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StormSummary {
    /// Its number.
    pub storm: u64,
    /// When it began, in Unix seconds.
    pub began: u64,
    /// How long it took, or has taken.
    pub seconds: f64,
    /// Whether it is over.
    pub over: bool,
    /// How many boots it has.
    pub watched: u64,
    /// Boots beyond the most that are watched.
    pub unwatched: u64,
}

/// A moment of a storm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StormMoment {
    /// Its end, in seconds since the storm began.
    pub at: f64,
    /// What guests waited for in it.
    pub waits: GuestsByWait,
    /// Bytes that came from the store in it, as stored.
    pub stored_bytes: u64,
}

/// The recording of a storm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StormView {
    /// Which one.
    #[serde(flatten)]
    pub storm: StormSummary,
    /// What was seen, in order.
    pub moments: Vec<StormMoment>,
    /// Its boots, those first that began first.
    pub boots: Vec<RecordedBoot>,
}

/// A boot, and what it waited for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordedBoot {
    /// The boot.
    #[serde(flatten)]
    pub boot: BootView,
    /// The first moment of the storm in which it went on.
    pub first_moment: u32,
    /// What it waited for in that moment and in those behind it, a letter for each: `q` its turn at the store, `s`
    /// the store, `n` somebody nearby, `d` the server's disk, `-` nothing.
    pub lane: String,
}

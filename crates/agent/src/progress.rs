//! How far write-back and hoarding are, as figures and in words.

use block::ByteSize;
use serde::{Deserialize, Serialize};

/// What an upload is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadState {
    /// The disk is not open: nobody knows what has to go up.
    #[default]
    Unknown,
    /// The store has everything.
    Done,
    /// Something was written; it goes up soon.
    Waiting,
    /// It goes up now.
    Sending,
    /// The store does not answer; it is tried again and again.
    Offline,
    /// Nothing goes up until somebody says so.
    Paused,
    /// Another machine took the disk: nothing goes up any more.
    Lost,
}

/// How far the store is behind a disk.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UploadProgress {
    /// What is being done about it.
    pub state: UploadState,
    /// Bytes that the store does not have, before compression.
    pub behind_bytes: u64,
    /// Bytes of these that are in the store and not named there yet.
    pub sent_bytes: u64,
    /// When the disk was as the store has it, in Unix seconds, unless the store has everything.
    pub behind_since: Option<u64>,
    /// Seconds until all is there, if that can be told.
    pub remaining_seconds: Option<u64>,
    /// Bytes that went over the wire since the start.
    pub wire_bytes: u64,
    /// Why nothing goes up.
    pub error: Option<String>,
}

impl UploadProgress {
    /// Whether another machine can go on with everything that was written.
    pub fn is_done(&self) -> bool {
        self.state == UploadState::Done
    }

    /// The same for a disk that is this block device: the kernel has part of what was written to that in memory, and
    /// nobody else knows of it.
    pub fn text_of_device(&self, device: &str) -> String {
        match self.state {
            UploadState::Done => format!(
                "what was flushed is in the store; unmount {device}, or `sojourn attach sync`, before you switch off"
            ),
            _ => self.text(),
        }
    }

    /// One line for people.
    pub fn text(&self) -> String {
        let left = self.behind_bytes.saturating_sub(self.sent_bytes);
        let left = format!("{} of {} to go up", ByteSize(left), ByteSize(self.behind_bytes));
        match self.state {
            UploadState::Unknown => {
                "what has to go up is not known yet; not safe to switch off".to_owned()
            }
            UploadState::Done => "all is in the store; safe to switch off".to_owned(),
            UploadState::Waiting => format!("{left}, soon; not safe to switch off"),
            UploadState::Sending => match self.remaining_seconds {
                Some(seconds) => format!("{left}, {}; not safe to switch off", duration(seconds)),
                None => format!("{left}; not safe to switch off"),
            },
            UploadState::Offline => {
                format!("{left} when the store is back; safe on this machine alone")
            }
            UploadState::Paused => format!("{left}, paused; safe on this machine alone"),
            UploadState::Lost => {
                "taken by another machine; what was written here stays here".to_owned()
            }
        }
    }
}

/// How much of what a disk stands on is on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoardState {
    /// Nobody asked for it.
    #[default]
    Off,
    /// What is missing is being counted, or fetched.
    Fetching,
    /// The store does not answer; it is tried again and again.
    Offline,
    /// Everything is here.
    Complete,
}

/// How far hoarding is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HoardProgress {
    /// What is being done.
    pub state: HoardState,
    /// Bytes that the disk stands on, as stored.
    pub total_bytes: u64,
    /// Bytes of these that are on this machine.
    pub here_bytes: u64,
    /// Why nothing comes.
    pub error: Option<String>,
}

impl HoardProgress {
    /// One line for people.
    pub fn text(&self) -> String {
        let left = self.total_bytes.saturating_sub(self.here_bytes);
        let left = format!("{} of {} to come", ByteSize(left), ByteSize(self.total_bytes));
        match self.state {
            HoardState::Off => "not asked for; what was read is here".to_owned(),
            HoardState::Fetching => format!("{left}; the link must stay"),
            HoardState::Offline => format!("{left} when the store is back"),
            HoardState::Complete => "all here: the link may go".to_owned(),
        }
    }
}

/// A time in its largest unit.
fn duration(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..90 => (seconds, "second"),
        90..5400 => (seconds.div_ceil(60), "minute"),
        _ => (seconds.div_ceil(3600), "hour"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_can_be_acted_upon() {
        let unknown = UploadProgress::default();
        assert!(!unknown.is_done() && unknown.text().ends_with("not safe to switch off"));
        let mut upload = UploadProgress {
            state: UploadState::Sending,
            behind_bytes: 620 << 20,
            sent_bytes: 579 << 20,
            remaining_seconds: Some(355),
            ..UploadProgress::default()
        };
        let text = "41 MiB of 620 MiB to go up, 6 minutes; not safe to switch off";
        assert_eq!(upload.text().replace("MiB", " MiB").replace("  ", " "), text);
        upload.state = UploadState::Done;
        assert_eq!(upload.text(), "all is in the store; safe to switch off");
        let of_device = upload.text_of_device("/dev/nbd0");
        assert!(of_device.contains("unmount /dev/nbd0") && !of_device.contains("safe"));
        upload.state = UploadState::Paused;
        assert_eq!(upload.text_of_device("/dev/nbd0"), upload.text());
        let hoard = HoardProgress { state: HoardState::Complete, ..HoardProgress::default() };
        assert_eq!(hoard.text(), "all here: the link may go");
        assert_eq!(duration(1), "1 second");
        assert_eq!(duration(7200), "2 hours");
    }
}

//! What is counted while it runs, and the report at the end.

use crate::detail::{ClientAnswers, Detail, Interval};
use crate::summary::Summary;
use serde::Serialize;
use trace::{Op, TimeHistogram};

/// Requests of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerOp {
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) latency: TimeHistogram,
}

/// Everything that is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayCounters {
    pub(crate) ops: [PerOp; Op::ALL.len()],
    /// From when a request was due to when it was sent, whatever it waited for.
    pub(crate) late: TimeHistogram,
    /// From when it could be sent (due, and the client free) to when it was.
    pub(crate) own: TimeHistogram,
    /// Requests sent in all, in the window or not.
    pub(crate) sent: u64,
    /// Answers in all, in the window or not.
    pub(crate) answers: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Requests that the export does not offer.
    pub(crate) unsupported: u64,
    /// When the last answer came, in nanoseconds since the start.
    pub(crate) last: u64,
    pub(crate) verified: u64,
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<String>,
    pub(crate) detail: Detail,
}

/// How far a replay is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Answers so far.
    pub answers: u64,
    /// Bytes read and written so far.
    pub bytes: u64,
    /// Answers that were errors.
    pub errors: u64,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OpReport {
    /// The kind.
    pub op: Op,
    /// Requests answered.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of the answers were errors.
    pub errors: u64,
    /// From sending to the answer.
    pub latency: Summary,
}

/// How late requests were sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lateness {
    /// From when a request was due to when it was sent, whatever it waited for; none when requests
    /// have no times.
    pub all: Option<Summary>,
    /// From when it could be sent (due, and its client not waiting for an answer) to when it was:
    /// what the replayer itself was late.
    pub own: Summary,
}

/// What reads showed of what had been written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// 512-byte grains that were read back and compared.
    pub grains: u64,
    /// Grains that held something else.
    pub wrong: u64,
    /// Where the first was.
    pub first_wrong: Option<String>,
}

/// What a replay did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Emulated clients.
    pub clients: u32,
    /// Connections that carried them.
    pub connections: u32,
    /// How long was measured, in seconds: to the last answer, or the time that was asked for.
    pub seconds: f64,
    /// How long the trace lasts at the speed asked for, in seconds; none without original times.
    pub planned_seconds: Option<f64>,
    /// Requests answered in that time.
    pub requests: u64,
    /// Answers in all: also those while warming up and after the end.
    pub answers: u64,
    /// Answers a second.
    pub throughput: f64,
    /// Bytes read and written in that time.
    pub bytes: u64,
    /// Answers that were errors, in all.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// Requests that were left out because the export does not offer them.
    pub unsupported: u64,
    /// By kind; only those that occurred.
    pub ops: Vec<OpReport>,
    /// From sending to the answer, of all kinds together: the mean, in microseconds.
    pub mean_us: f64,
    /// How late requests were sent.
    pub lateness: Lateness,
    /// By client, when that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_client: Vec<ClientAnswers>,
    /// In the course of time, when that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Interval>,
    /// When verifying was asked for.
    pub verified: Option<Verified>,
    /// Whether every request was sent; not when it was stopped or the time was over.
    pub complete: bool,
}

impl ReplayCounters {
    pub(crate) fn progress(&self) -> Progress {
        Progress { answers: self.answers, bytes: self.bytes, errors: self.errors }
    }

    /// The kinds that occurred.
    pub(crate) fn ops(&self) -> Vec<OpReport> {
        let ops = Op::ALL.iter().zip(&self.ops).filter(|(_, one)| one.latency.count() > 0);
        ops.map(|(op, one)| OpReport {
            op: *op,
            requests: one.latency.count(),
            bytes: one.bytes,
            errors: one.errors,
            latency: Summary::of(&one.latency),
        })
        .collect()
    }
}

//! Reading everything back.

use crate::{ManifestId, Progress, Store};
use block::{Error, Result, Span};
use serde::Serialize;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Distinct chunks that were read.
    pub chunks: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// What is damaged or missing; empty when all is well.
    pub damaged: Vec<Damage>,
}

/// A damaged or missing object, or a damaged part of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The parts of the image that cannot be read because of it.
    #[serde(serialize_with = "spans")]
    pub spans: Vec<Span>,
    /// The object's key: a pack's or a segment's.
    pub object: String,
    /// Where in the object, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub why: String,
}

#[derive(Serialize)]
struct Range {
    offset: u64,
    length: u64,
}

fn spans<S: serde::Serializer>(spans: &[Span], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(spans.iter().map(|s| Range { offset: s.offset(), length: s.len() }))
}

/// Reads and verifies every chunk of a manifest.
///
/// # Errors
/// Those of the root, and of a backend that fails; what is damaged or missing behind the root is
/// in the report.
pub async fn manifest(
    store: &Store,
    id: &ManifestId,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    let _ = (store, id, progress);
    Err(Error::internal("not yet"))
}

//! The version of a JSON document, read before the rest of it: it tells a document that a newer build wrote
//! from a damaged one.

use serde::Deserialize;

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The field `version` of a document, whatever else it holds.
///
/// # Errors
/// What `serde_json` says of a text that is no JSON or has no such number.
pub(crate) fn read(text: &[u8]) -> serde_json::Result<u32> {
    serde_json::from_slice(text).map(|Versioned { version }| version)
}

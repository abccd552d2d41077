//! Our own format: columns in compressed blocks, a checksum for each, an index at the end.
//! docs/trace.md describes it for another implementation.
//!
//! | module | concept |
//! |---|---|
//! | [`frame`] | the file as a row of checked frames |
//! | [`names`] | names of clients and disks as frames of their own |
//! | [`column`] | one column of a block: transformed, cut into byte planes, compressed |
//! | [`block`] | requests as eight columns |
//! | [`writer`], [`reader`] | files |

pub(crate) mod block;
pub(crate) mod column;
pub(crate) mod frame;
pub(crate) mod names;
pub(crate) mod reader;
pub(crate) mod writer;

#[cfg(test)]
mod tests;

use crate::foreign::definition::{Definition, FormatWriter};

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "sojourn",
    endings: &["sjt"],
    writer: FormatWriter::Native,
    ..Definition::READ
};

/// The version that is written, and the newest that is read.
pub(crate) const VERSION: u16 = 1;
/// What every file begins with.
pub(crate) const MAGIC: [u8; 8] = *b"\x89SJTRC\r\n";
/// What every finished file ends with.
pub(crate) const END: [u8; 8] = *b"\x89SJEND\r\n";
/// Requests in a block that is full. Small enough for a decoded block to stay in a core's cache.
pub(crate) const FULL: usize = 16 << 10;
/// Requests in a block at most.
pub(crate) const MAX_REQUESTS: usize = 64 << 10;

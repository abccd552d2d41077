//! Everybody else's formats, read and written.
//!
//! A format is a small parser of lines ([`lines::LineFormat`]) or of records
//! ([`records::RecordFormat`]); what they share (batches, order, limits, names, where an error is)
//! is here and in [`intake`]. Each says in a [`definition::Definition`] what others have to know of it.
//!
//! | module | format |
//! |---|---|
//! | [`fio`], [`blkparse`], [`load`], [`msr`], [`spc`], [`csv`], [`numbers`] | text |
//! | [`vscsi`], [`oracle`], [`ids32`] | binary |

pub(crate) mod blkparse;
pub(crate) mod csv;
pub(crate) mod definition;
pub(crate) mod fields;
pub(crate) mod fio;
pub(crate) mod ids32;
pub(crate) mod intake;
pub(crate) mod lines;
pub(crate) mod load;
pub(crate) mod msr;
pub(crate) mod names;
pub(crate) mod numbers;
pub(crate) mod oracle;
pub(crate) mod records;
pub(crate) mod spc;
pub(crate) mod vscsi;
pub(crate) mod writer;

#[cfg(test)]
mod tests;

use crate::Source;

/// A source in a foreign format.
pub(crate) trait Foreign: Source {
    /// What its times are, as far as it was read.
    fn times(&self) -> intake::TimeOrigin;
}

/// Bytes of a sector wherever a format counts in sectors.
pub(crate) const SECTOR: u64 = 512;
/// Nanoseconds.
pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// What is wrong with a line or record; who calls adds where it stands.
pub(crate) type Parsed<T> = Result<T, String>;

//! Traces of block requests: one record, our columnar file format, everybody else's formats, and
//! what is counted and changed on the way through.
//!
//! This crate may know what a block request is and how files of them look. It must not know where
//! requests come from or what is done with them: no threads, no network, no policy.
//!
//! | module | concept |
//! |---|---|
//! | [`request`] | [`Request`], its [`Op`] and [`Flags`] |
//! | [`header`] | [`Header`], what a trace says of itself |
//! | [`bases`] | [`Bases`]: which disks were made from the same image |
//! | [`source`] | [`Source`], requests in batches; [`Memory`] |
//! | [`create`], [`Writer`] | our own format, written |
//! | [`format`](mod@format), [`open`](mod@open) | [`Format`]s, and [`open()`] for any of them |
//! | [`export`](mod@export) | writing formats that others read |
//! | [`stats`] | what a trace is like |
//! | [`record`] | a layer that notes requests, and what writes them |
//! | [`time_histogram`] | [`TimeHistogram`]: times with their percentiles |
//! | [`merge`], [`transform`] | several traces as one; cut, sample, anonymize |

pub mod bases;
mod bytes;
pub mod export;
mod foreign;
pub mod format;
pub mod header;
mod input;
pub mod merge;
mod native;
pub mod open;
pub mod record;
pub mod request;
mod sort;
pub mod source;
pub mod stats;
pub mod time_histogram;
pub mod transform;

pub use bases::Bases;
pub use export::{ExportOptions, Exported, export, format_for, format_of};
pub use format::Format;
pub use header::{Header, TraceDisk};
pub use merge::{MergeOptions, Merged};
pub use native::column::Effort;
pub use native::writer::{Writer, create};
pub use open::{OpenTraceOptions, PeekedSource, guess, open, read};
pub use request::{Flags, Op, Request};
pub use source::{Memory, Source};
pub use time_histogram::TimeHistogram;
pub use transform::{Anonymous, Cut, Sample, Selection, ShuffledPlaces};

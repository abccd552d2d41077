//! What the rest of this crate has to know of a format.

use super::intake::{Intake, TimeOrigin};
use super::lines::LineFormat;
use super::records::RecordFormat;
use super::writer::{Exported, TextWriter};
use crate::Source;
use block::Result;
use std::fs::File;
use std::path::Path;

/// A format: one line of the table in `format.rs` leads here, and nothing else knows it by name.
pub(crate) struct Definition {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// The ends of the names of files that it is written to, with the usual one first.
    pub(crate) endings: &'static [&'static str],
    /// How it is read; `None` for our own.
    pub(crate) reader: Option<MakeParser>,
    /// How it is written.
    pub(crate) writer: FormatWriter,
    /// What its times are.
    pub(crate) times: TimeOrigin,
    /// What offsets and lengths are multiples of.
    pub(crate) alignment: Alignment,
    /// Whether a binary format tells reads from writes.
    pub(crate) ops: bool,
    /// Whether a file without a format's name is tried as this one.
    pub(crate) guessed: bool,
}

impl Definition {
    /// A format that is only read, with times from the trace's start.
    pub(crate) const READ: Self = Self {
        name: "",
        endings: &[],
        reader: None,
        writer: FormatWriter::None,
        times: TimeOrigin::Relative,
        alignment: Alignment::Bytes(1),
        ops: false,
        guessed: true,
    };
}

/// Makes a parser: of the beginning of a file, the bytes of a block, and what requests go through.
pub(crate) type MakeParser = fn(&[u8], u32, Intake) -> Parser;

/// A parser of either kind.
pub(crate) enum Parser {
    Lines(Box<dyn LineFormat>),
    Records(Box<dyn RecordFormat>),
}

/// What the offsets and lengths of a format are multiples of.
pub(crate) enum Alignment {
    /// So many bytes.
    Bytes(u32),
    /// The block whose size the caller says.
    Block,
}

/// How a format is written.
#[derive(Clone, Copy)]
pub(crate) enum FormatWriter {
    /// Not at all.
    None,
    /// By `native`.
    Native,
    /// A line for each request.
    Text(fn() -> Box<dyn TextWriter>),
    /// Into a file that is read back and changed: its path, and the bytes of a block.
    File(fn(&mut dyn Source, &File, &Path, u32) -> Result<Exported>),
}

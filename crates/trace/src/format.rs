//! The table of the formats that can be read, and their names.

use crate::foreign::definition::{Alignment, Definition, FormatWriter};
use crate::foreign::{blkparse, csv, fio, ids32, load, msr, numbers, oracle, spc, vscsi};
use crate::native;
use block::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident = $definition:path;)*) => {
        /// A format of trace files.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Format {
            $($(#[$doc])* $name,)*
        }

        impl Format {
            /// All of them, in the order in which they are tried.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name,)*];

            /// What there is to know of it.
            pub(crate) const fn definition(self) -> &'static Definition {
                match self { $(Self::$name => &$definition,)* }
            }
        }
    };
}

// The table of formats, in the order in which a file is tried as one.
formats! {
    /// Our own.
    Sojourn = native::FORMAT;
    /// fio's iolog, version 2 or 3.
    Fio = fio::FORMAT;
    /// The text that blkparse prints.
    Blkparse = blkparse::FORMAT;
    /// blkreplay's `.load`.
    Load = load::FORMAT;
    /// CSV of the MSR Cambridge traces.
    Msr = msr::FORMAT;
    /// CSV of the Storage Performance Council.
    Spc = spc::FORMAT;
    /// Comma-separated columns with a line of names.
    Csv = csv::FORMAT;
    /// MQSim's five numbers.
    Mqsim = numbers::MQSIM;
    /// The four numbers of the ARC paper's traces.
    Lis = numbers::LIS;
    /// One block number a line.
    Ids = numbers::IDS;
    /// vSCSI records, version 1 or 2 (CloudPhysics).
    Vscsi = vscsi::FORMAT;
    /// libCacheSim's 24-byte records.
    OracleGeneral = oracle::FORMAT;
    /// An array of little-endian 32-bit block numbers.
    Ids32 = ids32::FORMAT;
}

impl Format {
    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        self.definition().name
    }

    /// Whether traces can be written in it.
    pub const fn is_written(self) -> bool {
        !matches!(self.definition().writer, FormatWriter::None)
    }

    /// What the name of a file in it ends in, without the point: the usual one. `None` for one that is only read.
    pub fn usual_ending(self) -> Option<&'static str> {
        self.definition().endings.first().copied()
    }

    /// Whether it numbers blocks, whose size the reader has to say.
    pub const fn numbers_blocks(self) -> bool {
        matches!(self.definition().alignment, Alignment::Block)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|f| f.as_str()).collect();
            Error::invalid(format!(
                "'{text}' is no format of traces; there are {}",
                names.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_format_of_the_table_and_says_whether_it_is_written() {
        let page = include_str!("../../../docs/trace.md");
        for format in Format::ALL {
            let start = format!("| `{format}` |");
            let row = page.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("docs/trace.md has no row for {format}"));
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let definition = format.definition();
            let written = format.is_written();
            assert_eq!((cells[3], cells[4] == "yes"), ("yes", written), "{format}");
            assert_eq!(written, !definition.endings.is_empty(), "{format}");
            assert_eq!(definition.reader.is_none(), format == Format::Sojourn, "{format}");
        }
    }
}

//! The formats that can be read, and their names.

use block::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// A format of trace files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Our own.
    Sojourn,
    /// fio's iolog, version 2 or 3.
    Fio,
    /// The text that blkparse prints.
    Blkparse,
    /// blkreplay's `.load`.
    Load,
    /// CSV of the MSR Cambridge traces.
    Msr,
    /// CSV of the Storage Performance Council.
    Spc,
    /// Comma-separated columns with a line of names.
    Csv,
    /// MQSim's five numbers.
    Mqsim,
    /// The four numbers of the ARC paper's traces.
    Lis,
    /// One block number a line.
    Ids,
    /// vSCSI records, version 1 or 2 (CloudPhysics).
    Vscsi,
    /// libCacheSim's 24-byte records.
    OracleGeneral,
    /// An array of little-endian 32-bit block numbers.
    Ids32,
}

impl Format {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 13] = [
        Self::Sojourn,
        Self::Fio,
        Self::Blkparse,
        Self::Load,
        Self::Msr,
        Self::Spc,
        Self::Csv,
        Self::Mqsim,
        Self::Lis,
        Self::Ids,
        Self::Vscsi,
        Self::OracleGeneral,
        Self::Ids32,
    ];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sojourn => "sojourn",
            Self::Fio => "fio",
            Self::Blkparse => "blkparse",
            Self::Load => "load",
            Self::Msr => "msr",
            Self::Spc => "spc",
            Self::Csv => "csv",
            Self::Mqsim => "mqsim",
            Self::Lis => "lis",
            Self::Ids => "ids",
            Self::Vscsi => "vscsi",
            Self::OracleGeneral => "oracle-general",
            Self::Ids32 => "ids32",
        }
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

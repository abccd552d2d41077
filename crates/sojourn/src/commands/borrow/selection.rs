//! Which disks are borrowed from and how much: what `scan` and `up` have in common.

use block::{ByteSize, Error, Result};
use freespace::{FreeSpaceOptions, Level};
use std::path::PathBuf;
use std::str::FromStr;
use transient::{BorrowPolicy, ScanOptions};

/// How much is read to prove that a block is free.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Proof {
    /// Headers and the map of free space
    Fast,
    /// Also every file's own list of blocks
    Deep,
}

/// How much is to be borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BorrowSize {
    /// All that can be.
    All,
    /// So many bytes.
    Bytes(ByteSize),
}

impl BorrowSize {
    /// How many bytes; `None` for all.
    pub(crate) fn bytes(self) -> Option<u64> {
        match self {
            Self::All => None,
            Self::Bytes(size) => Some(size.0),
        }
    }
}

impl FromStr for BorrowSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "all" => Ok(Self::All),
            size => size.parse().map(Self::Bytes),
        }
    }
}

/// Disks, consent and policy.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SelectionArgs {
    /// Disks, partitions or image files [default: all disks of this machine]
    #[arg(value_name = "DEVICE|IMAGE")]
    pub(crate) targets: Vec<PathBuf>,
    /// Take exactly this, from the largest free ranges on, or all that can be lent
    #[arg(long, value_name = "SIZE|all")]
    pub(crate) size: Option<BorrowSize>,
    /// How thoroughly to check [default: fast where checksums protect the map of free space, else
    /// deep]
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) proof: Option<Proof>,
    /// Take no range smaller than this [default: 256K, 4M on disks that turn]
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_extent: Option<ByteSize>,
    /// Take no more ranges than this
    #[arg(long, value_name = "COUNT", default_value_t = transient::policy::MOST)]
    pub(crate) max_extents: usize,
    /// Leave this much of each file system's free space alone
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) reserve: u8,
    /// Also borrow from btrfs, which does not show whether it is mounted
    #[arg(long)]
    pub(crate) btrfs: bool,
    /// Also borrow from NTFS with shadow copies: "previous versions" of files may be lost
    #[arg(long)]
    pub(crate) shadow_copies: bool,
    /// No system is suspended where nobody can look, such as in an encrypted part of the machine
    #[arg(long)]
    pub(crate) nothing_suspended: bool,
}

impl SelectionArgs {
    /// The same in the server's terms.
    pub(crate) fn for_server(&self) -> server::borrow::selection::BorrowSelection {
        let reader = FreeSpaceOptions {
            level: self.proof.map(|proof| match proof {
                Proof::Fast => Level::Fast,
                Proof::Deep => Level::Deep,
            }),
            btrfs: self.btrfs,
            shadow_copies: self.shadow_copies,
        };
        server::borrow::selection::BorrowSelection {
            targets: self.targets.clone(),
            policy: BorrowPolicy {
                want: self.size.and_then(BorrowSize::bytes),
                floor: self.min_extent.map(u64::from),
                most: self.max_extents,
                reserve: self.reserve,
            },
            options: ScanOptions { reader, nothing_hidden: self.nothing_suspended },
        }
    }
}

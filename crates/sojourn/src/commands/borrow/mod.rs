//! `sojourn borrow`: the free blocks of idle disks as private scratch space.

mod map;
mod scan;
mod selection;

use crate::output::Output;
use block::Result;
use clap::Subcommand;

/// The verbs of `sojourn borrow`.
#[derive(Debug, Subcommand)]
pub(crate) enum Borrow {
    /// What disks and images hold, and what of them can be borrowed; writes nothing
    Scan(scan::Args),
}

pub(crate) async fn run(verb: &Borrow, output: Output) -> Result<()> {
    match verb {
        Borrow::Scan(args) => scan::run(args, output).await,
    }
}

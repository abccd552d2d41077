//! `sojourn man`.

use crate::cli::Cli;
use crate::output::Output;
use block::{Error, Result};
use clap::CommandFactory;
use std::path::PathBuf;

/// Arguments of `sojourn man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn man /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// The directory; it is made when it is missing
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, output: Output) -> Result<()> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir.display(), e))?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(|e| Error::io(dir.display(), e))?;
    output.done(&format!("manual pages written to {}", dir.display()))
}

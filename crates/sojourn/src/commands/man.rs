//! `sojourn man`.

use crate::output::Output;
use block::{Error, Result};
use clap::Command;
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

pub(crate) fn run(args: &Args, program: Command, output: Output) -> Result<()> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir.display(), e))?;
    clap_mangen::generate_to(program, dir).map_err(|e| Error::io(dir.display(), e))?;
    output.done(&format!("manual pages written to {}", dir.display()))
}

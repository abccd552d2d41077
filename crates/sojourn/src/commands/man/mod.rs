//! `sojourn man`: a manual page for every command, and that of the configuration.
//!
//! | module | concept |
//! |---|---|
//! | [`page`] | the page of a command |
//! | [`configuration`] | sojourn.toml(5) |
//! | [`tables`] | tables of the documentation |
//! | [`roff`] | text as manual pages have it |

mod configuration;
mod page;
mod roff;
mod tables;

use super::runnable::{Invocation, Runnable, done};
use crate::output::Output;
use block::{Error, Result};
use clap::Command;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `sojourn man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn man /usr/local/share/man/man1

sojourn.toml.5 is written beside the others; it belongs into man5.")]
pub(crate) struct Args {
    /// The directory; it is made when it is missing
    dir: PathBuf,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, (invocation.program)(), invocation.output))
    }
}

fn run(args: &Args, program: Command, output: Output) -> Result<()> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir.display(), e))?;
    // The pages name commands as they are called: with all words before them.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write_all(&program, None, dir)?;
    write(dir, "sojourn.toml.5", configuration::text())?;
    output.done(&format!("manual pages written to {}", dir.display()))
}

/// Writes the pages of a command and of all below it.
fn write_all(command: &Command, above: Option<&Command>, dir: &Path) -> Result<()> {
    write(dir, &format!("{}.1", page::name(command)), page::text(command, above)?)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_all(verb, Some(command), dir)?;
    }
    Ok(())
}

fn write(dir: &Path, name: &str, text: String) -> Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).map_err(|e| Error::io(path.display(), e))
}

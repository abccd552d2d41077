//! `sojourn model`: how a server behaves under load, by arithmetic.

mod classes;
mod fit;
mod lookups;
mod measure;
mod pieces;
mod plots;
mod solve;
mod solved;

use super::runnable::{Invocation, Runnable, done};
use crate::output::Output;
use block::{Error, Result};
use clap::Subcommand;
use engine::Home;
use model::Profile;
use model::file::{Contents, LONGEST};
use std::path::Path;
use std::process::ExitCode;

/// The verbs of `sojourn model`.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Throughput, response and utilisations for numbers of clients, hit ratios and block sizes
    Solve(solve::Args),
    /// Measure the demands of a running server
    Fit(Box<fit::Args>),
}

impl Runnable for ModelCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        let given = invocation.global.home.is_some().then(|| invocation.home()).transpose()?;
        done(run(self, given.as_ref(), invocation.output))
    }
}

fn run(verb: &ModelCommand, home: Option<&Home>, output: Output) -> Result<()> {
    match verb {
        ModelCommand::Solve(args) => solve::run(args, output),
        ModelCommand::Fit(args) => fit::run(args, home, output),
    }
}

/// The profile of this name: `transcom`, or a file.
///
/// # Errors
/// Any error from the file.
pub(crate) fn profile(name: &str) -> Result<Contents> {
    if name == "transcom" {
        return Ok(Contents { profile: Profile::transcom()?, classes: Vec::new() });
    }
    let path = Path::new(name);
    let io = |e| Error::io(format!("profile {}", path.display()), e);
    let length = std::fs::metadata(path).map_err(io)?.len();
    if length > LONGEST as u64 {
        return Err(Error::invalid(format!(
            "profile {name} has {length} bytes, at most {LONGEST}: is it a profile?"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(io)?;
    model::file::parse(&text).map_err(|e| e.context(format!("profile {name}")))
}

/// Writes a text that the user asked for into a file.
///
/// # Errors
/// Any error from the file.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Error::io(path.display(), e))
}

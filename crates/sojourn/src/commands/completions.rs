//! `sojourn completions`.

use crate::cli::Cli;
use block::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `sojourn completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn completions bash > /etc/bash_completion.d/sojourn
  sojourn completions zsh > ~/.zfunc/_sojourn")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sojourn", &mut script);
    crate::output::raw(&script)
}

//! `sojourn completions`.

use block::Result;
use clap::Command;
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

pub(crate) fn run(args: &Args, mut program: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "sojourn", &mut script);
    crate::output::raw(&script)
}

//! `sojourn completions`, and `sojourn __complete`, by which its scripts complete names.
//!
//! | module | concept |
//! |---|---|
//! | [`scripts`] | a script that asks for names |
//! | [`name_kind`] | what kind of name a word of a command line is |
//! | [`names`] | the names of a home |

mod name_kind;
mod names;
mod scripts;

use super::runnable::{Invocation, Runnable, done, finish};
use block::Result;
use clap::Command;
use clap_complete::Shell;
use engine::Home;
use std::process::ExitCode;

/// Arguments of `sojourn completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn completions bash > /etc/bash_completion.d/sojourn
  sojourn completions zsh > ~/.zfunc/_sojourn

The scripts of bash, zsh and fish also complete the names of images, disks and virtual machines of
the home that --home or SOJOURN_HOME names: what is in it and in a store that is a directory.")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Arguments of `sojourn __complete`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn __complete -- disk show al")]
pub(crate) struct Complete {
    /// The words of a command line behind `sojourn`, the last of which is to be completed
    #[arg(last = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, (invocation.program)()))
    }
}

impl Runnable for Complete {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        let home = |asked: Option<&str>| match asked {
            Some(dir) => Home::find(Some(dir.as_ref())),
            None => invocation.home(),
        };
        finish(complete(self, (invocation.program)(), home))
    }
}

fn run(args: &Args, mut program: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "sojourn", &mut script);
    let script = String::from_utf8_lossy(&script);
    crate::output::raw(scripts::with_names(args.shell, &script).as_bytes())
}

/// Prints the names that the last word may become, one a line. Whatever is in the way of that, there are none: nobody
/// who presses a key wants to read why.
async fn complete(
    args: &Complete,
    mut program: Command,
    home: impl FnOnce(Option<&str>) -> Result<Home>,
) -> Result<()> {
    program.build();
    let Some(wanted) = name_kind::at_end(&program, &args.words) else { return Ok(()) };
    let Ok(home) = home(wanted.home.as_deref()) else { return Ok(()) };
    let begun = args.words.last().map(String::as_str).unwrap_or_default();
    let found = names::of(&home, wanted.kind).await;
    let lines: String = found
        .iter()
        .filter(|name| name.starts_with(begun))
        .map(|name| format!("{name}\n"))
        .collect();
    crate::output::raw(lines.as_bytes())
}

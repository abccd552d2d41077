//! `sojourn store`: the store as a whole.

mod check;
mod copy;
mod key;
mod publish;
mod sessions;
mod stats;

use super::runnable::{Invocation, Runnable, writes};
use crate::output::Output;
use block::Result;
use clap::Subcommand;
use engine::Home;
use std::process::ExitCode;

/// The verbs of `sojourn store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Try out whether a place can be trusted with a store
    #[command(after_help = "\
Examples:
  sojourn store check s3://bucket/prefix
  sojourn store check                       the place of this home's store

Every object that it writes is below check/ and removed again. Exit code 10 when the place lacks
something.")]
    Check(check::Args),
    /// Copy image versions to another store
    #[command(after_help = "\
Examples:
  sojourn store copy s3://golden/store /srv/golden              all image versions
  sojourn store copy /srv/golden s3://golden/store debian:3 ubuntu:1

Either store may be encrypted. A copy that was interrupted is repeated with the same command; what
the other store has is not stored again. A version that cannot be copied keeps no other from it.
Disks and snapshots are not copied: commit them first.")]
    Copy(copy::Args),
    /// Write the listing that readers through a plain web server go by
    #[command(after_help = "\
Examples:
  sojourn store publish                     then serve the store's directory by nginx, say
  sojourn init --store https://golden.example/store     on a machine that reads it")]
    Publish,
    /// Who may open an encrypted store
    #[command(subcommand, arg_required_else_help = true)]
    Key(key::KeyCommand),
    /// Who writes to the store
    #[command(subcommand, arg_required_else_help = true)]
    Sessions(sessions::SessionsCommand),
    /// How much each image, disk and snapshot holds, and how much of it they share
    #[command(after_help = "\
Examples:
  sojourn store stats
  sojourn --json store stats | jq .garbage_bytes")]
    Stats,
}

impl Runnable for StoreCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        writes(run(self, &invocation.home()?, invocation.output))
    }
}

async fn run(verb: &StoreCommand, home: &Home, output: Output) -> Result<()> {
    match verb {
        StoreCommand::Check(args) => check::run(args, home, output).await,
        StoreCommand::Copy(args) => copy::run(args, home, output).await,
        StoreCommand::Publish => publish::run(home, output).await,
        StoreCommand::Key(verb) => key::run(verb, home, output).await,
        StoreCommand::Sessions(verb) => sessions::run(verb, home, output).await,
        StoreCommand::Stats => stats::run(home, output).await,
    }
}

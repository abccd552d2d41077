//! `sojourn store`: the store as a whole.

mod key;

use crate::home::Home;
use crate::output::Output;
use block::Result;
use clap::Subcommand;

/// The verbs of `sojourn store`.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    /// Who may open an encrypted store
    #[command(subcommand, arg_required_else_help = true)]
    Key(key::Key),
}

pub(crate) async fn run(verb: &Store, home: &Home, output: Output) -> Result<()> {
    match verb {
        Store::Key(verb) => key::run(verb, home, output).await,
    }
}

//! `sojourn discover`: the servers of this network.

use super::runnable::{Invocation, Runnable, finish};
use crate::output::{Output, Table};
use block::Result;
use server::discovery::look::{ServiceView, look};
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `sojourn discover`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn discover
  sojourn discover --seconds 10 --no-exports
  sojourn --json discover | jq -r '.[] | select(.service == \"nbd\") | .address'

Servers that were started with --announce, or with serve.announce, are found, and other servers of
NBD and iSCSI that announce themselves by DNS-SD. Whoever is in the network may announce anything:
only certificates and CHAP prove who a server is.")]
pub(crate) struct Args {
    /// For how long to look
    #[arg(long, value_name = "SECONDS", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Do not ask the servers of NBD for their exports
    #[arg(long)]
    no_exports: bool,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, invocation.output))
    }
}

/// Looks, and prints what was found.
async fn run(args: &Args, output: Output) -> Result<()> {
    let found = look(Duration::from_secs(args.seconds), !args.no_exports).await?;
    output.print(&found, || table(&found))
}

fn table(found: &[ServiceView]) -> String {
    if found.is_empty() {
        return "no server announces itself in this network; start one with serve --announce\n"
            .into();
    }
    let mut table = Table::new(&["server", "service", "address", "exports"]);
    for one in found {
        let exports = match (&one.exports, &one.error) {
            (Some(list), _) => list.join(" "),
            (None, Some(why)) => format!("({why})"),
            (None, None) => "-".to_owned(),
        };
        let address = one.address.clone().unwrap_or_else(|| "-".to_owned());
        table.row([one.server.clone(), one.service.to_owned(), address, exports]);
    }
    table.render()
}

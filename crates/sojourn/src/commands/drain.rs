//! `sojourn drain`.

use super::reload::server;
use crate::control::api::DrainRequest;
use crate::home::Home;
use crate::output::Output;
use block::{ErrorKind, Result};
use std::time::Duration;

/// How often it is looked whether the server is gone.
const PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `sojourn drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn drain
  sojourn drain --timeout 600

New clients are refused from now on; those that are there are served until they leave. Then the
server flushes, closes its disks and ends, and so does this command.")]
pub(crate) struct Args {
    /// Stop the clients that are left after so many seconds, as SIGTERM does
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    timeout: Option<u64>,
}

pub(crate) async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let request = DrainRequest { seconds: args.timeout };
    let draining = server(home).await?.drain(&request).await?;
    if matches!(output, Output::Text) && draining.connections > 0 {
        output.done(&format!("waiting for {} connections", draining.connections))?;
    }
    loop {
        match home.lock() {
            Ok(_gone) => return output.done("the server has ended"),
            Err(e) if e.kind() == ErrorKind::Conflict => tokio::time::sleep(PAUSE).await,
            Err(e) => return Err(e),
        }
    }
}

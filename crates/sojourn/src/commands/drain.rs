//! `sojourn drain`.

use super::reload::server;
use super::runnable::{Invocation, Runnable, finish, writes};
use crate::output::Output;
use block::{Error, Result};
use engine::Home;
use engine::config::time::duration;
use server::api::DrainRequest;
use server::remote::RemoteServer;
use std::process::ExitCode;

/// Arguments of `sojourn drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn drain
  sojourn drain --timeout 10m
  sojourn drain --to-successor                      after an upgrade: the new program goes on

New clients are refused from now on; those that are there are served until they leave. Then the
server flushes, closes its disks and ends, and so does this command.

With --to-successor nobody is refused and nobody has to leave: the server starts its program again
with its own command line, and hands its listeners and clients over to it.")]
pub(crate) struct Args {
    /// Stop the clients that are left after this time (seconds, or as 10m), as SIGTERM does
    #[arg(long, value_name = "TIME", value_parser = patience)]
    timeout: Option<u64>,
    /// Start a successor and hand everything over to it; no connection is dropped
    #[arg(long, conflicts_with = "timeout")]
    to_successor: bool,
}

/// Reads seconds, at most a day of them.
fn patience(text: &str) -> Result<u64> {
    let seconds = match text.parse() {
        Ok(seconds) => seconds,
        Err(_) => duration(text)?.as_secs_f64().ceil() as u64,
    };
    if seconds > 86_400 {
        return Err(Error::invalid("more than a day: give at most 24h"));
    }
    Ok(seconds)
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        writes(run_on(self, &server, output))
    }
}

async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let request = DrainRequest { seconds: args.timeout, to_successor: args.to_successor };
    let server = server(home).await?;
    let process = server.process()?;
    let draining = server.drain(&request).await?;
    let connections = draining.connections;
    if let Some(successor) = draining.successor {
        return output.print(&draining, || {
            format!("{connections} connections go on in process {successor}")
        });
    }
    if matches!(output, Output::Text) && connections > 0 {
        output.done(&format!("waiting for {connections} connections"))?;
    }
    server::background::ended(process, None).await?;
    output.done("the server has ended")
}

/// The same on a server of another machine, whose end nobody waits for here.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) for a successor: it is started on the server's machine; those
/// of the server.
async fn run_on(args: &Args, server: &RemoteServer, output: Output) -> Result<()> {
    if args.to_successor {
        return Err(Error::unsupported(
            "with --server a server drains and ends; run drain --to-successor on the server's machine",
        ));
    }
    let draining = server.drain(args.timeout).await?;
    output.print(&draining, || match draining.connections {
        0 => "the server ends".to_owned(),
        connections => format!("the server ends when {connections} connections have left"),
    })
}

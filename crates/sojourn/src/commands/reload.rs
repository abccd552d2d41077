//! `sojourn reload`.

use super::runnable::{Invocation, Runnable, finish, writes};
use crate::output::Output;
use block::{Error, Result};
use engine::Home;
use server::api::Reloaded;
use server::client::ControlClient;
use server::remote::RemoteServer;
use std::process::ExitCode;

/// Arguments of `sojourn reload`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn reload

The same as SIGHUP, with an answer: listeners, limits, access rules, the cache, the log level and
the certificates change at once; what needs a restart is named.")]
pub(crate) struct Args {}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(&invocation.home()?, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        writes(run_on(&server, output))
    }
}

async fn run(home: &Home, output: Output) -> Result<()> {
    let client = server(home).await?;
    print(&client.reload().await?, output)
}

/// The same on a server of another machine.
async fn run_on(server: &RemoteServer, output: Output) -> Result<()> {
    print(&server.reload().await?, output)
}

fn print(reloaded: &Reloaded, output: Output) -> Result<()> {
    output.print(reloaded, || {
        let mut text = "configuration read again".to_owned();
        for (what, list) in [
            ("; listening at ", &reloaded.opened),
            ("; no longer at ", &reloaded.closed),
            ("; restart to apply ", &reloaded.restart),
        ] {
            if !list.is_empty() {
                text.push_str(what);
                text.push_str(&list.join(", "));
            }
        }
        text
    })
}

/// The running server of a home.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when none runs.
pub(super) async fn server(home: &Home) -> Result<ControlClient> {
    home.must_exist()?;
    ControlClient::connect(home).await?.ok_or_else(|| {
        Error::unavailable(format!(
            "no server runs on {}; start one with `sojourn serve`",
            home.dir().display()
        ))
    })
}

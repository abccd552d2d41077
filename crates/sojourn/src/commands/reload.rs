//! `sojourn reload`.

use crate::control::client::Client;
use crate::home::Home;
use crate::output::Output;
use block::{Error, Result};

/// Arguments of `sojourn reload`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn reload

The same as SIGHUP, with an answer: limits, the log level and the certificates change at once; what
needs a restart is named.")]
pub(crate) struct Args {}

pub(crate) async fn run(home: &Home, output: Output) -> Result<()> {
    let client = server(home).await?;
    let reloaded = client.reload().await?;
    output.print(&reloaded, || match reloaded.restart.as_slice() {
        [] => "configuration read again".to_owned(),
        keys => format!("configuration read again; restart to apply {}", keys.join(", ")),
    })
}

/// The running server of a home.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when none runs.
pub(super) async fn server(home: &Home) -> Result<Client> {
    home.must_exist()?;
    Client::connect(home).await?.ok_or_else(|| {
        Error::unavailable(format!(
            "no server runs on {}; start one with `sojourn serve`",
            home.dir().display()
        ))
    })
}

//! `sojourn borrow status`.

use crate::borrow::control::{Reply, Request, ask, names};
use crate::borrow::report::{StatusView, describe};
use crate::home::Home;
use crate::output::Output;
use block::Result;
use transient::dm::Mapper;

/// Arguments of `sojourn borrow status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn borrow status
  sojourn --json borrow status | jq '.[].address'")]
pub(crate) struct Args {}

/// Prints which borrowed disks are in use.
///
/// # Errors
/// Those of the home's directory and of the kernel.
pub(crate) async fn run(_: &Args, home: &Home, output: Output) -> Result<()> {
    let mut all: Vec<StatusView> = Vec::new();
    for name in names(home)? {
        match ask(home, &name, &Request::Status).await {
            Ok(Some(Reply::Status(view))) => all.push(*view),
            // Dead, or on its way out.
            Ok(_) => {}
            Err(e) => tracing::warn!(name, error = e.message(), "a borrowed disk does not answer"),
        }
    }
    // Without device-mapper, or the right to ask it, there are none that this user could see.
    let mapped = block::offload(|| Ok(Mapper::open().and_then(|mapper| mapper.list()))).await?;
    all.extend(mapped.unwrap_or_default().into_iter().map(StatusView::mapped));
    output.print(&all, || describe(&all))
}

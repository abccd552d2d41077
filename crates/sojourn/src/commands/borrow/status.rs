//! `sojourn borrow status`.

use crate::output::{Output, Table, fields};
use block::{ByteSize, Result};
use engine::Home;
use server::borrow::control::{ControlRequest, Reply, ask, names};
use server::borrow::report::StatusView;
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
/// Any error from the home's directory and from the kernel.
pub(crate) async fn run(_: &Args, home: &Home, output: Output) -> Result<()> {
    let mut all: Vec<StatusView> = Vec::new();
    for name in names(home)? {
        match ask(home, &name, &ControlRequest::Status).await {
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

/// A table of all, or details of one.
fn describe(all: &[StatusView]) -> String {
    if all.is_empty() {
        return "nothing is borrowed; see `sojourn borrow up --help`".to_owned();
    }
    let mut table =
        Table::new(&["NAME", "AS", ">SIZE", ">WRITTEN", ">USERS", ">EXTENTS", "ADDRESS"]);
    for disk in all {
        table.row([
            disk.name.clone(),
            disk.kind.clone(),
            ByteSize(disk.size).to_string(),
            disk.written.map_or("-".to_owned(), |bytes| ByteSize(bytes).to_string()),
            disk.users.to_string(),
            disk.lent.iter().map(|lent| lent.extents).sum::<u64>().to_string(),
            disk.address.clone(),
        ]);
    }
    let mut text = table.render();
    for disk in all {
        let Some(state) = &disk.state else { continue };
        text.push('\n');
        text += &fields(&[
            ("state of", disk.name.clone()),
            ("from", state.source.clone()),
            ("fetched", ByteSize(state.fetched).to_string()),
            ("changed", ByteSize(state.changed).to_string()),
            ("written back", if state.write_back { "at the end" } else { "never" }.to_owned()),
        ]);
    }
    text
}

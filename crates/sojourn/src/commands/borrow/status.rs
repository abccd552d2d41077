//! `sojourn borrow status`.

use crate::output::{Output, Table, fields};
use block::{ByteSize, Result};
use engine::Home;
use server::borrow::in_use::in_use;
use server::borrow::report::StatusView;

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
/// Any error from the home's directory.
pub(crate) async fn run(_: &Args, home: &Home, output: Output) -> Result<()> {
    let all = in_use(home).await?;
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

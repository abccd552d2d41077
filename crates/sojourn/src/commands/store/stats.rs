//! `sojourn store stats`: how much names hold, and how much of it they share.

use crate::output::{Output, Table, fields};
use crate::progress::Bar;
use crate::stores;
use block::{ByteSize, Error, Result};
use engine::Config;
use engine::Home;
use store::stats::{StoreStats, collect};

/// Counts everything in the store.
pub(crate) async fn run(home: &Home, output: Output) -> Result<()> {
    let store = stores::open(home, &Config::of(home)?).await?;
    let bar = Bar::bytes("counting", None);
    let stats = collect(&store, &bar).await?;
    drop(bar);
    output.print(&stats, || text(&stats))?;
    match stats.damaged.first() {
        None => Ok(()),
        Some(first) => Err(Error::corrupt(format!(
            "the figures are not complete: {first}; see `sojourn verify`"
        ))),
    }
}

fn text(stats: &StoreStats) -> String {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let columns = ["KIND", "NAME", ">SIZE", ">DATA", ">STORED", ">OWN DATA", ">OWN STORED"];
    let mut table = Table::new(&columns);
    for holding in &stats.holdings {
        table.row([
            holding.kind.to_string(),
            holding.name.clone(),
            size(holding.size),
            size(holding.data.bytes),
            size(holding.data.stored_bytes),
            size(holding.own.bytes),
            size(holding.own.stored_bytes),
        ]);
    }
    let mut text = if stats.holdings.is_empty() { String::new() } else { table.render() + "\n" };
    text.push_str(&fields(&[
        ("as guests see it", size(stats.logical_bytes)),
        ("data, each once", size(stats.data.bytes)),
        ("stored", size(stats.data.stored_bytes)),
        ("once more in boot copies", size(stats.boot_copies.stored_bytes)),
        ("packs", size(stats.pack_bytes)),
        ("maps and the rest", size(stats.other_bytes)),
        ("garbage in packs", size(stats.garbage_bytes)),
    ]));
    text
}

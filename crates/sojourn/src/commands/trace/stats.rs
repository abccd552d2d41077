//! `sojourn trace stats`.

use super::facts::{facts, operations, party, percent};
use super::{Reading, must_not_be_read, page, write_page};
use crate::output::{Output, Table, fields};
use crate::progress::Bar;
use block::{ByteSize, Result};
use report::Unit;
use std::path::PathBuf;
use std::slice::from_ref;
use trace::stats::{StatsOptions, TraceStats};

/// Rows of a table of clients or disks.
const SHOWN: usize = 20;

/// Arguments of `sojourn trace stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace stats boot.sjt
  sojourn trace stats web.load.gz --html web.html
  sojourn trace stats vm.vscsi.zst --shift 512 --block 8K --json

A block is followed from use to use. Of a trace with more blocks than --blocks a sample is
followed; then what is said of blocks is an estimate, and the output says so.")]
pub(crate) struct Args {
    /// The trace; - is the standard input
    trace: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// The size of the blocks that are followed
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = super::unit)]
    block: u32,
    /// How many blocks are followed at most; about 70 bytes of memory each
    #[arg(long, value_name = "N", default_value_t = 8 << 20)]
    blocks: usize,
    /// Also write a report with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    if let Some(page) = &args.html {
        must_not_be_read(page, from_ref(&args.trace))?;
    }
    let mut source = args.reading.open(&args.trace)?;
    let bar = Bar::waiting("counting");
    let options = StatsOptions { block: args.block, most_blocks: args.blocks };
    let stats = trace::stats::collect(&mut source, &options)?;
    drop(bar);
    if let Some(path) = &args.html {
        write_page(path, &page::page(&super::stem(&args.trace), &stats))?;
    }
    output.print(&stats, || text(&stats))
}

fn add(text: &mut String, table: &Table) {
    text.push('\n');
    text.push_str(&table.render());
}

fn text(stats: &TraceStats) -> String {
    let mut text = fields(&facts(stats));
    let mut table = Table::new(&["operation", ">requests", ">share", ">bytes"]);
    operations(stats).into_iter().for_each(|row| table.row(row));
    add(&mut text, &table);

    let mut table = Table::new(&[
        "sizes",
        ">mean",
        ">median",
        ">90 %",
        ">largest",
        ">exactly 4 KiB",
        ">up to 4 KiB",
    ]);
    for (name, sizes) in [("read", &stats.read_sizes), ("write", &stats.write_sizes)] {
        if sizes.requests > 0 {
            table.row([
                name.to_owned(),
                Unit::Bytes.show(sizes.mean),
                ByteSize(sizes.median.into()).to_string(),
                ByteSize(sizes.p90.into()).to_string(),
                ByteSize(sizes.largest.into()).to_string(),
                percent(sizes.of_4096, sizes.requests),
                percent(sizes.up_to_4096, sizes.requests),
            ]);
        }
    }
    add(&mut text, &table);

    if !stats.latency.is_empty() {
        let mut table =
            Table::new(&["answered", ">known", ">mean", ">median", ">90 %", ">99 %", ">slowest"]);
        for (op, l) in &stats.latency {
            let show = |ns: f64| Unit::Seconds.show(ns / 1e9);
            table.row([
                op.as_str().to_owned(),
                l.requests.to_string(),
                show(l.mean),
                show(l.p50 as f64),
                show(l.p90 as f64),
                show(l.p99 as f64),
                show(l.largest.into()),
            ]);
        }
        add(&mut text, &table);
    }

    let distances = &stats.distances;
    let all = stats.working_set.read_references + stats.working_set.write_references;
    let mut table = Table::new(&["last use of the block", ">reads", ">writes", ">share"]);
    let cold = distances.cold_reads + distances.cold_writes;
    table.row([
        "never".to_owned(),
        distances.cold_reads.to_string(),
        distances.cold_writes.to_string(),
        percent(cold, all),
    ]);
    for (power, reads, writes) in &distances.by_power {
        let below = format!("under {power} uses ago");
        let share = percent(reads + writes, all);
        table.row([below, reads.to_string(), writes.to_string(), share]);
    }
    add(&mut text, &table);

    if stats.clients.len() > 1 {
        let mut table = Table::new(&[">used by clients", ">blocks", ">uses"]);
        for (clients, blocks, uses) in &stats.sharing.by_clients {
            table.row([clients.to_string(), blocks.to_string(), uses.to_string()]);
        }
        add(&mut text, &table);
    }
    for (what, parties) in [("client", &stats.clients), ("disk", &stats.disks)] {
        if parties.len() < 2 {
            continue;
        }
        let mut table = Table::new(&[what, ">reads", ">read", ">writes", ">written", ">others"]);
        for of in parties.iter().take(SHOWN) {
            table.row(party(of));
        }
        add(&mut text, &table);
        if parties.len() > SHOWN {
            text.push_str(&format!("… and {} more; see --json\n", parties.len() - SHOWN));
        }
    }
    text
}

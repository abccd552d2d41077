//! The HTML report of `sojourn trace stats`.

use super::facts::{facts, operations, party, percent};
use block::ByteSize;
use report::{Axis, Bars, Plot, Report, Series, Table, Unit};
use std::collections::BTreeSet;
use trace::stats::TraceStats;

/// Rows of a table of clients or disks.
const SHOWN: usize = 200;

/// The report.
pub(super) fn page(name: &str, stats: &TraceStats) -> Report {
    let mut page = Report::new(format!("Trace {name}"));
    if !stats.complete {
        page = page.text("The trace is not finished: its recorder is at work, or was killed.");
    }
    page = page.facts(facts(stats).into_iter().map(|(label, value)| (label.trim(), value)));
    let mut table = Table::new(["operation", ">requests", ">share", ">bytes"]);
    for row in operations(stats) {
        table.row(row);
    }
    page = page.heading("Requests").table(&table).bars(sizes(stats));
    page = page.heading("Over time");
    for plot in timeline(stats) {
        page = page.plot(plot);
    }
    page = page.heading("Locality").text(
        "How many uses of other blocks lie between two uses of a block. A cache helps with what \
         comes back within its size; a client's own cache has taken the near ones away already.",
    );
    page = page.bars(distances(stats));
    if !stats.latency.is_empty() {
        page = page.heading("Answers").table(&latencies(stats));
    }
    if stats.clients.len() > 1 {
        page = page.heading("Sharing").text(
            "Blocks by how many clients use them. Disks made from one image share a block until \
             one of them has written to it.",
        );
        page = page.bars(sharing(stats));
    }
    for (title, what, parties) in
        [("Clients", "client", &stats.clients), ("Disks", "disk", &stats.disks)]
    {
        if parties.len() > 1 {
            let mut table = Table::new([what, ">reads", ">read", ">writes", ">written", ">others"]);
            for one in parties.iter().take(SHOWN) {
                table.row(party(one));
            }
            page = page.heading(title).table(&table);
        }
    }
    page
}

fn sizes(stats: &TraceStats) -> Bars {
    let (reads, writes) = (&stats.read_sizes.by_power, &stats.write_sizes.by_power);
    let powers: BTreeSet<u64> = reads.iter().chain(writes).map(|(power, _)| *power).collect();
    let names = powers.iter().map(|power| ByteSize(*power).to_string());
    let of = |all: &[(u64, u64)]| -> Vec<f64> {
        let find =
            |power: &u64| all.iter().find(|(p, _)| p == power).map_or(0.0, |(_, n)| *n as f64);
        powers.iter().map(find).collect()
    };
    Bars::new("Sizes of requests", "up to", names, Axis::new("requests", Unit::Number))
        .series("reads", of(reads))
        .series("writes", of(writes))
}

/// What happens in the course of the trace; without times there are as many requests in every stretch.
fn timeline(stats: &TraceStats) -> Vec<Plot> {
    let line = &stats.timeline;
    let (unit, label, scale) = match stats.times {
        true => (Unit::Seconds, "time", 1e-9),
        false => (Unit::Number, "requests so far", 1.0),
    };
    let width = (line.width as f64 * scale).max(f64::MIN_POSITIVE);
    let at = |start: u64| start as f64 * scale;
    let block = f64::from(stats.working_set.block);
    let series = |name: &str, value: &dyn Fn(&trace::stats::Bin) -> f64| {
        Series::new(name, line.bins.iter().map(|bin| (at(bin.start), value(bin)))).steps()
    };
    let axis = || Axis::new(label, unit);
    let per = if stats.times { "a second" } else { "a request" };
    let mut total = 0;
    let grown: Vec<(f64, f64)> = line
        .bins
        .iter()
        .map(|bin| {
            total += bin.new_blocks;
            (at(bin.start) + width, total as f64 * block)
        })
        .collect();
    let window = unit.show(width);
    let requests =
        Plot::new(format!("Requests {per}"), axis(), Axis::new("requests", Unit::Number))
            .series(series("", &|bin| bin.requests as f64 / width));
    let mut plots = if stats.times { vec![requests] } else { Vec::new() };
    plots.extend([
        Plot::new(format!("Bytes {per}"), axis(), Axis::new("bytes", Unit::Bytes))
            .series(series("read", &|bin| bin.read_bytes as f64 / width))
            .series(series("written", &|bin| bin.written_bytes as f64 / width)),
        Plot::new("Working set", axis(), Axis::new("different blocks", Unit::Bytes))
            .series(Series::new("since the start", grown))
            .series(series(&format!("in each {window}"), &|bin| bin.blocks as f64 * block)),
    ]);
    plots
}

fn distances(stats: &TraceStats) -> Bars {
    let distances = &stats.distances;
    let names = distances.by_power.iter().map(|(power, ..)| Unit::Number.show(*power as f64));
    let reads = distances.by_power.iter().map(|(_, reads, _)| *reads as f64);
    let writes = distances.by_power.iter().map(|(_, _, writes)| *writes as f64);
    let axis = Axis::new("uses of blocks", Unit::Number);
    let label = "last used less than so many uses ago (first uses are not shown)";
    Bars::new("Temporal distance", label, names, axis)
        .series("reads", reads)
        .series("writes", writes)
        .stacked()
}

fn sharing(stats: &TraceStats) -> Bars {
    let all = &stats.sharing.by_clients;
    let names = all.iter().map(|(clients, ..)| clients.to_string());
    let axis = Axis::new("blocks", Unit::Number);
    Bars::new("Shared blocks", "clients", names, axis)
        .series("blocks", all.iter().map(|(_, blocks, _)| *blocks as f64))
        .series("uses", all.iter().map(|(.., uses)| *uses as f64))
}

fn latencies(stats: &TraceStats) -> Table {
    let titles = ["operation", ">known", ">mean", ">median", ">90 %", ">99 %", ">slowest"];
    let mut table = Table::new(titles);
    for (op, l) in &stats.latency {
        let show = |ns: f64| Unit::Seconds.show(ns / 1e9);
        let known = percent(l.requests, stats.operations[*op as usize].1.requests);
        let times = [l.p50 as f64, l.p90 as f64, l.p99 as f64, l.largest.into()].map(show);
        let row = [op.as_str().to_owned(), known, show(l.mean)];
        table.row(row.into_iter().chain(times));
    }
    table
}

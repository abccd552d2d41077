//! What the statistics of a trace say, as labels and cells: for the terminal, and for the page.

use block::ByteSize;
use report::Unit;
use trace::stats::{Party, TraceStats};

/// A share in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

/// The main numbers, as labels and values.
pub(super) fn facts(stats: &TraceStats) -> Vec<(&'static str, String)> {
    let set = &stats.working_set;
    let bytes = |blocks: u64| ByteSize(blocks * u64::from(set.block)).to_string();
    let seconds = stats.duration as f64 / 1e9;
    let order = &stats.order;
    let moved = order.sequential + order.near + order.random;
    let touched = if set.blocks > 0 { bytes(set.blocks) } else { "-".to_owned() };
    let mut facts = vec![("requests", Unit::Number.show(stats.requests as f64))];
    if stats.times {
        facts.push(("length", Unit::Seconds.show(seconds)));
        if seconds > 0.0 {
            facts.push(("requests a second", Unit::Number.show(stats.requests as f64 / seconds)));
        }
    }
    facts.extend([
        ("clients", stats.clients.len().to_string()),
        ("disks", stats.disks.len().to_string()),
        ("working set", touched),
        (
            "  only read",
            format!("{} ({})", bytes(set.only_read), percent(set.only_read, set.blocks)),
        ),
        (
            "  only written",
            format!("{} ({})", bytes(set.only_written), percent(set.only_written, set.blocks)),
        ),
        ("  read and written", format!("{} ({})", bytes(set.both), percent(set.both, set.blocks))),
        ("sequential", percent(order.sequential, moved)),
        ("  near (64 KiB)", percent(order.near, moved)),
        ("  random", percent(order.random, moved)),
        ("mean run", Unit::Bytes.show(order.mean_run)),
        ("aligned to blocks", percent(stats.aligned, moved)),
    ]);
    if set.sampled > 1 {
        facts.push(("estimated from", format!("1 in {} blocks", set.sampled)));
    }
    facts
}

/// What the operations did.
pub(super) fn operations(stats: &TraceStats) -> Vec<[String; 4]> {
    let used = stats.operations.iter().filter(|(_, count)| count.requests > 0);
    used.map(|(op, count)| {
        [
            op.as_str().to_owned(),
            count.requests.to_string(),
            percent(count.requests, stats.requests),
            ByteSize(count.bytes).to_string(),
        ]
    })
    .collect()
}

/// A client or disk as a row: name, reads, bytes read, writes, bytes written, others.
pub(super) fn party(party: &Party) -> [String; 6] {
    let name = match party.name.as_str() {
        "" => party.number.to_string(),
        name => name.to_owned(),
    };
    [
        name,
        party.reads.requests.to_string(),
        ByteSize(party.reads.bytes).to_string(),
        party.writes.requests.to_string(),
        ByteSize(party.writes.bytes).to_string(),
        party.others.to_string(),
    ]
}

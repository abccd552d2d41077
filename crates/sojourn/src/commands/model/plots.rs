//! The results of `sojourn model solve` as a page with plots.

use super::solved::{ClientsRow, SolveView, SolvedCase, percent};
use block::ByteSize;
use report::{Axis, Plot, Report, Series, Table, Unit};

/// The most lines of a plot.
const LINES: usize = 8;
/// The most rows of the page's table.
const ROWS: usize = 2000;

/// What a plot shows of a row.
type Figure = (&'static str, &'static str, Unit, fn(&ClientsRow) -> f64);

const FIGURES: [Figure; 2] = [
    ("Throughput", "bytes per second", Unit::Bytes, |row| row.bytes_per_second),
    ("Response", "response", Unit::Seconds, |row| row.response_ms / 1e3),
];

/// The page.
pub(super) fn page(view: &SolveView) -> String {
    let mut page = Report::new(format!("Model of {}", view.profile)).text(
        "Exact solution of a closed queueing network: each client waits for its answer before it \
         asks again.",
    );
    let mut hits: Vec<f64> = view.cases.iter().map(|case| case.hit).collect();
    hits.sort_by(f64::total_cmp);
    hits.dedup();
    if hits.len() > 2 {
        page = page.heading("By hit ratio");
        for figure in FIGURES {
            page = page.plot(by_hit(view, figure));
        }
        page = page.plot(utilisation_by_hit(view));
    }
    if view.cases.iter().any(|case| case.rows.len() > 2) {
        page = page.heading("By number of clients");
        for figure in FIGURES {
            page = page.plot(by_clients(view, figure));
        }
    }
    page.heading("Limits").table(&limits(view)).heading("Results").table(&rows(view)).render()
}

/// Cases of one block size, in the order of their hit ratios.
fn blocks(view: &SolveView) -> Vec<Vec<&SolvedCase>> {
    let mut blocks: Vec<Vec<&SolvedCase>> = Vec::new();
    for case in &view.cases {
        match blocks.last_mut() {
            Some(last) if last[0].block == case.block => last.push(case),
            _ => blocks.push(vec![case]),
        }
    }
    blocks
}

/// A few numbers of clients, for lines of their own: the last, and some before.
fn chosen(rows: &[ClientsRow]) -> Vec<usize> {
    let step = rows.len().div_ceil(4).max(1);
    let mut chosen: Vec<usize> = (0..rows.len()).rev().step_by(step).collect();
    chosen.reverse();
    chosen
}

fn by_hit(view: &SolveView, (title, label, unit, value): Figure) -> Plot {
    let x = Axis::new("hit ratio", Unit::Percent);
    let mut plot = Plot::new(format!("{title} by hit ratio"), x, Axis::new(label, unit));
    let mut lines = 0;
    for block in blocks(view) {
        for at in chosen(&block[0].rows) {
            if lines == LINES {
                return plot;
            }
            lines += 1;
            let name =
                format!("{}, {} clients", ByteSize(block[0].block), block[0].rows[at].clients);
            let points = block.iter().map(|case| (case.hit * 100.0, value(&case.rows[at])));
            plot = plot.series(Series::new(name, points));
        }
    }
    for switch in &view.switches {
        let (size, above) = (ByteSize(switch.block), &switch.above);
        plot = plot.mark(switch.hit * 100.0, format!("{above} ({size})"));
    }
    plot
}

fn utilisation_by_hit(view: &SolveView) -> Plot {
    let x = Axis::new("hit ratio", Unit::Percent);
    let y = Axis::new("utilisation", Unit::Percent).between(0.0, 100.0);
    let blocks = blocks(view);
    let clients =
        blocks.first().and_then(|block| block[0].rows.last()).map_or(0, |row| row.clients);
    let mut plot = Plot::new(format!("Utilisation by hit ratio, {clients} clients"), x, y);
    let mut lines = 0;
    for block in blocks {
        let Some(last) = block[0].rows.last() else { continue };
        for name in last.utilisation.keys() {
            if lines == LINES {
                return plot;
            }
            lines += 1;
            let points = block.iter().filter_map(|case| {
                let row = case.rows.last()?;
                Some((case.hit * 100.0, row.utilisation.get(name)? * 100.0))
            });
            plot =
                plot.series(Series::new(format!("{name}, {}", ByteSize(block[0].block)), points));
        }
    }
    plot
}

fn by_clients(view: &SolveView, (title, label, unit, value): Figure) -> Plot {
    let x = Axis::new("clients", Unit::Number);
    let mut plot = Plot::new(format!("{title} by number of clients"), x, Axis::new(label, unit));
    let step = view.cases.len().div_ceil(LINES).max(1);
    for case in view.cases.iter().rev().step_by(step) {
        let name = format!("{}, {} hits", ByteSize(case.block), percent(case.hit));
        let points = case.rows.iter().map(|row| (f64::from(row.clients), value(row)));
        plot = plot.series(Series::new(name, points));
    }
    plot
}

fn limits(view: &SolveView) -> Table {
    let mut table =
        Table::new([">Block", ">Hits", "Bottleneck", ">Requests/s at most", ">Knee, clients"]);
    for case in view.cases.iter().take(ROWS) {
        table.row([
            ByteSize(case.block).to_string(),
            percent(case.hit),
            case.bottleneck.clone().unwrap_or_else(|| "none".to_owned()),
            case.limit.map_or("-".to_owned(), |limit| format!("{limit:.1}")),
            case.knee.map_or("-".to_owned(), |knee| format!("{knee:.1}")),
        ]);
    }
    table
}

fn rows(view: &SolveView) -> Table {
    let mut table = Table::new([
        ">Block",
        ">Hits",
        ">Clients",
        ">Requests/s",
        ">MiB/s",
        ">Response, ms",
        "Bottleneck",
    ]);
    let all = view.cases.iter().flat_map(|case| case.rows.iter().map(move |row| (case, row)));
    for (case, row) in all.take(ROWS) {
        table.row([
            ByteSize(case.block).to_string(),
            percent(case.hit),
            row.clients.to_string(),
            format!("{:.2}", row.throughput),
            format!("{:.2}", row.bytes_per_second / f64::from(1 << 20)),
            format!("{:.4}", row.response_ms),
            row.bottleneck.clone().unwrap_or_else(|| "none".to_owned()),
        ]);
    }
    table
}

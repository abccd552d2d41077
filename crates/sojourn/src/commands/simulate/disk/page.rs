//! What was simulated, as a page with plots.

use super::{DiskSimulationView, SchedulerRow, show};
use report::{Axis, Plot, Report, Series, Table, Unit};

/// Sectors as GiB.
const GIB: f64 = (1u64 << 21) as f64;

/// The page.
pub(super) fn page(view: &DiskSimulationView) -> Report {
    let mut page = Report::new("Simulated disks").text(&view.load).text(&format!(
        "{} requests, the first {} not counted, {} seeds; means with 95 % intervals. Plots are of the \
         first seed.",
        view.requests, view.warm_up, view.seeds
    ));
    for winner in &view.winners {
        page = page.text(&winner.sentence);
    }
    let (titles, rows) = show::cells(&view.rows);
    let mut table = Table::new(titles);
    for row in rows {
        table.row(row);
    }
    page = page.heading("Results").table(&table);
    for rows in view.rows.chunk_by(|a, b| a.profile == b.profile) {
        page = page.heading(&rows[0].profile).plot(responses(rows)).plot(queue(rows));
        for row in rows.iter().filter(|row| !row.first.path.is_empty()) {
            page = page.plot(seeks(row));
        }
    }
    page
}

fn responses(rows: &[SchedulerRow]) -> Plot {
    let mut plot = Plot::new(
        "Response: the part of requests answered within a time",
        Axis::log("response", Unit::Seconds),
        Axis::new("requests", Unit::Percent).between(0.0, 100.0),
    );
    for row in rows {
        let points = row.first.response.curve();
        let points = points.into_iter().map(|(ms, part)| (ms * 1e-3, part * 100.0));
        plot = plot.series(Series::new(row.scheduler.clone(), points));
    }
    plot
}

fn queue(rows: &[SchedulerRow]) -> Plot {
    let mut plot = Plot::new(
        "Requests in the system",
        Axis::new("time", Unit::Seconds),
        Axis::new("requests", Unit::Number),
    );
    for row in rows {
        let points = row.first.samples.iter().map(|s| (s.at_ms * 1e-3, s.in_system as f64));
        plot = plot.series(Series::new(row.scheduler.clone(), points));
    }
    plot
}

fn seeks(row: &SchedulerRow) -> Plot {
    let points = row.first.path.iter().map(|(ms, sector)| (ms * 1e-3, *sector as f64 / GIB));
    Plot::new(
        format!("Seek map of {}: where the head went first", row.scheduler),
        Axis::new("time", Unit::Seconds),
        Axis::new("place (GiB)", Unit::Number),
    )
    .series(Series::new("", points))
}

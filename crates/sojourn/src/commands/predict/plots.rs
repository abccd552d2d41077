//! A prediction as a page with plots.

use super::{COLUMNS, PredictView, row};
use block::ByteSize;
use report::{Axis, Plot, Report, Series, Table, Unit};

/// The most lines of a plot.
const LINES: usize = 8;

/// The page.
pub(super) fn page(view: &PredictView) -> String {
    let facts = [
        ("Requests in the trace", view.trace.requests.to_string()),
        ("Clients in the trace", view.trace.clients.to_string()),
        ("Mean request", ByteSize(view.block).to_string()),
        ("Changes", format!("{:.0} %", view.trace.changes * 100.0)),
        ("Pause of a client", format!("{:.3} ms", view.think_ms)),
        ("Response asked for", format!("{:.3} ms", view.target_ms)),
    ];
    let clients = || Axis::new("clients", Unit::Number);
    let mut response = Plot::new(
        "Mean response by number of clients",
        clients(),
        Axis::new("response", Unit::Seconds),
    );
    let mut throughput = Plot::new(
        "Throughput by number of clients",
        clients(),
        Axis::new("requests per second", Unit::Number),
    );
    let step = view.cases.len().div_ceil(LINES).max(1);
    for case in view.cases.iter().rev().step_by(step) {
        let name = ByteSize(case.memory).to_string();
        let points = |value: fn(&super::Point) -> f64| {
            case.curve.iter().map(move |point| (f64::from(point.clients), value(point)))
        };
        response =
            response.series(Series::new(name.clone(), points(|point| point.response_ms / 1e3)));
        throughput = throughput.series(Series::new(name, points(|point| point.throughput)));
    }
    let first = view.cases.iter().flat_map(|case| &case.curve).map(|point| point.clients).min();
    let last = view.cases.iter().flat_map(|case| &case.curve).map(|point| point.clients).max();
    if let (Some(first), Some(last)) = (first, last) {
        let target = view.target_ms / 1e3;
        let line = [(f64::from(first), target), (f64::from(last), target)];
        response = response.series(Series::new("asked for", line).dashed());
    }
    let mut page = Report::new(format!("Prediction for {}", view.profile)).facts(facts);
    if view.cases.len() > 2 {
        let held = view.cases.iter().map(|case| (case.memory as f64, f64::from(case.clients)));
        let x = Axis::log("memory", Unit::Bytes);
        let plot = Plot::new("Clients held by memory", x, Axis::new("clients", Unit::Number));
        page = page.plot(plot.series(Series::new("clients", held)));
    }
    let mut table = Table::new(COLUMNS);
    view.cases.iter().for_each(|case| {
        table.row(row(case));
    });
    page.plot(response).plot(throughput).heading("Results").table(&table).render()
}

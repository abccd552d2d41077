//! What was simulated, as text and as comma-separated values.

use super::{DiskSimulationView, SchedulerRow};
use crate::output::Table;
use schedule::compare::Estimate;

/// A number with three or four digits.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A mean with its interval.
pub(super) fn interval(estimate: &Estimate) -> String {
    match estimate.half_width {
        Some(half) => format!("{} +- {}", digits(estimate.mean), digits(half)),
        None => digits(estimate.mean),
    }
}

/// The titles of a table and its rows.
pub(super) fn cells(rows: &[SchedulerRow]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let titles = vec![
        "disk",
        "scheduler",
        ">service ms",
        ">response ms",
        ">variance",
        ">p50",
        ">p99",
        ">p99.9",
        ">sectors/ms",
        ">busy %",
        ">hits %",
    ];
    let cells = |row: &SchedulerRow| {
        vec![
            row.profile.clone(),
            row.scheduler.clone(),
            interval(&row.service_ms),
            interval(&row.response_ms),
            digits(row.response_variance.mean),
            digits(row.p50_ms.mean),
            digits(row.p99_ms.mean),
            digits(row.p999_ms.mean),
            interval(&row.sectors_per_ms),
            format!("{:.1}", row.utilisation.mean * 100.0),
            format!("{:.1}", row.hit_ratio.mean * 100.0),
        ]
    };
    (titles, rows.iter().map(cells).collect())
}

/// For people.
pub(super) fn text(view: &DiskSimulationView) -> String {
    let (titles, rows) = cells(&view.rows);
    let mut table = Table::new(&titles);
    rows.into_iter().for_each(|row| table.row(row));
    let mut text = format!(
        "{}; {} requests, the first {} not counted, {} seeds; means with 95 % intervals\n\n{}\n",
        view.load,
        view.requests,
        view.warm_up,
        view.seeds,
        table.render()
    );
    for winner in &view.winners {
        text.push_str(&winner.sentence);
        text.push('\n');
    }
    text
}

/// For programs.
pub(super) fn csv(view: &DiskSimulationView) -> String {
    type EstimateColumn = (&'static str, fn(&SchedulerRow) -> &Estimate);
    let columns: [EstimateColumn; 16] = [
        ("service_ms", |r| &r.service_ms),
        ("service_variance", |r| &r.service_variance),
        ("device_ms", |r| &r.device_ms),
        ("response_ms", |r| &r.response_ms),
        ("response_variance", |r| &r.response_variance),
        ("p50_ms", |r| &r.p50_ms),
        ("p90_ms", |r| &r.p90_ms),
        ("p99_ms", |r| &r.p99_ms),
        ("p999_ms", |r| &r.p999_ms),
        ("worst_ms", |r| &r.worst_ms),
        ("sectors_per_ms", |r| &r.sectors_per_ms),
        ("requests_per_ms", |r| &r.requests_per_ms),
        ("utilisation", |r| &r.utilisation),
        ("hit_ratio", |r| &r.hit_ratio),
        ("foreseen", |r| &r.foreseen),
        ("in_system", |r| &r.in_system),
    ];
    let mut text = String::from("profile,scheduler");
    for (name, _) in columns {
        text.push_str(&format!(",{name},{name}_half"));
    }
    text.push('\n');
    for row in &view.rows {
        text.push_str(&format!("\"{}\",\"{}\"", row.profile, row.scheduler));
        for (_, value) in columns {
            let estimate = value(row);
            let half = estimate.half_width.map(|h| format!("{h:.6}")).unwrap_or_default();
            text.push_str(&format!(",{:.6},{half}", estimate.mean));
        }
        text.push('\n');
    }
    text
}

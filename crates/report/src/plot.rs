//! Lines over a numeric axis.

use crate::html::{COLOURS, escape};
use crate::svg::{AREA, Drawing, LEFT, RIGHT, dash};
use crate::{Axis, Table};
use std::fmt::Write;

/// Points of a line that are marked one by one, with their values when pointed at.
const MARKED: usize = 64;
/// Rows of the table of numbers below a plot.
const ROWS: usize = 200;

/// One line.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    dashed: bool,
    step: bool,
}

impl Series {
    /// A line through these points, in order of x.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().collect();
        Self { name: name.into(), points, dashed: false, step: false }
    }

    /// Drawn dashed: a bound, an estimate, a model beside measurements.
    #[must_use]
    pub fn dashed(mut self) -> Self {
        self.dashed = true;
        self
    }

    /// Drawn as steps: each value holds until the next point.
    #[must_use]
    pub fn steps(mut self) -> Self {
        self.step = true;
        self
    }
}

/// Lines over a numeric axis.
#[derive(Clone, Debug)]
pub struct Plot {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    marks: Vec<(f64, String)>,
}

impl Plot {
    /// An empty plot.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new(), marks: Vec::new() }
    }

    /// Adds a line. Points that the axes cannot hold are left out.
    #[must_use]
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a vertical dotted line with a label: a knee, a chosen size.
    #[must_use]
    pub fn mark(mut self, x: f64, label: impl Into<String>) -> Self {
        self.marks.push((x, label.into()));
        self
    }

    pub(crate) fn html(mut self) -> String {
        let (x_axis, y_axis) = (self.x.clone(), self.y.clone());
        for series in &mut self.series {
            series.points.retain(|(x, y)| x_axis.holds(*x) && y_axis.holds(*y));
        }
        self.marks.retain(|(x, _)| x_axis.holds(*x));
        let points = || self.series.iter().flat_map(|s| &s.points);
        let x = x_axis.lay_out(points().map(|p| p.0).chain(self.marks.iter().map(|m| m.0)));
        let y = y_axis.lay_out(points().map(|p| p.1));
        let names: Vec<_> = self.series.iter().map(|s| (s.name.as_str(), s.dashed)).collect();
        let mut drawing = Drawing::new(&names);
        drawing.y_axis(&y, y_axis.unit, &y_axis.label);
        for tick in &x.ticks {
            drawing.x_tick(x.place(*tick), &x_axis.unit.show(*tick), true);
        }
        let place = |(px, py): (f64, f64), drawing: &Drawing| {
            (LEFT + (RIGHT - LEFT) * x.place(px), drawing.y(y.place(py)))
        };
        for (at, label) in &self.marks {
            let (left, top) = (LEFT + (RIGHT - LEFT) * x.place(*at), drawing.y(1.0));
            drawing.shape(&format!(
                "<line class=\"mark\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{top:.1}\" \
                 y2=\"{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                top + AREA,
                left + 4.0,
                top + 11.0,
                escape(label),
            ));
        }
        for (index, series) in self.series.iter().enumerate() {
            let placed: Vec<_> = series.points.iter().map(|p| place(*p, &drawing)).collect();
            let mut path = String::new();
            let mut last = None;
            for (px, py) in thin(&placed) {
                if let (Some(before), true) = (last, series.step) {
                    let _ = write!(path, "{px:.1},{before:.1} ");
                }
                let _ = write!(path, "{px:.1},{py:.1} ");
                last = Some(py);
            }
            let colour = index % COLOURS;
            drawing.shape(&format!(
                "<polyline class=\"curve s{colour}{}\" points=\"{}\"/>",
                dash(index, series.dashed),
                path.trim_end(),
            ));
            if placed.len() <= MARKED {
                for ((px, py), (vx, vy)) in placed.iter().zip(&series.points) {
                    drawing.shape(&format!(
                        "<circle class=\"f{colour}\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\"><title>\
                         {} {}: {}</title></circle>",
                        escape(&series.name),
                        escape(&x_axis.unit.show(*vx)),
                        escape(&y_axis.unit.show(*vy)),
                    ));
                }
            }
        }
        drawing.finish(&self.title, &x_axis.label, self.numbers())
    }

    /// The points as a table, when they are few.
    fn numbers(&self) -> Option<String> {
        let mut xs: Vec<f64> =
            self.series.iter().flat_map(|s| s.points.iter().map(|p| p.0)).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        if xs.is_empty() || xs.len() > ROWS {
            return None;
        }
        let title =
            |s: &Series| format!(">{}", if s.name.is_empty() { &self.y.label } else { &s.name });
        let titles = std::iter::once(self.x.label.clone()).chain(self.series.iter().map(title));
        let mut table = Table::new(titles);
        for x in xs {
            let cell = |s: &Series| {
                let found = s.points.iter().find(|p| p.0 == x);
                found.map(|p| self.y.unit.show(p.1)).unwrap_or_default()
            };
            let cells = std::iter::once(self.x.unit.show(x)).chain(self.series.iter().map(cell));
            table.row(cells);
        }
        Some(table.html())
    }
}

/// At most the first, lowest, highest and last point of each half unit of width: looks the same,
/// whatever the number of points.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let column = |p: &(f64, f64)| (p.0 * 2.0).floor();
    for group in points.chunk_by(|a, b| column(a) == column(b)) {
        if group.len() <= 4 {
            kept.extend_from_slice(group);
            continue;
        }
        let by_height = |a: &usize, b: &usize| group[*a].1.total_cmp(&group[*b].1);
        let lowest = (0..group.len()).min_by(by_height).unwrap_or(0);
        let highest = (0..group.len()).max_by(by_height).unwrap_or(0);
        let mut some = [0, lowest, highest, group.len() - 1];
        some.sort_unstable();
        kept.extend(some.map(|i| group[i]));
    }
    kept
}

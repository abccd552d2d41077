//! Bars over named categories, in groups or in stacks.

use crate::html::{COLOURS, escape};
use crate::svg::{Drawing, LEFT, RIGHT};
use crate::{Axis, Table};

/// Labels on the x axis that have room.
const LABELS: usize = 16;

/// Bars over named categories.
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    label: String,
    y: Axis,
    categories: Vec<String>,
    series: Vec<(String, Vec<f64>)>,
    stacked: bool,
}

impl Bars {
    /// An empty plot; `label` says what the categories are.
    pub fn new<C: Into<String>>(
        title: impl Into<String>,
        label: impl Into<String>,
        categories: impl IntoIterator<Item = C>,
        y: Axis,
    ) -> Self {
        Self {
            title: title.into(),
            label: label.into(),
            y,
            categories: categories.into_iter().map(Into::into).collect(),
            series: Vec::new(),
            stacked: false,
        }
    }

    /// Adds one value for each category. Values that are not finite or not above 0 draw nothing.
    #[must_use]
    pub fn series(
        mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        self.series.push((name.into(), values.into_iter().collect()));
        self
    }

    /// Series on top of each other instead of side by side. For linear axes.
    #[must_use]
    pub fn stacked(mut self) -> Self {
        self.stacked = true;
        self
    }

    pub(crate) fn html(self) -> String {
        let value = |series: &[f64], category: usize| {
            series.get(category).copied().filter(|v| self.y.holds(*v) && *v > 0.0).unwrap_or(0.0)
        };
        let count = self.categories.len();
        let sum = |category: usize| self.series.iter().map(|(_, v)| value(v, category)).sum();
        let tops: Vec<f64> = match self.stacked {
            true => (0..count).map(sum).collect(),
            false => {
                let all = |c: usize| self.series.iter().map(move |(_, v)| value(v, c));
                (0..count).flat_map(all).collect()
            }
        };
        // A bar begins at 0; on a logarithmic axis at its low end.
        let y = self.y.lay_out(tops.into_iter().chain([0.0]));
        let names: Vec<_> = self.series.iter().map(|(name, _)| (name.as_str(), false)).collect();
        let mut drawing = Drawing::new(&names);
        drawing.y_axis(&y, self.y.unit, &self.y.label);
        let slot = (RIGHT - LEFT) / count.max(1) as f64;
        let side_by_side = if self.stacked { 1 } else { self.series.len().max(1) };
        let width = slot * 0.8 / side_by_side as f64;
        let every = count.div_ceil(LABELS).max(1);
        for (category, name) in self.categories.iter().enumerate() {
            if category % every == 0 {
                drawing.x_tick((category as f64 + 0.5) / count as f64, name, false);
            }
            let mut below = 0.0;
            for (index, (series, values)) in self.series.iter().enumerate() {
                let height = value(values, category);
                if height <= 0.0 {
                    continue;
                }
                let place = if self.stacked { 0 } else { index };
                let x = LEFT + slot * (category as f64 + 0.1) + width * place as f64;
                let base = if below > 0.0 { drawing.y(y.place(below)) } else { drawing.y(0.0) };
                let top = drawing.y(y.place(below + height));
                drawing.shape(&format!(
                    "<rect class=\"f{}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"><title>{} {}: {}</title></rect>",
                    index % COLOURS,
                    (width - 1.0).max(0.5),
                    (base - top).max(0.0),
                    escape(series),
                    escape(name),
                    escape(&self.y.unit.show(height)),
                ));
                if self.stacked {
                    below += height;
                }
            }
        }
        let title = |name: &str| format!(">{}", if name.is_empty() { &self.y.label } else { name });
        let titles = self.series.iter().map(|(name, _)| title(name));
        let mut table = Table::new(std::iter::once(self.label.clone()).chain(titles));
        for (category, name) in self.categories.iter().enumerate() {
            let cells = self.series.iter().map(|(_, v)| self.y.unit.show(value(v, category)));
            table.row(std::iter::once(name.clone()).chain(cells));
        }
        drawing.finish(&self.title, &self.label, Some(table.html()))
    }
}

//! What line and bar plots share: the frame, the axes, the legend.

use crate::axis::{Scale, Unit};
use crate::html::{COLOURS, escape};
use std::fmt::Write;

/// The drawing's width and height, and where its plotting area begins and ends, in SVG units.
pub(crate) const WIDTH: f64 = 860.0;
pub(crate) const LEFT: f64 = 78.0;
pub(crate) const RIGHT: f64 = WIDTH - 16.0;
pub(crate) const AREA: f64 = 300.0;
/// Room of one line of the legend.
const ROW: f64 = 18.0;
/// Room of a character of the legend, generously.
const CHARACTER: f64 = 7.2;

/// A plot being drawn.
pub(crate) struct Drawing {
    body: String,
    top: f64,
}

impl Drawing {
    /// Begins with the legend; series without names have none.
    pub(crate) fn new(names: &[(&str, bool)]) -> Self {
        let mut body = String::new();
        let (mut x, mut y) = (LEFT, 12.0);
        let named = names.iter().any(|(name, _)| !name.is_empty());
        for (index, (name, dashed)) in names.iter().enumerate().filter(|_| named) {
            let width = name.chars().count() as f64 * CHARACTER + 42.0;
            if x + width > RIGHT && x > LEFT {
                (x, y) = (LEFT, y + ROW);
            }
            let _ = writeln!(
                body,
                "<line class=\"curve s{}{}\" x1=\"{x:.0}\" x2=\"{:.0}\" y1=\"{y}\" y2=\"{y}\"/>\
                 <text class=\"key\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
                index % COLOURS,
                dash(index, *dashed),
                x + 22.0,
                x + 27.0,
                y + 4.0,
                escape(name),
            );
            x += width;
        }
        Self { body, top: if named { y + ROW } else { 12.0 } }
    }

    /// Where a fraction of the y axis stands.
    pub(crate) fn y(&self, part: f64) -> f64 {
        self.top + AREA * (1.0 - part)
    }

    /// Draws the y axis with its grid.
    pub(crate) fn y_axis(&mut self, scale: &Scale, unit: Unit, label: &str) {
        for tick in &scale.ticks {
            let y = self.y(scale.place(*tick));
            let _ = writeln!(
                self.body,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                escape(&unit.show(*tick)),
            );
        }
        let middle = self.y(0.5);
        let _ = writeln!(
            self.body,
            "<text transform=\"translate(12 {middle:.0}) rotate(-90)\" text-anchor=\"middle\">{}\
             </text>",
            escape(label),
        );
    }

    /// Draws one tick of the x axis at a fraction of it.
    pub(crate) fn x_tick(&mut self, part: f64, text: &str, line: bool) {
        let (x, bottom) = (LEFT + (RIGHT - LEFT) * part, self.y(0.0));
        if line {
            let _ = writeln!(
                self.body,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>",
                self.top,
            );
        }
        // Whole, also at the edge of the drawing.
        let half = (text.chars().count() as f64 * CHARACTER / 2.0).min(WIDTH / 2.0);
        let x = x.clamp(half, WIDTH - half);
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            escape(text),
        );
    }

    /// Adds a shape.
    pub(crate) fn shape(&mut self, svg: &str) {
        self.body.push_str(svg);
        self.body.push('\n');
    }

    /// The finished figure; `numbers` is what it shows as a table.
    pub(crate) fn finish(mut self, title: &str, x_label: &str, numbers: Option<String>) -> String {
        let bottom = self.y(0.0);
        let _ = writeln!(
            self.body,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + RIGHT) / 2.0,
            bottom + 34.0,
            escape(x_label),
        );
        let title = escape(title);
        let numbers = numbers
            .map(|table| format!("<details><summary>Numbers</summary>{table}</details>\n"))
            .unwrap_or_default();
        format!(
            "<figure><figcaption>{title}</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{title}\">\n{}</svg>\n\
             {numbers}</figure>\n",
            bottom + 42.0,
            self.body,
        )
    }
}

/// The classes of a line's pattern: dashed where that was asked for, and another pattern for each
/// further use of a colour.
pub(crate) fn dash(index: usize, dashed: bool) -> &'static str {
    match (index / COLOURS % 3, dashed) {
        (0, false) => "",
        (0, true) => " dash",
        (1, false) => " dot",
        (1, true) => " dash dot",
        (_, false) => " wide",
        (_, true) => " dash wide",
    }
}

//! Self-contained HTML reports: text, tables, line and bar plots as SVG. One file, no script,
//! nothing from elsewhere; it opens offline, in light and dark, and prints.
//!
//! This crate may know how numbers are shown to people. It must not know what they mean.
//!
//! | module | concept |
//! |---|---|
//! | [`axis`] | [`Axis`]: scale, ticks, how numbers are written |
//! | [`plot`] | [`Plot`]: lines over a numeric axis |
//! | [`bars`] | [`Bars`]: groups or stacks over named categories |
//! | [`table`] | [`Table`] |
//!
//! ```
//! use report::{Axis, Plot, Report, Series, Unit};
//! let curve = Plot::new("Hit ratio by cache size", Axis::log("cache", Unit::Bytes), Axis::new("hits", Unit::Percent))
//!     .series(Series::new("LRU", [(1048576.0, 12.5), (2097152.0, 30.0)]));
//! let page = Report::new("A cache").text("One policy.").plot(curve).render();
//! assert!(page.starts_with("<!doctype html>"));
//! ```

pub mod axis;
pub mod bars;
mod html;
pub mod plot;
mod svg;
pub mod table;

pub use axis::{Axis, Unit};
pub use bars::Bars;
pub use html::escape;
pub use plot::{Plot, Series};
pub use table::Table;

use html::STYLE;

/// A page, built from the top.
#[derive(Clone, Debug)]
pub struct Report {
    title: String,
    body: String,
}

impl Report {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), body: String::new() }
    }

    /// A heading of a section.
    #[must_use]
    pub fn heading(mut self, text: &str) -> Self {
        self.body.push_str(&format!("<h2>{}</h2>\n", escape(text)));
        self
    }

    /// A paragraph.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.body.push_str(&format!("<p>{}</p>\n", escape(text)));
        self
    }

    /// Labels and their values, such as the main results, side by side.
    #[must_use]
    pub fn facts<L: AsRef<str>, V: AsRef<str>>(
        mut self,
        facts: impl IntoIterator<Item = (L, V)>,
    ) -> Self {
        self.body.push_str("<dl>\n");
        for (label, value) in facts {
            let (label, value) = (escape(label.as_ref()), escape(value.as_ref()));
            self.body.push_str(&format!("<div><dt>{label}</dt><dd>{value}</dd></div>\n"));
        }
        self.body.push_str("</dl>\n");
        self
    }

    /// A table.
    #[must_use]
    pub fn table(mut self, table: &Table) -> Self {
        self.body.push_str(&table.html());
        self
    }

    /// Text as it stands, such as lines of a configuration.
    #[must_use]
    pub fn preformatted(mut self, text: &str) -> Self {
        self.body.push_str(&format!("<pre>{}</pre>\n", escape(text)));
        self
    }

    /// A line plot.
    #[must_use]
    pub fn plot(mut self, plot: Plot) -> Self {
        self.body.push_str(&plot.html());
        self
    }

    /// A bar plot.
    #[must_use]
    pub fn bars(mut self, bars: Bars) -> Self {
        self.body.push_str(&bars.html());
        self
    }

    /// The page.
    pub fn render(&self) -> String {
        let title = escape(&self.title);
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style></head>\n\
             <body><main>\n<h1>{title}</h1>\n{}</main></body></html>\n",
            self.body
        )
    }
}

#[cfg(test)]
mod tests;

//! What commands print on stdout: one JSON document, or text and aligned tables for people.

use block::{Error, Result};
pub(crate) use engine::world::moment;
use serde::Serialize;
use std::io::Write;

/// Whether the user wants JSON or text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Output {
    Json,
    Text,
}

impl Output {
    /// Prints `value` as JSON, or what `text` makes of it.
    pub(crate) fn print<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        let mut all = match self {
            Self::Json => serde_json::to_string_pretty(value)
                .map_err(|e| Error::internal("cannot write the result as JSON").with_source(e))?,
            Self::Text => text(),
        };
        if !all.ends_with('\n') {
            all.push('\n');
        }
        raw(all.as_bytes())
    }

    /// Says that something was done: a line, or `{"done": …}`.
    pub(crate) fn done(self, what: &str) -> Result<()> {
        #[derive(Serialize)]
        struct Done<'a> {
            done: &'a str,
        }
        self.print(&Done { done: what }, || what.to_owned())
    }
}

/// Writes bytes to stdout. A reader that went away (`| head`) is not an error.
pub(crate) fn raw(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(Error::io("stdout", e)),
        Ok(()) => Ok(()),
    }
}

/// A table with a header; columns are as wide as their widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these columns; one whose title starts with `>` is aligned to the right.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let right = columns.iter().map(|c| c.starts_with('>')).collect();
        let titles = columns.iter().map(|c| c.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![titles], right }
    }

    /// Adds a row with as many cells as there are columns.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| visible(&cell)).collect());
    }

    /// The lines, without blanks at their ends.
    pub(crate) fn render(&self) -> String {
        self.render_within(usize::MAX, &[])
    }

    /// The lines, without as many of the columns with these titles, from the first, as are too many for
    /// that width. A table that is still wider than that is given as it is.
    pub(crate) fn render_within(&self, columns: usize, spare: &[&str]) -> String {
        const BETWEEN: usize = 2;
        let width = |column: usize| {
            self.rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.right.len()).filter_map(width).collect();
        let mut shown = vec![true; widths.len()];
        for title in spare {
            let kept = widths.iter().zip(&shown).filter(|(_, shown)| **shown);
            if kept.map(|(width, _)| width + BETWEEN).sum::<usize>()
                <= columns.saturating_add(BETWEEN)
            {
                break;
            }
            for (shown, cell) in shown.iter_mut().zip(&self.rows[0]) {
                *shown &= cell != title;
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            let cells = row.iter().zip(&widths).zip(&self.right).zip(&shown);
            for (((cell, width), right), _) in cells.filter(|(_, shown)| **shown) {
                let cell =
                    if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line.push_str(&cell);
                line.push_str(&" ".repeat(BETWEEN));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Text that came from elsewhere, as a terminal may have it: control characters, and those that hide
/// or turn round what stands beside them, are written as `\\u{1b}`.
pub(crate) fn visible(text: &str) -> String {
    let safe = |c: char| {
        let hides = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        !hides && !c.is_control()
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if safe(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_unicode());
        }
    }
    shown
}

/// Pairs of a label and a value, one a line, values aligned.
pub(crate) fn fields(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(label, _)| label.len()).max().unwrap_or(0) + 1;
    pairs
        .iter()
        .map(|(label, value)| format!("{:<width$} {}\n", format!("{label}:"), visible(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_numbers_stand_right() {
        let mut table = Table::new(&["name", ">size"]);
        table.row(["a".into(), "10".into()]);
        table.row(["longer".into(), "5".into()]);
        assert_eq!(table.render(), "name    size\na         10\nlonger     5\n");
    }

    #[test]
    fn a_narrow_table_goes_without_what_can_be_spared_and_no_more() {
        let mut table = Table::new(&["name", ">size", ">age", "state"]);
        table.row(["a".into(), "10".into(), "7".into(), "ok".into()]);
        let titles = |columns| {
            let text = table.render_within(columns, &["age", "size"]);
            text.lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(titles(22), "name  size  age  state");
        assert_eq!(titles(21), "name  size  state");
        assert_eq!(titles(16), "name  state");
        assert_eq!(titles(5), "name  state");
    }

    #[test]
    fn what_came_from_elsewhere_does_nothing_to_the_terminal() {
        let mut table = Table::new(&["name"]);
        table.row(["a\u{1b}[2J\nb\u{202e}\u{9b}é".into()]);
        assert_eq!(table.render(), "name\na\\u{1b}[2J\\u{a}b\\u{202e}\\u{9b}é\n");
        assert_eq!(fields(&[("x", "\u{7}".into())]), "x: \\u{7}\n");
    }
}

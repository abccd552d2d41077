//! Tables.

use crate::html::escape;

/// A table with a header.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; one whose title starts with `>` is aligned to the right.
    pub fn new<T: AsRef<str>>(columns: impl IntoIterator<Item = T>) -> Self {
        let column = |title: T| match title.as_ref().strip_prefix('>') {
            Some(title) => (title.to_owned(), true),
            None => (title.as_ref().to_owned(), false),
        };
        Self { columns: columns.into_iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row. Cells beyond the columns are left out.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) -> &mut Self {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }

    pub(crate) fn html(&self) -> String {
        let class = |right: &bool| if *right { " class=\"r\"" } else { "" };
        let mut html = String::from("<div class=\"scroll\"><table>\n<tr>");
        for (title, right) in &self.columns {
            html.push_str(&format!("<th{}>{}</th>", class(right), escape(title)));
        }
        html.push_str("</tr>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for ((_, right), cell) in self.columns.iter().zip(row) {
                html.push_str(&format!("<td{}>{}</td>", class(right), escape(cell)));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</table></div>\n");
        html
    }
}

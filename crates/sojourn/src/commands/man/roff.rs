//! Text as manual pages have it.

use std::fmt::Write;

/// Text in which nothing is an instruction.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (index, line) in text.lines().enumerate() {
        if index > 0 {
            plain.push('\n');
        }
        if line.starts_with(['.', '\'']) {
            plain.push_str("\\&");
        }
        for c in line.chars() {
            match c {
                '\\' => plain.push_str("\\e"),
                '-' => plain.push_str("\\-"),
                _ => plain.push(c),
            }
        }
    }
    plain
}

/// The heading of a section.
pub(super) fn section(page: &mut String, title: &str) {
    let _ = writeln!(page, ".SH {}", quoted(title));
}

/// A paragraph.
pub(super) fn paragraph(page: &mut String, text: &str) {
    let _ = writeln!(page, ".PP\n{}", plain(text));
}

/// A term, and what it is.
pub(super) fn term(page: &mut String, term: &str, text: &str) {
    let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", plain(term), plain(text));
}

/// Other pages, by their names and sections.
pub(super) fn pages<'a>(page: &mut String, names: impl Iterator<Item = (&'a str, u8)>) {
    let names: Vec<String> =
        names.map(|(name, section)| format!("\\fB{}\\fR({section})", plain(name))).collect();
    let _ = writeln!(page, ".PP\n{}", names.join(",\n"));
}

/// An argument of an instruction.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", plain(text).replace('"', "\\(dq").replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_an_instruction() {
        assert_eq!(plain(".TH a\\b\n'x --y"), "\\&.TH a\\eb\n\\&'x \\-\\-y");
        assert_eq!(quoted("a \"b\"\nc"), "\"a \\(dqb\\(dq c\"");
    }
}

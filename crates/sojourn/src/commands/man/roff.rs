//! Text as manual pages have it.

use std::fmt::Write;

/// Escapes a text so that nothing in it is an instruction.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for (index, line) in text.lines().enumerate() {
        if index > 0 {
            escaped.push('\n');
        }
        if line.starts_with(['.', '\'']) {
            escaped.push_str("\\&");
        }
        for c in line.chars() {
            match c {
                '\\' => escaped.push_str("\\e"),
                '-' => escaped.push_str("\\-"),
                _ => escaped.push(c),
            }
        }
    }
    escaped
}

/// The heading of a section.
pub(super) fn section(page: &mut String, title: &str) {
    let _ = writeln!(page, ".SH {}", quoted(title));
}

/// A paragraph.
pub(super) fn paragraph(page: &mut String, text: &str) {
    let _ = writeln!(page, ".PP\n{}", escaped(text));
}

/// A term, and what it is.
pub(super) fn term(page: &mut String, term: &str, text: &str) {
    let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(term), escaped(text));
}

/// Other pages, by their names and sections.
pub(super) fn pages<'a>(page: &mut String, names: impl Iterator<Item = (&'a str, u8)>) {
    let names: Vec<String> =
        names.map(|(name, section)| format!("\\fB{}\\fR({section})", escaped(name))).collect();
    let _ = writeln!(page, ".PP\n{}", names.join(",\n"));
}

/// An argument of an instruction.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text).replace('"', "\\(dq").replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_an_instruction() {
        assert_eq!(escaped(".TH a\\b\n'x --y"), "\\&.TH a\\eb\n\\&'x \\-\\-y");
        assert_eq!(quoted("a \"b\"\nc"), "\"a \\(dqb\\(dq c\"");
    }
}

//! What a command printed beside what its page shows: words are the same, numbers, times and sizes need not be.

/// Units that may differ with the number before them.
const UNITS: [&str; 17] = [
    "B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "ns", "us", "ms", "s", "h", "d", "%",
    "seconds", "bytes",
];

/// The first line of the page that was not printed, behind the ones before it. Lines beside them may be printed, as a
/// page need not show all of a table; one that ends in `...` or `…` is the beginning of what was printed.
pub(crate) fn missing<'a>(shown: &'a [String], printed: &str) -> Option<&'a str> {
    let printed: Vec<String> = printed.lines().map(normalized).collect();
    let mut rest = printed.iter();
    shown.iter().filter(|line| !line.trim().is_empty()).map(String::as_str).find(|line| {
        let wanted = normalized(line);
        let begins = wanted.strip_suffix("...").or_else(|| wanted.strip_suffix('…'));
        !rest.any(|line| match begins {
            Some(begins) => line.starts_with(begins.trim_end()),
            None => *line == wanted,
        })
    })
}

/// A line with one blank between words, and `#` in the place of every number with its unit.
fn normalized(line: &str) -> String {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut normalized = String::new();
    let mut rest = line.as_str();
    while let Some(next) = rest.chars().next() {
        if !next.is_ascii_digit() {
            normalized.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        }
        normalized.push('#');
        rest = behind_unit(behind_number(rest));
    }
    normalized
}

/// What follows the number that a text begins with. Points, colons and the like belong to it where digits follow them.
fn behind_number(text: &str) -> &str {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    while digit(end)
        || (bytes.get(end).is_some_and(|byte| b".,:-".contains(byte)) && digit(end + 1))
    {
        end += 1;
    }
    &text[end..]
}

/// What follows the unit that a text begins with, if it does.
fn behind_unit(text: &str) -> &str {
    let unit = text.strip_prefix(' ').unwrap_or(text);
    let end = unit.find(|c: char| !c.is_alphabetic() && c != '%').unwrap_or(unit.len());
    if UNITS.contains(&&unit[..end]) { &unit[end..] } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_their_units_may_differ_and_words_may_not() {
        assert_eq!(normalized("work@5: safe in 0.41 s; 61.4MiB go"), "work@#: safe in #; # go");
        assert_eq!(normalized("  a   2026-11-20 09:12"), "a # #");
        assert_eq!(normalized("3 sheep"), "# sheep");
        let shown = ["took 3 ms".to_owned(), String::new(), "work  2GiB   made ...".to_owned()];
        assert_eq!(missing(&shown, "took 2.5 s\nmore\nwork 14 B made at noon\n"), None);
        assert_eq!(
            missing(&shown, "work 14 B made at noon\ntook 2.5 s\n"),
            Some("work  2GiB   made ...")
        );
        assert_eq!(missing(&shown, "takes 2.5 s\nwork 14 B made at noon\n"), Some("took 3 ms"));
    }
}

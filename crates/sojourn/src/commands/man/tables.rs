//! Tables of the documentation, for the pages that say the same.

/// docs/config.md.
pub(super) const CONFIGURATION: &str = include_str!("../../../../../docs/config.md");
/// docs/cli.md.
const COMMAND_LINE: &str = include_str!("../../../../../docs/cli.md");

/// Exit codes: the number, and the kind with what it means.
pub(super) fn exit_codes() -> Vec<(String, String)> {
    let rows = rows(COMMAND_LINE, "| code | kind | meaning |");
    let code = |row: Vec<String>| match row.as_slice() {
        [code, kind, meaning] if kind.is_empty() => Some((code.clone(), meaning.clone())),
        [code, kind, meaning] => Some((code.clone(), format!("{kind}: {meaning}"))),
        _ => None,
    };
    rows.into_iter().filter_map(code).collect()
}

/// The rows of the table with this header, without their markup.
pub(super) fn rows(page: &str, header: &str) -> Vec<Vec<String>> {
    let rows = page.lines().skip_while(|line| *line != header).skip(2);
    rows.take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').trim_end_matches('|');
    // A bar inside of a cell is escaped.
    let row = row.replace("\\|", "\u{1}");
    row.split('|').map(|cell| unmarked(cell.trim()).replace('\u{1}', "|")).collect()
}

/// Text without the marks of links and code.
pub(super) fn unmarked(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('[') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let link = from[1..].split_once("](").and_then(|(words, behind)| {
            let (_, behind) = behind.split_once(')')?;
            (!words.contains([']', '['])).then_some((words, behind))
        });
        match link {
            Some((words, behind)) => {
                plain.push_str(words);
                rest = behind;
            }
            None => {
                plain.push('[');
                rest = &from[1..];
            }
        }
    }
    plain.push_str(rest);
    plain.replace(['`', '*'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_without_its_markup() {
        let page = "x\n| a | b |\n|---|---|\n| `k` | [words](x.md#y) and `[]`, c\\|d |\n\nend\n";
        assert_eq!(rows(page, "| a | b |"), [["k", "words and [], c|d"]]);
    }

    #[test]
    fn the_documentation_has_all_exit_codes() {
        let codes = exit_codes();
        assert_eq!(codes.len(), 11);
        assert_eq!(codes[2].0, "2");
        assert!(codes[2].1.starts_with("invalid: "), "{codes:?}");
    }
}

//! All mistakes of a configuration's text. A parser stops at the first one; so what is wrong is taken out and the rest
//! is read again, until all of it can be read.

use super::{Examined, layout};
use engine::Config;
use serde::Serialize;

/// More mistakes than these are not looked for.
const MOST: usize = 100;

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Mistake {
    /// From 1; null when it is about the file as a whole.
    pub(crate) line: Option<usize>,
    /// What is wrong, and what to do.
    pub(crate) text: String,
}

/// The mistakes of a text, and what the rest of it says.
pub(super) fn find(text: &str) -> Examined {
    let mut mistakes = Vec::new();
    let mut rest = text.to_owned();
    // A line that is no TOML, the last one of these.
    let mut unreadable: Option<usize> = None;
    while mistakes.len() < MOST {
        let error = match Config::parse(&rest) {
            Ok(config) => return Examined { mistakes, config: Some(config) },
            Err(error) => error,
        };
        let message = error.message();
        let Some((line, what)) = numbered(message) else {
            let (line, without) = taken_out(&rest, message);
            mistakes.push(Mistake { line, text: message.to_owned() });
            match without {
                Some(without) => rest = without,
                None => break,
            }
            continue;
        };
        let is_toml = toml::from_str::<toml::Table>(&rest).is_ok();
        // What is left of something unreadable is not another mistake.
        if !is_toml && unreadable.is_some_and(|last| next_line(&rest, last) == Some(line)) {
            mistakes.push(Mistake {
                line: Some(line),
                text: "from here on nothing can be read before the mistake above is mended"
                    .to_owned(),
            });
            break;
        }
        mistakes.push(Mistake { line: Some(line), text: what.to_owned() });
        let said = rest.lines().nth(line - 1).unwrap_or_default().trim();
        let twice = what.contains(" already: ");
        unreadable = (!is_toml && !twice).then_some(line);
        let names_section = said.starts_with('[') && !said.contains('=');
        let gone = if names_section && (is_toml || twice) {
            let section = layout::section_at(&rest, line);
            if twice {
                // What is in the second section of a name is looked at alone.
                let before = layout::without(&rest, 1..section.start);
                let alone = layout::without(&before, section.end..rest.lines().count() + 1);
                mistakes.extend(find(&alone).mistakes);
            }
            section
        } else {
            let holds = |s: &layout::Statement| s.lines.contains(&line);
            let statement = layout::statements(&rest).into_iter().find(holds);
            match statement {
                Some(statement) if !stands_alone(&rest, line) => statement.lines,
                _ => line..line + 1,
            }
        };
        let without = layout::without(&rest, gone);
        if without.trim_end() == rest.trim_end() {
            break;
        }
        rest = without;
    }
    Examined { mistakes, config: None }
}

/// The line that an error names, and the rest of what it says.
fn numbered(message: &str) -> Option<(usize, &str)> {
    let rest = message.strip_prefix("line ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let line = rest[..digits].parse::<usize>().ok().filter(|line| *line > 0)?;
    // The line itself is repeated in between; what is wrong follows.
    let what = rest[digits..].split_once("`): ").map_or(&rest[digits..], |(_, what)| what);
    Some((line, what.trim_start_matches(": ")))
}

/// The line of what a message speaks of by its key or number, and the text without it.
fn taken_out(text: &str, message: &str) -> (Option<usize>, Option<String>) {
    if let Some(number) = message.strip_prefix("access rule ") {
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        let number: usize = number[..digits].parse().unwrap_or_default();
        if let Some(bytes) = layout::rule(text, number) {
            let line = text[..bytes.start].matches('\n').count() + 1;
            return (Some(line), Some(layout::blanked(text, bytes)));
        }
        let tables = layout::statements(text).into_iter();
        let mut rules = tables.filter(|s| s.of_many && s.section == "access");
        return match number.checked_sub(1).and_then(|index| rules.nth(index)) {
            Some(rule) => {
                let line = rule.lines.start;
                let section = layout::section_at(text, line);
                (Some(line), Some(layout::without(text, section)))
            }
            None => (None, None),
        };
    }
    let key = message.split(':').next().unwrap_or_default();
    match layout::statement_of(text, key) {
        Some(statement) => {
            let without = layout::without(text, statement.lines.clone());
            (Some(statement.lines.start), Some(without))
        }
        None => (None, None),
    }
}

/// The first line behind this one with anything on it.
fn next_line(text: &str, line: usize) -> Option<usize> {
    let something =
        |(_, said): &(usize, &str)| !said.trim().is_empty() && !said.trim().starts_with('#');
    text.lines().enumerate().skip(line).find(something).map(|(index, _)| index + 1)
}

/// Whether a line can be taken out of what it is in: as many brackets end on it as begin, and it has no key of more
/// lines.
fn stands_alone(text: &str, line: usize) -> bool {
    let said = text.lines().nth(line - 1).unwrap_or_default();
    let count = |wanted: &[char]| said.matches(wanted).count();
    let balanced = count(&['[', '{']) == count(&[']', '}']);
    let first = layout::statements(text).iter().any(|s| s.lines.start == line && s.lines.len() > 1);
    balanced && !first
}

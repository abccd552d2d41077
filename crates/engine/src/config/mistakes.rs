//! What a configuration that cannot be read was meant to be: the line, what is wrong, and what to do.

use super::Config;
use block::Error;

/// The characters of a line that are repeated in an error.
const SHOWN: usize = 80;

/// What is wrong with the text.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> Error {
    let line = error.span().map_or(1, |span| line_of(text, span.start));
    let said = text.lines().nth(line - 1).map(str::trim).unwrap_or_default();
    let why = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    let remedy = above_sections(text, line, &why)
        .or_else(|| twice(text, line, said))
        .unwrap_or_else(|| format!("{why}; see docs/config.md"));
    let said: String = said.chars().take(SHOWN).collect();
    Error::invalid(format!("line {line} (`{said}`): {remedy}"))
}

/// The line of a byte, from 1.
fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes().iter().take(byte).filter(|b| **b == b'\n').count() + 1
}

/// A key of the whole file that stands below a section's name, and so belongs to the section.
fn above_sections(text: &str, line: usize, why: &str) -> Option<String> {
    let key = why.strip_prefix("unknown field `")?.split('`').next()?;
    let first = text.lines().position(is_section)? + 1;
    let section = text.lines().take(line).filter(|line| is_section(line)).last()?.trim();
    // A section's name is no key, and a file that has the key alone says no more than that its value is bad.
    let alone = toml::from_str::<Config>(&format!("{key} = 0\n")).err()?;
    if alone.message().starts_with("unknown field") || alone.message().contains("struct") {
        return None;
    }
    Some(format!(
        "`{key}` is no key of {section}: it must stand above the first section, which begins on line {first}"
    ))
}

/// A section or a key that is there already.
fn twice(text: &str, line: usize, said: &str) -> Option<String> {
    let name = |line: &str| -> Option<String> {
        let line = line.split('#').next()?.trim();
        match is_section(line) {
            true => Some(line.to_owned()),
            false => line.split_once('=').map(|(key, _)| key.trim().to_owned()),
        }
    };
    let wanted = name(said)?;
    let begins = match is_section(&wanted) {
        // All the file before it.
        true => 0,
        // Its own section.
        false => {
            text.lines().take(line - 1).collect::<Vec<_>>().iter().rposition(|l| is_section(l))?
        }
    };
    let before = text.lines().take(line - 1).skip(begins);
    let earlier = before.enumerate().find(|(_, line)| name(line).as_ref() == Some(&wanted))?.0;
    let earlier = begins + earlier + 1;
    Some(match is_section(&wanted) && !wanted.starts_with("[[") {
        true => format!("{wanted} is on line {earlier} already: put its keys there"),
        false if is_section(&wanted) => return None,
        false => format!("`{wanted}` is set on line {earlier} already: keep one of the two"),
    })
}

fn is_section(line: &str) -> bool {
    line.trim_start().starts_with('[') && !line.contains('=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(text: &str) -> String {
        Config::parse(text).unwrap_err().message().to_owned()
    }

    #[test]
    fn a_key_of_the_whole_file_below_a_section_is_sent_above_it() {
        let error = said("store = \"s\"\n\n[serve]\ntls = \"required\"\naccess = []\n");
        assert!(
            error.starts_with("line 5 (`access = []`): `access` is no key of [serve]"),
            "{error}"
        );
        assert!(error.contains("above the first section, which begins on line 3"), "{error}");
        let error = said("[cache]\n[log]\nkey_file = \"k\"\n");
        assert!(
            error.contains("`key_file` is no key of [log]") && error.contains("line 1"),
            "{error}"
        );
        // Not a key of the file, nor what is a section.
        for other in ["sise = 3", "serve = 3"] {
            let error = said(&format!("[cache]\n{other}\n"));
            assert!(error.contains("unknown field"), "{error}");
        }
    }

    #[test]
    fn a_second_section_or_key_is_told_where_the_first_is() {
        let error = said("[serve]\ntls = \"off\"\n[cache]\n[serve] # again\nstop_seconds = 3\n");
        assert!(
            error.contains("line 4") && error.contains("[serve] is on line 1 already"),
            "{error}"
        );
        let error = said("[cache]\nsize = 1\n[pieces]\nsize = 0\ndir = \"d\"\nsize = 0\n");
        assert!(error.contains("line 6") && error.contains("`size` is set on line 4"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_panics(lines in proptest::collection::vec(
            "(\\[{0,2}[a-z]{0,5}\\]{0,2}|store = 1|size = [0-9]|serve|access = \\[|.{0,20})", 0..8)) {
            let _ = Config::parse(&lines.join("\n"));
        }
    }
}

//! A page of the documentation: its fenced blocks, the commands in them, and which of these are not run.
//!
//! A block, or some of its lines, are not run when a comment right above it says why:
//! `<!-- not run: needs root -->`, `<!-- not run, line 2: needs root -->`, `<!-- not run, lines 2-4: … -->`.

use std::ops::RangeInclusive;

/// The languages of blocks. The first two have commands, and so has a block that names none.
const LANGUAGES: [&str; 8] = ["sh", "console", "toml", "json", "xml", "python", "ini", "text"];

/// A fenced block.
#[derive(Debug, PartialEq)]
pub(crate) struct Block {
    /// The line of its fence in the page, from 1.
    pub(crate) line: usize,
    /// The language that its fence names.
    pub(crate) language: String,
    /// What is in it.
    pub(crate) lines: Vec<String>,
    /// What of it is not run.
    pub(crate) left_out: Vec<LeftOut>,
}

/// Lines of a block that are not run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LeftOut {
    /// Lines of the block, from 1.
    pub(crate) lines: RangeInclusive<usize>,
    /// Why.
    pub(crate) why: String,
}

/// A command of a block.
#[derive(Debug, PartialEq)]
pub(crate) struct Step {
    /// Its first line in the page, from 1.
    pub(crate) line: usize,
    /// The host that the prompt names; empty for the one that pages are about.
    pub(crate) host: String,
    /// What is typed, of several lines where it goes on behind a backslash.
    pub(crate) command: String,
    /// The lines that the page shows below it.
    pub(crate) output: Vec<String>,
    /// Why it is not run, if so.
    pub(crate) left_out: Option<String>,
}

/// The blocks of a page.
///
/// # Errors
/// With the line, when a block has no end or no language that is known, or a marker is no marker.
pub(crate) fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut markers: Vec<(usize, &str)> = Vec::new();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            match line.strip_prefix("<!-- not run") {
                Some(marker) => markers.push((number, marker)),
                None if markers.is_empty() => {}
                None => return Err(format!("{number}: a marker stands right above a block")),
            }
            continue;
        };
        let named = LANGUAGES.contains(&language);
        if !named && !language.is_empty() {
            return Err(format!("{number}: a block names one of {LANGUAGES:?}, not {language:?}"));
        }
        let mut inside = Vec::new();
        loop {
            match lines.next() {
                Some((_, line)) if line.trim() == "```" => break,
                Some((_, line)) => inside.push(line.to_owned()),
                None => return Err(format!("{number}: the block has no end")),
            }
        }
        let left_out = markers.drain(..).map(|(line, text)| {
            left_out(text, inside.len()).ok_or_else(|| {
                format!("{line}: <!-- not run: WHY -->, or <!-- not run, lines A-B: WHY -->")
            })
        });
        let left_out = left_out.collect::<Result<_, _>>()?;
        let prompted = inside.first().is_some_and(|line| prompt(line).is_some());
        let language = match language {
            "" if prompted => "console",
            "" => "sh",
            named => named,
        };
        let language = language.to_owned();
        blocks.push(Block { line: number, language, lines: inside, left_out });
    }
    Ok(blocks)
}

/// What a marker says, but for its first words, about a block of so many lines.
fn left_out(marker: &str, lines: usize) -> Option<LeftOut> {
    let (which, why) = marker.strip_suffix("-->")?.split_once(": ")?;
    let why = why.trim().to_owned();
    let number = |text: &str| text.parse().ok().filter(|line| (1..=lines).contains(line));
    let lines = match which.strip_prefix(", line") {
        None if which.is_empty() => 1..=lines,
        None => return None,
        Some(which) => match which.strip_prefix('s') {
            None => number(which.trim())?..=number(which.trim())?,
            Some(range) => {
                let (from, to) = range.trim().split_once('-')?;
                number(from)?..=number(to)?
            }
        },
    };
    (!why.is_empty() && !lines.is_empty()).then_some(LeftOut { lines, why })
}

impl Block {
    /// Whether there are commands in it.
    pub(crate) fn has_commands(&self) -> bool {
        matches!(self.language.as_str(), "sh" | "console")
    }

    /// The commands in it.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut goes_on = false;
        for (index, line) in self.lines.iter().enumerate() {
            let typed = match self.language.as_str() {
                "sh" if line.trim().is_empty() || line.starts_with('#') => continue,
                "sh" => Some(("", line.as_str())),
                _ => prompt(line),
            };
            match (typed, steps.last_mut()) {
                (_, Some(step)) if goes_on => {
                    step.command.push('\n');
                    step.command.push_str(line);
                }
                (Some((host, command)), _) => {
                    let left_out =
                        self.left_out.iter().find(|one| one.lines.contains(&(index + 1)));
                    steps.push(Step {
                        line: self.line + 1 + index,
                        host: host.to_owned(),
                        command: command.trim_start().to_owned(),
                        output: Vec::new(),
                        left_out: left_out.map(|one| one.why.clone()),
                    });
                }
                (None, Some(step)) => step.output.push(line.clone()),
                (None, None) => {}
            }
            goes_on = (goes_on || typed.is_some()) && line.ends_with('\\');
        }
        steps
    }
}

/// The host and the command of a line that begins with a prompt, such as `$ ` or `there$ `.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (host, command) = line.split_once("$ ")?;
    host.bytes().all(|byte| byte.is_ascii_lowercase()).then_some((host, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_taken_apart() {
        let text = "words\n\n<!-- not run, line 2: because -->\n```sh\n# first\none \\\n  more\ntwo\n```\n\
                    ```console\n$ three\nsaid\nthere$ four\n```\n";
        let blocks = blocks(text).unwrap();
        assert_eq!((blocks[0].line, blocks[1].line), (4, 10));
        let first = blocks[0].steps();
        assert_eq!(first[0].command, "one \\\n  more");
        assert_eq!((first[0].line, first[0].left_out.as_deref()), (6, Some("because")));
        assert_eq!((first[1].line, first[1].left_out.as_deref()), (8, None));
        let second = blocks[1].steps();
        assert_eq!(
            (second[0].command.as_str(), second[0].output.as_slice()),
            ("three", &["said".to_owned()][..])
        );
        assert_eq!((second[1].host.as_str(), second[1].line), ("there", 13));
    }

    #[test]
    fn a_marker_that_says_nothing_is_refused() {
        for marker in [
            "not run: ",
            "not run",
            "not run, line 3: x",
            "not run, lines 2-1: x",
            "not run, line: x",
        ] {
            let text = format!("<!-- {marker} -->\n```sh\none\ntwo\n```\n");
            assert!(blocks(&text).is_err(), "{marker}");
        }
        assert!(blocks("<!-- not run: x -->\n\n```sh\none\n```\n").is_err(), "not right above");
        assert!(blocks("```perl\none\n```\n").unwrap_err().contains("names one of"), "no language");
        assert!(blocks("```sh\none\n").unwrap_err().contains("no end"));
    }
}

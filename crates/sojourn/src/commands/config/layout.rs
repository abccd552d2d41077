//! Where sections, keys and rules stand in the text of a configuration. What the text means is TOML's to say; this
//! finds the lines of what is known to be there, and takes them out.

use std::ops::Range;

/// A key with its value, or the name of a section, of one or several lines.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Statement {
    /// From its first line, from 1, to behind its last one.
    pub(super) lines: Range<usize>,
    /// The section that it is in; of a section's name that section.
    pub(super) section: String,
    /// Its key; none for a section's name.
    pub(super) key: Option<String>,
    /// Whether it is the name of one of several equal sections, as `[[throttle]]`.
    pub(super) of_many: bool,
}

/// The statements of a text, in order.
pub(super) fn statements(text: &str) -> Vec<Statement> {
    let mut all = Vec::new();
    let mut section = String::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let mut state = OpenDelimiters::default();
        state.line(line);
        let said = line.trim();
        if said.is_empty() || said.starts_with('#') {
            continue;
        }
        let mut end = index + 1;
        let (mut key, mut of_many) = (None, false);
        match said.strip_prefix('[') {
            Some(name) => {
                of_many = name.starts_with('[');
                let name = name.split('#').next().unwrap_or_default();
                section = name.trim().trim_matches(['[', ']']).trim().to_owned();
            }
            None => {
                key = said.split_once('=').map(|(key, _)| bare(key));
                while state.is_open() {
                    let Some((_, line)) = lines.next() else { break };
                    state.line(line);
                    end += 1;
                }
            }
        }
        all.push(Statement { lines: index + 1..end + 1, section: section.clone(), key, of_many });
    }
    all
}

/// A key without its quotes and the blanks around its dots.
fn bare(key: &str) -> String {
    key.split('.').map(|part| part.trim().trim_matches(['"', '\''])).collect::<Vec<_>>().join(".")
}

impl Statement {
    /// The key from the top of the file, such as `cache.size`.
    pub(super) fn path(&self) -> Option<String> {
        let key = self.key.as_ref()?;
        Some(if self.section.is_empty() { key.clone() } else { format!("{}.{key}", self.section) })
    }
}

/// The line on which a key such as `cache.size` is set, or the section or table that it is in.
pub(super) fn line_of(text: &str, path: &str) -> Option<usize> {
    statement_of(text, path).map(|statement| statement.lines.start)
}

/// The statement that sets a key such as `cache.size`.
pub(super) fn statement_of(text: &str, path: &str) -> Option<Statement> {
    let all = statements(text);
    let is = |statement: &&Statement| statement.path().as_deref() == Some(path);
    // `cache = { size = 1 }`, and the name of a section that is a list's.
    let around = |statement: &&Statement| {
        let holds = |(table, key): (&str, &str)| {
            let said = text.lines().skip(statement.lines.start - 1).take(statement.lines.len());
            statement.path().as_deref() == Some(table)
                && said.into_iter().any(|line| line.contains(key))
        };
        let of_list = statement.of_many && statement.section == path;
        of_list || path.split_once('.').is_some_and(holds)
    };
    all.iter().find(is).or_else(|| all.iter().find(around)).cloned()
}

/// The text with these lines, from 1, made empty.
pub(super) fn without(text: &str, lines: Range<usize>) -> String {
    let kept = text.lines().enumerate().map(|(index, line)| match lines.contains(&(index + 1)) {
        true => "\n".to_owned(),
        false => format!("{line}\n"),
    });
    kept.collect()
}

/// The lines of a section, from the line of its name to the next section's.
pub(super) fn section_at(text: &str, line: usize) -> Range<usize> {
    let next = statements(text).into_iter().find(|s| s.key.is_none() && s.lines.start > line);
    line..next.map_or(text.lines().count() + 1, |s| s.lines.start)
}

/// The bytes of the rule of this number, from 1, in the list `access = [{…}, {…}]`, with the comma behind it.
pub(super) fn rule(text: &str, number: usize) -> Option<Range<usize>> {
    let list = statements(text).into_iter().find(|s| s.path().as_deref() == Some("access"))?;
    let begins =
        |line: usize| text.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
    let (from, to) = (begins(list.lines.start), begins(list.lines.end));
    let mut scan = OpenDelimiters::default();
    let (mut depth, mut seen, mut start) = (0_usize, 0, None);
    for (at, c) in text[from..to].char_indices() {
        if !scan.take(c) {
            continue;
        }
        match c {
            '{' => {
                depth += 1;
                if depth == 1 {
                    seen += 1;
                    start = (seen == number).then_some(from + at);
                }
            }
            '}' => {
                depth = depth.saturating_sub(1);
                if let Some(start) = start.filter(|_| depth == 0) {
                    let end = from + at + 1;
                    let rest = &text[end..];
                    let comma = rest.trim_start().starts_with(',');
                    let gap = rest.len() - rest.trim_start().len();
                    return Some(start..if comma { end + gap + 1 } else { end });
                }
            }
            _ => {}
        }
    }
    None
}

/// The text with these bytes made blanks; ends of lines stay.
pub(super) fn blanked(text: &str, bytes: Range<usize>) -> String {
    let blank = |c: char| if c == '\n' { "\n".to_owned() } else { " ".repeat(c.len_utf8()) };
    let middle: String = text[bytes.clone()].chars().map(blank).collect();
    [&text[..bytes.start], &middle, &text[bytes.end..]].concat()
}

/// What is open while a text is read: brackets and strings.
#[derive(Debug, Default)]
struct OpenDelimiters {
    open: usize,
    /// The quote of the string, and whether the next character is taken as it is.
    string: Option<(char, bool)>,
    comment: bool,
}

impl OpenDelimiters {
    /// Takes a character; says whether it is none of a string or comment.
    fn take(&mut self, c: char) -> bool {
        if c == '\n' {
            // No string of ours goes over a line's end.
            (self.comment, self.string) = (false, None);
            return true;
        }
        if self.comment {
            return false;
        }
        match self.string {
            Some((quote, true)) => self.string = Some((quote, false)),
            Some(('"', false)) if c == '\\' => self.string = Some(('"', true)),
            Some((quote, false)) if c == quote => self.string = None,
            Some(_) => {}
            None => match c {
                '"' | '\'' => self.string = Some((c, false)),
                '#' => self.comment = true,
                '[' | '{' => self.open += 1,
                ']' | '}' => self.open = self.open.saturating_sub(1),
                _ => {}
            },
        }
        self.string.is_none() && !self.comment && c != '"' && c != '\''
    }

    fn line(&mut self, line: &str) {
        for c in line.chars().chain(['\n']) {
            self.take(c);
        }
    }

    fn is_open(&self) -> bool {
        self.open > 0
    }
}

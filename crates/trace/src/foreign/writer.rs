//! What the writers of text formats share.

use crate::{Header, Request};
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Exported {
    /// Requests read.
    pub requests: u64,
    /// Records or lines written for them.
    pub records: u64,
    /// Requests that the format has no word for, and that were left out.
    pub left_out: u64,
}

/// A text format that is written.
pub(crate) trait TextWriter {
    /// What comes before the requests.
    fn begin(&mut self, header: &Header, out: &mut dyn Write) -> io::Result<()>;

    /// Writes a request; `false` when the format has no word for it.
    fn request(
        &mut self,
        header: &Header,
        request: &Request,
        out: &mut dyn Write,
    ) -> io::Result<bool>;

    /// What comes behind them.
    fn end(&mut self, header: &Header, out: &mut dyn Write) -> io::Result<()> {
        let _ = (header, out);
        Ok(())
    }
}

/// The names of clients or disks as a column has them: without separators, never empty, and no two
/// the same, whatever they are called.
pub(super) struct ColumnNames {
    /// What those are called that have no name.
    what: &'static str,
    /// By number; empty where it was not asked for yet.
    given: Vec<String>,
    taken: HashSet<String>,
    /// The least number that was not put yet behind a name that more than one has.
    again: HashMap<String, u64>,
}

impl ColumnNames {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, given: Vec::new(), taken: HashSet::new(), again: HashMap::new() }
    }

    pub(super) fn of(&mut self, known: Option<&String>, number: u32) -> &str {
        let index = number as usize;
        if self.given.len() <= index {
            self.given.resize(index + 1, String::new());
        }
        if self.given[index].is_empty() {
            let special = |c: char| c.is_whitespace() || c.is_control() || ",;\"#".contains(c);
            let plain: String = match known.filter(|name| !name.is_empty()) {
                None => format!("{}{number}", self.what),
                Some(name) => name.chars().map(|c| if special(c) { '_' } else { c }).collect(),
            };
            let mut name = plain.clone();
            if !self.taken.insert(name.clone()) {
                // Each number is tried once, however many are called the same.
                let next = self.again.entry(plain).or_default();
                let mut more = u64::from(number).max(*next);
                loop {
                    let numbered = format!("{name}~{more}");
                    more += 1;
                    if self.taken.insert(numbered.clone()) {
                        name = numbered;
                        break;
                    }
                }
                *next = more;
            }
            self.given[index] = name;
        }
        &self.given[index]
    }

    pub(super) fn disk(&mut self, header: &Header, number: u32) -> &str {
        self.of(header.disks.get(number as usize).map(|disk| &disk.name), number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_parties_are_called_the_same() {
        let known = ["a b", "a_b", "", "disk2", "a b", "disk2~3"].map(String::from);
        let mut names = ColumnNames::new("disk");
        let mut seen = HashSet::new();
        for (number, name) in known.iter().enumerate() {
            let given = names.of(Some(name), number as u32).to_owned();
            assert!(!given.contains(' ') && seen.insert(given.clone()), "{given}");
            assert_eq!(names.of(Some(name), number as u32), given, "the same again");
        }
        assert_eq!(names.of(None, 9), "disk9");
    }

    /// Half of the names are those that the other half would get: looking for a free one from the
    /// beginning each time would take 2^36 steps.
    #[test]
    fn names_made_to_collide_are_told_apart_in_passing() {
        let count = 1u32 << 19;
        let mut names = ColumnNames::new("disk");
        for number in 0..count / 2 {
            let taken = format!("d~{}", number + count / 2);
            assert_eq!(names.of(Some(&taken), number), taken);
        }
        let same = "d".to_owned();
        let given: HashSet<String> =
            (count / 2..count).map(|number| names.of(Some(&same), number).to_owned()).collect();
        assert_eq!(given.len(), count as usize / 2);
        assert_eq!(names.taken.len(), count as usize);
    }
}

//! Numbers for names, in order of appearance.

use super::Parsed;
use crate::header::MAX_PARTIES;
use std::collections::HashMap;

/// The longest name, in bytes.
const MAX_NAME: usize = 4096;
/// All names together, in bytes.
const MAX_TOTAL: usize = 16 << 20;

/// Numbers for names.
#[derive(Debug, Default)]
pub(crate) struct NameNumbers {
    known: HashMap<Box<[u8]>, u32>,
    total: usize,
    last: (Box<[u8]>, u32),
}

impl NameNumbers {
    /// The number of a name, and the name itself when it is new.
    pub(crate) fn number(&mut self, name: &[u8]) -> Parsed<(u32, Option<String>)> {
        if *self.last.0 == *name && !self.known.is_empty() {
            return Ok((self.last.1, None));
        }
        if let Some(number) = self.known.get(name) {
            self.last = (name.into(), *number);
            return Ok((*number, None));
        }
        self.total += name.len();
        let number = self.known.len() as u32;
        if name.len() > MAX_NAME || self.total > MAX_TOTAL || number >= MAX_PARTIES {
            return Err("too many or too long names of clients or disks".to_owned());
        }
        self.known.insert(name.into(), number);
        self.last = (name.into(), number);
        Ok((number, Some(String::from_utf8_lossy(name).into_owned())))
    }
}

//! What `INFO` and `GO` carry.

use super::body::OptionBody;
use crate::codec::{FieldReader, put_counted_text};
use block::Result;

/// The body of `INFO` and `GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// The kinds of information that are wanted.
    pub wanted: Vec<u16>,
}

impl<'a> OptionBody<'a> for InfoRequest<'a> {
    fn parse(what: &'static str, body: &'a [u8]) -> Result<Self> {
        let mut fields = FieldReader::new(what, body);
        let name = fields.counted_text()?;
        let count = fields.u16()?;
        let mut kinds = FieldReader::new(what, fields.bytes(usize::from(count) * 2)?);
        fields.end()?;
        let mut wanted = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            wanted.push(kinds.u16()?);
        }
        Ok(Self { name, wanted })
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_counted_text(self.name, out);
        out.extend_from_slice(&(self.wanted.len() as u16).to_be_bytes());
        for kind in &self.wanted {
            out.extend_from_slice(&kind.to_be_bytes());
        }
    }
}

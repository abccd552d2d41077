//! What `LIST_META_CONTEXT` and `SET_META_CONTEXT` carry.

use super::body::OptionBody;
use crate::codec::{FieldReader, put_counted_text};
use block::Result;

/// The body of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// The contexts that are asked for.
    pub queries: Vec<&'a str>,
}

impl<'a> OptionBody<'a> for MetaRequest<'a> {
    fn parse(what: &'static str, body: &'a [u8]) -> Result<Self> {
        let mut fields = FieldReader::new(what, body);
        let name = fields.counted_text()?;
        let count = fields.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(fields.counted_text()?); // fails as soon as the body ends
        }
        fields.end()?;
        Ok(Self { name, queries })
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_counted_text(self.name, out);
        out.extend_from_slice(&(self.queries.len() as u32).to_be_bytes());
        for query in &self.queries {
            put_counted_text(query, out);
        }
    }
}

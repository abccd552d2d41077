//! What `REINSTATE`, our own option, carries.

use super::body::OptionBody;
use crate::codec::FieldReader;
use block::Result;

/// One of several connections of which each takes the place of those before: what a client gave up on an
/// older one must not be carried out behind what it asks on a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reinstatement {
    /// Says which connections take each other's place: a number that no other client can guess.
    pub id: [u8; 16],
    /// Its place among them: it ends those of the same export and client with lower numbers.
    pub number: u64,
}

impl Reinstatement {
    /// Whether the other one takes its place.
    pub fn is_before(&self, other: &Self) -> bool {
        self.id == other.id && self.number < other.number
    }
}

impl<'a> OptionBody<'a> for Reinstatement {
    fn parse(what: &'static str, body: &'a [u8]) -> Result<Self> {
        let mut fields = FieldReader::new(what, body);
        let mut id = [0; 16];
        id.copy_from_slice(fields.bytes(16)?);
        let number = fields.u64()?;
        fields.end()?;
        Ok(Self { id, number })
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.number.to_be_bytes());
    }
}

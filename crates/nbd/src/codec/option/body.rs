//! What an option of the negotiation carries, whatever the option.

use crate::codec::{FieldReader, clip};
use block::Result;

/// What an option carries.
pub(super) trait OptionBody<'a>: Sized {
    /// Reads the body of the option `what`, which has exactly the announced length.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the lengths in it do not add up, or a text is too long or not UTF-8.
    fn parse(what: &'static str, body: &'a [u8]) -> Result<Self>;

    /// Writes the body.
    fn put(&self, out: &mut Vec<u8>);
}

impl<'a> OptionBody<'a> for &'a str {
    fn parse(what: &'static str, body: &'a [u8]) -> Result<Self> {
        FieldReader::new(what, body).text(body.len())
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(clip(self).as_bytes());
    }
}

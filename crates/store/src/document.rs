//! The store's own documents in JSON: its settings and its key slots.
//!
//! A document's last member is `checksum`, on a line of its own: CRC-32C of all bytes before it, in every
//! version.

use block::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest document that is read, in bytes.
pub(crate) const MAX_LEN: u64 = 64 << 10;

const CHECKSUM: &str = "  \"checksum\": \"";

/// What a document is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Its member `format`.
    pub(crate) format: &'static str,
    /// The version that this build writes and reads.
    pub(crate) version: u16,
    /// What to do about a damaged one.
    pub(crate) remedy: &'static str,
}

/// What is read first, whatever the version says of the rest.
#[derive(Deserialize)]
struct Opening {
    format: String,
    version: u64,
}

impl Form {
    /// The error of a document that breaks its format.
    pub(crate) fn damaged(&self, key: &str, why: &str) -> Error {
        Error::corrupt(format!("{key}: {why}; {}", self.remedy))
    }

    /// The error of a document that uses something that this build does not know.
    pub(crate) fn unknown(&self, key: &str, what: &str) -> Error {
        Error::unsupported(format!("{key}: {what} is not known to this build; use a newer sojourn"))
    }

    /// The object that holds a document, which has the members `format` and `version`.
    pub(crate) fn encode(&self, document: &impl Serialize) -> Result<Vec<u8>> {
        let text = serde_json::to_string_pretty(document)
            .map_err(|e| Error::internal("a document cannot be written").with_source(e))?;
        let body = text.strip_suffix("\n}").unwrap_or(&text);
        let body = format!("{body},\n");
        let sum = crc32c::crc32c(body.as_bytes());
        Ok(format!("{body}{CHECKSUM}{sum:08x}\"\n}}\n").into_bytes())
    }

    /// Reads a document; `key` names it.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version,
    /// [`Corrupt`](block::ErrorKind::Corrupt) for anything that is not what was written.
    pub(crate) fn decode<T: DeserializeOwned>(&self, key: &str, bytes: &[u8]) -> Result<T> {
        let damaged = |why: &str| self.damaged(key, why);
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let opening: Opening =
            serde_json::from_str(text).map_err(|e| damaged(&format!("not its format: {e}")))?;
        if opening.format != self.format {
            return Err(damaged("something else"));
        }
        let at = text.rfind(CHECKSUM).ok_or_else(|| damaged("no checksum"))?;
        let (body, tail) = text.split_at(at);
        let sum = crc32c::crc32c(body.as_bytes());
        if tail != format!("{CHECKSUM}{sum:08x}\"\n}}\n") {
            return Err(damaged("checksum mismatch"));
        }
        // What the checksum does not cover is damage, whatever it says.
        if opening.version > u64::from(self.version) {
            return Err(Error::unsupported(format!(
                "{key}: the store has format version {}, this build reads up to {}; use a newer \
                 sojourn",
                opening.version, self.version
            )));
        }
        let json = body.strip_suffix(",\n").ok_or_else(|| damaged("not its format"))?;
        if opening.version != u64::from(self.version) {
            return Err(damaged("unknown version"));
        }
        serde_json::from_str(&format!("{json}\n}}"))
            .map_err(|e| damaged(&format!("not its format: {e}")))
    }
}

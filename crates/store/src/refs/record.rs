//! A record: what it says, how it is stored, and its key.

use super::RefKind;
use crate::id::parse_hex;
use crate::{ManifestId, Settings, WriterId};
use block::{Error, Result};
use bytes::Bytes;
use objects::header::{HeaderLine, header_line};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const MAGIC: &str = "sojourn-ref";
const VERSION: u64 = 1;
/// What a sealed record is bound to, beside its key.
const HEAD: &[u8] = b"sojourn-ref 1";
/// Sealed documents are padded to a multiple of this many bytes.
const PADDING: usize = 512;
/// The longest record that is written or read, in bytes.
pub(super) const MAX_LEN: u64 = 64 << 10;

/// What a ref says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefBody {
    /// The content, if there is any yet.
    pub manifest: Option<ManifestId>,
    /// Its size in bytes.
    pub size: u64,
    /// When it was made, in Unix seconds.
    pub created: u64,
    /// Anything else worth knowing, such as `image=debian:3`; at most 48 KiB together.
    pub labels: BTreeMap<String, String>,
}

/// A ref as it was found or written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefRecord {
    /// The name.
    pub name: String,
    /// The record's number, from 1.
    pub sequence: u64,
    /// The attempt that wrote it.
    pub writer: WriterId,
    /// When it was written, in Unix seconds.
    pub written: u64,
    /// What it says.
    pub body: RefBody,
}

/// The stored form. It repeats its key, so that a record cannot pass for another one's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefDocument {
    pub(super) kind: RefKind,
    pub(super) name: String,
    pub(super) sequence: u64,
    pub(super) writer: WriterId,
    pub(super) written: u64,
    /// `None`: the name was removed.
    pub(super) body: Option<RefBody>,
}

impl RefDocument {
    /// The record, unless it is a removal.
    pub(super) fn into_record(self) -> Option<RefRecord> {
        let Self { name, sequence, writer, written, body, .. } = self;
        body.map(|body| RefRecord { name, sequence, writer, written, body })
    }

    /// A line `sojourn-ref <version> <CRC-32C of the rest> <length of the rest>`, then JSON; or the
    /// same line that ends with ` sealed`, then the sealed JSON.
    pub(super) fn encode(&self, settings: &Settings, key: &str) -> Result<Bytes> {
        let mut json = serde_json::to_vec(self)
            .map_err(|e| Error::internal("a ref cannot be written").with_source(e))?;
        if let Some(sealer) = settings.sealer() {
            // The length says little of names and labels.
            json.resize((json.len() + 1).next_multiple_of(PADDING) - 1, b' ');
            json.push(b'\n');
            sealer.seal_object(key, HEAD, &mut json)?;
        } else {
            json.push(b'\n');
        }
        let mut bytes = header(&json, settings.is_encrypted()).into_bytes();
        bytes.extend_from_slice(&json);
        if bytes.len() as u64 > MAX_LEN {
            return Err(Error::invalid(format!(
                "{} {:?}: its labels are too long ({} bytes with them, at most {MAX_LEN})",
                self.kind,
                self.name,
                bytes.len()
            )));
        }
        Ok(bytes.into())
    }

    pub(super) fn decode(settings: &Settings, key: &str, bytes: &[u8]) -> Result<Self> {
        let end = bytes.iter().take(128).position(|b| *b == b'\n');
        let (line, json) = match end {
            Some(end) => bytes.split_at(end + 1),
            None => return Err(damaged(key, "it has no header line")),
        };
        let line = std::str::from_utf8(line).map_err(|_| damaged(key, "its header is not text"))?;
        match header_line(MAGIC, line, json) {
            HeaderLine::Version(VERSION) => {}
            HeaderLine::Version(version) => {
                return Err(Error::unsupported(format!(
                    "object {key} has format version {version}, this build reads up to {VERSION}; \
                     use a newer sojourn"
                )));
            }
            HeaderLine::Damaged(why) => return Err(damaged(key, why)),
        }
        if line == header(json, !settings.is_encrypted()) {
            return Err(damaged(key, "it is sealed and the store not encrypted, or the reverse"));
        }
        if line != header(json, settings.is_encrypted()) {
            return Err(damaged(key, "checksum or length mismatch"));
        }
        let opened = settings.sealer().map(|sealer| {
            sealer
                .open_object(key, HEAD, json)
                .map_err(|_| damaged(key, "it is not what was sealed under its name"))
        });
        let opened = opened.transpose()?;
        let json = opened.as_deref().unwrap_or(json);
        let document: Self = serde_json::from_slice(json)
            .map_err(|e| damaged(key, &format!("not its format: {e}")))?;
        Ok(document)
    }
}

/// Checks whether bytes are a record.
pub(crate) fn check(settings: &Settings, key: &str, bytes: &[u8]) -> Result<()> {
    RefDocument::decode(settings, key, bytes).map(|_| ())
}

fn header(content: &[u8], sealed: bool) -> String {
    let sealed = if sealed { " sealed" } else { "" };
    format!("{MAGIC} {VERSION} {:08x} {}{sealed}\n", crc32c::crc32c(content), content.len())
}

pub(super) fn key(kind: RefKind, place: &str, sequence: u64) -> String {
    format!("refs/{kind}/{place}/{sequence:020}")
}

/// What stands for the name, and the number of a record's key.
pub(super) fn parse_key(kind: RefKind, key: &str, hidden: bool) -> Option<(&str, u64)> {
    let (place, digits) = key
        .strip_prefix("refs/")?
        .strip_prefix(kind.as_str())?
        .strip_prefix('/')?
        .split_once('/')?;
    let valid = digits.len() == 20 && digits.bytes().all(|c| c.is_ascii_digit());
    let sequence = digits.parse().ok().filter(|n| valid && (1..u64::MAX).contains(n))?;
    let valid =
        if hidden { parse_hex::<32>("name", place).is_ok() } else { kind.check(place).is_ok() };
    valid.then_some((place, sequence))
}

pub(super) fn damaged(key: &str, why: &str) -> Error {
    Error::corrupt(format!(
        "object {key} is damaged: {why}; restore it from a backup, or remove it to return to the \
         record before it"
    ))
}

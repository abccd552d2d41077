//! Tokens: secrets that let a program use the HTTP API, and what each of them lets it do. Pure.
//!
//! A token is 256 random bits, shown once when it is made. What is kept is the SHA-256 of its text: of a
//! secret that nobody can guess a plain hash is enough, and whoever reads the list has no token.

pub mod file;

use crate::name;
use crate::rules::{LONGEST_PATTERN, MOST_PATTERNS, OWN_NAME, matches};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use block::{Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::{self, Write};

/// What every token begins with, for people and for programs that look for secrets in the wrong place.
pub const PREFIX: &str = "sojourn_";
/// Random bytes of a token.
pub const SECRET_BYTES: usize = 32;
/// Tokens of one list.
const MOST: usize = 1000;
/// The format of the list.
const VERSION: u64 = 1;

/// What a token lets its bearer do; each right has those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenRight {
    /// See.
    Read,
    /// Change what can be changed without losing data.
    Operate,
    /// Everything, also what destroys.
    Admin,
}

impl TokenRight {
    /// The right in a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for TokenRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a token is good for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Token {
    /// By what it is listed, revoked and logged; chosen by its maker.
    pub name: String,
    /// What it lets its bearer do.
    pub right: TokenRight,
    /// The patterns of the disks that it is for; with `images` absent as well, it is for everything.
    pub disks: Option<Vec<String>>,
    /// The patterns of the images that it is for.
    pub images: Option<Vec<String>>,
    /// When it was made, in Unix seconds.
    pub created: u64,
    /// From when it is worth nothing, in Unix seconds; never when absent.
    pub expires: Option<u64>,
}

impl Token {
    /// Whether it is for some disks and images only.
    pub fn is_limited(&self) -> bool {
        self.disks.is_some() || self.images.is_some()
    }

    /// Whether it is worth nothing any more at this moment, in Unix seconds.
    pub fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Whether it is for the disk of this name.
    pub fn covers_disk(&self, disk: &str) -> bool {
        !self.is_limited() || any_matches(self.disks.as_deref(), disk)
    }

    /// Whether it is for an image, `name` or `name:tag`: a pattern of the name alone is for all its versions.
    pub fn covers_image(&self, image: &str) -> bool {
        let name = image.split_once(':').map_or(image, |(name, _)| name);
        let images = self.images.as_deref();
        !self.is_limited() || any_matches(images, image) || any_matches(images, name)
    }

    fn check(&self) -> Result<()> {
        name::check(&self.name).map_err(|_| {
            Error::invalid(format!(
                "{:?} is not a token's name; use 1 to {} letters, digits, and . _ @ -, the first a letter \
                 or a digit",
                shown(&self.name),
                name::LONGEST
            ))
        })?;
        let patterns = || self.disks.iter().chain(&self.images).flatten();
        if patterns().count() > MOST_PATTERNS {
            let why = format!("more than {MOST_PATTERNS} patterns; use one with *");
            return Err(Error::invalid(why));
        }
        if patterns().any(|pattern| pattern.is_empty() || pattern.len() > LONGEST_PATTERN) {
            let why = format!("a pattern must have 1 to {LONGEST_PATTERN} bytes");
            return Err(Error::invalid(why));
        }
        if patterns().any(|pattern| pattern.contains(OWN_NAME)) {
            return Err(Error::invalid("a token has no {name}; write the pattern out"));
        }
        if patterns().next().is_none() && self.is_limited() {
            return Err(Error::invalid("it is limited to nothing; name a disk or an image"));
        }
        Ok(())
    }
}

fn any_matches(patterns: Option<&[String]>, text: &str) -> bool {
    patterns.is_some_and(|patterns| patterns.iter().any(|pattern| matches(pattern, None, text)))
}

fn shown(text: &str) -> String {
    text.chars().take(name::LONGEST).collect()
}

/// The SHA-256 of a token's text; 64 hexadecimal digits in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct TokenHash([u8; 32]);

impl TokenHash {
    fn of(text: &str) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        Self(hash)
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || serde::de::Error::custom("a hash has 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // to a string: it cannot fail
        text
    })
}

/// A token and how it is recognised.
#[derive(Debug, Clone, PartialEq)]
struct KnownToken {
    token: Token,
    sha256: TokenHash,
}

/// The same in the file. A key that this program does not know may be a limit, and is refused.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    right: TokenRight,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disks: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    images: Option<Vec<String>>,
    created: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    sha256: TokenHash,
}

impl From<TokenEntry> for KnownToken {
    fn from(entry: TokenEntry) -> Self {
        let TokenEntry { name, right, disks, images, created, expires, sha256 } = entry;
        Self { token: Token { name, right, disks, images, created, expires }, sha256 }
    }
}

impl From<KnownToken> for TokenEntry {
    fn from(known: KnownToken) -> Self {
        let KnownToken { token, sha256 } = known;
        let Token { name, right, disks, images, created, expires } = token;
        Self { name, right, disks, images, created, expires, sha256 }
    }
}

/// All tokens of a home.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tokens {
    list: Vec<KnownToken>,
}

/// The file: `{"version": 1, "tokens": [...]}`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenDocument {
    version: u64,
    tokens: Vec<TokenEntry>,
}

impl Tokens {
    /// Reads a list.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) when it is damaged, [`Unsupported`](ErrorKind::Unsupported) when it is of
    /// another version.
    pub fn parse(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Header {
            version: u64,
        }
        let damaged = |e: serde_json::Error| Error::invalid(format!("the list is damaged ({e})"));
        let Header { version } = serde_json::from_slice(text).map_err(damaged)?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "the list has version {version}, and this program reads version {VERSION}"
            )));
        }
        let TokenDocument { tokens, .. } = serde_json::from_slice(text).map_err(damaged)?;
        let list: Vec<KnownToken> = tokens.into_iter().map(Into::into).collect();
        if list.len() > MOST {
            return Err(Error::invalid(format!("more than {MOST} tokens")));
        }
        for (index, known) in list.iter().enumerate() {
            let here = |e: Error| e.context(format!("token {}", index + 1));
            known.token.check().map_err(here)?;
            if list[..index].iter().any(|other| other.token.name == known.token.name) {
                let why = format!("another token is called {}", known.token.name);
                return Err(here(Error::invalid(why)));
            }
        }
        Ok(Self { list })
    }

    /// The list as a text that [`parse`](Self::parse) reads.
    ///
    /// # Errors
    /// [`Internal`](ErrorKind::Internal): none that a list meets.
    pub fn text(&self) -> Result<String> {
        let tokens = self.list.iter().cloned().map(Into::into).collect();
        let document = TokenDocument { version: VERSION, tokens };
        let text = serde_json::to_string_pretty(&document);
        text.map_err(|e| Error::internal("cannot write the list of tokens").with_source(e))
    }

    /// All of them, in the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        self.list.iter().map(|known| &known.token)
    }

    /// Adds a token, whose text is made of these random bytes; gives that text, which is kept nowhere.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when another token has its name, [`Invalid`](ErrorKind::Invalid) when
    /// it cannot be meant, [`NoSpace`](ErrorKind::NoSpace) when there are too many.
    pub fn add(&mut self, token: Token, random: [u8; SECRET_BYTES]) -> Result<String> {
        token.check()?;
        if self.iter().any(|other| other.name == token.name) {
            return Err(Error::conflict(format!(
                "a token is called {} already; revoke that first, or choose another name",
                token.name
            )));
        }
        if self.list.len() >= MOST {
            let why = format!("there are {MOST} tokens; revoke those that nobody needs");
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
        let text = format!("{PREFIX}{}", hex(&random));
        self.list.push(KnownToken { token, sha256: TokenHash::of(&text) });
        Ok(text)
    }

    /// Removes a token; gives it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound).
    pub fn revoke(&mut self, name: &str) -> Result<Token> {
        let Some(at) = self.list.iter().position(|known| known.token.name == name) else {
            let name = shown(name);
            return Err(Error::not_found(format!(
                "no token {name:?}; `sojourn token list` shows those that there are"
            )));
        };
        Ok(self.list.remove(at).token)
    }

    /// The token with this text, if it is good at this moment, in Unix seconds. Takes as long for any text of
    /// one length.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) for one that nobody made, that was revoked, or that has expired.
    pub fn find(&self, text: &str, now: u64) -> Result<&Token> {
        let hash = TokenHash::of(text);
        let is_it = |known: &&KnownToken| verify_slices_are_equal(&known.sha256.0, &hash.0).is_ok();
        let found = self.list.iter().filter(is_it).fold(None, |_, known| Some(&known.token));
        match found {
            Some(token) if token.is_expired(now) => Err(Error::denied(format!(
                "the token {} has expired; make another one with `sojourn token create`",
                token.name
            ))),
            Some(token) => Ok(token),
            None => Err(Error::denied(
                "this token is not valid: it was revoked, or is of another server; `sojourn token list` \
                 there shows those that are",
            )),
        }
    }
}

#[cfg(test)]
mod tests;

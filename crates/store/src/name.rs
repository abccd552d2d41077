//! Names.

use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes.
pub const MAX_NAME: usize = 128;

/// Checks a name of `what` ("disk", "image", …): 1 to 128 characters, letters, digits, `.`, `_`
/// and `-`, a letter or digit first.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid), naming the rule.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    let rest = name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'));
    if first && rest && name.len() <= MAX_NAME {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    let more = if shown.len() < name.len() { "…" } else { "" };
    Err(Error::invalid(format!(
        "{what} name {shown:?}{more} is not valid: use 1 to {MAX_NAME} letters, digits, '.', '_' \
         and '-', with a letter or digit first"
    )))
}

/// An image as people write it: `debian` (its newest version) or `debian:3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName {
    /// The image.
    pub name: String,
    /// Its version; the newest one when there is none.
    pub tag: Option<String>,
}

impl FromStr for ImageName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, tag) = match text.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (text, None),
        };
        check_name("image", name)?;
        if let Some(tag) = tag {
            check_name("version", tag)?;
        }
        Ok(Self { name: name.to_owned(), tag: tag.map(str::to_owned) })
    }
}

impl TryFrom<String> for ImageName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tag {
            Some(tag) => write!(f, "{}:{tag}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_place_are_refused() {
        for good in ["a", "debian-12.5_x", "0", &"x".repeat(128)] {
            check_name("disk", good).unwrap();
        }
        for bad in ["", ".", "..", "a/b", "-a", "a b", "a\0", "ä", "a:b", "a@b", &"x".repeat(129)]
        {
            let error = check_name("disk", bad).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Invalid);
            assert!(error.message().contains("letter or digit first"));
            assert!(error.message().len() < 300);
        }
    }

    #[test]
    fn an_image_name_has_an_optional_version() {
        let plain: ImageName = "debian".parse().unwrap();
        assert_eq!((plain.name.as_str(), plain.tag.as_deref()), ("debian", None));
        let tagged: ImageName = "debian:3".parse().unwrap();
        assert_eq!(tagged.tag.as_deref(), Some("3"));
        assert_eq!(tagged.to_string(), "debian:3");
        for bad in [":", "debian:", ":3", "a:b:c"] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad}");
        }
    }
}

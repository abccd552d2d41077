//! Verbs on media as they travel over HTTP: which right each takes, and which command carries it out. A medium is named
//! as the server's configuration names it among its `sources`; nobody names a path here.

use crate::vm_verbs::words;
use access::TokenRight;
use block::{Error, Result};
use serde::Serialize;

/// The longest name of what is on a medium, in bytes: that of an image with its tag is shorter.
const LONGEST_NAME: usize = 300;
/// The least that a medium may be given: its index and descriptions alone take some of that.
const LEAST_SIZE: u64 = 16 << 20;
/// The most names that are written at a time.
const MOST_NAMES: usize = 200;

/// A verb on a medium, which its `name` is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum MediaRequest {
    /// Put images, disks and machines onto it.
    Write {
        /// The medium.
        name: String,
        /// What is put there.
        holds: Vec<String>,
        /// And all that is there, as it is now.
        refresh: bool,
        /// The most that everything on it may take, in bytes.
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        /// Make a medium of a directory that is none, as a key is at first, and the place of one that is not mounted.
        make: bool,
    },
    /// Read all of it, and check it.
    Verify {
        /// The medium.
        name: String,
        /// Delete damaged files.
        drop_damaged: bool,
    },
    /// Index it by content: a tree or an image.
    Index {
        /// The tree or the image.
        name: String,
    },
    /// Take something off it.
    Remove {
        /// The medium.
        name: String,
        /// What is taken off.
        held: String,
    },
}

impl MediaRequest {
    /// The medium that it is about.
    pub fn name(&self) -> &str {
        match self {
            Self::Write { name, .. }
            | Self::Verify { name, .. }
            | Self::Index { name }
            | Self::Remove { name, .. } => name,
        }
    }

    /// The right that it takes: `Admin` for what writes there.
    pub(crate) fn right(&self) -> TokenRight {
        match self {
            Self::Verify { drop_damaged: false, .. } | Self::Index { .. } => TokenRight::Operate,
            Self::Write { .. } | Self::Verify { .. } | Self::Remove { .. } => TokenRight::Admin,
        }
    }

    /// The command that carries it out on what is at `place`. Nothing that is named is taken for an option.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for what can be no name.
    pub(crate) fn arguments(&self, place: &str) -> Result<Vec<String>> {
        let mut names = vec!["--".to_owned(), place.to_owned()];
        let mut options = Vec::new();
        let verb = match self {
            Self::Write { holds, refresh, size, .. } => {
                if holds.len() > MOST_NAMES || (holds.is_empty() && !refresh) {
                    return Err(Error::invalid(format!(
                        "name what is to be written, {MOST_NAMES} at the most, or have it refreshed"
                    )));
                }
                if size.is_some_and(|bytes| bytes < LEAST_SIZE) {
                    return Err(Error::invalid(format!(
                        "a size of less than {LEAST_SIZE} bytes has no room for anything; give it more"
                    )));
                }
                holds.iter().try_for_each(|name| check_held(name))?;
                names.extend(holds.iter().cloned());
                options.extend(refresh.then(|| "--refresh".to_owned()));
                options.extend(size.map(|bytes| format!("--size={bytes}")));
                "write"
            }
            Self::Verify { drop_damaged, .. } => {
                options.extend(drop_damaged.then(|| "--drop-damaged".to_owned()));
                "verify"
            }
            Self::Index { .. } => "index",
            Self::Remove { held, .. } => {
                check_held(held)?;
                names.push(held.clone());
                "remove"
            }
        };
        Ok([words("media"), vec![verb.to_owned()], options, names].concat())
    }
}

fn check_held(name: &str) -> Result<()> {
    match (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(Error::invalid("what is on a medium is named as debian:3, alice or work@5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(holds: &[&str], refresh: bool) -> MediaRequest {
        let holds = holds.iter().map(|name| (*name).to_owned()).collect();
        MediaRequest::Write {
            name: "usb".into(),
            holds,
            refresh,
            size: Some(LEAST_SIZE),
            make: false,
        }
    }

    #[test]
    fn a_verb_is_a_command_and_nothing_that_is_named_becomes_an_option() {
        let told = |verb: MediaRequest| verb.arguments("/media/usb").unwrap().join(" ");
        assert_eq!(
            told(write(&["debian:3", "--drop"], true)),
            "media write --refresh --size=16777216 -- /media/usb debian:3 --drop"
        );
        let verify = MediaRequest::Verify { name: "usb".into(), drop_damaged: true };
        assert_eq!(told(verify), "media verify --drop-damaged -- /media/usb");
        assert_eq!(told(MediaRequest::Index { name: "usb".into() }), "media index -- /media/usb");
        let remove = MediaRequest::Remove { name: "usb".into(), held: "-x".into() };
        assert_eq!(told(remove), "media remove -- /media/usb -x");
        for bad in [write(&[], false), write(&[""], true), write(&["a\0"], false)] {
            assert!(bad.arguments("/media/usb").is_err(), "{bad:?}");
        }
        let (name, holds) = ("usb".into(), vec!["a".into()]);
        let size = Some(LEAST_SIZE - 1);
        let small = MediaRequest::Write { name, holds, refresh: false, size, make: false };
        assert!(small.arguments("/media/usb").unwrap_err().message().contains("16777216 bytes"));
        let many = vec!["a"; MOST_NAMES + 1];
        assert!(write(&many, false).arguments("/media/usb").is_err());
    }
}

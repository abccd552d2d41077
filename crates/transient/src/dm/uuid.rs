//! What the mapped devices of a borrowed disk are called, and the identities by which the kernel, and whoever
//! looks later, tells them from those of others.
//!
//! | name | identity | what |
//! |---|---|---|
//! | NAME | `SOJOURN-NAME`, or `SOJOURN-STATE:MARK:NAME` | the borrowed disk, with a state that goes back |
//! | NAME-lent | `SOJOURN-LENT:NAME` | the lent ranges below it |
//! | NAME-swap, NAME-files | `SOJOURN-PART:NAME:swap` | a part of it |

use super::Purpose;

/// What the name of the device below the encrypted one ends with.
const BELOW: &str = "-lent";
/// What each identity of ours starts with.
const OURS: &str = "SOJOURN-";
const STATE: &str = "STATE:";
const LENT: &str = "LENT:";
const PART: &str = "PART:";

/// A mapped device of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MappedIdentity<'a> {
    /// The borrowed disk `name`, and the mark of a state that goes back to where it came from.
    Whole { name: &'a str, state: Option<&'a str> },
    /// What is below it.
    Below { name: &'a str },
    /// A part of it.
    Part { name: &'a str, purpose: Purpose },
}

impl<'a> MappedIdentity<'a> {
    /// Reads what the kernel says; `None` for a device of somebody else's. The name of a borrowed disk has no
    /// colon.
    pub(super) fn parse(uuid: &'a str) -> Option<Self> {
        let ours = uuid.strip_prefix(OURS)?;
        if let Some(name) = ours.strip_prefix(LENT) {
            return Some(Self::Below { name });
        }
        if let Some((mark, name)) = ours.strip_prefix(STATE).and_then(|rest| rest.split_once(':')) {
            return Some(Self::Whole { name, state: Some(mark) });
        }
        if let Some((name, word)) = ours.strip_prefix(PART).and_then(|rest| rest.split_once(':')) {
            let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.as_str() == word)?;
            return Some(Self::Part { name, purpose });
        }
        Some(Self::Whole { name: ours, state: None })
    }

    /// The text that the kernel keeps.
    pub(super) fn uuid(self) -> String {
        match self {
            Self::Whole { name, state: None } => format!("{OURS}{name}"),
            Self::Whole { name, state: Some(mark) } => format!("{OURS}{STATE}{mark}:{name}"),
            Self::Below { name } => format!("{OURS}{LENT}{name}"),
            Self::Part { name, purpose } => format!("{OURS}{PART}{name}:{}", purpose.as_str()),
        }
    }

    /// The name of the mapped device.
    pub(super) fn device_name(self) -> String {
        match self {
            Self::Whole { name, .. } => name.to_owned(),
            Self::Below { name } => format!("{name}{BELOW}"),
            Self::Part { name, purpose } => format!("{name}-{}", purpose.as_str()),
        }
    }
}

//! What QEMU says on its monitor.

use block::{Error, Result};
use serde::Deserialize;
use serde_json::Value;

/// The longest line that is accepted, in bytes. The longest answer that is asked for, the list of QEMU's
/// types, has 60 KiB.
pub const MAX_LINE: usize = 4 << 20;

/// One line from QEMU.
#[derive(Debug, Clone, PartialEq)]
pub enum QmpMessage {
    /// The first line of a connection: QEMU's version as major and minor number.
    Greeting {
        /// Such as (7, 2).
        version: (u32, u32),
    },
    /// A command did what it was asked.
    Return {
        /// The command's number.
        id: u64,
        /// What it returned; an empty object mostly.
        value: Value,
    },
    /// A command failed.
    Failure {
        /// The command's number, unless QEMU could not tell.
        id: Option<u64>,
        /// Why, in QEMU's words.
        reason: String,
    },
    /// Something happened to the machine.
    Event {
        /// Such as `SHUTDOWN`.
        name: String,
    },
}

#[derive(Deserialize)]
struct RawMessage {
    #[serde(rename = "QMP")]
    greeting: Option<RawGreeting>,
    #[serde(rename = "return")]
    value: Option<Value>,
    error: Option<RawFailure>,
    event: Option<String>,
    id: Option<u64>,
}

#[derive(Deserialize)]
struct RawGreeting {
    version: QemuVersion,
}

#[derive(Deserialize)]
struct QemuVersion {
    qemu: VersionNumbers,
}

#[derive(Deserialize)]
struct VersionNumbers {
    major: u32,
    minor: u32,
}

#[derive(Deserialize)]
struct RawFailure {
    desc: String,
}

impl QmpMessage {
    /// Parses one line, without or with its line feed.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when it is not a message, or longer than [`MAX_LINE`].
    pub fn parse(line: &[u8]) -> Result<Self> {
        if line.len() > MAX_LINE {
            return Err(too_long());
        }
        let line: RawMessage = serde_json::from_slice(line).map_err(|e| {
            Error::corrupt(format!("QEMU's monitor sent something that is not a message: {e}"))
        })?;
        match line {
            RawMessage { event: Some(name), .. } => Ok(Self::Event { name }),
            RawMessage { error: Some(failure), id, .. } => {
                Ok(Self::Failure { id, reason: failure.desc })
            }
            RawMessage { greeting: Some(greeting), .. } => {
                let VersionNumbers { major, minor } = greeting.version.qemu;
                Ok(Self::Greeting { version: (major, minor) })
            }
            RawMessage { value: Some(value), id: Some(id), .. } => Ok(Self::Return { id, value }),
            _ => Err(Error::corrupt("QEMU's monitor sent a message of no known kind")),
        }
    }
}

pub(super) fn too_long() -> Error {
    Error::corrupt(format!("QEMU's monitor sent a line of more than {MAX_LINE} bytes"))
}

/// A command as it is sent, with its line feed.
pub(super) fn command(id: u64, name: &str, arguments: &Value) -> Vec<u8> {
    let mut line = serde_json::json!({"execute": name, "id": id});
    if !arguments.is_null() {
        line["arguments"] = arguments.clone();
    }
    let mut bytes = line.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_of_message_is_told_apart() {
        let parse = |text: &str| QmpMessage::parse(text.as_bytes()).unwrap();
        assert_eq!(
            parse(
                r#"{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":"D"},"capabilities":["oob"]}}"#
            ),
            QmpMessage::Greeting { version: (7, 2) }
        );
        assert_eq!(
            parse("{\"return\": {\"status\": \"running\"}, \"id\": 3}\r\n"),
            QmpMessage::Return { id: 3, value: serde_json::json!({"status": "running"}) }
        );
        assert_eq!(
            parse(r#"{"id":4,"error":{"class":"GenericError","desc":"no"}}"#),
            QmpMessage::Failure { id: Some(4), reason: "no".into() }
        );
        assert_eq!(
            parse(r#"{"error":{"class":"GenericError","desc":"JSON parse error"}}"#),
            QmpMessage::Failure { id: None, reason: "JSON parse error".into() }
        );
        assert_eq!(
            parse(r#"{"timestamp":{"seconds":1,"microseconds":2},"event":"STOP"}"#),
            QmpMessage::Event { name: "STOP".into() }
        );
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bad in ["", "{", "[]", "{}", r#"{"return":1}"#, r#"{"return":1,"id":"x"}"#, "\u{0}"] {
            assert_eq!(
                QmpMessage::parse(bad.as_bytes()).unwrap_err().kind(),
                block::ErrorKind::Corrupt,
                "{bad:?}"
            );
        }
        let long = vec![b' '; MAX_LINE + 1];
        assert!(QmpMessage::parse(&long).unwrap_err().message().contains("more than"));
    }

    #[test]
    fn a_command_is_one_line() {
        let line = command(7, "migrate", &serde_json::json!({"uri": "unix:/a\nb"}));
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert!(line.ends_with(b"\n"));
        let bare: Value = serde_json::from_slice(&command(1, "stop", &Value::Null)).unwrap();
        assert_eq!(bare, serde_json::json!({"execute": "stop", "id": 1}));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = QmpMessage::parse(&bytes);
        }
    }
}

//! What the kernel remembers of a device: of which server it is, by what that knows its connections, and what the
//! export held as a whole. A keeper that takes the device up again has it from there.

use std::fmt;

/// The longest content that is noted, in bytes: the kernel shows a page.
const LONGEST_CONTENT: usize = 256;

/// Whose a device is, as the kernel keeps it in one line of text (`/sys/block/nbdN/backend`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// The server and export, as they were given.
    pub server: String,
    /// By what the server knows which connections take each other's place.
    pub id: [u8; 16],
    /// What the server called the content of the export when the device was made, if it did.
    pub content: Option<String>,
}

impl Backend {
    /// That of a device that is made. A content that would not come back from the kernel's line as it was is left out.
    pub fn new(server: String, id: [u8; 16], content: Option<&str>) -> Self {
        let is_plain = |content: &&str| {
            let mut bytes = content.bytes();
            (1..=LONGEST_CONTENT).contains(&content.len())
                && bytes.all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'[' | b']'))
                && content.trim() == *content
        };
        Self { server, id, content: content.filter(is_plain).map(str::to_owned) }
    }

    /// Reads what [`Display`](fmt::Display) wrote; `None` for what another program wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let (server, own) = text.trim_end().strip_suffix(']')?.rsplit_once(" [")?;
        let (digits, content) = match own.split_once(' ') {
            Some((digits, content)) => (digits, Some(content)),
            None => (own, None),
        };
        let id = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
        Some(Self::new(server.to_owned(), id.to_be_bytes(), content))
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{:032x}", self.server, u128::from_be_bytes(self.id))?;
        match &self.content {
            Some(content) => write!(f, " {content}]"),
            None => write!(f, "]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_nothing_else_is() {
        for content in [None, Some("a1b2 7")] {
            let backend = Backend::new("nbd://[::1]/a b".to_owned(), [0x0a; 16], content);
            assert_eq!(backend.content.as_deref(), content);
            assert_eq!(Backend::parse(&backend.to_string()), Some(backend.clone()));
            assert_eq!(Backend::parse(&format!("{backend}\n")), Some(backend));
        }
        for text in ["", "nbd://lab/alice", "nbd://[::1]", "x [12]", "x [12 7]", " [", "]"] {
            assert_eq!(Backend::parse(text), None, "{text}");
        }
        for content in ["", " 7", "7\n", "x [7", "7]", "\u{e9}", &"7".repeat(257)] {
            let backend = Backend::new("nbd://lab/alice".to_owned(), [1; 16], Some(content));
            assert_eq!(backend.content, None, "{content:?}");
        }
    }
}

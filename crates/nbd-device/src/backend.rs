//! What the kernel remembers of a device: of which server it is, and by what that knows its connections.
//! A keeper that takes the device up again has it from there.

use std::fmt;

/// Whose a device is, as the kernel keeps it in one line of text (`/sys/block/nbdN/backend`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// The server and export, as they were given.
    pub server: String,
    /// By what the server knows which connections take each other's place.
    pub id: [u8; 16],
}

impl Backend {
    /// Reads what [`Display`](fmt::Display) wrote; `None` for what another program wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let (server, digits) = text.trim_end().strip_suffix(']')?.rsplit_once(" [")?;
        let id = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
        Some(Self { server: server.to_owned(), id: id.to_be_bytes() })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{:032x}]", self.server, u128::from_be_bytes(self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_nothing_else_is() {
        let backend = Backend { server: "nbd://[::1]/a b".to_owned(), id: [0x0a; 16] };
        assert_eq!(Backend::parse(&backend.to_string()), Some(backend.clone()));
        assert_eq!(Backend::parse(&format!("{backend}\n")), Some(backend.clone()));
        for text in ["", "nbd://lab/alice", "nbd://[::1]", "x [12]", " [", "]"] {
            assert_eq!(Backend::parse(text), None, "{text}");
        }
    }
}

//! The file of a home's tokens: for its owner alone, changed as a whole, by one command at a time.

use super::{SECRET_BYTES, Token, Tokens};
use crate::files::{self, Readers};
use block::lock::{LockFile, Taking};
use block::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Reads the tokens; none when there is no file.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) when it is damaged, [`Unsupported`](ErrorKind::Unsupported) when it is of
/// another version, [`Denied`](ErrorKind::Denied) when others than its owner may change it; that of the system.
pub fn load(path: &Path) -> Result<Tokens> {
    let metadata = match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Tokens::default()),
        found => found.map_err(|e| Error::io(path.display(), e))?,
    };
    let shown = path.display();
    if metadata.mode() & 0o022 != 0 {
        let why = format!("{shown} holds tokens, and others may change it: chmod 600 {shown}");
        return Err(Error::denied(why));
    }
    Tokens::parse(&files::read(path)?).map_err(|e| {
        let remedy = match e.kind() {
            ErrorKind::Unsupported => "run the program that wrote it",
            _ => "remove it, and make the tokens anew",
        };
        Error::new(e.kind(), format!("{shown}: {}; {remedy}", e.message()))
    })
}

/// Adds a token, whose text is made of these random bytes; gives that text.
///
/// # Errors
/// Any error from [`load`] and [`Tokens::add`]; [`Conflict`](ErrorKind::Conflict) while another command changes the
/// file.
pub fn add(path: &Path, token: Token, random: [u8; SECRET_BYTES]) -> Result<String> {
    change(path, |tokens| tokens.add(token, random))
}

/// Removes a token; gives it.
///
/// # Errors
/// Any error from [`load`] and [`Tokens::revoke`]; [`Conflict`](ErrorKind::Conflict) while another command changes
/// the file.
pub fn revoke(path: &Path, name: &str) -> Result<Token> {
    change(path, |tokens| tokens.revoke(name))
}

fn change<T>(path: &Path, change: impl FnOnce(&mut Tokens) -> Result<T>) -> Result<T> {
    let lock = match LockFile::take(path.with_extension("lock").as_path())? {
        Taking::Ours(lock) => lock,
        Taking::Held(holder) => {
            let path = path.display();
            return Err(Error::conflict(format!("{path} is being changed by {holder}; try again")));
        }
        Taking::Replaced => {
            let path = path.display();
            return Err(Error::conflict(format!("{path} is being changed; try again")));
        }
    };
    let mut tokens = load(path)?;
    let result = change(&mut tokens)?;
    files::write(path, &tokens.text()?, Readers::Owner)?;
    drop(lock);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::TokenRight;
    use std::os::unix::fs::PermissionsExt;

    fn token(name: &str) -> Token {
        Token {
            name: name.to_owned(),
            right: TokenRight::Admin,
            disks: None,
            images: None,
            created: 1,
            expires: None,
        }
    }

    #[test]
    fn the_file_is_its_owners_alone_and_changed_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        assert_eq!(load(&path).unwrap(), Tokens::default());
        let text = add(&path, token("ci"), [3; 32]).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(load(&path).unwrap().find(&text, 2).unwrap().name, "ci");
        assert_eq!(add(&path, token("ci"), [4; 32]).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(load(&path).unwrap().iter().count(), 1);
        revoke(&path, "ci").unwrap();
        load(&path).unwrap().find(&text, 2).unwrap_err();
    }

    #[test]
    fn a_file_that_is_damaged_or_that_others_may_change_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        add(&path, token("ci"), [3; 32]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o622)).unwrap();
        let error = load(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains("chmod 600"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "{").unwrap();
        let error = load(&path).unwrap_err();
        assert!(error.message().contains("tokens.json"), "{error}");
        assert_eq!(add(&path, token("x"), [5; 32]).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(std::fs::read(&path).unwrap(), b"{", "nothing is written over it");
    }
}

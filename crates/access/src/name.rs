//! The names that certificates give to clients.

use block::{Error, Result};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The longest name, in bytes: what X.509 allows for a common name (RFC 5280, appendix A.1).
pub const LONGEST: usize = 64;

/// Whether `name` is one: 1 to 64 letters, digits, `.`, `_`, `@` and `-` of ASCII, of which the
/// first is a letter or a digit. It may stand in rules, paths and logs as it is.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) saying what is allowed.
pub fn check(name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if first && name.len() <= LONGEST && name.bytes().all(fits) {
        return Ok(());
    }
    let shown: String = name.chars().take(LONGEST).collect();
    Err(Error::invalid(format!(
        "{shown:?} is not a client's name; use 1 to {LONGEST} letters, digits, and . _ @ -, the \
         first a letter or a digit"
    )))
}

/// The name in a certificate, which somebody else has verified: its only common name.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) when there is no name, more than one, or one that is not
/// [usable](check).
pub fn of_certificate(der: &[u8]) -> Result<String> {
    let (_, certificate) = X509Certificate::from_der(der)
        .map_err(|e| Error::denied(format!("the client's certificate cannot be read: {e}")))?;
    let mut names = certificate.subject().iter_common_name();
    let (Some(name), None) = (names.next(), names.next()) else {
        let why = "the client's certificate must have one common name; issue another one";
        return Err(Error::denied(why));
    };
    let name = name
        .as_str()
        .map_err(|_| Error::denied("the common name in the client's certificate is no text"))?;
    check(name).map_err(|e| Error::denied(e.message().to_owned()))?;
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "alice", "pc-17.lab_3", "alice@example.org", "7", &"x".repeat(64)] {
            check(good).unwrap();
        }
        for bad in ["", ".", "..", "-a", "a/b", "a b", "*", "ä", "a\n", "{name}", &"x".repeat(65)]
        {
            assert_eq!(check(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_certificate_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(of_certificate(&bytes).unwrap_err().kind(), ErrorKind::Denied);
        }
    }
}

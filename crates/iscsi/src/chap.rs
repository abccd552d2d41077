//! CHAP (RFC 1994 as RFC 7143, 12.1.3 uses it): who knows a secret proves it without sending it.

use block::{Error, Result};
use md5::{Digest, Md5};
use sha2::Sha256;
use std::collections::{HashMap, HashSet};
use zeroize::Zeroizing;

/// The shortest and the longest secret, in bytes: RFC 7143, 9.2.1 asks for 96 bits, and initiators
/// take no more than 255.
const SECRET: std::ops::RangeInclusive<usize> = 12..=255;
/// The longest user name, in bytes.
const LONGEST_USER: usize = 255;
/// The most users of one file.
const MOST_USERS: usize = 100_000;

/// The bytes of a challenge of ours.
pub const CHALLENGE: usize = 16;
/// The longest challenge of an initiator, and the longest answer, in bytes.
pub const LONGEST: usize = 1024;

/// How answers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// MD5, which every initiator knows, and iPXE and Windows alone.
    Md5,
    /// SHA-256.
    Sha256,
}

impl Algorithm {
    /// The best one of those that an initiator lists.
    pub fn choose(list: &str) -> Option<Self> {
        let offers = |code: &str| list.split(',').any(|one| one.trim() == code);
        match () {
            () if offers("7") => Some(Self::Sha256),
            () if offers("5") => Some(Self::Md5),
            () => None,
        }
    }

    /// Its number in `CHAP_A`.
    pub const fn code(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha256 => 7,
        }
    }

    /// The answer to a challenge.
    pub fn answer(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn hash<D: Digest>(parts: [&[u8]; 3]) -> Vec<u8> {
            parts.iter().fold(D::new(), |hash, part| hash.chain_update(part)).finalize().to_vec()
        }
        let parts = [&[id], secret, challenge];
        match self {
            Self::Md5 => hash::<Md5>(parts),
            Self::Sha256 => hash::<Sha256>(parts),
        }
    }
}

/// A user's secret, and what the target shows it.
struct User {
    secret: Zeroizing<String>,
    /// The name and the secret by which the target proves itself.
    target: Option<(String, Zeroizing<String>)>,
}

/// The users of a server and their secrets.
pub struct Secrets {
    users: HashMap<String, User>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets of {} users", self.users.len())
    }
}

impl Secrets {
    /// Reads lines of `USER:SECRET`, or `USER:SECRET:TARGET-USER:TARGET-SECRET` for users to whom the
    /// target proves itself. Empty lines and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) naming the line, and never what is in it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut users: HashMap<String, User> = HashMap::new();
        let mut of_targets = Vec::new();
        let lines = text.lines().map(str::trim).enumerate();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let wrong = |why: &str| Error::invalid(format!("line {}: {why}", index + 1));
            let parts: Vec<&str> = line.split(':').collect();
            let (name, secret, target) = match parts[..] {
                [name, secret] => (name, secret, None),
                [name, secret, target, own] => (name, secret, Some((target, own))),
                _ => {
                    return Err(wrong(
                        "write USER:SECRET or USER:SECRET:TARGET-USER:TARGET-SECRET; a secret has no \
                         colon",
                    ));
                }
            };
            let secrets = [Some(secret), target.map(|(_, own)| own)];
            if secrets.iter().flatten().any(|secret| !SECRET.contains(&secret.len())) {
                return Err(wrong("a secret has 12 to 255 bytes (RFC 7143); make it longer"));
            }
            of_targets.extend(target.map(|(_, own)| (index + 1, own)));
            let names = [Some(name), target.map(|(target, _)| target)];
            if names.iter().flatten().any(|name| !(1..=LONGEST_USER).contains(&name.len())) {
                return Err(wrong("a user name has 1 to 255 bytes"));
            }
            if users.len() == MOST_USERS {
                return Err(wrong("more than 100,000 users"));
            }
            let own = |(target, own): (&str, &str)| (target.to_owned(), Zeroizing::new(own.into()));
            let user = User { secret: Zeroizing::new(secret.to_owned()), target: target.map(own) };
            if users.insert(name.to_owned(), user).is_some() {
                return Err(wrong("this user is there twice; remove one of the lines"));
            }
        }
        if users.is_empty() {
            return Err(Error::invalid("no user in it; write a line USER:SECRET"));
        }
        // Of any user: one who has the target answer its own challenge would have the answer to log in by.
        let of_users: HashSet<&str> = users.values().map(|user| user.secret.as_str()).collect();
        if let Some((line, _)) = of_targets.iter().find(|(_, own)| of_users.contains(own)) {
            let why = "the target's secret is a user's, too; make another one";
            return Err(Error::invalid(format!("line {line}: {why}")));
        }
        Ok(Self { users })
    }

    /// Whether `user` knows its secret.
    pub(crate) fn prove(
        &self,
        algorithm: Algorithm,
        user: &str,
        id: u8,
        challenge: &[u8],
        answer: &[u8],
    ) -> bool {
        // A user that is not there takes as long as one that is.
        let known = self.users.get(user);
        let secret = known.map_or("nobody has this", |user| &user.secret);
        let expected = algorithm.answer(id, secret.as_bytes(), challenge);
        let different = expected.iter().zip(answer).fold(0, |sum, (a, b)| sum | (a ^ b));
        known.is_some() && answer.len() == expected.len() && different == 0
    }

    /// The name and the secret by which the target proves itself to `user`.
    pub(crate) fn of_target(&self, user: &str) -> Option<(&str, &str)> {
        let (name, secret) = self.users.get(user)?.target.as_ref()?;
        Some((name, secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_by_its_secret_alone() {
        let secrets =
            Secrets::parse("# users\n\nalice:open sesame!!\nbob:correct horse\n").unwrap();
        for algorithm in [Algorithm::Md5, Algorithm::Sha256] {
            let answer = algorithm.answer(7, b"open sesame!!", b"challenge");
            let prove = |user, id, challenge: &[u8], answer: &[u8]| {
                secrets.prove(algorithm, user, id, challenge, answer)
            };
            assert!(prove("alice", 7, b"challenge", &answer));
            assert!(!prove("bob", 7, b"challenge", &answer));
            assert!(!prove("carol", 7, b"challenge", &answer));
            assert!(!prove("alice", 8, b"challenge", &answer));
            assert!(!prove("alice", 7, b"another", &answer));
            assert!(!prove("alice", 7, b"challenge", &answer[1..]));
            assert!(!prove("alice", 7, b"challenge", b""));
            let of_nobody = algorithm.answer(7, b"nobody has this", b"challenge");
            assert!(!prove("carol", 7, b"challenge", &of_nobody));
        }
    }

    #[test]
    fn the_answers_are_those_of_the_standards() {
        // MD5("\x01secret" "challenge") by another tool.
        let answer = Algorithm::Md5.answer(1, b"secret", b"challenge");
        let hex: String = answer.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "46e47770030e2b4e26a0db72a7efec00");
    }

    #[test]
    fn a_wrong_line_is_named_and_not_shown() {
        for (text, why) in [
            ("", "no user"),
            ("alice", "line 1"),
            ("alice:short", "12 to 255"),
            ("a:123456789012\nalice:open sesame!!:target:open sesame!!", "line 2"),
            ("a:123456789012:target:open sesame!!\nb:open sesame!!", "line 1"),
            ("a:open sesame!!\nb:123456789012:target:open sesame!!", "line 2"),
            ("alice:open sesame!!\nalice:open sesame??", "twice"),
            (":open sesame!!", "user name"),
            ("alice:open:sesame!!", "colon"),
        ] {
            let error = Secrets::parse(text).unwrap_err();
            assert!(error.message().contains(why), "{error}");
            assert!(!error.message().contains("sesame"), "{error}");
        }
    }

    #[test]
    fn the_target_proves_itself_to_those_for_whom_it_has_a_secret() {
        let secrets = Secrets::parse("a:123456789012\nb:123456789012:me:abcdefghijkl").unwrap();
        assert_eq!(secrets.of_target("a"), None);
        assert_eq!(secrets.of_target("b"), Some(("me", "abcdefghijkl")));
        assert_eq!(secrets.of_target("c"), None);
    }
}

//! Access rules: which client may do what. Pure.
//!
//! A client may do what any rule allows it. What none allows is denied, and looks absent.

use block::{Error, Result};
use nbd::{Peer, Transport};
use serde::Deserialize;

/// Rules of one list, patterns of one rule, and bytes of one pattern that are accepted.
const MOST_RULES: usize = 10_000;
pub(crate) const MOST_PATTERNS: usize = 1_000;
pub(crate) const LONGEST_PATTERN: usize = 512;

/// What stands for the client's own name in a pattern of exports.
pub(crate) const OWN_NAME: &str = "{name}";

/// What a client may do with an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// One rule: a client, by its certificate, its CHAP user or its user id, and its exports.
///
/// Patterns may hold `*` for any number of any characters; patterns of exports also `{name}` for the
/// name in the client's certificate, or its CHAP user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// The pattern of a certificate's name.
    pub certificate: Option<String>,
    /// The pattern of the name of a user who proved to know a secret (CHAP).
    pub chap: Option<String>,
    /// A user of this machine, who connects to a unix socket.
    pub uid: Option<u32>,
    /// Exports that may be read and written.
    pub write: Vec<String>,
    /// Exports that may be read.
    pub read: Vec<String>,
}

impl Rule {
    fn check(&self) -> Result<()> {
        let named = [self.certificate.is_some(), self.chap.is_some(), self.uid.is_some()];
        if named.iter().filter(|named| **named).count() != 1 {
            return Err(Error::invalid(
                "give one of `certificate`, `chap` and `uid`, to say who it is",
            ));
        }
        if self.write.is_empty() && self.read.is_empty() {
            return Err(Error::invalid("it allows nothing; give `write` or `read`"));
        }
        if self.write.len() + self.read.len() > MOST_PATTERNS {
            let why = format!("it has more than {MOST_PATTERNS} exports; use a pattern with *");
            return Err(Error::invalid(why));
        }
        for pattern in
            self.certificate.iter().chain(&self.chap).chain(&self.write).chain(&self.read)
        {
            if pattern.is_empty() || pattern.len() > LONGEST_PATTERN {
                let why = format!("a pattern must have 1 to {LONGEST_PATTERN} bytes");
                return Err(Error::invalid(why));
            }
        }
        let exports = || self.write.iter().chain(&self.read);
        if self.uid.is_some() && exports().any(|pattern| pattern.contains(OWN_NAME)) {
            return Err(Error::invalid(
                "{name} is the name in a certificate, and this is of a uid",
            ));
        }
        let mut clients = self.certificate.iter().chain(&self.chap);
        if clients.any(|pattern| pattern.contains(OWN_NAME)) {
            return Err(Error::invalid("{name} is for exports; write * for any certificate"));
        }
        Ok(())
    }

    fn is_about(&self, peer: &Peer) -> bool {
        let by_certificate = match (&self.certificate, &peer.certificate) {
            (Some(pattern), Some(name)) => matches(pattern, None, name),
            _ => false,
        };
        let by_user = match (self.uid, &peer.transport) {
            (Some(wanted), Transport::Unix { uid, .. }) => wanted == *uid,
            _ => false,
        };
        let by_secret = match (&self.chap, &peer.user) {
            (Some(pattern), Some(name)) => matches(pattern, None, name),
            _ => false,
        };
        by_certificate || by_user || by_secret
    }

    fn right(&self, peer: &Peer, export: &str) -> Option<Right> {
        let own = match self.chap {
            Some(_) => peer.user.as_deref(),
            None => peer.certificate.as_deref(),
        };
        let any = |patterns: &[String]| patterns.iter().any(|p| matches(p, own, export));
        match () {
            () if any(&self.write) => Some(Right::Write),
            () if any(&self.read) => Some(Right::Read),
            () => None,
        }
    }
}

/// All rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    list: Vec<Rule>,
    /// Everybody may do everything.
    open: bool,
}

impl Rules {
    /// These rules. Without any, everybody may do everything, unless `strict`: then nobody may do
    /// anything.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) naming the rule by its number.
    pub fn new(list: Vec<Rule>, strict: bool) -> Result<Self> {
        if list.len() > MOST_RULES {
            return Err(Error::invalid(format!("more than {MOST_RULES} access rules")));
        }
        for (index, rule) in list.iter().enumerate() {
            rule.check().map_err(|e| e.context(format!("access rule {}", index + 1)))?;
        }
        Ok(Self { open: list.is_empty() && !strict, list })
    }

    /// Whether everybody may do everything.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there may be anything that a client may do.
    pub fn speak_of(&self, peer: &Peer) -> bool {
        self.allow_all(peer) || self.list.iter().any(|rule| rule.is_about(peer))
    }

    /// Whether there may be anything that a client may write.
    pub fn may_write(&self, peer: &Peer) -> bool {
        let writes = |rule: &Rule| !rule.write.is_empty() && rule.is_about(peer);
        self.allow_all(peer) || self.list.iter().any(writes)
    }

    /// Who talks to this process over its standard input and output started it, and may do
    /// everything; unless a certificate says for whom it talks.
    fn allow_all(&self, peer: &Peer) -> bool {
        self.open || (peer.transport == Transport::Stdio && peer.certificate.is_none())
    }

    /// What a client may do with the export of this name; `None`: nothing.
    pub fn right(&self, peer: &Peer, export: &str) -> Option<Right> {
        if self.allow_all(peer) {
            return Some(Right::Write);
        }
        let about = self.list.iter().filter(|rule| rule.is_about(peer));
        about.filter_map(|rule| rule.right(peer, export)).max()
    }
}

/// Whether all of `text` is as `pattern` says. Takes at most the product of their lengths in time.
pub(crate) fn matches(pattern: &str, own: Option<&str>, text: &str) -> bool {
    /// A part of a pattern between others.
    #[derive(Clone, Copy)]
    enum PatternPart<'a> {
        Any,
        Text(&'a str),
    }
    let mut pieces = Vec::new();
    for (index, part) in pattern.split('*').enumerate() {
        if index > 0 {
            pieces.push(PatternPart::Any);
        }
        for (index, literal) in part.split(OWN_NAME).enumerate() {
            if index > 0 {
                let Some(own) = own else { return false };
                pieces.push(PatternPart::Text(own)); // as it is: a name is no pattern
            }
            pieces.push(PatternPart::Text(literal));
        }
    }
    // Greedy with one point to return to: the last `*` takes one byte more.
    let (mut piece, mut rest, mut again) = (0, text.as_bytes(), None);
    loop {
        match pieces.get(piece) {
            Some(PatternPart::Any) => {
                piece += 1;
                again = Some((piece, rest));
                continue;
            }
            Some(PatternPart::Text(literal)) => {
                if let Some(after) = rest.strip_prefix(literal.as_bytes()) {
                    piece += 1;
                    rest = after;
                    continue;
                }
            }
            None if rest.is_empty() => return true,
            None => {}
        }
        match again {
            Some((after_star, from)) if !from.is_empty() => {
                again = Some((after_star, &from[1..]));
                piece = after_star;
                rest = &from[1..];
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tcp() -> Peer {
        Peer::tcp("192.0.2.1:7".parse().unwrap())
    }

    fn certified(name: &str) -> Peer {
        tcp().certified(name.to_owned())
    }

    fn rule(certificate: &str, write: &[&str], read: &[&str]) -> Rule {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let certificate = Some(certificate.to_owned());
        Rule { certificate, write: own(write), read: own(read), ..Rule::default() }
    }

    #[test]
    fn a_secret_is_not_a_certificate_of_the_same_name() {
        let proven = tcp().proven("alice".to_owned());
        let by_secret =
            Rule { chap: Some("*".into()), write: vec!["{name}".into()], ..Rule::default() };
        let rules = Rules::new(vec![by_secret], false).unwrap();
        assert_eq!(rules.right(&proven, "alice"), Some(Right::Write));
        assert_eq!(rules.right(&proven, "bob"), None);
        assert_eq!(rules.right(&certified("alice"), "alice"), None);
        assert_eq!(rules.right(&tcp(), "alice"), None);
        let by_certificate = Rules::new(vec![rule("*", &["*"], &[])], false).unwrap();
        assert_eq!(by_certificate.right(&proven, "alice"), None);
    }

    #[test]
    fn without_rules_everybody_may_unless_it_is_strict() {
        assert_eq!(Rules::default().right(&tcp(), "a"), None);
        let open = Rules::new(Vec::new(), false).unwrap();
        assert_eq!(open.right(&tcp(), "a"), Some(Right::Write));
        let strict = Rules::new(Vec::new(), true).unwrap();
        assert_eq!(strict.right(&tcp(), "a"), None);
        assert_eq!(strict.right(&certified("a"), "a"), None);
    }

    #[test]
    fn what_no_rule_allows_is_denied() {
        let rules = vec![rule("alice", &["a"], &["debian", "debian:*"]), rule("bob", &["b"], &[])];
        let rules = Rules::new(rules, false).unwrap();
        assert_eq!(rules.right(&certified("alice"), "a"), Some(Right::Write));
        assert_eq!(rules.right(&certified("alice"), "debian:7"), Some(Right::Read));
        assert_eq!(rules.right(&certified("alice"), "b"), None);
        assert_eq!(rules.right(&certified("bob"), "a"), None);
        assert_eq!(rules.right(&certified("carol"), "a"), None);
        assert_eq!(rules.right(&tcp(), "a"), None);
        assert_eq!(rules.right(&Peer::unix(0, Some(1)), "a"), None);
        assert_eq!(rules.right(&Peer::stdio(), "a"), Some(Right::Write));
        // One that shows a certificate is who that says, however it comes.
        let certified = Peer::stdio().certified("mallory".into());
        assert_eq!((rules.right(&certified, "a"), rules.speak_of(&certified)), (None, false));
    }

    #[test]
    fn the_strongest_right_of_all_rules_counts() {
        let rules = vec![rule("*", &[], &["*"]), rule("a*", &["x"], &[])];
        let rules = Rules::new(rules, false).unwrap();
        assert_eq!(rules.right(&certified("alice"), "x"), Some(Right::Write));
        assert_eq!(rules.right(&certified("alice"), "y"), Some(Right::Read));
        assert_eq!(rules.right(&certified("bob"), "x"), Some(Right::Read));
    }

    #[test]
    fn a_user_id_counts_on_unix_sockets_alone() {
        let user = Rule { uid: Some(1000), write: vec!["*".into()], ..Rule::default() };
        let rules = Rules::new(vec![user], false).unwrap();
        assert_eq!(rules.right(&Peer::unix(1000, None), "a"), Some(Right::Write));
        assert_eq!(rules.right(&Peer::unix(0, None), "a"), None);
        assert_eq!(rules.right(&certified("1000"), "a"), None);
    }

    #[test]
    fn each_client_may_have_the_disk_of_its_own_name() {
        let rules = Rules::new(vec![rule("*", &["{name}", "home-{name}-*"], &[])], false).unwrap();
        assert_eq!(rules.right(&certified("pc7"), "pc7"), Some(Right::Write));
        assert_eq!(rules.right(&certified("pc7"), "home-pc7-1"), Some(Right::Write));
        assert_eq!(rules.right(&certified("pc7"), "home-pc77-1"), None);
        assert_eq!(rules.right(&certified("pc7"), "pc8"), None);
    }

    #[test]
    fn rules_speak_of_those_who_may_do_anything() {
        let user = Rule { uid: Some(7), write: vec!["a".into()], ..Rule::default() };
        let rules = Rules::new(vec![rule("al*", &["a"], &[]), user], false).unwrap();
        let spoken_of = [certified("alice"), Peer::unix(7, None), Peer::stdio()];
        assert!(spoken_of.iter().all(|peer| rules.speak_of(peer)));
        let others = [tcp(), certified("bob"), Peer::unix(0, Some(1))];
        assert!(!others.iter().any(|peer| rules.speak_of(peer)));
        assert!(Rules::new(Vec::new(), false).unwrap().speak_of(&tcp()));
        assert!(!Rules::default().speak_of(&certified("alice")));
        let reader = Rules::new(vec![rule("al*", &[], &["a"])], false).unwrap();
        assert!(rules.may_write(&certified("alice")) && !reader.may_write(&certified("alice")));
    }

    #[test]
    fn rules_that_cannot_be_meant_are_refused() {
        let both = Rule { uid: Some(1), ..rule("a", &["a"], &[]) };
        let neither = Rule { certificate: None, ..rule("a", &["a"], &[]) };
        let of_user = Rule { certificate: None, uid: Some(1), ..rule("a", &["{name}"], &[]) };
        for wrong in [
            both,
            neither,
            of_user,
            rule("a", &[], &[]),
            rule("", &["a"], &[]),
            rule("{name}", &["a"], &[]),
            rule("a", &["a"], &[""]),
            rule("a", &[&"x".repeat(513)], &[]),
        ] {
            let error = Rules::new(vec![rule("a", &["a"], &[]), wrong], false).unwrap_err();
            assert!(error.message().starts_with("access rule 2: "), "{error}");
        }
    }

    /// The meaning, by trying everything that a `*` may stand for.
    fn simple(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|n| simple(rest, &text[n..])),
            Some((byte, rest)) => text
                .split_first()
                .is_some_and(|(first, after)| first == byte && simple(rest, after)),
        }
    }

    proptest! {
        #[test]
        fn patterns_mean_what_they_say(pattern in "[ab*]{0,9}", text in "[ab]{0,12}") {
            prop_assert_eq!(matches(&pattern, None, &text), simple(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn a_name_in_a_pattern_is_no_pattern(own in "[ab*]{1,4}", text in "[ab*]{0,6}") {
            prop_assert_eq!(matches("{name}", Some(&own), &text), own == text);
        }
    }
}

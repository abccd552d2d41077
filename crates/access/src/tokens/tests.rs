use super::*;
use proptest::prelude::*;

const NOW: u64 = 1_800_000_000;

fn token(name: &str) -> Token {
    Token {
        name: name.to_owned(),
        right: TokenRight::Read,
        disks: None,
        images: None,
        created: NOW,
        expires: None,
    }
}

fn limited(disks: &[&str], images: &[&str]) -> Token {
    let own = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|one| (*one).to_owned()).collect();
        (!list.is_empty()).then_some(list)
    };
    Token { disks: own(disks), images: own(images), ..token("t") }
}

#[test]
fn a_token_is_found_by_its_text_until_it_expires_or_is_revoked() {
    let mut tokens = Tokens::default();
    let first = tokens.add(token("first"), [1; 32]).unwrap();
    let ends = Token { expires: Some(NOW + 10), ..token("second") };
    let second = tokens.add(ends, [2; 32]).unwrap();
    assert!(first.starts_with(PREFIX) && first.len() == PREFIX.len() + 64, "{first}");
    assert_eq!(tokens.find(&first, NOW).unwrap().name, "first");
    assert_eq!(tokens.find(&second, NOW + 9).unwrap().name, "second");
    let late = tokens.find(&second, NOW + 10).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Denied);
    assert!(late.message().contains("second has expired"), "{late}");
    tokens.revoke("first").unwrap();
    assert_eq!(tokens.find(&first, NOW).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(tokens.revoke("first").unwrap_err().kind(), ErrorKind::NotFound);
    for forged in ["", PREFIX, "first", &second[..second.len() - 1], &second.to_uppercase()] {
        assert_eq!(tokens.find(forged, NOW).unwrap_err().kind(), ErrorKind::Denied, "{forged}");
    }
}

#[test]
fn the_list_holds_no_token_and_is_read_back() {
    let mut tokens = Tokens::default();
    let text = tokens.add(limited(&["ci-*"], &["debian"]), [7; 32]).unwrap();
    let written = tokens.text().unwrap();
    assert!(!written.contains(&text[PREFIX.len()..]), "{written}");
    assert!(!format!("{tokens:?}").contains(&hex(&TokenHash::of(&text).0)));
    let read = Tokens::parse(written.as_bytes()).unwrap();
    assert_eq!(read, tokens);
    assert_eq!(read.find(&text, NOW).unwrap().disks, Some(vec!["ci-*".to_owned()]));
}

#[test]
fn a_token_is_for_what_its_patterns_name_and_for_everything_without_any() {
    assert!(token("t").covers_disk("x") && token("t").covers_image("x:1"));
    let one = limited(&["alice", "ci-*"], &[]);
    assert!(one.covers_disk("alice") && one.covers_disk("ci-7"));
    assert!(!one.covers_disk("alice2") && !one.covers_disk("bob") && !one.covers_image("alice"));
    let image = limited(&[], &["debian", "win:1*"]);
    assert!(image.covers_image("debian") && image.covers_image("debian:7"));
    assert!(image.covers_image("win:11") && !image.covers_image("win:2"));
    assert!(!image.covers_image("win") && !image.covers_image("debian2:1"));
    assert!(!image.covers_disk("debian"));
}

#[test]
fn rights_are_a_ladder() {
    assert!(TokenRight::Read < TokenRight::Operate && TokenRight::Operate < TokenRight::Admin);
}

#[test]
fn tokens_that_cannot_be_meant_are_refused() {
    let mut tokens = Tokens::default();
    tokens.add(token("a"), [1; 32]).unwrap();
    let empty = Token { disks: Some(Vec::new()), ..token("b") };
    for wrong in [
        token(""),
        token("a b"),
        token("../x"),
        limited(&[""], &[]),
        limited(&["{name}"], &[]),
        limited(&[&"x".repeat(513)], &[]),
        limited(&vec!["x"; 1001], &[]),
        empty,
    ] {
        assert_eq!(tokens.add(wrong, [2; 32]).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(tokens.add(token("a"), [2; 32]).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(tokens.iter().count(), 1);
}

#[test]
fn a_damaged_list_is_refused_and_one_of_another_version_by_its_number() {
    let hash = "0".repeat(64);
    let entry = format!(r#"{{"name":"a","right":"read","created":1,"sha256":"{hash}"}}"#);
    let list = |version: u64, entries: &str| {
        Tokens::parse(format!(r#"{{"version":{version},"tokens":[{entries}]}}"#).as_bytes())
    };
    assert_eq!(list(1, &entry).unwrap().iter().count(), 1);
    let newer = list(2, &entry).unwrap_err();
    assert_eq!(newer.kind(), ErrorKind::Unsupported);
    assert!(newer.message().contains("version 2"), "{newer}");
    for wrong in [
        entry.replace("read", "root"),
        entry.replace(&hash, "00"),
        entry.replace(&hash, &"g".repeat(64)),
        entry.replace(&hash, &"é".repeat(32)),
        entry.replace("\"a\"", "\"\""),
        entry.replace("created\":1", "created\":-1"),
        format!("{entry},{entry}"),
        entry.replace("\"created\"", "\"disks\":[],\"created\""),
    ] {
        assert_eq!(list(1, &wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
    }
    // A limit that this program does not know would not be kept.
    let unknown = entry.replace("\"created\"", "\"networks\":[\"192.0.2.0/24\"],\"created\"");
    assert_eq!(list(1, &unknown).unwrap_err().kind(), ErrorKind::Invalid);
}

proptest! {
    #[test]
    fn no_list_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "[\\[\\]{}\",:a-z0-9]{0,80}") {
        let _ = Tokens::parse(&bytes);
        let _ = Tokens::parse(format!(r#"{{"version":1,"tokens":{text}}}"#).as_bytes());
    }

    #[test]
    fn what_is_written_is_read(
        names in prop::collection::btree_set("[a-z0-9][a-z0-9._@-]{0,20}", 0..6),
        patterns in prop::collection::vec("[a-z*-]{1,8}", 1..4),
        right in 0..3usize,
        limits in 0..4u8,
        expires in prop::option::of(any::<u64>()),
    ) {
        let right = [TokenRight::Read, TokenRight::Operate, TokenRight::Admin][right];
        let mut tokens = Tokens::default();
        for (n, name) in names.iter().enumerate() {
            let limit = |bit: u8| (limits & bit != 0).then(|| patterns.clone());
            let token = Token { right, disks: limit(1), images: limit(2), expires, ..token(name) };
            tokens.add(token, [n as u8; 32]).unwrap();
        }
        prop_assert_eq!(Tokens::parse(tokens.text().unwrap().as_bytes()).unwrap(), tokens);
    }

    #[test]
    fn nobody_guesses_a_token(random in any::<[u8; 32]>(), text in ".{0,90}") {
        let mut tokens = Tokens::default();
        let right = tokens.add(token("t"), random).unwrap();
        prop_assert_eq!(tokens.find(&text, NOW).is_ok(), text == right);
    }
}

use super::*;
use proptest::prelude::*;

const NAME: &str = "iqn.2026-11.test:one";

fn request(stage: u8, next: Option<u8>) -> LoginPdu {
    LoginPdu {
        transit: next.is_some(),
        more: false,
        stage,
        next: next.unwrap_or(0),
        version: 0,
        isid: [1; 6],
        tsih: 0,
        tag: 7,
        cid: 0,
        cmd_sn: 1,
    }
}

fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pairs.iter().for_each(|(key, value)| text::push(&mut bytes, key, value));
    bytes
}

fn value<'a>(answer: &'a LoginReply, key: &str) -> Option<&'a str> {
    let pairs = text::parse(&answer.text).unwrap();
    pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

fn open() -> Login {
    Login::new(None, [3; CHALLENGE + 1])
}

fn guarded() -> Login {
    let secrets =
        Secrets::parse("alice:open sesame!!\nbob:correct horse:me:battery staple").unwrap();
    Login::new(Some(Arc::new(secrets)), [3; CHALLENGE + 1])
}

const INTRODUCTION: [(&str, &str); 2] = [("InitiatorName", NAME), ("TargetName", "t")];

#[test]
fn one_step_is_enough_where_nobody_is_asked_who_he_is() {
    let mut login = open();
    let answer = login.receive(&request(1, Some(3)), &text(&INTRODUCTION)).unwrap();
    assert!(answer.done);
    assert_eq!(answer.flags, 0x87);
    assert_eq!(value(&answer, "TargetPortalGroupTag"), Some("1"));
    assert_eq!(value(&answer, "MaxRecvDataSegmentLength"), Some("262144"));
    let agreed = login.agreed().unwrap();
    assert_eq!(agreed.session, SessionType::Normal("t".into()));
    assert_eq!(agreed.initiator, NAME);
}

#[test]
fn a_text_may_come_in_pieces() {
    let mut login = open();
    let bytes = text(&INTRODUCTION);
    let more = LoginPdu { more: true, transit: false, ..request(1, None) };
    for byte in &bytes[..20] {
        let answer = login.receive(&more, &[*byte]).unwrap();
        assert!(answer.text.is_empty() && !answer.done);
    }
    assert!(login.receive(&request(1, Some(3)), &bytes[20..]).unwrap().done);
}

#[test]
fn keys_that_are_not_known_are_answered_and_change_nothing() {
    let mut login = open();
    let mut pairs = INTRODUCTION.to_vec();
    pairs.extend([("X-strange", "1"), ("Other", "NotUnderstood")]);
    let answer = login.receive(&request(1, Some(3)), &text(&pairs)).unwrap();
    assert_eq!(value(&answer, "X-strange"), Some("NotUnderstood"));
    assert_eq!(value(&answer, "Other"), None);
}

/// Goes through CHAP as `user` with `secret`; the last answer.
fn chap(
    login: &mut Login,
    user: &str,
    secret: &str,
    more: &[(&str, &str)],
) -> Result<LoginReply, LoginRefusal> {
    let mut pairs = INTRODUCTION.to_vec();
    pairs.push(("AuthMethod", "CHAP,None"));
    let answer = login.receive(&request(0, Some(1)), &text(&pairs))?;
    assert_eq!((answer.flags, value(&answer, "AuthMethod")), (0, Some("CHAP")));
    let answer = login.receive(&request(0, None), &text(&[("CHAP_A", "5")]))?;
    let challenge = text::binary(value(&answer, "CHAP_C").unwrap(), 64).unwrap();
    let id = value(&answer, "CHAP_I").unwrap().parse().unwrap();
    let proof = text::hex(&Algorithm::Md5.answer(id, secret.as_bytes(), &challenge));
    let mut pairs = vec![("CHAP_N", user), ("CHAP_R", proof.as_str())];
    pairs.extend(more);
    login.receive(&request(0, Some(1)), &text(&pairs))
}

#[test]
fn who_knows_the_secret_comes_in() {
    let mut login = guarded();
    let answer = chap(&mut login, "alice", "open sesame!!", &[]).unwrap();
    assert_eq!(answer.flags, 0x81);
    assert!(login.receive(&request(1, Some(3)), &[]).unwrap().done);
    assert_eq!(login.agreed().unwrap().user.as_deref(), Some("alice"));
}

#[test]
fn who_does_not_know_it_stays_out() {
    for (user, secret) in [("alice", "open sesame??"), ("carol", "open sesame!!"), ("bob", "")] {
        let refusal = chap(&mut guarded(), user, secret, &[]).unwrap_err();
        assert_eq!(refusal.status, (2, 1), "{user}");
    }
    for first in [request(1, Some(3)), request(1, None)] {
        let refusal = guarded().receive(&first, &text(&INTRODUCTION)).unwrap_err();
        assert_eq!(refusal.status, (2, 1), "the stage is skipped");
    }
    let mut pairs = INTRODUCTION.to_vec();
    pairs.push(("AuthMethod", "None"));
    let refusal = guarded().receive(&request(0, Some(3)), &text(&pairs)).unwrap_err();
    assert_eq!(refusal.status, (2, 1));
    // Without a word of it, there is no next stage.
    let mut login = guarded();
    let answer = login.receive(&request(0, Some(3)), &text(&INTRODUCTION)).unwrap();
    assert!(!answer.done && answer.flags == 0);
    assert!(login.receive(&request(1, Some(3)), &[]).is_err());
}

#[test]
fn the_target_proves_itself_to_who_asks() {
    let theirs = [("CHAP_I", "9"), ("CHAP_C", "0x0102030405060708")];
    let answer = chap(&mut guarded(), "bob", "correct horse", &theirs).unwrap();
    let expected = Algorithm::Md5.answer(9, b"battery staple", &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(value(&answer, "CHAP_R"), Some(text::hex(&expected).as_str()));
    assert_eq!(value(&answer, "CHAP_N"), Some("me"));
    let refusal = chap(&mut guarded(), "alice", "open sesame!!", &theirs).unwrap_err();
    assert_eq!(refusal.status, (2, 1), "there is no secret of the target for her");
    let ours = text::hex(&[3; CHALLENGE]);
    let reflected = [("CHAP_I", "9"), ("CHAP_C", ours.as_str())];
    assert!(chap(&mut guarded(), "bob", "correct horse", &reflected).is_err());
}

#[test]
fn wrong_order_ends_the_login() {
    let introduced = text(&INTRODUCTION);
    for first in [
        LoginPdu { version: 1, ..request(1, Some(3)) },
        LoginPdu { tsih: 5, ..request(1, Some(3)) },
        LoginPdu { more: true, ..request(1, Some(3)) },
        request(2, None),
        request(3, None),
        request(1, Some(1)),
        request(1, Some(2)),
        request(0, Some(0)),
    ] {
        assert!(open().receive(&first, &introduced).is_err(), "{first:?}");
    }
    for second in [
        request(0, None),
        LoginPdu { tag: 8, ..request(1, None) },
        LoginPdu { isid: [2; 6], ..request(1, None) },
    ] {
        let mut login = open();
        login.receive(&request(1, None), &introduced).unwrap();
        assert!(login.receive(&second, &[]).is_err(), "{second:?}");
    }
    for missing in [&text(&INTRODUCTION[..1]), &text(&INTRODUCTION[1..]), &Vec::new()] {
        assert_eq!(open().receive(&request(1, Some(3)), missing).unwrap_err().status, (2, 7));
    }
}

#[test]
fn a_login_is_bounded() {
    let mut login = open();
    let more = LoginPdu { more: true, ..request(1, None) };
    let steps = (0..100).take_while(|_| login.receive(&more, &[b'x'; 8000]).is_ok()).count();
    assert_eq!(steps, 8, "64 KiB of text");
    let mut login = open();
    login.receive(&request(1, None), &text(&INTRODUCTION)).unwrap();
    let steps = (0..100).take_while(|_| login.receive(&request(1, None), &[]).is_ok()).count();
    assert!(steps < 64, "{steps}");
}

proptest! {
    #[test]
    fn nobody_comes_in_without_a_secret(
        steps in prop::collection::vec(
            (0u8..4, 0u8..4, any::<(bool, bool)>(), prop::collection::vec(
                (
                    prop::sample::select(vec![
                        "InitiatorName", "TargetName", "AuthMethod", "CHAP_A", "CHAP_N", "CHAP_R",
                        "CHAP_I", "CHAP_C", "SessionType", "HeaderDigest",
                    ]),
                    prop::sample::select(vec![
                        "alice", "CHAP", "None", "5", "7", "0x00", "Discovery", "Normal", "CRC32C",
                    ]),
                ), 0..5)),
            1..8),
    ) {
        let mut login = guarded();
        for (stage, next, (transit, more), pairs) in steps {
            let request = LoginPdu { stage, next, transit, more, ..request(0, None) };
            match login.receive(&request, &text(&pairs)) {
                Ok(answer) => prop_assert!(!answer.done),
                Err(_) => break,
            }
        }
    }
}

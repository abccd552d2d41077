//! Tokens as the command line makes, shows and revokes them.

use crate::common::Lab;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_token_is_shown_once_and_kept_as_a_hash() {
    let lab = Lab::new();
    let secret = lab.line("token create ci --admin --disk ci-* --image debian --days 30").ok();
    let secret = secret.trim();
    assert!(secret.starts_with("sojourn_") && secret.len() == 8 + 64, "{secret}");
    let made = lab.json("token create grafana --read");
    assert_eq!((&made["right"], &made["expires"]), (&"read".into(), &serde_json::Value::Null));
    assert!(made["secret"].as_str().unwrap().starts_with("sojourn_"));

    let file = lab.home().join("tokens.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let listed = lab.line("--json token list").ok();
    let kept = std::fs::read_to_string(&file).unwrap();
    for text in [&listed, &lab.line("token list").ok(), &kept] {
        assert!(!text.contains(&secret["sojourn_".len()..]), "{text}");
    }
    let list: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(list[0]["name"], "ci");
    assert_eq!(list[0]["disks"], serde_json::json!(["ci-*"]));
    let held = list[0]["expires"].as_u64().unwrap() - list[0]["created"].as_u64().unwrap();
    assert_eq!((held, &list[0]["expired"]), (30 * 86_400, &false.into()));
    assert!(!kept.contains("secret"), "{kept}");

    lab.line("token create ci --read").fails(4, &["ci", "revoke"]);
    lab.line("token revoke ci").ok();
    lab.line("token revoke ci").fails(3, &["ci", "token list"]);
    assert_eq!(lab.json("token list").as_array().unwrap().len(), 1);
}

#[test]
fn a_token_without_a_right_or_with_a_wrong_limit_is_not_made() {
    let lab = Lab::new();
    for line in
        ["token create a", "token create a --read --admin", "token create a --read --days 0"]
    {
        assert_eq!(lab.line(line).code, 2, "{line}");
    }
    lab.line("token create a --read --disk {name}").fails(2, &["{name}"]);
    lab.line("token create .. --read").fails(2, &["not a token's name"]);
    assert!(!lab.home().join("tokens.json").exists());
    Lab::empty().line("token list").fails(3, &["init"]);
}

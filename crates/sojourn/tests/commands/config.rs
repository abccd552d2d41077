//! `sojourn config check`.

use crate::common::Lab;
use serde_json::Value;

#[test]
fn the_configuration_of_a_new_home_is_valid_and_says_its_settings() {
    let lab = Lab::new();
    let said = lab.line("config check").ok();
    assert!(said.contains("sojourn.toml is valid") && said.contains("256 MiB"), "{said}");
    let checked = lab.json("config check");
    assert_eq!(checked["valid"], true);
    let of = |key: &str| {
        let all = checked["settings"].as_array().unwrap();
        all.iter().find(|one| one["key"] == key).unwrap().clone()
    };
    assert_eq!(of("cache.size")["value"], 256 << 20);
    assert_eq!(of("cache.size")["line"], Value::Null);
    assert_eq!(of("serve.nbd")["value"][0], "unix:nbd.sock");
}

#[test]
fn all_mistakes_of_a_file_are_told() {
    let lab = Lab::empty();
    let file = lab.path("new.toml");
    std::fs::write(
        &file,
        "[cache]\nsise = 1\nsize = \"2MiB\"\n\n[serve]\nnbd = [\"0.0.0.0:1\"]\nloads = 9999\n",
    )
    .unwrap();
    let done = lab.line("config check new.toml");
    assert_eq!(done.code, 2, "{}", done.stderr);
    for line in ["line 2: ", "line 6: ", "line 7: "] {
        assert!(done.stdout.contains(line), "{}", done.stdout);
    }
    done.fails(2, &["new.toml", "3 mistakes"]);
    let done = lab.line("--json config check new.toml");
    let told: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(told["mistakes"].as_array().unwrap().len(), 3, "{told}");
    assert_eq!(told["settings"], Value::Null);
    // What was mended is valid, without a home.
    std::fs::write(&file, "[cache]\nsize = \"2MiB\"\n").unwrap();
    lab.line("config check new.toml").ok();
}

#[test]
fn what_is_no_configuration_is_named() {
    let lab = Lab::new();
    std::fs::write(lab.path("binary"), b"store = \"s\"\n\xff\xfe").unwrap();
    lab.line("config check binary").fails(2, &["binary", "line 2", "UTF-8"]);
    lab.line("config check missing").fails(3, &["missing"]);
    Lab::empty().line("config check").fails(3, &["sojourn.toml", "init"]);
}

use super::Config;
use super::template::TEMPLATE;
use super::throttle::ThrottleRule;
use access::Rule;
use block::{ByteSize, ErrorKind};
use cache::PolicyKind;
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}", key in "[a-z.]{1,12}", value in "[-0-9a-zA-Z\"\\[\\]]{0,12}") {
        let _ = Config::parse(&text);
        let _ = Config::parse(&format!("{text}\n{key} = {value}\n"));
    }
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(Config::parse("").unwrap(), Config::default());
}

#[test]
fn the_template_says_the_defaults() {
    let template = Config::template(None, None).unwrap();
    assert_eq!(Config::parse(&template).unwrap(), Config::default());
    let uncommented: String = template
        .lines()
        .filter(|line| line.contains(" = ") || line.starts_with('['))
        .map(|line| format!("{}\n", line.trim_start_matches("# ")))
        .collect();
    let mut expected = Config { key_file: Some("store.key".into()), ..Config::default() };
    expected.access = vec![Rule {
        certificate: Some("alice".into()),
        write: vec!["alice".into()],
        read: vec!["debian".into(), "debian:*".into()],
        ..Rule::default()
    }];
    expected.throttle = vec![ThrottleRule {
        exports: vec!["alice".into()],
        ..ThrottleRule::for_all(Some("hdd-7200".into()), None, None)
    }];
    expected.trace.dir = Some("traces".into());
    expected.serve.http = Some("127.0.0.1:9180".into());
    expected.serve.http_names = vec!["lab.example.org".into()];
    expected.serve.busy_poll_us = Some(200);
    expected.serve.iscsi = vec!["127.0.0.1:3260".into()];
    expected.serve.iscsi_chap = Some("chap".into());
    expected.serve.vhost_user = Some("vhost-user".into());
    expected.serve.gateway = Some("0.0.0.0:9443".into());
    assert_eq!(Config::parse(&uncommented).unwrap(), expected);
}

#[test]
fn the_documentation_names_every_key_and_its_example_is_valid() {
    let page = include_str!("../../../../docs/config.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(Config::parse(example).unwrap().cache.size, ByteSize(4 << 30));
    let mut table = String::new();
    for line in TEMPLATE.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") {
            assert!(page.contains(&format!("| `{table}{key}` |")), "{table}{key}");
        }
    }
}

#[test]
fn the_template_and_the_documentation_name_the_policies_that_serve() {
    let page = include_str!("../../../../docs/config.md");
    let line =
        |text: &'static str, begin: &str| text.lines().find(|l| l.starts_with(begin)).unwrap();
    let row = line(page, "| `cache.policy` |");
    let template = line(TEMPLATE, "# policy = ");
    let words: Vec<_> = template.split(|c: char| !c.is_alphanumeric()).collect();
    for kind in PolicyKind::all() {
        let name = kind.as_str();
        assert_eq!(row.contains(&format!("`{name}`")), kind.serves(), "docs/config.md: {name}");
        assert_eq!(words.contains(&name), kind.serves(), "the template: {name}");
    }
}

#[test]
fn a_store_with_quotes_in_its_path_survives_the_template() {
    let store = "/srv/a \"b\" \\c";
    let template = Config::template(Some(store), None).unwrap();
    assert_eq!(Config::parse(&template).unwrap().store, store);
}

#[test]
fn errors_name_the_line_and_the_key() {
    for (text, line, word) in [
        ("\n[cache]\nsise = 3\n", "line 3", "sise"),
        ("[cache]\nsize = \"lots\"\n", "line 2", "lots"),
        ("[cache]\nsize = -1\n", "line 2", "a number of bytes"),
        ("[cache]\npolicy = \"magic\"\n", "line 2", "magic"),
        ("[limits]\nconnections = \"many\"\n", "line 2", "connections"),
        ("[serve]\nhttp = 7\n", "line 2", "http"),
        ("nonsense", "line 1", "nonsense"),
        ("[serve]\nidle_seconds = \"soon\"\n", "line 2", "30 or \"30s\""),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(line), "{text}: {error}");
        assert!(error.message().contains(word), "{text}: {error}");
    }
}

#[test]
fn values_out_of_range_are_refused_by_their_key() {
    for (text, key) in [
        ("store = \"\"", "store"),
        ("pieces.size = 1", "pieces.size"),
        ("trace.size = 1", "trace.size"),
        ("pieces.dir = \"\"", "pieces.dir"),
        ("limits.connections = 0", "limits.connections"),
        ("limits.request = \"1GiB\"", "limits.request"),
        ("limits.in_flight = 1", "limits.in_flight"),
        ("limits.client_bandwidth = \"64KiB\"", "limits.client_bandwidth"),
        ("serve.idle_seconds = 10000000", "serve.idle_seconds"),
        ("serve.gateway = \"here\"", "serve.gateway"),
        ("serve.loads = 5000", "serve.loads"),
        ("serve.store_disk = \"ssd-sata\"", "serve.store_disk"),
        ("serve.read_ahead = \"1GiB\"", "serve.read_ahead"),
        ("serve.slow_ms = 100000000", "serve.slow_ms"),
        ("serve.busy_poll_us = 1001", "serve.busy_poll_us"),
        ("log.level = \"=?=\"", "log.level"),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert!(error.message().starts_with(key), "{text}: {error}");
    }
}

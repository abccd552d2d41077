use super::*;
use proptest::prelude::*;

/// The lines of the mistakes, and what all of them say.
fn told(text: &str) -> (Vec<Option<usize>>, String) {
    let found = examine(text).mistakes;
    let all = found.iter().map(|mistake| format!("{}\n", mistake.text)).collect();
    (found.iter().map(|mistake| mistake.line).collect(), all)
}

#[test]
fn every_mistake_is_told_with_its_line() {
    let text = "\
store = \"s\"
stroe = \"t\"
access = [
  { certificate = \"a\", wirte = [\"x\"] },
  { certificate = \"b\" },
  { certificate = \"c\", read = [\"y\"] },
]

[cache]
size = \"lots\"
policy = \"fifo\"

[serve]
nbd = [\"unix:a\", \"nonsense\", \"unix:a\"]
idle_seconds = 10000000
http = \"0.0.0.0:80\"
";
    let (lines, all) = told(text);
    // What no server would begin with is looked for in what can be read.
    assert_eq!(lines, [2, 4, 5, 10, 11, 14, 14, 15, 16].map(Some), "{all}");
    for word in ["stroe", "wirte", "allows nothing", "lots", "comparisons", "twice", "idle_seconds"]
    {
        assert!(all.contains(word), "{word}: {all}");
    }
}

#[test]
fn what_no_server_begins_with_is_a_mistake() {
    for (text, line, word) in [
        ("[[throttle]]\ntimes = -1\n", 1, "times"),
        ("[[throttle]]\nfail = 2\n", 1, "fail"),
        ("[[throttle]]\nbad = [\"x-y\"]\n", 1, "x-y"),
        ("[[throttle]]\nstall = { part = 0.5, ms = -3 }\n", 1, "stall"),
        ("[[throttle]]\nprofile = \"no-such\"\n", 1, "no-such"),
        ("\n[cache]\nsize = \"1KiB\"\n", 3, "holds no chunk"),
        ("\nstore = \"foo://x\"\n", 2, "foo"),
        ("store = \"s3://\"\n", 1, "bucket"),
        ("[serve]\nnbd = []\n", 2, "nothing to listen at"),
        ("[serve]\niscsi = [\"127.0.0.1:1\", \"127.0.0.1:1\"]\n", 2, "twice"),
    ] {
        let (lines, all) = told(text);
        assert_eq!(lines, [Some(line)], "{text}: {all}");
        assert!(all.contains(word), "{text}: {all}");
    }
    let good = "[cache]\nsize = 0\n[[throttle]]\ntimes = 2.0\nbad = [\"1M-2M\"]\n";
    assert_eq!(told(good).0, [], "{}", told(good).1);
}

#[test]
fn a_second_section_is_looked_into() {
    let (lines, all) =
        told("[serve]\nstop_seconds = 1\n[cache]\n[serve]\nspeed = 3\n[log]\nlevel = \"loud\"\n");
    assert_eq!(lines, [4, 5, 7].map(Some), "{all}");
}

#[test]
fn what_is_no_toml_hides_no_more_than_it_must() {
    let (lines, all) = told("nonsense\n[cache]\nsise = 1\n");
    assert_eq!(lines, [1, 3].map(Some), "{all}");
    let (lines, all) =
        told("sources = [\"a\"\nstore = \"s\"\nkey_file = \"k\"\n[cache]\nsise = 1\n");
    assert!(lines.len() < 5 && !lines.is_empty(), "{lines:?} {all}");
}

#[test]
fn rules_are_found_by_their_numbers_in_both_forms() {
    let list = "access = [{ uid = 1, read = [\"}{\"] }, { uid = 2 }, { uid = 3, read = [\"a\"] }, {uid = 4}]\n";
    assert_eq!(told(list).0, [Some(1), Some(1)]);
    let tables = "[[access]]\nuid = 1\nread = [\"a\"]\n[[access]]\nuid = 2\n[[access]]\nuid = 3\n";
    assert_eq!(told(tables).0, [Some(4), Some(6)]);
}

#[test]
fn the_template_has_no_mistake_and_every_key_a_setting() {
    let template = Config::template(None, None).unwrap();
    let Examined { mistakes, config } = examine(&template);
    assert_eq!(mistakes, []);
    let settings = effective::settings(&config.unwrap(), &template);
    let mut section = String::new();
    for line in template.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") {
            let key = format!("{section}{key}");
            let setting = settings.iter().find(|setting| setting.key == key);
            assert_eq!(setting.expect(&key).line, None, "{key}");
        }
    }
}

#[test]
fn settings_say_which_line_they_come_from() {
    let text = "store = \"s\" # here\ncache.size = \"1MiB\"\nserve = { loads = 3 }\n[log]\n\n level = \"warn\"\n\
                [[throttle]]\nprofile = \"hdd-7200\"\n";
    let Examined { mistakes, config } = examine(text);
    assert_eq!(mistakes, []);
    let settings = effective::settings(&config.unwrap(), text);
    let of = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap();
    for (key, line) in
        [("store", 1), ("cache.size", 2), ("serve.loads", 3), ("log.level", 6), ("throttle", 7)]
    {
        assert_eq!(of(key).line, Some(line), "{key}");
    }
    assert_eq!(of("cache.size").value, 1 << 20);
    assert_eq!(of("cache.size").shown.as_deref(), Some("1 MiB"));
    assert_eq!(of("trace.dir").value, serde_json::Value::Null);
    assert_eq!(of("cache.policy").line, None);
}

proptest! {
    #[test]
    fn no_text_panics_and_none_with_mistakes_counts(lines in proptest::collection::vec(
        "(\\[{0,2}(access|cache|serve|x)\\]{0,2}|store = 1|(size|uid|read) = [0-9\\[{]{0,3}|access = \\[|\\{ uid = 1 \\},?|\\]|\"|é.{0,9})",
        0..9,
    )) {
        let text = lines.join("\n");
        let Examined { mistakes, config } = examine(&text);
        prop_assert_eq!(mistakes.is_empty(), config.is_some());
        prop_assert_eq!(Config::parse(&text).is_err(), !mistakes::find(&text).mistakes.is_empty());
    }
}

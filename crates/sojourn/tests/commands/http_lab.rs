//! The lab over HTTP: traces that are sent or were recorded, studied by the command itself.

use crate::common::Lab;
use crate::http_client::{Answer, Api, HOST, audit, served, token};
use serde_json::{Value, json};
use std::fmt::Write;

/// Reads of a few blocks, over and over, and some writes.
fn trace() -> String {
    let mut text = "time_ms,op,offset,length\n".to_owned();
    for at in 0..2000u64 {
        let op = if at % 10 == 0 { "W" } else { "R" };
        let _ = writeln!(text, "{at},{op},{},4096", at * at % 512 * 4096);
    }
    text
}

fn ask(api: &Api, token: &str, question: &str, body: &str) -> Answer {
    let headers = format!(
        "{HOST}authorization: Bearer {token}\r\ncontent-type: application/octet-stream\r\n"
    );
    api.send("POST", &format!("/api/v1/lab/{question}"), &headers, body)
}

#[test]
fn a_trace_that_is_sent_is_answered_as_the_command_does() {
    let (lab, server, api) = served();
    let operator = token(&lab, "operator --operate");
    let trace = trace();
    std::fs::write(lab.path("t.csv"), &trace).unwrap();
    let told = ask(&api, &operator, "stats", &trace).is(200);
    let known = lab.json("trace stats t.csv");
    for field in ["requests", "duration", "operations"] {
        assert_eq!(told[field], known[field], "{field}");
    }
    assert_eq!(told["working_set"]["blocks"], known["working_set"]["blocks"]);
    let hits = ask(&api, &operator, "curves?memory=64KiB,1MiB&format=csv", &trace).is(200);
    let known = lab.json("simulate cache t.csv --size 64KiB,1MiB");
    let rows = |view: &Value| -> Vec<(Value, Value, Value)> {
        let rows = view["rows"].as_array().unwrap().iter();
        rows.map(|r| (r["policy"].clone(), r["bytes"].clone(), r["hit_ratio"].clone())).collect()
    };
    assert_eq!(rows(&hits), rows(&known));
    // As the trace suggests: this one has fewer than a hundred blocks.
    for question in ["curves?format=csv", "tune?format=csv"] {
        ask(&api, &operator, question, &trace).is(200);
    }
    let tuned = ask(&api, &operator, "tune?memory=1MiB", &trace).is(200);
    let known = lab.json("simulate tune t.csv --memory 1MiB");
    for field in ["bytes", "policy", "config", "usual"] {
        assert_eq!(tuned[0][field], known[0][field], "{field}");
    }
    let held = ask(&api, &operator, "predict?memory=64MiB", &trace).is(200);
    let known = lab.json("predict --profile transcom --trace t.csv --memory 64MiB");
    assert_eq!(held["cases"][0]["clients"], known["cases"][0]["clients"]);
    assert_eq!(held["notes"], known["notes"]);
    let noted = audit(&lab);
    let studies = noted.iter().filter(|line| line.to_string().contains("lab.")).count();
    assert_eq!(studies, 6, "{noted:?}");
    // Nothing of them is left.
    let left = std::fs::read_dir(lab.home().join("tmp")).unwrap().count();
    assert_eq!(left, 0);
    assert_eq!(server.stop(), 0);
}

#[test]
fn what_is_no_trace_or_too_long_or_not_allowed_is_refused() {
    let (lab, server, api) = served();
    let operator = token(&lab, "operator --operate");
    let why = ask(&api, &operator, "stats", "no trace at all").is(400);
    assert!(why["message"].as_str().unwrap().starts_with("not a trace of a known"), "{why}");
    for bad in [
        "stats?format=nosuch",
        "curves?memory=--html%3Dx",
        "curves?memory=",
        "tune?memory=1",
        "predict?memory=10%25",
        "stats?colour=red",
    ] {
        ask(&api, &operator, bad, &trace()).is(400);
    }
    let none = ask(&api, &operator, "stats?recording=..%2Ftokens.json", "").is(404);
    assert!(!none.to_string().contains("sojourn_"), "{none}");
    let headers = format!("{HOST}authorization: Bearer {operator}\r\n");
    for kind in ["", "content-type: text/plain\r\n", "content-type: application/json\r\n"] {
        api.send("POST", "/api/v1/lab/stats", &format!("{headers}{kind}"), "{}").is(415);
    }
    let long = "x".repeat((64 << 20) + 1);
    ask(&api, &operator, "stats", &long).is(413);
    let reader = token(&lab, "reader --read");
    ask(&api, &reader, "stats", &trace()).is(403);
    let limited = token(&lab, "limited --operate --disk alice");
    ask(&api, &limited, "stats", &trace()).is(403);
    assert_eq!(api.get(&reader, "/lab/recordings").is(200), json!({"recordings": []}));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_trace_that_the_server_recorded_is_studied_there() {
    let (lab, _) = Lab::with_image();
    let file = lab.home().join("sojourn.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("[trace]\n", "[trace]\ndir = \"traces\"\n")).unwrap();
    let name = "20200101-000000-7-000001.sjt";
    std::fs::create_dir_all(lab.home().join("traces")).unwrap();
    std::fs::write(lab.path("t.csv"), trace()).unwrap();
    let to = lab.home().join("traces").join(name);
    lab.line(&format!("trace convert t.csv {}", to.display())).ok();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let api = Api::of(&lab);
    let operator = token(&lab, "operator --operate");
    let list = api.get(&operator, "/lab/recordings").is(200);
    let [newest, oldest] = &list["recordings"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!((&oldest["name"], &oldest["open"]), (&json!(name), &json!(false)));
    assert_eq!(newest["open"], true);
    let told = ask(&api, &operator, &format!("stats?recording={name}"), "").is(200);
    assert_eq!(told["requests"], 2000);
    assert_eq!(server.stop(), 0);
}

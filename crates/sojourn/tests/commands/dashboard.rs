//! The dashboard and its API over HTTP: who is answered, with what, and for how long. What a browser
//! makes of it is tested in `web/test`.

use crate::common::Lab;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// More than any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn asks(address: &str, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n").unwrap();
    stream
}

/// The status, the headers in lower case, and the body.
fn get(address: &str, path: &str, headers: &str) -> (u16, String, Vec<u8>) {
    let mut answer = Vec::new();
    asks(address, path, headers).read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer[end..].to_vec())
}

fn json(address: &str, path: &str) -> Value {
    let (status, _, body) = get(address, path, "host: localhost\r\n");
    assert_eq!(status, 200, "{path}");
    serde_json::from_slice(&body).unwrap()
}

/// A stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(address: &str, path: &str) -> Self {
        Self(BufReader::new(asks(address, path, "host: localhost\r\n")))
    }

    /// The data of the next event of this name; `None` when the stream has ended.
    fn next(&mut self, name: &str) -> Option<Value> {
        let (mut line, mut found) = (String::new(), false);
        while self.0.read_line(&mut line).is_ok_and(|read| read > 0) {
            match line.trim_end().split_once(": ") {
                Some(("event", event)) => found = event == name,
                Some(("data", data)) if found => return Some(serde_json::from_str(data).unwrap()),
                _ => {}
            }
            line.clear();
        }
        None
    }
}

fn http(lab: &Lab) -> String {
    lab.json("status")["http"].as_str().unwrap().to_owned()
}

#[test]
fn only_a_name_of_this_machine_is_answered_and_every_answer_is_guarded() {
    let lab = Lab::new();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let address = http(&lab);
    for path in ["/", "/app.js", "/api/v1/disks", "/api/v1/openapi.json", "/metrics", "/nothing"] {
        let (status, head, _) = get(&address, path, "host: rebound.example\r\n");
        assert_eq!(status, 421, "{path}");
        for host in ["localhost", "127.0.0.1:1", "[::1]"] {
            let (status, head, _) = get(&address, path, &format!("host: {host}\r\n"));
            assert_eq!(status, if path == "/nothing" { 404 } else { 200 }, "{path}");
            assert!(head.contains("content-security-policy: default-src 'self'; "), "{head}");
            assert!(!head.contains("unsafe") && !head.contains("access-control"), "{head}");
        }
        for header in ["x-content-type-options: nosniff", "referrer-policy: no-referrer"] {
            assert!(head.contains(header), "{head}");
        }
    }
    assert_eq!(get(&address, "/healthz", "host: rebound.example\r\n").0, 200);
    let elsewhere = "host: localhost\r\nsec-fetch-site: cross-site\r\n";
    assert_eq!(get(&address, "/api/v1/live", elsewhere).0, 403);
    assert_eq!(get(&address, "/", elsewhere).0, 200, "a link to the page");
    for bad in ["/api/v1/live?disks=perhaps", "/api/v1/live?x=1"] {
        let (status, _, body) = get(&address, bad, "host: localhost\r\n");
        assert_eq!(status, 400, "{bad}");
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["kind"], "invalid");
    }
    let mut stream = TcpStream::connect(&address).unwrap();
    let post = "POST /api/v1/disks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(post.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert_eq!(server.stop(), 0);

    // A name that the machine has in its network, as the configuration says.
    let file = lab.home().join("sojourn.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("# http_names = ", "http_names = ")).unwrap();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let address = http(&lab);
    assert_eq!(get(&address, "/metrics", "host: Lab.example.org:9180\r\n").0, 200);
    assert_eq!(get(&address, "/metrics", "host: rebound.example\r\n").0, 421);
    assert_eq!(server.stop(), 0);
}

#[test]
fn who_watches_hears_what_happens_until_the_server_stops() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let address = http(&lab);
    let mut events = Events::open(&address, "/api/v1/live?disks=true");
    assert_eq!(events.next("hello").unwrap()["history"], serde_json::json!([]));
    let all = events.next("disks").unwrap();
    assert_eq!((&all["all"], &all["rows"]), (&true.into(), &serde_json::json!([])));
    // The server measures by itself.
    let first = events.next("now").unwrap();
    assert!(first["point"]["seconds"].as_f64().unwrap() > 0.0, "{first}");

    lab.run(["image", "import", &server.uri("alice"), "copy"]).ok();
    let row = loop {
        let changes = events.next("disks").unwrap();
        let rows = changes["rows"].as_array().unwrap().clone();
        if let Some(row) = rows.into_iter().find(|row| row["name"] == "alice") {
            break row;
        }
    };
    assert_eq!(row["open"], true);
    // Somebody who comes later has what was.
    let mut later = Events::open(&address, "/api/v1/live?disks=true");
    assert!(!later.next("hello").unwrap()["history"].as_array().unwrap().is_empty());
    let known = later.next("disks").unwrap();
    assert_eq!((&known["all"], &known["rows"][0]["name"]), (&true.into(), &"alice".into()));

    // A command's change is told, and in the list when it was told.
    let before = json(&address, "/api/v1/disks");
    assert_eq!(before["disks"].as_array().unwrap().len(), 1);
    lab.line("disk create bob --from debian").ok();
    let told = loop {
        let now = events.next("now").unwrap();
        if now["changes"] != before["changes"] {
            break now["changes"].as_u64().unwrap();
        }
    };
    let list = loop {
        let list = json(&address, "/api/v1/disks");
        if list["changes"].as_u64().unwrap() >= told {
            break list;
        }
    };
    let names: Vec<&Value> =
        list["disks"].as_array().unwrap().iter().map(|disk| &disk["name"]).collect();
    assert_eq!(names, ["alice", "bob"]);
    let images = json(&address, "/api/v1/images");
    let debian = images["images"].as_array().unwrap().iter().find(|one| one["image"] == "debian:1");
    assert_eq!(debian.unwrap()["used_by"], serde_json::json!(["disk alice", "disk bob"]));
    assert_eq!(json(&address, "/api/v1/status")["server"]["pid"], server.pid());

    assert_eq!(server.stop(), 0);
    while events.next("now").is_some() {}
}

#[test]
fn pages_leave_room_for_monitoring() {
    let lab = Lab::new();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let address = http(&lab);
    let mut streams = Vec::new();
    let refused = loop {
        let mut stream = Events::open(&address, "/api/v1/live");
        if stream.next("hello").is_none() {
            break get(&address, "/api/v1/live", "host: localhost\r\n");
        }
        streams.push(stream);
        assert!(streams.len() < 64, "there is no end");
    };
    assert_eq!((streams.len(), refused.0), (32, 503));
    assert_eq!(get(&address, "/metrics", "host: localhost\r\n").0, 200);
    assert_eq!(json(&address, "/api/v1/status")["connections"], 0);
    // Nobody is refused for ever.
    streams.clear();
    while Events::open(&address, "/api/v1/live").next("hello").is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.stop(), 0);
}

//! Requests that are under way when the server ends, or when their token does.

use crate::http_client::{Api, HOST, JSON, PATIENCE, audit, served, token};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Begins a request.
fn begin(api: &Api, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&api.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream
}

/// What is still answered.
fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(path: &str, token: &str, length: usize) -> String {
    format!(
        "POST /api/v1{path} HTTP/1.1\r\n{JSON}connection: close\r\nauthorization: Bearer {token}\r\n\
         content-length: {length}\r\n\r\n"
    )
}

fn import(image: &str, token: &str, length: usize) -> String {
    format!(
        "POST /api/v1/images/{image}/import HTTP/1.1\r\n{HOST}connection: close\r\n\
         content-type: application/octet-stream\r\nauthorization: Bearer {token}\r\n\
         content-length: {length}\r\n\r\n"
    )
}

#[test]
fn what_is_asked_as_the_server_ends_neither_keeps_it_nor_changes_anything() {
    let (lab, mut server, api) = served();
    lab.line("disk create alice --from debian").ok();
    let admin = token(&lab, "admin --admin");
    let mut reload = begin(&api, &post("/reload", &admin, 2), b"{");
    let snapshot = br#"{"snapshot": "late"}"#;
    let (first, last) = snapshot.split_at(7);
    let path = "/disks/alice/snapshots";
    let mut late = begin(&api, &post(path, &admin, snapshot.len()), first);
    // An answer to another one: these have come.
    api.get(&admin, "/disks/alice").is(200);
    server.signal("TERM");
    assert_eq!(server.notice(), "STOPPING=1");
    let _ = reload.write_all(b"}");
    let _ = late.write_all(last);
    assert_eq!(server.wait(), 0, "{}", server.log());
    for answer in [rest(reload), rest(late)] {
        // Or none, where the server was quicker than the last byte.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    assert!(lab.json("disk show alice")["snapshots"].as_array().unwrap().is_empty());
}

#[test]
fn an_image_that_is_still_sent_does_not_keep_a_server_from_its_end() {
    let (lab, mut server, api) = served();
    let operator = token(&lab, "operator --operate");
    let mut stream = begin(&api, &import("fresh", &operator, 1 << 30), &[7; 100_000]);
    let answers = stream.try_clone().unwrap();
    // Quick enough to be waited for, for as long as anybody takes it.
    let sending = std::thread::spawn(move || {
        while stream.write_all(&[7; 8192]).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    server.signal("TERM");
    assert_eq!(server.wait(), 0, "{}", server.log());
    sending.join().unwrap();
    drop(answers);
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 1);
    lab.line("verify").ok();
}

#[test]
fn a_token_that_ends_ends_what_it_began() {
    let (lab, server, api) = served();
    let reader = token(&lab, "reader --read");
    let operator = token(&lab, "operator --operate");
    let watch = format!(
        "GET /api/v1/live HTTP/1.1\r\n{HOST}connection: close\r\nauthorization: Bearer {reader}\r\n\r\n"
    );
    let mut live = begin(&api, &watch, b"");
    let mut first = [0; 4096];
    let read = live.read(&mut first).unwrap();
    assert!(first[..read].starts_with(b"HTTP/1.1 200"));
    let (image, half) = (vec![7; 2 << 20], 1 << 20);
    let mut sent = begin(&api, &import("evil", &operator, image.len()), &image[..half]);
    for name in ["reader", "operator"] {
        lab.line(&format!("token revoke {name}")).ok();
    }
    // It ends, and not by this client's patience.
    live.read_to_end(&mut Vec::new()).unwrap();
    let _ = sent.write_all(&image[half..]);
    let answer = rest(sent);
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("revoked"), "{answer}");
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 1);
    let noted = audit(&lab);
    assert_eq!(noted.last().unwrap()["outcome"], "denied", "{noted:?}");
    assert_eq!(server.stop(), 0);
}

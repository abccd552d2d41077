//! Images that are imported over HTTP.

use crate::http_client::{Api, HOST, PATIENCE, audit, served, token};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The head of a request that sends an image, as a client that waits to be asked for its body.
fn import_head(token: &str, path: &str, more: &str) -> String {
    format!(
        "POST /api/v1/images/{path} HTTP/1.1\r\n{HOST}connection: close\r\nexpect: 100-continue\r\n\
         authorization: Bearer {token}\r\n{more}\r\n"
    )
}

/// Sends the pieces one after the other.
fn begin(api: &Api, pieces: &[&[u8]]) -> TcpStream {
    let mut stream = TcpStream::connect(&api.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for piece in pieces {
        // A server that has refused may not take the rest.
        let _ = stream.write_all(piece);
    }
    stream
}

/// Sends the pieces one after the other; gives all that is answered.
fn sent(api: &Api, pieces: &[&[u8]]) -> String {
    let mut stream = begin(api, pieces);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

const BYTES: &str = "content-type: application/octet-stream\r\n";

#[test]
fn an_image_that_is_sent_becomes_a_version() {
    let (lab, server, api) = served();
    let content = crate::common::content(3 << 20, 7);
    let operator = token(&lab, "operator --operate --image fresh");
    let length = format!("{BYTES}content-length: {}\r\n", content.len());
    let head = import_head(&operator, "fresh/import?source=nightly.raw", &length);
    let answer = sent(&api, &[head.as_bytes(), &content]);
    let (invited, answer) = answer.split_once("\r\n\r\n").unwrap();
    assert!(invited.starts_with("HTTP/1.1 100 "), "{invited}");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(head.to_lowercase().contains("location: /api/v1/images/fresh:1\r\n"), "{head}");
    let view: Value = serde_json::from_str(text).unwrap();
    let shown = lab.json("image show fresh");
    for key in ["image", "size", "created", "manifest", "source"] {
        assert_eq!(view[key], shown[key], "{key}");
    }
    assert_eq!(
        (&view["source"], &view["stats"]["scanned"]),
        (&json!("nightly.raw"), &json!(3 << 20))
    );

    // In pieces, of which the first are short, and under a name of its own.
    let head = import_head(
        &operator,
        "fresh:own/import",
        &format!("{BYTES}transfer-encoding: chunked\r\n"),
    );
    let mut pieces = vec![head.into_bytes()];
    let (first, rest) = content.split_at(100);
    for piece in first.chunks(7).chain(rest.chunks(1 << 20)) {
        pieces.push([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
    }
    pieces.push(b"0\r\n\r\n".to_vec());
    let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    let answer = sent(&api, &pieces);
    assert!(answer.contains("HTTP/1.1 201 ") && answer.contains("\"fresh:own\""), "{answer}");
    for version in ["fresh:1", "fresh:own"] {
        lab.line(&format!("image export {version} {}", lab.path("out.raw").display())).ok();
        assert!(std::fs::read(lab.path("out.raw")).unwrap() == content, "{version}");
        std::fs::remove_file(lab.path("out.raw")).unwrap();
    }
    let noted: Vec<Value> = audit(&lab);
    assert_eq!(noted.len(), 2);
    assert_eq!(
        (&noted[0]["verb"], &noted[0]["token"], &noted[0]["object"], &noted[0]["outcome"]),
        (&json!("image.import"), &json!("operator"), &json!("fresh"), &json!("done"))
    );
    assert_eq!(noted[0]["request"]["size"], 3 << 20);
    assert_eq!(server.stop(), 0);
}

#[test]
fn an_image_that_is_refused_is_not_asked_for() {
    let (lab, server, api) = served();
    let admin = token(&lab, "admin --admin");
    let reader = token(&lab, "reader --read");
    let other = token(&lab, "other --admin --image debian");
    let before = lab.json("image list");
    let sized = |bytes: u64| format!("{BYTES}content-length: {bytes}\r\n");
    let long = format!("fresh/import?source={}", "x".repeat(2000));
    for (token, path, more, status) in [
        ("sojourn_00", "fresh/import", sized(512), 401),
        (reader.as_str(), "fresh/import", sized(512), 403),
        (other.as_str(), "fresh/import", sized(512), 403),
        (
            admin.as_str(),
            "fresh/import",
            "content-type: text/plain\r\ncontent-length: 512\r\n".into(),
            415,
        ),
        (admin.as_str(), "fresh/import", "content-length: 512\r\n".into(), 415),
        (admin.as_str(), "debian:1/import", sized(512), 409),
        (admin.as_str(), "-x/import", sized(512), 400),
        (admin.as_str(), "fresh/import", sized(0), 400),
        (admin.as_str(), "fresh/import", sized(513), 400),
        (admin.as_str(), "fresh/import", sized(1 << 60), 400),
        (admin.as_str(), "fresh/import?format=qcow2", sized(512), 400),
        (admin.as_str(), "fresh/import?colour=red", sized(512), 400),
        (admin.as_str(), "fresh/import?source=a%0Ab", sized(512), 400),
        (admin.as_str(), long.as_str(), sized(512), 400),
    ] {
        let answer = sent(&api, &[import_head(token, path, &more).as_bytes()]);
        let what = format!("{path} {more}: {answer}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}");
        assert!(answer.contains("\"kind\":"), "{what}");
    }
    assert_eq!(lab.json("image list"), before);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_broken_or_wrong_image_leaves_no_version_behind() {
    let (lab, server, api) = served();
    let admin = token(&lab, "admin --admin");
    let before = lab.json("image list");
    let content = crate::common::content(2 << 20, 9);
    let sized = |bytes: usize| format!("{BYTES}content-length: {bytes}\r\n");
    let chunked = format!("{BYTES}transfer-encoding: chunked\r\n");
    let some = &content[..1 << 20];
    let part = [format!("{:x}\r\n", some.len()).as_bytes(), some, b"\r\n"].concat();
    let odd = b"3\r\nabc\r\n0\r\n\r\n".to_vec();
    let qcow2 = [b"QFI\xfb".to_vec(), vec![0; 508]].concat();
    let gzip = [vec![0x1f, 0x8b, 8], vec![0; 509]].concat();
    let wrong = [part.as_slice(), b"zz\r\n"].concat();
    for (more, body, breaks, outcome) in [
        // Less than was told; no last piece; a length that is none; no disk; nothing; other images.
        (sized(content.len()), some.to_vec(), true, "invalid"),
        (chunked.clone(), part, true, "invalid"),
        (chunked.clone(), wrong, false, "invalid"),
        (chunked.clone(), odd, false, "invalid"),
        (chunked, b"0\r\n\r\n".to_vec(), false, "invalid"),
        (sized(512), qcow2.clone(), false, "unsupported"),
        (sized(512), gzip, false, "unsupported"),
    ] {
        let head = import_head(&admin, "fresh/import", &more);
        let noted = audit(&lab).len();
        let pieces = [head.as_bytes(), &body];
        match breaks {
            true => begin(&api, &pieces).shutdown(std::net::Shutdown::Both).unwrap(),
            false => {
                let status = if outcome == "invalid" { 400 } else { 501 };
                let answer = sent(&api, &pieces);
                assert!(answer.contains(&format!("HTTP/1.1 {status} ")), "{more}: {answer}");
            }
        }
        let end = Instant::now() + PATIENCE;
        while audit(&lab).len() == noted {
            assert!(Instant::now() < end, "not noted: {more}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let line = audit(&lab).pop().unwrap();
        assert_eq!(
            (&line["verb"], &line["outcome"]),
            (&json!("image.import"), &json!(outcome)),
            "{line}"
        );
        assert_eq!(lab.json("image list"), before, "{more}");
    }
    // What was begun is no hindrance, and nothing stays that a collection could not take.
    let head = import_head(&admin, "fresh/import?format=raw", &sized(512));
    let answer = sent(&api, &[head.as_bytes(), &qcow2]);
    assert!(answer.contains("HTTP/1.1 201 "), "{answer}");
    assert_eq!(server.stop(), 0);
}

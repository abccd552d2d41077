//! A client of the HTTP API as simple as can be, and a server for it.

use crate::common::{Lab, Server};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// More than any answer takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const HOST: &str = "host: localhost\r\n";
pub(crate) const JSON: &str = "host: localhost\r\ncontent-type: application/json\r\n";

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }
}

/// A server's HTTP port, and how one asks there.
pub(crate) struct Api {
    pub(crate) address: String,
}

impl Api {
    pub(crate) fn of(lab: &Lab) -> Self {
        Self { address: lab.json("status")["http"].as_str().unwrap().to_owned() }
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        // A server that has refused may not take the rest.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, text) =
            answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {answer}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), text: text.to_owned() }
    }

    /// With a token; a `null` body is none.
    pub(crate) fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        let authorization = format!("authorization: Bearer {token}\r\n");
        match body {
            Value::Null => self.send(method, path, &format!("{HOST}{authorization}"), ""),
            body => self.send(method, path, &format!("{JSON}{authorization}"), &body.to_string()),
        }
    }

    pub(crate) fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.ask(token, "POST", &format!("/api/v1{path}"), &body)
    }

    pub(crate) fn get(&self, token: &str, path: &str) -> Answer {
        self.ask(token, "GET", &format!("/api/v1{path}"), &Value::Null)
    }

    pub(crate) fn delete(&self, token: &str, path: &str) -> Answer {
        self.ask(token, "DELETE", &format!("/api/v1{path}"), &Value::Null)
    }

    pub(crate) fn document(&self) -> Value {
        self.send("GET", "/api/v1/openapi.json", HOST, "").is(200)
    }
}

pub(crate) fn token(lab: &Lab, line: &str) -> String {
    lab.line(&format!("token create {line}")).ok().trim().to_owned()
}

pub(crate) fn served() -> (Lab, Server, Api) {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let api = Api::of(&lab);
    (lab, server, api)
}

/// The lines of the audit log.
pub(crate) fn audit(lab: &Lab) -> Vec<Value> {
    let text = std::fs::read_to_string(lab.home().join("audit.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

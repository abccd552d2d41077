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

/// A server that would run no virtual machine.
pub(crate) fn served() -> (Lab, Server, Api) {
    let (lab, _) = Lab::with_image();
    let server = lab.serve_in(&[("SOJOURN_QEMU", "/nonexistent/qemu")], &["--http", "127.0.0.1:0"]);
    let api = Api::of(&lab);
    (lab, server, api)
}

/// Describes a virtual machine in the home, as `vm create` does with QEMU's help.
pub(crate) fn describe_vm(lab: &Lab, name: &str, disk: &str) {
    let directory = lab.home().join("machines").join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let described = serde_json::json!({
        "version": 1, "name": name, "uuid": "01020304-0506-4708-890a-0b0c0d0e0f10", "disk": disk,
        "memory": 1 << 30, "cpus": 1, "machine": "pc-q35-7.2", "cpu": "qemu64", "accelerator": "tcg",
        "screen": false, "mac": "52:54:00:12:34:56", "arguments": [],
    });
    std::fs::write(directory.join("machine.json"), described.to_string()).unwrap();
}

/// Makes the directory `usb` of the home a medium with debian on it, and a source of the configuration.
pub(crate) fn add_medium(lab: &Lab) {
    configure_sources(lab, &["usb"]);
    let place = lab.home().join("usb");
    std::fs::create_dir(&place).unwrap();
    lab.line(&format!("media write {} debian", place.display())).ok();
}

/// Names the sources of the configuration.
pub(crate) fn configure_sources(lab: &Lab, sources: &[&str]) {
    let file = lab.home().join("sojourn.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let named = format!("sources = {sources:?} #");
    let text = text.replacen("# sources = []", &named, 1);
    assert!(text.contains(&named), "{text}");
    std::fs::write(&file, text).unwrap();
}

/// Panics unless a value is what a schema of the document says, with nothing that it does not tell.
#[track_caller]
pub(crate) fn must_match(document: &Value, schema: &str, value: &Value) {
    let schema = &document["components"]["schemas"][schema];
    if let Err(why) = matches(document, schema, value) {
        panic!("{why} in {value}");
    }
}

fn matches(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        let of_it = matches(document, &document["components"]["schemas"][name], value);
        return of_it.map_err(|why| format!("{name}: {why}"));
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = any.iter().any(|one| matches(document, one, value).is_ok());
        return if fits { Ok(()) } else { Err("none of what it may be".to_owned()) };
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return Err(format!("{value} is none of {}", schema["enum"]));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = |told: &Value| told == kind || (told == "number" && kind == "integer");
    if !fits(&schema["type"]) && !schema["type"].as_array().is_some_and(|all| all.iter().any(fits))
    {
        return Err(format!("{value} is no {}", schema["type"]));
    }
    for item in value.as_array().into_iter().flatten() {
        matches(document, &schema["items"], item)?;
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    for (name, field) in fields {
        let told = schema["properties"].get(name).ok_or_else(|| format!("{name} is not told"))?;
        matches(document, told, field).map_err(|why| format!("{name}: {why}"))?;
    }
    let required = schema["required"].as_array().into_iter().flatten();
    match required.filter_map(Value::as_str).find(|name| !fields.contains_key(*name)) {
        Some(name) => Err(format!("no {name}")),
        None => Ok(()),
    }
}

/// The lines of the audit log.
pub(crate) fn audit(lab: &Lab) -> Vec<Value> {
    let text = std::fs::read_to_string(lab.home().join("audit.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

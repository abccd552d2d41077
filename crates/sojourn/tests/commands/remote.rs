//! The command line on a server of another machine: `--server`.

use crate::common::{Done, Lab};
use crate::http_client::{add_medium, describe_vm};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// A user on another machine: no home, a token in a file.
struct User<'a> {
    lab: &'a Lab,
    url: String,
}

impl User<'_> {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(crate::common::BINARY);
        command
            .args(["--home", "/nonexistent", "--server", &self.url])
            .args(line.split_whitespace())
            .env_remove("SOJOURN_LOG")
            .env_remove("SOJOURN_TOKEN")
            .env_remove("SOJOURN_TOKEN_FILE")
            .env("HOME", "/nonexistent");
        command
    }

    fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.line(&format!("--json {line}")).ok()).unwrap()
    }

    fn line(&self, line: &str) -> Done {
        let file = self.lab.path("token");
        Done::from(self.command(line).env("SOJOURN_TOKEN_FILE", file).output().unwrap())
    }
}

fn token(lab: &Lab, line: &str) {
    let token = lab.line(&format!("token create {line}")).ok();
    std::fs::write(lab.path("token"), token).unwrap();
}

fn http(lab: &Lab) -> String {
    lab.json("status")["http"].as_str().unwrap().to_owned()
}

#[test]
fn what_works_on_a_home_works_on_a_server() {
    let (lab, _) = Lab::with_image();
    let mut server = lab.serve(&["--http", "127.0.0.1:0"]);
    token(&lab, "admin --admin");
    let user = User { lab: &lab, url: format!("http://{}", http(&lab)) };
    assert_eq!(
        user.line("disk create alice --from debian").ok(),
        "disk alice made from debian:1\n"
    );
    assert!(user.line("disk create bob2 bob10 --from debian").ok().contains("2 disks made"));
    user.line("disk create alice carol --from debian").fails(4, &["1 of 2 disks", "alice"]);
    for line in
        ["disk list", "disk show alice", "disk map alice", "image list", "image show debian"]
    {
        let json = format!("--json {line}");
        assert_eq!(user.line(&json).ok(), lab.line(&json).ok(), "{line}");
        assert_eq!(user.line(line).ok(), lab.line(line).ok(), "{line}");
    }
    assert_eq!(user.line("disk snapshot alice monday").ok(), "snapshot monday made\n");
    user.line("disk snapshot alice tuesday").ok();
    user.line("disk grow alice 16M").ok();
    assert_eq!(user.line("disk commit alice debian").ok(), "image debian:2 made\n");
    user.line("disk rollback alice monday").ok();
    assert!(user.line("disk rebase alice debian:2").ok().contains("stands on debian:2 now"));
    user.line("disk reset alice").ok();
    user.line("disk publish alice").ok();
    assert_eq!(user.line("disk prune alice --keep 1").ok(), "snapshot alice@monday removed\n");
    assert_eq!(user.line("disk remove alice@tuesday").ok(), "snapshot alice@tuesday removed\n");
    assert_eq!(user.line("disk release alice").ok(), "disk alice released\n");
    assert!(user.line("disk list --elsewhere").ok().contains("nobody"));
    user.line("disk take alice").ok();
    assert_eq!(user.line("disk remove alice").ok(), "disk alice removed\n");
    assert_eq!(user.line("image remove debian:2").ok(), "image debian:2 removed\n");
    assert_eq!(user.line("image restore debian:2").ok(), "image debian:2 is there again\n");
    let mac = "52:54:00:12:34:56";
    assert_eq!(
        user.line(&format!("machine assign {mac} --from debian --name lab-1")).ok(),
        "machine lab-1 starts from disk lab-1 by iscsi\n"
    );
    for line in ["machine list", "machine show lab-1", "--json machine list"] {
        assert_eq!(user.line(line).ok(), lab.line(line).ok(), "{line}");
    }
    user.line("machine assign lab-2 --from debian").fails(3, &["no machine lab-2"]);
    user.line("machine secret lab-1").fails(10, &["without --server"]);
    lab.line("machine secret lab-2").fails(3, &["no machine lab-2"]);
    let secret = lab.json("machine secret lab-1")["secret"].as_str().map(str::len);
    assert_eq!(secret, Some("aaaa-aaaa-aaaa-aaaa".len()));
    assert!(!lab.line("--json machine show lab-1").ok().contains("secret"));
    lab.line("machine secret lab-1 --remove").ok();
    assert!(user.line(&format!("machine forget {mac}")).ok().contains("is still there"));
    user.line("machine forget lab-1").fails(3, &["no machine lab-1"]);
    assert!(user.line("status").ok().contains("process"));
    assert_eq!(user.line("--json cache show").ok(), lab.line("--json cache show").ok());
    assert!(user.line("cache set --size 32MiB").ok().contains("32 MiB"));
    user.line("cache set --size 1").fails(2, &["1MiB"]);
    assert_eq!(user.line("reload").ok(), "configuration read again\n");
    user.line("image show nosuch").fails(3, &["nosuch"]);
    user.line("drain --to-successor").fails(10, &["server's machine"]);
    user.line("disk show alice").fails(3, &["no disk alice"]);
    user.line("disk show ../alice").fails(2, &["../alice"]);
    // What does not work so says it in a sentence, and what needs no home works as ever.
    for line in ["gc", "serve", "token list", "store stats", "image verify debian", "attach alice"]
    {
        user.line(line).fails(10, &["server's machine"]);
    }
    user.line("simulate profiles").ok();
    assert_eq!(user.line("drain --timeout 60").ok(), "the server ends\n");
    assert_eq!(server.wait(), 0);
    user.line("disk list").fails(6, &["127.0.0.1"]);
}

#[test]
fn machines_and_media_of_a_server_are_what_they_are_to_a_command_there() {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    token(&lab, "admin --admin");
    let user = User { lab: &lab, url: format!("http://{}", http(&lab)) };
    assert!(user.line("vm list").ok().contains("no machine yet"));
    lab.line("disk create alice --from debian").ok();
    describe_vm(&lab, "work", "alice");
    std::fs::write(lab.home().join("machines/work/console.log"), "debian login: ").unwrap();
    for line in
        ["vm list", "vm list --elsewhere", "vm show work", "vm log work", "vm log --qemu work"]
    {
        assert_eq!(user.line(line).ok(), lab.line(line).ok(), "{line}");
    }
    for line in ["vm list", "vm show work"] {
        assert_eq!(user.json(line), lab.json(line), "{line}");
    }
    user.line("vm stop work").fails(4, &["does not run here"]);
    user.line("vm resume work").fails(3, &["never suspended"]);
    user.line("vm create work --disk alice").fails(4, &["a machine \"work\" already"]);
    user.line("vm clone work play").fails(3, &["never suspended"]);
    user.line("vm show nosuch").fails(3, &["nosuch"]);
    user.line("vm show ../work").fails(2, &["../work"]);
    // What reaches programs and files there is said there.
    for line in [
        "vm create play --disk alice -- -kernel vmlinuz",
        "vm create play --disk alice --qemu /bin/true",
        "vm start --qemu /bin/true work",
        "vm resume --trust-arguments work",
        "vm clone --trust-arguments work play",
        "vm console work",
    ] {
        user.line(line).fails(10, &["server's machine"]);
    }
    assert_eq!(user.line("vm remove work").ok(), "removed work\n");

    add_medium(&lab);
    let place = lab.home().join("usb").display().to_string();
    let same = |line: &str| {
        let there = line.replace("usb", &place);
        assert_eq!(user.line(line).ok(), lab.line(&there).ok(), "{line}");
    };
    same("media list usb");
    same("--json media list usb");
    lab.line("disk snapshot alice monday").ok();
    assert!(user.line("media write usb alice").ok().contains("alice: all of it"));
    same("media list usb");
    same("media verify usb");
    assert!(user.line("media remove usb alice").ok().starts_with("alice was taken off"));
    user.line("media remove usb alice").fails(3, &["alice"]);
    user.line("media list /etc").fails(3, &["names no source"]);
    user.line("media index usb").fails(4, &["medium"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn an_image_of_this_machine_is_imported_by_a_server() {
    let (lab, content) = Lab::with_image();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    token(&lab, "operator --operate");
    let user = User { lab: &lab, url: format!("http://{}", http(&lab)) };
    let raw = lab.path("golden.raw").display().to_string();
    let qcow2 = lab.path("golden.qcow2").display().to_string();
    lab.line(&format!("image export debian {qcow2}")).ok();
    let told = user.line(&format!("image import {raw} sent")).ok();
    assert!(told.starts_with("image sent:1 made: 8 MiB, of which 0 B were new"), "{told}");
    let view = user.json(&format!("image import {qcow2} sent"));
    assert_eq!((&view["image"], &view["source"]), (&"sent:2".into(), &"golden.qcow2".into()));
    let mut child = user.command("image import - sent:stdin");
    let child = child.env("SOJOURN_TOKEN_FILE", lab.path("token")).stdin(Stdio::piped());
    let mut child = child.stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&content).unwrap();
    assert!(child.wait().unwrap().success());
    for version in ["sent:1", "sent:2", "sent:stdin"] {
        let out = lab.path(version);
        lab.line(&format!("image export {version} {}", out.display())).ok();
        assert!(std::fs::read(out).unwrap() == content, "{version}");
    }

    user.line(&format!("image import {raw} sent:2")).fails(4, &["sent:2"]);
    user.line("image import /nonexistent sent").fails(3, &["/nonexistent"]);
    user.line(&format!("image import {raw} ../x")).fails(2, &["../x"]);
    user.line(&format!("image import {raw} sent --boot-list debian:1")).fails(10, &["boot-list"]);
    let odd = lab.file("odd.raw", &[1; 700]).display().to_string();
    user.line(&format!("image import {odd} sent")).fails(2, &["700 bytes"]);
    lab.line("token revoke operator").ok();
    token(&lab, "reader --read");
    user.line(&format!("image import {raw} sent")).fails(9, &["reader", "operate"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_token_is_asked_for_by_its_option_and_shown_to_no_stranger() {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    token(&lab, "reader --read");
    let user = User { lab: &lab, url: format!("http://{}", http(&lab)) };
    let bare = Done::from(user.command("disk create a --from debian").output().unwrap());
    bare.fails(9, &["SOJOURN_TOKEN", "--token-file", "token create"]);
    user.line("disk create a --from debian").fails(9, &["reader", "operate"]);
    let text = std::fs::read_to_string(lab.path("token")).unwrap();
    let by_variable = user.command("disk list").env("SOJOURN_TOKEN", text.trim()).output().unwrap();
    Done::from(by_variable).ok();
    std::fs::write(lab.path("token"), "two words\n").unwrap();
    user.line("disk list").fails(2, &["token", "alone"]);
    std::fs::write(lab.path("token"), text).unwrap();

    // A name of this machine in its network is another machine to whoever is in between.
    let stranger = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = stranger.local_addr().unwrap().port();
    for (host, sent) in [("127.0.0.1", true), ("[::ffff:127.0.0.1]", true)] {
        let user = User { lab: &lab, url: format!("http://{host}:{port}") };
        let mut child = user.command("disk list");
        let mut child = child.env("SOJOURN_TOKEN_FILE", lab.path("token")).spawn().unwrap();
        let (mut stream, _) = stranger.accept().unwrap();
        let mut head = [0; 4096];
        let read = stream.read(&mut head).unwrap();
        let asked = String::from_utf8_lossy(&head[..read]).to_lowercase();
        assert_eq!(asked.contains("authorization: bearer sojourn_"), sent, "{asked}");
        stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\n<h1>").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(6), "no server of ours");
    }
    if let Some(address) = outside_address() {
        let user = User { lab: &lab, url: format!("http://{address}:{port}") };
        user.line("disk list").fails(9, &["https", "ssh -L"]);
        let (mut stream, _) = stranger.accept().unwrap();
        let mut head = Vec::new();
        let _ = stream.read_to_end(&mut head);
        assert!(head.is_empty(), "something was sent: {}", String::from_utf8_lossy(&head));
    }
    assert_eq!(server.stop(), 0);
}

/// An address of this machine that is not a loopback one, when it has any.
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
fn outside_address() -> Option<std::net::IpAddr> {
    // Nothing is sent: the system chooses the address that it would send from.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let found = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    let address = found.ok().map(|address| address.ip()).filter(|address| !address.is_loopback());
    if address.is_none() {
        println!("skipped: this machine has no address but loopback ones");
    }
    address
}

#[test]
fn over_https_the_server_is_proven_and_the_client_too_where_it_is_asked() {
    let (lab, _) = Lab::with_image();
    lab.line("cert ca").ok();
    lab.line("cert server localhost").ok();
    lab.line("cert client alice").ok();
    let server = lab.serve(&["--http", "127.0.0.1:0", "--http-tls", "required"]);
    token(&lab, "operator --operate");
    let port = http(&lab).rsplit_once(':').unwrap().1.to_owned();
    let of = |host: &str, dir: &std::path::Path| User {
        lab: &lab,
        url: format!("https://{host}:{port}?tls-certificates={}", dir.display()),
    };
    let alice = lab.home().join("tls/clients/alice");
    let user = of("localhost", &alice);
    user.line("disk create alice --from debian").ok();
    let log = std::fs::read_to_string(lab.home().join("audit.log")).unwrap();
    assert!(log.contains("certificate alice"), "{log}");
    // Another name, another authority, no certificate, no idea which.
    assert_eq!(of("127.0.0.1", &alice).line("disk list").code, 6);
    let other = Lab::new();
    other.line("cert ca").ok();
    other.line("cert client alice").ok();
    assert_eq!(of("localhost", &other.home().join("tls/clients/alice")).line("disk list").code, 6);
    let nobody = lab.path("nobody");
    std::fs::create_dir(&nobody).unwrap();
    std::fs::copy(alice.join("ca-cert.pem"), nobody.join("ca-cert.pem")).unwrap();
    assert_eq!(of("localhost", &nobody).line("disk list").code, 6);
    let unsaid = User { lab: &lab, url: format!("https://localhost:{port}") };
    assert!(
        [2, 6].contains(&unsaid.line("disk list").code),
        "certificates may be where libnbd looks"
    );
    assert_eq!(server.stop(), 0);
}

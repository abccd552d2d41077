//! Clients of whom the server knows little or who may do little: processes that it does not see, and
//! those who are refused and ask on.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use sojourn_tests::client::{READ, connect, header};
use sojourn_tests::tool::{skip, sojourn};
use sojourn_tests::{Client, Home, content, require};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What makes a pid namespace, for any user.
const UNSHARE: [&str; 5] = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];

/// A server in a pid namespace of its own, which sees no process of this one.
struct Blind(Child);

impl Blind {
    fn start(home: &Home, socket: &Path) -> Self {
        let log = std::fs::File::create(home.path("log")).unwrap();
        let mut command = Command::new("unshare");
        command.args(UNSHARE).arg(sojourn()).arg("--home").arg(home.home());
        command.args(["serve", "--nbd"]).arg(format!("unix:{}", socket.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let server = Self(command.spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < end, "it does not listen\n{}", log_of(home));
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for Blind {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn log_of(home: &Home) -> String {
    std::fs::read_to_string(home.path("log")).unwrap()
}

#[test]
fn processes_that_the_server_does_not_see_do_not_share_a_disk() {
    require!("unshare");
    if !Command::new("unshare").args(UNSHARE).arg("true").status().unwrap().success() {
        return skip("processes that the server does not see", "no pid namespaces for users");
    }
    let home = Home::new();
    home.import("golden", &content::image(81, 16));
    home.disk("d", "golden");
    let socket = home.path("nbd.sock");
    let _server = Blind::start(&home, &socket);
    let holder = Client::attach(&socket, "d");
    let refusal = Client::try_attach(&socket, "d").err().expect("two clients write one disk");
    assert!(refusal.contains("attached by uid:"), "{refusal}");
    holder.detach();
    Client::attach(&socket, "d").detach();
    let log = log_of(&home);
    assert_eq!(log.matches("run the server in the clients' pid namespace").count(), 1, "{log}");
}

/// Lets this user do what `rule` says, and nothing else.
fn allow(home: &Home, rule: &str) {
    let path = home.home().join("sojourn.toml");
    let uid = rustix::process::geteuid().as_raw();
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let rules = format!("access = [{{ uid = {uid}, {rule} }}]\n{before}");
    std::fs::write(path, rules).unwrap();
}

#[test]
fn a_client_of_an_untagged_image_keeps_its_connection_over_two_servers() {
    let home = Home::new();
    let bytes = content::image(82, 16);
    home.import("debian", &bytes);
    allow(&home, r#"read = ["debian"]"#);
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "debian");
    // A newer version is not what it goes on with.
    home.import("debian", &content::image(83, 16));
    for _ in 0..2 {
        assert_eq!(home.json(&["drain", "--to-successor"])["connections"], 1);
        content::assert_same("the image", &client.read(0, 1 << 20), &bytes[..1 << 20]);
    }
    assert!(Client::try_attach(server.socket(), "debian:1").is_err());
    client.detach();
    home.run(&["drain", "--timeout", "0"]);
}

/// Asks for the export `name` so many times over one connection (`NBD_OPT_INFO`).
fn ask(socket: &Path, name: &str, times: usize) {
    let mut stream = connect(socket);
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    let mut option = b"IHAVEOPT".to_vec();
    option.extend(6u32.to_be_bytes());
    option.extend((name.len() as u32 + 6).to_be_bytes());
    option.extend((name.len() as u32).to_be_bytes());
    option.extend(name.as_bytes());
    option.extend([0, 0]);
    for _ in 0..times {
        let mut head = [0; 20];
        if stream.write_all(&option).is_err() || stream.read_exact(&mut head).is_err() {
            return; // it had enough
        }
        let length = u32::from_be_bytes(head[16..].try_into().unwrap());
        stream.read_exact(&mut vec![0; length as usize]).unwrap();
    }
}

#[test]
fn who_is_refused_and_asks_on_does_not_fill_the_log() {
    let home = Home::new();
    home.import("golden", &content::image(84, 16));
    let server = home.serve();
    // Without rules, names that are none.
    for name in ["golden:?".to_owned(), format!("golden:{}", "x".repeat(3000))] {
        (0..40).for_each(|_| ask(server.socket(), &name, 10));
    }
    let lines = server.log().lines().filter(|line| line.contains("refused")).count();
    assert!((1..50).contains(&lines), "{lines}");
    assert!(server.log().len() < 50_000, "{}", server.log().len());
    server.stop();

    allow(&home, r#"write = ["golden"]"#);
    let server = home.serve();
    (0..40).for_each(|_| ask(server.socket(), "secret", 10));
    let asked = |log: &str| log.lines().filter(|line| line.contains("secret")).count();
    assert!((1..50).contains(&asked(&server.log())), "{}", server.log());
    let log = home.path("log");
    server.stop();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("more requests than are logged one by one"), "{log}");
}

#[test]
fn two_thousand_connections_that_break_the_protocol_write_few_lines() {
    let home = Home::new();
    home.import("golden", &content::image(85, 16));
    let server = home.serve();
    for index in 0..2000u64 {
        let mut client = Client::attach(server.socket(), "golden");
        let mut request = header(READ, index, 0, 4096);
        request[0] ^= 0xff;
        client.send(&request);
        // The server hangs up.
        let _ = client.stream().read_to_end(&mut Vec::new());
    }
    // Whoever breaks nothing is served.
    let mut client = Client::attach(server.socket(), "golden");
    client.read(0, 4096);
    client.detach();
    let log = home.path("log");
    server.stop();
    let log = std::fs::read_to_string(log).unwrap();
    // Five of one client in a minute; a machine may need some minutes for all of them.
    let lines = log.lines().filter(|line| line.contains("broke the protocol")).count();
    assert!((1..50).contains(&lines), "{lines}");
}

//! Servers are found by DNS-SD from another host of their network: two network namespaces with a cable
//! between them.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use sojourn_tests::tool::{self, sojourn, texts};
use sojourn_tests::{Home, content, require};
use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A network namespace, which ends with this.
struct Host(Child);

impl Host {
    /// `None` where that is not allowed.
    fn new() -> Option<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]).stderr(Stdio::null());
        let mut host = Self(command.spawn().unwrap());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while std::fs::read_link(host.network()).is_ok_and(|network| network == own) {
            if host.0.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < end, "no network of its own");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(host)
    }

    fn network(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.id()).into()
    }

    /// A command in this network.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.network().display())).arg(program);
        command
    }

    fn ip(&self, line: &str) {
        let done = self.command("ip").args(line.split(' ')).output().unwrap();
        assert!(done.status.success(), "ip {line}: {}", texts(&done).1);
    }

    /// What `discover` prints here.
    fn discover(&self, more: &[&str]) -> serde_json::Value {
        let mut command = self.command(sojourn().to_str().unwrap());
        let done =
            command.args(["--json", "discover", "--seconds", "1"]).args(more).output().unwrap();
        let (out, err) = texts(&done);
        assert!(done.status.success(), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// What it prints once that is as it should be.
    fn discover_until(
        &self,
        what: &str,
        more: &[&str],
        test: impl Fn(&[serde_json::Value]) -> bool,
    ) -> serde_json::Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.discover(more);
            if test(found.as_array().unwrap()) {
                return found;
            }
            assert!(Instant::now() < end, "{what}: {found}");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A responder that waits for a datagram to its host alone.
const RESPONDER: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    s.setsockopt(socket.SOL_SOCKET, option, 1)
s.bind(('0.0.0.0', 5353))
s.settimeout(60)
print('listens', flush=True)
while True:
    heard, who = s.recvfrom(9000)
    if heard == b'for you':
        s.sendto(b'thanks', who)
        break
print('heard', flush=True)
";

/// Sends it that until it is thanked.
const ASKER: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.5)
for _ in range(60):
    s.sendto(b'for you', ('10.88.0.1', 5353))
    try:
        assert s.recv(100) == b'thanks'
        break
    except TimeoutError:
        pass
else:
    raise SystemExit('nobody answers')
";

/// A server in a network. Dropping it kills it.
struct Served(Child);

impl Served {
    fn start(host: &Host, home: &Home, more: &[&str]) -> Self {
        let log = std::fs::File::create(home.path("log")).unwrap();
        let mut command = host.command(sojourn().to_str().unwrap());
        command.arg("--home").arg(home.home()).args(["serve", "--insecure"]).args(more);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_announced_server_and_its_exports_are_found_from_another_host_until_it_stops() {
    require!("unshare", "nsenter", "ip", "python3");
    let (Some(here), Some(there)) = (Host::new(), Host::new()) else {
        return tool::skip("discovery", "no network namespaces here");
    };
    here.ip(&format!("link add cable type veth peer name cable netns {}", there.0.id()));
    for (host, address) in [(&here, "10.88.0.1/24"), (&there, "10.88.0.2/24")] {
        host.ip("link set lo up");
        host.ip(&format!("addr add {address} dev cable"));
        host.ip("link set cable up");
    }
    let home = Home::new();
    home.import("golden", &content::image(82, 16));
    home.disk("alice", "golden");
    let listen =
        ["--nbd", "10.88.0.1:10809", "--nbd", "127.0.0.1:10810", "--iscsi", "0.0.0.0:3260"];

    let silent = Served::start(&here, &home, &listen);
    let end = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(home.path("log")).unwrap().contains(" ready ") {
        assert!(Instant::now() < end, "the server does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(there.discover(&[]), serde_json::json!([]), "nobody asked it to be announced");
    silent.stop();

    let server = Served::start(&here, &home, &[&listen[..], &["--announce"]].concat());
    // Who offers what is found before what that is.
    let are_told = |found: &[serde_json::Value]| found.len() == 2 && found[0]["exports"].is_array();
    let found = there.discover_until("it is found", &[], are_told);
    let (nbd, iscsi) = (&found[0], &found[1]);
    assert_eq!((&nbd["service"], &iscsi["service"]), (&"nbd".into(), &"iscsi".into()), "{found}");
    assert_eq!(nbd["address"], "10.88.0.1:10809", "not where it listens for its own host");
    assert_eq!(iscsi["address"], "10.88.0.1:3260");
    assert_eq!(nbd["version"], env!("CARGO_PKG_VERSION"));
    let exports = nbd["exports"].as_array().unwrap();
    assert!(exports.contains(&"alice".into()), "{found}");
    assert_eq!(iscsi["exports"], serde_json::Value::Null);
    let unasked = ["--no-exports"];
    let unasked = there.discover_until("it is found", &unasked, |found| found.len() == 2);
    assert_eq!((&unasked[0]["address"], &unasked[0]["exports"]), (&nbd["address"], &().into()));
    // Another responder of that host, such as Avahi, gets what is sent to the host alone.
    let mut other = here.command("python3");
    let mut other = other.args(["-c", RESPONDER]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(other.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "listens");
    assert!(there.command("python3").args(["-c", ASKER]).status().unwrap().success());
    assert_eq!(said.next().unwrap().unwrap(), "heard");
    assert!(other.wait().unwrap().success());
    // On its own host, too.
    let is_nbd = |one: &serde_json::Value| one["service"] == "nbd";
    here.discover_until("it is found where it runs", &[], |found| found.iter().any(is_nbd));
    server.stop();
    there.discover_until("it is gone", &[], |found| found.is_empty());
}

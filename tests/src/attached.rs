//! A server whose disk is used on other machines, and these machines: homes of attached disks, each with its
//! process.

use crate::home::{Home, Server, free_port};
use crate::tool::{path, sojourn, texts};
use crate::{Client, Link, content};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The size of the disk `alice`.
pub const MIB: usize = 16;
/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A server with the disk `alice`, which nobody holds, and the link to its gateway.
pub struct Lab {
    /// The server's home.
    pub home: Home,
    /// The server.
    pub serving: Option<Server>,
    /// The way to its gateway.
    pub link: Link,
    /// What `alice` holds.
    pub image: Vec<u8>,
}

impl Lab {
    /// A server with an image made from a seed.
    pub fn new(seed: u64) -> Self {
        Self::of(Home::new(), seed)
    }

    /// The same in a home that was made.
    pub fn of(home: Home, seed: u64) -> Self {
        let rule = "{ certificate = \"alice\", write = [\"alice\", \"alice-kept-1\"], read = [\"golden:*\"] }";
        Self::under(home, seed, rule)
    }

    /// The same with this access rule beside that of this user.
    pub fn under(home: Home, seed: u64, rule: &str) -> Self {
        let image = content::image(seed, MIB);
        furnish(&home, &image, rule);
        let at = free_port();
        let serving = home.serve_with(&["--gateway", &at.to_string()]);
        Self { home, serving: Some(serving), link: Link::to(at), image }
    }

    /// The address of its gateway.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.link.address().port())
    }

    /// A machine that attaches disks of this server.
    pub fn machine(&self) -> Machine {
        Machine {
            dir: tempfile::Builder::new().prefix("sj-").tempdir().unwrap(),
            from: self.url(),
            certificates: self.home.home().join("tls/clients/alice"),
            environment: Vec::new(),
        }
    }

    /// Writes `alice` on a key.
    pub fn medium(&self, name: &str) -> PathBuf {
        let key = self.home.path(name);
        std::fs::create_dir(&key).unwrap();
        self.home.run(&["media", "write", key.to_str().unwrap(), "golden:1"]);
        key
    }
}

/// A machine with attached disks.
pub struct Machine {
    /// Its user's home.
    pub dir: TempDir,
    /// Where its disks are.
    pub from: String,
    /// The directory with its certificate.
    pub certificates: PathBuf,
    /// More of its environment.
    pub environment: Vec<(&'static str, String)>,
}

impl Machine {
    /// `sojourn` on this machine.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(sojourn());
        command.arg("--home").arg(self.dir.path()).args(args).stdin(Stdio::null());
        command.env_remove("SOJOURN_LOG").env("PATH", path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command.
    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed; gives what it printed.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{args:?}\n{out}{err}{}", self.log());
        out
    }

    /// Runs a command that must end with exit code `code`; gives its message.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.output(args);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}{err}{}", self.log());
        err
    }

    /// The same as `run` with `--json`.
    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[args, &["--json"]].concat())).unwrap()
    }

    /// The arguments that attach `alice`.
    pub fn attaching<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let certificates = self.certificates.to_str().unwrap();
        let args = ["attach", "alice", "--from", &self.from, "--tls-dir", certificates];
        [&args, more].concat()
    }

    /// Attaches `alice`; gives the socket.
    pub fn attach(&self, more: &[&str]) -> PathBuf {
        let made = self.json(&self.attaching(more));
        PathBuf::from(made["socket"].as_str().unwrap())
    }

    /// A client of `alice`, which is attached if need be.
    pub fn client(&self) -> Client {
        Client::attach(&self.attach(&[]), "alice")
    }

    /// The home of the attached disks.
    pub fn home(&self) -> PathBuf {
        let attached = self.dir.path().join("attached");
        std::fs::read_dir(attached).unwrap().next().unwrap().unwrap().path()
    }

    /// What their process logged.
    pub fn log(&self) -> String {
        let log = self.dir.path().join("attached").exists().then(|| self.home().join("agent.log"));
        log.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// What is told of `alice`.
    pub fn status(&self) -> Value {
        self.json(&["attach", "status"])[0]["disks"][0].clone()
    }

    /// Waits until what is told of `alice` is as wanted; gives that.
    pub fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not {what}: {status}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What is written goes up at once, and a store that is away is noticed soon. Ends the process.
    pub fn hurry(&self) {
        self.kill();
        let path = self.home().join("sojourn.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace("after_seconds = 5", "after_seconds = 0");
        std::fs::write(path, text.replace("lease_seconds = 60", "lease_seconds = 3")).unwrap();
    }

    /// Kills the process that looks after the disks, as a crash would.
    pub fn kill(&self) {
        let Ok(text) = std::fs::read_to_string(self.home().join("lock")) else { return };
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let Ok(pid) = digits.parse::<i32>() else { return };
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        let home = self.home();
        let is_ours = line
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&*home.to_string_lossy()));
        if is_ours {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let control = home.join("control.sock");
            while std::os::unix::net::UnixStream::connect(&control).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.dir.path().join("attached").exists() {
            self.kill();
        }
    }
}

/// Makes a home one that serves Alice through a gateway: with the image `golden:1`, the disk `alice`, which nobody
/// holds, certificates, and this access rule beside that of this user.
pub fn furnish(home: &Home, image: &[u8], rule: &str) {
    home.import("golden:1", image);
    home.disk("alice", "golden:1");
    home.run(&["disk", "release", "alice"]);
    home.run(&["cert", "ca"]);
    home.run(&["cert", "server", "localhost", "127.0.0.1"]);
    home.run(&["cert", "client", "alice"]);
    let uid = rustix::process::getuid().as_raw();
    let config = home.home().join("sojourn.toml");
    let rest = std::fs::read_to_string(&config).unwrap();
    let rules = format!("access = [\n{rule},\n{{ uid = {uid}, write = [\"*\"] }},\n]\n");
    std::fs::write(&config, rules + &rest).unwrap();
}

/// Waits until something is so.
pub fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "not {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// All that a disk holds.
pub fn read_all(client: &mut Client) -> Vec<u8> {
    (0..client.size >> 20).flat_map(|part| client.read(part << 20, 1 << 20)).collect()
}

/// Writes to a disk, and to what it is to hold.
pub fn write(client: &mut Client, content: &mut [u8], at: usize, data: &[u8]) {
    assert_eq!(client.write(at as u64, data), 0);
    content[at..at + data.len()].copy_from_slice(data);
}

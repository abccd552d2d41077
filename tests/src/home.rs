//! A home of its own for every test, and servers on it.

use crate::content;
use crate::tool::{path, sojourn, texts};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(120);

/// A home, and a directory for the test's other files.
pub struct Home {
    dir: TempDir,
    home: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// A fresh home, `sojourn init` done.
    pub fn new() -> Self {
        Self::made_with(&[])
    }

    /// A fresh home, `sojourn init` done with these arguments.
    pub fn made_with(args: &[&str]) -> Self {
        Self::made_in(&[], args)
    }

    /// The same; whatever is run in it has more variables in its environment.
    pub fn made_in(environment: &[(&'static str, String)], args: &[&str]) -> Self {
        let dir = temporary();
        let environment = environment.to_vec();
        let home = Self { home: dir.path().join("home"), dir, environment };
        home.run(&[&["init"], args].concat());
        home
    }

    /// A fresh home in `parent`; sockets, logs and other files are not there.
    pub fn within(parent: &Path) -> Self {
        let home = Self::at(parent);
        home.run(&["init"]);
        home
    }

    /// The home that is in `parent` already; sockets, logs and other files are not there.
    pub fn at(parent: &Path) -> Self {
        Self { home: parent.join("home"), dir: temporary(), environment: Vec::new() }
    }

    /// A directory of the test's own.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The home itself.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A path in the test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `sojourn --home THIS`; what it runs finds the programs that scripts find.
    pub fn command(&self) -> Command {
        let mut command = Command::new(sojourn());
        command.arg("--home").arg(&self.home).env_remove("SOJOURN_LOG");
        command.env("PATH", path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed; gives what it printed.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.command().args(args).output().expect("sojourn");
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{args:?}: {}\n{out}{err}", output.status);
        out
    }

    /// The same with `--json`.
    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.run(&[args, &["--json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}\n{out}"))
    }

    /// Runs a command that must end with exit code `code`; gives its message.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.command().args(args).output().expect("sojourn");
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}{err}");
        assert!(err.contains("sojourn: "), "{args:?}: {err}");
        err
    }

    /// Imports `bytes` as the image `name`.
    pub fn import(&self, name: &str, bytes: &[u8]) {
        let path = self.path("import.raw");
        content::write_sparse(&path, bytes);
        self.run(&["image", "import", &path.to_string_lossy(), name]);
        std::fs::remove_file(path).expect("image file");
    }

    /// Makes a disk from an image.
    pub fn disk(&self, name: &str, from: &str) {
        self.run(&["disk", "create", name, "--from", from]);
    }

    /// Starts a server of this home.
    pub fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    /// The same with more options.
    pub fn serve_with(&self, more: &[&str]) -> Server {
        self.serve_in(&[], more)
    }

    /// The same with more variables in its environment.
    pub fn serve_in(&self, env: &[(&str, String)], more: &[&str]) -> Server {
        let socket = self.path("nbd.sock");
        let mut command = self.command();
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.arg("serve").arg("--nbd").arg(format!("unix:{}", socket.display())).args(more);
        Server::start(command, socket, self.path("log"))
    }

    /// Starts a server of the one file `path`.
    pub fn serve_file(&self, path: &Path, more: &[&str]) -> Server {
        let socket = self.path("file.sock");
        let mut command = self.command();
        command.arg("serve").arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.arg("--file").arg(path).args(more);
        Server::start(command, socket, self.path("file.log"))
    }
}

/// A port of this machine's own that nobody listens at. It is below those that the system gives to connections and to
/// whoever binds any, and processes begin at different ones: who binds it later finds it free.
pub fn free_port() -> SocketAddr {
    const LOWEST: u16 = 11_000;
    const EACH: u16 = 100;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = LOWEST + (std::process::id() % 200) as u16 * EACH;
    (0..EACH)
        .map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % EACH)
        .find_map(|port| {
            TcpListener::bind(("127.0.0.1", port)).and_then(|free| free.local_addr()).ok()
        })
        .expect("a port")
}

fn temporary() -> TempDir {
    tempfile::Builder::new().prefix("sj-").tempdir().expect("temporary directory")
}

/// A running server. Dropping it kills it.
pub struct Server {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Server {
    fn start(mut command: Command, socket: PathBuf, log: PathBuf) -> Self {
        // A killed predecessor leaves its socket behind; connecting to it fails until it is ours.
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let file = file.expect("server log");
        command.stdout(Stdio::null()).stderr(file);
        let child = command.spawn().expect("sojourn");
        let mut server = Self { child, socket, log };
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.child.try_wait().expect("server") {
                panic!("the server ended: {status}\n{}", server.log());
            }
            assert!(Instant::now() < end, "the server does not listen\n{}", server.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Resident memory, bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the server's status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("kB") * 1024
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        tasks.expect("the server's threads").count()
    }

    /// How many descriptors it has of files with `part` in their path.
    pub fn descriptors(&self, part: &str) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        let paths = open.expect("the server's descriptors").filter_map(|entry| {
            std::fs::read_link(entry.ok()?.path()).ok() // it may be closed just now
        });
        paths.filter(|path| path.to_string_lossy().contains(part)).count()
    }

    /// The address of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Panics unless it runs.
    pub fn assert_alive(&mut self) {
        let ended = self.child.try_wait().expect("server");
        assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.log());
    }

    /// Asks it to read its configuration again, and waits until it logged `done`.
    pub fn reload(&self, done: &str) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).expect("signal");
        let end = Instant::now() + PATIENCE;
        while !self.log().contains(done) {
            assert!(Instant::now() < end, "the server does not reload\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to stop; it must end well.
    pub fn stop(mut self) {
        self.assert_alive();
        self.end();
    }

    /// Asks it to stop, if it has not ended; it must end well.
    pub fn end(self) {
        self.ask_to_stop();
        self.ended();
    }

    /// Asks it to stop, and does not wait for that.
    pub fn ask_to_stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("signal");
    }

    /// Whether it is there no more.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("server").is_some()
    }

    /// Waits until it has ended, which it must do well.
    pub fn ended(mut self) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("server") {
                break status;
            }
            assert!(Instant::now() < end, "the server does not stop\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "the server ended badly: {status}\n{}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }

    /// Kills it as a crash would.
    pub fn kill(mut self) {
        self.assert_alive();
        self.child.kill().expect("signal");
        self.child.wait().expect("server");
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Where a keeper was killed, the mount of its machine's memory stays, and the directory with it.
        let Ok(machines) = std::fs::read_dir(self.home.join("machines")) else { return };
        let nobody = rustix::io::Errno::NOTCONN.raw_os_error();
        for at in machines.flatten().map(|machine| machine.path().join("ram")) {
            if std::fs::metadata(&at).is_err_and(|e| e.raw_os_error() == Some(nobody)) {
                let _ = Command::new("umount").arg("-l").arg(at).output();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait();
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            if let Ok(Some(status)) = ended {
                eprintln!("--- the server had ended: {status}");
            }
            eprintln!("--- server log\n{}", self.log());
        }
    }
}

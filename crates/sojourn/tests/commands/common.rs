//! What the tests share: a home of their own, the real binary, and a running server.

use nbd::{ClientOptions, Remote, Uri};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_sojourn");
pub(crate) const MIB: u64 = 1 << 20;

/// A directory with a home in it.
pub(crate) struct Lab {
    dir: TempDir,
}

/// What a command did.
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// It failed with this exit code and one line that holds all these words.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "more than one line: {}", self.stderr);
        assert!(lines[0].starts_with("sojourn: "), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in: {}", self.stderr);
        }
    }
}

impl Lab {
    /// A directory without a home.
    pub(crate) fn empty() -> Self {
        Self { dir: tempfile::Builder::new().prefix("sojourn-test-").tempdir().unwrap() }
    }

    /// A fresh home.
    pub(crate) fn new() -> Self {
        let lab = Self::empty();
        lab.run(["init"]).ok();
        lab
    }

    /// A home with the image `debian:1`, whose content is returned.
    pub(crate) fn with_image() -> (Self, Vec<u8>) {
        let lab = Self::new();
        let content = content(8 * MIB, 1);
        let file = lab.file("golden.raw", &content);
        lab.run([OsStr::new("image"), "import".as_ref(), file.as_ref(), "debian".as_ref()]).ok();
        (lab, content)
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file; blocks of zeroes become holes.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(content.len() as u64).unwrap();
        for (i, block) in content.chunks(4096).enumerate() {
            if block.iter().any(|b| *b != 0) {
                file.write_all_at(block, i as u64 * 4096).unwrap();
            }
        }
        path
    }

    pub(crate) fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Command {
        let mut command = Command::new(BINARY);
        command
            .arg("--home")
            .arg(self.home())
            .args(args)
            .current_dir(self.dir.path())
            .env_remove("SOJOURN_LOG")
            .env_remove("NOTIFY_SOCKET")
            .env("TMPDIR", self.dir.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Done {
        Done::from(self.command(args).output().unwrap())
    }

    /// Runs a command line that is split at blanks.
    pub(crate) fn line(&self, line: &str) -> Done {
        self.run(line.split_whitespace())
    }

    /// The JSON of a command line that is split at blanks.
    #[track_caller]
    pub(crate) fn json(&self, line: &str) -> Value {
        self.run(["--json"].into_iter().chain(line.split_whitespace())).json()
    }

    /// Starts a server and waits until it is ready.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        self.serve_in(&[], args)
    }

    /// The same with more variables in its environment.
    pub(crate) fn serve_in(&self, env: &[(&str, &str)], args: &[&str]) -> Server {
        let notices = self.path("notify.sock");
        let _ = std::fs::remove_file(&notices);
        let socket = UnixDatagram::bind(&notices).unwrap();
        // Of a server that works as another user, too.
        std::fs::set_permissions(&notices, Permissions::from_mode(0o777)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let log = std::fs::File::create(self.path("serve.log")).unwrap();
        let child = self
            .command(["serve"].iter().chain(args))
            .env("NOTIFY_SOCKET", &notices)
            .envs(env.iter().copied())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Server { child, socket, log: self.path("serve.log"), nbd: self.nbd_socket() };
        assert_eq!(server.notice(), "READY=1", "{}", server.log());
        server
    }

    pub(crate) fn nbd_socket(&self) -> PathBuf {
        self.home().join("nbd.sock")
    }
}

/// A running server; killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    socket: UnixDatagram,
    log: PathBuf,
    nbd: PathBuf,
}

impl Server {
    /// The next notice to the service manager.
    pub(crate) fn notice(&self) -> String {
        let mut buf = [0; 256];
        match self.socket.recv(&mut buf) {
            Ok(len) => String::from_utf8_lossy(&buf[..len]).into_owned(),
            Err(e) => panic!("no notice: {e}; log: {}", self.log()),
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = match name {
            "TERM" => rustix::process::Signal::TERM,
            "HUP" => rustix::process::Signal::HUP,
            other => panic!("{other}"),
        };
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops it gracefully and gives its exit code.
    pub(crate) fn stop(mut self) -> i32 {
        self.signal("TERM");
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    pub(crate) fn wait(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.nbd.display())
    }

    /// Connects to an export.
    pub(crate) async fn attach(&self, export: &str) -> block::Result<Remote> {
        let uri: Uri = self.uri(export).parse()?;
        Remote::connect(&uri, ClientOptions::default()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes of an image: data, holes and data that repeats, different for each seed.
pub(crate) fn content(size: u64, seed: u64) -> Vec<u8> {
    let mut random = block::conformance::Sequence::new(seed);
    let mut bytes = vec![0; size as usize];
    for (i, block) in bytes.chunks_mut(4096).enumerate() {
        if i % 4 == 3 || (i / 64) % 3 == 2 {
            continue;
        }
        for word in block.chunks_mut(8) {
            let number = random.number().to_le_bytes();
            word.copy_from_slice(&number[..word.len()]);
        }
    }
    bytes
}

/// Says that a test is skipped for want of what CI has; there that fails it.
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "nothing is skipped for that in CI: {why}");
    println!("skipped: {why}");
}

/// Whether a program that a test needs is installed; says so when not, which fails the test in CI.
pub(crate) fn have(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

/// All files under a directory with their sizes and times, to see that nothing changed.
pub(crate) fn listing(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut all = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                todo.push(entry.path());
            } else {
                all.push((entry.path(), metadata.len()));
            }
        }
    }
    all.sort();
    all
}

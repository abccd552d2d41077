//! A home of Sojourn's and its server, as users make and run them.

use crate::client::BenchConnection;
use crate::process::Tree;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to serve its first client.
const START: Duration = Duration::from_secs(60);
/// How long it may take to end when asked.
const STOP: Duration = Duration::from_secs(20);

/// A home, and the binary that works on it.
pub(crate) struct Home {
    binary: PathBuf,
    directory: PathBuf,
    environment: Vec<(String, String)>,
    store: String,
}

impl Home {
    /// Makes a home in `directory`, on a store that `environment` leads to.
    pub(crate) fn make(
        binary: &Path,
        directory: &Path,
        store: &str,
        environment: Vec<(String, String)>,
    ) -> Result<Self> {
        let home = Self {
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            environment,
            store: store.to_owned(),
        };
        home.run(&["init", "--store", store])?;
        Ok(home)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--home").arg(&self.directory).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to its end; what it printed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command().args(arguments).output().with_context(|| {
            format!(
                "cannot run {}; build it with `cargo build --release -p sojourn`, or name it with \
                 --sojourn",
                self.binary.display()
            )
        })?;
        ensure!(
            output.status.success(),
            "sojourn {arguments:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Imports a raw image.
    pub(crate) fn import(&self, image: &Path, name: &str) -> Result<()> {
        let path = image.to_str().context("the image's path is not text")?;
        self.run(&["image", "import", path, name]).map(|_| ())
    }

    /// Makes disks `STEM0`, `STEM1` … of an image.
    pub(crate) fn disks(&self, stem: &str, count: usize, image: &str) -> Result<()> {
        for number in 0..count {
            self.run(&["disk", "create", &format!("{stem}{number}"), "--from", image])?;
        }
        Ok(())
    }

    /// Starts a server with this configuration beside the store's place; it also listens at `tcp`.
    pub(crate) fn serve(&self, configuration: &str, tcp: Option<SocketAddr>) -> Result<Serving> {
        let tcp = tcp.map_or(String::new(), |address| format!("\"{address}\""));
        let nbd = format!("[serve]\nnbd = [\"unix:nbd.sock\", {tcp}]\n");
        // A table stands in a file once.
        let (before, after) = configuration.split_once("[serve]\n").unwrap_or((configuration, ""));
        let text = format!("store = \"{}\"\n{before}\n{nbd}{after}\n", self.store);
        fs::write(self.directory.join("sojourn.toml"), text)?;
        let socket = self.directory.join("nbd.sock");
        let _ = fs::remove_file(&socket);
        let log_path = self.directory.join("serve.log");
        let log = fs::File::create(&log_path)?;
        let mut command = self.command();
        command.arg("serve").stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("cannot start the server")?;
        let tree = Tree::new(child.id());
        let mut serving = Serving { child, tree, socket };
        let end = Instant::now() + START;
        loop {
            let ended = serving.child.try_wait()?;
            if ended.is_none() && std::os::unix::net::UnixStream::connect(&serving.socket).is_ok() {
                return Ok(serving);
            }
            ensure!(
                ended.is_none() && Instant::now() < end,
                "the server does not start; its log says: {}",
                fs::read_to_string(&log_path).unwrap_or_default().trim()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A running server; dropping it stops it.
pub(crate) struct Serving {
    child: Child,
    tree: Tree,
    socket: PathBuf,
}

impl Serving {
    /// A client of `export`.
    pub(crate) fn connect(&self, export: &str) -> Result<BenchConnection> {
        BenchConnection::open(&self.socket, export)
    }

    /// The server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory now, bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.tree.memory()
    }

    /// Threads now.
    pub(crate) fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.child.id())).map_or(0, Iterator::count)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may be gone already: then there is nothing to stop.
            let _ = kill_process(pid, Signal::TERM);
        }
        let end = Instant::now() + STOP;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! The servers that are measured, and how each is started on a private socket and private files.

use crate::client::BenchConnection;
use crate::content;
use crate::load::{MOST_CLIENTS, read_all};
use crate::place::Endpoint;
use crate::process::Tree;
use crate::tool::{find, run};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to serve its first client.
const START: Duration = Duration::from_secs(20);
/// How long it may take to end when asked.
const STOP: Duration = Duration::from_secs(10);

/// What a server is compared as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// What no server can beat.
    Limit,
    /// Sojourn.
    Ours,
    /// Another build of Sojourn, which ours is compared with.
    Before,
    /// A server that people run today.
    Peer,
}

/// A server and what it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contender {
    /// Its name in tables and on the command line.
    pub(crate) name: &'static str,
    /// What it is compared as.
    pub(crate) role: Role,
    /// What is served, in a few words.
    pub(crate) what: &'static str,
    kind: ContenderKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContenderKind {
    Raw,
    SojournFile,
    SojournDisk,
    SojournPrivate,
    Nbdkit,
    NbdServer { copy_on_write: bool },
    QemuRaw,
    QemuQcow2,
}

/// The same servers as ours, of another build (`--before`): each beside the one of ours that it is
/// compared with.
const BEFORE: [(&str, Contender); 3] = [
    (
        "sojourn-file",
        contender("before-file", Role::Before, ContenderKind::SojournFile, ALL[1].what),
    ),
    (
        "sojourn-disk",
        contender("before-disk", Role::Before, ContenderKind::SojournDisk, ALL[2].what),
    ),
    (
        "sojourn-private",
        contender("before-private", Role::Before, ContenderKind::SojournPrivate, ALL[3].what),
    ),
];

const fn contender(
    name: &'static str,
    role: Role,
    kind: ContenderKind,
    what: &'static str,
) -> Contender {
    Contender { name, role, what, kind }
}

/// Everybody, in the order of the tables.
pub(crate) const ALL: [Contender; 9] = [
    contender(
        "raw",
        Role::Limit,
        ContenderKind::Raw,
        "ping-pong of the same messages, from memory",
    ),
    contender("sojourn-file", Role::Ours, ContenderKind::SojournFile, "a raw file (--file)"),
    contender(
        "sojourn-disk",
        Role::Ours,
        ContenderKind::SojournDisk,
        "one disk from an imported image",
    ),
    contender(
        "sojourn-private",
        Role::Ours,
        ContenderKind::SojournPrivate,
        "a disk for each client, all from one imported image",
    ),
    contender("nbdkit-file", Role::Peer, ContenderKind::Nbdkit, "a raw file"),
    contender(
        "nbd-server",
        Role::Peer,
        ContenderKind::NbdServer { copy_on_write: false },
        "a raw file",
    ),
    contender(
        "nbd-server-cow",
        Role::Peer,
        ContenderKind::NbdServer { copy_on_write: true },
        "copyonwrite: a private layer for each connection, lost with it",
    ),
    contender("qemu-nbd-raw", Role::Peer, ContenderKind::QemuRaw, "a raw file"),
    contender(
        "qemu-nbd-qcow2",
        Role::Peer,
        ContenderKind::QemuQcow2,
        "one qcow2 overlay over a raw file",
    ),
];

impl Contender {
    /// The same server of the other build; `None` for those that are not ours.
    pub(crate) fn before(&self) -> Option<Self> {
        BEFORE.iter().find(|(ours, _)| *ours == self.name).map(|(_, before)| *before)
    }

    /// The program it needs.
    fn program(&self) -> &'static str {
        match self.kind {
            ContenderKind::Raw => "sojourn-bench",
            ContenderKind::SojournFile
            | ContenderKind::SojournDisk
            | ContenderKind::SojournPrivate => "sojourn",
            ContenderKind::Nbdkit => "nbdkit",
            ContenderKind::NbdServer { .. } => "nbd-server",
            ContenderKind::QemuRaw | ContenderKind::QemuQcow2 => "qemu-nbd",
        }
    }

    /// Its program's version, or why it cannot run here; `sojourn` is our binary.
    pub(crate) fn version(&self, sojourn: &Path) -> Result<String> {
        let (program, flag) = match self.kind {
            ContenderKind::Raw => return Ok(env!("CARGO_PKG_VERSION").to_owned()),
            ContenderKind::SojournFile
            | ContenderKind::SojournDisk
            | ContenderKind::SojournPrivate => (sojourn.to_owned(), "--version"),
            ContenderKind::NbdServer { .. } => (find(self.program())?, "-V"),
            ContenderKind::QemuQcow2 => {
                find("qemu-img")?;
                (find(self.program())?, "--version")
            }
            _ => (find(self.program())?, "--version"),
        };
        let output = Command::new(&program).arg(flag).output().map_err(|error| {
            let remedy = match self.role {
                Role::Ours => "; build it with `cargo build --release -p sojourn`",
                Role::Before => "; --before takes the path of a sojourn binary",
                Role::Limit | Role::Peer => "",
            };
            anyhow!("cannot run {}: {error}{remedy}", program.display())
        })?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// Starts it; returns when it serves and its disk was read once.
    pub(crate) fn start(&self, bench: &Bench) -> Result<RunningContender> {
        self.start_with(bench, &[])
    }

    /// The same, with more on its command line.
    pub(crate) fn start_with(&self, bench: &Bench, more: &[&OsStr]) -> Result<RunningContender> {
        let dir = bench.dir.join(format!("{}-{}", self.name, bench.starts.get()));
        bench.starts.set(bench.starts.get() + 1);
        fs::create_dir(&dir)?;
        let place = match bench.tcp {
            true => Endpoint::free_tcp().context("no TCP on this machine")?,
            false => Endpoint::Unix(dir.join("nbd.sock")),
        };
        let launch = self.launch(bench, &dir, &place)?;
        let log_path = dir.join("log");
        let log = fs::File::create(&log_path)?;
        let mut command = launch.command;
        command.args(more);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot run {:?}", command))?;
        let tree = Tree::new(child.id());
        let left = Left { dir, commands: launch.undo };
        let mut server =
            RunningContender { child, tree, place, exports: launch.exports, _left: left };
        server
            .await_ready(launch.pid_file.as_deref())
            .and_then(|()| read_all(&server.place, &server.export(0), bench.size))
            .map_err(|error| error.context(format!("did not start{}", log_tail(&log_path))))?;
        Ok(server)
    }

    fn launch(&self, bench: &Bench, dir: &Path, place: &Endpoint) -> Result<Launch> {
        let (mut pid_file, mut undo) = (None, Vec::new());
        let mut exports = Exports::Same(String::new());
        let command = match self.kind {
            ContenderKind::Raw => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("raw-server").arg(place.to_string()).arg(bench.size.to_string());
                command
            }
            ContenderKind::SojournFile => {
                let mut command = Command::new(&bench.sojourn);
                command.arg("--home").arg(dir.join("home")).arg("serve");
                command.arg("--nbd").arg(nbd_address(place));
                command.arg("--file").arg(bench.raw_copy("sojourn")?);
                command
            }
            ContenderKind::SojournDisk | ContenderKind::SojournPrivate => {
                let home = bench.home()?;
                // A disk of each round's own: none has been written to.
                let stem = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let count = if self.kind == ContenderKind::SojournDisk { 1 } else { MOST_CLIENTS };
                for index in 0..count {
                    let name = format!("{stem}-{index}");
                    run(bench.command().args(["disk", "create", &name, "--from", IMAGE]))?;
                    let mut remove = bench.command();
                    remove.args(["disk", "remove", &name]);
                    undo.push(remove);
                }
                exports = match count {
                    1 => Exports::Same(format!("{stem}-0")),
                    _ => Exports::Numbered(format!("{stem}-")),
                };
                let mut command = Command::new(&bench.sojourn);
                command.arg("--home").arg(home).arg("serve");
                command.arg("--nbd").arg(nbd_address(place));
                command
            }
            ContenderKind::Nbdkit => {
                let mut command = Command::new("nbdkit");
                command.arg("--foreground");
                match place {
                    Endpoint::Unix(path) => command.arg("--unix").arg(path),
                    Endpoint::Tcp(at) => command.args([
                        "--ipaddr",
                        &at.ip().to_string(),
                        "--port",
                        &at.port().to_string(),
                    ]),
                };
                command.arg("file").arg(bench.raw_copy("nbdkit")?);
                command
            }
            ContenderKind::NbdServer { copy_on_write } => {
                let export = if copy_on_write {
                    bench.image.clone()
                } else {
                    bench.raw_copy("nbd-server")?
                };
                let config = dir.join("config");
                fs::write(&config, nbd_server_config(place, &export, copy_on_write)?)?;
                exports = Exports::Same("disk".to_owned());
                let pid = dir.join("pid");
                // It puts itself into the background; its pid file leads to it.
                let mut command = Command::new(find("nbd-server")?);
                command.arg("-C").arg(&config).arg("-p").arg(&pid);
                pid_file = Some(pid);
                command
            }
            ContenderKind::QemuRaw | ContenderKind::QemuQcow2 => {
                let mut command = Command::new("qemu-nbd");
                command.args(["--persistent", "--shared", "0"]);
                match place {
                    Endpoint::Unix(path) => command.arg("--socket").arg(path),
                    Endpoint::Tcp(at) => command.args([
                        "--bind",
                        &at.ip().to_string(),
                        "--port",
                        &at.port().to_string(),
                    ]),
                };
                if self.kind == ContenderKind::QemuRaw {
                    command.args(["--format", "raw"]).arg(bench.raw_copy("qemu")?);
                } else {
                    let overlay = dir.join("overlay.qcow2");
                    run(Command::new("qemu-img")
                        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
                        .arg(&bench.image)
                        .arg(&overlay))?;
                    command.args(["--format", "qcow2"]).arg(overlay);
                }
                command
            }
        };
        Ok(Launch { command, exports, pid_file, undo })
    }
}

struct Launch {
    command: Command,
    exports: Exports,
    pid_file: Option<PathBuf>,
    /// What removes what was made for it elsewhere than in its directory.
    undo: Vec<Command>,
}

#[derive(Debug)]
enum Exports {
    /// All clients use this one.
    Same(String),
    /// Client N uses this with N behind it.
    Numbered(String),
}

/// The name of the imported image.
const IMAGE: &str = "bench:1";

/// The files that the servers serve, made when first needed.
pub(crate) struct Bench {
    dir: PathBuf,
    size: u64,
    sojourn: PathBuf,
    /// Servers listen over TCP.
    tcp: bool,
    /// A raw file that nobody writes to: what overlays stand on and images are imported from.
    image: PathBuf,
    home: OnceCell<PathBuf>,
    /// How many servers were started.
    starts: Cell<usize>,
}

impl Bench {
    /// Makes a disk image of `size` bytes in `dir`.
    pub(crate) fn new(dir: &Path, size: u64, sojourn: PathBuf) -> Result<Self> {
        let image = dir.join("image.raw");
        content::write_image(&image, size)
            .with_context(|| format!("cannot write {}", image.display()))?;
        Ok(Self {
            dir: dir.to_owned(),
            size,
            sojourn,
            tcp: false,
            image,
            home: OnceCell::new(),
            starts: Cell::new(0),
        })
    }

    /// The same, but for servers that listen over TCP.
    pub(crate) fn over_tcp(self) -> Self {
        Self { tcp: true, ..self }
    }

    /// A raw file with the same content that the server `name` writes to. Each has its own: those that
    /// lock it let no other writer in.
    fn raw_copy(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(format!("plain-{name}.raw"));
        if !path.exists() {
            fs::copy(&self.image, &path)
                .with_context(|| format!("cannot copy the image to {}", path.display()))?;
        }
        Ok(path)
    }

    /// A Sojourn home into which the image was imported.
    fn home(&self) -> Result<&Path> {
        if let Some(path) = self.home.get() {
            return Ok(path);
        }
        run(self.command().arg("init"))?;
        // All servers measure from warm memory, so the cache must hold the whole disk.
        let config = format!("[cache]\nsize = \"{}\"\n", block::ByteSize(2 * self.size));
        fs::write(self.home_path().join("sojourn.toml"), config)?;
        run(self.command().args(["image", "import"]).arg(&self.image).arg(IMAGE))?;
        Ok(self.home.get_or_init(|| self.home_path()))
    }

    fn home_path(&self) -> PathBuf {
        self.dir.join("home")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.sojourn);
        command.arg("--home").arg(self.home_path());
        command
    }
}

/// A running server. Dropping it stops it, and deletes what was made for it.
pub(crate) struct RunningContender {
    child: Child,
    tree: Tree,
    place: Endpoint,
    exports: Exports,
    // Dropped when the server has ended.
    _left: Left,
}

/// What is left of a server that ended: every round leaves as much.
struct Left {
    dir: PathBuf,
    commands: Vec<Command>,
}

impl Drop for Left {
    fn drop(&mut self) {
        for command in &mut self.commands {
            if let Err(error) = run(command) {
                eprintln!("{error:#}");
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl RunningContender {
    /// Where it listens.
    pub(crate) fn place(&self) -> &Endpoint {
        &self.place
    }

    /// The name of the disk of client `index`.
    pub(crate) fn export(&self, index: usize) -> String {
        match &self.exports {
            Exports::Same(name) => name.clone(),
            Exports::Numbered(stem) => format!("{stem}{index}"),
        }
    }

    /// Its processes.
    pub(crate) fn tree(&self) -> Tree {
        self.tree.clone()
    }

    /// Whether it still runs.
    pub(crate) fn alive(&self) -> bool {
        self.tree.alive()
    }

    fn await_ready(&mut self, pid_file: Option<&Path>) -> Result<()> {
        let end = Instant::now() + START;
        loop {
            let ended = self.child.try_wait()?;
            if let Some(path) = pid_file {
                if let Ok(text) = fs::read_to_string(path)
                    && let Ok(pid) = text.trim().parse()
                {
                    self.tree = Tree::new(pid);
                }
                ensure!(ended.is_none_or(|status| status.success()), "it ended ({ended:?})");
            } else if let Some(status) = ended {
                bail!("it ended ({status})");
            }
            let error = match BenchConnection::open_at(&self.place, &self.export(0)) {
                Ok(connection) if self.alive() => {
                    connection.close();
                    return Ok(());
                }
                Ok(_) => anyhow!("its process is not known yet"),
                Err(error) => error,
            };
            ensure!(Instant::now() < end, "not ready in {} s: {error:#}", START.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RunningContender {
    fn drop(&mut self) {
        self.tree.refresh();
        let signal = |pid: &u32, signal: Signal| {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                // It may be gone already: then there is nothing to stop.
                let _ = kill_process(pid, signal);
            }
        };
        if self.alive() {
            self.tree.members().iter().for_each(|pid| signal(pid, Signal::TERM));
        }
        let end = Instant::now() + STOP;
        while self.alive() && Instant::now() < end {
            let _ = self.child.try_wait();
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.alive() {
            self.tree.members().iter().for_each(|pid| signal(pid, Signal::KILL));
        }
        let _ = self.child.wait();
    }
}

fn nbd_address(place: &Endpoint) -> String {
    match place {
        Endpoint::Unix(path) => format!("unix:{}", path.display()),
        Endpoint::Tcp(address) => address.to_string(),
    }
}

fn nbd_server_config(place: &Endpoint, export: &Path, copy_on_write: bool) -> Result<String> {
    let (socket, tcp) = match place {
        Endpoint::Unix(path) => {
            // It listens on TCP as well, whatever it is told; give it a port that is free now.
            (format!("unixsock = {}\n", path.display()), Endpoint::free_tcp()?)
        }
        Endpoint::Tcp(_) => (String::new(), place.clone()),
    };
    let Endpoint::Tcp(address) = tcp else { bail!("{tcp} is no address") };
    let export = export.display();
    Ok(format!(
        "[generic]\n{socket}listenaddr = {}\nport = {}\n\
         [disk]\nexportname = {export}\nflush = true\nfua = true\ntrim = true\n\
         copyonwrite = {copy_on_write}\n",
        address.ip(),
        address.port(),
    ))
}

/// The end of a server's log, for a message.
fn log_tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    match text.trim().lines().next_back() {
        Some(line) => format!(" (its log ends: {line})"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_start_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("sojourn");
        let bench = Bench::new(dir.path(), 1 << 20, missing.clone()).unwrap();
        let error = ALL[1].version(&missing).unwrap_err().to_string();
        assert!(error.contains("cargo build --release -p sojourn"), "{error}");
        assert!(ALL[1].start(&bench).is_err());
        let error = ALL[1].before().unwrap().version(&missing).unwrap_err().to_string();
        assert!(error.contains("--before takes the path of a sojourn binary"), "{error}");
    }

    #[test]
    fn each_server_of_ours_has_a_twin_of_the_other_build_and_no_peer_has() {
        for contender in ALL {
            let twin = contender.before();
            assert_eq!(twin.is_some(), contender.role == Role::Ours, "{}", contender.name);
            if let Some(twin) = twin {
                assert_eq!((twin.kind, twin.role), (contender.kind, Role::Before));
            }
        }
    }
}

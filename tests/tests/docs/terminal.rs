//! A terminal: one shell for a page, in a directory of its own, with whatever it leaves running.

use sojourn_tests::{home::free_port, tool};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The variable by which the processes of a terminal are known.
const MARK: &str = "SOJOURN_PAGE";

/// Before the first command. A guest's window is nobody's to close: QEMU ends when its devices are made, which is
/// when it has opened its disks.
const PRELUDE: &str = r#"
set -o pipefail
qemu-system-x86_64() {
    rm -f "$SOJOURN_PAGE/qemu.pid"
    command qemu-system-x86_64 -display none -daemonize -pidfile "$SOJOURN_PAGE/qemu.pid" "$@" || return
    local pid
    pid=$(cat "$SOJOURN_PAGE/qemu.pid")
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
}
"#;

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    /// Its exit code.
    pub(crate) code: i32,
    /// What it printed, on standard output and standard error.
    pub(crate) printed: String,
}

/// A command that does not return, at work.
struct Serving {
    /// What it is: another one of the same kind takes its place.
    what: String,
    pid: i32,
    log: PathBuf,
}

/// A shell with its directory.
pub(crate) struct Terminal {
    dir: TempDir,
    shell: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    commands: usize,
    serving: Vec<Serving>,
    ports: HashMap<u16, u16>,
}

impl Terminal {
    /// A terminal in a new directory.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("sj-").tempdir().expect("a directory");
        for name in ["bin", "user", "work", "tmp", "media/usb"] {
            fs::create_dir_all(dir.path().join(name)).expect(name);
        }
        symlink(tool::sojourn(), dir.path().join("bin/sojourn")).expect("the binary");
        let mut shell = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .env_clear()
            .env("PATH", format!("{}:{}", dir.path().join("bin").display(), tool::path()))
            .env("HOME", dir.path().join("user"))
            .env("TMPDIR", dir.path().join("tmp"))
            .env("SOJOURN_HOME", dir.path().join("home"))
            .env("LC_ALL", "C.UTF-8")
            .env(MARK, dir.path())
            .current_dir(dir.path().join("work"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("bash");
        let stdin = shell.stdin.take().expect("its input");
        let stdout = BufReader::new(shell.stdout.take().expect("its output"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let (commands, serving, ports) = (0, Vec::new(), HashMap::new());
        let mut terminal = Self { dir, shell, stdin, answers, commands, serving, ports };
        let prelude = terminal.run(PRELUDE).expect("the prelude");
        assert_eq!(prelude.code, 0, "{}", prelude.printed);
        terminal
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A text with the ports of a page (`:9180`) replaced by free ones: always the same for the same.
    pub(crate) fn with_free_ports(&mut self, text: &str) -> String {
        let mut parts = text.split(':');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            filled.push(':');
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            match part[..digits].parse::<u16>() {
                // Shorter numbers are times, tags and parts of addresses.
                Ok(port) if digits >= 4 => {
                    let free = *self.ports.entry(port).or_insert_with(|| free_port().port());
                    filled.push_str(&free.to_string());
                    filled.push_str(&part[digits..]);
                }
                _ => filled.push_str(part),
            }
        }
        filled
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// When it does not end, or ended the shell.
    pub(crate) fn run(&mut self, command: &str) -> Result<Done, String> {
        let (script, out) = self.script(command);
        let line =
            format!(". '{}' > '{}' 2>&1 < /dev/null; echo $?", script.display(), out.display());
        let answer = self.ask(&line);
        let printed = printed(&out);
        let code = answer.map_err(|error| format!("{error}\n{printed}"))?;
        let code = code.parse().map_err(|_| format!("no exit code: {code}\n{printed}"))?;
        Ok(Done { code, printed })
    }

    /// Goes to the host that a prompt names, which has a home of its own.
    ///
    /// # Errors
    /// When the shell has ended.
    pub(crate) fn sit_at(&mut self, host: &str) -> Result<(), String> {
        if host.is_empty() {
            return Ok(());
        }
        self.run(&format!("export SOJOURN_HOME=\"$SOJOURN_PAGE/{host}\"")).map(drop)
    }

    /// Starts a command that does not return, in the place of the one that was started as `what` on the same home;
    /// gives what it printed until it was ready.
    ///
    /// # Errors
    /// When it ends before it is ready, or the former one did not end well.
    pub(crate) fn serve(
        &mut self,
        what: &str,
        command: &str,
        ready: Ready,
    ) -> Result<Done, String> {
        let what = format!("{} {what}", self.run("printf %s \"$SOJOURN_HOME\"")?.printed);
        self.stop(Some(&what))?;
        let notices = self.dir().join(format!("ready.{}", self.commands));
        let socket = UnixDatagram::bind(&notices).map_err(|error| error.to_string())?;
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .map_err(|error| error.to_string())?;
        let command = format!("export NOTIFY_SOCKET='{}'\nexec env {command}", notices.display());
        let (script, log) = self.script(&command);
        let line =
            format!(". '{}' > '{}' 2>&1 < /dev/null & echo $!", script.display(), log.display());
        let pid = self.ask(&line)?;
        let pid = pid.parse().map_err(|_| format!("no process: {pid}"))?;
        self.serving.push(Serving { what, pid, log: log.clone() });
        let end = Instant::now() + PATIENCE;
        loop {
            let mut notice = [0; 64];
            let noticed = socket
                .recv(&mut notice)
                .is_ok_and(|length| notice[..length].starts_with(b"READY=1"));
            let is_ready = match ready {
                Ready::Notified => noticed,
                Ready::Printed => fs::metadata(&log).is_ok_and(|log| log.len() > 0),
                Ready::Made(path) => self.dir().join("work").join(path).exists(),
            };
            if is_ready {
                return Ok(Done { code: 0, printed: printed(&log) });
            }
            if !Path::new(&format!("/proc/{pid}/exe")).exists() || Instant::now() > end {
                let why = printed(&log);
                return Err(format!("it is not ready\n{why}"));
            }
        }
    }

    /// Ends what serves as `what`, or everything that serves. It must end well.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn stop(&mut self, what: Option<&str>) -> Result<(), String> {
        let (ending, staying) = std::mem::take(&mut self.serving)
            .into_iter()
            .partition::<Vec<_>, _>(|serving| what.is_none_or(|what| serving.what == what));
        self.serving = staying;
        let mut bad = Vec::new();
        // A server may be the store of one that was started later.
        for Serving { what, pid, log } in ending.into_iter().rev() {
            let code = self.ask(&format!("kill {pid} 2> /dev/null; wait {pid}; echo $?"))?;
            // One that does not mind the signal ends by it.
            if code != "0" && code != "143" {
                bad.push(format!("{what} ended with {code}\n{}", printed(&log)));
            }
        }
        if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
    }

    /// Writes a command into a file; gives that, and where its output goes.
    fn script(&mut self, command: &str) -> (PathBuf, PathBuf) {
        self.commands += 1;
        let path = |name: &str| self.dir().join(format!("{name}.{}", self.commands));
        fs::write(path("command"), format!("{command}\n")).expect("a script");
        (path("command"), path("printed"))
    }

    /// Has the shell do something that prints a line.
    fn ask(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.stdin, "{line}").map_err(|error| format!("the shell has ended: {error}"))?;
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => Err("it does not end".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err("the shell has ended".to_owned()),
        }
    }
}

/// By what a command that does not return is known to be ready.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ready {
    /// It tells its service manager.
    Notified,
    /// It prints something.
    Printed,
    /// It makes this file in the working directory.
    Made(&'static str),
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        // Whatever was left to itself, such as the process of attached disks, has the mark of this terminal.
        let mark = format!("{MARK}={}", self.dir().display());
        let is_ours = |dir: &Path| {
            fs::read(dir.join("environ"))
                .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == mark.as_bytes()))
        };
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
                && is_ours(&entry.path())
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

fn printed(path: &Path) -> String {
    let mut text = Vec::new();
    // What a command prints is of this test's making, and short.
    if let Ok(mut file) = File::open(path) {
        let _ = std::io::Read::read_to_end(&mut file, &mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

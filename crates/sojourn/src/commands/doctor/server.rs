//! The server of the home: whether one holds it, and whether it answers.

use super::finding::Finding;
use super::patient::Patient;
use server::status::StatusView;
use std::io::Read;
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What an NBD server says first.
const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    if !patient.has_home {
        return Vec::new();
    }
    let lock = patient.home.dir().join("lock");
    let holder = holder(&lock);
    match &patient.server {
        Ok(Some(status)) => running(patient, status),
        Ok(None) => not_running(patient, holder),
        Err(error) => vec![Finding::trouble(
            format!("the server does not answer: {}", error.message()),
            "no command can ask it for anything; its clients may still be served",
            format!(
                "look into its log; `sojourn drain` when it answers again, else end {}",
                holder.map_or("it".to_owned(), |pid| format!("process {pid}"))
            ),
        )],
    }
}

fn running(patient: &Patient, status: &StatusView) -> Vec<Finding> {
    let mut findings: Vec<Finding> = status
        .troubles()
        .into_iter()
        .map(|trouble| {
            Finding::trouble(
                trouble,
                "its clients wait, or get errors",
                "docs/serve.md, full and slow disks",
            )
        })
        .collect();
    if status.panics > 0 {
        findings.push(Finding::trouble(
            format!("{} faults of the program were caught since the server started", status.panics),
            "each ended what one client was doing; that should not happen at all",
            "report it, with the lines of the log that say panic",
        ));
    }
    let ours = env!("CARGO_PKG_VERSION");
    if status.version != ours {
        findings.push(Finding::advice(
            format!("the server is version {}, this program {ours}", status.version),
            "what was mended since is not in the one that runs",
            "sojourn drain --to-successor: the new one takes its clients over (docs/serve.md)",
        ));
    }
    for socket in sockets(patient).into_iter().filter(|socket| socket.exists()) {
        if let Err(why) = greets(&socket) {
            findings.push(Finding::trouble(
                format!("nobody answers at {}: {why}", socket.display()),
                "clients wait there for ever",
                "sojourn reload; look into the log of the server",
            ));
        }
    }
    if findings.is_empty() {
        let what =
            format!("process {} serves, with {} connections", status.pid, status.connections);
        findings.push(Finding::ok(what));
    }
    findings
}

fn not_running(patient: &Patient, holder: Option<i32>) -> Vec<Finding> {
    if let Some(pid) = holder {
        return vec![Finding::trouble(
            format!("process {pid} holds the home and answers nobody"),
            "no other server can start here, and no command gets an answer",
            format!(
                "if it is not starting or ending just now, look into its log, then: kill {pid}"
            ),
        )];
    }
    let control = patient.home.control();
    let left = std::iter::once(control).chain(sockets(patient));
    let left: Vec<PathBuf> = left.filter(|path| path.exists()).collect();
    match left.as_slice() {
        [] => vec![Finding::ok("no server runs, and none left anything behind")],
        [first, ..] => vec![Finding::advice(
            format!("no server runs, and {} of one is there", first.display()),
            "it was killed: clients that know the socket are refused. Nothing is lost",
            "sojourn serve, which takes the socket's place",
        )],
    }
}

/// The unix sockets that the configuration names.
fn sockets(patient: &Patient) -> Vec<PathBuf> {
    let unix = |address: &String| {
        address.strip_prefix("unix:").map(|path| patient.home.resolve(Path::new(path)))
    };
    patient.config.serve.nbd.iter().filter_map(|place| unix(&place.address)).collect()
}

/// Whether an NBD server answers at a socket.
fn greets(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    match greeting == *GREETING {
        true => Ok(()),
        false => Err(std::io::Error::other("it is no NBD server")),
    }
}

/// The process that holds the lock of the home, if one does. The lock is looked at and not tried, which could be in
/// the way of a server that starts.
fn holder(lock: &Path) -> Option<i32> {
    let metadata = lock.metadata().ok()?;
    find(&std::fs::read_to_string("/proc/locks").ok()?, metadata.st_dev(), metadata.st_ino())
}

/// The process in the text of `/proc/locks` that holds a file.
fn find(text: &str, device: u64, inode: u64) -> Option<i32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == file)?;
        // Who waits for a lock has an arrow before its kind.
        (!words.contains(&"->")).then(|| words.get(at.checked_sub(1)?)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_file_is_found_and_who_waits_is_not() {
        let text = "\
1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:99 0 EOF
2: POSIX  ADVISORY  READ  4713 08:10:1234 128 128
";
        let device = |major, minor| rustix::fs::makedev(major, minor);
        assert_eq!(find(text, device(0xfe, 0), 1234), Some(4711));
        assert_eq!(find(text, device(8, 16), 1234), Some(4713));
        assert_eq!(find(text, device(0xfe, 0), 99), None);
        assert_eq!(find("nonsense\n", device(8, 16), 1), None);
    }
}

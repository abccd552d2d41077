//! The server of the home: whether one holds it, and whether it answers.

use super::finding::Finding;
use super::patient::Patient;
use server::status::StatusView;
use std::io::{Error, ErrorKind, Read};
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
        findings
            .extend(greets(&socket).err().map(|why| not_greeted(patient, status, &socket, &why)));
    }
    if findings.is_empty() {
        let what =
            format!("process {} serves, with {} connections", status.pid, status.connections);
        findings.push(Finding::ok(what));
    }
    findings
}

/// What it means that no server greets at a socket of one that runs.
fn not_greeted(patient: &Patient, status: &StatusView, socket: &Path, why: &Error) -> Finding {
    let socket = socket.display();
    let closed = matches!(why.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
    let most = u64::from(patient.config.limits.connections);
    let turned_away = "clients that connect now are turned away; those that are there go on";
    match closed {
        true if status.connections >= most => Finding::trouble(
            format!(
                "the server closes new connections: it has {}, and limits.connections is {most}",
                status.connections
            ),
            turned_away,
            "end some, or raise limits.connections and sojourn reload",
        ),
        true => Finding::trouble(
            format!("the server closes new connections at {socket}"),
            turned_away,
            "look into its log: it may end just now, have too few descriptors (LimitNOFILE), or have too \
             many connections of one client (limits.client_connections)",
        ),
        false => Finding::trouble(
            format!("nobody answers at {socket}: {why}"),
            "clients wait there for ever",
            "sojourn reload; look into the log of the server",
        ),
    }
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
fn greets(socket: &Path) -> Result<(), Error> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    match greeting == *GREETING {
        true => Ok(()),
        false => Err(Error::other("it is no NBD server")),
    }
}

/// The process that holds the lock of the home, if one does. The lock is looked at and not tried, which could be in
/// the way of a server that starts.
fn holder(lock: &Path) -> Option<i32> {
    let metadata = lock.metadata().ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let device = metadata.st_dev();
    find(&locks, metadata.st_ino(), |major, minor, _| {
        (major, minor) == (rustix::fs::major(device), rustix::fs::minor(device))
    })
    .or_else(|| {
        // btrfs tells files another device than the list of locks: there whoever has the lock, and wrote so, holds it.
        let written: i32 = std::fs::read_to_string(lock).ok()?.trim().parse().ok()?;
        find(&locks, metadata.st_ino(), |_, _, pid| pid == written)
    })
}

/// The process in the text of `/proc/locks` that holds a file of this number, of which device (major, minor) and
/// process say that it is the one.
fn find(text: &str, inode: u64, is_it: impl Fn(u32, u32, i32) -> bool) -> Option<i32> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Who waits for a lock has an arrow before its kind.
        if words.contains(&"->") {
            return None;
        }
        words.windows(2).find_map(|pair| {
            let mut file = pair[1].splitn(3, ':');
            let mut device = || u32::from_str_radix(file.next()?, 16).ok();
            let (major, minor) = (device()?, device()?);
            let pid = pair[0].parse().ok()?;
            (file.next()?.parse() == Ok(inode) && is_it(major, minor, pid)).then_some(pid)
        })
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
        let on = |major: u32, minor: u32| move |a: u32, b: u32, _: i32| (a, b) == (major, minor);
        assert_eq!(find(text, 1234, on(0xfe, 0)), Some(4711));
        assert_eq!(find(text, 1234, on(8, 16)), Some(4713));
        assert_eq!(find(text, 99, on(0xfe, 0)), None);
        assert_eq!(find("nonsense\n", 1, on(8, 16)), None);
    }

    #[test]
    fn the_holder_of_a_file_on_btrfs_is_found_by_the_process_that_it_names() {
        // stat(2) says another device than 00:2f there.
        let text = "7: FLOCK  ADVISORY  WRITE 4711 00:2f:262 0 EOF\n";
        assert_eq!(find(text, 262, |major, _, _| major == 0xfe), None);
        assert_eq!(find(text, 262, |_, _, pid| pid == 4711), Some(4711));
        assert_eq!(find(text, 262, |_, _, pid| pid == 4712), None);
        assert_eq!(find(text, 263, |_, _, pid| pid == 4711), None);
    }
}

//! A reload without descriptors to spare: all of it happens, or nothing does.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a real process runs in real time")]

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use sojourn_tests::home::free_port;
use sojourn_tests::{Client, Home, content};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Lets it open so many files more, or as many as anybody.
    fn may_open(&self, more: Option<u64>) {
        let most = getrlimit(Resource::Nofile);
        let current = match more {
            None => most.current,
            Some(more) => {
                let open = self.descriptors();
                let free = |limit: &u64| limit - open.range(..limit).count() as u64;
                (0..).find(|limit| free(limit) == more)
            }
        };
        self.limit(Rlimit { current, ..most });
    }

    fn limit(&self, descriptors: Rlimit) {
        prlimit(Some(self.pid()), Resource::Nofile, descriptors).unwrap();
    }

    /// What it has open, by descriptor.
    fn descriptors(&self) -> BTreeMap<u64, PathBuf> {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap();
        let described = open.filter_map(|entry| {
            let path = entry.unwrap().path();
            let number = path.file_name()?.to_str()?.parse().ok()?;
            Some((number, std::fs::read_link(path).ok()?)) // it may be closed just now
        });
        described.collect()
    }

    /// Stops it where it is, until it is sent on.
    fn hold(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        wait("it does not stop", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        });
    }
}

/// How often the server has tried to read its configuration again.
fn reloads(log: &Path) -> usize {
    let text = std::fs::read_to_string(log).unwrap();
    text.matches("configuration read again").count()
        + text.matches("the configuration stays as it was").count()
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn listeners(home: &Home) -> Vec<String> {
    let status = home.json(&["status"]);
    let mut list: Vec<String> = status["listeners"]
        .as_array()
        .map(|list| list.iter().map(|one| one.as_str().unwrap().to_owned()).collect())
        .unwrap_or_default();
    list.sort();
    list
}

#[test]
fn a_reload_that_runs_out_of_descriptors_changes_nothing() {
    let home = Home::new();
    home.import("golden", &content::image(81, 4));
    home.run(&["cert", "ca"]);
    home.run(&["cert", "server", "localhost"]);
    let ports: Vec<SocketAddr> = (0..4).map(|_| free_port()).collect();
    let [stays, leaves, comes, too] = [0, 1, 2, 3].map(|at| ports[at]);
    let config = |nbd: &str| {
        std::fs::write(home.path("home/sojourn.toml"), format!("[serve]\nnbd = [{nbd}]\n"))
            .unwrap();
    };
    let before = format!("'unix:a.sock', '{stays}', '{leaves}'");
    let after = format!(
        "'unix:a.sock', {{ address = '{stays}', tls = 'optional' }}, '{comes}', '{too}', \
         'unix:b.sock'"
    );
    config(&before);
    let log = home.path("log");
    let mut command = home.command();
    command.arg("serve").stderr(File::create(&log).unwrap()).stdout(Stdio::null());
    let server = Running(command.spawn().unwrap());
    wait("it does not start", || std::fs::read_to_string(&log).unwrap().contains("ready"));
    let old = listeners(&home);
    assert_eq!(old.len(), 3, "{old:?}");
    let (mut failed, mut moved) = (0, 0);
    for more in 0..24 {
        let tried = reloads(&log);
        config(&after);
        server.may_open(Some(more));
        kill_process(server.pid(), Signal::HUP).unwrap();
        wait("it does not reload", || reloads(&log) > tried);
        server.may_open(None);
        let now = listeners(&home);
        if now == old {
            failed += 1;
        } else {
            assert_eq!(now.len(), 5, "{more} descriptors: {now:?}");
            moved += 1;
        }
        for address in &now {
            match address.strip_prefix("unix:") {
                Some(path) => Client::attach(Path::new(path), "golden").detach(),
                None => Client::attach_tcp(address.parse().unwrap(), "golden").detach(),
            }
        }
        config(&before);
        home.run(&["reload"]);
        assert_eq!(listeners(&home), old, "{more} descriptors");
    }
    assert!(failed > 3 && moved > 3, "{failed} failed, {moved} moved");
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(!log.contains("is lost") && !log.contains("panicked"), "{log}");
    home.run(&["drain"]);
}

#[test]
fn a_listener_that_made_room_in_vain_comes_back_when_no_descriptor_is_left_but_its_own() {
    let home = Home::new();
    home.import("golden", &content::image(82, 4));
    let configure = |nbd: &str| {
        let text = format!("[serve]\nnbd = [{nbd}]\n");
        std::fs::write(home.path("home/sojourn.toml"), text).unwrap();
    };
    configure("'unix:a.sock'");
    let (stays, leaves, log) =
        (home.path("home/a.sock"), home.path("home/b.sock"), home.path("log"));
    let mut command = home.command();
    command.arg("serve").stderr(File::create(&log).unwrap()).stdout(Stdio::null());
    let server = Running(command.spawn().unwrap());
    wait("it does not start", || std::fs::read_to_string(&log).unwrap().contains("ready"));
    // Whoever listens here is none of the server's, and stays.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let mut caught = false;
    while !caught {
        assert!(Instant::now() < end, "it is never seen with its reserve alone");
        configure("'unix:a.sock'");
        home.run(&["reload"]);
        // They leave room for the reserve, below all that the second listener has.
        let clients: Vec<_> = (0..16).map(|_| Client::attach(&stays, "golden")).collect();
        configure("'unix:a.sock', 'unix:b.sock'");
        home.run(&["reload"]);
        let before = listeners(&home);
        clients.into_iter().for_each(Client::detach);

        configure(&format!("'unix:a.sock', '{}'", other.local_addr().unwrap()));
        let (had, tried) = (server.descriptors(), reloads(&log));
        kill_process(server.pid(), Signal::HUP).unwrap();
        wait("it does not close the second one", || !leaves.exists() || reloads(&log) > tried);
        server.hold();
        let open = server.descriptors();
        let kept = |(fd, path): &(&u64, &PathBuf)| {
            *path == Path::new("/dev/null") && had.get(fd) != Some(path)
        };
        let reserve: Vec<u64> = open.iter().filter(kept).map(|(fd, _)| *fd).collect();
        // From here on it has these four, and no other one is free.
        let last = reserve.last().copied().unwrap_or(0);
        caught =
            !leaves.exists() && reserve.len() == 4 && open.range(..last).count() as u64 == last;
        if caught {
            let most = getrlimit(Resource::Nofile);
            server.limit(Rlimit { current: Some(last + 1), ..most });
        }
        kill_process(server.pid(), Signal::CONT).unwrap();
        wait("it does not end its reload", || reloads(&log) > tried);
        server.may_open(None);
        assert_eq!(listeners(&home), before);
        Client::attach(&leaves, "golden").detach();
        Client::attach(&stays, "golden").detach();
    }
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(!log.contains("is lost") && !log.contains("panicked"), "{log}");
    home.run(&["drain"]);
}

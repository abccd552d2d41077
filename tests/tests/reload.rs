//! A reload without descriptors to spare: all of it happens, or nothing does.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a real process runs in real time")]

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use sojourn_tests::home::free_port;
use sojourn_tests::{Client, Home, content};
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
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
                let open = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap();
                let open: Vec<u64> = open
                    .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
                    .collect();
                let free =
                    |limit: &u64| limit - open.iter().filter(|fd| *fd < limit).count() as u64;
                (0..).find(|limit| free(limit) == more)
            }
        };
        prlimit(Some(self.pid()), Resource::Nofile, Rlimit { current, ..most }).unwrap();
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

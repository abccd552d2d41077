//! What a server tells of full and slow disks: once when it begins, once when it is over, and
//! whenever it is asked in between.

#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sojourn_tests::client::ENOSPC;
use sojourn_tests::slow::Hanging;
use sojourn_tests::{Client, Home, Server, SmallFileSystem, content, require};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a change may take to be told.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is told of the disk `d`, or of the store.
struct Told<'a> {
    home: &'a Home,
    server: &'a Server,
    /// `full` or `slow`.
    what: &'static str,
    store: bool,
}

impl Told<'_> {
    fn now(&self) -> Value {
        let status = self.home.json(&["status"]);
        if self.store {
            return status["store"][self.what].clone();
        }
        let exports = status["exports"].as_array().expect("exports");
        let disk = exports.iter().find(|export| export["name"] == "d").expect("the disk");
        disk[self.what].clone()
    }

    fn metric(&self) -> String {
        let status = self.home.json(&["status"]);
        let mut stream = TcpStream::connect(status["http"].as_str().unwrap()).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let name = match self.store {
            true => "sojourn_store_slow ".to_owned(),
            false => format!("sojourn_disk_{}{{export=\"d\"}} ", self.what),
        };
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {name}in {text}")).to_owned()
    }

    /// Lines of the log that say that it began, and that it is over.
    fn logged(&self) -> (usize, usize) {
        let (whose, disk) = if self.store { ("store", "") } else { ("disk", "disk=\"d\"") };
        let log = self.server.log();
        let count = |text: &str| {
            log.lines().filter(|line| line.contains(text) && line.contains(disk)).count()
        };
        (
            count(&format!("the {whose} is {}", self.what)),
            count(&format!("the {whose} is no longer {}", self.what)),
        )
    }

    /// Waits until it is told, or not told any more, and looks at everything that tells it.
    fn wait(&self, trouble: bool, why: &str) {
        let end = Instant::now() + PATIENCE;
        let mut now = self.now();
        while now.is_null() == trouble {
            assert!(Instant::now() < end, "{} stays {now}\n{}", self.what, self.server.log());
            std::thread::sleep(Duration::from_millis(100));
            now = self.now();
        }
        let text = self.home.run(&["status"]);
        let top = self.home.run(&["top", "--once", "--interval", "0.1"]);
        let who = if self.store { "the store" } else { "disk d" };
        let line = format!("{who} is {} for ", self.what);
        if trouble {
            assert!(now["why"].as_str().unwrap().contains(why), "{now}");
            assert!(now["seconds"].is_u64(), "{now}");
        }
        assert_eq!(text.contains(&line), trouble, "{text}");
        assert_eq!(top.contains(&line), trouble, "{top}");
        assert_eq!(self.metric(), if trouble { "1" } else { "0" });
    }
}

/// A home with the disk `d` over an image that is not in any cache.
fn with_disk(home: &Home) {
    home.import("golden", &content::image(71, 16));
    home.disk("d", "golden");
}

fn configure(home: &Home, text: &str) {
    std::fs::write(home.home().join("sojourn.toml"), text).unwrap();
}

/// Writes MiB after MiB until one is refused; gives how many were not.
fn fill(client: &mut Client, most: u64) -> u64 {
    (0..most)
        .find(|index| {
            let error = client.write(index << 20, &content::random(7100 + index, 1 << 20));
            assert!(error == 0 || error == ENOSPC, "error {error}");
            error == ENOSPC
        })
        .expect("a write that is refused")
}

#[test]
fn a_full_file_system_is_told_until_there_is_room() {
    let here = "a_full_file_system_is_told_until_there_is_room";
    let Some(small) = SmallFileSystem::mount(here, 18) else { return };
    let home = Home::within(small.path());
    with_disk(&home);
    let server = home.serve_with(&["--http", "127.0.0.1:0"]);
    let mut client = Client::attach(server.socket(), "d");
    let told = Told { home: &home, server: &server, what: "full", store: false };
    assert!(told.now().is_null() && told.metric() == "0");
    let written = fill(&mut client, 16);
    told.wait(true, "room");
    // Refused again and again, it is still one trouble; without a refusal it stays full.
    for _ in 0..3 {
        assert_eq!(client.write(written << 20, &content::random(1, 1 << 20)), ENOSPC);
    }
    std::thread::sleep(Duration::from_secs(8));
    told.wait(true, "room");
    assert_eq!(told.logged(), (1, 0));
    small.resize(64);
    told.wait(false, "");
    assert_eq!(told.logged(), (1, 1));
    assert_eq!(client.write(written << 20, &content::random(1, 1 << 20)), 0);
    assert!(told.now().is_null());
    client.detach();
    server.stop();
    let files = std::fs::read_dir(home.home().join("disks/d")).unwrap();
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(!names.any(|name| name.starts_with("room")), "what was tried is gone");
}

#[test]
fn a_disk_at_its_limit_is_told_until_the_limit_is_raised() {
    let home = Home::new();
    with_disk(&home);
    configure(&home, "[limits]\ndisk_space = \"4MiB\"\n");
    let server = home.serve_with(&["--http", "127.0.0.1:0"]);
    let mut client = Client::attach(server.socket(), "d");
    let told = Told { home: &home, server: &server, what: "full", store: false };
    assert_eq!(fill(&mut client, 16), 4);
    told.wait(true, "limits.disk_space");
    // There is room in the file system, but not for this disk.
    std::thread::sleep(Duration::from_secs(8));
    told.wait(true, "limits.disk_space");
    assert_eq!(client.write(0, &content::random(2, 1 << 20)), 0, "what is private can be written");
    configure(&home, "[limits]\ndisk_space = \"8MiB\"\n");
    home.run(&["reload"]);
    told.wait(false, "");
    assert_eq!(told.logged(), (1, 1));
    client.detach();
    server.stop();
}

#[test]
fn a_flush_that_hangs_and_a_store_that_hangs_are_told_while_they_do() {
    require!("cc");
    let home = Home::new();
    with_disk(&home);
    configure(&home, "[serve]\nslow_ms = 15000\n");
    let hanging = Hanging::new(home.dir(), "/packs/");
    let server = home.serve_in(&hanging.environment(), &["--http", "127.0.0.1:0"]);
    let mut client = Client::attach(server.socket(), "d");
    let disk = Told { home: &home, server: &server, what: "slow", store: false };
    let store = Told { store: true, ..disk };
    assert_eq!(client.write(0, &[7; 4096]), 0);
    assert_eq!(client.flush(), 0);
    assert!(disk.now().is_null() && store.now().is_null());

    assert_eq!(client.write(0, &[8; 4096]), 0);
    hanging.hold_syncs(true);
    let mut client = std::thread::scope(|scope| {
        let flush = scope.spawn(move || {
            assert_eq!(client.flush(), 0);
            client
        });
        disk.wait(true, "a flush is under way for ");
        assert!(store.now().is_null());
        hanging.hold_syncs(false);
        flush.join().unwrap()
    });
    disk.wait(false, "");
    assert_eq!(disk.logged(), (1, 1));

    hanging.hold_reads(true);
    let client = std::thread::scope(|scope| {
        let read = scope.spawn(move || {
            client.read(8 << 20, 1 << 20);
            client
        });
        store.wait(true, "a read is under way for ");
        disk.wait(true, "a read is under way for ");
        hanging.hold_reads(false);
        read.join().unwrap()
    });
    store.wait(false, "");
    disk.wait(false, "");
    assert_eq!((disk.logged(), store.logged()), ((2, 2), (1, 1)));
    client.detach();
    server.stop();
}

/// Has a server end that waits for its store, once it does.
fn ends_while_it_waits(mut server: Child, does_wait: impl Fn(u32) -> bool) {
    let pid = Pid::from_child(&server);
    let wait = |server: &mut Child, what: &str, is: &dyn Fn(&mut Child) -> bool| {
        let end = Instant::now() + PATIENCE;
        while !is(server) {
            if Instant::now() > end {
                let _ = server.kill();
                panic!("{what}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(&mut server, "it does not ask its store", &|server| does_wait(server.id()));
    assert!(server.try_wait().unwrap().is_none(), "it did not wait");
    kill_process(pid, Signal::TERM).unwrap();
    wait(&mut server, "it does not end", &|server| server.try_wait().unwrap().is_some());
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_server_that_waits_for_a_bucket_to_start_ends_when_it_is_told_to() {
    let home = Home::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    configure(&home, "store = \"s3://lab/x\"\n");
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let server = home
        .command()
        .envs([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")])
        .env("AWS_ENDPOINT_URL", endpoint)
        .arg("serve")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Whoever asked hears nothing.
    let asked = RefCell::new(None);
    ends_while_it_waits(server, |_| {
        let mut asked = asked.borrow_mut();
        *asked = asked.take().or_else(|| silent.accept().ok());
        asked.is_some()
    });
}

#[test]
fn a_server_that_waits_for_a_directory_to_start_ends_when_it_is_told_to() {
    require!("cc");
    let home = Home::new();
    let hanging = Hanging::new(home.dir(), "store/store.json");
    hanging.hold_reads(true);
    let server = home
        .command()
        .envs(hanging.environment())
        .arg("serve")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    ends_while_it_waits(server, |pid| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        open.flatten().any(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|path| path.ends_with("store/store.json"))
        })
    });
}

//! One server follows another while clients are at work: no connection is dropped, nothing is lost.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use sojourn_tests::client::{READ, WRITE, connect, header};
use sojourn_tests::home::free_port;
use sojourn_tests::tool::shell;
use sojourn_tests::{Client, Home, Server, clients, content, require};
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const MIB: usize = 16;
const BLOCK: usize = 4096;

/// Waits until the server whose process was `before` has ended and another one answers; gives that
/// one's process.
fn followed(home: &Home, before: u64) -> u64 {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = home.json(&["status"]);
        match status["pid"].as_u64() {
            Some(pid) if pid != before => return pid,
            _ => assert!(Instant::now() < end, "no server follows: {status}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until so many connections are there.
fn until_connected(home: &Home, connections: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while home.json(&["status"])["connections"].as_u64() < Some(connections) {
        assert!(Instant::now() < end, "somebody does not connect");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends what no [`Server`](sojourn_tests::Server) is the parent of.
struct Follower<'a>(&'a Home);

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        let _ = self.0.command().args(["drain", "--timeout", "0"]).output();
    }
}

#[test]
fn clients_at_work_keep_their_connections_over_five_servers() {
    let home = Home::new();
    home.import("golden", &content::image(71, MIB));
    let disks = ["a", "b", "c", "d"];
    disks.iter().for_each(|disk| home.disk(disk, "golden"));
    home.run(&["disk", "create", "e", "--from", "golden", "--ephemeral"]);
    let server = home.serve();
    let _follower = Follower(&home);
    let over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let work = |disk: &'static str| {
            let (over, socket) = (&over, server.socket());
            scope.spawn(move || {
                // This client does not connect again: a dropped connection is a panic here.
                let mut client = Client::attach(socket, disk);
                let mut rounds = 0u64;
                while !over.load(SeqCst) || rounds < 3 {
                    rounds += 1;
                    let mut batch = Vec::new();
                    for i in 0..24 {
                        batch.extend(header(WRITE, i, (i as usize * BLOCK) as u64, BLOCK as u32));
                        batch.extend([rounds as u8; BLOCK]);
                    }
                    client.send(&batch);
                    client.replies(24);
                    assert_eq!(client.flush(), 0);
                    assert_eq!(client.read(0, 24 * BLOCK), [rounds as u8; 24 * BLOCK]);
                }
                rounds
            })
        };
        let workers: Vec<_> = disks.into_iter().chain(["e"]).map(work).collect();
        until_connected(&home, 5);
        let mut pid = home.json(&["status"])["pid"].as_u64().unwrap();
        for round in 0..4 {
            std::thread::sleep(Duration::from_millis(150));
            let told = home.json(&["drain", "--to-successor"]);
            assert_eq!(told["connections"], 5, "round {round}: {told}");
            let next = followed(&home, pid);
            assert_eq!(told["successor"].as_u64(), Some(next), "round {round}");
            pid = next;
        }
        over.store(true, SeqCst);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    // A disk that was let go is anybody's, and holds what was written.
    for (disk, rounds) in disks.into_iter().zip(rounds) {
        let mut client = Client::attach(server.socket(), disk);
        assert_eq!(client.read(0, BLOCK), [rounds as u8; BLOCK], "{disk}");
    }
    let log = server.log();
    assert!(log.contains("handed over") && !log.contains("panicked"), "{log}");
    home.run(&["drain"]);
    assert!(!server.socket().exists(), "the last server removes the socket");
}

#[test]
fn a_program_that_cannot_follow_leaves_the_server_and_its_clients_as_they_were() {
    let home = Home::new();
    home.import("golden", &content::image(72, MIB));
    home.disk("d", "golden");
    let mut server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    assert_eq!(client.write(0, &[7; BLOCK]), 0);
    let config = home.path("home/sojourn.toml");
    let good = std::fs::read(&config).unwrap();
    std::fs::write(&config, "nonsense").unwrap();
    let message = home.fails(6, &["drain", "--to-successor"]);
    assert!(message.contains("has not taken over"), "{message}");
    std::fs::write(&config, good).unwrap();
    server.assert_alive();
    assert_eq!(client.read(0, BLOCK), [7; BLOCK]);
    // One that waits, and goes away before it has taken everything.
    let waiting = std::os::unix::net::UnixListener::bind(home.path("home/successor.sock")).unwrap();
    let gone = std::thread::spawn(move || drop(waiting.accept().unwrap()));
    let mut asked =
        std::os::unix::net::UnixStream::connect(home.path("home/control.sock")).unwrap();
    let request = "POST /v1/hand-over HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut asked, request.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut asked, &mut answer).unwrap();
    gone.join().unwrap();
    assert!(answer.contains("unavailable"), "{answer}");
    assert_eq!(client.write(BLOCK as u64, &[8; BLOCK]), 0);
    assert_eq!(client.read(0, BLOCK), [7; BLOCK]);
    // Commands are carried out again, too.
    home.disk("e", "golden");
    let mut another = Client::attach(server.socket(), "golden");
    another.read(0, 512);
    drop(another);
    server.stop();
}

#[test]
fn an_ephemeral_disk_outlives_a_successor_that_takes_everything_and_is_never_ready() {
    let home = Home::new();
    home.import("golden", &content::image(78, MIB));
    home.run(&["disk", "create", "e", "--from", "golden", "--ephemeral"]);
    let mut server = home.serve();
    let mut client = Client::attach(server.socket(), "e");
    assert_eq!(client.write(0, &[7; BLOCK]), 0);
    let waiting = std::os::unix::net::UnixListener::bind(home.path("home/successor.sock")).unwrap();
    // As long as the server has patience, which is as long as the disk waits for a client that is lost.
    let taker = std::thread::spawn(move || {
        let mut all = Vec::new();
        waiting.accept().unwrap().0.read_to_end(&mut all).unwrap();
        all.len()
    });
    let mut asked =
        std::os::unix::net::UnixStream::connect(home.path("home/control.sock")).unwrap();
    let request = "POST /v1/hand-over HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut asked, request.as_bytes()).unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(taker.join().unwrap() > 0);
    assert!(answer.contains("takes too long"), "{answer}");
    assert!(client.read(0, BLOCK) == [7; BLOCK], "it was reset under its client");
    server.assert_alive();
    server.stop();
}

#[test]
fn a_successor_that_cannot_serve_as_it_is_told_to_takes_nothing_over() {
    let home = Home::new();
    home.import("golden", &content::image(77, MIB));
    home.disk("d", "golden");
    let mut server = home.serve();
    let _follower = Follower(&home);
    let mut client = Client::attach(server.socket(), "d");
    let socket = format!("unix:{}", server.socket().display());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    std::fs::create_dir(home.path("certificates")).unwrap();
    let dir = home.path("certificates").to_string_lossy().into_owned();
    for file in ["ca-cert.pem", "server-cert.pem", "server-key.pem"] {
        std::fs::write(home.path("certificates").join(file), "nonsense").unwrap();
    }
    let config = home.path("elsewhere.toml");
    std::fs::write(&config, "store = \"nowhere\"\n").unwrap();
    let config = config.to_string_lossy().into_owned();
    let unbindable = format!("unix:{}", home.path("no/such/directory").display());
    let wrong: [&[&str]; 10] = [
        &["--nbd", &port],
        &["--nbd", "192.0.2.1:10809", "--insecure"], // not of this machine
        &["--nbd", "0.0.0.0:0"],
        &["--nbd", &unbindable],
        &["--http", &port],
        &["--tls", "required"],
        &["--tls", "optional", "--tls-dir", &dir],
        &["--throttle", "no-such-disk"],
        &["--trace", "/no/such/directory/trace"],
        &["--config", &config],
    ];
    for (round, more) in (1..).zip(wrong) {
        let written = [round; BLOCK];
        assert_eq!(client.write(0, &written), 0, "{more:?}");
        let mut command = home.command();
        command.args(["serve", "--take-over", "--nbd", &socket]).args(more);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{more:?}");
        server.assert_alive();
        assert_eq!(client.read(0, BLOCK), written, "{more:?}");
        // New clients, commands and the socket's file, too.
        Client::attach(server.socket(), "golden").detach();
        home.json(&["disk", "list"]);
    }
    // And then one that can.
    let pid = home.json(&["status"])["pid"].as_u64().unwrap();
    let told = home.json(&["drain", "--to-successor"]);
    assert_eq!(told["connections"], 1, "{told}");
    followed(&home, pid);
    assert_eq!(client.read(0, BLOCK), [10; BLOCK]);
    // And one that calls the same address by another name.
    let pid = home.json(&["status"])["pid"].as_u64().unwrap();
    let other = format!("unix:{}", home.path("./nbd.sock").display());
    let config = format!("[serve]\nnbd = [\"{other}\"]\n");
    std::fs::write(home.path("home/sojourn.toml"), config).unwrap();
    let mut last = home.command().args(["serve", "--take-over"]).spawn().unwrap();
    followed(&home, pid);
    assert_eq!(client.read(0, BLOCK), [10; BLOCK]);
    home.run(&["drain", "--timeout", "0"]);
    assert!(last.wait().unwrap().success());
    assert!(!server.socket().exists(), "the last server removes the socket");
}

#[test]
fn libnbd_and_qemu_do_not_notice_that_servers_follow_each_other() {
    clients::each(|| {
        require!("nbdsh", "qemu-io");
        let home = Home::new();
        home.import("golden", &content::image(73, MIB));
        home.disk("a", "golden");
        home.disk("b", "golden");
        let server = home.serve();
        let _follower = Follower(&home);
        // Neither of them is told to connect again.
        let script = "
import os, time
from collections import deque
h.connect_uri(os.environ['uri'])
began, value, flying = time.monotonic(), 0, deque()
while value < 64 or not os.path.exists('enough') and time.monotonic() - began < 120:
    value += 1
    open('at-work', 'w').close()
    flying.append((value, h.aio_pwrite(bytes([value % 256]) * 65536, value % 64 * 65536)))
    while len(flying) > 8:
        number, cookie = flying.popleft()
        while not h.aio_command_completed(cookie):
            h.poll(-1)
while flying:
    number, cookie = flying.popleft()
    while not h.aio_command_completed(cookie):
        h.poll(-1)
h.flush()
for number in range(value - 63, value + 1):
    assert h.pread(65536, number % 64 * 65536) == bytes([number % 256]) * 65536, number
print('wrote', value)
h.shutdown()
";
        std::fs::write(home.path("write.py"), script).unwrap();
        // It has its commands one by one, for as long as servers follow each other.
        let commands = "
value=0
while [ $value -lt 8 ] || [ ! -e enough ] && [ $value -lt 250 ]; do
    value=$((value + 1)) at=$((value % 64 * 64))
    printf 'write -P %d %dk 64k\\nflush\\n' $value $at
    sleep 0.4
    printf 'read -P %d %dk 64k\\n' $value $at
done | qemu-io -f raw \"$uri\"";
        let (a, b) = (server.uri("a"), server.uri("b"));
        std::thread::scope(|scope| {
            let set = clients::current();
            let libnbd = scope.spawn(|| {
                set.run(|| shell(home.dir(), &[("uri", &a)], "exec nbdsh -c - < write.py"))
            });
            let env = [("uri", b.as_str())];
            let dir = home.dir();
            let qemu = scope.spawn(move || set.run(|| shell(dir, &env, commands)));
            until_connected(&home, 2);
            let mut pid = home.json(&["status"])["pid"].as_u64().unwrap();
            let mut moved = 0;
            for _ in 0..3 {
                at_work(&home, || libnbd.is_finished());
                std::thread::sleep(Duration::from_millis(300));
                moved += home.json(&["drain", "--to-successor"])["connections"].as_u64().unwrap();
                pid = followed(&home, pid);
            }
            std::fs::write(home.path("enough"), "").unwrap();
            assert!(moved >= 4, "{moved} connections were at work");
            let libnbd = libnbd.join().unwrap();
            assert!(libnbd.contains("wrote"), "{libnbd}");
            let qemu = qemu.join().unwrap();
            assert!(!qemu.contains("failed") && !qemu.contains("rror"), "{qemu}");
        });
        home.run(&["drain"]);
    });
}

#[test]
fn an_encrypted_connection_goes_on_over_three_servers_and_their_processes_end_with_it() {
    clients::each(|| {
        require!("nbdsh");
        let home = Home::new();
        home.import("golden", &content::image(74, MIB));
        home.disk("d", "golden");
        home.run(&["cert", "ca"]);
        home.run(&["cert", "server", "localhost"]);
        home.run(&["cert", "client", "alice"]);
        let config = "access = [{ certificate = \"alice\", write = [\"d\"] }]\n\
                  [serve]\nnbd = [{ address = \"127.0.0.1:0\", tls = \"required\" }]\n\
                  http = \"127.0.0.1:0\"\ngateway = \"127.0.0.1:0\"\n";
        std::fs::write(home.path("home/sojourn.toml"), config).unwrap();
        let mut first = home.command().arg("serve").spawn().unwrap();
        let _follower = Follower(&home);
        let end = Instant::now() + Duration::from_secs(30);
        let address = loop {
            let status = home.json(&["status"]);
            if let Some(address) = status["listeners"][0].as_str() {
                break address.to_owned();
            }
            assert!(Instant::now() < end, "the server does not listen: {status}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let port = address.rsplit_once(':').unwrap().1;
        let script = "
import os, time
h.set_tls(nbd.TLS_REQUIRE)
h.set_tls_certificates(os.environ['alice'])
h.set_export_name('d')
h.connect_tcp('localhost', os.environ['port'])
began, n = time.monotonic(), 0
while not os.path.exists('enough') and time.monotonic() - began < 120:
    n += 1
    at, data = n % 64 * 65536, bytes([n % 256]) * 65536
    h.pwrite(data, at)
    assert h.pread(65536, at) == data, n
    h.flush()
    open('at-work', 'w').close()
print('wrote', n)
h.shutdown()
";
        std::fs::write(home.path("write.py"), script).unwrap();
        let alice = home.path("home/tls/clients/alice").to_string_lossy().into_owned();
        let env = [("port", port), ("alice", alice.as_str())];
        std::thread::scope(|scope| {
            let set = clients::current();
            let client =
                scope.spawn(|| set.run(|| shell(home.dir(), &env, "exec nbdsh -c - < write.py")));
            until_connected(&home, 1);
            let mut pid = home.json(&["status"])["pid"].as_u64().unwrap();
            let mut moved = 0;
            assert_eq!(listens(first.id()), 3);
            for _ in 0..2 {
                at_work(&home, || client.is_finished());
                moved += home.json(&["drain", "--to-successor"])["connections"].as_u64().unwrap();
                pid = followed(&home, pid);
                assert_eq!(listens(first.id()), 0, "who connects there is answered by nobody");
            }
            std::fs::write(home.path("enough"), "").unwrap();
            assert_eq!(moved, 2, "one connection, twice");
            assert!(first.try_wait().unwrap().is_none(), "it carries what is encrypted");
            let out = client.join().unwrap();
            assert!(out.contains("wrote"), "{out}");
        });
        assert!(first.wait().unwrap().success(), "it ends with the last of its connections");
        home.run(&["drain"]);
    });
}

/// At how many TCP ports a process listens.
fn listens(pid: u32) -> usize {
    let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening: Vec<String> = all
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(3) == Some(&"0A")) // TCP_LISTEN
        .map(|words| format!("socket:[{}]", words[9]))
        .collect();
    let open: HashSet<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .collect();
    listening.iter().filter(|socket| open.contains(Path::new(socket))).count()
}

/// Waits until a client says by a file that it is at work from now on.
fn at_work(home: &Home, has_ended: impl Fn() -> bool) {
    let _ = std::fs::remove_file(home.path("at-work"));
    let end = Instant::now() + Duration::from_secs(60);
    while !home.path("at-work").exists() {
        assert!(Instant::now() < end && !has_ended(), "the client is not there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A home whose disks alice may use over TLS, with a server on TCP and on a unix socket.
fn encrypted_lab(image: u64, serve: &str) -> (Home, Server, String) {
    let home = Home::new();
    home.import("golden", &content::image(image, MIB));
    home.disk("d", "golden");
    home.disk("e", "golden");
    home.disk("f", "golden");
    home.run(&["cert", "ca"]);
    home.run(&["cert", "server", "localhost"]);
    home.run(&["cert", "client", "alice"]);
    let uid = rustix::process::geteuid().as_raw();
    let config = format!(
        "access = [{{ certificate = \"alice\", write = [\"d\"] }}, \
         {{ uid = {uid}, write = [\"e\", \"f\"] }}]\n[serve]\ntls = \"required\"\n{serve}"
    );
    std::fs::write(home.path("home/sojourn.toml"), config).unwrap();
    let port = free_port().port().to_string();
    let server = home.serve_with(&["--nbd", &format!("127.0.0.1:{port}")]);
    (home, server, port)
}

#[test]
fn clients_that_are_silent_delay_nobody_and_nobody_else_is_cut_off() {
    clients::each(|| {
        require!("nbdsh");
        let (home, server, port) = encrypted_lab(75, "stop_seconds = 90\n");
        let _follower = Follower(&home);
        let script = "
import os, time
h.set_tls(nbd.TLS_REQUIRE)
h.set_tls_certificates(os.environ['alice'])
h.set_export_name('d')
h.connect_tcp('localhost', os.environ['port'])
n = 0
while not os.path.exists('over'):
    n += 1
    at, data = n % 64 * 65536, bytes([n % 256]) * 65536
    h.pwrite(data, at)
    assert h.pread(65536, at) == data, n
print('wrote', n)
h.shutdown()
";
        std::fs::write(home.path("write.py"), script).unwrap();
        let alice = home.path("home/tls/clients/alice").to_string_lossy().into_owned();
        let env = [("port", port.as_str()), ("alice", alice.as_str())];
        std::thread::scope(|scope| {
            let set = clients::current();
            let encrypted =
                scope.spawn(|| set.run(|| shell(home.dir(), &env, "exec nbdsh -c - < write.py")));
            // In the middle of a write, with answers that it does not take, and in the negotiation.
            let mut writer = Client::attach(server.socket(), "e");
            let data = content::random(3, 300_000);
            let mut request = header(WRITE, 1, 4096, data.len() as u32).to_vec();
            request.extend(&data[..100_000]);
            writer.send(&request);
            // On another disk: of a client that attaches anew, a connection that is silent is dropped.
            let mut taker = Client::attach(server.socket(), "f");
            let greedy: Vec<u8> = (0..8).flat_map(|n| header(READ, n, n << 20, 1 << 20)).collect();
            taker.send(&greedy);
            let mut silent = connect(server.socket());
            let end = Instant::now() + Duration::from_secs(60);
            let pid = loop {
                let status = home.json(&["status"]);
                let written = status["total"]["writes"].as_u64().unwrap_or(0);
                if status["connections"] == 4 && written > 0 {
                    break status["pid"].as_u64().unwrap();
                }
                assert!(Instant::now() < end, "somebody does not connect: {status}");
                std::thread::sleep(Duration::from_millis(50));
            };
            let began = Instant::now();
            let told = home.json(&["drain", "--to-successor"]);
            followed(&home, pid);
            assert!(began.elapsed() < Duration::from_secs(60), "it waited for a silent client");
            assert_eq!(told["connections"], 3, "{told}");
            let mut rest = Vec::new();
            silent.read_to_end(&mut rest).expect("the server hangs up");
            writer.send(&data[100_000..]);
            writer.replies(1);
            content::assert_same("writer", &writer.read(4096, data.len()), &data);
            taker.stream().read_exact(&mut vec![0; 8 * (16 + (1 << 20))]).expect("answers");
            assert_eq!(taker.flush(), 0);
            std::fs::write(home.path("over"), "").unwrap();
            let out = encrypted.join().unwrap();
            assert!(out.contains("wrote"), "{out}");
        });
        home.run(&["drain"]);
    });
}

#[test]
fn commands_at_a_successor_wait_for_the_clients_that_it_was_passed() {
    let home = Home::new();
    home.import("golden", &content::image(76, MIB));
    home.disk("d", "golden");
    home.run(&["disk", "snapshot", "d", "before"]);
    let server = home.serve();
    let _follower = Follower(&home);
    let mut client = Client::attach(server.socket(), "d");
    let mut pid = home.json(&["status"])["pid"].as_u64().unwrap();
    for round in 0..5u8 {
        assert_eq!(client.write(0, &[round + 1; BLOCK]), 0);
        // They come while one server follows the other, and must never find the disk unused.
        let commands: Vec<_> = (0..6)
            .map(|_| home.command().args(["disk", "rollback", "d", "before"]).spawn().unwrap())
            .collect();
        let told = home.command().args(["drain", "--to-successor"]).output().unwrap();
        for mut command in commands {
            assert!(!command.wait().unwrap().success(), "round {round}: d is in use");
        }
        if told.status.success() {
            pid = followed(&home, pid);
        }
        assert_eq!(client.read(0, BLOCK), [round + 1; BLOCK], "round {round}");
    }
    drop(client);
    home.run(&["drain"]);
}

#[test]
fn a_signal_to_a_server_that_was_just_followed_is_the_first_one() {
    for _ in 0..5 {
        let home = Home::new();
        let server = home.serve();
        let _follower = Follower(&home);
        let mut draining = home.command().args(["drain", "--to-successor"]).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        // Without a pause: the moment is short.
        while !server.log().contains("handed over") {
            assert!(Instant::now() < end, "{}", server.log());
        }
        server.end();
        assert!(draining.wait().unwrap().success());
        home.run(&["drain"]);
    }
}

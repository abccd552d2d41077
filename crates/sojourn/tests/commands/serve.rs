//! The server itself: one to a home, graceful, observable, and its short-lived forms.

use crate::common::{BINARY, Lab, MIB, content, have, skip};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub(crate) fn http(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    answer
}

#[test]
fn a_second_server_on_one_home_is_refused() {
    let lab = Lab::new();
    let server = lab.serve(&[]);
    lab.line("serve").fails(4, &["home", &server.pid().to_string()]);
    assert_eq!(lab.json("status")["pid"], server.pid());
    assert_eq!(server.stop(), 0);
    assert_eq!(lab.json("status")["running"], false);
    assert!(lab.line("status").ok().contains("sojourn serve"));
}

#[test]
fn a_stop_removes_the_sockets_and_tells_the_service_manager() {
    let lab = Lab::new();
    let mut server = lab.serve(&[]);
    assert!(lab.nbd_socket().exists());
    server.signal("TERM");
    assert_eq!(server.notice(), "STOPPING=1");
    assert_eq!(server.wait(), 0);
    assert!(!lab.nbd_socket().exists());
    assert!(!lab.home().join("control.sock").exists());
}

#[test]
fn the_service_manager_is_told_which_process_follows() {
    /// Ends the successor, of which the test is not the parent.
    struct Follower<'a>(&'a Lab);
    impl Drop for Follower<'_> {
        fn drop(&mut self) {
            let _ = self.0.command(["drain", "--timeout", "0"]).output();
        }
    }
    let lab = Lab::new();
    let mut server = lab.serve(&[]);
    let _follower = Follower(&lab);
    let told = lab.json("drain --to-successor");
    let pid = told["successor"].as_u64().unwrap();
    assert_ne!(pid, u64::from(server.pid()));
    // The first server names it and says no more, or else the manager would wait for its end.
    assert_eq!(server.notice(), format!("MAINPID={pid}"));
    assert_eq!(server.notice(), "READY=1");
    assert_eq!(server.wait(), 0);
    assert_eq!(lab.json("status")["pid"].as_u64(), Some(pid));
    lab.line("drain").ok();
    assert_eq!(server.notice(), "STOPPING=1", "the second one");
}

#[test]
fn an_order_is_noted_although_the_command_that_gave_it_went_away() {
    let lab = Lab::new();
    let mut server = lab.serve(&[]);
    let mut command = UnixStream::connect(lab.home().join("control.sock")).unwrap();
    let body = r#"{"to_successor":true}"#;
    write!(
        command,
        "POST /v1/drain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    // The order is being carried out when a successor begins.
    let waiting = lab.home().join("successor.sock");
    while !waiting.exists() && server.is_running() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(command);
    assert_eq!(server.wait(), 0);
    let audit = std::fs::read_to_string(lab.home().join("audit.log")).unwrap();
    lab.line("drain --timeout 0").ok();
    assert!(audit.contains("\"verb\":\"server.drain\"") && audit.contains("done"), "{audit}");
}

#[test]
fn a_server_that_was_killed_leaves_nothing_in_the_way() {
    let lab = Lab::new();
    drop(lab.serve(&[]));
    assert!(lab.nbd_socket().exists());
    assert_eq!(lab.json("status")["running"], false);
    lab.line("disk list").ok();
    assert_eq!(lab.serve(&[]).stop(), 0);
}

#[test]
fn a_server_that_starts_sweeps_what_crashes_left_of_disks() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let left = [".gone-bob", ".new-carol"].map(|name| lab.home().join("disks").join(name));
    for place in &left {
        std::fs::create_dir(place).unwrap();
        std::fs::write(place.join("0001.data"), content(MIB, 3)).unwrap();
    }
    lab.line("disk list").ok();
    assert!(left.iter().all(|place| place.exists()), "a command leaves them");
    let server = lab.serve(&[]);
    for _ in 0..600 {
        if !left.iter().any(|place| place.exists()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(!left.iter().any(|place| place.exists()), "{}", server.log());
    assert_eq!(lab.json("disk list")[0]["name"], "alice");
    assert_eq!(server.stop(), 0);
}

#[test]
fn what_is_no_socket_at_a_sockets_place_is_named_and_left_alone() {
    let lab = Lab::new();
    for name in ["control.sock", "control.new", "nbd.sock"] {
        let path = lab.home().join(name);
        std::fs::create_dir(&path).unwrap();
        lab.line("serve").fails(4, &[name, "not a socket", "move it away"]);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "somebody's").unwrap();
        lab.line("serve").fails(4, &[name]);
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(lab.serve(&[]).stop(), 0);
}

#[test]
fn the_control_socket_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let server = lab.serve(&[]);
    let mode =
        |path: &str| std::fs::metadata(lab.home().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("control.sock"), 0o600);
    assert_eq!(mode(""), 0o700);
    assert_eq!(mode("sojourn.toml"), 0o600);
    assert_eq!(server.stop(), 0);
}

#[test]
fn metrics_health_and_status_are_told_over_http() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&["--nbd", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    let status = lab.json("status");
    let address = status["http"].as_str().unwrap();
    let nbd = status["listeners"][0].as_str().unwrap();
    lab.run(["image", "import", &format!("nbd://{nbd}/alice"), "copy"]).ok();
    assert!(http(address, "/healthz").ends_with("ok\n"));
    let metrics = http(address, "/metrics");
    for name in [
        "sojourn_requests_total{export=\"alice\",kind=\"read\"}",
        "sojourn_read_bytes_total{export=\"alice\"}",
        "sojourn_cache_misses_total",
        "sojourn_store_read_bytes_total",
        "sojourn_private_bytes{export=\"alice\"} 0",
        "sojourn_open_disks 1",
        "# EOF",
    ] {
        assert!(metrics.contains(name), "no {name} in {metrics}");
    }
    let status = http(address, "/v1/status");
    assert!(status.contains("\"hit_percent\""), "{status}");
    assert_eq!(server.stop(), 0);
}

#[test]
fn status_and_metrics_ask_nothing_of_the_store() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&["--nbd", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    let address = lab.json("status")["http"].as_str().unwrap().to_owned();
    // No name of it can be listed any more.
    let refs = lab.home().join("store/refs");
    std::fs::rename(&refs, lab.home().join("refs-away")).unwrap();
    std::os::unix::fs::symlink("refs", &refs).unwrap();
    lab.line("disk list").fails(6, &["refs"]);
    assert_eq!(lab.json("status")["exports"][0]["name"], "alice");
    assert_eq!(lab.json("status")["exports"][0]["private_bytes"], 0);
    assert!(http(&address, "/metrics").contains("sojourn_private_bytes{export=\"alice\"} 0"));
    assert_eq!(server.stop(), 0);
}

#[test]
fn head_room_is_told_once_enough_was_asked() {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let status = lab.json("status");
    let address = status["http"].as_str().unwrap();
    assert!(status["head_room"]["more"].is_null(), "{status}");
    assert!(lab.line("status").ok().contains("not enough requests yet"));
    assert!(!http(address, "/metrics").contains("head_room"));
    let mut reads = "op,offset,length\n".to_owned();
    (0..200).for_each(|i| reads.push_str(&format!("R,{},4096\n", i * 37 % 200 * 4096)));
    let reads = lab.file("reads.csv", reads.as_bytes());
    // Goes on until the server stops.
    let args = ["replay", "--wrap", "--repeat", "--for", "600s"];
    let mut client = lab.command(args).arg(reads).arg(server.uri("debian")).spawn().unwrap();
    let mut status = lab.json("status");
    while status["head_room"]["more"].is_null() {
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(client.try_wait().unwrap().is_none(), "the client ended");
        status = lab.json("status");
    }
    let room = &status["head_room"];
    assert_eq!(room["clients"], 1);
    assert!(room["requests"].as_u64().unwrap() >= 1000 && room["bottleneck"].is_string(), "{room}");
    assert!(lab.line("status").ok().contains("more clients like the 1 of now"));
    assert!(http(address, "/metrics").contains("sojourn_head_room_clients "));
    assert_eq!(server.stop(), 0);
    client.wait().unwrap();
}

#[test]
fn a_port_in_use_is_named() {
    let lab = Lab::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    lab.run(["serve", "--nbd", &address]).fails(4, &[&address]);
    lab.run(["serve", "--http", &address]).fails(4, &[&address, "--http"]);
    let other = Lab::new();
    let server = other.serve(&[]);
    let socket = format!("unix:{}", other.nbd_socket().display());
    lab.run(["serve", "--nbd", &socket]).fails(4, &["nbd.sock"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn run_gives_the_command_an_export_and_ends_with_its_code() {
    let (lab, golden) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let sojourn = BINARY;
    let home = lab.home();
    let script = format!(
        "test \"$exportname\" = alice && test -S \"$unixsocket\" && \
         {sojourn} --home {} image import \"$uri\" copied && exit 7",
        home.display()
    );
    let done = lab.run(["serve", "--export", "alice", "--run", &script]);
    assert_eq!(done.code, 7, "{}", done.stderr);
    lab.line("image export copied out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    assert_eq!(lab.run(["serve", "--run", "kill -9 $$"]).code, 137);
}

#[test]
fn a_file_is_served_without_a_home() {
    let lab = Lab::empty();
    let golden = content(2 * MIB, 6);
    lab.file("disk.raw", &golden);
    if !have("nbdcopy") {
        return;
    }
    let line = ["serve", "--file", "disk.raw", "--run", "nbdcopy \"$uri\" copy.raw"];
    lab.run(line).ok();
    assert!(std::fs::read(lab.path("copy.raw")).unwrap() == golden);
    assert!(!lab.home().exists());
    let other = content(2 * MIB, 7);
    lab.file("other.raw", &other);
    let refused =
        ["serve", "--file", "disk.raw", "--read-only", "--run", "nbdcopy other.raw \"$uri\""];
    assert_ne!(lab.run(refused).code, 0);
    assert!(std::fs::read(lab.path("disk.raw")).unwrap() == golden);
    lab.run(["serve", "--file", "disk.raw", "--run", "nbdcopy other.raw \"$uri\""]).ok();
    assert!(std::fs::read(lab.path("disk.raw")).unwrap() == other);
}

#[test]
fn qcow2_is_served_in_place_of_qemu_nbd() {
    if !have("qemu-img") || !have("qemu-io") {
        return;
    }
    let lab = Lab::empty();
    let make = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "disk.qcow2", "4M"])
        .current_dir(lab.path(""))
        .status();
    assert!(make.unwrap().success());
    let script =
        "qemu-io -f raw -c 'write -P 7 1M 64k' -c 'read -P 7 1M 64k' -c 'read -P 0 0 1M' \"$uri\"";
    lab.run(["serve", "--file", "disk.qcow2", "--run", script]).ok();
    let check = Command::new("qemu-io")
        .args(["-f", "qcow2", "-c", "read -P 7 1M 64k", "disk.qcow2"])
        .current_dir(lab.path(""))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success() && !text.contains("failed"), "{text}");
}

/// The greeting of an NBD server.
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT";

#[test]
fn single_serves_one_client_on_pipes() {
    let (lab, _) = Lab::with_image();
    let mut child = lab
        .command(["serve", "--export", "debian", "--single"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut greeting = [0; 18];
    child.stdout.take().unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], GREETING);
    let mut stdin = child.stdin.take().unwrap();
    // The client's flags, then NBD_OPT_ABORT.
    stdin.write_all(&[0, 0, 0, 3]).unwrap();
    stdin.write_all(b"IHAVEOPT\0\0\0\x02\0\0\0\0").unwrap();
    drop(stdin);
    child.wait().unwrap();
}

#[test]
fn single_serves_libnbd() {
    let python = "/usr/bin/python3";
    if !Command::new(python).args(["-c", "import nbd"]).status().is_ok_and(|s| s.success()) {
        return skip("libnbd's Python module is not installed");
    }
    let (lab, _) = Lab::with_image();
    let home = lab.home().display().to_string();
    let script = format!(
        "import nbd; h = nbd.NBD(); h.connect_command([{BINARY:?}, '--home', {home:?}, 'serve', \
         '--export', 'debian', '--single']); print(h.get_size()); h.shutdown()"
    );
    let out = Command::new(python).args(["-c", &script]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), (8 * MIB).to_string());
}

#[test]
fn libnbd_starts_a_server_by_socket_activation() {
    if !have("nbdinfo") {
        return;
    }
    let (lab, _) = Lab::with_image();
    let home = lab.home().display().to_string();
    let out = Command::new("nbdinfo")
        .args(["--size", "--", "[", BINARY, "--home", &home, "serve", "--export", "debian", "]"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), (8 * MIB).to_string());
}

#[test]
fn sockets_of_the_service_manager_are_served() {
    let (lab, _) = Lab::with_image();
    let paths = [lab.path("a.sock"), lab.path("b.sock")];
    let sockets = paths.each_ref().map(|path| UnixListener::bind(path).unwrap());
    // A shell puts the two sockets where LISTEN_FDS says that they are.
    let inherited = sockets.each_ref().map(|socket| rustix::io::dup(socket).unwrap());
    let [first, second] = inherited.each_ref().map(AsRawFd::as_raw_fd);
    let script = format!(
        "exec 3<&{first} 4<&{second}; LISTEN_PID=$$ LISTEN_FDS=2 exec {BINARY} --home {} serve",
        lab.home().display()
    );
    let mut child = Command::new("/bin/bash").args(["-c", &script]).arg0("bash").spawn().unwrap();
    drop(inherited);
    for path in &paths {
        let mut stream = UnixStream::connect(path).unwrap();
        let mut greeting = [0; 16];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, GREETING);
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn one_client_on_an_inherited_socket_is_served_and_then_the_end() {
    let lab = Lab::empty();
    let file = lab.file("disk.raw", &content(MIB, 1));
    let path = lab.path("a.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let script = format!(
        "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {BINARY} serve --file {} --single",
        file.display()
    );
    // As standard input, which no process that another test starts meanwhile has, too.
    let mut command = Command::new("/bin/bash");
    command.args(["-c", &script]).stdin(std::os::fd::OwnedFd::from(socket));
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut stream = UnixStream::connect(&path).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(GREETING));
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    drop(stream);
    assert!(child.wait().unwrap().success());
    assert!(UnixStream::connect(&path).is_err(), "no other is served");
}

#[test]
fn more_clients_than_descriptors_are_refused_at_once_and_harm_nobody() {
    let lab = Lab::empty();
    let file = lab.file("disk.raw", &content(MIB, 1));
    let path = lab.path("a.sock");
    let script = format!(
        "ulimit -Sn 40; ulimit -Hn 80; exec {BINARY} serve --file {} --nbd unix:{}",
        file.display(),
        path.display()
    );
    let mut child = Command::new("/bin/bash").args(["-c", &script]).spawn().unwrap();
    let deadline = std::time::Duration::from_secs(60);
    let connect = || {
        let stream = UnixStream::connect(&path).ok()?;
        stream.set_read_timeout(Some(deadline)).unwrap();
        Some(stream)
    };
    let greeted = |stream: &mut UnixStream| match stream.read_exact(&mut [0; 18]) {
        Ok(()) => true,
        Err(e) => {
            assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "a client waits for an answer");
            false
        }
    };
    for _ in 0..2000 {
        if connect().is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let mut clients: Vec<_> = (0..120).map(|_| connect().unwrap()).collect();
    let served = clients.iter_mut().filter_map(|stream| greeted(stream).then_some(())).count();
    assert!((50..=60).contains(&served), "{served} of 120 were greeted");
    drop(clients);
    let back = (0..2000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        connect().is_some_and(|mut stream| greeted(&mut stream))
    });
    assert!(back, "there is room again");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_reload_names_what_changed_in_vain() {
    let lab = Lab::new();
    let configure = |text: &str| std::fs::write(lab.home().join("sojourn.toml"), text).unwrap();
    let changed = "[limits]\nconnections = 7\nhandshake_seconds = 3\n[attach]\nup = \"1MiB\"\n";
    configure("");
    // By NBD alone the limits hold at once; where there is iSCSI, it has those of its start.
    let kept = ["limits.connections", "limits.handshake_seconds"];
    for (flags, kept) in [(&[][..], &[][..]), (&["--iscsi", "127.0.0.1:0"], &kept[..])] {
        let server = lab.serve(flags);
        configure(changed);
        let expected = [&["attach"][..], kept].concat();
        for _ in 0..2 {
            assert_eq!(lab.json("reload")["restart"], serde_json::json!(expected));
        }
        configure("");
        assert_eq!(lab.json("reload")["restart"], serde_json::json!([]));
        assert_eq!(server.stop(), 0);
    }
}

#[test]
fn a_reload_changes_the_log_level_and_says_what_needs_a_restart() {
    let lab = Lab::new();
    let server = lab.serve(&[]);
    let config = lab.home().join("sojourn.toml");
    std::fs::write(&config, "[log]\nlevel = \"debug\"\nformat = \"json\"\n").unwrap();
    server.signal("HUP");
    assert_eq!(server.notice(), "RELOADING=1");
    assert_eq!(server.notice(), "READY=1");
    assert!(server.log().contains("restart to apply it"), "{}", server.log());
    std::fs::write(&config, "nonsense").unwrap();
    server.signal("HUP");
    assert_eq!(server.notice(), "RELOADING=1");
    assert_eq!(server.notice(), "READY=1");
    assert!(server.log().contains("line 1"), "{}", server.log());
    assert_eq!(server.stop(), 0);
}

#[test]
fn logs_can_be_json() {
    let lab = Lab::new();
    let server = lab.serve(&["--log-format", "json"]);
    let log = server.log();
    assert_eq!(server.stop(), 0);
    for line in log.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["level"].is_string(), "{line}");
    }
    assert!(log.contains("\"message\":\"ready\""), "{log}");
}

#[test]
fn insecure_is_said_aloud() {
    let lab = Lab::new();
    let server = lab.serve(&["--nbd", "0.0.0.0:0", "--insecure"]);
    assert!(server.log().contains("INSECURE"), "{}", server.log());
    assert_eq!(server.stop(), 0);
}

#[test]
fn garbage_from_clients_harms_nobody() {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&[]);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"",
        &[0xff; 4096],
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
    ] {
        let mut stream = UnixStream::connect(lab.nbd_socket()).unwrap();
        let _ = stream.write_all(garbage);
    }
    lab.run(["image", "import", &server.uri("debian"), "copy"]).ok();
    assert_eq!(lab.json("status")["panics"], 0);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_command_is_not_run_for_an_export_that_is_not_there() {
    let (lab, _) = Lab::with_image();
    lab.run(["serve", "--export", "nosuch", "--run", "touch ran"]).fails(3, &["nosuch"]);
    assert!(!lab.path("ran").exists());
    lab.run(["serve", "--export", "debian", "--run", "touch ran"]).ok();
    assert!(lab.path("ran").exists());
}

#[test]
fn a_server_that_ends_leaves_the_lease_to_another_process_that_serves_a_disk_of_its_home() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create bob --from debian").ok();
    let (ready, end) = (lab.path("ready"), lab.path("end"));
    let script =
        format!("touch {}; while ! test -e {}; do sleep 0.1; done", ready.display(), end.display());
    let mut single = lab.command(["serve", "--export", "bob", "--run", &script]).spawn().unwrap();
    while !ready.exists() {
        assert!(single.try_wait().unwrap().is_none(), "it ended before its command");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(lab.serve(&[]).stop(), 0);
    let (other, store) = (lab.path("other"), lab.home().join("store"));
    let elsewhere = |line: &str| {
        let mut command = std::process::Command::new(crate::common::BINARY);
        command.arg("--home").arg(&other).args(line.split(' '));
        crate::common::Done::from(command.output().unwrap())
    };
    elsewhere(&format!("init --store {}", store.display())).ok();
    elsewhere("disk take bob").fails(4, &["was at work"]);
    elsewhere("disk remove --lost bob").fails(4, &["was at work"]);
    std::fs::write(&end, "").unwrap();
    assert!(single.wait().unwrap().success());
}

//! Running a server: what `top` and the dashboard show, limits that change while it runs, draining.

use crate::common::{Lab, MIB, Server, have};
use block::{Device, Durability, ErrorKind, Span};
use nbd::{ClientOptions, Remote, Uri};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// A home with the disk `alice`, and its server.
fn server(args: &[&str]) -> (Lab, Server) {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(args);
    (lab, server)
}

async fn reads(remote: &Remote, count: u64) {
    let mut buf = vec![0; 4096];
    for i in 0..count {
        let at = i * 4096 % (8 * MIB);
        remote.read(Span::between(at, at + 4096), &mut buf).await.unwrap();
    }
}

fn configure(lab: &Lab, text: &str) {
    std::fs::write(lab.home().join("sojourn.toml"), text).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_prints_once_what_disks_and_clients_do() {
    let (lab, server) = server(&[]);
    let remote = server.attach("alice").await.unwrap();
    let load = async {
        loop {
            reads(&remote, 10).await;
            remote.write(Span::whole(4096), &[7; 4096], Durability::Buffered).await.unwrap();
        }
    };
    let look = tokio::task::block_in_place(|| {
        let mut command = lab.command(["--json", "top", "--interval", "0.5"]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    });
    let output = tokio::task::spawn_blocking(move || look.wait_with_output().unwrap());
    let output = tokio::select! {
        output = output => output.unwrap(),
        () = load => unreachable!(),
    };
    let now: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let disk = &now["disks"][0];
    assert_eq!(disk["name"], "alice", "{now}");
    let rates = (disk["reads"].as_f64().unwrap(), disk["writes"].as_f64().unwrap());
    assert!(rates.0 > 0.0 && rates.1 > 0.0 && rates.0 > 5.0 * rates.1, "{now}");
    let (p50, p99) = (disk["p50_us"].as_f64().unwrap(), disk["p99_us"].as_f64().unwrap());
    assert!(p50 > 0.0 && p99 >= p50 && p99 < 1e6, "{now}");
    assert_eq!(now["clients"][0]["exports"][0], "alice", "{now}");
    let status = lab.json("status");
    let times = &status["exports"][0]["latency"]["read"];
    assert_eq!(times["count"], status["exports"][0]["reads"], "{status}");
    assert!(times["p999_us"].as_f64() >= times["p50_us"].as_f64(), "{status}");
    let text = lab.line("top --once --interval 0.1 --sort name").ok();
    assert!(text.contains("alice") && text.contains("P99"), "{text}");
    drop(remote);
    assert_eq!(server.stop(), 0);
    lab.line("top --once").fails(6, &["no server", "sojourn serve"]);
}

#[test]
fn top_in_a_terminal_ends_with_q_and_leaves_it_as_it_was() {
    if !have("script") {
        return;
    }
    let (lab, server) = server(&[]);
    let line = format!(
        "stty -a > before; {} --home {} top --interval 0.2; echo code=$?; stty -a > after",
        crate::common::BINARY,
        lab.home().display()
    );
    let mut child = Command::new("script")
        .args(["-qefc", &line, "typescript"])
        .current_dir(lab.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    for (shown, key) in [("alice", b"c"), ("HELD BACK", b"l"), ("by latency:", b"q")] {
        let began = Instant::now();
        let is_shown = || {
            let text = std::fs::read(lab.path("typescript")).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(shown)
        };
        while !is_shown() {
            assert!(began.elapsed() < Duration::from_secs(60), "no {shown:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        keys.write_all(key).unwrap();
        keys.flush().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    drop(keys);
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["\x1b[?1049h", "alice", "HELD BACK", "by latency:", "\x1b[?1049l", "code=0"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    let modes = |name: &str| std::fs::read_to_string(lab.path(name)).unwrap();
    assert_eq!(modes("before"), modes("after"));
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_of_the_dashboard_exists() {
    let (lab, server) = server(&["--http", "127.0.0.1:0"]);
    let remote = server.attach("alice").await.unwrap();
    reads(&remote, 20).await;
    remote.write(Span::whole(4096), &[7; 4096], Durability::Durable).await.unwrap();
    // A forecast of the cache needs a thousand reads of chunks that are followed.
    while lab.json("status")["cache"]["forecast"].is_null() {
        reads(&remote, 2000).await;
    }
    let address = lab.json("status")["http"].as_str().unwrap().to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let dashboard = include_str!("../../../../packaging/grafana-dashboard.json");
    let parsed: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() > 10);
    let mut seen = 0;
    for (at, _) in dashboard.match_indices("sojourn_") {
        let name: String = dashboard[at..]
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let has = |after: char| metrics.contains(&format!("\n{name}{after}"));
        assert!(has('{') || has(' '), "/metrics has no {name}:\n{metrics}");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
    let bucket =
        "sojourn_request_duration_seconds_bucket{le=\"+Inf\",export=\"alice\",kind=\"read\"} ";
    let count = "sojourn_request_duration_seconds_count{export=\"alice\",kind=\"read\"} ";
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}"))[name.len()..].to_owned()
    };
    assert_eq!(value(bucket), value(count), "the last bucket holds all");
    drop(remote);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_configuration_that_is_refused_changes_nothing_of_what_stands_before_its_mistake() {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let before = lab.json("status");
    let config = |size: &str| {
        let listeners = "nbd = [\"unix:nbd.sock\", \"127.0.0.1:0\"]\nhttp_access = \"tokens\"";
        format!("[serve]\n{listeners}\n[cache]\nsize = \"{size}\"\n")
    };
    configure(&lab, &config("900TiB"));
    lab.line("reload").fails(2, &["900 TiB"]);
    let after = lab.json("status");
    assert_eq!((&after["listeners"], &after["http"]), (&before["listeners"], &before["http"]));
    let address = after["http"].as_str().unwrap();
    assert!(crate::serve::http(address, "/api/v1/status").contains("200 OK"));
    configure(&lab, &config("64MiB"));
    let reloaded = lab.json("reload");
    assert_eq!(reloaded["opened"].as_array().unwrap().len(), 2, "{reloaded}");
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_changes_while_a_client_reads() {
    let (lab, content) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&[]);
    let remote = server.attach("alice").await.unwrap();
    let reading = async {
        let mut buf = vec![0; 64 << 10];
        for at in (0..8 * MIB).step_by(64 << 10).cycle() {
            remote.read(Span::between(at, at + (64 << 10)), &mut buf).await.unwrap();
            assert_eq!(buf, content[at as usize..][..64 << 10], "at {at}");
        }
    };
    let changing = async {
        let cache = |line: &str| tokio::task::block_in_place(|| lab.json(line));
        let forecast = async || {
            let mut now = cache("cache show");
            while now["forecast"].is_null() {
                tokio::time::sleep(Duration::from_millis(100)).await;
                now = cache("cache show");
            }
            now
        };
        let now = forecast().await;
        assert_eq!((&now["policy"], &now["forecast"]["best"]), (&"duel".into(), &"duel".into()));
        assert!(now["forecast"]["now"]["half"].as_f64().unwrap() > 0.9, "{now}");
        let now = cache("cache set --size 1MiB --policy lru");
        assert_eq!((&now["capacity_bytes"], &now["policy"]), (&MIB.into(), &"lru".into()));
        // A loop over several times as much: nothing of it stays until it is read again.
        let now = forecast().await;
        let foretold = &now["forecast"]["now"];
        assert!(foretold["same"].as_f64().unwrap() < 0.9, "{now}");
        assert!(now["bytes"].as_u64().unwrap() <= MIB, "{now}");
        let now = cache("cache set --policy lirs");
        assert_eq!((&now["capacity_bytes"], &now["policy"]), (&MIB.into(), &"lirs".into()));
        configure(&lab, "[cache]\nsize = \"1GiB\"\npolicy = \"arc\"\n");
        assert_eq!(cache("reload")["restart"], serde_json::json!([]));
        let now = &cache("status")["cache"];
        assert_eq!((&now["capacity_bytes"], &now["policy"]), (&(1 << 30).into(), &"arc".into()));
    };
    tokio::select! {
        () = reading => unreachable!(),
        () = changing => {}
    }
    lab.line("cache set --policy sieve").fails(2, &["sieve", "fmpq"]);
    lab.line("cache set --size 8").fails(2, &["8", "holds no chunk", "1MiB"]);
    lab.line("cache set --size 1000TiB").fails(2, &["1000 TiB", "more than this machine's"]);
    assert!(lab.line("cache show").ok().contains("arc"));
    assert!(lab.line("status").ok().contains("1 GiB"));
    drop(remote);
    assert_eq!(server.stop(), 0);
    lab.line("cache show").fails(6, &["no server", "sojourn serve"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_as_soon_as_they_are_read_again() {
    let (lab, server) = server(&[]);
    let remote = server.attach("alice").await.unwrap();
    reads(&remote, 500).await;
    configure(&lab, "[limits]\nclient_iops = 100\n");
    assert_eq!(lab.json("reload")["restart"], serde_json::json!([]));
    let began = Instant::now();
    reads(&remote, 60).await;
    let took = began.elapsed();
    assert!((0.35..60.0).contains(&took.as_secs_f64()), "60 reads at 100 a second: {took:?}");
    let status = lab.json("status");
    assert!(status["clients"][0]["paced"].as_u64().unwrap() > 0, "{status}");

    configure(&lab, "[limits]\nclient_bandwidth = \"1MB\"\nclient_connections = 2\n");
    lab.line("reload").ok();
    let began = Instant::now();
    reads(&remote, 200).await; // 0.8 MB
    let took = began.elapsed();
    assert!((0.5..60.0).contains(&took.as_secs_f64()), "0.8 MB at 1 MB/s: {took:?}");

    configure(&lab, "[limits]\nclient_connections = 1\ndisk_space = \"64KiB\"\n");
    lab.line("reload").ok();
    let write = async |at: u64, len: usize| {
        let span = Span::between(at, at + len as u64);
        remote.write(span, &vec![5; len], Durability::Buffered).await.map_err(|e| e.kind())
    };
    write(0, 64 << 10).await.unwrap();
    assert_eq!(write(MIB, 4096).await, Err(ErrorKind::NoSpace));
    write(4096, 4096).await.unwrap(); // what is private already
    remote.flush().await.unwrap();
    let refused = async {
        while tokio::task::block_in_place(|| lab.json("status"))["connections_refused"] == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        second = server.attach("debian") => {
            assert!(second.is_err(), "a second connection of one client is refused");
        }
        () = refused => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("nobody is refused"),
    }

    configure(&lab, "pieces.size = \"128MiB\"\n[limits]\ntotal_in_flight = \"128MiB\"\n");
    assert_eq!(lab.json("reload")["restart"], serde_json::json!(["pieces"]));
    write(MIB, 4096).await.unwrap();
    configure(&lab, "nonsense");
    lab.line("reload").fails(2, &["line 1"]);
    drop(remote);
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_clients_finish_takes_no_new_ones_and_ends() {
    let (lab, mut server) = server(&[]);
    let remote = server.attach("alice").await.unwrap();
    let drain = lab.command(["drain"]).stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while lab.nbd_socket().exists() {
        assert!(Instant::now() < deadline, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    remote.write(Span::whole(4096), &[9; 4096], Durability::Buffered).await.unwrap();
    reads(&remote, 100).await;
    assert_eq!(lab.json("status")["connections"], 1);
    // Reading the configuration again does not open what the drain has closed.
    assert_eq!(lab.json("reload")["opened"], serde_json::json!([]));
    assert!(!lab.nbd_socket().exists());
    remote.close().await;
    let output = tokio::task::spawn_blocking(|| drain.wait_with_output().unwrap()).await.unwrap();
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 connections") && text.contains("has ended"), "{text}");
    assert_eq!(server.wait(), 0, "{}", server.log());

    let server = lab.serve(&[]);
    let remote = server.attach("alice").await.unwrap();
    let mut buf = [0; 4096];
    remote.read(Span::whole(4096), &mut buf).await.unwrap();
    assert_eq!(buf, [9; 4096], "what was answered was kept");
    let began = Instant::now();
    lab.line("drain --timeout 1").ok();
    assert!(began.elapsed() < Duration::from_secs(60), "a client that stays is stopped");
    drop(remote);
    lab.line("drain").fails(6, &["no server"]);
}

/// A port of this machine's own that nobody listens at. It is below those that the system gives to connections and to
/// whoever binds any, and processes begin at different ones: who binds it later finds it free.
fn free_port() -> u16 {
    const LOWEST: u16 = 11_000;
    const EACH: u16 = 100;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = LOWEST + (std::process::id() % 200) as u16 * EACH;
    (0..EACH)
        .map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % EACH)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_move_by_a_reload_and_clients_stay() {
    let (lab, server) = server(&[]);
    let remote = server.attach("alice").await.unwrap();
    reads(&remote, 5).await;
    let port = free_port();
    let at = async |uri: String| {
        let options = ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() };
        Remote::connect(&uri.parse::<Uri>().unwrap(), options).await
    };
    let tcp = || format!("nbd://127.0.0.1:{port}/debian");

    configure(&lab, &format!("serve.nbd = [\"127.0.0.1:{port}\"]\nserve.http = \"127.0.0.1:0\"\n"));
    let told = lab.json("reload");
    assert_eq!(told["opened"][0], format!("127.0.0.1:{port}"), "{told}");
    assert!(told["opened"][1].as_str().unwrap().starts_with("http://127.0.0.1:"), "{told}");
    assert!(told["closed"][0].as_str().unwrap().starts_with("unix:"), "{told}");
    assert!(!lab.nbd_socket().exists());
    reads(&remote, 5).await;
    assert!(server.attach("debian").await.is_err());
    reads(&at(tcp()).await.unwrap(), 5).await;
    let status = lab.json("status");
    assert_eq!(status["listeners"], serde_json::json!([format!("127.0.0.1:{port}")]), "{status}");
    TcpStream::connect(status["http"].as_str().unwrap()).unwrap();

    // The same port at all addresses: the one is in the way of the other.
    configure(&lab, &format!("serve.nbd = [\"0.0.0.0:{port}\"]\n"));
    lab.line("reload").fails(9, &["--insecure"]);
    reads(&at(tcp()).await.unwrap(), 5).await;
    configure(&lab, &format!("serve.nbd = [\"0.0.0.0:{port}\"]\nserve.insecure = true\n"));
    let told = lab.json("reload");
    assert_eq!(told["opened"], serde_json::json!([format!("0.0.0.0:{port}")]), "{told}");
    reads(&at(tcp()).await.unwrap(), 5).await;

    // What cannot be listened at changes nothing.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    configure(&lab, &format!("serve.nbd = [\"unix:nbd.sock\", \"{address}\"]\n"));
    lab.line("reload").fails(4, &["in use"]);
    assert!(!lab.nbd_socket().exists());
    reads(&at(tcp()).await.unwrap(), 5).await;
    configure(&lab, &format!("serve.nbd = [\"127.0.0.1:{port}\"]\nserve.tls = \"required\"\n"));
    lab.line("reload").fails(3, &["TLS", "ca-cert.pem"]);
    reads(&at(tcp()).await.unwrap(), 5).await;

    // Encryption begins at the same address, without a moment when nobody listens.
    lab.line("cert ca").ok();
    lab.line("cert server localhost 127.0.0.1").ok();
    let old = at(tcp()).await.unwrap();
    lab.line("reload").ok();
    let refused = at(tcp()).await.unwrap_err();
    assert!(refused.message().contains("TLS"), "{refused}");
    reads(&old, 5).await;
    reads(&remote, 5).await;
    drop((old, remote));
    assert_eq!(server.stop(), 0);
}

#[test]
fn the_http_port_can_be_encrypted_and_ask_for_certificates() {
    if !have("curl") {
        return;
    }
    let (lab, _) = Lab::with_image();
    for line in ["cert ca", "cert server localhost 127.0.0.1", "cert client alice"] {
        lab.line(line).ok();
    }
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let server = lab.serve(&["--http", &address, "--http-tls", "optional"]);
    let tls = lab.home().join("tls");
    let get = |more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "10", "--cacert"]).arg(tls.join("ca-cert.pem"));
        let output = curl.args(more).arg(format!("https://localhost:{port}/healthz")).output();
        let output = output.unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let alice = tls.join("clients/alice");
    let (cert, key) = (alice.join("client-cert.pem"), alice.join("client-key.pem"));
    let shown = ["--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    // A client that never begins its handshake is in nobody's way.
    let _silent = TcpStream::connect(&address).unwrap();
    assert_eq!(get(&[]), (true, "ok\n".to_owned()));
    assert_eq!(get(&shown), (true, "ok\n".to_owned()));
    assert_eq!(lab.json("status")["http"], address);
    assert_eq!(server.stop(), 0);

    let wide = lab.line("serve --http 0.0.0.0:0 --http-tls optional");
    assert!(wide.code == 9 && wide.stderr.contains("--http-tls required"), "{}", wide.stderr);
    let server = lab.serve(&["--http", &address, "--http-tls", "required"]);
    assert!(!get(&[]).0, "no certificate, no answer");
    assert_eq!(get(&shown), (true, "ok\n".to_owned()));
    assert_eq!(server.stop(), 0);
}

#[test]
fn half_a_request_on_the_control_socket_does_not_hold_up_a_stop() {
    let (lab, server) = server(&[]);
    let path = lab.home().join("control.sock");
    let mut half = std::os::unix::net::UnixStream::connect(path).unwrap();
    half.write_all(b"POST /v1/disk HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").unwrap();
    // Nothing shows that it has come; without it, the test would only say less.
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    assert_eq!(server.stop(), 0);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_whose_storage_hangs_keeps_neither_a_reload_nor_a_stop_waiting() {
    let (lab, _) = Lab::with_image();
    for disk in ["alice", "bob"] {
        lab.line(&format!("disk create {disk} --from debian")).ok();
    }
    configure(&lab, "[serve]\nidle_seconds = 1\n[limits]\nhandshake_seconds = 1\n");
    // Whoever opens it waits for a writer that does not come.
    let record = lab.home().join("disks/alice/disk.json");
    std::fs::remove_file(&record).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &record,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let mut server = lab.serve(&[]);
    assert!(server.attach("alice").await.is_err());
    // The same second is for whoever may be slow only because the machine is busy.
    let end = Instant::now() + Duration::from_secs(60);
    while server.attach("bob").await.is_err() {
        assert!(Instant::now() < end, "{}", server.log());
    }
    // The other one is idle, and closed.
    let lock = std::fs::File::open(lab.home().join("disks/bob/lock")).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(Instant::now() < end, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lab.line("reload").ok();
    server.signal("TERM");
    while lab.nbd_socket().exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.signal("TERM");
    assert_eq!(server.wait(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_of_which_a_flush_failed_is_opened_again_for_the_next_client() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    // A file that takes what is written and cannot be synced.
    let data = lab.home().join("disks/alice/0001.data");
    let aside = lab.path("aside");
    std::fs::rename(&data, &aside).unwrap();
    std::os::unix::fs::symlink("/dev/null", &data).unwrap();
    let server = lab.serve(&[]);
    let block = [7; 4096];
    let remote = server.attach("alice").await.unwrap();
    remote.write(Span::whole(4096), &block, Durability::Buffered).await.unwrap();
    assert!(remote.flush().await.is_err());
    assert!(remote.write(Span::whole(4096), &block, Durability::Buffered).await.is_err());
    assert!(server.attach("alice").await.is_ok(), "it can still be read");
    drop(remote);
    std::fs::remove_file(&data).unwrap();
    std::fs::rename(&aside, &data).unwrap();
    let mut buf = [0; 4096];
    loop {
        // The server may still be saying goodbye to the one before.
        let remote = server.attach("alice").await.unwrap();
        if remote.write(Span::whole(4096), &block, Durability::Durable).await.is_ok() {
            remote.read(Span::whole(4096), &mut buf).await.unwrap();
            break;
        }
    }
    assert_eq!(buf, block);
    assert_eq!(server.stop(), 0);
}

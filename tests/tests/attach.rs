//! Disks of a distant server, used on this machine through its gateway: killed at any instant, with the
//! link cut, with media that are right, stale and damaged, taken by another machine, and carried from one
//! machine to the next.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "processes are killed in real time")]

use serde_json::Value;
use sojourn_tests::home::free_port;
use sojourn_tests::tool::{path, sojourn, texts};
use sojourn_tests::{Client, Home, Link, Server, content, require};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: usize = 16;
const PATIENCE: Duration = Duration::from_secs(120);

/// A server with the disk `alice`, which nobody holds, and the link to its gateway.
struct Lab {
    home: Home,
    serving: Option<Server>,
    link: Link,
    image: Vec<u8>,
}

impl Lab {
    fn new(seed: u64) -> Self {
        let home = Home::new();
        let image = content::image(seed, MIB);
        home.import("golden:1", &image);
        home.disk("alice", "golden:1");
        home.run(&["disk", "release", "alice"]);
        home.run(&["cert", "ca"]);
        home.run(&["cert", "server", "localhost", "127.0.0.1"]);
        home.run(&["cert", "client", "alice"]);
        let uid = rustix::process::getuid().as_raw();
        let rules = format!(
            "access = [\n{{ certificate = \"alice\", write = [\"alice\", \"alice-kept-1\"], read = \
             [\"golden:*\"] }},\n{{ uid = {uid}, write = [\"*\"] }},\n]\n"
        );
        let config = home.home().join("sojourn.toml");
        let rest = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{rules}{rest}")).unwrap();
        let at = free_port();
        let serving = home.serve_with(&["--gateway", &at.to_string()]);
        Self { home, serving: Some(serving), link: Link::to(at), image }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.link.address().port())
    }

    /// A machine that attaches disks of this server.
    fn machine(&self) -> Machine {
        Machine {
            dir: tempfile::Builder::new().prefix("sj-").tempdir().unwrap(),
            from: self.url(),
            certificates: self.home.home().join("tls/clients/alice"),
        }
    }

    /// Writes `alice` on a key.
    fn medium(&self, name: &str) -> PathBuf {
        let key = self.home.path(name);
        std::fs::create_dir(&key).unwrap();
        self.home.run(&["media", "write", key.to_str().unwrap(), "golden:1"]);
        key
    }
}

/// A machine with attached disks.
struct Machine {
    dir: TempDir,
    from: String,
    certificates: PathBuf,
}

impl Machine {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(sojourn());
        command.arg("--home").arg(self.dir.path()).args(args).stdin(Stdio::null());
        command.env_remove("SOJOURN_LOG").env("PATH", path());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{args:?}\n{out}{err}{}", self.log());
        out
    }

    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.output(args);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}{err}{}", self.log());
        err
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[args, &["--json"]].concat())).unwrap()
    }

    /// The arguments that attach `alice`.
    fn attaching<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let certificates = self.certificates.to_str().unwrap();
        let args = ["attach", "alice", "--from", &self.from, "--tls-dir", certificates];
        [&args, more].concat()
    }

    /// Attaches `alice`; gives the socket.
    fn attach(&self, more: &[&str]) -> PathBuf {
        let made = self.json(&self.attaching(more));
        PathBuf::from(made["socket"].as_str().unwrap())
    }

    fn client(&self) -> Client {
        Client::attach(&self.attach(&[]), "alice")
    }

    fn home(&self) -> PathBuf {
        let attached = self.dir.path().join("attached");
        std::fs::read_dir(attached).unwrap().next().unwrap().unwrap().path()
    }

    fn log(&self) -> String {
        let log = self.dir.path().join("attached").exists().then(|| self.home().join("agent.log"));
        log.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// What is told of `alice`.
    fn status(&self) -> Value {
        self.json(&["attach", "status"])[0]["disks"][0].clone()
    }

    fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not {what}: {status}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What is written goes up at once, and a store that is away is noticed soon. Ends the process.
    fn hurry(&self) {
        self.kill();
        let path = self.home().join("sojourn.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace("after_seconds = 5", "after_seconds = 0");
        std::fs::write(path, text.replace("lease_seconds = 60", "lease_seconds = 3")).unwrap();
    }

    /// Kills the process that looks after the disks, as a crash would.
    fn kill(&self) {
        let Ok(text) = std::fs::read_to_string(self.home().join("lock")) else { return };
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let Ok(pid) = digits.parse::<i32>() else { return };
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        let home = self.home();
        let is_ours = line
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&*home.to_string_lossy()));
        if is_ours {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let control = home.join("control.sock");
            while std::os::unix::net::UnixStream::connect(&control).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.dir.path().join("attached").exists() {
            self.kill();
        }
    }
}

fn read_all(client: &mut Client) -> Vec<u8> {
    (0..client.size >> 20).flat_map(|part| client.read(part << 20, 1 << 20)).collect()
}

fn write(client: &mut Client, content: &mut [u8], at: usize, data: &[u8]) {
    assert_eq!(client.write(at as u64, data), 0);
    content[at..at + data.len()].copy_from_slice(data);
}

/// Numbers that follow from a seed.
fn dice(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |bound| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % bound
    }
}

#[test]
fn a_disk_is_carried_from_one_machine_to_another_with_every_byte() {
    let lab = Lab::new(81);
    let (here, there) = (lab.machine(), lab.machine());
    let mut expected = lab.image.clone();
    let told = here.run(&here.attaching(&[]));
    assert!(told.contains("qemu-system-x86_64") && told.contains("nbd+unix:///alice"), "{told}");
    let mut client = here.client();
    content::assert_same("attached", &read_all(&mut client), &expected);
    write(&mut client, &mut expected, 3 << 20, &content::random(5, 1 << 20));
    let refused = there.fails(4, &there.attaching(&[]));
    assert!(refused.contains("alice"), "{refused}");
    assert!(here.fails(4, &["detach", "alice"]).contains("in use"));
    client.detach();
    here.run(&["detach", "alice"]);
    assert!(here.run(&["attach", "status"]).contains("https://localhost"));
    let mut client = there.client();
    content::assert_same("carried", &read_all(&mut client), &expected);
    client.detach();
}

#[test]
fn clients_that_others_wrote_use_an_attached_disk() {
    require!("nbdcopy", "qemu-io", "qemu-img");
    let lab = Lab::new(82);
    let here = lab.machine();
    let copy = here.dir.path().join("copy.raw");
    let script =
        format!("nbdcopy $uri {} && test -S $unixsocket && echo $exportname", copy.display());
    assert_eq!(here.run(&here.attaching(&["--run", &script])), "alice\n");
    content::assert_same("copied", &std::fs::read(&copy).unwrap(), &lab.image);
    here.run(&["attach", "alice", "--run", "qemu-io -f raw -c 'write -P 7 1M 64k' -c flush $uri"]);
    here.kill();
    here.run(&["attach", "alice", "--run", "qemu-io -f raw -c 'read -P 7 1M 64k' $uri"]);
    here.fails(3, &["attach", "alice", "--run", "exit 3"]);
}

#[test]
fn what_was_flushed_survives_kills_at_any_instant_while_it_goes_up() {
    let lab = Lab::new(83);
    let here = lab.machine();
    let mut expected = lab.image.clone();
    here.attach(&[]);
    here.hurry();
    let kills = std::env::var("ATTACH_KILLS").map_or(10, |text| text.parse().unwrap());
    let mut below = dice(12345);
    for kill in 0..kills {
        let mut client = here.client();
        content::assert_same(&format!("kill {kill}"), &read_all(&mut client), &expected);
        let end = Instant::now() + Duration::from_millis(below(600));
        while Instant::now() < end {
            let at = below((MIB as u64) << 4) << 16;
            write(&mut client, &mut expected, at as usize, &content::random(below(1 << 30), 65536));
            if below(4) == 0 {
                assert_eq!(client.flush(), 0);
            }
        }
        assert_eq!(client.flush(), 0);
        here.kill();
    }
    let mut client = here.client();
    content::assert_same("at last", &read_all(&mut client), &expected);
    client.detach();
    here.run(&["detach", "alice"]);
    let there = lab.machine();
    content::assert_same("elsewhere", &read_all(&mut there.client()), &expected);
}

#[test]
fn an_upload_goes_on_after_each_kill_within_its_budget_and_sends_nothing_twice() {
    let lab = Lab::new(84);
    let here = lab.machine();
    let mut expected = lab.image.clone();
    here.attach(&["--up", "2MiB"]);
    here.hurry();
    let mut client = here.client();
    let before = lab.link.up();
    let begun = Instant::now();
    let data = content::random(9, 10 << 20);
    write(&mut client, &mut expected, 0, &data);
    assert_eq!(client.flush(), 0);
    client.detach();
    let kills = 3;
    for kill in 1..=kills {
        here.attach(&[]);
        let end = Instant::now() + PATIENCE;
        while lab.link.up() - before < kill * (2 << 20) {
            assert!(Instant::now() < end, "nothing goes up\n{}", here.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        here.kill();
    }
    here.run(&["attach", "sync", "alice"]);
    // Each start may send one pack before it waits.
    assert!(
        begun.elapsed() > Duration::from_secs(2),
        "{:?} for 10 MiB at 2 MiB/s",
        begun.elapsed()
    );
    let sent = lab.link.up() - before;
    // What is in flight at a kill is lost: a pack at the most, twice.
    let most = data.len() as u64 * 102 / 100 + kills * (1 << 20);
    assert!(sent <= most, "{sent} bytes went up for {}, at most {most}", data.len());
    here.run(&["detach", "alice"]);
    content::assert_same("afterwards", &read_all(&mut here.client()), &expected);
}

#[test]
fn a_link_that_is_cut_stops_nothing_that_is_here_and_is_made_up_for() {
    let lab = Lab::new(85);
    let here = lab.machine();
    let mut expected = lab.image.clone();
    here.attach(&[]);
    here.hurry();
    let mut client = here.client();
    content::assert_same("attached", &read_all(&mut client), &expected);
    client.detach();
    lab.link.cut();
    // Not even a restart needs the store.
    here.kill();
    let mut client = here.client();
    content::assert_same("without a link", &read_all(&mut client), &expected);
    write(&mut client, &mut expected, 2 << 20, &content::random(6, 1 << 20));
    assert_eq!(client.flush(), 0);
    let status = here.until("offline", |status| status["upload"]["state"] == "offline");
    assert_eq!(status["upload"]["behind_bytes"], 1 << 20);
    client.detach();
    lab.link.mend();
    here.run(&["attach", "sync", "alice"]);
    assert_eq!(here.status()["upload"]["state"], "done");
    lab.link.cut();
    // What went up is still here.
    here.kill();
    let mut client = here.client();
    content::assert_same("written", &read_all(&mut client), &expected);
    client.detach();
    lab.link.mend();
    here.run(&["detach", "alice"]);
    content::assert_same("elsewhere", &read_all(&mut lab.machine().client()), &expected);
}

#[test]
fn a_hoarded_disk_needs_no_link_that_it_never_read_over() {
    let lab = Lab::new(89);
    let here = lab.machine();
    let mut expected = lab.image.clone();
    here.attach(&["--down", "1GiB"]);
    let before = lab.link.down();
    here.run(&["attach", "hoard", "alice"]);
    let came = lab.link.down() - before;
    let status = here.status();
    assert_eq!(status["hoard"]["state"], "complete", "{status}");
    let total = status["hoard"]["total_bytes"].as_u64().unwrap();
    assert_eq!(status["hoard"]["here_bytes"].as_u64(), Some(total));
    assert!(came < total * 103 / 100 + (64 << 10), "{came} bytes came for {total}");
    assert!(status["text"].to_string().contains("all here: the link may go"), "{status}");
    lab.link.cut();
    here.kill();
    let mut client = here.client();
    content::assert_same("hoarded", &read_all(&mut client), &expected);
    write(&mut client, &mut expected, 9 << 20, &content::random(6, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    lab.link.mend();
    here.run(&["attach", "sync", "alice"]);
    // It goes on as the disk changes, and costs nothing twice, as what went up was kept.
    here.until("complete", |status| {
        status["hoard"]["state"] == "complete" && status["hoard"]["total_bytes"] != total
    });
    // What was lost comes again.
    here.run(&["attach", "hoard", "alice", "--stop"]);
    assert_eq!(here.status()["hoard"]["state"], "off");
    std::fs::remove_dir_all(here.home().join("pieces")).unwrap();
    here.run(&["attach", "hoard", "alice"]);
    lab.link.cut();
    here.kill();
    content::assert_same("again", &read_all(&mut here.client()), &expected);
}

#[test]
fn what_a_key_has_does_not_come_over_the_link_and_a_bad_one_does_no_harm() {
    let lab = Lab::new(86);
    let (good, bad) = (lab.medium("good"), lab.medium("bad"));
    let data: u64 = 1 << 20;
    let read = |machine: &Machine, more: &[&str]| {
        let before = lab.link.down();
        let mut client = Client::attach(&machine.attach(more), "alice");
        content::assert_same("read", &read_all(&mut client), &lab.image);
        client.detach();
        lab.link.down() - before
    };
    let plain = lab.machine();
    let without = read(&plain, &[]);
    assert!(without > 4 * data, "{without}");
    plain.run(&["detach", "alice"]);
    let here = lab.machine();
    let with = read(&here, &["--source", good.to_str().unwrap()]);
    let told = here.run(&["attach", "status"]);
    assert!(told.contains(&format!("from media {}", good.display())), "{told}");
    assert!(with < data / 4, "{with} bytes came over the link, {without} without the key");
    here.run(&["detach", "alice"]);
    // Every byte of the chunks is wrong, some files are cut, and one is of somebody else.
    let mut below = dice(7);
    for file in std::fs::read_dir(bad.join("sojourn.med")).unwrap() {
        let file = file.unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        let from = bytes.len().min(200);
        let until = if file.extension().unwrap() == "pck" { bytes.len() - 64 } else { from };
        (from..until).for_each(|at| bytes[at] ^= below(255) as u8 + 1);
        std::fs::write(&file, bytes).unwrap();
    }
    std::fs::write(bad.join("sojourn.med/0badbad0.idx"), content::random(1, 4096)).unwrap();
    let there = lab.machine();
    let bad = bad.to_str().unwrap();
    let with = read(&there, &["--source", bad, "--source", "/no/such/key"]);
    assert!(with < without * 5 / 4 + data, "{with} bytes with a bad key, {without} without one");
}

#[test]
fn a_machine_that_lost_its_disk_while_it_was_offline_publishes_nothing_and_keeps_its_state() {
    let lab = Lab::new(87);
    let here = lab.machine();
    here.attach(&[]);
    here.hurry();
    let mut client = here.client();
    let mut mine = read_all(&mut client);
    content::assert_same("attached", &mine, &lab.image);
    lab.link.cut();
    write(&mut client, &mut mine, 1 << 20, &content::random(7, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    lab.home.run(&["disk", "take", "alice", "--force"]);
    lab.link.mend();
    let status = here.until("kept", |status| status["kept_as"].is_string());
    assert_eq!(status["kept_as"], "alice-kept-1");
    let mut other = Client::attach(lab.serving.as_ref().unwrap().socket(), "alice");
    content::assert_same("taken", &read_all(&mut other), &lab.image);
    let mut client = Client::attach(&here.home().join("nbd.sock"), "alice-kept-1");
    content::assert_same("kept", &read_all(&mut client), &mine);
}

#[test]
fn what_has_not_gone_up_can_be_dropped() {
    let lab = Lab::new(88);
    let here = lab.machine();
    here.attach(&[]);
    here.run(&["attach", "pause", "alice"]);
    let mut client = here.client();
    let mut written = lab.image.clone();
    write(&mut client, &mut written, 5 << 20, &content::random(8, 1 << 20));
    assert_eq!(client.flush(), 0);
    here.until("paused", |status| status["upload"]["state"] == "paused");
    assert!(here.fails(4, &["attach", "discard", "alice"]).contains("alice"));
    client.detach();
    here.run(&["attach", "discard", "alice"]);
    content::assert_same("dropped", &read_all(&mut here.client()), &lab.image);
    here.run(&["attach", "resume", "alice"]);
    here.until("done", |status| status["upload"]["state"] == "done");
    let nobody = Path::new("/no/such/store").display().to_string();
    here.fails(3, &["attach", "alice", "--from", &nobody]);
}

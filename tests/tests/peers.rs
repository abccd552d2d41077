//! Agents of one LAN behind one link to their server: what one of them read comes to the others from there, and
//! each chunk crosses the link once, whoever is killed or lies.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "processes are killed in real time")]

use access::PeerCredentials;
use peers::testing::{BadPeer, Manner};
use serde_json::Value;
use sojourn_tests::attached::{Machine, PATIENCE, furnish, read_all};
use sojourn_tests::home::{Server, free_port};
use sojourn_tests::{Client, Home, Link, content, tool};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// A server with a disk for each of several agents, and the link that they share.
struct Site {
    home: Home,
    _serving: Server,
    link: Link,
    image: Vec<u8>,
}

impl Site {
    /// Disks are `disk-0` and so on; the link carries `rate` bytes per second to all together, 0 is no limit.
    fn new(seed: u64, mib: usize, disks: usize, rate: u32) -> Self {
        // No holes: all of it crosses the link.
        let (home, image) = (Home::new(), content::random(seed, mib << 20));
        let rule = "{ certificate = \"alice\", write = [\"disk-*\"], read = [\"golden:*\"] }";
        furnish(&home, &image, rule);
        for number in 0..disks {
            home.disk(&format!("disk-{number}"), "golden:1");
            home.run(&["disk", "release", &format!("disk-{number}")]);
        }
        let at = free_port();
        let serving = home.serve_with(&["--gateway", &at.to_string()]);
        let link = if rate == 0 { Link::to(at) } else { Link::shared(at, rate) };
        Self { home, _serving: serving, link, image }
    }

    fn certificates(&self) -> PathBuf {
        self.home.home().join("tls/clients/alice")
    }

    /// A peer that behaves badly, for as long as what is given with it.
    fn bad_peer(&self, manner: Manner) -> (Arc<BadPeer>, SocketAddr, Runtime) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (peer, address) = runtime.block_on(async {
            let backend = objects::local(self.home.home().join("store")).unwrap();
            let store = store::Store::open(backend, store::testing::world(1)).await.unwrap();
            let peer = BadPeer::new(store.settings(), manner);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let tls = PeerCredentials::load(&self.certificates()).unwrap().server;
            let serving = Arc::clone(&peer);
            tokio::spawn(async move { serving.serve(listener, &tls).await });
            (peer, address)
        });
        (peer, address, runtime)
    }
}

/// One machine of the LAN, with one disk.
struct Agent {
    machine: Machine,
    disk: String,
    address: SocketAddr,
}

impl Agent {
    fn new(site: &Site, number: usize) -> Self {
        let machine = Machine {
            dir: tempfile::Builder::new().prefix("sj-").tempdir().unwrap(),
            from: format!("https://localhost:{}", site.link.address().port()),
            certificates: site.certificates(),
            environment: Vec::new(),
        };
        Self { machine, disk: format!("disk-{number}"), address: free_port() }
    }

    /// Attaches the disk; gives its socket.
    fn attach(&self, more: &[&str]) -> PathBuf {
        let certificates = self.machine.certificates.to_str().unwrap();
        let from = self.machine.from.as_str();
        let args = ["attach", &self.disk, "--from", from, "--tls-dir", certificates];
        let made = self.machine.json(&[&args, more].concat());
        PathBuf::from(made["socket"].as_str().unwrap())
    }

    /// Attaches the disk with peers at these addresses, and no others but those that find it.
    fn join(&self, peers: &[SocketAddr]) {
        self.attach(&["--peers"]);
        self.machine.kill();
        let path = self.machine.home().join("sojourn.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let known: Vec<_> = peers.iter().map(|at| format!("\"{at}\"")).collect();
        let peers = format!(
            "peers = true\npeer_address = \"{}\"\nknown_peers = [{}]",
            self.address,
            known.join(", ")
        );
        assert!(text.contains("peers = true"), "{text}");
        std::fs::write(&path, text.replace("peers = true", &peers)).unwrap();
        self.attach(&[]);
    }

    fn client(&self) -> Client {
        Client::attach(&self.attach(&[]), &self.disk)
    }

    fn status(&self) -> Value {
        self.machine.json(&["attach", "status"])[0].clone()
    }

    fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not {what}: {status}\n{}", self.machine.log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Bytes that peers gave it.
    fn given(&self) -> u64 {
        let status = self.status();
        let sources = status["sources"].as_array().unwrap().iter();
        let peers = sources.filter(|source| source["kind"] == "peer");
        peers.map(|source| source["bytes"].as_u64().unwrap()).sum()
    }
}

/// Agents that all know each other, and others.
fn lan(site: &Site, count: usize, others: &[SocketAddr]) -> Vec<Agent> {
    let agents: Vec<_> = (0..count).map(|number| Agent::new(site, number)).collect();
    for agent in &agents {
        let peers = agents.iter().map(|other| other.address);
        let peers: Vec<_> =
            peers.filter(|at| *at != agent.address).chain(others.to_vec()).collect();
        agent.join(&peers);
    }
    let there = count - 1 + others.len();
    for agent in &agents {
        agent.until("with all its peers", |status| status["peers"]["there"] == there);
    }
    agents
}

/// Has a boot of each read the whole disk, all at the same moment; `meanwhile` is done when the first is half-way.
fn boot(site: &Site, agents: &[Agent], meanwhile: impl FnOnce()) -> u64 {
    let before = site.link.down();
    let (start, half) = (Barrier::new(agents.len()), Barrier::new(agents.len() + 1));
    let size = site.image.len();
    thread::scope(|scope| {
        for agent in agents {
            let (start, half) = (&start, &half);
            scope.spawn(move || {
                let mut client = agent.client();
                start.wait();
                let mut got = Vec::with_capacity(size);
                for at in (0..size).step_by(256 << 10) {
                    if at == size / 2 {
                        half.wait();
                    }
                    got.extend(client.read(at as u64, 256 << 10));
                }
                content::assert_same(&agent.disk, &got, &site.image);
                client.detach();
            });
        }
        half.wait();
        meanwhile();
    });
    site.link.down() - before
}

/// What a boot of an agent without peers moves over the link.
fn alone(site: &Site, number: usize) -> u64 {
    let agent = Agent::new(site, number);
    agent.attach(&[]);
    boot(site, std::slice::from_ref(&agent), || {})
}

#[test]
fn agents_of_a_lan_share_their_link_and_one_that_comes_later_does_without_it() {
    // So thin that what a peer has is here before it would have crossed the link, also on a busy machine.
    let site = Site::new(181, 12, 4, 2 << 20);
    let size = site.image.len() as u64;
    let agents = lan(&site, 3, &[]);
    let three = boot(&site, &agents, || {});
    // Each that reads for itself moves all of it: 3 sizes. What a peer is slow to give is asked for over the link as well.
    assert!(three < 2 * size, "three boots moved {three} bytes of {size}");
    for agent in &agents {
        assert!(agent.given() > 0, "{}", agent.status());
        let told = agent.machine.run(&["attach", "status"]);
        assert!(
            told.contains("from peer 127.0.0.1:") && told.contains("2 peers are there"),
            "{told}"
        );
    }
    let late = Agent::new(&site, 3);
    late.join(&[agents[0].address, agents[1].address]);
    late.until("told of what they have", |status| {
        let sources = status["sources"].as_array().unwrap();
        let claims = |source: &Value| source["claims"].as_u64().unwrap_or(0);
        sources.iter().filter(|source| source["kind"] == "peer" && claims(source) > 100).count()
            >= 2
    });
    // Once it knows what its disk is made of, all of that is nearby.
    let mut client = late.client();
    client.read(0, 4096);
    client.detach();
    site.link.cut();
    boot(&site, std::slice::from_ref(&late), || {});
    assert!(late.given() > size / 2, "{}", late.status());
    // What peers gave is kept: with all of them gone, too, nothing has to be read again.
    agents.iter().chain([&late]).for_each(|agent| agent.machine.kill());
    boot(&site, std::slice::from_ref(&late), || {});
}

#[test]
fn all_boots_succeed_while_a_peer_is_killed_and_another_one_lies() {
    let site = Site::new(182, 12, 5, 0);
    let (liar, at, _runtime) = site.bad_peer(Manner::Lying);
    let agents = lan(&site, 3, &[at]);
    let (victim, others) = agents.split_first().unwrap();
    boot(&site, others, || victim.machine.kill());
    assert!(liar.asked() > 0, "it owned nothing");
    for agent in others {
        let status = agent.status();
        let is_liar = |source: &&Value| source["name"] == at.to_string();
        let told = status["sources"].as_array().unwrap().iter().find(is_liar).unwrap();
        assert_eq!((&told["had"], &told["bytes"]), (&0.into(), &0.into()), "{told}");
        assert!(told["wrong"].as_u64() > Some(0), "{told}");
    }
}

#[test]
fn peers_are_off_by_default_and_need_a_certificate() {
    let site = Site::new(183, 4, 2, 0);
    let agent = Agent::new(&site, 0);
    let store = site.home.home().join("store");
    let from = store.to_str().unwrap();
    let refused = agent.machine.fails(3, &["attach", "disk-0", "--from", from, "--peers"]);
    assert!(refused.contains("--tls-dir"), "{refused}");
    agent.attach(&[]);
    assert_eq!(agent.status()["peers"], Value::Null);
    agent.attach(&["--peers"]);
    let status = agent.status();
    assert!(status["peers"]["address"].as_str().unwrap().starts_with("0.0.0.0:"), "{status}");
    agent.attach(&["--no-peers"]);
    assert_eq!(agent.status()["peers"], Value::Null);
    let mut client = agent.client();
    content::assert_same("without peers", &read_all(&mut client), &site.image);
    client.detach();
}

#[test]
fn agents_find_each_other_in_their_network() {
    let site = Site::new(185, 4, 2, 0);
    let agents = [Agent::new(&site, 0), Agent::new(&site, 1)];
    agents.iter().for_each(|agent| drop(agent.attach(&["--peers"])));
    let end = Instant::now() + Duration::from_secs(30);
    while site
        .home
        .json(&["discover", "--seconds", "1", "--no-exports"])
        .as_array()
        .unwrap()
        .iter()
        .all(|found| found["service"] != "peer")
    {
        if Instant::now() > end {
            return tool::skip("peers", "no multicast here");
        }
    }
    for agent in &agents {
        agent.until("with a peer", |status| status["peers"]["there"] == 1);
    }
}

/// Prints what eight boots at the same moment move over a shared link of 100 Mb/s, with everybody well, and with one
/// killed and one that lies; to be run alone (`cargo test --test peers -- --ignored --nocapture`).
#[test]
#[ignore = "a measurement, of minutes"]
fn eight_agents_boot_over_one_uplink() {
    let site = Site::new(184, 48, 17, 12_500_000);
    let began = Instant::now();
    let one = alone(&site, 16);
    println!("one boot alone: {one} bytes, {:.1} s", began.elapsed().as_secs_f64());
    let agents = lan(&site, 8, &[]);
    let began = Instant::now();
    let eight = boot(&site, &agents, || {});
    let ratio = eight as f64 / one as f64;
    println!(
        "eight at a time: {eight} bytes, {ratio:.2} of one, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    drop(agents);
    let (liar, at, _runtime) = site.bad_peer(Manner::Lying);
    let agents: Vec<_> = (8..16).map(|number| Agent::new(&site, number)).collect();
    for agent in &agents {
        let peers = agents.iter().map(|other| other.address).filter(|at| *at != agent.address);
        agent.join(&peers.chain([at]).collect::<Vec<_>>());
    }
    agents
        .iter()
        .for_each(|agent| drop(agent.until("there", |status| status["peers"]["there"] == 8)));
    let (victim, others) = agents.split_first().unwrap();
    let began = Instant::now();
    let seven = boot(&site, others, || victim.machine.kill());
    let bad = seven as f64 / one as f64;
    println!(
        "seven, one killed, one lying ({} lies): {seven} bytes, {bad:.2} of one, {:.1} s",
        liar.asked(),
        began.elapsed().as_secs_f64()
    );
    assert!(ratio <= 1.2, "{ratio}");
}

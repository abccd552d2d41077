//! Disks by vhost-user: libblkio's client, and QEMU of both ages with a guest that counts.
//! `VHOST_USER_KILLS` is how often the server is killed under that guest (4 unless it is set); after every
//! fourth time it hands over.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a guest runs in real time")]

use rustix::process::{Pid, Signal, kill_process};
use sojourn_tests::{
    Client, CountingMachine, Home, Server, VirtioDisk, attached::until, clients, content, require,
};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE: usize = 8 << 20;

/// A home with an image, a disk of it, and a directory for sockets.
fn home() -> (Home, Vec<u8>) {
    let home = Home::new();
    let bytes = content::random(5, SIZE);
    home.import("base", &bytes);
    home.disk("alice", "base");
    (home, bytes)
}

fn sockets(home: &Home) -> PathBuf {
    home.path("vu")
}

fn serve(home: &Home) -> Server {
    home.serve_with(&["--vhost-user", sockets(home).to_str().unwrap()])
}

fn connect(home: &Home, disk: &str) -> VirtioDisk {
    // A server that was killed leaves its sockets.
    let socket = sockets(home).join(disk);
    until("somebody listens", || UnixStream::connect(&socket).is_ok());
    VirtioDisk::connect(&socket).unwrap()
}

#[test]
fn what_a_guest_writes_is_what_nbd_clients_read() {
    let (home, mut bytes) = home();
    let server = serve(&home);
    {
        let mut disk = connect(&home, "alice");
        assert_eq!(disk.capacity(), SIZE as u64);
        assert!(disk.read(0, 1 << 20) == bytes[..1 << 20], "the image, read in one go");
        for (i, at) in [(1, 0), (2, 4096 - 512), (3, 1 << 20), (4, SIZE - 512)] {
            let len = (i * 1536).min(SIZE - at);
            let data = content::random(i as u64, len);
            assert_eq!(disk.write(at as u64, &data), 0);
            bytes[at..at + len].copy_from_slice(&data);
            assert!(disk.read(at as u64, len) == data);
        }
        let long = content::random(9, 3 << 20);
        assert_eq!(disk.write(2 << 20, &long), 0);
        bytes[2 << 20..5 << 20].copy_from_slice(&long);
        assert_eq!(disk.zero(3 << 20, 65_536, false), 0);
        assert_eq!(disk.zero((3 << 20) + 65_536 + 512, 1024, true), 0);
        bytes[3 << 20..(3 << 20) + 65_536].fill(0);
        bytes[(3 << 20) + 66_048..(3 << 20) + 67_072].fill(0);
        assert_eq!(disk.flush(), 0);
        assert_eq!(disk.discard(6 << 20, 1 << 20), 0);
        let discarded = disk.read(6 << 20, 1 << 20);
        let old = &bytes[6 << 20..7 << 20];
        assert!(discarded.iter().zip(old).all(|(now, old)| *now == 0 || now == old));
        bytes[6 << 20..7 << 20].copy_from_slice(&discarded);
        let status = home.json(&["status"]);
        let counted = &status["vhost_user"];
        assert_eq!((&counted["connections"], &counted["virtqueues"]), (&1.into(), &1.into()));
        assert!(counted["written_bytes"].as_u64().unwrap() > 3 << 20, "{counted}");
    }
    until("the disk is free", || home.json(&["status"])["vhost_user"]["connections"] == 0);
    let mut client = Client::attach(server.socket(), "alice");
    content::assert_same("by NBD", &client.read(0, SIZE), &bytes);
    client.detach();
    server.kill();
    // What was answered outlives the kill.
    let server = serve(&home);
    let mut disk = connect(&home, "alice");
    let read: Vec<u8> = (0..8).flat_map(|mib| disk.read(mib << 20, 1 << 20)).collect();
    content::assert_same("after a kill", &read, &bytes);
    drop(disk);
    server.stop();
}

#[test]
fn sockets_come_and_go_with_the_disks() {
    let (home, _) = home();
    let server = serve(&home);
    home.disk("bob", "base");
    let bob = sockets(&home).join("bob");
    until("a socket for a new disk", || UnixStream::connect(&bob).is_ok());
    let mut disk = connect(&home, "bob");
    assert_eq!(disk.write(0, &[7; 4096]), 0);
    // Somebody has it.
    assert!(VirtioDisk::connect(&sockets(&home).join("bob")).is_ok(), "the same process");
    let other = "import socket, sys\n\
                 s = socket.socket(socket.AF_UNIX)\n\
                 s.settimeout(60)\n\
                 s.connect(sys.argv[1])\n\
                 s.sendall(bytes([1,0,0,0, 1,0,0,0, 0,0,0,0]))\n\
                 try: print(len(s.recv(64)))\n\
                 except ConnectionError: print(0)";
    let other = Command::new("python3").args(["-c", other]).arg(&bob).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&other.stdout), "0\n", "another one is not served");
    drop(disk);
    until("the disk is free", || home.json(&["status"])["vhost_user"]["connections"] == 0);
    home.run(&["disk", "remove", "bob"]);
    until("no socket without a disk", || !bob.exists());
    let dir = sockets(&home);
    server.stop();
    assert!(std::fs::read_dir(dir).unwrap().next().is_none(), "sockets left behind");
}

#[test]
fn a_drain_waits_for_virtual_machines() {
    let (home, _) = home();
    let server = serve(&home);
    let mut disk = connect(&home, "alice");
    let drain = home.command().arg("drain").stdout(Stdio::piped()).spawn().unwrap();
    let socket = sockets(&home).join("alice");
    until("no new machines", || !socket.exists());
    assert_eq!((disk.write(0, &[7; 4096]), disk.flush()), (0, 0));
    assert_eq!(home.json(&["status"])["vhost_user"]["connections"], 1);
    drop(disk);
    let drain = drain.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&drain.stdout).contains("1 connections"), "{drain:?}");
    server.ended();
}

#[test]
fn a_command_finds_a_socket_for_its_machine() {
    clients::each(|| {
        require!("qemu-io");
        let (home, bytes) = home();
        let (told, done) = (home.path("told"), home.path("done"));
        let script = format!(
            "printf %s \"$socket\" > '{told}.new'; mv '{told}.new' '{told}'; \
         while [ ! -e '{done}' ]; do sleep 0.05; done; exit 7",
            told = told.display(),
            done = done.display()
        );
        let mut server =
            home.command().args(["serve", "--export", "alice", "--run", &script]).spawn().unwrap();
        until("the command runs", || told.exists());
        let socket = PathBuf::from(std::fs::read_to_string(told).unwrap());
        let mut disk = VirtioDisk::connect(&socket).unwrap();
        assert!(disk.read(0, 1 << 20) == bytes[..1 << 20]);
        assert_eq!((disk.write(0, &[7; 4096]), disk.flush()), (0, 0));
        drop(disk);
        std::fs::write(done, "").unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(7));
        assert!(!socket.exists());
        let by_nbd = "qemu-io -f raw -c 'read -P 7 0 4096' \"$uri\"";
        home.run(&["serve", "--export", "alice", "--run", by_nbd]);
        assert_eq!(home.run(&["serve", "--run", "echo ${socket-none}"]), "none\n", "no export");
    });
}

#[test]
fn an_access_rule_for_reading_makes_a_disk_read_only() {
    let (home, bytes) = home();
    let uid = rustix::process::getuid().as_raw();
    let config = home.home().join("sojourn.toml");
    let rules = format!("access = [{{ uid = {uid}, read = [\"alice\"] }}]\n");
    let text = rules + &std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text).unwrap();
    home.disk("bob", "base");
    let server = serve(&home);
    let alice = sockets(&home).join("alice");
    // Its file is there a moment before.
    until("somebody listens", || UnixStream::connect(&alice).is_ok());
    let refused = VirtioDisk::connect(&alice).err();
    assert_eq!(refused.as_deref(), Some("Device is read-only"), "as the device says");
    let mut disk = VirtioDisk::connect_to_read(&alice).unwrap();
    assert_ne!(disk.write(0, &[7; 512]), 0);
    assert!(disk.read(0, 4096) == bytes[..4096]);
    assert!(disk.read(4096, 4096) == bytes[4096..8192]);
    assert!(VirtioDisk::connect(&sockets(&home).join("bob")).is_err(), "no right at all");
    drop(disk);
    server.stop();
}

/// QEMU with the guest that counts. It is killed when this is dropped.
struct Guest {
    qemu: Child,
    console: PathBuf,
}

impl Guest {
    fn boot(home: &Home, disk: &str) -> Self {
        let console = home.path("console");
        let _ = std::fs::remove_file(&console);
        let socket = sockets(home).join(disk);
        let qemu = Command::new(clients::current().program("qemu-system-x86_64"))
            .args(["-M", "pc,memory-backend=mem", "-accel", "tcg", "-m", "32M", "-nodefaults"])
            .args(["-object", "memory-backend-memfd,id=mem,size=32M,share=on", "-display", "none"])
            .args(["-chardev", &format!("socket,id=vu,path={},reconnect=1", socket.display())])
            .args(["-device", "vhost-user-blk-pci,chardev=vu,bootindex=1"])
            .args(["-serial", &format!("file:{}", console.display())])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { qemu, console }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    fn count(&self) -> u32 {
        sojourn_tests::counting::numbers(&self.said()).last()
    }

    /// Waits until it has counted on.
    fn counts_on(&self, by: u32) {
        let from = self.count();
        until("the guest counts on", || self.count() >= from + by);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

#[test]
fn a_guest_counts_on_through_kills_and_a_hand_over() {
    require!("qemu-system-x86_64");
    let kills: u32 = std::env::var("VHOST_USER_KILLS").map_or(4, |text| text.parse().unwrap());
    clients::each(|| {
        let home = Home::new();
        CountingMachine::image(&home);
        home.disk("alice", "counter");
        let mut server = serve(&home);
        let mut guest = Guest::boot(&home, "alice");
        guest.counts_on(3);
        for kill in 1..=kills {
            server.kill();
            server = serve(&home);
            // At another moment each time, of what the guest does and of what QEMU does to connect again.
            guest.counts_on(kill % 3);
            std::thread::sleep(Duration::from_millis(u64::from(kill * 37 % 100)));
            if kill % 4 == 0 {
                let dir = sockets(&home);
                let successor =
                    home.serve_with(&["--take-over", "--vhost-user", dir.to_str().unwrap()]);
                guest.counts_on(3);
                drop(std::mem::replace(&mut server, successor));
            }
            assert!(guest.qemu.try_wait().unwrap().is_none(), "QEMU has ended");
        }
        guest.counts_on(3);
        // Once it is stopped, the disk has what it said last, or the number that it was about to say.
        kill_process(Pid::from_child(&guest.qemu), Signal::STOP).unwrap();
        let last = guest.count();
        sojourn_tests::counting::numbers(&guest.said()).assert_whole();
        drop(guest);
        until("the disk is free", || home.json(&["status"])["vhost_user"]["connections"] == 0);
        let mut client = Client::attach(server.socket(), "alice");
        let sector = client.read(512, 512);
        let on_disk = u32::from_le_bytes(sector[..4].try_into().unwrap());
        assert!((last..=last + 1).contains(&on_disk), "{last} said, {on_disk} on the disk");
        client.detach();
        server.stop();
    });
}

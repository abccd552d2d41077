//! Borrowed disks over NBD, with clients and file-system tools that nobody here wrote.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use serde_json::Value;
use sojourn_tests::client::{Client, READ, header};
use sojourn_tests::{Home, clients, require, tool::shell};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Makes `disk`, an ext4 of 256 MiB with files of which half were deleted, and `sums` of the others.
const OWNER: &str = r#"
mkdir files
for i in $(seq 300); do
    head -c $((RANDOM * 37 % 900000 + 1000)) /dev/urandom > files/f$i
done
truncate -s 256M disk
mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 -d files disk
for i in $(seq 1 2 300); do echo "rm f$i"; rm files/f$i; done > script
debugfs -w -f script disk > log 2>&1
e2fsck -fy disk >> log 2>&1 || [ $? = 1 ]
e2fsck -fn disk >> log 2>&1
(cd files && sha256sum *) > sums
rm -r files
"#;

/// Fails unless the owner's file system is clean and its files are what they were.
const CHECK: &str = r#"
e2fsck -fn disk > log 2>&1 || { cat log; exit 1; }
mkdir out
while read -r _ name; do echo "dump $name out/$name"; done < sums > script
debugfs -f script disk > log 2>&1
(cd out && sha256sum --quiet -c ../sums)
rm -r out
"#;

/// An owner's disk, and what `size` bytes of it would be.
struct Owner {
    home: Home,
    lent: Vec<(u64, u64)>,
    before: Vec<u8>,
}

impl Owner {
    fn new(size: u64) -> Self {
        let home = Home::new();
        shell(home.dir(), &[], OWNER);
        let report =
            home.json(&["borrow", "scan", "--extents", "--size", &size.to_string(), "disk"]);
        let ranges = &report["disks"][0]["parts"][0]["ranges"];
        let lent =
            serde_json::from_value(ranges.clone()).unwrap_or_else(|e| panic!("{e}: {report}"));
        let before = std::fs::read(home.path("disk")).unwrap();
        Self { home, lent, before }
    }

    /// Fails when a byte that is not lent has changed; gives how many lent blocks have.
    fn check(&self) -> usize {
        let now = std::fs::read(self.home.path("disk")).unwrap();
        assert_eq!(now.len(), self.before.len());
        let mut changed = 0;
        for at in (0..now.len()).step_by(4096) {
            let block = at..at + 4096;
            if now[block.clone()] != self.before[block] {
                let inside =
                    |(start, len): &(u64, u64)| (*start..start + len).contains(&(at as u64));
                assert!(self.lent.iter().any(inside), "the block at {at} is not lent");
                changed += 1;
            }
        }
        shell(self.home.dir(), &[], CHECK);
        changed
    }

    /// Starts `borrow up`; it is up when this returns, and ends with `borrow down`.
    fn up(&self, args: &[&str]) -> Borrowed<'_> {
        let log = std::fs::File::create(self.home.path("up.log")).unwrap();
        let mut command = self.home.command();
        command.args(["borrow", "up"]).args(args).stdout(log.try_clone().unwrap()).stderr(log);
        let mut child = command.spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while self.status().is_none() {
            let log = || std::fs::read_to_string(self.home.path("up.log")).unwrap();
            assert!(child.try_wait().unwrap().is_none(), "it ended\n{}", log());
            assert!(Instant::now() < end, "it does not come up\n{}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Borrowed { child, home: &self.home }
    }

    fn status(&self) -> Option<Value> {
        self.home.json(&["borrow", "status"]).as_array().unwrap().first().cloned()
    }
}

struct Borrowed<'a> {
    child: std::process::Child,
    home: &'a Home,
}

impl Borrowed<'_> {
    fn down(mut self, args: &[&str]) -> Value {
        let view = self.home.json(&[&["borrow", "down"], args].concat());
        assert!(self.child.wait().unwrap().success());
        for check in view["checked"].as_array().unwrap() {
            assert_eq!(check["good"], true, "{view}");
        }
        view
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn fio_verifies_a_borrowed_disk_and_the_owner_finds_all_as_it_was() {
    require!("fio", "mke2fs", "debugfs");
    let owner = Owner::new(120 << 20);
    assert!(owner.lent.len() > 3, "{:?}", owner.lent);
    let borrowed = owner.up(&["disk", "--size", "120M"]);
    let status = owner.status().unwrap();
    let uri = status["address"].as_str().unwrap();
    let fio = r#"for job in "--rw=randwrite --bsrange=4k-64k --size=96m" "--rw=randwrite --bs=512 --size=1m" \
        "--rw=write --bs=128k --size=96m" "--rw=randtrimwrite --bs=64k --size=32m --iodepth=1"; do
        fio --output=fio.txt --ioengine=nbd --uri="$U" --thread --verify_fatal=1 --name=job --iodepth=16 \
            --verify=crc32c $job || { cat fio.txt; exit 1; }
    done"#;
    shell(owner.home.dir(), &[("U", uri)], fio);
    let written = owner.status().unwrap()["written"].as_u64().unwrap();
    assert!(written > 32 << 20, "{written}");
    borrowed.down(&[]);
    assert!(owner.check() > 5000, "the lent blocks were used");
    // Given back: what was lent is a hole, and nothing else is.
    let borrowed = owner.up(&["disk", "--size", "120M"]);
    let view = borrowed.down(&["--discard"]);
    assert_eq!(view["discarded"], 120 << 20);
    owner.check();
    let file = std::fs::File::open(owner.home.path("disk")).unwrap();
    for (start, len) in &owner.lent {
        let mut bytes = vec![1; *len as usize];
        file.read_exact_at(&mut bytes, *start).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_killed_borrower_leaves_nothing_to_clean_up() {
    clients::each(|| {
        require!("nbdcopy", "mke2fs", "debugfs");
        let owner = Owner::new(32 << 20);
        let mut borrowed = owner.up(&["disk", "--size", "32M"]);
        let second = owner.home.fails(4, &["borrow", "up", "disk", "--size", "1M"]);
        assert!(second.contains("in use by process"), "{second}");
        let held =
            owner.home.fails(4, &["borrow", "up", "disk", "--size", "1M", "--name", "other"]);
        assert!(held.contains("in-use"), "{held}");
        let uri = owner.status().unwrap()["address"].as_str().unwrap().to_owned();
        let write = r#"head -c 33554432 < <(yes secret) > data; nbdcopy data "$U""#;
        shell(owner.home.dir(), &[("U", &uri)], write);
        borrowed.child.kill().unwrap();
        borrowed.child.wait().unwrap();
        assert!(owner.status().is_none());
        assert!(owner.check() > 4000);
        let bytes = std::fs::read(owner.home.path("disk")).unwrap();
        assert!(!bytes.windows(14).any(|w| w == b"secret\nsecret\n"), "plain text is left");
        let again = owner.up(&["disk", "--size", "32M"]);
        shell(
            owner.home.dir(),
            &[("U", &uri)],
            r#"nbdcopy "$U" - | tr -d '\0' | wc -c | grep -qx 0"#,
        );
        again.down(&[]);
    });
}

#[test]
fn an_image_that_its_owner_changes_while_it_lends_is_neither_written_nor_discarded() {
    clients::each(|| {
        require!("mke2fs", "debugfs", "qemu-io");
        let owner = Owner::new(64 << 20);
        let home = &owner.home;
        let mut up = owner.up(&["disk", "--size", "all", "--at-least", "32M"]);
        let status = owner.status().unwrap();
        assert!(status["size"].as_u64().unwrap() > 64 << 20, "{status}");
        // As a mount does: without asking for a lock.
        let change =
            r#"head -c 60M /dev/urandom > new; debugfs -w -R "write new new" disk > log 2>&1"#;
        shell(home.dir(), &[], change);
        let write =
            r#"! qemu-io -f raw -c 'write -P 7 0 64k' "$U" > log 2>&1 || grep -i error log"#;
        shell(home.dir(), &[("U", status["address"].as_str().unwrap())], write);
        let error = home.fails(7, &["borrow", "down", "--discard"]);
        assert!(error.contains("not as it was"), "{error}");
        assert_eq!(up.child.wait().unwrap().code(), Some(7));
        shell(home.dir(), &[], r#"debugfs -R "dump new back" disk > log 2>&1; cmp new back"#);
        let error = home.fails(2, &["borrow", "up", "disk", "--size", "1M", "--at-least", "2M"]);
        assert!(error.contains("--at-least"), "{error}");
    });
}

#[test]
fn what_was_found_in_use_is_not_discarded_though_it_looks_as_before_at_the_end() {
    require!("mke2fs", "debugfs");
    let owner = Owner::new(16 << 20);
    let home = &owner.home;
    let mut up = owner.up(&["disk", "--size", "16M"]);
    let mut client = Client::attach(&home.home().join("borrow/borrowed.nbd"), "borrowed");
    assert_eq!(client.write(0, &[7; 1 << 20]), 0);
    // As a mount marks it, until the next look.
    let file = std::fs::OpenOptions::new().write(true).open(home.path("disk")).unwrap();
    file.write_all_at(&[0], 1024 + 0x3a).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while client.write(0, &[8; 4096]) == 0 {
        assert!(Instant::now() < end, "it goes on writing");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_ne!(client.flush(), 0, "what it wrote is not flushed any more");
    client.detach();
    file.write_all_at(&[1], 1024 + 0x3a).unwrap();
    let before = std::fs::read(home.path("disk")).unwrap();
    let error = home.fails(7, &["borrow", "down", "--discard"]);
    assert!(error.contains("not as it was"), "{error}");
    assert_eq!(up.child.wait().unwrap().code(), Some(7));
    assert!(std::fs::read(home.path("disk")).unwrap() == before, "it was discarded");
}

#[test]
fn state_comes_with_the_disk_and_only_what_changed_goes_back() {
    clients::each(|| {
        require!("nbdcopy", "mke2fs", "debugfs", "qemu-io");
        let owner = Owner::new(16 << 20);
        shell(owner.home.dir(), &[], "head -c 16M /dev/urandom > state; cp state old");
        for (options, written) in [(&["--no-write-back"][..], false), (&["--prefetch"][..], true)] {
            let up = owner.up(&[&["disk", "--state", "state"], options].concat());
            let uri = owner.status().unwrap()["address"].as_str().unwrap().to_owned();
            let change = r#"nbdcopy "$U" now && cmp now old
            qemu-io -f raw -c 'write -P 7 8k 8k' -c 'write -P 9 1000001 3' "$U" > log"#;
            shell(owner.home.dir(), &[("U", &uri)], change);
            let view = up.down(&[]);
            assert_eq!(view["written_back"], if written { 3 * 4096 } else { 0 }, "{view}");
            let cmp = r#"printf '\11\11\11' | dd of=old bs=1 seek=1000001 conv=notrunc 2>/dev/null
            head -c 8192 /dev/zero | tr '\0' '\7' | dd of=old bs=4096 seek=2 conv=notrunc 2>/dev/null; cmp state old"#;
            shell(owner.home.dir(), &[], if written { cmp } else { "cmp state old" });
        }
        owner.check();
    });
}

#[test]
fn a_client_that_does_not_read_its_answers_costs_no_state() {
    require!("mke2fs", "debugfs");
    let owner = Owner::new(16 << 20);
    let home = &owner.home;
    shell(home.dir(), &[], "head -c 16M /dev/urandom > state; cp state old");
    let mut up = owner.up(&["disk", "--state", "state"]);
    let socket = home.home().join("borrow/borrowed.nbd");
    let mut stuck = Client::attach(&socket, "borrowed");
    assert_eq!(stuck.write(8192, &[7; 8192]), 0);
    assert_eq!(stuck.flush(), 0);
    let storm: Vec<u8> = (0..64).flat_map(|cookie| header(READ, cookie, 0, 1 << 20)).collect();
    stuck.send(&storm);
    let mut down = home.command();
    down.args(["--json", "borrow", "down"]).stdout(std::process::Stdio::piped());
    let mut down = down.spawn().unwrap();
    // The sessions end now; nothing of this is kept from who asks how it is.
    while std::os::unix::net::UnixStream::connect(&socket).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = owner.status();
    assert!(status.is_some() || down.try_wait().unwrap().is_some(), "status says nothing");
    let down = down.wait_with_output().unwrap();
    let log = std::fs::read_to_string(home.path("up.log")).unwrap();
    assert!(down.status.success(), "{down:?}\n{log}");
    let view: Value = serde_json::from_slice(&down.stdout).unwrap();
    assert_eq!(view["written_back"], 8192, "{view}");
    assert!(up.child.wait().unwrap().success());
    assert!(log.contains("did not end in time"), "this shows nothing: {log}");
    let cmp = r#"head -c 8192 /dev/zero | tr '\0' '\7' | dd of=old bs=4096 seek=2 conv=notrunc 2>/dev/null
        cmp state old"#;
    shell(home.dir(), &[], cmp);
    owner.check();
}

#[test]
fn state_that_cannot_go_back_after_a_command_keeps_the_disk_up() {
    require!("mke2fs", "debugfs", "qemu-io", "nbdkit");
    let owner = Owner::new(16 << 20);
    let home = &owner.home;
    shell(home.dir(), &[], "head -c 16M /dev/urandom > state; cp state old");
    // It fails to write while there is a file `bad`.
    let socket = home.path("state.sock");
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.current_dir(home.dir()).args(["-f", "--exit-with-parent", "-U"]).arg(&socket);
    nbdkit.args(["--filter=error", "file", "state", "error-pwrite-rate=1"]);
    nbdkit.arg(format!("error-pwrite-file={}", home.path("bad").display()));
    let mut nbdkit = nbdkit.spawn().unwrap();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(nbdkit.try_wait().unwrap().is_none(), "nbdkit has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let state = format!("nbd+unix:///?socket={}", socket.display());
    let script = "qemu-io -f raw -c 'write -P 7 8k 8k' -c flush $uri > io.log && touch bad";
    let up = owner.up(&["disk", "--state", &state, "--run", script]);
    shell(home.dir(), &[], "cmp state old");
    let down = home.fails(6, &["borrow", "down"]);
    assert!(down.contains("stays up"), "{down}");
    std::fs::remove_file(home.path("bad")).unwrap();
    assert_eq!(up.down(&[])["written_back"], 8192);
    let cmp = r#"head -c 8192 /dev/zero | tr '\0' '\7' | dd of=old bs=4096 seek=2 conv=notrunc 2>/dev/null
        cmp state old"#;
    shell(home.dir(), &[], cmp);
    nbdkit.kill().unwrap();
    nbdkit.wait().unwrap();
    owner.check();
}

#[test]
fn a_running_host_lends_a_file_without_a_name() {
    clients::each(|| {
        require!("nbdcopy");
        let home = Home::new();
        let refused =
            home.fails(8, &["borrow", "up", "--live", ".", "--size", "16M", "--floor", "1000T"]);
        assert!(refused.contains("floor"), "{refused}");
        shell(home.dir(), &[], "head -c 8M /dev/urandom > state");
        let persistent = ["borrow", "up", "--live", ".", "--floor", "1M", "--state", "state"];
        let refused = home.fails(9, &persistent);
        assert!(refused.contains("--owner-agrees"), "{refused}");
        let script =
            r#"nbdcopy state "$uri" && nbdcopy "$uri" back && cmp -n 8388608 state back; ls"#;
        let args =
            ["borrow", "up", "--live", ".", "--floor", "1M", "--size", "8M", "--run", script];
        let listed = home.run(&args);
        let names: Vec<&str> = listed.split_whitespace().collect();
        assert_eq!(names, ["back", "home", "state"], "{listed}");
    });
}

#[test]
fn ephemeral_disks_keep_what_is_written_on_borrowed_blocks_and_nothing_at_home() {
    clients::each(|| {
        require!("fio", "qemu-io", "mke2fs", "debugfs");
        let owner = Owner::new(64 << 20);
        let home = &owner.home;
        shell(home.dir(), &[], "head -c 32M /dev/urandom > golden");
        home.run(&["image", "import", "golden", "golden"]);
        home.run(&["disk", "create", "kiosk", "--from", "golden", "--ephemeral"]);
        home.disk("alice", "golden");
        let options = ["--shadow", "borrowed", "--borrow", "disk", "--borrow-size", "64M"];
        let refused = home.fails(2, &["serve", "--borrow", "disk", "--borrow-size", "1M"]);
        assert!(refused.contains("--shadow borrowed"), "{refused}");
        let mut server = home.serve_with(&options);
        assert!(server.log().contains("it is gone when this server ends"), "{}", server.log());
        let (kiosk, alice) = (server.uri("kiosk"), server.uri("alice"));
        let held = home.fails(4, &["borrow", "up", "disk", "--size", "1M"]);
        assert!(held.contains("in-use"), "{held}");
        // Each client leaves: the next one finds the image, and the room of the one before.
        for _ in 0..3 {
            let use_ = r#"nbdcopy "$U" now && cmp now golden
            qemu-io -f raw -c 'write -P 7 0 30M' -c 'read -P 7 0 30M' -c 'write -P 8 31M 512' -c flush "$U" > log
            ! grep -i -e error -e fail log"#;
            shell(home.dir(), &[("U", &kiosk)], use_);
        }
        let error = home.fails(9, &["disk", "snapshot", "kiosk", "s"]);
        assert!(error.contains("keeps nothing"), "{error}");
        shell(home.dir(), &[("U", &alice)], r#"qemu-io -f raw -c 'write -P 7 0 1M' "$U" > log"#);
        home.run(&["disk", "snapshot", "alice", "s"]);
        let files = "home/disks/kiosk/0001.data";
        assert_eq!(std::fs::metadata(home.path(files)).unwrap().len(), 0, "nothing at home");
        // It leaves without a goodbye, and is waited for.
        let fio = r#"fio --output=fio.txt --ioengine=nbd --uri="$U" --thread --verify_fatal=1 --name=job \
        --iodepth=16 --verify=crc32c --rw=randwrite --bsrange=4k-64k --size=24m || { cat fio.txt; exit 1; }"#;
        shell(home.dir(), &[("U", &kiosk)], fio);
        server.assert_alive();
        server.stop();
        assert!(owner.check() > 5000, "the lent blocks were used");
        let bytes = std::fs::read(home.path("disk")).unwrap();
        assert!(!bytes.windows(4096).any(|w| w.iter().all(|b| *b == 7)), "plain text is left");
        let server = home.serve_with(&options);
        shell(home.dir(), &[("U", &alice)], r#"qemu-io -f raw -c 'read -P 7 0 1M' "$U" > log"#);
        let gone = r#"! nbdcopy "$U" now"#;
        shell(home.dir(), &[("U", &kiosk)], gone);
        assert!(server.log().contains("is gone with the server"), "{}", server.log());
        server.kill();
        owner.check();
    });
}

#[test]
fn what_cannot_be_borrowed_is_refused_with_its_reason() {
    require!("mke2fs");
    let home = Home::new();
    shell(home.dir(), &[], "truncate -s 64M disk && mke2fs -q -F -t ext4 disk && cp disk small");
    for (options, remedy) in [
        (&["--swap", "1M"][..], "--as dm"),
        (&["--mkfs", "ext4"][..], "--as dm"),
        (&["--as", "dm", "--mount", "/mnt"][..], "--mkfs"),
        (&["--as", "dm", "--run", "true"][..], "--as nbd"),
    ] {
        let args = [&["borrow", "up", "disk", "--size", "4M"], options].concat();
        let error = home.fails(2, &args);
        assert!(error.contains(remedy), "{args:?}: {error}");
    }
    let up = |disk: &str, size: &str| home.fails(8, &["borrow", "up", disk, "--size", size]);
    let error = up("small", "1G");
    assert!(error.contains("can be borrowed; ask for less"), "{error}");
    let all = ["borrow", "up", "small", "--size", "all", "--run", "true", "--at-least"];
    let error = home.fails(8, &[&all[..], &["1G"]].concat());
    assert!(error.contains("1 GiB are wanted"), "{error}");
    home.run(&[&all[..], &["16M"]].concat());
    // The superblock's state: errors.
    let file = std::fs::OpenOptions::new().write(true).open(home.path("disk")).unwrap();
    file.write_all_at(&[2], 1024 + 0x3a).unwrap();
    let before = std::fs::read(home.path("disk")).unwrap();
    let error = home.fails(9, &["borrow", "up", "disk", "--size", "1M"]);
    assert!(error.contains("lends nothing"), "{error}");
    assert!(std::fs::read(home.path("disk")).unwrap() == before);
    assert!(home.fails(3, &["borrow", "down"]).contains("no borrowed disk"));
}

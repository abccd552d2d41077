//! Disks of a distant server, used on this machine through its gateway: killed at any instant, with the
//! link cut, with media that are right, stale and damaged, taken by another machine, and carried from one
//! machine to the next.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "processes are killed in real time")]

use sojourn_tests::attached::{Lab, MIB, Machine, PATIENCE, read_all, write};
use sojourn_tests::tool::sojourn;
use sojourn_tests::{Client, clients, content, require};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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
    clients::each(|| {
        require!("nbdcopy", "qemu-io", "qemu-img");
        let lab = Lab::new(82);
        let here = lab.machine();
        let copy = here.dir.path().join("copy.raw");
        let script =
            format!("nbdcopy $uri {} && test -S $unixsocket && echo $exportname", copy.display());
        assert_eq!(here.run(&here.attaching(&["--run", &script])), "alice\n");
        content::assert_same("copied", &std::fs::read(&copy).unwrap(), &lab.image);
        here.run(&[
            "attach",
            "alice",
            "--run",
            "qemu-io -f raw -c 'write -P 7 1M 64k' -c flush $uri",
        ]);
        here.kill();
        here.run(&["attach", "alice", "--run", "qemu-io -f raw -c 'read -P 7 1M 64k' $uri"]);
        here.fails(3, &["attach", "alice", "--run", "exit 3"]);
    });
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
    assert!(with < without / 2, "{with} bytes came over the link, {without} without the key");
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
fn with_everything_on_the_key_little_but_names_comes_over_the_link() {
    let lab = Lab::new(92);
    let key = lab.medium("key");
    let key = key.to_str().unwrap();
    let read = |machine: &Machine, more: &[&str]| {
        let before = lab.link.down() + lab.link.up();
        let mut client = Client::attach(&machine.attach(more), "alice");
        content::assert_same("attached", &read_all(&mut client), &lab.image);
        client.detach();
        lab.link.down() + lab.link.up() - before
    };
    let plain = lab.machine();
    let without = read(&plain, &[]);
    plain.run(&["detach", "alice"]);
    let here = lab.machine();
    let moved = read(&here, &["--source", key]);
    // A busy machine may read something from the key too slowly, and ask over the link as well.
    assert!(moved < without / 2, "{moved} bytes came over the link, {without} without the key");
    // The maps that the key gave are kept, and so is what is hoarded from it: then both may go.
    here.run(&["attach", "hoard", "alice"]);
    std::fs::rename(key, lab.home.path("elsewhere")).unwrap();
    lab.link.cut();
    here.kill();
    content::assert_same("without both", &read_all(&mut here.client()), &lab.image);
}

#[test]
fn a_key_that_is_plugged_in_and_named_again_is_asked_at_once() {
    let lab = Lab::new(93);
    let (key, away) = (lab.medium("key"), lab.home.path("away"));
    let here = lab.machine();
    let source = ["--source", key.to_str().unwrap()];
    let socket = here.attach(&source);
    std::fs::rename(&key, &away).unwrap();
    let mut client = Client::attach(&socket, "alice");
    let before = lab.link.down();
    let half = MIB << 19;
    for at in (0..half).step_by(1 << 16) {
        let read = client.read(at as u64, 1 << 16);
        content::assert_same("unplugged", &read, &lab.image[at..at + (1 << 16)]);
    }
    let without = lab.link.down() - before;
    let told = || here.json(&["attach", "status"])[0]["sources"][0].clone();
    assert!(told()["rests"].as_u64() > Some(0), "{}", told());
    std::fs::rename(&away, &key).unwrap();
    here.attach(&source);
    assert_eq!(told()["state"], "ready");
    let before = lab.link.down();
    for at in (half..MIB << 20).step_by(1 << 16) {
        let read = client.read(at as u64, 1 << 16);
        content::assert_same("plugged in", &read, &lab.image[at..at + (1 << 16)]);
    }
    let moved = lab.link.down() - before;
    assert!(moved < without / 2, "{moved} bytes came over the link, {without} without the key");
}

#[test]
fn a_share_that_is_not_mounted_is_a_store_that_is_away_and_not_an_empty_one() {
    let mut lab = Lab::new(94);
    lab.serving.take().unwrap().stop();
    let store = lab.home.home().join("store");
    let mut here = lab.machine();
    here.from = store.display().to_string();
    let empty = lab.home.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let gone = lab.home.path("gone");
    for from in [&empty, &gone] {
        let refused = here.fails(3, &["attach", "alice", "--from", from.to_str().unwrap()]);
        assert!(refused.contains("is it mounted?"), "{refused}");
    }
    // A key file that is not there is no share that is not mounted, and is not remembered.
    for _ in 0..2 {
        let refused = here.fails(3, &here.attaching(&["--key-file", "typo"]));
        assert!(refused.contains("there is no key file"), "{refused}");
        assert!(!refused.contains("mounted"), "{refused}");
    }
    let mut expected = lab.image.clone();
    here.attach(&[]);
    here.hurry();
    let mut client = here.client();
    content::assert_same("attached", &read_all(&mut client), &expected);
    let away = lab.home.path("away");
    std::fs::rename(&store, &away).unwrap();
    std::fs::create_dir(&store).unwrap();
    write(&mut client, &mut expected, 1 << 20, &content::random(7, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    here.until("offline", |status| status["upload"]["state"] == "offline");
    // Not even a restart takes it for empty.
    here.kill();
    content::assert_same("unmounted", &read_all(&mut here.client()), &expected);
    assert_eq!(std::fs::read_dir(&store).unwrap().count(), 0, "written below the mount point");
    // Nor when not even the mount point is there, as below an automounter.
    here.kill();
    std::fs::remove_dir(&store).unwrap();
    content::assert_same("gone", &read_all(&mut here.client()), &expected);
    std::fs::rename(&away, &store).unwrap();
    here.run(&["attach", "sync", "alice"]);
    here.run(&["detach", "alice"]);
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
fn nobody_waits_for_a_disk_that_was_taken_and_cannot_be_kept() {
    let rule = "{ certificate = \"alice\", write = [\"alice\"], read = [\"golden:*\"] }";
    let lab = Lab::under(sojourn_tests::Home::new(), 91, rule);
    let here = lab.machine();
    here.attach(&[]);
    here.hurry();
    let (mut client, mut mine) = (here.client(), lab.image.clone());
    // Nothing is asked that nobody carries out.
    here.run(&["attach", "pause", "alice"]);
    write(&mut client, &mut mine, 1 << 20, &content::random(7, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    for verb in [&["attach", "sync", "alice"][..], &["detach", "alice"]] {
        let told = here.fails(4, verb);
        assert!(told.contains("paused") && told.contains("attach resume alice"), "{told}");
    }
    lab.link.cut();
    here.run(&["attach", "resume", "alice"]);
    lab.home.run(&["disk", "take", "alice", "--force"]);
    lab.link.mend();
    for verb in
        [&["attach", "sync", "alice"][..], &["attach", "hoard", "alice"], &["detach", "alice"]]
    {
        let told = here.fails(5, verb);
        assert!(told.contains("taken by another machine"), "{told}");
        // Why it is not kept under another name.
        assert!(told.contains("alice-kept-1"), "{told}");
    }
    // Also when the process finds out as it starts.
    here.kill();
    let told = here.fails(5, &["attach", "sync", "alice"]);
    assert!(told.contains("taken by another machine"), "{told}");
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

#[test]
fn what_is_on_its_way_up_can_be_dropped() {
    let lab = Lab::new(95);
    let here = lab.machine();
    // All of it would take minutes.
    here.attach(&["--up", "32KiB"]);
    let mut client = here.client();
    let mut written = lab.image.clone();
    write(&mut client, &mut written, 5 << 20, &content::random(8, 4 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    here.until("sending", |status| status["upload"]["sent_bytes"].as_u64() > Some(0));
    here.run(&["attach", "discard", "alice"]);
    content::assert_same("dropped", &read_all(&mut here.client()), &lab.image);
    here.run(&["detach", "alice"]);
    lab.home.run(&["disk", "take", "alice"]);
    let mut other = Client::attach(lab.serving.as_ref().unwrap().socket(), "alice");
    content::assert_same("elsewhere", &read_all(&mut other), &lab.image);
}

#[test]
fn a_disk_is_not_changed_below_a_block_device_even_while_its_keeper_is_away() {
    let lab = Lab::new(89);
    let here = lab.machine();
    here.attach(&[]);
    here.hurry();
    let mut client = here.client();
    let mut mine = read_all(&mut client);
    write(&mut client, &mut mine, 1 << 20, &content::random(11, 1 << 20));
    assert_eq!(client.flush(), 0);
    client.detach();
    let home = here.home();
    let at_home = |args: &[&str]| {
        let output = Command::new(sojourn()).arg("--home").arg(&home).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    // What `attach --device` leaves there. No device is called so: nobody brings it up here.
    let device = home.join("devices/alice");
    std::fs::create_dir_all(device.parent().unwrap()).unwrap();
    std::fs::write(&device, "/dev/nbd-of-a-test").unwrap();
    let refused = [
        here.fails(4, &["attach", "discard", "alice"]),
        at_home(&["disk", "reset", "alice"]),
        at_home(&["disk", "rollback", "alice", "before"]),
        at_home(&["disk", "rebase", "alice", "golden:1"]),
        at_home(&["disk", "remove", "alice"]),
        at_home(&["disk", "release", "alice"]),
        at_home(&["disk", "keep", "alice", "bob"]),
    ];
    for said in refused {
        assert!(said.contains("/dev/nbd-of-a-test") && said.contains("detach"), "{said}");
    }
    content::assert_same("refused", &read_all(&mut here.client()), &mine);
    // Nor does it go on over what another machine makes of it.
    here.until("done", |status| status["upload"]["state"] == "done");
    lab.home.run(&["disk", "take", "alice", "--force"]);
    here.until("gone, as the store has all of it", |status| status.is_null());
    lab.home.run(&["disk", "release", "alice"]);
    assert!(here.fails(4, &here.attaching(&[])).contains("/dev/nbd-of-a-test"));
    std::fs::remove_file(&device).unwrap();
    here.client();
}

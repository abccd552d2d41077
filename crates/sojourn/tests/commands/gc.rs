//! Garbage collection and figures of the store through the command line.

use crate::common::{Lab, MIB, content};

#[test]
fn what_was_removed_is_found_kept_for_the_grace_period_and_then_deleted() {
    let (lab, golden) = Lab::with_image();
    lab.file("second.raw", &content(8 * MIB, 2));
    lab.line("image import second.raw other").ok();
    let clean = lab.json("gc");
    assert_eq!(clean["found"]["objects"], 0);
    assert_eq!(clean["live"]["names"], 2);
    lab.line("image remove other:1").ok();

    let stats = lab.json("store stats");
    let garbage = stats["garbage_bytes"].as_u64().unwrap();
    assert!(garbage > 0, "{stats}");
    let dry = lab.json("gc --dry-run");
    let found = lab.json("gc");
    assert!(dry["found"]["objects"].as_u64().unwrap() >= 3, "{dry}");
    assert_eq!(dry["found"], found["found"]);
    assert_eq!(found["freed"]["objects"], 0);
    let waiting = lab.json("gc");
    assert_eq!(waiting["found"]["objects"], 0);
    let seconds = waiting["waiting"][0]["seconds"].as_u64().unwrap();
    assert!((80_000..=86_400).contains(&seconds), "{waiting}");

    let text = lab.line("gc --grace 0s").ok();
    assert!(text.contains("deleted: ") && text.contains("objects"), "{text}");
    assert!(lab.json("store stats")["garbage_bytes"].as_u64().unwrap() < garbage);
    let last = lab.json("gc --grace 0s");
    assert_eq!((&last["found"]["objects"], &last["freed"]["objects"]), (&0.into(), &0.into()));
    lab.line("image export debian out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    assert_eq!(lab.line("gc --grace soon").code, 2);
    assert_eq!(lab.line("gc --rewrite-below 120%").code, 2);
}

#[test]
fn disks_and_snapshots_keep_what_they_stand_on() {
    let (lab, golden) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice monday").ok();
    lab.line("gc --grace 0s --stale 0s").ok();
    lab.line("disk rollback alice monday").ok();
    lab.line("disk commit alice copy").ok();
    lab.line("gc --grace 0s --stale 0s --rewrite-below 100%").ok();
    lab.line("image export copy out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    let stats = lab.json("store stats");
    let kinds: Vec<&str> =
        stats["holdings"].as_array().unwrap().iter().map(|h| h["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["image", "image", "disk", "snapshot"]);
    assert_eq!(stats["logical_bytes"], 4 * 8 * MIB);
    assert_eq!(stats["holdings"][0]["own"]["bytes"], 0, "all is shared");
}

#[test]
fn a_removed_version_can_be_brought_back_until_it_was_collected() {
    let (lab, golden) = Lab::with_image();
    lab.line("image restore debian:1").fails(4, &["debian:1"]);
    lab.line("image remove debian:1").ok();
    lab.line("gc").ok();
    lab.line("image restore debian").fails(2, &["debian:TAG"]);
    lab.line("image restore debian:1").ok();
    lab.line("gc --grace 0s").ok();
    lab.line("image export debian out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    lab.line("image remove debian:1").ok();
    lab.line("gc --grace 0s").ok();
    lab.line("image restore debian:1").fails(3, &["debian:1", "deleted"]);
}

#[test]
fn old_versions_and_snapshots_are_pruned_but_not_what_a_disk_stands_on() {
    let (lab, _) = Lab::with_image();
    for _ in 0..3 {
        // Identical, all of them.
        lab.line("image import golden.raw debian").ok();
    }
    lab.line("disk create alice --from debian:2").ok();
    assert_eq!(lab.line("image prune debian").code, 2, "nothing says what stays");
    lab.line("image prune debian --keep 0").fails(2, &["at least 1"]);
    let dry = lab.json("image prune debian --keep 1 --dry-run");
    assert_eq!(dry["removed"], serde_json::json!(["debian:1", "debian:3"]));
    assert_eq!(dry["in_use"][0]["image"], "debian:2");
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 4);
    assert_eq!(lab.json("image prune debian --keep 1"), dry);
    let left = lab.json("image list");
    let left: Vec<_> =
        left.as_array().unwrap().iter().map(|image| image["image"].as_str().unwrap()).collect();
    assert_eq!(left, ["debian:2", "debian:4"]);
    assert!(lab.line("image prune debian --within 1d").ok().contains("nothing to remove"));
    for name in ["one", "two", "three"] {
        lab.line(&format!("disk snapshot alice {name}")).ok();
    }
    let removed = lab.json("disk prune alice --keep 2");
    assert_eq!(removed.as_array().unwrap().len(), 1);
    assert_eq!(lab.json("disk show alice")["snapshots"].as_array().unwrap().len(), 2);
}

/// Prunes with `line` until `left` names only the newest.
#[allow(clippy::disallowed_methods)] // they grow old in real time
fn prune_until(lab: &Lab, line: &str, left: impl Fn() -> usize) {
    while left() > 1 {
        lab.line(line).ok();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn what_is_older_than_what_is_retained_is_pruned_but_the_newest_stays() {
    let (lab, golden) = Lab::with_image();
    lab.file("second.raw", &content(8 * MIB, 2));
    lab.line("image import second.raw debian").ok();
    lab.line("image import golden.raw debian").ok();
    lab.line("disk create alice --from debian:3").ok();
    for name in ["one", "two"] {
        lab.line(&format!("disk snapshot alice {name}")).ok();
    }
    for line in ["image prune debian --within 1d", "disk prune alice --within 1d"] {
        assert!(lab.line(line).ok().contains("nothing to remove"), "{line}");
    }
    let versions = || lab.json("image list").as_array().unwrap().len();
    prune_until(&lab, "image prune debian --within 1s", versions);
    assert_eq!(lab.json("image list")[0]["image"], "debian:3");
    lab.line("gc --grace 0s").ok();
    lab.line("image export debian out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    let snapshots = || lab.json("disk show alice")["snapshots"].as_array().unwrap().len();
    prune_until(&lab, "disk prune alice --within 1s", snapshots);
    assert!(lab.line("disk show alice").ok().contains("two"));
}

/// The pins that are in a lab's store.
fn pins(lab: &Lab) -> usize {
    std::fs::read_dir(lab.home().join("store/pins")).map_or(0, |pins| pins.count())
}

/// An import that waits for more of its image, and where that would come from: waiting for the process would
/// close it, and an image that ends is another error.
#[allow(clippy::disallowed_methods)] // another process is waited for
fn waiting_import(lab: &Lab) -> (std::process::Child, Option<std::process::ChildStdin>) {
    let sessions = || lab.json("store sessions list").as_array().unwrap().len();
    let before = sessions();
    let mut command = lab.command(["image", "import", "-", "slow"]);
    command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let image = child.stdin.take();
    // A pin is staged beside its place first, and is nobody's until it is there.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while sessions() == before {
        assert!(std::time::Instant::now() < end, "it begins no session");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    (child, image)
}

fn signal(child: &std::process::Child, name: &str) {
    let sent = std::process::Command::new("kill").arg(name).arg(child.id().to_string()).status();
    assert!(sent.unwrap().success());
}

#[test]
fn an_interrupted_command_leaves_no_session_and_a_killed_one_can_be_ended() {
    let (lab, _) = Lab::with_image();
    let (mut import, _image) = waiting_import(&lab);
    signal(&import, "-INT");
    assert_eq!(import.wait().unwrap().code(), Some(130));
    assert_eq!(pins(&lab), 0);

    let (mut import, _image) = waiting_import(&lab);
    signal(&import, "-KILL");
    import.wait().unwrap();
    let sessions = lab.json("store sessions list");
    assert_eq!(sessions[0]["what"], "import of slow");
    lab.line("store sessions break 0000000000000000").fails(3, &["sessions list"]);
    let id = sessions[0]["id"].as_str().unwrap();
    lab.line(&format!("store sessions break {}", &id[..8])).ok();
    assert_eq!(pins(&lab), 0);
}

#[test]
fn sessions_that_are_ended_together_are_told_in_one_document() {
    let (lab, _) = Lab::with_image();
    for _ in 0..2 {
        let (mut import, _image) = waiting_import(&lab);
        signal(&import, "-KILL");
        import.wait().unwrap();
    }
    let sessions = lab.json("store sessions list");
    let ids = sessions.as_array().unwrap().iter().map(|session| session["id"].as_str().unwrap());
    let done = lab.json(&format!("store sessions break {}", ids.collect::<Vec<_>>().join(" ")));
    assert_eq!(done["done"], "import of slow is ended; import of slow is ended");
    assert_eq!(pins(&lab), 0);
}

#[test]
fn damage_is_named_and_stops_what_it_concerns() {
    let (lab, _) = Lab::with_image();
    lab.file("second.raw", &content(8 * MIB, 2));
    lab.line("image import second.raw other").ok();
    lab.line("image remove other:1").ok();
    let record = lab.home().join("store/refs/image/debian:1/00000000000000000001");
    let good = std::fs::read(&record).unwrap();
    std::fs::write(&record, "damage").unwrap();
    lab.line("gc --grace 0s").fails(7, &["debian:1", "repair"]);
    std::fs::write(&record, good).unwrap();
    let freed = lab.json("gc --grace 0s");
    assert!(freed["freed"]["objects"].as_u64().unwrap() >= 3, "{freed}");
}

#[test]
fn a_damaged_list_of_garbage_is_named_and_replaced_by_the_next_collection() {
    let (lab, golden) = Lab::with_image();
    let second = content(8 * MIB, 2);
    lab.file("second.raw", &second);
    lab.line("image import second.raw other").ok();
    lab.line("image remove other:1").ok();
    lab.line("gc").ok();
    let list = crate::common::listing(&lab.home().join("store/condemned")).remove(0).0;
    std::fs::write(&list, "damage").unwrap();
    let name = format!("condemned/{}", list.file_name().unwrap().to_str().unwrap());
    lab.line("image import second.raw other").fails(7, &[&name, "`sojourn gc`"]);
    let text = lab.line("gc").ok();
    assert!(text.contains("damaged and replaced") && text.contains(&name), "{text}");
    lab.line("image import second.raw other").ok();
    lab.line("gc --grace 0s").ok();
    lab.line("verify").ok();
    for (image, content) in [("debian", golden), ("other", second)] {
        lab.line(&format!("image export {image} {image}.raw")).ok();
        assert!(std::fs::read(lab.path(&format!("{image}.raw"))).unwrap() == content, "{image}");
    }
}

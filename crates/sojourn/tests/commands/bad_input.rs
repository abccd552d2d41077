//! Bad input: one line that names the thing and the remedy, the right exit code, nothing changed.

use crate::common::{Lab, MIB, content, listing, skip};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

#[test]
fn wrong_commands_fail_with_the_thing_the_remedy_and_the_code() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.file("odd.raw", &content(MIB, 3)[..MIB as usize - 100]);
    lab.file("empty.raw", b"");
    let mut qcow2 = b"QFI\xfb\0\0\0\x03".to_vec();
    qcow2.extend([0xff; 56]);
    lab.file("hostile.qcow2", &qcow2);
    lab.file("cut.qcow2", b"QFI\xfb\0\0\0\x03");
    let long = "x".repeat(300);
    let create_long = format!("disk create {long} --from debian");
    let cases: &[(&str, i32, &[&str])] = &[
        ("image import missing.raw debian", 3, &["missing.raw"]),
        ("image import odd.raw debian", 2, &["odd.raw", "512"]),
        ("image import empty.raw debian", 2, &["empty.raw", "0"]),
        ("image import hostile.qcow2 debian", 7, &["hostile.qcow2"]),
        ("image import cut.qcow2 debian", 7, &["cut.qcow2"]),
        ("image import golden.raw a/b", 2, &["a/b", "letter"]),
        ("image import golden.raw debian:1", 4, &["debian:1", "another tag"]),
        ("image import golden.raw :1", 2, &["letter"]),
        ("image import nbd://127.0.0.1:1/x debian", 6, &["127.0.0.1:1"]),
        ("image import nbd+unix:///x debian", 2, &["socket"]),
        ("image export debian:9 out.raw", 3, &["debian:9", "image list"]),
        ("image export debian no/such/dir/out.raw", 3, &["no/such/dir"]),
        ("image remove debian", 2, &["debian", "TAG"]),
        ("image show nothing", 3, &["nothing", "image list"]),
        ("disk create alice --from debian", 4, &["alice"]),
        ("disk create bob --from nothing", 3, &["nothing"]),
        ("disk create ../bob --from debian", 2, &["../bob", "letter"]),
        (&create_long, 2, &["xxx", "128"]),
        ("disk create bob --from debian --size 0", 2, &["0"]),
        ("disk create bob --from debian --size 1M", 2, &["8"]),
        ("disk create bob --from debian --size 9000001", 2, &["512"]),
        ("disk show bob", 3, &["bob", "disk list"]),
        ("disk snapshot bob s", 3, &["bob"]),
        ("disk snapshot alice a/b", 2, &["a/b", "letter"]),
        ("disk rollback alice never", 3, &["never"]),
        ("disk grow alice 1M", 2, &["alice"]),
        ("disk rebase alice nothing", 3, &["nothing"]),
        ("disk commit alice debian:1", 4, &["debian:1"]),
        ("disk remove bob", 3, &["bob"]),
        ("serve --nbd 0.0.0.0:10809", 9, &["0.0.0.0:10809", "--insecure"]),
        ("serve --http 0.0.0.0:9180", 9, &["0.0.0.0:9180", "--insecure"]),
        ("serve --file missing.raw --run true", 3, &["missing.raw"]),
        ("serve --file golden.raw", 2, &["--nbd", "--run"]),
        ("init", 4, &["sojourn.toml"]),
        ("--log =?= image list", 2, &["=?=", "debug"]),
    ];
    // A lock has the number of the process that held it last.
    let files = || -> Vec<_> {
        let all = listing(&lab.home()).into_iter();
        all.filter(|(path, _)| !path.ends_with("lock")).collect()
    };
    let before = files();
    for (line, code, words) in cases {
        let done = lab.line(line);
        println!("{line}: {} {}", done.code, done.stderr.trim());
        assert_eq!(done.stdout, "", "{line}");
        done.fails(*code, words);
    }
    // Lock files and sockets of servers that did not start are no change.
    let after: Vec<_> = files()
        .into_iter()
        .filter(|(p, _)| {
            before.iter().any(|(b, _)| b == p) || p.starts_with(lab.home().join("store/refs"))
        })
        .collect();
    assert_eq!(before, after);
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 1);
    assert_eq!(lab.json("disk list").as_array().unwrap().len(), 1);
    lab.line("image verify debian").ok();
}

#[test]
fn arguments_that_do_not_parse_end_with_two() {
    let lab = Lab::empty();
    for (line, word) in [
        ("disk grow alice lots", "10G"),
        ("image import a b --format zip", "zip"),
        ("serve --nbd nowhere", "unix:PATH"),
        ("frobnicate", "frobnicate"),
        ("serve --single --run true", "--single"),
    ] {
        let done = lab.line(line);
        assert_eq!(done.code, 2, "{line}: {}", done.stderr);
        assert!(done.stderr.contains(word), "{line}: {}", done.stderr);
    }
}

#[test]
fn a_configuration_error_names_the_file_the_line_and_the_key() {
    let lab = Lab::new();
    std::fs::write(lab.home().join("sojourn.toml"), "[cache]\nsize = \"1MiB\"\nsixe = 3\n")
        .unwrap();
    for line in ["serve", "image list", "disk list"] {
        lab.line(line).fails(2, &["sojourn.toml", "line 3", "sixe"]);
    }
}

#[test]
fn a_store_of_a_newer_version_is_refused() {
    let lab = Lab::new();
    let path = lab.home().join("store/store.json");
    std::fs::write(&path, b"{\"version\": 99}").unwrap();
    let done = lab.line("image list");
    assert!([7, 10].contains(&done.code), "{} {}", done.code, done.stderr);
    assert!(done.stderr.contains("store"), "{}", done.stderr);
    std::fs::remove_file(&path).unwrap();
    lab.line("image list").fails(3, &["store", "init"]);
}

#[test]
fn a_mistyped_store_is_not_found_and_not_made() {
    let lab = Lab::new();
    let mistyped = lab.path("mistyped");
    let text = format!("store = \"{}\"\n", mistyped.display());
    std::fs::write(lab.home().join("sojourn.toml"), text).unwrap();
    for line in ["image list", "disk create a --from debian", "serve"] {
        lab.line(line).fails(3, &["mistyped", "sojourn init"]);
    }
    assert!(!mistyped.exists());
}

#[test]
fn a_damaged_snapshot_is_named_and_disturbs_no_disk() {
    let (lab, _) = Lab::with_image();
    for disk in ["good", "bad"] {
        lab.run(["disk", "create", disk, "--from", "debian"]).ok();
        lab.run(["disk", "snapshot", disk, "s"]).ok();
    }
    let record = lab.home().join("store/refs/snapshot/bad@s/00000000000000000001");
    std::fs::write(&record, b"garbage").unwrap();
    let list = lab.json("disk list");
    assert_eq!(list.as_array().unwrap().len(), 2);
    for disk in list.as_array().unwrap() {
        let snapshot = &disk["snapshots"][0];
        assert_eq!(snapshot["name"], "s");
        assert_eq!(snapshot["error"].is_null(), disk["name"] == "good", "{list}");
        assert!(disk["error"].is_null());
    }
    assert!(lab.line("disk show bad").ok().contains("damaged"));
    lab.line("disk rollback bad s").fails(7, &["bad@s"]);
    lab.line("disk rollback good s").ok();
    // What a damaged snapshot stands on is not known: nothing that it may need is removed.
    lab.line("disk remove bad").fails(7, &["bad@s"]);
    std::fs::remove_file(&record).unwrap();
    lab.line("disk remove bad").ok();
}

#[test]
fn a_damaged_disk_is_named_and_disturbs_no_other() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create good --from debian").ok();
    lab.line("disk create bad --from debian").ok();
    std::fs::write(lab.home().join("disks/bad/disk.json"), b"{").unwrap();
    let list = lab.json("disk list");
    let error = |name: &str| {
        let all = list.as_array().unwrap();
        all.iter().find(|disk| disk["name"] == name).unwrap()["error"].clone()
    };
    assert!(error("good").is_null());
    assert!(error("bad").as_str().unwrap().contains("disk.json"), "{list}");
    lab.line("disk snapshot bad s").fails(7, &["bad"]);
    lab.line("disk snapshot good s").ok();
    assert!(lab.line("disk list").ok().contains("damaged"));
}

#[test]
fn root_works_on_the_home_of_another_user_as_that_user() {
    const USER: u32 = 54_321; // of no name
    if !rustix::process::geteuid().is_root() {
        return skip("only root may give a directory away");
    }
    let (lab, _) = Lab::with_image();
    // What is around the home lets the user through.
    std::fs::set_permissions(lab.path(""), std::fs::Permissions::from_mode(0o711)).unwrap();
    let secret = lab.file("secret.raw", &content(MIB, 7));
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut give = Command::new("chown");
    give.args(["-R", &format!("{USER}:{USER}")]).arg(lab.home());
    assert!(give.status().unwrap().success());
    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice s").ok();
    lab.line("gc").ok();
    let server = lab.serve(&[]);
    lab.line("disk create bob --from debian").ok();
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    for ids in ["Uid:", "Gid:", "Groups:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(ids)).unwrap();
        let all = line.split_whitespace().all(|id| id == USER.to_string());
        assert!(all && !line.trim().is_empty(), "{ids}{line}");
    }
    assert_eq!(server.stop(), 0);
    let mut todo = vec![lab.home()];
    while let Some(path) = todo.pop() {
        let metadata = path.symlink_metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (USER, USER), "{}", path.display());
        if metadata.is_dir() {
            todo.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    // Nor does it read what the user may not read.
    lab.line("image import secret.raw stolen").fails(9, &["secret.raw", "works as user 54321"]);
    lab.line("serve --shadow borrowed --borrow /dev/null --borrow-size 1M")
        .fails(9, &["user 54321", "borrowing needs root"]);
}

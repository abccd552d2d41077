//! The life of a disk through the command line, with a real client, with and without a server.

use crate::common::{Done, Lab, MIB, Server, content};
use block::{Device, Durability, Span};
use nbd::Remote;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

async fn read(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(Span::whole(device.size()), &mut bytes).await.unwrap();
    bytes
}

async fn write(device: &Remote, offset: u64, bytes: &[u8]) {
    let span = Span::between(offset, offset + bytes.len() as u64);
    device.write(span, bytes, Durability::Durable).await.unwrap();
}

/// Reads all of an export with a fresh connection.
async fn content_of(server: &Server, export: &str) -> Vec<u8> {
    let device = server.attach(export).await.unwrap();
    let bytes = read(&device).await;
    device.close().await;
    bytes
}

/// Waits until the server has said goodbye to all who closed: it gives up what they had behind that.
async fn until_all_have_left(lab: &Lab) {
    let end = Instant::now() + Duration::from_secs(60);
    while tokio::task::block_in_place(|| lab.json("status"))["connections"] != 0 {
        assert!(Instant::now() < end, "somebody does not leave");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_disk_sees_its_own_writes_and_keeps_them_across_a_restart() {
    let (lab, golden) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.line("disk create bob --from debian:1").ok();
    let server = lab.serve(&[]);
    let alice = server.attach("alice").await.unwrap();
    write(&alice, 5000, b"this is alice").await;
    assert!(content_of(&server, "bob").await == golden);
    assert!(content_of(&server, "debian").await == golden);
    alice.close().await;
    assert_eq!(server.stop(), 0);
    let server = lab.serve(&[]);
    let mut expected = golden;
    expected[5000..5013].copy_from_slice(b"this is alice");
    assert!(content_of(&server, "alice").await == expected);
    assert!(lab.json("disk show alice")["private_bytes"].as_u64().unwrap() >= 4096);
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_tells_where_the_bytes_of_a_disk_are_and_opens_no_disk() {
    let (lab, golden) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let size = golden.len() as u64;
    let total = |map: &serde_json::Value, place: &str| map["total"][place].as_u64().unwrap();
    let before = lab.json("disk map alice");
    assert_eq!((&before["disk"], &before["size"]), (&"alice".into(), &size.into()));
    assert_eq!(total(&before, "zero") + total(&before, "stored"), size);
    let server = lab.serve(&[]);
    assert_eq!(lab.json("disk map alice"), before);
    assert_eq!(lab.json("status")["open_disks"], 0);

    let alice = server.attach("alice").await.unwrap();
    write(&alice, 8192, &[7; 8192]).await;
    read(&alice).await;
    let now = lab.json("disk map alice --cells 4096");
    assert_eq!((&now["cell_bytes"], total(&now, "private")), (&4096.into(), 8192));
    assert_eq!(now["cells"]["private"][2], 4096);
    assert_eq!(now["cells"]["private"][4], 0);
    assert_eq!((total(&now, "stored"), total(&now, "unread")), (0, 0));
    let sum: u64 = now["total"].as_object().unwrap().values().filter_map(|n| n.as_u64()).sum();
    assert_eq!(sum, size);
    let text = lab.line("disk map alice").ok();
    assert!(text.contains("8 KiB  private") && text.contains("\n#"), "{text}");
    alice.close().await;
    assert_eq!(server.stop(), 0);

    let closed = lab.json("disk map alice");
    assert_eq!((total(&closed, "private"), total(&closed, "cached")), (8192, 0));
    for cells in ["0", "4097"] {
        lab.line(&format!("disk map alice --cells {cells}")).fails(2, &["cells"]);
    }
    lab.line("disk map bob").fails(3, &["bob", "disk list"]);
}

/// Runs a command line at a terminal, where somebody types a line.
fn at_a_terminal(lab: &Lab, line: &str, typed: &str) -> Done {
    let running = begun_at_a_terminal(lab, line);
    writeln!(running.stdin.as_ref().unwrap(), "{typed}").unwrap();
    Done::from(running.wait_with_output().unwrap())
}

/// Starts a command line at a terminal.
fn begun_at_a_terminal(lab: &Lab, line: &str) -> Child {
    let line = format!("{} --home {} {line}", crate::common::BINARY, lab.home().display());
    let mut command = Command::new("script"); // of util-linux: a terminal of its own
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn at_a_terminal_a_disk_loses_what_it_alone_has_only_when_its_name_is_typed() {
    let (lab, _) = Lab::with_image();
    for name in ["alice", "bob"] {
        lab.line(&format!("disk create {name} --from debian")).ok();
    }
    lab.line("disk snapshot alice first").ok();
    let asked = at_a_terminal(&lab, "disk remove alice", "bob");
    assert_eq!(asked.code, 4, "{}", asked.stdout);
    for word in ["disk alice has a snapshot", "another name was typed"] {
        assert!(asked.stdout.contains(word), "no {word:?} in {}", asked.stdout);
    }
    assert_eq!(at_a_terminal(&lab, "disk reset alice", "").code, 4);
    assert_eq!(lab.json("disk show alice")["snapshots"].as_array().unwrap().len(), 1);
    assert_eq!(at_a_terminal(&lab, "disk remove alice", "alice").code, 0);
    assert_eq!(at_a_terminal(&lab, "disk remove bob", "").code, 0, "it has nothing to lose");
    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice first").ok();
    assert_eq!(at_a_terminal(&lab, "disk remove --yes alice", "").code, 0);
    assert_eq!(lab.json("disk list").as_array().unwrap().len(), 0);
}

#[test]
fn an_interrupt_ends_the_question_whether_a_disk_is_to_lose_what_it_has() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice first").ok();
    let mut running = begun_at_a_terminal(&lab, "disk remove alice");
    let (mut shown, mut byte) = (Vec::new(), [0]);
    let (asked, waits) = std::sync::mpsc::channel::<()>();
    let pid = rustix::process::Pid::from_child(&running);
    let watch = std::thread::spawn(move || {
        // Then there is an end to read.
        if waits.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    while !shown.ends_with(b"for good: ") {
        running.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        shown.push(byte[0]);
    }
    drop(asked);
    watch.join().unwrap();
    // What is typed stays open: its end would be an answer.
    running.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let code = loop {
        match running.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if Instant::now() > deadline => {
                let _ = running.kill();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(code, Some(130));
    assert_eq!(lab.json("disk list").as_array().unwrap().len(), 1);
}

#[test]
fn disks_are_listed_as_people_count_and_a_name_of_another_home_says_whose_it_is() {
    let (lab, _) = Lab::with_image();
    for name in ["vm10", "vm2", "vm1"] {
        lab.line(&format!("disk create {name} --from debian")).ok();
    }
    let listed = lab.json("disk list");
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|disk| &disk["name"]).collect();
    assert_eq!(names, ["vm1", "vm2", "vm10"]);
    let other = lab.path("other");
    let store = lab.home().join("store");
    let elsewhere = |line: &str| {
        let words = line.split(' ').map(str::to_owned);
        let home = ["--home".to_owned(), other.display().to_string()];
        Done::from(Command::new(crate::common::BINARY).args(home).args(words).output().unwrap())
    };
    elsewhere(&format!("init --store {}", store.display())).ok();
    elsewhere("disk create vm2 --from debian").fails(4, &["belongs to server", "disk take vm2"]);
    lab.line("disk release vm2").ok();
    elsewhere("disk create vm2 --from debian").fails(4, &["was released", "disk take vm2"]);
    lab.line("disk create vm1 --from debian").fails(4, &["exists already"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ephemeral_disk_forgets_when_its_client_leaves() {
    let (lab, golden) = Lab::with_image();
    lab.line("disk create kiosk --from debian --ephemeral").ok();
    let server = lab.serve(&[]);
    let kiosk = server.attach("kiosk").await.unwrap();
    write(&kiosk, 0, b"graffiti").await;
    assert_eq!(&read(&kiosk).await[..8], b"graffiti");
    kiosk.close().await;
    until_all_have_left(&lab).await;
    assert!(content_of(&server, "kiosk").await == golden);
    assert_eq!(server.stop(), 0);
}

/// All verbs, either through a server or on the home itself.
async fn lifecycle(lab: &Lab, golden: &[u8], mut server: Option<Server>) {
    // What the disk holds, by a server that lives as long as the check if there is no other.
    async fn with_server<T>(
        lab: &Lab,
        server: &mut Option<Server>,
        work: impl AsyncFnOnce(&Server) -> T,
    ) -> T {
        match server {
            Some(server) => {
                let result = work(server).await;
                until_all_have_left(lab).await;
                result
            }
            None => {
                let brief = lab.serve(&[]);
                let result = work(&brief).await;
                assert_eq!(brief.stop(), 0);
                result
            }
        }
    }
    lab.line("disk create d --from debian").ok();
    assert_eq!(lab.json("disk show d")["image"], "debian:1");
    let put = async |server: &Server, offset: u64, bytes: &[u8]| {
        let device = server.attach("d").await.unwrap();
        write(&device, offset, bytes).await;
        device.close().await;
    };
    with_server(lab, &mut server, async |s| put(s, 100, b"one").await).await;
    assert_eq!(lab.json("disk snapshot d s1")["name"], "s1");
    lab.line("disk snapshot d s1").fails(4, &["s1"]);
    with_server(lab, &mut server, async |s| put(s, 200, b"two").await).await;
    assert_eq!(lab.json("disk commit d debian")["image"], "debian:2");
    lab.line("disk rollback d s1").ok();
    let mut one = golden.to_vec();
    one[100..103].copy_from_slice(b"one");
    let now = with_server(lab, &mut server, async |s| content_of(s, "d").await).await;
    assert!(now == one, "rollback");
    let mut two = one.clone();
    two[200..203].copy_from_slice(b"two");
    let committed = with_server(lab, &mut server, async |s| content_of(s, "debian:2").await).await;
    assert!(committed == two, "commit");

    lab.line("disk reset d").ok();
    let now = with_server(lab, &mut server, async |s| content_of(s, "d").await).await;
    assert!(now == golden, "reset");

    // Both the disk and debian:2 change the first block.
    with_server(lab, &mut server, async |s| put(s, 300, b"mine").await).await;
    lab.line("disk rebase d debian:2").fails(4, &["--keep-mine"]);
    let report = lab.json("disk rebase d debian:2 --keep-mine");
    assert_eq!(report["both_changed"][0]["offset"], 0);
    assert_eq!(lab.json("disk show d")["image"], "debian:2");
    let mut mine = golden.to_vec();
    mine[300..304].copy_from_slice(b"mine");
    let now = with_server(lab, &mut server, async |s| content_of(s, "d").await).await;
    assert!(now == mine, "rebase");

    lab.line("disk grow d 9M").ok();
    assert_eq!(lab.json("disk show d")["size"], 9 * MIB);
    let now = with_server(lab, &mut server, async |s| content_of(s, "d").await).await;
    mine.resize(9 * MIB as usize, 0);
    assert!(now == mine, "grow");
    assert_eq!(lab.json("disk list").as_array().unwrap().len(), 1);
    lab.line("disk remove d").ok();
    assert_eq!(lab.json("disk list").as_array().unwrap().len(), 0);
    if let Some(server) = server {
        assert_eq!(server.stop(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_without_a_server() {
    let (lab, golden) = Lab::with_image();
    lifecycle(&lab, &golden, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_through_a_server() {
    let (lab, golden) = Lab::with_image();
    let server = lab.serve(&[]);
    lifecycle(&lab, &golden, Some(server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_in_use_is_snapshotted_and_grown_but_not_removed_or_rolled_back() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create d --from debian").ok();
    let server = lab.serve(&[]);
    let device = server.attach("d").await.unwrap();
    write(&device, 0, b"live").await;
    lab.line("disk snapshot d s").ok();
    lab.line("disk grow d 10M").ok();
    lab.line("disk remove d").fails(4, &["d", "in use"]);
    lab.line("disk rollback d s").fails(4, &["d"]);
    lab.line("disk reset d").fails(4, &["d"]);
    write(&device, 4096, b"still here").await;
    let status = lab.json("status");
    let export = &status["exports"].as_array().unwrap()[0];
    assert_eq!(export["name"], "d");
    assert_eq!(export["client"], format!("pid:{}", std::process::id()));
    device.close().await;
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_client_is_refused_by_the_name_of_the_first() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create d --from debian").ok();
    let server = lab.serve(&[]);
    let first = server.attach("d").await.unwrap();
    let second = server.attach("d").await.unwrap();
    // The same client may connect twice; another process may not (NBD says "denied" for that).
    let me = format!("pid:{}", std::process::id());
    lab.run(["image", "import", &server.uri("d"), "stolen"]).fails(9, &[&me]);
    second.close().await;
    first.close().await;
    until_all_have_left(&lab).await;
    lab.run(["image", "import", &server.uri("d"), "freed"]).ok();
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_and_images_appear_while_the_server_runs() {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&[]);
    assert!(server.attach("late").await.is_err());
    lab.file("late.raw", &content(MIB, 4));
    lab.line("image import late.raw late").ok();
    assert!(content_of(&server, "late:1").await == content(MIB, 4));
    assert!(server.attach("later").await.is_err());
    lab.line("disk create later --from debian").ok();
    assert_eq!(content_of(&server, "later").await.len() as u64, 8 * MIB);
    assert_eq!(server.stop(), 0);
}

#[test]
fn what_holds_private_data_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::empty();
    // A home that was there before, open to all.
    std::fs::create_dir_all(lab.home()).unwrap();
    std::fs::set_permissions(lab.home(), PermissionsExt::from_mode(0o755)).unwrap();
    lab.line("init").ok();
    for name in ["disks", "store"] {
        let mode = std::fs::metadata(lab.home().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
}

#[test]
fn every_verb_that_tells_what_a_disk_is_tells_its_snapshots() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice first").ok();
    let server = lab.serve(&[]);
    for verb in ["show alice", "rollback alice first", "reset alice", "grow alice 40M"] {
        let told = lab.json(&format!("disk {verb}"));
        assert_eq!(told["snapshots"][0]["name"], "first", "{verb}: {told}");
    }
    let told = lab.json("disk rebase alice debian:1");
    assert_eq!(told["disk"]["snapshots"][0]["name"], "first", "{told}");
    lab.line("disk remove alice@first").ok();
    assert_eq!(lab.json("disk list")[0]["snapshots"].as_array().unwrap().len(), 0);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_damaged_disk_is_saved_by_reset_and_a_lost_one_is_given_up_on_request() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice first").ok();
    let place = lab.home().join("disks/alice");
    std::fs::write(place.join("disk.json"), "{").unwrap();
    lab.line("disk snapshot alice second").fails(7, &["disk.json", "disk reset"]);
    lab.line("disk reset alice").ok();
    std::fs::write(place.join("disk.json"), "{").unwrap();
    lab.line("disk rollback alice first").ok();
    assert_eq!(lab.json("disk show alice")["snapshots"][0]["name"], "first");
    std::fs::remove_dir_all(&place).unwrap();
    lab.line("disk remove alice").fails(4, &["another home", "--lost"]);
    lab.line("disk remove --lost alice").ok();
    lab.line("disk remove --lost alice").fails(3, &["alice"]);
}

#[test]
fn a_disk_does_not_take_the_name_by_which_clients_get_an_image() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create debian --from debian").fails(4, &["an image is called debian"]);
    lab.line("disk create debian2 --from debian").ok();
}

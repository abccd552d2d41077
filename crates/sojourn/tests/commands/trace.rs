//! `sojourn trace`: what is told of a trace, what is made of it, and recording.

use crate::common::{Done, Lab, MIB};
use block::{Device, Durability, Span};
use nbd::{ClientOptions, Remote, Uri};
use std::fmt::Write;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

const CSV: &str = "\
time_us,client,op,offset,length,latency_us
0,a,R,0,4096,10
100,b,R,0,4096,12
250,a,W,8192,4096,30
300,b,R,4096,8192,11
900,a,F,0,0,400
";

fn lab() -> Lab {
    let lab = Lab::empty();
    lab.file("t.csv", CSV.as_bytes());
    lab
}

#[test]
fn info_and_stats_tell_what_a_trace_is_like() {
    let lab = lab();
    let info = lab.json("trace info t.csv");
    assert_eq!((&info["format"], &info["requests"]), (&"csv".into(), &5.into()));
    assert_eq!(info["clients"], serde_json::json!(["a", "b"]));
    let stats = lab.json("trace stats t.csv --html t.html");
    assert_eq!(stats["working_set"]["blocks"], 3);
    assert_eq!(stats["working_set"]["both"], 1);
    assert_eq!(stats["operations"][1][1]["bytes"], 4096);
    assert_eq!(stats["sharing"]["by_clients"], serde_json::json!([[1, 1, 1], [2, 2, 4]]));
    let text = lab.line("trace stats t.csv").ok();
    assert!(text.contains("working set") && text.contains("12 KiB"), "{text}");
    let page = std::fs::read_to_string(lab.path("t.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() >= 5);
    assert!(!page.contains("<script") && !page.contains("http"));
}

#[test]
fn traces_are_converted_cut_sampled_merged_and_anonymized() {
    let lab = lab();
    assert_eq!(lab.json("trace convert t.csv t.sjt")["requests"], 5);
    let back = lab.line("trace convert t.sjt - --to csv").ok();
    assert!(back.contains("250000,a,disk0,W,8192,4096,30000,\n"), "{back}");
    lab.line("trace convert t.sjt t.iolog").ok();
    assert_eq!(lab.json("trace info t.iolog")["requests"], 5);
    let load = lab.json("trace convert t.sjt t.load");
    assert_eq!((&load["records"], &load["left_out"]), (&4.into(), &1.into()));

    lab.line("trace cut t.sjt w.sjt --op write --op read --client 0").ok();
    assert_eq!(lab.json("trace info w.sjt")["requests"], 2);
    let cut = lab.line("trace cut t.sjt - --to csv --from 200us --until 500us").ok();
    assert!(cut.contains("\n50000,a") && cut.contains("\n100000,b"), "{cut}");
    assert_eq!(cut.lines().count(), 3);

    lab.line("trace merge m.sjt t.csv w.sjt --same-disks").ok();
    let merged = lab.json("trace info m.sjt");
    assert_eq!(merged["clients"], serde_json::json!(["t/a", "w/a", "t/b"]));
    assert_eq!(merged["disks"].as_array().unwrap().len(), 1);

    lab.line("trace merge c.sjt t.csv w.sjt --same-disks --same-clients").ok();
    assert_eq!(lab.json("trace info c.sjt")["clients"], serde_json::json!(["a", "b"]));
    lab.line("trace merge d.sjt t.csv w.sjt --by-clock")
        .fails(2, &["t: when its requests were made"]);

    // Two requests beside five: at the beginning and in the middle.
    lab.line("trace merge p.sjt t.sjt w.sjt --in-proportion").ok();
    let mixed = lab.line("trace convert p.sjt - --to csv").ok();
    let clients = mixed.lines().skip(1).map(|line| line.split(',').nth(1).unwrap());
    assert_eq!(clients.collect::<Vec<_>>(), ["t/a", "w/a", "t/b", "t/a", "w/a", "t/b", "t/a"]);

    lab.line("trace sample m.sjt s.sjt --one-in 1").ok();
    assert_eq!(lab.json("trace info s.sjt")["requests"], 7);
    lab.line("trace anonymize m.sjt a.sjt --places").ok();
    let text = lab.line("trace convert a.sjt - --to csv").ok();
    assert!(!text.contains("t/a") && text.contains("client0"), "{text}");
    // A request over the border of two extents stays one.
    lab.file("w.csv", b"op,offset,length\nR,1044480,8192\n");
    lab.line("trace anonymize w.csv b.sjt --places").ok();
    assert_eq!(lab.json("trace info b.sjt")["requests"], 1);
    lab.line("trace anonymize - e.sjt --places").fails(2, &["standard input", "read", "twice"]);
    let left: Vec<_> = std::fs::read_dir(lab.path("")).unwrap().flatten().collect();
    assert!(left.iter().all(|f| !f.file_name().to_string_lossy().contains("partial")));
}

/// Every verb that makes a trace, of `in.sjt` into a file.
const MAKERS: [&str; 5] = [
    "trace convert in.sjt OUT",
    "trace cut in.sjt OUT --first 3",
    "trace sample in.sjt OUT --one-in 1",
    "trace merge OUT in.sjt",
    "trace anonymize in.sjt OUT",
];

#[test]
fn a_file_that_is_there_is_replaced_only_when_told() {
    let lab = lab();
    lab.line("trace convert t.csv in.sjt").ok();
    std::os::unix::fs::symlink("there.csv", lab.path("link.csv")).unwrap();
    for maker in MAKERS {
        for out in ["there.csv", "link.csv"] {
            lab.file("there.csv", b"precious");
            let line = maker.replace("OUT", out);
            lab.line(&line).fails(4, &[out, "exists already", "--force"]);
            assert_eq!(std::fs::read(lab.path("there.csv")).unwrap(), b"precious", "{line}");
            lab.line(&format!("{line} --force")).ok();
            let text = std::fs::read_to_string(lab.path("there.csv")).unwrap();
            assert!(text.starts_with("time_ns,"), "{line}: {text}");
            assert!(lab.path("link.csv").is_symlink(), "{line}");
        }
        // What keeps nothing is written to as it is.
        lab.line(&maker.replace("OUT", "/dev/null")).ok();
    }
    // The file that was to be made is forgotten: the first trace stands in its place.
    lab.line("trace merge in.sjt t.csv").fails(4, &["in.sjt", "exists already"]);
    assert_eq!(lab.json("trace info in.sjt")["requests"], 5);
}

#[test]
fn a_trace_is_never_written_over_itself_whatever_it_is_called() {
    let lab = lab();
    lab.line("trace convert t.csv in.sjt").ok();
    let before = std::fs::read(lab.path("in.sjt")).unwrap();
    std::os::unix::fs::symlink("in.sjt", lab.path("soft.sjt")).unwrap();
    std::fs::hard_link(lab.path("in.sjt"), lab.path("hard.sjt")).unwrap();
    let mut lines = vec![
        "trace merge in.sjt t.csv in.sjt --force".to_owned(),
        "trace stats in.sjt --html in.sjt".to_owned(),
    ];
    for maker in MAKERS {
        for out in ["in.sjt", "soft.sjt", "hard.sjt", "./in.sjt"] {
            lines.push(maker.replace("OUT", out) + " --force");
        }
    }
    for line in lines {
        lab.line(&line).fails(2, &["in.sjt", "is read from there"]);
        assert!(std::fs::read(lab.path("in.sjt")).unwrap() == before, "{line}");
    }
    let stdin = std::fs::File::open(lab.path("in.sjt")).unwrap();
    let mut command = lab.command(["trace", "cut", "-", "in.sjt", "--first", "3", "--force"]);
    Done::from(command.stdin(stdin).output().unwrap()).fails(2, &["in.sjt", "standard input"]);
    assert!(std::fs::read(lab.path("in.sjt")).unwrap() == before);
}

#[test]
fn a_name_that_asks_for_what_is_not_written_is_refused() {
    let lab = lab();
    lab.line("trace convert t.csv d.csv.xz").fails(10, &["d.csv.xz", ".zst", ".xz"]);
    lab.line("trace convert t.csv d.csv.xz --to csv").fails(10, &["d.csv.xz", ".zst", ".xz"]);
    lab.line("trace convert t.csv hello.txt").fails(10, &["hello.txt", ".csv", "--to"]);
    lab.line("trace convert t.csv d.lis").fails(10, &["d.lis", ".csv", "--to"]);
    lab.line("trace convert t.csv hello.txt --to csv").ok();
    assert_eq!(lab.json("trace info hello.txt")["format"], "csv");
    lab.line("trace convert t.csv plain").ok();
    assert_eq!(lab.json("trace info plain")["format"], "sojourn");
    assert_eq!(std::fs::read_dir(lab.path("")).unwrap().count(), 3, "something else is left");
}

#[test]
fn a_trace_that_cannot_be_written_names_the_file_that_the_user_named() {
    let done = lab().line("trace convert t.csv nodir/t.sjt");
    assert!(done.stderr.starts_with("sojourn: nodir/t.sjt: "), "{}", done.stderr);
    done.fails(3, &[]);
}

#[test]
fn what_is_no_trace_is_refused_by_line_and_remedy() {
    let lab = lab();
    lab.file("x", b"hello\nworld\n");
    lab.line("trace info x").fails(2, &["x", "tried", "--format"]);
    let lines: Vec<&str> = CSV.lines().collect();
    lab.file("u.csv", [lines[0], lines[3], lines[1]].join("\n").as_bytes());
    lab.line("trace convert u.csv u.sjt").fails(2, &["line 3", "--sort"]);
    assert!(!lab.path("u.sjt").exists());
    lab.line("trace convert u.csv u.sjt --sort").ok();
    lab.line("trace info none").fails(3, &["none"]);
    assert_eq!(lab.line("trace cut t.csv c.sjt --op erase").code, 2);
}

async fn use_disk(uri: &Uri) {
    let disk = Remote::connect(uri, ClientOptions::default()).await.unwrap();
    let span = |offset, len| Span::within(offset, len, 8 * MIB).unwrap();
    let mut buffer = vec![0; 4096];
    for block in 0..20 {
        disk.read(span(block * 4096, 4096), &mut buffer).await.unwrap();
    }
    disk.write(span(0, 4096), &buffer, Durability::Durable).await.unwrap();
    disk.flush().await.unwrap();
    disk.close().await;
}

#[tokio::test]
async fn a_server_records_its_clients_and_says_so() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&["--trace", "day.sjt"]);
    use_disk(&server.uri("alice").parse().unwrap()).await;
    let status = lab.json("status");
    assert!(status["trace"]["file"].as_str().unwrap().ends_with("day.sjt"), "{status}");
    assert_eq!(status["trace"]["error"], serde_json::Value::Null);
    assert_eq!(server.stop(), 0);
    let info = lab.json("trace info day.sjt");
    assert_eq!((&info["complete"], &info["requests"]), (&true.into(), &22.into()));
    let disk = &info["disks"][0];
    assert_eq!((&disk["name"], &disk["base"]), (&"alice".into(), &"debian:1".into()));
    assert_eq!(disk["size"], 8 * MIB);
    let csv = lab.line("trace convert day.sjt - --to csv").ok();
    assert!(csv.lines().any(|line| line.contains(",W,0,4096,") && line.ends_with("FUA")), "{csv}");
    lab.line("serve --trace day.sjt").fails(4, &["day.sjt"]);
}

#[tokio::test]
async fn a_recording_that_was_killed_is_read_as_far_as_it_got() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let toml = std::fs::read_to_string(lab.home().join("sojourn.toml")).unwrap();
    let toml = toml.replace("# dir = \"traces\"", "dir = \"traces\"");
    std::fs::write(lab.home().join("sojourn.toml"), toml).unwrap();
    let server = lab.serve(&[]);
    use_disk(&server.uri("alice").parse().unwrap()).await;
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while lab.json("status")["trace"]["requests"] != 22 {
        assert!(std::time::Instant::now() < deadline, "nothing was written");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(server); // kill -9
    let file = std::fs::read_dir(lab.home().join("traces")).unwrap().next().unwrap().unwrap();
    let info = lab.json(&format!("trace info {}", file.path().display()));
    assert_eq!((&info["complete"], &info["requests"]), (&false.into(), &22.into()));
}

#[tokio::test]
async fn a_recorder_stands_between_clients_and_any_server() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&[]);
    let socket = lab.path("tap.sock");
    let listen = format!("unix:{}", socket.display());
    let arguments = ["trace", "record", "tap.sjt", "--listen", &listen, "--to"];
    let mut recorder = lab
        .command(arguments.iter().map(|a| (*a).to_owned()).chain([server.uri("alice")]))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        assert!(std::time::Instant::now() < deadline, "it does not listen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let uri = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
    use_disk(&uri).await;
    let pid = rustix::process::Pid::from_child(&recorder);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(recorder.wait().unwrap().success());
    let info = lab.json("trace info tap.sjt");
    assert_eq!((&info["complete"], &info["requests"]), (&true.into(), &22.into()));
    assert_eq!(info["disks"][0]["name"], "alice");
    assert_eq!(server.stop(), 0);
}

#[test]
fn merging_more_traces_than_files_may_be_open_says_what_to_do() {
    let lab = lab();
    let merge = |files: usize| {
        let line = format!(
            "ulimit -n {files}; exec {} trace merge all.sjt {}",
            env!("CARGO_BIN_EXE_sojourn"),
            "t.csv ".repeat(60)
        );
        let mut shell = std::process::Command::new("sh");
        Done::from(shell.args(["-c", &line]).current_dir(lab.path("")).output().unwrap())
    };
    merge(40).fails(6, &["60 traces", "40 files", "ulimit -n", "merge some of them first"]);
    merge(100).ok();
}

#[test]
fn nothing_is_recorded_of_a_server_that_is_not_there() {
    let (lab, _) = Lab::with_image();
    // A port that was free a moment ago.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let to = format!("nbd://127.0.0.1:{port}/disk");
    lab.run(["trace", "record", "t.sjt", "--listen", "unix:tap.sock", "--to", &to])
        .fails(6, &[&port.to_string()]);
    let server = lab.serve(&[]);
    let to = server.uri("nosuch");
    lab.run(["trace", "record", "t.sjt", "--listen", "unix:tap.sock", "--to", &to])
        .fails(3, &["nosuch"]);
    assert!(!lab.path("t.sjt").exists());
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_small_sample_says_that_it_is_small() {
    let lab = Lab::empty();
    let lines: String = (0..400).map(|i| format!("{i},R,{},4096\n", i * 4096)).collect();
    lab.file("t.csv", format!("time_us,op,offset,length\n{lines}").as_bytes());
    let small = lab.line("trace sample t.csv x.sjt --one-in 4");
    assert!(small.stderr.contains("the sample is small"), "{}", small.stderr);
    small.ok();
    assert_eq!(lab.line("trace sample t.csv y.sjt --one-in 1").stderr, "");
}

#[test]
fn a_part_that_holds_nothing_is_refused_and_no_file_is_made() {
    let lab = Lab::empty();
    lab.file("t.csv", b"time_us,op,offset,length\n0,R,4096,4096\n5,R,8192,4096\n");
    lab.line("trace cut t.csv x.sjt --op write").fails(2, &["t.csv", "nothing in it"]);
    lab.line("trace cut t.csv x.sjt --from 1h").fails(2, &["nothing in it"]);
    lab.line("trace sample t.csv x.sjt --one-in 1000000").fails(2, &["is empty", "--one-in"]);
    assert!(!lab.path("x.sjt").exists());
    lab.line("trace cut t.csv x.sjt --first 1").ok();
}

#[test]
fn what_a_file_is_called_is_never_obeyed_by_the_terminal() {
    let lab = Lab::empty();
    let name = "\x1b]0;mine\x07.csv";
    lab.run(["trace", "info", name]).fails(3, &["u{1b}", "mine"]);
    lab.file(name, b"op,offset,length\nR,0,4096\n");
    for line in [vec!["trace", "convert", name, "\x1b[31m.sjt"], vec!["simulate", "curve", name]] {
        let done = lab.run(&line);
        assert!(!done.stderr.contains('\x1b'), "{}", done.stderr);
        assert!(!done.ok().contains('\x1b'), "{line:?}");
    }
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let lab = Lab::empty();
    let mut csv = String::from("op,offset,length\n");
    (0..100_000).for_each(|at| writeln!(csv, "R,{},4096", at * 4096).unwrap());
    lab.file("t.csv", csv.as_bytes());
    let mut child = lab
        .command(["trace", "convert", "t.csv", "-", "--to", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{} {said}", done.status);
}

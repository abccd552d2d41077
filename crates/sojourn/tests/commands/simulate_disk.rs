//! `sojourn simulate disk` and `sojourn simulate profiles`.

use crate::common::Lab;
use std::fmt::Write;

/// A load that is small enough for a test.
const SMALL: &str = "--files 20000 --layout 42 --requests 4000 --seeds 2";

#[test]
fn schedulers_are_compared_with_intervals_a_winner_and_plots() {
    let lab = Lab::empty();
    let line = format!("simulate disk --scheduler fcfs,cats,cats:read-delay=500 {SMALL}");
    let json = lab.json(&format!("{line} --html t.html"));
    let rows = json["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["scheduler"].as_str().unwrap()).collect();
    assert_eq!(names, ["fcfs", "cats", "cats:read-delay=500"]);
    for row in rows {
        let mean = |name: &str| row[name]["mean"].as_f64().unwrap();
        assert!(row["response_ms"]["half_width"].as_f64().unwrap() > 0.0);
        assert!(mean("p50_ms") <= mean("p99_ms") && mean("p99_ms") <= mean("worst_ms"));
        // Little's law in the figures that are shown.
        let by_law = mean("requests_per_ms") * mean("response_ms");
        assert!((by_law / mean("in_system") - 1.0).abs() < 0.05, "{row}");
    }
    assert!(rows[1]["response_ms"]["mean"].as_f64() < rows[0]["response_ms"]["mean"].as_f64());
    assert!(json["winners"][0]["sentence"].as_str().unwrap().contains("cats"));
    let page = std::fs::read_to_string(lab.path("t.html")).unwrap();
    for part in ["Response: the part", "Requests in the system", "Seek map of cats"] {
        assert!(page.contains(part), "{part}");
    }
    let csv = lab.line(&format!("{line} --csv")).ok();
    assert_eq!(csv.lines().count(), 4);
    assert!(csv.starts_with("profile,scheduler,service_ms,service_ms_half,"), "{csv}");
    let text = lab.line(&line).ok();
    assert!(text.contains("response ms") && text.contains("+-"), "{text}");
}

#[test]
fn every_run_draws_files_of_its_own_unless_their_layout_is_held() {
    let lab = Lab::empty();
    let run = |words: &str| {
        let small = "--scheduler clook --files 2000 --requests 2000";
        lab.json(&format!("simulate disk {small} {words}"))
    };
    let mean = |words: &str| run(words)["rows"][0]["response_ms"]["mean"].as_f64().unwrap();
    for load in ["surge", "buffered"] {
        let of = |words: &str| mean(&format!("--load {load} --seed 5 --seeds 1 {words}"));
        assert_eq!(of(""), of("--layout 5"), "{load}");
        assert_ne!(of(""), of("--layout 6"), "{load}");
    }
    // Of more seeds than layouts are kept, the later ones are drawn again, and are the same.
    let many = run("--seeds 18 --scheduler clook");
    let row = |at: usize| many["rows"][at]["response_ms"].to_string();
    assert_eq!(row(0), row(1));
    let (each, held) = (run("--seeds 1"), run("--seeds 1 --layout 7"));
    assert!(each["load"].as_str().unwrap().ends_with("of another layout in each run"), "{each}");
    assert!(held["load"].as_str().unwrap().ends_with("all of layout 7"), "{held}");
}

#[test]
fn a_trace_is_replayed_at_its_own_times() {
    let lab = Lab::empty();
    let mut csv = String::from("time_us,disk,op,offset,length\n");
    for i in 0..400u64 {
        let disk = ["a", "b"][(i % 4 == 3) as usize];
        writeln!(csv, "{},{disk},R,{},4096", i * 20_000, i * 7919 % 10_000 * 4096).unwrap();
    }
    lab.file("t.csv", csv.as_bytes());
    let line = "simulate disk t.csv --scheduler fcfs,look --warm-up 0 --seeds 1";
    let busy = |json: &serde_json::Value| json["rows"][0]["utilisation"]["mean"].as_f64().unwrap();
    let (all, fast) = (lab.json(line), lab.json(&format!("{line} --speed 2")));
    assert!((busy(&fast) / busy(&all) - 2.0).abs() < 0.05, "{} {}", busy(&fast), busy(&all));
    assert!(all["winners"][0]["sentence"].as_str().unwrap().contains("one seed says nothing"));
    // Neither the trace nor this disk draws anything: three seeds are one run.
    let same = lab.json("simulate disk t.csv --scheduler fcfs,look --warm-up 0 --seeds 3");
    assert!(same["rows"][0]["response_ms"]["half_width"].is_null(), "{same}");
    assert!(same["winners"][0]["sentence"].as_str().unwrap().contains("draw nothing"), "{same}");
    assert_eq!(same["winners"][0]["verdict"], "unknown");
    let one = lab.json(&format!("{line} --disk b"));
    assert!(busy(&one) < busy(&all) / 3.0);
    lab.line(&format!("{line} --disk c")).fails(3, &["no disk \"c\"; there are a, b"]);
}

#[test]
fn bad_loads_schedulers_and_profiles_are_told_in_a_sentence() {
    let lab = Lab::empty();
    lab.file(
        "bad.toml",
        b"name = \"x\"\nsize = \"1G\"\n[linear]\nbase_ms = -1\nseek_ms = 0\nhit_ms = 0",
    );
    lab.file("ids.txt", b"1\n2\n3\n");
    lab.file("garbage.csv", b"hello\nworld\n");
    lab.file("cut.csv", b"time_us,op,offset,length\n0,R,0,4096\n5,R,x");
    lab.file("empty.csv", b"");
    lab.file("noise.bin", &[0xa5; 4000]);
    for (line, code, part) in [
        ("--scheduler elevator", 2, "is no scheduler; there are fcfs"),
        ("--scheduler cats:speed=3", 2, "no parameter"),
        ("--profile floppy", 3, "there are cheetah-15k4"),
        ("--profile ./none.toml", 3, "none.toml"),
        ("--profile bad.toml", 2, "linear.base_ms is -1; give 0 to"),
        ("--load open", 2, "needs --rate"),
        ("--load random --size 100", 2, "multiple of 512"),
        ("--load random --reads 2", 2, "give 0 to 1"),
        ("--load open --rate 100000 --requests 10000000", 2, "more than the disk can do"),
        ("--requests 0", 2, "give more"),
        ("ids.txt --format ids", 2, "give --rate"),
        ("missing.csv", 3, "missing.csv"),
        ("garbage.csv", 2, "sojourn: garbage.csv: line 1: 'hello' names no column"),
        ("cut.csv", 2, "sojourn: cut.csv: line 3: the offset is not a number"),
        ("empty.csv", 2, "empty, not a trace"),
        ("noise.bin", 2, "not a trace of a known format"),
        (".", 2, "a directory, not a trace"),
        ("--profile /dev/zero", 2, "longer than 4 MiB; that is no profile"),
        ("--profile garbage.csv", 2, "garbage.csv, line 1"),
        ("--load random --think nan", 2, "--think is NaN"),
        ("--load sequential --size 64M", 2, "up to 32M"),
    ] {
        lab.line(&format!("simulate disk {line}")).fails(code, &[part]);
    }
}

#[test]
fn profiles_are_listed_printed_and_checked() {
    let lab = Lab::empty();
    let names = lab.json("simulate profiles");
    let names: Vec<_> =
        names.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"cheetah-15k4") && names.contains(&"ssd-nvme"), "{names:?}");
    let toml = lab.line("simulate profiles hdd-7200").ok();
    lab.file("mine.toml", toml.as_bytes());
    assert_eq!(lab.line("simulate profiles mine.toml").ok(), toml);
}

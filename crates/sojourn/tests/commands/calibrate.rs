//! `sojourn calibrate`.

use crate::common::{Lab, MIB};

/// A small load for `simulate disk`.
const SMALL: &str = "--files 20000 --layout 42 --requests 2000 --scheduler cats --seeds 1";

#[test]
fn a_file_is_only_read_and_the_profile_simulates() {
    let lab = Lab::empty();
    let content = vec![7; 68 * MIB as usize];
    let path = lab.path("disk.raw");
    std::fs::write(&path, &content).unwrap();
    // Otherwise its blocks may not be allocated yet.
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let line = "calibrate disk.raw --kind flash --reads 20";
    let probe = lab.line(line);
    if probe.stderr.contains("O_DIRECT") {
        probe.fails(2, &["disk.raw", "O_DIRECT"]);
        eprintln!("skipped: temporary files are on a file system without O_DIRECT");
        return;
    }
    // The text is a profile with comments.
    let text = probe.ok();
    assert!(text.starts_with("# ") && text.contains("percentile"), "{text}");
    lab.file("printed.toml", text.as_bytes());
    lab.line("simulate profiles ./printed.toml").ok();

    let json = lab.json(&format!("{line} --name mine --output found.toml --html page.html"));
    assert_eq!(json["kind"], "flash");
    assert_eq!(json["profile"]["name"], "mine");
    assert_eq!(json["profile"]["size"], format!("{}s", content.len() / 512));
    assert_eq!(json["sizes"].as_array().unwrap().len(), 5);
    assert!(json["sizes"][0][1].as_f64().unwrap() > 0.0);
    assert_eq!(json["fit"][3]["percentile"], 50.0);
    assert!(std::fs::read_to_string(lab.path("page.html")).unwrap().contains("Reads by size"));
    let small = "--load random --requests 2000 --scheduler fcfs --seeds 1";
    let run = lab.json(&format!("simulate disk --profile ./found.toml {small}"));
    assert_eq!(run["rows"][0]["profile"], "mine");

    assert!(std::fs::read(&path).unwrap() == content, "the file changed");
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), modified);
}

#[test]
fn a_modelled_disk_is_found_again() {
    let lab = Lab::empty();
    let line = "calibrate profile:cheetah-15k4-mechanical --reads 40 --output found.toml";
    let json = lab.json(&format!("{line} --html page.html"));
    assert_eq!(json["kind"], "rotating");
    assert_eq!(json["profile"]["name"], "cheetah-15k4-mechanical");
    assert_eq!(json["profile"]["cache"]["segments"], 64);
    let (measured, model) = (&json["mean"][0], &json["mean"][1]);
    let ratio = model.as_f64().unwrap() / measured.as_f64().unwrap();
    assert!((ratio - 1.0).abs() < 0.05, "{measured} {model}");
    assert!(std::fs::read_to_string(lab.path("page.html")).unwrap().contains("Figure 1"));
    let mean = |profile: &str| {
        let run = lab.json(&format!("simulate disk --profile {profile} {SMALL}"));
        run["rows"][0]["service_ms"]["mean"].as_f64().unwrap()
    };
    let (found, truth) = (mean("./found.toml"), mean("cheetah-15k4-mechanical"));
    assert!((found / truth - 1.0).abs() < 0.15, "{found} {truth}");
    // Nothing is overwritten.
    let written = std::fs::read(lab.path("found.toml")).unwrap();
    lab.line(line).fails(4, &["found.toml exists"]);
    assert!(std::fs::read(lab.path("found.toml")).unwrap() == written);
}

#[test]
fn what_cannot_be_calibrated_is_refused_in_a_sentence() {
    let lab = Lab::empty();
    lab.file("small.raw", &[7; 8192]);
    lab.file("empty.raw", &[]);
    lab.file("holes.raw", &vec![0; 68 * MIB as usize]);
    let fifo = std::process::Command::new("mkfifo").arg(lab.path("fifo")).status().unwrap();
    assert!(fifo.success());
    for (line, code, part) in [
        ("missing.raw", 3, "missing.raw"),
        (".", 2, "neither a block device nor a regular file"),
        // Nobody writes into it: opening it would wait for ever.
        ("fifo", 2, "neither a block device nor a regular file"),
        ("/dev/null", 2, "neither a block device nor a regular file"),
        ("profile:floppy", 3, "there are cheetah-15k4"),
        ("profile:ssd-nvme --output none/found.toml", 3, "none/found.toml"),
    ] {
        lab.line(&format!("calibrate {line}")).fails(code, &[part]);
    }
    for (name, part) in [("small", "64 MiB"), ("empty", "is empty"), ("holes", "has holes")] {
        let done = lab.line(&format!("calibrate {name}.raw --kind flash"));
        // Of a file system without O_DIRECT that is what is told.
        let part = if done.stderr.contains("O_DIRECT") { "O_DIRECT" } else { part };
        done.fails(2, &[name, part]);
    }
    // No temporary file stays behind.
    let left: Vec<_> = std::fs::read_dir(lab.path(".")).unwrap().flatten().collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

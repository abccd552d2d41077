//! The boots of guests that are in the repository, through the commands that a user would give. The
//! curves' figures come from another implementation.

use crate::common::Lab;

/// Five guests of one image as one trace, `storm.sjt`.
fn storm() -> Lab {
    let lab = Lab::empty();
    let boots = concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/boots");
    let guests = ["office-a", "update", "scan", "idle", "office-b"];
    let files = guests.map(|guest| format!("{boots}/{guest}.csv.zst")).join(" ");
    lab.line(&format!("trace merge storm.sjt {files} --same-disks --sort")).ok();
    lab
}

#[test]
fn blocks_that_are_shared_until_written_make_the_known_curve() {
    let lab = storm();
    for (options, references, expected) in [
        ("--share image", 159_026, [0.040, 0.072, 0.163, 0.276, 0.346, 0.426, 0.458]),
        ("--share private", 159_026, [0.001, 0.002, 0.004, 0.075, 0.085, 0.140, 0.172]),
        ("--share image --writes", 190_051, [0.030, 0.059, 0.115, 0.227, 0.261, 0.361, 0.401]),
    ] {
        let curve = lab.json(&format!("simulate curve storm.sjt {options} --size 4M-256M"));
        assert_eq!(curve["references"], references, "{options}");
        let points = curve["points"].as_array().unwrap();
        assert_eq!(points.len(), expected.len());
        for (point, expected) in points.iter().zip(expected) {
            let ratio = point["hit_ratio"].as_f64().unwrap();
            assert!((ratio - expected).abs() < 0.00051, "{options}: {ratio}, not {expected}");
        }
    }
}

#[test]
fn a_clients_cache_gains_by_larger_blocks_and_not_by_its_size() {
    let lab = storm();
    for (cache, block, expected) in
        [("1M", "4K", 0.0005), ("1M", "8K", 0.4642), ("16M", "8K", 0.4737), ("1M", "32K", 0.8225)]
    {
        let view = lab.json(&format!(
            "simulate cache storm.sjt --share private --per 4K --block {block} --client {cache} --policy lru --size 16M"
        ));
        let ratio = view["client_hit_ratio"].as_f64().unwrap();
        assert!((ratio - expected).abs() < 0.00006, "{cache}, {block}: {ratio}, not {expected}");
    }
    let without = lab.json("simulate cache storm.sjt --policy lru --size 16M");
    assert!(without["client_hit_ratio"].is_null(), "{without}");
    lab.line("simulate cache storm.sjt --block 4K --per 8K --size 16M").fails(2, &["8192", "512"]);
}

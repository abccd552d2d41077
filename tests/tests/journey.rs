//! A machine with a real guest that hops between two homes while keepers, QEMU, servers, whole homes and the store's
//! server are killed, links are cut and file systems run full. The laboratory (`lab/journey`) does the work, from a seed,
//! and checks each hop; what it reports is judged here.
//!
//! Three hops in `make test`; `HOPS=100 HOPS_SEED=1` (`make test-hops`) is the long one.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "it tells what happened on the way")]

use sojourn_tests::{S3, clients, require, tool};
use std::path::Path;
use std::process::{Command, Stdio};

/// A number of the environment, which may not be there.
fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => otherwise,
    }
}

#[test]
fn a_machine_hops_through_kills_cuts_and_full_disks_without_a_gap_or_a_repetition() {
    require!("qemu-system-x86_64", "mmdebstrap", "e2fsck");
    // It says so where there is none; the laboratory starts one of its own.
    let Some(_) = S3::start() else { return };
    let (hops, seed) = (number("HOPS", 3), number("HOPS_SEED", 1));
    let journey = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/journey");
    let done = Command::new(journey)
        .args(["--hops", &hops.to_string(), "--seed", &seed.to_string(), "--sojourn"])
        .arg(tool::sojourn())
        .env("LAB_QEMU", clients::current().program("qemu-system-x86_64"))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(done.status.success(), "the journey with seed {seed} failed");
    let facts: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    println!("{facts}");
    assert_eq!(facts["hops"], hops, "{facts}");
    // It counted in each home.
    assert!(facts["numbers"].as_u64() > Some(2 * hops), "{facts}");
    assert!(hops < 20 || facts["lost"].as_u64() > Some(0), "nothing was killed in time: {facts}");
}

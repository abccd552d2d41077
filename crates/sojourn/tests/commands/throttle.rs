//! `serve --throttle`, `--fail` and `[[throttle]]`.

use crate::common::Lab;
use block::{Device, Span};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_disk_is_never_faster_than_its_model_and_counts_lateness_and_faults() {
    let (lab, _) = Lab::with_image();
    let config =
        "[[throttle]]\nexports = [\"alice\"]\nprofile = \"cheetah-15k4\"\nbad = [\"0-4K\"]\n";
    std::fs::write(lab.home().join("sojourn.toml"), config).unwrap();
    lab.line("disk create alice --from debian").ok();
    lab.line("disk create bob --from debian").ok();
    let server = lab.serve(&[]);
    let (alice, bob) = (server.attach("alice").await.unwrap(), server.attach("bob").await.unwrap());
    let begin = Instant::now();
    // Backwards: none of them is in the cache on board.
    for block in (1..=10u64).rev() {
        let span = Span::between(block * 65_536, block * 65_536 + 4096);
        alice.read(span, &mut [0; 4096]).await.unwrap();
        bob.read(span, &mut [0; 4096]).await.unwrap();
    }
    assert!(begin.elapsed() >= Duration::from_micros(42_500), "{:?}", begin.elapsed());
    let error = alice.read(Span::between(0, 512), &mut [0; 512]).await.unwrap_err();
    bob.read(Span::between(0, 512), &mut [0; 512]).await.unwrap();
    let status = tokio::task::block_in_place(|| lab.json("status"));
    let throttles = status["throttles"].as_array().unwrap();
    assert_eq!(throttles.len(), 1, "{error}");
    assert_eq!(throttles[0]["export"], "alice");
    assert_eq!((&throttles[0]["requests"], &throttles[0]["failed"]), (&11.into(), &1.into()));
    assert!(throttles[0]["late_mean_us"].as_f64().unwrap() > 0.0);
    drop((alice, bob));
    assert_eq!(tokio::task::block_in_place(|| server.stop()), 0);
}

#[test]
fn invalid_throttles_are_refused_before_anybody_is_served() {
    let (lab, _) = Lab::with_image();
    lab.file("disk.raw", &[0; 65_536]);
    let serve = |args: &str| lab.line(&format!("serve --file disk.raw --run true {args}"));
    serve("--throttle cheetah-15k4 --fail 0.5").ok();
    serve("--fail 2").fails(2, &["fail is 2"]);
    serve("--throttle floppy").fails(3, &["there are cheetah-15k4"]);
    serve("--throttle hdd-7200 --throttle-times 0").fails(2, &["times is 0; give 0.01 to 1000"]);
    std::fs::write(lab.home().join("sojourn.toml"), "[[throttle]]\nbad = [\"x\"]\n").unwrap();
    lab.line("serve --single").fails(2, &["write FROM-TO"]);
    let stall = "[[throttle]]\nstall = { part = 0.5, ms = 1e300 }\n";
    std::fs::write(lab.home().join("sojourn.toml"), stall).unwrap();
    lab.line("serve --single").fails(2, &["stall.ms is 1"]);
}

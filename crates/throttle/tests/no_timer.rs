//! A machine that gives no timer any more. Alone in its process, whose limit it changes.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use throttle::{Precise, ThrottleClock};

#[tokio::test]
async fn what_is_due_is_waited_for_also_without_a_timer() {
    let clock = Precise::new();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let refused = std::fs::File::open("/").is_err();
    let at = clock.now() + 3_000_000;
    clock.until(at).await;
    let now = clock.now();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(refused && now >= at);
}

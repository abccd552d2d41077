//! Requests that are looked for before their connection sleeps: always, never, or while the machine has
//! processors to spare, as `serve.busy_poll_us` says.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use sojourn_tests::tool::shell;
use sojourn_tests::{Client, Home, clients, content, require};
use std::time::{Duration, Instant};

const MIB: usize = 4;

/// One request at a time, each as soon as the one before was answered.
const SCRIPT: &str = "
import os
h.connect_uri(os.environ['uri'])
first = int(os.environ['first'])
for number in range(first, first + 1000):
    at, data = number % 1024 * 4096, number.to_bytes(4, 'big') * 1024
    h.pwrite(data, at)
    assert h.pread(4096, at) == data, number
h.flush()
h.shutdown()
";

/// Has a client write and read until `done`, which is given the requests that were looked for so far;
/// then checks all that it wrote.
fn quick_client(config: &str, mut done: impl FnMut(u64) -> bool) {
    let home = Home::new();
    std::fs::write(home.path("home/sojourn.toml"), config).unwrap();
    let mut expected = content::image(91, MIB);
    home.import("golden", &expected);
    home.disk("d", "golden");
    let server = home.serve();
    std::fs::write(home.path("work.py"), SCRIPT).unwrap();
    let mut first = 0usize;
    loop {
        let env = [("uri", &*server.uri("d")), ("first", &*first.to_string())];
        shell(home.dir(), &env, "exec nbdsh -c - < work.py");
        for number in first..first + 1000 {
            let data = (number as u32).to_be_bytes().repeat(1024);
            expected[number % 1024 * 4096..][..4096].copy_from_slice(&data);
        }
        first += 1000;
        let status = home.json(&["status"]);
        let total = &status["total"];
        let found = total["busy_polled"].as_u64().unwrap();
        assert!(found == 0 || total["busy_poll_seconds"].as_f64().unwrap() > 0.0);
        if done(found) {
            break;
        }
    }
    let mut client = Client::attach(server.socket(), "d");
    content::assert_same("written", &client.read(0, MIB << 20), &expected);
    client.detach();
    server.stop();
}

#[test]
fn a_client_that_is_polled_for_reads_what_it_wrote() {
    clients::each(|| {
        require!("nbdsh");
        // On a single processor nobody is looked for.
        let polled_for = std::thread::available_parallelism().unwrap().get() > 1;
        let end = Instant::now() + Duration::from_secs(60);
        quick_client("[serve]\nbusy_poll_us = 1000\n", |found| {
            assert!(Instant::now() < end, "no request is looked for");
            found > 0 || !polled_for
        });
    });
}

#[test]
fn a_client_is_served_as_well_whether_the_machine_has_processors_to_spare_or_not() {
    clients::each(|| {
        require!("nbdsh");
        // What other tests leave of the machine decides; both are right.
        let mut rounds = 0;
        quick_client("", |found| {
            rounds += 1;
            found > 0 || rounds == 5
        });
    });
}

#[test]
fn nobody_is_polled_for_where_it_is_off() {
    clients::each(|| {
        require!("nbdsh");
        let mut rounds = 0;
        quick_client("[serve]\nbusy_poll_us = 0\n", |found| {
            rounds += 1;
            assert_eq!(found, 0);
            rounds == 3
        });
    });
}

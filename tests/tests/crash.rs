//! The server is killed at a random moment of a load: every flushed byte is there afterwards, the
//! disk opens by itself.

#![allow(clippy::disallowed_methods, reason = "a kill comes at a real moment")]

use sojourn_tests::client::{WRITE, header};
use sojourn_tests::{Client, Home, content};
use std::time::{Duration, Instant};

const MIB: usize = 16;
const BLOCK: usize = 4096;
const BLOCKS: usize = (MIB << 20) / BLOCK;

/// What a block may hold after a crash.
#[derive(Clone, Copy, Default)]
struct Held {
    /// The version that was flushed.
    flushed: u64,
    /// A version that was sent after the flush. Never two, because writes in flight together are
    /// applied in any order.
    later: Option<u64>,
}

/// A block's content, from its number and version; version 0 is the image's.
fn block(image: &[u8], number: usize, version: u64) -> Vec<u8> {
    match version {
        0 => image[number * BLOCK..][..BLOCK].to_vec(),
        _ => content::random((version << 20) | number as u64, BLOCK),
    }
}

/// Reads the whole disk. What a block holds now, it holds until it is written again.
fn check(client: &mut Client, image: &[u8], oracle: &mut [Held], round: u64) {
    for (part, oracle) in oracle.chunks_mut(256).enumerate() {
        let got = client.read((part as u64) << 20, 1 << 20);
        for (index, (bytes, held)) in got.chunks(BLOCK).zip(oracle).enumerate() {
            let number = part * 256 + index;
            let mut allowed = std::iter::once(held.flushed).chain(held.later);
            match allowed.find(|version| block(image, number, *version) == bytes) {
                Some(version) => *held = Held { flushed: version, later: None },
                None => panic!(
                    "round {round}: block {number} holds neither version {} nor {:?}",
                    held.flushed, held.later
                ),
            }
        }
    }
}

#[test]
fn flushed_writes_survive_a_killed_server() {
    let home = Home::new();
    let image = content::image(41, MIB);
    home.import("golden", &image);
    home.disk("d", "golden");
    let mut oracle = vec![Held::default(); BLOCKS];
    let mut version = 0;
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    };
    for round in 0..12 {
        let server = home.serve();
        let mut client = Client::attach(server.socket(), "d");
        check(&mut client, &image, &mut oracle, round);
        let kill_at = Instant::now() + Duration::from_millis(20 + next() % 150);
        let mut pending = Vec::new();
        while Instant::now() < kill_at {
            // Requests are sent ahead of their answers, so that the kill finds some in flight.
            let mut batch = Vec::new();
            for _ in 0..1 + next() % 16 {
                let number = next() as usize % BLOCKS;
                if oracle[number].later.is_none() {
                    version += 1;
                    batch.extend(header(WRITE, version, (number * BLOCK) as u64, BLOCK as u32));
                    batch.extend(block(&image, number, version));
                    oracle[number].later = Some(version);
                    pending.push(number);
                }
            }
            client.send(&batch);
            if next() % 3 == 0 {
                // A flush covers what was answered before it was sent.
                client.replies(pending.len());
                assert_eq!(client.flush(), 0);
                for number in pending.drain(..) {
                    let held = &mut oracle[number];
                    *held = Held { flushed: held.later.unwrap_or(held.flushed), later: None };
                }
            }
        }
        server.kill();
    }
    let server = home.serve();
    check(&mut Client::attach(server.socket(), "d"), &image, &mut oracle, 12);
    server.stop();
}

#[test]
fn a_killed_server_leaves_nothing_that_keeps_the_next_one_from_starting() {
    let home = Home::new();
    home.import("golden", &content::image(42, MIB));
    home.disk("d", "golden");
    for _ in 0..3 {
        let server = home.serve();
        let mut client = Client::attach(server.socket(), "d");
        assert_eq!(client.write(0, &[1; BLOCK]), 0);
        server.kill();
    }
    let list = home.json(&["disk", "list"]);
    assert!(list.to_string().contains("\"d\""), "{list}");
    home.run(&["disk", "reset", "d"]);
}

#[test]
fn what_was_answered_and_not_flushed_outlives_a_killed_server() {
    let home = Home::new();
    let image = content::image(43, MIB);
    home.import("golden", &image);
    home.disk("d", "golden");
    let data = |index: u64| content::random(4300 + index, 1 << 20);
    let mut written = Vec::new();
    // Killed at once, after each write.
    for index in [0, 5, 1, 7] {
        let server = home.serve();
        let mut client = Client::attach(server.socket(), "d");
        for index in &written {
            content::assert_same("answered", &client.read(index << 20, 1 << 20), &data(*index));
        }
        assert_eq!(client.write(index << 20, &data(index)), 0);
        written.push(index);
        server.kill();
    }
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    for index in written {
        content::assert_same("answered", &client.read(index << 20, 1 << 20), &data(index));
    }
    content::assert_same("untouched", &client.read(8 << 20, 1 << 20), &image[8 << 20..][..1 << 20]);
    client.detach();
    server.stop();
}

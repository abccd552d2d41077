//! Many clients at once: all are served, and what each takes of the server is bounded.

use sojourn_tests::client::{READ, connect, header};
use sojourn_tests::home::free_port;
use sojourn_tests::{Client, Home, content};
use std::io::{Read, Write};
use std::sync::Barrier;

const MIB: usize = 16;

#[test]
fn five_hundred_clients_that_come_over_tcp_in_the_same_instant_are_all_served_by_few_threads() {
    const CLIENTS: usize = 500;
    let home = Home::new();
    let bytes = content::image(41, MIB);
    home.import("golden", &bytes);
    let address = free_port();
    let server = home.serve_with(&["--nbd", &address.to_string()]);
    let before = server.threads();
    let (come, served) = (Barrier::new(CLIENTS), Barrier::new(CLIENTS + 1));
    let during = std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (come, served, bytes) = (&come, &served, &bytes);
            scope.spawn(move || {
                come.wait();
                let mut client = Client::attach_tcp(address, "golden");
                let at = (number * 20) << 10;
                let read = client.read(at as u64, 4096);
                served.wait(); // all are connected now
                served.wait();
                content::assert_same("storm", &read, &bytes[at..][..4096]);
                client.detach();
            });
        }
        served.wait();
        let during = server.threads();
        served.wait();
        during
    });
    // Readers of the store come and go; none belongs to a client.
    assert!(during < before + 64, "{before} threads became {during}");
    server.stop();
}

#[test]
fn a_thousand_idle_clients_take_a_hundred_kibibytes_each_at_most() {
    const CLIENTS: usize = 1000;
    let home = Home::new();
    home.import("golden", &content::image(42, MIB));
    let server = home.serve();
    Client::attach(server.socket(), "golden").detach();
    let before = server.memory();
    let clients: Vec<_> = (0..CLIENTS).map(|_| Client::attach(server.socket(), "golden")).collect();
    let each = server.memory().saturating_sub(before) / CLIENTS as u64;
    assert!(each <= 100 << 10, "{each} bytes each");
    drop(clients);
    server.stop();
}

#[test]
fn fifty_clients_that_work_on_private_disks_take_the_cache_and_a_mebibyte_each() {
    const CLIENTS: usize = 50;
    const CACHE: u64 = 32 << 20;
    let home = Home::new();
    home.import("golden", &content::image(43, 64));
    for number in 0..CLIENTS {
        home.disk(&format!("d{number}"), "golden");
    }
    let config = home.path("cache.toml");
    std::fs::write(&config, format!("[cache]\nsize = {CACHE}\n")).unwrap();
    let server = home.serve_with(&["--config", &config.to_string_lossy()]);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let mut client = Client::attach(server.socket(), &format!("d{number}"));
                for step in 0..64u64 {
                    client.read(step << 20, 1 << 20);
                    let at = (step * 37 % 64) << 20;
                    assert_eq!(client.write(at, &content::random(step, 16 << 10)), 0);
                }
                assert_eq!(client.flush(), 0);
                client.detach();
            });
        }
    });
    let (took, most) = (server.memory(), CACHE + (64 << 20) + ((CLIENTS as u64) << 20));
    assert!(took <= most, "{} MiB, and {} are allowed", took >> 20, most >> 20);
    server.stop();
}

#[test]
fn ten_thousand_reads_whose_answers_nobody_takes_do_not_grow_memory_past_the_window() {
    const READS: usize = 10_000;
    let home = Home::new();
    let bytes = content::image(44, MIB);
    home.import("golden", &bytes);
    let server = home.serve();
    let mut other = Client::attach(server.socket(), "golden");
    other.read(0, 8 << 20);
    other.read(8 << 20, 8 << 20);
    let before = server.memory();
    let mut greedy = Client::attach(server.socket(), "golden");
    let storm: Vec<u8> =
        (0..READS as u64).flat_map(|n| header(READ, n, n % 128 * 65536, 65536)).collect();
    // 640 MB of answers are asked for. The server stops taking requests when its window is full.
    greedy.stream().set_nonblocking(true).unwrap();
    let _ = greedy.stream().write(&storm);
    for part in 0..32 {
        let got = other.read(part << 19, 512 << 10);
        content::assert_same("other", &got, &bytes[(part as usize) << 19..][..512 << 10]);
    }
    let grown = server.memory().saturating_sub(before);
    assert!(grown <= 48 << 20, "{} MiB for a window of 16", grown >> 20);
    drop(greedy);
    other.detach();
    server.stop();
}

#[test]
fn clients_that_never_end_their_handshake_are_dropped_and_cost_no_thread() {
    let home = Home::new();
    let bytes = content::image(45, MIB);
    home.import("golden", &bytes);
    let config = home.path("patience.toml");
    std::fs::write(&config, "[limits]\nhandshake_seconds = 1\n").unwrap();
    let server = home.serve_with(&["--config", &config.to_string_lossy()]);
    let before = server.threads();
    let mut silent: Vec<_> = (0..200)
        .map(|number| {
            let mut stream = connect(server.socket());
            if number % 2 == 0 {
                stream.write_all(&[0, 0, 0, 3, b'I', b'H', b'A']).unwrap();
            }
            stream
        })
        .collect();
    let mut good = Client::attach(server.socket(), "golden");
    content::assert_same("good", &good.read(0, 1 << 20), &bytes[..1 << 20]);
    assert!(server.threads() < before + 64, "{} threads", server.threads());
    for stream in &mut silent {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the server hangs up");
        assert!(rest.len() <= 18, "no more than its greeting");
    }
    content::assert_same("good", &good.read(1 << 20, 1 << 20), &bytes[1 << 20..2 << 20]);
    good.detach();
    server.stop();
}

//! Clients that mean harm, or are broken, beside one that works: its data stays right, and the
//! daemon lives.

use sojourn_tests::client::{READ, TRIM, WRITE, connect, header};
use sojourn_tests::{Client, Home, content};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

const MIB: usize = 16;

/// What hostile clients do, each on a connection of its own. Errors of their own calls are of no
/// concern: the server may hang up at any time.
fn attacks(socket: &Path, round: u64) {
    let send = |bytes: &[u8]| {
        let mut stream = connect(socket);
        let _ = stream.write_all(bytes);
        stream
    };
    let end = |mut stream: UnixStream| {
        let _ = stream.shutdown(Shutdown::Write);
        let mut rest = [0; 4096];
        while matches!(stream.read(&mut rest), Ok(count) if count > 0) {}
    };
    // Garbage in place of the client's flags; nothing at all; half an option.
    end(send(&content::random(round, 64 << 10)));
    drop(send(&[]));
    end(send(&[0, 0, 0, 3, b'I', b'H', b'A']));
    // An option of 4 GiB, a name of 4 GiB.
    let option = |length: u32, name: u32| {
        let mut bytes = vec![0, 0, 0, 3];
        bytes.extend(b"IHAVEOPT");
        bytes.extend(7u32.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(name.to_be_bytes());
        bytes
    };
    end(send(&option(u32::MAX, u32::MAX)));
    end(send(&option(6, u32::MAX)));
    // In the transmission phase, on an image: half a header, garbage, 4 GiB to read and to write.
    let attached = |bytes: &[u8]| {
        let mut client = Client::attach(socket, "golden");
        let _ = client.stream().write_all(bytes);
        client
    };
    drop(attached(&header(READ, 1, 0, 4096)[..14]));
    drop(attached(&content::random(round + 1, 64 << 10)));
    drop(attached(&header(READ, 1, 0, u32::MAX)));
    drop(attached(&header(READ, 1, u64::MAX, 4096)));
    drop(attached(&[header(WRITE, 1, 0, u32::MAX).as_slice(), &[0; 4096]].concat()));
    drop(attached(&header(TRIM, 1, 0, u32::MAX)));
    drop(attached(&header(0xffff, 1, 0, 0)));
    // Many requests, and gone before the first answer.
    let storm: Vec<u8> = (0..512).flat_map(|cookie| header(READ, cookie, 0, 1 << 20)).collect();
    drop(attached(&storm));
}

#[test]
fn hostile_clients_harm_nobody_else() {
    let home = Home::new();
    let bytes = content::image(31, MIB);
    home.import("golden", &bytes);
    home.disk("good", "golden");
    home.disk("bad", "golden");
    let mut server = home.serve();
    let mut good = Client::attach(server.socket(), "good");
    let mut expected = bytes.clone();
    for round in 0..5u64 {
        attacks(server.socket(), round * 7);
        // Gone in the middle of a write's data, on a disk of its own.
        let mut bad = Client::attach(server.socket(), "bad");
        bad.stream().write_all(&header(WRITE, 1, 0, 1 << 20)).unwrap();
        bad.stream().write_all(&[0xbb; 300 << 10]).unwrap();
        drop(bad);
        let data = content::random(1000 + round, 128 << 10);
        let at = (round as usize * 2) << 20;
        assert_eq!(good.write(at as u64, &data), 0);
        expected[at..at + data.len()].copy_from_slice(&data);
        for part in 0..2 {
            let got = good.read(part << 23, 8 << 20);
            content::assert_same("good", &got, &expected[(part as usize) << 23..][..8 << 20]);
        }
        server.assert_alive();
    }
    good.detach();
    // A write that never came whole was not applied in part beyond its own place.
    let mut bad = Client::attach(server.socket(), "bad");
    content::assert_same("bad", &bad.read(1 << 20, 8 << 20), &bytes[1 << 20..][..8 << 20]);
    bad.detach();
    assert!(!server.log().contains("panicked"), "{}", server.log());
    server.stop();
}

#[test]
fn a_client_that_does_not_read_its_answers_stops_only_itself() {
    let home = Home::new();
    let bytes = content::image(32, MIB);
    home.import("golden", &bytes);
    home.disk("good", "golden");
    let server = home.serve();
    let mut stuck: Vec<Client> =
        (0..4).map(|_| Client::attach(server.socket(), "golden")).collect();
    for client in &mut stuck {
        let storm: Vec<u8> = (0..64).flat_map(|cookie| header(READ, cookie, 0, 1 << 20)).collect();
        client.stream().write_all(&storm).unwrap();
    }
    let mut good = Client::attach(server.socket(), "good");
    for part in 0..2 {
        let got = good.read(part << 23, 8 << 20);
        content::assert_same("good", &got, &bytes[(part as usize) << 23..][..8 << 20]);
    }
    assert_eq!(good.write(0, &[1; 4096]), 0);
    good.detach();
    drop(stuck);
    server.stop();
}

#[test]
fn two_hundred_clients_that_come_at_once_are_all_served() {
    let home = Home::new();
    let bytes = content::image(33, MIB);
    home.import("golden", &bytes);
    let server = home.serve();
    let barrier = std::sync::Barrier::new(200);
    std::thread::scope(|scope| {
        for number in 0..200 {
            let (server, barrier, bytes) = (&server, &barrier, &bytes);
            scope.spawn(move || {
                barrier.wait();
                let mut client = Client::attach(server.socket(), "golden");
                let at = (number * 16) << 10;
                content::assert_same("storm", &client.read(at as u64, 4096), &bytes[at..][..4096]);
                client.detach();
            });
        }
    });
    server.stop();
}

//! Sockets, and what the system was asked of them.

use super::*;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

fn pair() -> (UnixStream, ConnectedSocket) {
    let (peer, socket) = UnixStream::pair().unwrap();
    (peer, ConnectedSocket::new(socket.into_std().unwrap().into()))
}

/// What the system was asked to report of the socket, as epoll's masks.
fn asked(socket: &ConnectedSocket) -> Vec<u32> {
    let mut masks = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for line in info.lines().filter_map(|line| line.strip_prefix("tfd:")) {
            let words: Vec<_> = line.split_whitespace().collect();
            if words[0].parse() == Ok(socket.socket.as_raw_fd()) {
                masks.push(u32::from_str_radix(words[2], 16).unwrap());
            }
        }
    }
    masks
}

const IN: u32 = 1;
const OUT: u32 = 4;

#[tokio::test]
async fn room_is_asked_for_only_while_it_is_missing() {
    let (mut peer, mut stream) = pair();
    peer.write_all(b"ask").await.unwrap();
    let mut buf = [0; 8];
    assert_eq!(stream.read(&mut buf).await.unwrap(), 3);
    stream.write_all(b"answer").await.unwrap();
    let masks = asked(&stream);
    assert!(!masks.is_empty());
    assert!(masks.iter().all(|mask| mask & IN != 0 && mask & OUT == 0), "{masks:x?}");

    // More than the socket holds, so that there is no room until the peer takes some.
    let long = vec![7; 4 << 20];
    let mut got = vec![0; 6 + long.len()];
    let (sent, received) = tokio::join!(stream.write_all(&long), peer.read_exact(&mut got));
    assert!(sent.is_ok() && received.is_ok());
    assert!(got[6..] == long);
    let masks = asked(&stream);
    assert!(masks.iter().all(|mask| mask & (IN | OUT) == IN | OUT), "{masks:x?}");
    for _ in 0..CALM {
        stream.write_all(b"a").await.unwrap();
        peer.read_exact(&mut buf[..1]).await.unwrap();
    }
    assert!(asked(&stream).is_empty(), "room is asked for long after it was missing");
    peer.write_all(b"ask").await.unwrap();
    assert_eq!(stream.read(&mut buf).await.unwrap(), 3);
    assert!(asked(&stream).iter().all(|mask| mask & OUT == 0));
}

/// How many descriptors the process has of the socket.
fn descriptors(stream: &ConnectedSocket) -> usize {
    let is = |name: &Path| std::fs::read_link(name).ok();
    let own = is(&Path::new("/proc/self/fd").join(stream.socket.as_raw_fd().to_string()));
    assert!(own.is_some());
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| is(&entry.path()) == own).count()
}

/// Writes until there is no room.
async fn fill(stream: &mut ConnectedSocket) {
    std::future::poll_fn(|cx| {
        while Pin::new(&mut *stream).poll_write(cx, &[7; 4096]).is_ready() {}
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_takes_nothing_costs_one_descriptor() {
    let (_peer, mut stream) = pair();
    fill(&mut stream).await;
    assert!(!asked(&stream).is_empty());
    assert_eq!(descriptors(&stream), 1);
}

#[tokio::test]
async fn who_waits_for_something_to_read_hears_of_it_although_room_was_asked_for_since() {
    let (mut peer, mut stream) = pair();
    let (waits, waited) = tokio::sync::oneshot::channel();
    // In a task of its own, so that nothing wakes this one but the socket.
    let mut others = tokio::task::JoinSet::new();
    others.spawn(async move {
        waited.await.unwrap();
        peer.write_all(b"ask").await.unwrap();
        peer
    });
    let (mut waits, mut bytes) = (Some(waits), [0; 8]);
    let read = std::future::poll_fn(|cx| {
        let mut buf = ReadBuf::new(&mut bytes);
        if Pin::new(&mut stream).poll_read(cx, &mut buf).is_ready() {
            return Poll::Ready(buf.filled().len());
        }
        // Behind the wait to read, and once.
        if let Some(waits) = waits.take() {
            while Pin::new(&mut stream).poll_write(cx, &[7; 4096]).is_ready() {}
            waits.send(()).unwrap();
        }
        Poll::Pending
    });
    // The deadline first: it wakes the task, too.
    tokio::select! {
        biased;
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it is not heard"),
        got = read => assert_eq!(got, 3),
    }
}

/// Reads once, without the runtime being asked what has come.
async fn read_now(stream: &mut ConnectedSocket, len: usize) -> Option<usize> {
    let mut bytes = vec![0; len];
    std::future::poll_fn(|cx| {
        let mut buf = ReadBuf::new(&mut bytes);
        let read = Pin::new(&mut *stream).poll_read(cx, &mut buf);
        Poll::Ready(read.is_ready().then(|| buf.filled().len()))
    })
    .await
}

#[tokio::test]
async fn what_comes_is_found_by_looking_once_for_each_time_that_was_given() {
    let (peer, mut stream) = pair();
    let peer = peer.into_std().unwrap();
    let watch = stream.watch();
    assert_eq!(read_now(&mut stream, 8).await, None);
    assert!(!asked(&stream).is_empty());
    for round in 1..=2 * FOUND {
        (&peer).write_all(b"ask").unwrap();
        if round < FOUND {
            assert_eq!(read_now(&mut stream, 8).await, None, "nobody told it");
        }
        watch.busy_poll(Duration::from_secs(20));
        assert_eq!(read_now(&mut stream, 8).await, Some(3));
        assert_eq!(asked(&stream).is_empty(), round >= FOUND, "after {round}");
    }
    watch.busy_poll(Duration::from_micros(50));
    assert_eq!(read_now(&mut stream, 8).await, None);
    assert!(!asked(&stream).is_empty(), "it has to be woken again");
    (&peer).write_all(b"late").unwrap();
    let mut buf = [0; 8];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buf));
    assert_eq!(read.await.unwrap().unwrap(), 4);
    drop(peer);
    watch.busy_poll(Duration::from_secs(20));
    assert_eq!(read_now(&mut stream, 8).await, Some(0), "the end is found, too");
}

#[tokio::test(start_paused = true)]
async fn looking_ends_even_when_the_clock_stands() {
    let (_peer, mut stream) = pair();
    stream.watch().busy_poll(Duration::from_millis(1));
    assert_eq!(read_now(&mut stream, 8).await, None);
}

/// What is received and not taken out of the socket.
fn left(socket: &OwnedFd) -> u64 {
    rustix::io::ioctl_fionread(socket).unwrap()
}

#[tokio::test]
async fn several_requests_are_taken_when_their_answers_were_sent_and_others_at_once() {
    let (mut peer, mut stream) = pair();
    let mut buf = vec![0; 8 * SHORT];
    let several = 2 * SINGLE;
    // What stays in the socket is decided by what came before.
    let cases = [(several, 0), (several, several), (SINGLE, SINGLE), (SINGLE, 0), (several, 0)];
    for (sent, stays) in cases {
        peer.write_all(&vec![7; sent]).await.unwrap();
        assert_eq!(stream.read(&mut buf).await.unwrap(), sent);
        assert_eq!(left(&stream.socket), stays as u64);
        stream.write_all(b"answer").await.unwrap();
        assert_eq!(left(&stream.socket), 0);
    }
    // Without an answer in between, and in more pieces than one.
    for byte in [1, 2] {
        peer.write_all(&vec![byte; several + 1]).await.unwrap();
        assert_eq!(stream.read(&mut buf[..several]).await.unwrap(), several);
        assert_eq!(stream.read(&mut buf[several..]).await.unwrap(), 1);
        assert_eq!(buf[..=several], vec![byte; several + 1]);
    }
    peer.write_all(&vec![7; 3 * SHORT]).await.unwrap();
    assert_eq!(stream.read(&mut buf).await.unwrap(), 3 * SHORT);
    assert_eq!(left(&stream.socket), 0);
}

#[tokio::test]
async fn what_was_looked_at_does_not_stay_for_the_next_owner_nor_reset_the_peer() {
    for passed in [false, true] {
        let (mut peer, mut stream) = pair();
        for _ in 0..2 {
            peer.write_all(&[7; 60]).await.unwrap();
            assert_eq!(stream.read(&mut [0; 100]).await.unwrap(), 60);
        }
        assert_eq!(left(&stream.socket), 60);
        match passed {
            true => assert_eq!(left(&stream.into_fd().unwrap()), 0),
            false => drop(stream),
        }
        assert_eq!(peer.read(&mut [0; 100]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn what_was_looked_at_does_not_keep_the_rest_of_a_request_out() {
    let (mut peer, mut stream) = pair();
    // Room for a few pieces only, until they are taken.
    sockopt::set_socket_send_buffer_size(&peer, 4608).unwrap();
    let send = async {
        for _ in 0..64 {
            peer.write_all(&[7; 40]).await.unwrap();
        }
    };
    let receive = async {
        let (mut got, mut buf) = (0, [0; 4096]);
        while got < 64 * 40 {
            got += stream.read(&mut buf).await.unwrap();
        }
    };
    let both = async { tokio::join!(send, receive) };
    tokio::time::timeout(std::time::Duration::from_secs(20), both).await.unwrap();
}

#[tokio::test]
async fn a_peer_that_goes_away_ends_reading_and_writing() {
    let (mut peer, mut stream) = pair();
    let long = vec![7; 4 << 20];
    let leave = async move { peer.read_exact(&mut [0; 1000]).await.map(|_| drop(peer)) };
    let (sent, left) = tokio::join!(stream.write_all(&long), leave);
    assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    left.unwrap();
    let ended = stream.read(&mut [0; 10]).await;
    assert!(matches!(&ended, Ok(0)) || ended.is_err(), "{ended:?}");
}

#[tokio::test]
async fn bytes_arrive_in_order_in_both_directions_however_they_are_cut() {
    let (mut peer, stream) = pair();
    let (mut input, mut output) = tokio::io::split(stream);
    let bytes: Vec<u8> = (0..3u32 << 20).map(|i| (i % 251) as u8).collect();
    let echo = async {
        let mut buf = vec![0; 50_021];
        loop {
            match peer.read(&mut buf).await.unwrap() {
                0 => break peer.shutdown().await.unwrap(),
                n => peer.write_all(&buf[..n]).await.unwrap(),
            }
        }
    };
    let send = async {
        for piece in bytes.chunks(70_001) {
            output.write_all(piece).await.unwrap();
        }
        output.shutdown().await.unwrap();
    };
    let receive = async {
        let mut got = Vec::new();
        input.read_to_end(&mut got).await.unwrap();
        got
    };
    let ((), got, ()) = tokio::join!(send, receive, echo);
    assert!(got == bytes);
}

#[tokio::test]
async fn a_peer_is_waited_for_that_sends_nothing_or_takes_nothing() {
    let (mut peer, mut stream) = pair();
    let watch = stream.watch();
    assert!(watch.is_waited_for());
    peer.write_all(b"ask").await.unwrap();
    assert!(!watch.is_waited_for());
    fill(&mut stream).await;
    assert!(watch.is_waited_for());
    drop(stream);
    assert!(!watch.is_waited_for());
}

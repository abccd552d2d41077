use super::give::Successor;
use super::take::WaitingSuccessor;
use super::wire::EstateItem;
use super::*;
use crate::estate::Estate;
use crate::listen::InheritedListener;
use block::{ErrorKind, Result};
use engine::home::Home;
use nbd::codec::ReplyStyle;
use nbd::codec::option::Reinstatement;
use nbd::server::{ConnectionRemainder, Interrupted, PassedConnection};
use nbd::{Listener, Peer};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

fn home() -> (tempfile::TempDir, Home) {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::find(Some(dir.path())).unwrap();
    (dir, home)
}

async fn accepted(waiting: WaitingSuccessor) -> Result<Estate> {
    let mut offer = waiting.take().await?;
    offer.accept().await?;
    Ok(offer.estate)
}

#[tokio::test]
async fn what_was_offered_and_not_accepted_stays_where_it_was() {
    let (dir, home) = home();
    let path = dir.path().join("s");
    let listener = Listener::bind(&nbd::Address::unix(&path).unwrap(), 16).await.unwrap();
    let had = InheritedListener { asked: None, listener: listener.share().unwrap() };
    let estate = Estate { listeners: vec![had], ..Estate::default() };
    let waiting = WaitingSuccessor::listen(&home).unwrap();
    let give = async {
        let mut successor = Successor::connect(&home).await.unwrap();
        successor.greet(Duration::ZERO).await.unwrap();
        successor.give(&estate).await.unwrap_err()
    };
    let refuse = async { drop(waiting.take().await.unwrap()) };
    let (error, ()) = tokio::join!(give, refuse);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(path.exists(), "the file is the first server's");
    listener.keep_file();
    drop((listener, estate));
    assert!(!path.exists());
}

#[tokio::test]
async fn sockets_and_what_is_known_of_them_arrive() {
    let (dir, home) = home();
    let path = dir.path().join("s");
    let listener = Listener::bind(&nbd::Address::unix(&path).unwrap(), 16).await.unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let peer = Peer::unix(7, Some(9)).certified("alice".to_owned());
    peer.note_asked("d\u{e9}bian:latest");
    let session = Interrupted {
        peer,
        export: "d\u{e9}bian".to_owned(),
        style: ReplyStyle::Extended,
        allocation: true,
        size: 1 << 40,
        read_only: false,
        content: Some("disk 07 1".to_owned()),
        order: Some(1 << 60),
        reinstates: Some(Reinstatement { id: [9; 16], number: u64::MAX }),
        rest: ConnectionRemainder {
            received: (0..200_000).map(|i| i as u8).collect(),
            unsent: (0..3_000_000).map(|i| (i % 199) as u8).collect(),
            skip: 1 << 31,
        },
    };
    let shared = listener.share().unwrap();
    let estate = Estate {
        listeners: vec![InheritedListener { asked: Some("unix:s".to_owned()), listener: shared }],
        http: None,
        gateway: None,
        clients: vec![PassedConnection {
            stream: theirs.into(),
            session: session.clone(),
            carrier: None,
            place: None,
        }],
    };
    let waiting = WaitingSuccessor::listen(&home).unwrap();
    let give = async {
        let mut successor = Successor::connect(&home).await.unwrap();
        assert_eq!(successor.pid, Some(std::process::id() as i32));
        successor.greet(Duration::from_secs(7)).await.unwrap();
        successor.give(&estate).await.unwrap();
    };
    let (taken, ()) = tokio::join!(accepted(waiting), give);
    let taken = taken.unwrap();
    drop((estate, listener));
    assert!(!home.successor().exists());
    taken.listeners[0].listener.keep_file();
    assert_eq!(taken.clients[0].session, session);
    let asked = taken.clients[0].session.peer.asked();
    assert_eq!(asked.as_deref(), Some("d\u{e9}bian:latest"));
    assert_eq!(taken.listeners[0].asked.as_deref(), Some("unix:s"));
    let mut passed =
        std::os::unix::net::UnixStream::from(taken.clients[0].stream.try_clone().unwrap());
    std::io::Write::write_all(&mut passed, b"x").unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(&mut &ours, &mut byte).unwrap();
    assert_eq!(byte, *b"x");
    assert!(path.exists(), "the file is the successor's now");
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    drop(taken);
    assert!(!path.exists());
}

#[test]
fn servers_that_do_not_know_what_was_asked_for_and_that_know_more_are_understood() {
    let item = |more: &str| {
        let json = format!(
            r#"{{"item": "client", "via": "stdio", "identity": "stdio", "certificate": null,
                "export": "d", "style": "simple", "allocation": false, "size": 1,
                "read_only": true{more}}}"#
        );
        match serde_json::from_str(&json).unwrap() {
            EstateItem::Client(one) => (one.asked, one.content, one.order),
            other => panic!("{other:?}"),
        }
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(item(""), (None, None, None));
    assert_eq!(item(r#", "asked": "e", "later": [1]"#), (text("e"), None, None));
    assert_eq!(item(r#", "content": "c", "order": 7"#), (None, text("c"), Some(7)));
}

#[tokio::test(start_paused = true)]
async fn a_server_has_as_long_as_it_said_to_wait_for_its_disks() {
    for (said, comes_after, comes) in [(300, 290, true), (10, 290, false), (0, 50, true)] {
        let (_dir, home) = home();
        let waiting = WaitingSuccessor::listen(&home).unwrap();
        let give = async {
            let mut successor = Successor::connect(&home).await.unwrap();
            successor.greet(Duration::from_secs(said)).await.unwrap();
            tokio::time::sleep(Duration::from_secs(comes_after)).await;
            successor.give(&Estate::default()).await
        };
        let (taken, given) = tokio::join!(accepted(waiting), give);
        assert_eq!((taken.is_ok(), given.is_ok()), (comes, comes), "{said} {comes_after}");
    }
}

#[tokio::test]
async fn a_successor_that_goes_away_is_an_error_and_so_is_nonsense() {
    let (_dir, home) = home();
    assert_eq!(Successor::connect(&home).await.err().unwrap().kind(), ErrorKind::Unavailable);
    let waiting = WaitingSuccessor::listen(&home).unwrap();
    let mut successor = Successor::connect(&home).await.unwrap();
    drop(waiting);
    let error = successor.give(&Estate::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SJHO\xff\xff\xff\xff\0\0\0\0", b"SJHO"] {
        let waiting = WaitingSuccessor::listen(&home).unwrap();
        let mut stream = UnixStream::connect(home.successor()).await.unwrap();
        stream.write_all(nonsense).await.unwrap();
        drop(stream);
        assert!(waiting.take().await.is_err());
    }
}

//! Machines whose power is cut and that begin anew at once: the server still has the connections of their old systems.

use crate::common::{Lab, Server};
use block::{Device, Durability, ErrorKind, Result, Span};
use nbd::codec::option::Reinstatement;
use nbd::{ClientOptions, Remote, Uri};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const AT: Span = Span::between(0, 4096);

/// How the helper of a machine's initial RAM disk connects, in this run of the machine.
fn machine(run: u8, number: u64, begins: bool) -> ClientOptions {
    ClientOptions {
        reconnect: Duration::ZERO,
        reinstates: Some(Reinstatement { id: [run; 16], number }),
        initial_contact: begins,
        ..ClientOptions::default()
    }
}

async fn put(disk: &Remote, byte: u8) {
    disk.write(AT, &[byte; 4096], Durability::Durable).await.unwrap();
}

async fn get(disk: &Remote) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    disk.read(AT, &mut bytes).await.map(|()| bytes)
}

/// A server by TCP, too, and where.
fn serve(lab: &Lab) -> (Server, String) {
    let server = lab.serve(&[
        "--nbd",
        "127.0.0.1:0",
        "--nbd",
        &format!("unix:{}", lab.nbd_socket().display()),
    ]);
    let listeners = lab.json("status")["listeners"].clone();
    let listeners = listeners.as_array().unwrap().iter().map(|one| one.as_str().unwrap());
    let tcp = listeners.filter(|one| one.starts_with("127.")).collect::<Vec<_>>();
    (server, tcp[0].to_owned())
}

async fn connect(at: &str, disk: &str, options: ClientOptions) -> Result<Remote> {
    let uri: Uri = format!("nbd://{at}/{disk}").parse()?;
    Remote::connect(&uri, options).await
}

/// Looks at an export as netboot does.
async fn look(lab: &Lab, export: &str) -> Remote {
    let control = lab.home().join("control.sock");
    let mut stream = UnixStream::connect(&control).await.unwrap();
    let asked = b"POST /v1/look HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: nbd\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(asked).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    let uri = format!("nbd+unix:///{export}?socket={}", control.display()).parse().unwrap();
    Remote::over(Box::new(stream), &uri, ClientOptions::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_begins_anew_has_what_it_flushed_and_an_ephemeral_disk_as_new() {
    let (lab, golden) = Lab::with_image();
    lab.line("disk create kept --from debian").ok();
    lab.line("disk create kiosk --from debian --ephemeral").ok();
    let (server, at) = serve(&lab);
    for (disk, found) in [("kept", vec![7; 4096]), ("kiosk", golden[..4096].to_vec())] {
        let old = connect(&at, disk, machine(1, 1, true)).await.unwrap();
        put(&old, 7).await;
        // The same system after a cut: what it wrote is there.
        let mended = connect(&at, disk, machine(1, 2, false)).await.unwrap();
        assert_eq!(get(&mended).await.unwrap(), [7; 4096], "{disk}");
        // Its power is cut: no connection says so.
        let new = connect(&at, disk, machine(2, 1, true)).await.unwrap();
        assert!(get(&new).await.unwrap() == found, "{disk}");
        put(&new, 8).await;
        for over in [old, mended] {
            over.write(AT, &[9; 4096], Durability::Durable).await.unwrap_err();
        }
        assert_eq!(get(&new).await.unwrap(), [8; 4096], "{disk}");
        let other = server.attach(disk).await.unwrap_err();
        assert!(other.message().contains("is attached by ip:127.0.0.1"), "{other}");
        new.close().await;
    }
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_ends_the_connections_of_a_machine_by_saying_that_it_begins() {
    let lab = Lab::with_image().0;
    lab.line("disk create kept --from debian").ok();
    let (server, at) = serve(&lab);
    let own = connect(&at, "kept", machine(1, 1, true)).await.unwrap();
    put(&own, 7).await;
    let uri: Uri = server.uri("kept").parse().unwrap();
    let refused = Remote::connect(&uri, machine(2, 1, true)).await.unwrap_err();
    assert!(refused.message().contains("is attached by ip:127.0.0.1"), "{refused}");
    put(&own, 8).await;
    own.close().await;
    assert_eq!(server.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_in_use_can_be_looked_at_through_the_control_socket_and_its_client_does_not_notice()
{
    let (lab, golden) = Lab::with_image();
    lab.line("disk create kept --from debian").ok();
    let (server, _) = serve(&lab);
    let own = server.attach("kept").await.unwrap();
    put(&own, 7).await;
    let (disk, image) = (look(&lab, "kept").await, look(&lab, "debian:1").await);
    assert_eq!(get(&disk).await.unwrap(), [7; 4096]);
    assert!(get(&image).await.unwrap() == golden[..4096]);
    put(&own, 8).await;
    assert_eq!(get(&disk).await.unwrap(), [8; 4096], "as it is now");
    let denied = disk.write(AT, &[9; 4096], Durability::Durable).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);
    let exports = lab.json("status")["exports"].clone();
    assert_eq!(exports.as_array().unwrap().len(), 1, "{exports}");
    // Neither a client nor the server waits for who looks.
    own.close().await;
    let next = server.attach("kept").await.unwrap();
    put(&next, 9).await;
    next.close().await;
    assert_eq!(server.stop(), 0);
    get(&disk).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_does_not_keep_a_disk_from_a_successor() {
    /// Ends the successor, of which the test is not the parent.
    struct Follower<'a>(&'a Lab);
    impl Drop for Follower<'_> {
        fn drop(&mut self) {
            let _ = self.0.command(["drain", "--timeout", "0"]).output();
        }
    }
    let lab = Lab::with_image().0;
    lab.line("disk create kept --from debian").ok();
    let (mut server, at) = serve(&lab);
    let own = connect(&at, "kept", machine(1, 1, true)).await.unwrap();
    put(&own, 7).await;
    let before = look(&lab, "kept").await;
    assert_eq!(get(&before).await.unwrap(), [7; 4096]);
    let _follower = Follower(&lab);
    lab.json("drain --to-successor");
    assert_eq!(server.wait(), 0);
    put(&own, 8).await;
    assert_eq!(get(&look(&lab, "kept").await).await.unwrap(), [8; 4096]);
    // A system that begins ends connections that another process had accepted, too.
    let new = connect(&at, "kept", machine(2, 1, true)).await.unwrap();
    assert_eq!(get(&new).await.unwrap(), [8; 4096]);
    own.write(AT, &[9; 4096], Durability::Durable).await.unwrap_err();
    new.close().await;
}

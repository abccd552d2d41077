//! The HTTP routes, as iPXE uses them.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use block::{Error, Result};
use bytes::Bytes;
use netboot::http::RequestAddress;
use netboot::identity::Claim;
use netboot::kernel::BootFile;
use netboot::script::Script;
use netboot::{BootDecision, BootRequest, Machines, http};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tower_service::Service;

struct One;

const MINE: &str = "52:54:00:00:00:01";

#[async_trait]
impl Machines for One {
    fn judge(&self, machine: &Claim) -> BootDecision {
        if machine.mac.to_string() == MINE { BootDecision::Boot } else { BootDecision::Ignore }
    }

    async fn script(&self, request: &BootRequest) -> Option<Script> {
        (self.judge(&request.machine) == BootDecision::Boot).then_some(Script::Wait)
    }

    async fn length(&self, _: &BootRequest, _: BootFile) -> Result<u64> {
        Ok(3_000_000)
    }

    async fn file(&self, request: &BootRequest, which: BootFile) -> Result<Bytes> {
        match (self.judge(&request.machine), which) {
            (BootDecision::Boot, BootFile::Kernel) => Ok(vec![5; 3_000_000].into()),
            (BootDecision::Boot, BootFile::Initrd) => Err(Error::conflict("in use")),
            _ => Err(Error::not_found("not one of ours")),
        }
    }
}

/// A machine whose RAM disk takes more than half of the memory.
#[derive(Default)]
struct Large {
    reads: AtomicUsize,
}

#[async_trait]
impl Machines for Large {
    fn judge(&self, _: &Claim) -> BootDecision {
        BootDecision::Boot
    }

    async fn script(&self, _: &BootRequest) -> Option<Script> {
        None
    }

    async fn length(&self, _: &BootRequest, _: BootFile) -> Result<u64> {
        Ok(600 << 20)
    }

    async fn file(&self, _: &BootRequest, _: BootFile) -> Result<Bytes> {
        self.reads.fetch_add(1, Relaxed);
        // More than sockets hold.
        Ok(vec![5; 64 << 20].into())
    }
}

#[tokio::test]
async fn a_file_is_not_read_before_there_is_room_for_all_of_it() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    let machines = Arc::new(Large::default());
    let router = http::router(Arc::clone(&machines) as _, [].into(), format!("http://{server}"));
    let serving = async { axum::serve(socket, router).await.unwrap() };
    let path = format!("/machine/{MINE}/initrd");
    let asking = async {
        let mut slow = TcpStream::connect(server).await.unwrap();
        slow.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        slow.read_u8().await.unwrap();
        let second = get(server, &path);
        let mut second = std::pin::pin!(second);
        let moment = Duration::from_millis(300);
        assert!(tokio::time::timeout(moment, &mut second).await.is_err());
        assert_eq!(machines.reads.load(Relaxed), 1);
        drop(slow);
        assert_eq!(second.await.1.len(), 64 << 20);
    };
    tokio::select! {
        () = serving => panic!("it ended"),
        () = asking => {}
    }
}

/// Asks without a socket, so that time may stand still.
async fn ask(router: &axum::Router, path: &str) -> (u16, Body) {
    ask_from(router, 1, path).await
}

/// The same from the address with this last number.
async fn ask_from(router: &axum::Router, last: u8, path: &str) -> (u16, Body) {
    let mut request = Request::builder().uri(path).body(Body::empty()).unwrap();
    request.extensions_mut().insert(RequestAddress(Ipv4Addr::new(10, 0, 0, last).into()));
    let answer = router.clone().call(request).await.unwrap();
    (answer.status().as_u16(), answer.into_body())
}

#[tokio::test(start_paused = true)]
async fn an_address_that_asks_for_ever_more_keeps_no_other_one_waiting() {
    let router = http::router(Arc::new(One), [].into(), "http://x".to_owned());
    let kernel = format!("/machine/{MINE}/kernel");
    let mut taken = Vec::new();
    let refused = loop {
        let (status, body) = ask_from(&router, 7, &kernel).await;
        if status != 200 {
            break (status, axum::body::to_bytes(body, 1000).await.unwrap());
        }
        taken.push(body);
    };
    assert_eq!((refused.0, taken.len()), (503, 4));
    assert!(String::from_utf8_lossy(&refused.1).contains("10.0.0.7"), "{refused:?}");
    assert_eq!(ask_from(&router, 8, &kernel).await.0, 200);
    taken.pop();
    assert_eq!(ask_from(&router, 7, &kernel).await.0, 200);

    let script = format!("/boot.ipxe?mac={MINE}");
    let mut answered = 0;
    for _ in 0..10_000 {
        answered += usize::from(ask_from(&router, 7, &script).await.0 == 200);
    }
    assert_eq!(answered, 10);
    assert_eq!(ask_from(&router, 8, &script).await.0, 200);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(ask_from(&router, 7, &script).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_machine_waits_for_room_so_long_and_is_told_to_ask_again() {
    let machines = Arc::new(Large::default());
    let router = http::router(Arc::clone(&machines) as _, [].into(), "http://x".to_owned());
    let path = format!("/machine/{MINE}/initrd");
    let (status, slow) = ask(&router, &path).await;
    assert_eq!(status, 200);
    let began = Instant::now();
    let (status, why) = ask(&router, &path).await;
    assert_eq!((status, began.elapsed()), (503, Duration::from_secs(120)));
    let why = axum::body::to_bytes(why, 1000).await.unwrap();
    assert!(String::from_utf8_lossy(&why).contains("ask again"), "{why:?}");
    assert_eq!(machines.reads.load(Relaxed), 1);
    drop(slow);
    assert_eq!(ask(&router, &path).await.0, 200);
}

async fn get(server: SocketAddr, path: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer[end + 4..].to_vec())
}

#[tokio::test]
async fn a_machine_gets_its_script_and_its_files_and_a_foreign_one_nothing() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    let firmware = [("snponly.efi", Bytes::from_static(b"MZ"))].into();
    let router = http::router(Arc::new(One), firmware, format!("http://{server}"));
    let serving = async { axum::serve(socket, router).await.unwrap() };
    let asking = async {
        let (status, script) = get(server, &format!("/boot.ipxe?mac={MINE}&uuid=")).await;
        assert_eq!(status, 200);
        let script = String::from_utf8(script).unwrap();
        assert!(
            script.starts_with("#!ipxe") && script.contains(&format!("http://{server}/boot.ipxe"))
        );
        let (status, kernel) = get(server, &format!("/machine/{MINE}/kernel")).await;
        assert_eq!((status, kernel.len()), (200, 3_000_000));
        assert!(kernel.iter().all(|byte| *byte == 5));
        for (path, expected) in [
            (format!("/machine/{MINE}/initrd"), 503),
            ("/machine/52:54:00:00:00:02/kernel".into(), 404),
            ("/boot.ipxe?mac=52:54:00:00:00:02".into(), 404),
            ("/boot.ipxe?mac=x".into(), 400),
            ("/boot.ipxe?mac=52:54:00:00:00:01&uuid=x".into(), 400),
            ("/firmware/other".into(), 404),
            ("/firmware/snponly.efi".into(), 200),
        ] {
            assert_eq!(get(server, &path).await.0, expected, "{path}");
        }
        // Memory is given back: more requests than fit at a time.
        for _ in 0..40 {
            assert_eq!(get(server, &format!("/machine/{MINE}/kernel")).await.0, 200);
        }
    };
    tokio::select! {
        () = serving => panic!("it ended"),
        () = asking => {}
    }
}

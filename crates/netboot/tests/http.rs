//! The HTTP routes, as iPXE uses them.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use async_trait::async_trait;
use block::{Error, Result};
use bytes::Bytes;
use netboot::identity::Claim;
use netboot::kernel::BootFile;
use netboot::script::Script;
use netboot::{BootDecision, Machines, http};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct One;

const MINE: &str = "52:54:00:00:00:01";

#[async_trait]
impl Machines for One {
    fn judge(&self, machine: &Claim) -> BootDecision {
        if machine.mac.to_string() == MINE { BootDecision::Boot } else { BootDecision::Ignore }
    }

    async fn script(&self, machine: &Claim) -> Option<Script> {
        (self.judge(machine) == BootDecision::Boot).then_some(Script::Wait)
    }

    async fn file(&self, machine: &Claim, which: BootFile) -> Result<Bytes> {
        match (self.judge(machine), which) {
            (BootDecision::Boot, BootFile::Kernel) => Ok(vec![5; 3_000_000].into()),
            (BootDecision::Boot, BootFile::Initrd) => Err(Error::conflict("in use")),
            _ => Err(Error::not_found("not one of ours")),
        }
    }
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

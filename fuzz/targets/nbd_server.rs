//! A whole connection: any bytes that a client sends, in one piece or in two.
#![no_main]

use async_trait::async_trait;
use block::{Device, Error, Memory, Result};
use libfuzzer_sys::fuzz_target;
use nbd::{Ending, ExportSummary, Exports, Limits, Peer, Purpose, Server, Session};
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SIZE: u64 = 64 << 10;

struct One;

struct Open(Arc<dyn Device>);

#[async_trait]
impl Exports for One {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(vec![ExportSummary { name: "disk".into(), description: "a disk".into() }])
    }

    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        match name {
            "" | "disk" => Ok(Box::new(Open(Arc::new(Memory::new(SIZE))))),
            _ => Err(Error::not_found("there is no such export")),
        }
    }
}

#[async_trait]
impl Session for Open {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "disk"
    }
    async fn close(self: Box<Self>, _: Ending) {}
}

fuzz_target!(|data: &[u8]| {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let limits = Limits { in_flight_bytes: 1 << 20, max_request: 1 << 20, ..Limits::default() };
        Server::new(Arc::new(One), limits)
    });
    let Some((cut, bytes)) = data.split_first() else { return };
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    sojourn_fuzz::block_on(async {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut replies, mut requests) = tokio::io::split(theirs);
        let send = async {
            for part in [first, second] {
                if requests.write_all(part).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let _ = requests.shutdown().await;
        };
        let receive = async {
            let mut sink = [0; 4096];
            while matches!(replies.read(&mut sink).await, Ok(1..)) {}
        };
        let serve = server.serve_one(ours, Peer::stdio(), std::future::pending());
        let (_, _, _) = tokio::join!(serve, send, receive);
    });
});

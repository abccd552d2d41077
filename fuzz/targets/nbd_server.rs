//! A whole connection: any bytes that a client sends, in one piece or in two.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::{Peer, Server};
use sojourn_fuzz::exports::{One, limits};
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fuzz_target!(|data: &[u8]| {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(|| Server::new(Arc::new(One), limits()));
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

//! What a machine sends over HTTP: any bytes to a connection of the server that sends scripts and boot files. What
//! is answered is HTTP, and a script says nothing that its lines' makers did not mean.
#![no_main]

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use libfuzzer_sys::fuzz_target;
use netboot::http;
use sojourn_fuzz::machines::Everyone;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// More than a connection may answer to an input.
const MOST: usize = 64 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let files = [("snponly.efi", vec![7; 3000].into())].into();
    let router = http::router(Arc::new(Everyone), files, "http://10.0.0.1:8067".into());
    let answer = sojourn_fuzz::block_on_in_no_time(async {
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
            let mut answer = Vec::new();
            let mut room = [0; 4096];
            while let Ok(count @ 1..) = replies.read(&mut room).await {
                answer.extend_from_slice(&room[..count]);
                assert!(answer.len() < MOST, "it goes on for ever");
            }
            answer
        };
        let service = TowerToHyperService::new(router);
        let serve = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(ours), service);
        let all = async { tokio::join!(serve, send, receive).2 };
        tokio::time::timeout(Duration::from_secs(3600), all).await.expect("it ends")
    });
    if !answer.is_empty() {
        assert!(answer.starts_with(b"HTTP/1."), "{:?}", &answer[..answer.len().min(64)]);
    }
    for answer in String::from_utf8_lossy(&answer).split("HTTP/1.") {
        if let Some((head, script)) = answer.split_once("\r\n\r\n#!ipxe\n")
            && head.contains(" 200 OK")
        {
            script.lines().filter(|line| !line.is_empty()).for_each(check);
        }
    }
});

/// A line of a script is one that this server writes, and what it shows is nothing that iPXE would carry out.
fn check(line: &str) {
    let word = line.split(' ').next().unwrap_or_default();
    let known = [
        "echo", "set", "iseq", "exit", "sanboot", "kernel", "initrd", "boot", "sleep", "chain",
        "menu", "item", "choose", "goto", "shell", "isset", "login", "clear", ":failed", ":menu",
        ":chosen", ":ask",
    ];
    assert!(known.contains(&word), "{line:?}");
    let own = ["http://10.0.0.1:8067/boot.ipxe?mac=", "http://10.0.0.1:8067/machine/"];
    let ok = match word {
        "chain" | "kernel" | "initrd" => own.iter().any(|own| line.contains(own)),
        "set" => ["set initiator-iqn ", "set secret "].iter().any(|set| line.starts_with(set)),
        "sanboot" => line.starts_with("sanboot iscsi:10.0.0.1::3260:0:"),
        _ => true,
    };
    assert!(ok, "{line:?}");
    if matches!(word, "echo" | "menu" | "item") {
        assert!(!["${", "||", "&&"].iter().any(|own| line.contains(own)), "{line:?}");
    }
}

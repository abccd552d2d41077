//! A whole connection to a server that encrypts: any bytes in place of TLS, behind the answer to
//! `STARTTLS`, and inside, from clients that the server lets in and from others.
//!
//! The first byte of an input says whether TLS is required (bit 0), what the client does (bits 1 and
//! 2), how it ends (bits 3 and 4), and how many options it sends before `STARTTLS` (bits 5 and 6); the
//! second where what it sends is cut in two. Such an option is its code, its length, and its body.
#![no_main]

use async_trait::async_trait;
use block::Result;
use libfuzzer_sys::fuzz_target;
use nbd::codec::Parsed;
use nbd::codec::constants::{OPTION_MAGIC, option, option_reply};
use nbd::codec::option::{ClientFlags, GREETING, OptionReplyHeader, OptionRequest, REPLY_HEADER};
use nbd::{ExportSummary, Exports, Peer, Purpose, Server, Session, Tls};
use sojourn_fuzz::exports::{One, limits};
use sojourn_fuzz::tls::{CLIENT, Shows, TlsClient, World};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What a client does.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// It sends bytes from the beginning.
    Plain,
    /// It sends bytes as soon as it may encrypt.
    Garbage,
    /// It encrypts them.
    Encrypts,
    /// It encrypts them, and is somebody whom the server does not know.
    Stranger,
}

/// How a client that encrypts ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// It says so.
    Said,
    /// It closes the connection without a word.
    CutOff,
    /// It closes the connection in the middle of a record.
    CutShort,
    /// It sends a record that is not what it was.
    Damaged,
}

struct Case<'a> {
    required: bool,
    way: Way,
    end: End,
    /// Options before `STARTTLS`.
    before: Vec<u8>,
    parts: [&'a [u8]; 2],
}

impl<'a> Case<'a> {
    fn of(data: &'a [u8]) -> Option<Self> {
        let [selector, cut, rest @ ..] = data else { return None };
        let (mut rest, mut before) = (rest, Vec::new());
        for _ in 0..selector >> 5 & 3 {
            let [code, len, body @ ..] = rest else { return None };
            let (body, left) = body.split_at_checked(usize::from(*len))?;
            rest = left;
            // These two end the negotiation, and so what comes behind them is not answered.
            if [option::EXPORT_NAME, option::GO].contains(&u32::from(*code)) {
                return None;
            }
            before.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
            before.extend_from_slice(&u32::from(*code).to_be_bytes());
            before.extend_from_slice(&u32::from(*len).to_be_bytes());
            before.extend_from_slice(body);
        }
        let (first, second) = rest.split_at(usize::from(*cut).min(rest.len()));
        Some(Self {
            required: selector & 1 != 0,
            way: [Way::Plain, Way::Garbage, Way::Encrypts, Way::Stranger]
                [usize::from(selector >> 1 & 3)],
            end: [End::Said, End::CutOff, End::CutShort, End::Damaged]
                [usize::from(selector >> 3 & 3)],
            before,
            parts: [first, second],
        })
    }

    fn shows(&self) -> Shows {
        match (self.way, self.end) {
            (Way::Stranger, End::Said | End::CutOff) => Shows::Nothing,
            (Way::Stranger, _) => Shows::Foreign,
            _ => Shows::Known,
        }
    }
}

/// The export, which nobody may ask for who ought not to get so far.
struct Watched {
    required: bool,
    encrypts: bool,
}

impl Watched {
    fn check(&self, peer: &Peer) {
        match peer.certificate.as_deref() {
            None => assert!(!self.required, "served before TLS"),
            Some(name) => assert!(self.encrypts && name == CLIENT, "a stranger was let in"),
        }
    }
}

#[async_trait]
impl Exports for Watched {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        self.check(peer);
        One.list(peer).await
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        self.check(peer);
        One.open(name, peer, purpose).await
    }
}

/// Sends each of these, until the server closes, and then nothing more.
async fn send(requests: &mut (impl AsyncWrite + Unpin), parts: &[&[u8]]) {
    for part in parts {
        if requests.write_all(part).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let _ = requests.shutdown().await;
}

/// Takes what comes, to the end.
async fn receive(replies: &mut (impl AsyncRead + Unpin), mut each: impl FnMut(&[u8])) {
    let mut room = [0; 4096];
    while let Ok(got @ 1..) = replies.read(&mut room).await {
        each(&room[..got]);
    }
}

/// Asks for TLS, after the options before; whether the server agrees. Where TLS is required all that
/// these get is told so.
async fn agree(
    replies: &mut (impl AsyncRead + Unpin),
    requests: &mut (impl AsyncWrite + Unpin),
    case: &Case<'_>,
) -> bool {
    let mut out = Vec::new();
    ClientFlags { fixed_newstyle: true, no_zeroes: true }.put(&mut out);
    out.extend_from_slice(&case.before);
    OptionRequest::StartTls.put(&mut out);
    if requests.write_all(&out).await.is_err() {
        return false;
    }
    if replies.read_exact(&mut [0; GREETING]).await.is_err() {
        return false;
    }
    let mut header = [0; REPLY_HEADER];
    while replies.read_exact(&mut header).await.is_ok() {
        let Ok(Parsed::Complete(header, _)) = OptionReplyHeader::parse(&header) else {
            panic!("no reply to an option");
        };
        let mut body = vec![0; header.len as usize];
        if replies.read_exact(&mut body).await.is_err() {
            return false;
        }
        match header.option {
            option::STARTTLS => return header.kind == option_reply::ACK,
            option::ABORT => {}
            _ if case.required => assert_eq!(header.kind, option_reply::ERR_TLS_REQD),
            _ => {}
        }
    }
    false
}

/// The client's part of the handshake, but for the last that it sends; false when the server closed.
async fn shake_hands(
    replies: &mut (impl AsyncRead + Unpin),
    requests: &mut (impl AsyncWrite + Unpin),
    tls: &mut TlsClient,
) -> bool {
    let mut room = [0; 4096];
    loop {
        if requests.write_all(&tls.to_send()).await.is_err() {
            return false;
        }
        let Ok(got @ 1..) = replies.read(&mut room).await else { return false };
        tls.take(&room[..got]).expect("the server's part of the handshake");
        if tls.has_shaken_hands() {
            return true;
        }
    }
}

async fn client(stream: impl AsyncRead + AsyncWrite, case: &Case<'_>) {
    let (mut replies, mut requests) = tokio::io::split(stream);
    if case.way == Way::Plain {
        let sent = send(&mut requests, &case.parts);
        tokio::join!(sent, receive(&mut replies, |_| ()));
        return;
    }
    if !agree(&mut replies, &mut requests, case).await {
        let _ = requests.shutdown().await;
        return receive(&mut replies, |_| ()).await;
    }
    if case.way == Way::Garbage {
        let mut begun = false;
        let is_tls = |bytes: &[u8]| {
            // Change of cipher, alert, handshake (RFC 8446, 5.1).
            assert!(begun || (20..=22).contains(&bytes[0]), "unencrypted behind STARTTLS");
            begun = true;
        };
        let sent = send(&mut requests, &case.parts);
        tokio::join!(sent, receive(&mut replies, is_tls));
        return;
    }
    let mut tls = World::shared().client(case.shows());
    let shaken = shake_hands(&mut replies, &mut requests, &mut tls).await;
    assert!(shaken, "the server does not answer a client that does nothing wrong");
    let [first, second] = case.parts.map(|part| tls.seal(part));
    let mut last = tls.close();
    match case.end {
        End::Said => {}
        End::CutOff => last.clear(),
        End::CutShort => last.truncate(last.len() - 1),
        End::Damaged => last.iter_mut().rev().take(1).for_each(|byte| *byte ^= 1),
    }
    let in_order = case.way == Way::Encrypts && case.end != End::Damaged;
    let mut told = Ok(());
    let check = |bytes: &[u8]| {
        if told.is_ok() {
            told = tls.take(bytes);
        }
    };
    let sent = [first, second, last];
    let sent = sent.each_ref().map(Vec::as_slice);
    tokio::join!(send(&mut requests, &sent), receive(&mut replies, check));
    match told {
        Ok(()) => {}
        Err(rustls::Error::AlertReceived(_)) => assert!(!in_order, "an alert without a reason"),
        Err(error) => panic!("what came inside TLS is damaged: {error}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(case) = Case::of(data) else { return };
    let exports = Watched { required: case.required, encrypts: case.way == Way::Encrypts };
    let server = Server::new(Arc::new(exports), limits());
    let credentials = Arc::clone(&World::shared().credentials);
    let tls = Tls { required: case.required, credentials };
    sojourn_fuzz::block_on(async {
        let (ours, theirs) = tokio::io::duplex(4096);
        let stop = std::future::pending();
        let serve = server.serve_one_with_tls(ours, Peer::stdio(), tls, stop);
        let (_, ()) = tokio::join!(serve, client(theirs, &case));
    });
    let left = server.counters();
    assert!(left.connections == 0 && left.clients.is_empty() && left.panics == 0);
    assert!(left.exports.values().all(|export| export.connections == 0));
});

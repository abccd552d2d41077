//! The server under test, and a client that sends any bytes it likes.

use crate::codec::constants::{command, errno};
use crate::codec::option::{
    ClientFlags, InfoRequest, MetaRequest, OptionReplyHeader, OptionRequest,
};
use crate::codec::reply::ReplyHeader;
use crate::codec::request::RequestHeader;
use crate::codec::{Parsed, ReplyStyle, reply};
use crate::server::{
    ExportSummary, Exports, Listener, Peer, Purpose, Server, ServerLimits, Session, SessionEnding,
};
use crate::{Address, ClientOptions, Remote, Uri};
use async_trait::async_trait;
use block::{Device, Error, Memory, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Exports by name, and how their sessions ended.
#[derive(Default)]
pub(crate) struct Shelf {
    pub(crate) devices: BTreeMap<String, Arc<dyn Device>>,
    pub(crate) endings: Arc<Mutex<Vec<(String, SessionEnding)>>>,
}

struct Open {
    name: String,
    device: Arc<dyn Device>,
    purpose: Purpose,
    endings: Arc<Mutex<Vec<(String, SessionEnding)>>>,
}

#[async_trait]
impl Exports for Shelf {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        let summary = |name: &String| ExportSummary {
            name: name.clone(),
            description: format!("the device {name}"),
        };
        Ok(self.devices.keys().map(summary).collect())
    }

    async fn open(&self, name: &str, _: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        if name == "private" {
            return Err(Error::conflict("disk private is used by pid:1"));
        }
        let name = if name.is_empty() { "disk" } else { name };
        let device = self.devices.get(name);
        let device =
            device.ok_or_else(|| Error::not_found(format!("there is no export {name:?}")))?;
        let endings = Arc::clone(&self.endings);
        let device = Arc::clone(device);
        Ok(Box::new(Open { name: name.to_owned(), device, purpose, endings }))
    }
}

#[async_trait]
impl Session for Open {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn description(&self) -> Option<&str> {
        Some("a test device")
    }
    fn content(&self) -> Option<String> {
        Some("as it was made".into())
    }
    async fn close(self: Box<Self>, ending: SessionEnding) {
        if self.purpose == Purpose::Use {
            self.endings.lock().unwrap().push((self.name, ending));
        }
    }
}

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) endings: Arc<Mutex<Vec<(String, SessionEnding)>>>,
    pub(crate) clients: JoinSet<Result<()>>,
}

impl Rig {
    /// A server of one device, called `disk`.
    pub(crate) fn new(device: impl Device + 'static) -> Self {
        Self::with(device, ServerLimits::default())
    }

    pub(crate) fn with(device: impl Device + 'static, limits: ServerLimits) -> Self {
        let mut shelf = Shelf::default();
        shelf.devices.insert("disk".to_owned(), Arc::new(device));
        let endings = Arc::clone(&shelf.endings);
        Self { server: Server::new(Arc::new(shelf), limits), endings, clients: JoinSet::new() }
    }

    /// A client whose stream holds this many bytes each way.
    pub(crate) fn connect_with(&mut self, room: usize) -> (Prober, oneshot::Sender<()>) {
        self.connect_as(Peer::stdio(), room)
    }

    /// The same for a connection of `peer`.
    pub(crate) fn connect_as(&mut self, peer: Peer, room: usize) -> (Prober, oneshot::Sender<()>) {
        let (mine, theirs) = tokio::io::duplex(room);
        let server = self.server.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        self.clients.spawn(async move {
            let stop = async {
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            server.serve_one(theirs, peer, stop).await
        });
        (Prober { stream: mine, style: ReplyStyle::Simple }, stop)
    }

    pub(crate) fn connect(&mut self) -> Prober {
        self.connect_with(1 << 20).0
    }

    /// A client that uses `disk` in this style.
    pub(crate) async fn attach(&mut self, style: ReplyStyle) -> Prober {
        let mut prober = self.connect();
        prober.attach(style).await;
        prober
    }

    /// Waits for the end of one connection.
    pub(crate) async fn ended(&mut self) -> Result<()> {
        let ended = tokio::time::timeout(Duration::from_secs(20), self.clients.join_next());
        ended.await.expect("the connection does not end").unwrap().expect("a panic")
    }
}

/// A server on real sockets.
pub(crate) struct Daemon {
    pub(crate) server: Server,
    pub(crate) address: Address,
    stop: Option<oneshot::Sender<()>>,
    tasks: JoinSet<Result<()>>,
    _dir: tempfile::TempDir,
}

impl Daemon {
    pub(crate) async fn start(tcp: bool, limits: ServerLimits) -> Self {
        Self::of(tcp, limits, Memory::from(vec![3; 1 << 20])).await
    }

    /// A server of one device, called `disk`.
    pub(crate) async fn of(tcp: bool, limits: ServerLimits, device: impl Device + 'static) -> Self {
        let mut shelf = Shelf::default();
        shelf.devices.insert("disk".into(), Arc::new(device));
        Self::serve(tcp, limits, shelf).await
    }

    pub(crate) async fn serve(
        tcp: bool,
        limits: ServerLimits,
        exports: impl Exports + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = match tcp {
            true => Address::Tcp("127.0.0.1".into(), 0),
            false => Address::unix(dir.path().join("s")).unwrap(),
        };
        let server = Server::new(Arc::new(exports), limits);
        let listener = Listener::bind(&address, 4096).await.unwrap();
        let address = listener.address().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut tasks = JoinSet::new();
        let serving = server.clone();
        tasks.spawn(async move {
            serving
                .serve(listener, async {
                    let _ = stopped.await;
                })
                .await
        });
        Self { server, address, stop: Some(stop), tasks, _dir: dir }
    }

    pub(crate) async fn remote(&self) -> Result<Remote> {
        let options = ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() };
        Remote::connect(&Uri::new(self.address.clone(), "disk"), options).await
    }

    pub(crate) async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}

/// A reply to a request, in any style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) text: String,
    /// Data of a read; the whole payload of a block status.
    pub(crate) data: Vec<u8>,
    /// The type of the chunk; 0 for simple replies.
    pub(crate) kind: u16,
}

pub(crate) struct Prober<S = DuplexStream> {
    pub(crate) stream: S,
    pub(crate) style: ReplyStyle,
}

pub(crate) fn request(command: u16, flags: u16, offset: u64, len: u64) -> RequestHeader {
    RequestHeader { flags, command, cookie: offset ^ 0xabcd, offset, len }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Prober<S> {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let sent = tokio::time::timeout(Duration::from_secs(20), self.stream.write_all(bytes));
        sent.await.expect("the server does not read").expect("the server closed");
    }

    pub(crate) async fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let got = tokio::time::timeout(Duration::from_secs(20), self.stream.read_exact(&mut bytes));
        got.await.expect("the server does not answer").expect("the server closed");
        bytes
    }

    /// Whether the server closes the connection, after any bytes.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let end = self.stream.read_to_end(&mut rest);
        tokio::time::timeout(Duration::from_secs(20), end).await.is_ok()
    }

    pub(crate) async fn greet(&mut self) {
        assert_eq!(self.receive(18).await, b"NBDMAGICIHAVEOPT\0\x03");
        let mut out = Vec::new();
        ClientFlags { fixed_newstyle: true, no_zeroes: true }.put(&mut out);
        self.send(&out).await;
    }

    /// The kind and body of the next reply to an option.
    pub(crate) async fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        let header = self.receive(20).await;
        let Ok(Parsed::Complete(header, _)) = OptionReplyHeader::parse(&header) else {
            panic!("{header:?}")
        };
        assert_eq!(header.option, option, "out of step");
        (header.kind, self.receive(header.len as usize).await)
    }

    /// Sends an option; gives all replies up to an ACK or an error.
    pub(crate) async fn option(&mut self, request: &OptionRequest<'_>) -> Vec<(u32, Vec<u8>)> {
        let mut out = Vec::new();
        request.put(&mut out);
        self.send(&out).await;
        self.replies(request.code()).await
    }

    /// Sends an option of any body.
    pub(crate) async fn raw_option(&mut self, code: u32, body: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(body);
        self.send(&out).await;
        self.replies(code).await
    }

    async fn replies(&mut self, code: u32) -> Vec<(u32, Vec<u8>)> {
        let mut list = Vec::new();
        loop {
            let (kind, body) = self.option_reply(code).await;
            let last = kind == 1 || kind >> 31 == 1;
            list.push((kind, body));
            if last {
                return list;
            }
        }
    }

    pub(crate) async fn attach(&mut self, style: ReplyStyle) {
        self.greet().await;
        self.style = style;
        let choice = match style {
            ReplyStyle::Simple => None,
            ReplyStyle::Structured => Some(OptionRequest::StructuredReply),
            ReplyStyle::Extended => Some(OptionRequest::ExtendedHeaders),
        };
        if let Some(choice) = choice {
            assert_eq!(self.option(&choice).await, [(1, Vec::new())]);
            let queries = vec!["base:allocation"];
            let meta = OptionRequest::SetMetaContext(MetaRequest { name: "disk", queries });
            assert_eq!(self.option(&meta).await.len(), 2);
        }
        let go = OptionRequest::Go(InfoRequest { name: "disk", wanted: vec![3] });
        assert_eq!(self.option(&go).await.last(), Some(&(1, Vec::new())));
    }

    pub(crate) async fn post(&mut self, request: &RequestHeader, payload: &[u8]) {
        let mut out = Vec::new();
        request.put(self.style, &mut out);
        out.extend_from_slice(payload);
        self.send(&out).await;
    }

    /// The next reply; a successful one without chunk type carries `len` bytes.
    pub(crate) async fn reply(&mut self, len: usize) -> Reply {
        let mut header = self.receive(16).await;
        let parsed = loop {
            match ReplyHeader::parse(self.style, &header).unwrap() {
                Parsed::Complete(parsed, _) => break parsed,
                Parsed::Incomplete(n) => {
                    let more = self.receive(n - header.len()).await;
                    header.extend_from_slice(&more);
                }
            }
        };
        match parsed {
            ReplyHeader::Simple { cookie, error } => {
                let len = if error == 0 { len } else { 0 };
                let data = self.receive(len).await;
                Reply { cookie, error, text: String::new(), data, kind: 0 }
            }
            ReplyHeader::Chunk { cookie, done, kind, len } => {
                assert!(done, "one chunk per reply");
                let mut data = self.receive(len as usize).await;
                let (mut error, mut text) = (0, String::new());
                if kind >> 15 == 1 {
                    (error, text) = reply::parse_error(&data).unwrap();
                } else if kind == 1 {
                    data.drain(..8);
                }
                Reply { cookie, error, text, data, kind }
            }
        }
    }

    /// One request and its reply.
    pub(crate) async fn ask(&mut self, request: &RequestHeader, payload: &[u8]) -> Reply {
        self.post(request, payload).await;
        let len = if request.command == command::READ { request.len as usize } else { 0 };
        let reply = self.reply(len).await;
        assert_eq!(reply.cookie, request.cookie);
        reply
    }

    /// Checks that requests are still understood.
    pub(crate) async fn is_in_step(&mut self) {
        let reply = self.ask(&request(command::READ, 0, 0, 512), &[]).await;
        assert_eq!((reply.error, reply.data.len()), (0, 512));
        let reply = self.ask(&request(99, 0, 0, 0), &[]).await;
        assert_eq!(reply.error, errno::EINVAL);
    }

    pub(crate) async fn disconnect(&mut self) {
        self.post(&request(command::DISCONNECT, 0, 0, 0), &[]).await;
    }

    /// The flags of a write with a payload in this style.
    pub(crate) fn payload_flag(&self) -> u16 {
        if self.style == ReplyStyle::Extended { 1 << 5 } else { 0 }
    }

    pub(crate) async fn write(&mut self, offset: u64, payload: &[u8]) -> Reply {
        let flags = self.payload_flag();
        self.ask(&request(command::WRITE, flags, offset, payload.len() as u64), payload).await
    }

    pub(crate) async fn abort(&mut self) {
        assert_eq!(self.option(&OptionRequest::Abort).await, [(1, Vec::new())]);
        assert!(self.is_closed().await);
    }
}

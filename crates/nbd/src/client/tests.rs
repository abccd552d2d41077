use super::{ClientOptions, Remote, list_exports};
use crate::codec::constants::{chunk, option, option_reply};
use crate::codec::option::{Info, OptionHeader, OptionReply, put_greeting};
use crate::codec::reply::{self, Mark};
use crate::codec::request::RequestHeader;
use crate::codec::{Parsed, ReplyStyle};
use crate::server::{
    ExportSummary, Exports, Listener, Peer, Purpose, Server, ServerLimits, Session, SessionEnding,
};
use crate::{Address, Uri};
use async_trait::async_trait;
use block::{
    Device, Durability, Error, ErrorKind, ExtentKind, Fault, Memory, Operation, Result,
    ScriptedDevice, Span, ZeroMode,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

struct One(Arc<dyn Device>);

#[async_trait]
impl Exports for One {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(vec![ExportSummary { name: "disk".into(), description: "the device".into() }])
    }
    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        match name {
            "disk" => Ok(Box::new(Self(Arc::clone(&self.0)))),
            _ => Err(Error::not_found(format!("there is no export {name:?}"))),
        }
    }
}

#[async_trait]
impl Session for One {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "disk"
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}

/// One export that tells what it holds.
struct Told(Arc<dyn Device>, &'static str);

#[async_trait]
impl Exports for Told {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(Vec::new())
    }
    async fn open(&self, _: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        Ok(Box::new(Self(Arc::clone(&self.0), self.1)))
    }
}

#[async_trait]
impl Session for Told {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "disk"
    }
    fn content(&self) -> Option<String> {
        Some(self.1.to_owned())
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}

/// A server that runs until it is stopped or dropped.
struct Running {
    server: Server,
    stop: oneshot::Sender<()>,
    tasks: JoinSet<Result<()>>,
}

impl Running {
    async fn start(address: &Address, device: Arc<dyn Device>) -> Self {
        Self::start_with(address, One(device)).await
    }

    async fn start_with(address: &Address, exports: impl Exports + 'static) -> Self {
        let server = Server::new(Arc::new(exports), ServerLimits::default());
        let listener = Listener::bind(address, 64).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut tasks = JoinSet::new();
        let serving = server.clone();
        let stopped = async {
            let _ = stopped.await;
        };
        tasks.spawn(async move { serving.serve(listener, stopped).await });
        Self { server, stop, tasks }
    }

    async fn stop(mut self) {
        self.stop.send(()).unwrap();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}

fn patient() -> ClientOptions {
    ClientOptions { reconnect: Duration::from_secs(60), ..ClientOptions::default() }
}

fn hasty() -> ClientOptions {
    ClientOptions { reconnect: Duration::ZERO, ..ClientOptions::default() }
}

fn place(dir: &Path) -> (Address, Uri) {
    let address = Address::unix(dir.join("s")).unwrap();
    (address.clone(), Uri::new(address, "disk"))
}

#[tokio::test]
async fn the_exports_of_a_server_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let server = Running::start(&address, Arc::new(Memory::new(4096))).await;
    assert_eq!(list_exports(&uri, &hasty()).await.unwrap(), ["disk"]);
    server.stop().await;
}

#[tokio::test]
async fn a_list_of_exports_that_does_not_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let Address::Unix(path) = &address else { panic!() };
    let listener = UnixListener::bind(path).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut out = Vec::new();
        put_greeting(&mut out);
        let reply = OptionReply::Server { name: "one more", description: "" };
        loop {
            if stream.write_all(&out).await.is_err() {
                return;
            }
            out.clear();
            reply.put(option::LIST, &mut out);
        }
    });
    let error = list_exports(&uri, &hasty()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_device_keeps_the_device_contract() {
    let dirs = Arc::new(std::sync::Mutex::new(Vec::new()));
    block::conformance::check(|size| {
        let dirs = Arc::clone(&dirs);
        async move {
            let dir = tempfile::tempdir().unwrap();
            let (address, uri) = place(dir.path());
            let server = Running::start(&address, Arc::new(Memory::new(size))).await;
            let remote = Remote::connect(&uri, hasty()).await.unwrap();
            dirs.lock().unwrap().push((dir, server));
            Arc::new(remote) as Arc<dyn Device>
        }
    })
    .await;
}

#[tokio::test]
async fn a_slow_or_waiting_device_keeps_the_contract_too() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let size = block::conformance::SIZE;
    let calls = AtomicU32::new(0);
    let device =
        ScriptedDevice::new(Memory::new(size), move |_| match calls.fetch_add(1, Relaxed) % 64 {
            0 => Fault::Delay(Duration::from_micros(200)),
            _ => Fault::None,
        });
    let _server = Running::start(&address, Arc::new(device)).await;
    let remote = Remote::connect(&uri, hasty()).await.unwrap();
    block::conformance::against_bytes(&remote, vec![0; size as usize], 9).await;
    remote.close().await;
}

#[tokio::test]
async fn requests_longer_than_the_servers_maximum_are_split() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let size = 80u64 << 20;
    let _server = Running::start(&address, Arc::new(Memory::new(size))).await;
    let remote = Remote::connect(&uri, hasty()).await.unwrap();
    let data: Vec<u8> = (0..size - 3).map(|i| (i / 4096 % 251) as u8).collect();
    let span = Span::between(1, size - 2);
    remote.write(span, &data, Durability::Buffered).await.unwrap();
    let mut back = vec![0; data.len()];
    remote.read(span, &mut back).await.unwrap();
    assert!(back == data);
}

#[tokio::test]
async fn the_servers_refusal_is_told_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (address, _) = place(dir.path());
    let _server = Running::start(&address, Arc::new(Memory::new(512))).await;
    let error = Remote::connect(&Uri::new(address, "other"), hasty()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("there is no export"), "{error}");
    let (_, nobody) = place(&dir.path().join("no"));
    let error = Remote::connect(&nobody, hasty()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("check that the server runs"), "{error}");
}

#[tokio::test]
async fn a_failed_request_tells_the_servers_text() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let device = ScriptedDevice::new(Memory::new(1 << 20), |op| match op {
        Operation::Read(_) => Fault::Fail(ErrorKind::NoSpace),
        _ => Fault::None,
    });
    let _server = Running::start(&address, Arc::new(device)).await;
    let remote = Remote::connect(&uri, hasty()).await.unwrap();
    let error = remote.read(Span::whole(512), &mut [0; 512]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().contains("injected fault"), "{error}");
    assert!(error.message().contains("nbd+unix:"), "{error}");
}

#[tokio::test]
async fn a_write_that_its_caller_gave_up_is_not_repeated_over_newer_data() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let memory = Arc::new(Memory::new(1 << 20));
    let never = |_| Fault::Delay(Duration::from_secs(3600));
    let stuck = Arc::new(ScriptedDevice::new(Arc::clone(&memory), never));
    let first = Running::start(&address, stuck).await;
    let remote = Remote::connect(&uri, patient()).await.unwrap();
    let span = Span::between(0, 4096);
    let old = remote.write(span, &[1; 4096], Durability::Buffered);
    assert!(tokio::time::timeout(Duration::from_millis(100), old).await.is_err());
    drop(first); // as a crash: nothing was answered
    std::fs::remove_file(dir.path().join("s")).unwrap_or_default();
    memory.write(span, &[2; 4096], Durability::Buffered).await.unwrap();
    let _second = Running::start(&address, Arc::clone(&memory) as Arc<dyn Device>).await;
    let mut buf = [0; 4096];
    remote.read(span, &mut buf).await.unwrap();
    assert_eq!(buf, [2; 4096]);
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again_and_unanswered_requests_are_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let memory = Arc::new(Memory::new(1 << 20));
    let never = |op| match op {
        Operation::Flush => Fault::None,
        _ => Fault::Delay(Duration::from_secs(3600)),
    };
    let stuck = Arc::new(ScriptedDevice::new(Arc::clone(&memory), never));
    let first = Running::start(&address, stuck).await;
    let remote = Arc::new(Remote::connect(&uri, patient()).await.unwrap());
    let mut writers = JoinSet::new();
    for i in 0..20u64 {
        let remote = Arc::clone(&remote);
        writers.spawn(async move {
            let span = Span::between(i * 40_000, i * 40_000 + 40_000);
            remote.write(span, &[i as u8 + 1; 40_000], Durability::Buffered).await
        });
    }
    while first.server.counters().total.waited < 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(first); // as a crash: nothing was answered
    std::fs::remove_file(dir.path().join("s")).unwrap_or_default();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let _second = Running::start(&address, Arc::clone(&memory) as Arc<dyn Device>).await;
    while let Some(written) = writers.join_next().await {
        written.unwrap().unwrap();
    }
    let bytes = memory.to_vec();
    for i in 0..20usize {
        assert!(bytes[i * 40_000..(i + 1) * 40_000].iter().all(|b| *b == i as u8 + 1));
    }
    remote.flush().await.unwrap(); // nothing was acknowledged by the lost connection
}

#[tokio::test]
async fn a_flush_fails_once_when_a_lost_connection_may_have_taken_writes_along() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let memory: Arc<dyn Device> = Arc::new(Memory::new(1 << 20));
    let first = Running::start(&address, Arc::clone(&memory)).await;
    let remote = Remote::connect(&uri, patient()).await.unwrap();
    let span = Span::whole(4096);
    let data = [5; 4096];
    remote.write(span, &data, Durability::Buffered).await.unwrap();
    remote.flush().await.unwrap();
    remote.write(span, &data, Durability::Durable).await.unwrap();
    first.stop().await;
    let second = Running::start(&address, Arc::clone(&memory)).await;
    remote.read(span, &mut [0; 4096]).await.unwrap();
    remote.flush().await.unwrap(); // all was durable
    remote.write(span, &data, Durability::Buffered).await.unwrap();
    second.stop().await;
    let _third = Running::start(&address, memory).await;
    remote.read(span, &mut [0; 4096]).await.unwrap();
    let error = remote.flush().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("write them again"), "{error}");
    remote.flush().await.unwrap();
}

#[tokio::test]
async fn a_server_that_stays_away_fails_requests_at_the_deadline_and_may_come_later() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let memory: Arc<dyn Device> = Arc::new(Memory::new(1 << 20));
    let first = Running::start(&address, Arc::clone(&memory)).await;
    let options = ClientOptions { reconnect: Duration::from_secs(2), ..ClientOptions::default() };
    let remote = Remote::connect(&uri, options).await.unwrap();
    first.stop().await;
    let error = remote.read(Span::whole(1), &mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("check that the server runs"), "{error}");
    let _second = Running::start(&address, memory).await;
    // The client's time is short for one that is only slow, too.
    let comes_back = async { while remote.read(Span::whole(1), &mut [0]).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(60), comes_back).await.expect("it is not found again");
}

#[tokio::test]
async fn an_export_that_changed_meanwhile_is_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let first = Running::start(&address, Arc::new(Memory::new(1 << 20))).await;
    let remote = Remote::connect(&uri, patient()).await.unwrap();
    first.stop().await;
    let _second = Running::start(&address, Arc::new(Memory::new(1 << 19))).await;
    let error = remote.read(Span::whole(1), &mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

#[tokio::test]
async fn what_was_put_into_the_place_of_an_export_meanwhile_is_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let memory: Arc<dyn Device> = Arc::new(Memory::new(1 << 20));
    let first = Running::start_with(&address, Told(Arc::clone(&memory), "as it was")).await;
    let remote = Remote::connect(&uri, patient()).await.unwrap();
    first.stop().await;
    let second = Running::start_with(&address, Told(Arc::clone(&memory), "as it was")).await;
    remote.read(Span::whole(1), &mut [0]).await.unwrap();
    second.stop().await;
    let _third = Running::start_with(&address, Told(memory, "reset")).await;
    let error = remote.read(Span::whole(1), &mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

/// A server by hand: refuses all options but GO, then runs `script` on every request.
async fn scripted<F>(
    path: &Path,
    size: u64,
    flags: u16,
    style: ReplyStyle,
    script: F,
) -> JoinSet<()>
where
    F: Fn(RequestHeader, Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
{
    let listener = UnixListener::bind(path).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = converse(&mut stream, size, flags, style, &script).await;
        }
    });
    tasks
}

async fn converse(
    stream: &mut UnixStream,
    size: u64,
    flags: u16,
    style: ReplyStyle,
    script: &(impl Fn(RequestHeader, Vec<u8>) -> Vec<u8> + Send + Sync),
) -> std::io::Result<()> {
    let mut out = Vec::new();
    put_greeting(&mut out);
    stream.write_all(&out).await?;
    stream.read_u32().await?;
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header).await?;
        let Ok(Parsed::Complete(header, _)) = OptionHeader::parse(&header) else { panic!() };
        let mut body = vec![0; header.len as usize];
        stream.read_exact(&mut body).await?;
        out.clear();
        let agrees = match header.code {
            7 => {
                let info = OptionReply::Info(Info::Export { size, flags });
                info.put(header.code, &mut out);
                true
            }
            8 => style == ReplyStyle::Structured,
            11 => style == ReplyStyle::Extended,
            10 => {
                OptionReply::MetaContext { id: 7, name: "base:allocation" }
                    .put(header.code, &mut out);
                true
            }
            _ => false,
        };
        let last = match agrees {
            true => OptionReply::Ack,
            false => OptionReply::Error { code: option_reply::ERR_UNSUP, message: "" },
        };
        last.put(header.code, &mut out);
        stream.write_all(&out).await?;
        if header.code == 7 {
            break;
        }
    }
    loop {
        let mut header = vec![0; if style == ReplyStyle::Extended { 32 } else { 28 }];
        stream.read_exact(&mut header).await?;
        let Ok(Parsed::Complete(request, _)) = RequestHeader::parse(style, &header) else {
            panic!()
        };
        let len = if request.command == 1 { request.len as usize } else { 0 };
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload).await?;
        stream.write_all(&script(request, payload)).await?;
    }
}

#[tokio::test]
async fn a_server_that_can_only_read_and_write_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let memory = std::sync::Mutex::new(vec![1; 1 << 16]);
    let script = move |request: RequestHeader, payload: Vec<u8>| {
        let mut memory = memory.lock().unwrap();
        let place = request.offset as usize..(request.offset + request.len) as usize;
        let mut out = Vec::new();
        let mark = Mark { cookie: request.cookie, offset: request.offset };
        reply::put_done(ReplyStyle::Simple, mark, &mut out);
        match request.command {
            0 => out.extend_from_slice(&memory[place]),
            1 => memory[place].copy_from_slice(&payload),
            other => panic!("command {other} was not offered"),
        }
        out
    };
    let (_, uri) = place(dir.path());
    let _server = scripted(&dir.path().join("s"), 1 << 16, 1, ReplyStyle::Simple, script).await;
    let remote = Remote::connect(&uri, hasty()).await.unwrap();
    let whole = Span::whole(1 << 16);
    let mode = |only_if_fast| ZeroMode { may_punch: true, only_if_fast };
    remote.discard(whole, Durability::Durable).await.unwrap();
    let fast = remote.zero(whole, mode(true), Durability::Buffered).await.unwrap_err();
    assert_eq!(fast.kind(), ErrorKind::Unsupported);
    let (head, _) = whole.split_at(5000);
    remote.zero(head, mode(false), Durability::Durable).await.unwrap();
    remote.flush().await.unwrap();
    remote.prefetch(whole).await.unwrap();
    let mut buf = vec![9; 1 << 16];
    remote.read(whole, &mut buf).await.unwrap();
    assert!(buf[..5000].iter().all(|b| *b == 0) && buf[5000..].iter().all(|b| *b == 1));
    let extents = remote.extents(whole, 9).await.unwrap();
    assert_eq!((extents.len(), extents[0].kind), (1, ExtentKind::Data));
}

fn put_data(mark: Mark, done: bool, offset: u64, data: &[u8], out: &mut Vec<u8>) {
    let mut chunk = Vec::new();
    reply::put_read_head(ReplyStyle::Structured, mark, data.len() as u32, &mut chunk);
    chunk[5] = u8::from(done);
    chunk[20..28].copy_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&chunk);
    out.extend_from_slice(data);
}

#[tokio::test]
async fn chunks_in_any_order_and_holes_make_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let (_, uri) = place(dir.path());
    let script = |request: RequestHeader, _| {
        let mut out = Vec::new();
        let mark = Mark { cookie: request.cookie, offset: request.offset };
        put_data(mark, false, 8, &[8; 4], &mut out);
        reply::put_hole(ReplyStyle::Structured, mark, false, 4, 4, &mut out);
        put_data(mark, true, 0, &[1; 4], &mut out);
        out
    };
    let _server = scripted(&dir.path().join("s"), 12, 1, ReplyStyle::Structured, script).await;
    let remote = Remote::connect(&uri, hasty()).await.unwrap();
    let mut buf = [9; 12];
    remote.read(Span::whole(12), &mut buf).await.unwrap();
    assert_eq!(buf, [1, 1, 1, 1, 0, 0, 0, 0, 8, 8, 8, 8]);
}

#[tokio::test]
async fn a_lying_server_is_an_error_and_never_wrong_bytes() {
    type Lie = fn(Mark, &mut Vec<u8>);
    let lies: [(&str, Lie); 11] = [
        ("a gap", |mark, out| put_data(mark, true, 0, &[1; 8], out)),
        ("an overlap", |mark, out| {
            put_data(mark, false, 0, &[1; 8], out);
            put_data(mark, true, 4, &[1; 8], out);
        }),
        ("data outside", |mark, out| put_data(mark, true, 8, &[1; 12], out)),
        ("an overflow", |mark, out| put_data(mark, true, u64::MAX, &[1; 12], out)),
        ("no data", |mark, out| reply::put_done(ReplyStyle::Structured, mark, out)),
        ("a simple reply", |mark, out| reply::put_done(ReplyStyle::Simple, mark, out)),
        ("an extended reply", |mark, out| reply::put_done(ReplyStyle::Extended, mark, out)),
        ("another request", |mark, out| {
            let other = Mark { cookie: mark.cookie + 1, ..mark };
            put_data(other, true, 0, &[1; 12], out);
        }),
        ("an error without number", |mark, out| {
            reply::put_error(ReplyStyle::Structured, mark, 0, "", out);
        }),
        ("a block status", |mark, out| {
            let extent = block::Extent {
                span: Span::between(mark.offset, mark.offset + 12),
                kind: ExtentKind::Data,
            };
            reply::put_extents(ReplyStyle::Structured, mark, 7, &[extent], out);
        }),
        ("an endless chunk", |mark, out| {
            reply::put_hole(ReplyStyle::Structured, mark, true, 0, 12, out);
            out[6..8].copy_from_slice(&chunk::ERROR.to_be_bytes());
            out[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        }),
    ];
    for (name, lie) in lies {
        let dir = tempfile::tempdir().unwrap();
        let (_, uri) = place(dir.path());
        let script = move |request: RequestHeader, _| {
            let mut out = Vec::new();
            lie(Mark { cookie: request.cookie, offset: request.offset }, &mut out);
            out
        };
        let _server =
            scripted(&dir.path().join("s"), 4096, 1, ReplyStyle::Structured, script).await;
        let remote = Remote::connect(&uri, patient()).await.unwrap();
        let mut buf = [0; 12];
        let read = remote.read(Span::between(0, 12), &mut buf);
        let read = tokio::time::timeout(Duration::from_secs(60), read).await;
        let error = read.unwrap_or_else(|_| panic!("{name}: no end")).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
    }
}

#[tokio::test]
async fn what_is_no_nbd_server_is_told_so() {
    for greeting in
        [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0\0\0", b"NBD"]
    {
        let dir = tempfile::tempdir().unwrap();
        let (_, uri) = place(dir.path());
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(greeting).await.unwrap();
        });
        assert!(Remote::connect(&uri, hasty()).await.is_err());
    }
}

#[tokio::test]
async fn a_request_that_every_connection_is_lost_with_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (address, uri) = place(dir.path());
    let device = ScriptedDevice::new(Memory::new(1 << 20), |op| match op {
        Operation::Read(span) if span.offset() == 13 => panic!("cursed"),
        _ => Fault::None,
    });
    let _server = Running::start(&address, Arc::new(device)).await;
    let remote = Remote::connect(&uri, patient()).await.unwrap();
    let error = remote.read(Span::between(13, 14), &mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    remote.read(Span::whole(1), &mut [0]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_up_at_once_is_not_called_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let (_, uri) = place(dir.path());
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Relaxed);
            let style = ReplyStyle::Simple;
            let negotiation = converse(&mut stream, 4096, 1, style, &|_, _| Vec::new());
            let _ = tokio::time::timeout(Duration::from_millis(20), negotiation).await;
        }
    });
    let options = ClientOptions { reconnect: Duration::from_secs(10), ..ClientOptions::default() };
    let remote = Remote::connect(&uri, options).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let calls = calls.load(Relaxed);
    assert!((3..40).contains(&calls), "{calls} calls");
    drop(remote);
}

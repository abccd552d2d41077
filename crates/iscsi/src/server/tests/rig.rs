//! The server under test, devices that wait, and an initiator that sends whatever it is told to.

use crate::chap::Algorithm;
use crate::codec::request::{CommandPdu, LoginPdu, Manage, Simple};
use crate::codec::response::Output;
use crate::codec::{Digests, HEADER, PduCut, RequestPdu, cut, text, u32_at};
use crate::{Attachment, InitiatorLimits, Secrets, Server, SessionEnding, Targets};
use async_trait::async_trait;
use block::{Device, Fault, Memory, Operation, Result, ScriptedDevice};
use nbd::server::{ClientPace, Processors};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// The size of the disk, in bytes.
pub(super) const SIZE: u64 = 4 << 20;
/// What tells the disk from others.
const IDENTITY: &str = "disk 1";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest data segment that the initiator takes, in bytes.
const SEGMENT: usize = 256 << 10;

/// A disk in memory whose writes wait, each until it is released.
pub(super) type Gated = ScriptedDevice<Memory, fn(Operation) -> Fault>;

pub(super) fn gated_disk() -> Arc<Gated> {
    let plan: fn(Operation) -> Fault = |operation| match operation {
        Operation::Write(_) => Fault::Hold,
        _ => Fault::None,
    };
    Arc::new(ScriptedDevice::new(Memory::new(SIZE), plan).with_fast_reads())
}

/// Waits until so many writes wait.
pub(super) async fn await_writes(disk: &Gated, count: u32) {
    disk.calls.until(|log| log.held == count as usize).await;
}

/// One disk for everybody, called `disk`, and how its sessions ended.
pub(super) struct Shelf {
    device: Arc<dyn Device>,
    secrets: Option<Arc<Secrets>>,
    endings: Arc<Mutex<Vec<SessionEnding>>>,
    /// The record of its reservations.
    kept: Arc<Mutex<Option<String>>>,
    pace: Option<ClientPace>,
}

struct Open {
    device: Arc<dyn Device>,
    pace: Option<ClientPace>,
    endings: Arc<Mutex<Vec<SessionEnding>>>,
}

#[async_trait]
impl Targets for Shelf {
    async fn list(&self, _: &crate::Initiator) -> Result<Vec<String>> {
        Ok(vec!["disk".to_owned()])
    }

    async fn attach(&self, name: &str, _: &crate::Initiator) -> Result<Box<dyn Attachment>> {
        assert_eq!(name, "disk");
        let (device, endings) = (Arc::clone(&self.device), Arc::clone(&self.endings));
        Ok(Box::new(Open { device, pace: self.pace.clone(), endings }))
    }

    async fn kept_reservations(&self, identity: &str) -> Result<Option<String>> {
        assert_eq!(identity, IDENTITY);
        Ok(self.kept.lock().unwrap().clone())
    }

    async fn keep_reservations(&self, identity: &str, record: Option<&str>) -> Result<()> {
        assert_eq!(identity, IDENTITY);
        *self.kept.lock().unwrap() = record.map(str::to_owned);
        Ok(())
    }

    fn secrets(&self) -> Option<Arc<Secrets>> {
        self.secrets.clone()
    }

    fn random(&self, bytes: &mut [u8]) -> Result<()> {
        bytes.fill(7);
        Ok(())
    }
}

#[async_trait]
impl Attachment for Open {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn identity(&self) -> String {
        IDENTITY.to_owned()
    }

    fn pace(&self) -> Option<ClientPace> {
        self.pace.clone()
    }

    async fn close(self: Box<Self>, ending: SessionEnding) {
        self.endings.lock().unwrap().push(ending);
    }
}

/// A running server.
pub(super) struct Rig {
    pub(super) server: Server,
    pub(super) address: SocketAddr,
    endings: Arc<Mutex<Vec<SessionEnding>>>,
    /// The record of the disk's reservations.
    pub(super) kept: Arc<Mutex<Option<String>>>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinSet<Result<()>>,
}

impl Rig {
    /// A server of a disk in memory.
    pub(super) async fn new() -> Self {
        Self::of(Arc::new(Memory::new(SIZE)), InitiatorLimits::default(), None).await
    }

    pub(super) async fn of(
        device: Arc<dyn Device>,
        limits: InitiatorLimits,
        secrets: Option<&str>,
    ) -> Self {
        Self::with(device, limits, secrets, None).await
    }

    /// A server of a disk in memory whose initiators go at this pace.
    pub(super) async fn paced(pace: ClientPace) -> Self {
        let device = Arc::new(Memory::new(SIZE));
        Self::with(device, InitiatorLimits::default(), None, Some(pace)).await
    }

    async fn with(
        device: Arc<dyn Device>,
        limits: InitiatorLimits,
        secrets: Option<&str>,
        pace: Option<ClientPace>,
    ) -> Self {
        let endings = Arc::default();
        let kept = Arc::default();
        let secrets = secrets.map(|text| Arc::new(Secrets::parse(text).unwrap()));
        let shelf =
            Shelf { device, secrets, endings: Arc::clone(&endings), kept: Arc::clone(&kept), pace };
        let server = Server::new(Arc::new(shelf), limits, Processors::new(2));
        let address = (Ipv4Addr::UNSPECIFIED, 0).into();
        let serving = JoinSet::new();
        let mut rig = Self { server, address, endings, kept, stop: None, serving };
        rig.listen_again().await;
        rig
    }

    /// Has the server, which has ended, serve anew.
    pub(super) async fn listen_again(&mut self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serves = self.server.clone();
        self.serving
            .spawn(async move { serves.serve(listener, async { drop(stopped.await) }).await });
        self.stop = Some(stop);
    }

    /// Has the server serve by another listener, too, which initiators use from now on.
    pub(super) async fn listen_beside(&mut self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let serves = self.server.clone();
        self.serving.spawn(async move { serves.serve(listener, std::future::pending()).await });
    }

    /// Has the server ask everybody to log out.
    pub(super) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the end of the server; what it ended with.
    pub(super) async fn ended(&mut self) -> Result<()> {
        self.begin_stop();
        let ended = tokio::time::timeout(PATIENCE, self.serving.join_next()).await;
        ended.expect("the server ends").expect("it was served").expect("no panic")
    }

    /// Waits until so many sessions have ended, and tells how.
    pub(super) async fn endings(&self, count: usize) -> Vec<SessionEnding> {
        let all = async {
            loop {
                let endings = self.endings.lock().unwrap().clone();
                if endings.len() >= count {
                    return endings;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("sessions end")
    }
}

/// A PDU of the server.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) header: [u8; HEADER],
    pub(super) data: Vec<u8>,
}

impl Answer {
    pub(super) fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    pub(super) fn tag(&self) -> u32 {
        u32_at(&self.header, 16)
    }

    /// The third byte: a reason or a response.
    pub(super) fn reason(&self) -> u8 {
        self.header[2]
    }

    /// The fourth byte, of a command's end: its status.
    pub(super) fn status(&self) -> u8 {
        self.header[3]
    }

    /// The sense key, the additional code and its qualifier of a command that failed.
    pub(super) fn sense(&self) -> (u8, u8, u8) {
        (self.data[4] & 0x0f, self.data[14], self.data[15])
    }
}

/// READ (10) of so many blocks.
pub(super) fn read(first: u32, count: u16) -> [u8; 16] {
    transfer(0x28, first, count)
}

/// WRITE (10).
pub(super) fn write(first: u32, count: u16) -> [u8; 16] {
    transfer(0x2a, first, count)
}

fn transfer(opcode: u8, first: u32, count: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&first.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// Keys and values as the data of a login.
fn pairs(keys: &[(&str, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    keys.iter().for_each(|(key, value)| text::push(&mut data, key, value));
    data
}

/// Who logs in to the disk, and what else it says first.
fn introduction(name: &str, keys: &[(&str, &str)]) -> Vec<u8> {
    let name = format!("iqn.2026-11.test:{name}");
    let who = [("InitiatorName", name.as_str()), ("TargetName", "iqn.2026-11.io.sojourn:disk")];
    pairs(&[&who, keys].concat())
}

/// TEST UNIT READY.
pub(super) const READY: [u8; 16] = [0; 16];

/// An initiator; sends whatever it is told to.
pub(super) struct Initiator {
    stream: TcpStream,
    digests: Digests,
    input: Vec<u8>,
    /// The number of the next command.
    pub(super) cmd_sn: u32,
    tag: u32,
    /// The number of the last status that was received.
    stat_sn: Option<u32>,
}

impl Initiator {
    /// Connects and says nothing.
    pub(super) async fn connect(rig: &Rig) -> Self {
        let stream = TcpStream::connect(rig.address).await.unwrap();
        Self::on(stream)
    }

    fn on(stream: TcpStream) -> Self {
        // Nothing waits for an acknowledgement: no time passes for that where the clock is paused.
        stream.set_nodelay(true).unwrap();
        let (digests, input) = (Digests::default(), Vec::new());
        Self { stream, digests, input, cmd_sn: 1, tag: 100, stat_sn: None }
    }

    /// The same from the address 127.0.0.`last`.
    pub(super) async fn connect_from(rig: &Rig, last: u8) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        let stream = socket.connect(rig.address).await.unwrap();
        Self::on(stream)
    }

    /// One request of a login, from a stage to the next one, if it is the last of its stage.
    async fn login_step(&mut self, isid: u8, (stage, next): (u8, Option<u8>), data: &[u8]) {
        let login = LoginPdu {
            transit: next.is_some(),
            more: false,
            stage,
            next: next.unwrap_or(0),
            version: 0,
            isid: [0x80, 0, 0, 0, 0, isid],
            tsih: 0,
            tag: 1,
            cid: 0,
            cmd_sn: self.cmd_sn,
        };
        self.send(RequestPdu::Login(login), data).await;
    }

    /// Proves by CHAP to know the secret of `user`, and goes on to the last step of the login, whose answer
    /// [`offered`](Self::offered) takes.
    pub(super) async fn prove(&mut self, name: &str, isid: u8, (user, secret): (&str, &str)) {
        let method = introduction(name, &[("AuthMethod", "CHAP")]);
        self.login_step(isid, (0, Some(1)), &method).await;
        assert_eq!(self.offered().await, (0, 0));
        self.login_step(isid, (0, None), &pairs(&[("CHAP_A", "5")])).await;
        let asked = self.receive().await.expect("a challenge");
        let asked = text::parse(&asked.data).unwrap();
        let value = |name: &str| asked.iter().find(|(key, _)| *key == name).unwrap().1;
        let challenge = text::binary(value("CHAP_C"), 64).unwrap();
        let id = value("CHAP_I").parse().unwrap();
        let proof = text::hex(&Algorithm::Md5.answer(id, secret.as_bytes(), &challenge));
        let shown = pairs(&[("CHAP_N", user), ("CHAP_R", &proof)]);
        self.login_step(isid, (0, Some(1)), &shown).await;
        assert_eq!(self.offered().await, (0, 0));
        self.login_step(isid, (1, Some(3)), &[]).await;
    }

    /// A login's only request, by the initiator `name` with the session number `isid`.
    pub(super) async fn offer(&mut self, name: &str, isid: u8, keys: &[(&str, &str)]) {
        self.login_step(isid, (1, Some(3)), &introduction(name, keys)).await;
        for (key, value) in keys {
            match *key {
                "HeaderDigest" => self.digests.header = *value == "CRC32C",
                "DataDigest" => self.digests.data = *value == "CRC32C",
                _ => {}
            }
        }
    }

    /// Takes the answer to [`offer`](Self::offer): its status.
    pub(super) async fn offered(&mut self) -> (u8, u8) {
        // The answer itself has no digests yet.
        let digests = std::mem::take(&mut self.digests);
        let answer = self.receive().await.expect("an answer to the login");
        self.digests = digests;
        assert_eq!(answer.opcode(), 0x23);
        (answer.header[36], answer.header[37])
    }

    /// Logs in, and takes the unit attention that a new session begins with.
    pub(super) async fn log_in(rig: &Rig, name: &str, isid: u8, keys: &[(&str, &str)]) -> Self {
        let mut initiator = Self::connect(rig).await;
        initiator.offer(name, isid, keys).await;
        assert_eq!(initiator.offered().await, (0, 0));
        let told = initiator.ask(READY, 0, &[]).await;
        assert_eq!((told.status(), told.sense()), (2, (6, 0x29, 0)));
        initiator
    }

    /// Sends a request with its data, with the digests that were agreed on unless it is a login.
    pub(super) async fn send(&mut self, request: RequestPdu, data: &[u8]) {
        let bytes = self.bytes(request, data);
        self.send_bytes(&bytes).await;
    }

    /// The bytes of a request.
    pub(super) fn bytes(&self, request: RequestPdu, data: &[u8]) -> Vec<u8> {
        let login = matches!(request, RequestPdu::Login(_));
        let mut output = Output::new(if login { Digests::default() } else { self.digests });
        output.put(request.encode(), data);
        output.unsent().to_vec()
    }

    /// Sends bytes as they are; the server may have closed the connection.
    pub(super) async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next PDU; `None` when the connection is at its end.
    pub(super) async fn receive(&mut self) -> Option<Answer> {
        loop {
            if let PduCut::Whole(pdu, length) = cut(&self.input, self.digests, SEGMENT).unwrap() {
                let answer = Answer { header: *pdu.header, data: pdu.data.to_vec() };
                self.input.drain(..length);
                self.count(&answer);
                return Some(answer);
            }
            let mut room = [0; 4096];
            let came = tokio::time::timeout(PATIENCE, self.stream.read(&mut room)).await;
            match came.expect("the server answers") {
                // One that still has something to take is reset.
                Ok(0) | Err(_) => return None,
                Ok(count) => self.input.extend_from_slice(&room[..count]),
            }
        }
    }

    /// A status has the number behind that of the one before, from the login on (RFC 7143, 4.2.2.2).
    fn count(&mut self, answer: &Answer) {
        let with_status = match answer.opcode() {
            0x25 => answer.header[1] & 1 != 0,
            // An invitation to send data, and a ping of the target's own.
            0x31 => false,
            0x20 => answer.tag() != u32::MAX,
            _ => true,
        };
        if with_status {
            let number = u32_at(&answer.header, 24);
            assert_eq!(number, self.stat_sn.map_or(number, |last| last.wrapping_add(1)));
            self.stat_sn = Some(number);
        }
    }

    /// A command of the next number and tag, which expects `expected` bytes or sends `data` with it.
    pub(super) fn command(&mut self, cdb: [u8; 16], expected: u32, data: &[u8]) -> CommandPdu {
        self.tag += 1;
        let cmd_sn = self.cmd_sn;
        self.cmd_sn += 1;
        let sent = u32::try_from(data.len()).unwrap();
        CommandPdu {
            immediate: false,
            last: true,
            reads: expected > 0,
            writes: sent > 0,
            attribute: 1,
            lun: [0; 8],
            tag: self.tag,
            expected: expected.max(sent),
            cmd_sn,
            cdb,
        }
    }

    /// Sends a command; its tag.
    pub(super) async fn begin(&mut self, cdb: [u8; 16], expected: u32, data: &[u8]) -> u32 {
        let command = self.command(cdb, expected, data);
        self.send(RequestPdu::Command(command), data).await;
        command.tag
    }

    /// Carries a command out; its one answer.
    pub(super) async fn ask(&mut self, cdb: [u8; 16], expected: u32, data: &[u8]) -> Answer {
        let tag = self.begin(cdb, expected, data).await;
        let answer = self.receive().await.expect("an answer");
        assert_eq!(answer.tag(), tag);
        answer
    }

    /// An immediate task management request about the command `referenced`; its tag.
    pub(super) async fn manage(&mut self, function: u8, referenced: u32) -> u32 {
        self.tag += 1;
        let (tag, cmd_sn) = (self.tag, self.cmd_sn);
        let lun = [0; 8];
        let manage = Manage { immediate: true, function, lun, tag, referenced, cmd_sn };
        self.send(RequestPdu::Manage(manage), &[]).await;
        tag
    }

    /// An immediate ping: what is answered before its answer was asked for before it.
    pub(super) async fn ping(&mut self) -> u32 {
        let simple = self.simple(0x80);
        self.send(RequestPdu::NopOut(simple), &[]).await;
        simple.tag
    }

    /// Sends a text request; with the tag of an answer, for the rest of that.
    pub(super) async fn text(&mut self, data: &[u8], transfer: u32) -> Answer {
        let simple = Simple { transfer, ..self.simple(0x80) };
        self.send(RequestPdu::Text(simple), data).await;
        self.receive().await.expect("an answer")
    }

    /// Asks for the end of the session.
    pub(super) async fn log_out(&mut self) -> u32 {
        let simple = self.simple(0x80);
        self.send(RequestPdu::Logout(simple), &[]).await;
        simple.tag
    }

    fn simple(&mut self, flags: u8) -> Simple {
        self.tag += 1;
        let (tag, cmd_sn) = (self.tag, self.cmd_sn);
        Simple { immediate: true, flags, lun: [0; 8], tag, transfer: u32::MAX, cmd_sn }
    }
}

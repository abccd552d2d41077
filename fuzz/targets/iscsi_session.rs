//! Whole iSCSI sessions over TCP: two initiators that have logged in send commands, data, task management and pings
//! of any kind, or one sends any bytes at all. Whatever comes, numbers of statuses follow one another, every session
//! ends with its connection, and the server stops in time.
#![no_main]

use async_trait::async_trait;
use block::{Device, Error, Memory, Result};
use iscsi::codec::request::{CommandPdu, DataOut, LoginPdu, Manage, Simple};
use iscsi::codec::response::Output;
use iscsi::codec::{Digests, HEADER, NO_TAG, PduCut, RequestPdu, cut, text};
use iscsi::{Attachment, Initiator, InitiatorLimits, Secrets, Server, SessionEnding, Targets};
use libfuzzer_sys::fuzz_target;
use nbd::server::Processors;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The size of the disk, in bytes.
const SIZE: u64 = 64 << 10;
/// The longest data segment that the initiators take, in bytes.
const SEGMENT: usize = 256 << 10;
/// The most steps of an input.
const MOST: usize = 64;
/// The bytes of a step.
const STEP: usize = 24;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number at this place.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// One disk, new for every input, and what is kept of its reservations.
struct Shelf {
    device: Arc<dyn Device>,
    kept: Mutex<Option<String>>,
}

struct Open(Arc<dyn Device>);

#[async_trait]
impl Targets for Shelf {
    async fn list(&self, _: &Initiator) -> Result<Vec<String>> {
        Ok(vec!["disk".to_owned()])
    }

    async fn attach(&self, name: &str, _: &Initiator) -> Result<Box<dyn Attachment>> {
        match name {
            "disk" => Ok(Box::new(Open(Arc::clone(&self.device)))),
            _ => Err(Error::not_found("there is no such export")),
        }
    }

    async fn kept_reservations(&self, _: &str) -> Result<Option<String>> {
        Ok(self.kept.lock().expect("no panic").clone())
    }

    async fn keep_reservations(&self, _: &str, record: Option<&str>) -> Result<()> {
        *self.kept.lock().expect("no panic") = record.map(str::to_owned);
        Ok(())
    }

    fn secrets(&self) -> Option<Arc<Secrets>> {
        None
    }

    fn random(&self, bytes: &mut [u8]) -> Result<()> {
        bytes.fill(7);
        Ok(())
    }
}

#[async_trait]
impl Attachment for Open {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }

    fn identity(&self) -> String {
        "disk 1".to_owned()
    }

    async fn close(self: Box<Self>, _: SessionEnding) {}
}

/// An initiator that has logged in.
struct Client {
    stream: TcpStream,
    digests: Digests,
    input: Vec<u8>,
    cmd_sn: u32,
    tag: u32,
    stat_sn: Option<u32>,
    /// What the server asked data for: task, transfer, offset, length.
    asked: Vec<(u32, u32, u32, u32)>,
}

impl Client {
    async fn log_in(address: SocketAddr, number: u8, digests: Digests) -> Option<Self> {
        let stream = TcpStream::connect(address).await.ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_zero_linger().ok()?;
        let (input, asked) = (Vec::new(), Vec::new());
        let plain = Digests::default();
        let mut client =
            Self { stream, digests: plain, input, cmd_sn: 1, tag: 100, stat_sn: None, asked };
        let login = LoginPdu {
            transit: true,
            more: false,
            stage: 1,
            next: 3,
            version: 0,
            isid: [0x80, 0, 0, 0, 0, number],
            tsih: 0,
            tag: 1,
            cid: 0,
            cmd_sn: 1,
        };
        let wish = |set| if set { "CRC32C" } else { "None" };
        let initiator = format!("iqn.2026-11.test:{number}");
        let mut data = Vec::new();
        for (key, value) in [
            ("InitiatorName", initiator.as_str()),
            ("TargetName", "iqn.2026-11.io.sojourn:disk"),
            ("HeaderDigest", wish(digests.header)),
            ("DataDigest", wish(digests.data)),
        ] {
            text::push(&mut data, key, value);
        }
        client.send(RequestPdu::Login(login), &data).await;
        client.receive().await?;
        client.digests = digests;
        Some(client)
    }

    async fn send(&mut self, request: RequestPdu, data: &[u8]) {
        let mut output = Output::new(self.digests);
        output.put(request.encode(), data);
        // The server may have ended the session.
        let _ = self.stream.write_all(output.unsent()).await;
    }

    /// The next PDU's opcode and task; `None` at the end of the connection.
    async fn receive(&mut self) -> Option<(u8, u32)> {
        loop {
            let came = match cut(&self.input, self.digests, SEGMENT)
                .expect("the server's PDUs are whole")
            {
                PduCut::Whole(pdu, length) => Some((*pdu.header, length)),
                PduCut::Short(_) => None,
            };
            if let Some((header, length)) = came {
                self.input.drain(..length);
                self.note(&header);
                return Some((header[0] & 0x3f, u32_at(&header, 16)));
            }
            let mut room = [0; 4096];
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut room)).await;
            match read.expect("the server answers, or ends the session") {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.input.extend_from_slice(&room[..count]),
            }
        }
    }

    /// A status has the number behind that of the one before (RFC 7143, 4.2.2.2).
    fn note(&mut self, header: &[u8; HEADER]) {
        let has_status = match header[0] & 0x3f {
            0x25 => header[1] & 1 != 0,
            0x31 => {
                let at = |at| u32_at(header, at);
                self.asked.push((at(16), at(20), at(40), at(44)));
                false
            }
            0x20 => u32_at(header, 16) != u32::MAX,
            _ => true,
        };
        if has_status {
            let number = u32_at(header, 24);
            assert_eq!(number, self.stat_sn.map_or(number, |last| last.wrapping_add(1)));
            self.stat_sn = Some(number);
        }
    }

    /// Takes whatever was answered before a ping is.
    async fn ping(&mut self) -> bool {
        self.tag += 1;
        let (tag, cmd_sn) = (self.tag, self.cmd_sn);
        let ping =
            Simple { immediate: true, flags: 0x80, lun: [0; 8], tag, transfer: NO_TAG, cmd_sn };
        self.send(RequestPdu::NopOut(ping), &[]).await;
        loop {
            match self.receive().await {
                Some((0x20, answered)) if answered == tag => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Sends the data that the server asked for.
    async fn obey(&mut self, fill: u8) {
        for (tag, transfer, offset, length) in std::mem::take(&mut self.asked) {
            let data = vec![fill; (length as usize).min(SEGMENT)];
            let out = DataOut { last: true, tag, transfer, data_sn: 0, offset };
            self.send(RequestPdu::DataOut(out), &data).await;
        }
    }

    /// One step: what, how, four numbers, and 16 bytes of a CDB.
    async fn step(&mut self, step: &[u8; STEP]) -> bool {
        let [what, how, a, b, c, d, ..] = *step;
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&step[8..]);
        let immediate = how & 1 != 0;
        let number = u32::from(u16::from_be_bytes([a, b]));
        let data = vec![c; usize::from(d) * if how & 2 != 0 { 512 } else { 4 }];
        let lun = [0, if how & 4 != 0 { step[6] } else { 0 }, 0, 0, 0, 0, 0, 0];
        // Most of what comes has the number that is due.
        let cmd_sn = self.cmd_sn.wrapping_add(if how & 8 != 0 { u32::from(step[7]) } else { 0 });
        self.tag += 1;
        let tag = if how & 16 != 0 { self.tag.wrapping_sub(u32::from(step[7])) } else { self.tag };
        let counted = !immediate && how & 8 == 0;
        let (request, counts) = match what & 7 {
            0..=2 => {
                let command = CommandPdu {
                    immediate,
                    last: how & 32 == 0,
                    reads: how & 64 != 0,
                    writes: how & 128 != 0,
                    attribute: what >> 5 & 7,
                    lun,
                    tag,
                    expected: number * if what & 16 != 0 { 512 } else { 1 },
                    cmd_sn,
                    cdb,
                };
                (RequestPdu::Command(command), counted)
            }
            3 => {
                let (task, transfer, ..) = self.asked.pop().unwrap_or((tag, NO_TAG, 0, 0));
                let offset = u32_at(&cdb, 0);
                let out =
                    DataOut { last: how & 32 == 0, tag: task, transfer, data_sn: number, offset };
                (RequestPdu::DataOut(out), false)
            }
            4 => {
                let referenced = self.tag.wrapping_sub(u32::from(a));
                (
                    RequestPdu::Manage(Manage {
                        immediate,
                        function: b,
                        lun,
                        tag,
                        referenced,
                        cmd_sn,
                    }),
                    counted,
                )
            }
            5 => {
                let simple = Simple { immediate, flags: a, lun, tag, transfer: NO_TAG, cmd_sn };
                let request = match b & 3 {
                    0 => RequestPdu::NopOut(simple),
                    1 => RequestPdu::Text(simple),
                    2 => RequestPdu::Logout(simple),
                    _ => RequestPdu::Other(c & 0x3f),
                };
                (request, counted)
            }
            6 => {
                self.obey(c).await;
                return self.ping().await;
            }
            _ => return self.ping().await,
        };
        if counts {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        self.send(request, &data).await;
        true
    }
}

async fn sessions(address: SocketAddr, how: u8, steps: &[u8]) {
    let digests = Digests { header: how & 1 != 0, data: how & 2 != 0 };
    let mut clients = Vec::new();
    for number in 1..=2 {
        clients.push(Some(
            Client::log_in(address, number, digests).await.expect("a login that is right"),
        ));
    }
    for step in steps.chunks_exact(STEP).take(MOST) {
        let step: &[u8; STEP] = step.try_into().expect("its length");
        let client = &mut clients[usize::from(step[0] >> 3 & 1)];
        let Some(open) = client else { continue };
        if !open.step(step).await {
            *client = None;
        }
    }
    for client in clients.iter_mut().flatten() {
        client.ping().await;
    }
}

async fn bytes(address: SocketAddr, data: &[u8]) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    let _ = stream.set_zero_linger();
    let (mut replies, mut requests) = stream.split();
    let send = async {
        let _ = requests.write_all(data).await;
        let _ = requests.shutdown().await;
    };
    let receive = async {
        let mut sink = [0; 4096];
        while matches!(replies.read(&mut sink).await, Ok(1..)) {}
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(send, receive) })
        .await
        .expect("the connection ends");
}

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else { return };
    sojourn_fuzz::block_on(async {
        let shelf = Shelf { device: Arc::new(Memory::new(SIZE)), kept: Mutex::default() };
        let server = Server::new(Arc::new(shelf), InitiatorLimits::default(), Processors::new(1));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serve = server.serve(listener, async { drop(stopped.await) });
        let talk = async {
            match how {
                0xff => bytes(address, data).await,
                how => sessions(address, *how, data).await,
            }
            drop(stop);
        };
        let (served, ()) = tokio::join!(serve, talk);
        served.expect("every session ended in time");
        let counters = server.counters();
        assert_eq!((counters.connections, counters.sessions), (0, 0));
    });
});

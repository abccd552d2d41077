//! The server.

use super::packet::{self, ClientPacket, ReadRequest};
use super::transfer::{Transfer, TransferStep};
use crate::Datagrams;
use crate::datagram::{LONGEST, Ports};
use crate::firmware::FirmwareFiles;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Transfers at a time.
const MOST: usize = 256;
/// Transfers at a time to one address.
const MOST_EACH: usize = 4;
/// How long one may take in all: firmware is small.
const LONGEST_TRANSFER: Duration = Duration::from_secs(300);
/// How long it lasts without the client having acknowledged anything new, whatever pauses that asked for.
const SILENCE: Duration = Duration::from_secs(60);
/// How long reading rests after the socket failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A TFTP server of a table of files.
#[derive(Debug)]
pub struct TftpServer {
    files: FirmwareFiles,
    running: Arc<Mutex<RunningTransfers>>,
}

/// The transfers that run, the oldest first.
#[derive(Debug, Default)]
struct RunningTransfers {
    next: u64,
    all: BTreeMap<u64, Arc<RunningTransfer>>,
}

/// A transfer to an address, which anybody may have made up.
#[derive(Debug)]
struct RunningTransfer {
    address: Ipv4Addr,
    /// Something of it was acknowledged: who asked is there.
    heard: AtomicBool,
    /// Its place goes to another one.
    given_up: Notify,
}

impl RunningTransfers {
    /// A place for another transfer. When all are taken, it is that of the oldest whose client was never heard.
    fn take_place(&mut self, address: Ipv4Addr) -> Option<(u64, Arc<RunningTransfer>)> {
        if self.all.values().filter(|other| other.address == address).count() >= MOST_EACH {
            return None;
        }
        if self.all.len() >= MOST {
            let silent =
                |(_, other): &(&u64, &Arc<RunningTransfer>)| !other.heard.load(Ordering::Relaxed);
            let oldest = self.all.iter().find(silent).map(|(number, _)| *number)?;
            self.all.remove(&oldest)?.given_up.notify_one();
        }
        let (heard, given_up) = (AtomicBool::new(false), Notify::new());
        let transfer = Arc::new(RunningTransfer { address, heard, given_up });
        self.next += 1;
        self.all.insert(self.next, Arc::clone(&transfer));
        Some((self.next, transfer))
    }
}

/// A place among the transfers.
struct TransferSlot {
    running: Arc<Mutex<RunningTransfers>>,
    number: u64,
    transfer: Arc<RunningTransfer>,
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        self.running.lock().all.remove(&self.number);
    }
}

impl TftpServer {
    /// A server of these files.
    pub fn new(files: FirmwareFiles) -> Self {
        Self { files, running: Arc::default() }
    }

    /// Answers at port 69 until the future is dropped, and with it all transfers.
    pub async fn serve(&self, socket: &dyn Datagrams, ports: Arc<dyn Ports>) {
        let mut transfers = JoinSet::new();
        let mut buffer = [0; LONGEST];
        loop {
            let (length, from) = match socket.receive(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    tracing::warn!(%error, "cannot receive TFTP requests");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            while transfers.try_join_next().is_some() {}
            let refusal = match ClientPacket::decode(&buffer[..length]) {
                Some(ClientPacket::Read(request)) => match self.begin(&request, from) {
                    Ok((transfer, place)) => {
                        let ports = Arc::clone(&ports);
                        transfers.spawn(async move {
                            tokio::select! {
                                () = place.transfer.given_up.notified() => {}
                                () = run(transfer, &place.transfer.heard, from, ports) => {}
                            }
                        });
                        None
                    }
                    Err(refusal) => refusal,
                },
                Some(ClientPacket::Write) => Some(packet::error(2, "nothing can be written here")),
                _ => None,
            };
            if let Some(refusal) = refusal {
                let _ = socket.send(&refusal, from).await;
            }
        }
    }

    /// The transfer of a file and its place, or what is answered instead.
    fn begin(
        &self,
        request: &ReadRequest<'_>,
        from: SocketAddrV4,
    ) -> Result<(Transfer, TransferSlot), Option<Vec<u8>>> {
        let name = request.name.trim_start_matches('/');
        let Some(file) = self.files.get(name) else {
            tracing::info!(peer = %from, "TFTP: a file that is not there");
            return Err(Some(packet::error(1, "no such file")));
        };
        if !request.binary {
            return Err(Some(packet::error(0, "only octet mode is offered")));
        }
        // Who gets none asks again.
        let (number, transfer) = self.running.lock().take_place(*from.ip()).ok_or(None)?;
        let place = TransferSlot { running: Arc::clone(&self.running), number, transfer };
        Ok((Transfer::new(file.clone(), request), place))
    }
}

/// Sends a file; `heard` becomes true when its client acknowledges something.
async fn run(
    mut transfer: Transfer,
    heard: &AtomicBool,
    client: SocketAddrV4,
    ports: Arc<dyn Ports>,
) {
    let socket = match ports.open().await {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(%error, "no port for a TFTP transfer"),
    };
    let end = Instant::now() + LONGEST_TRANSFER;
    let mut silent_until = Instant::now() + SILENCE;
    let mut buffer = [0; LONGEST];
    let mut packets = transfer.begin();
    loop {
        for packet in packets.drain(..) {
            let _ = socket.send(&packet, client).await; // what is lost is sent again
        }
        let deadline = (Instant::now() + transfer.patience()).min(silent_until).min(end);
        let step = loop {
            let Ok(received) = timeout_at(deadline, socket.receive(&mut buffer)).await else {
                break transfer.timed_out();
            };
            let Ok((length, from)) = received else { break TransferStep::GivenUp };
            if from != client {
                continue; // RFC 1350, 4: it is another transfer's
            }
            match ClientPacket::decode(&buffer[..length]) {
                Some(ClientPacket::Ack(block)) => match transfer.acknowledged(block) {
                    TransferStep::Wait => {}
                    step => {
                        heard.store(true, Ordering::Relaxed);
                        silent_until = Instant::now() + SILENCE;
                        break step;
                    }
                },
                Some(ClientPacket::Error) => break TransferStep::GivenUp,
                _ => {}
            }
        };
        match step {
            TransferStep::Send(next) if Instant::now() < silent_until.min(end) => packets = next,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::io;
    use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
    use tokio::net::UdpSocket;

    struct Loopback;

    #[async_trait]
    impl Ports for Loopback {
        async fn open(&self) -> io::Result<Arc<dyn Datagrams>> {
            Ok(Arc::new(UdpSocket::bind("127.0.0.1:0").await?))
        }
    }

    async fn client_of(server: SocketAddrV4, request: &[u8]) -> (UdpSocket, Vec<u8>, SocketAddrV4) {
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(request, server).await.unwrap();
        let mut buffer = [0; LONGEST];
        let (length, from) = client.receive(&mut buffer).await.unwrap();
        (client, buffer[..length].to_vec(), from)
    }

    async fn with_server<F: Future<Output = ()>>(test: impl FnOnce(SocketAddrV4) -> F) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let std::net::SocketAddr::V4(address) = socket.local_addr().unwrap() else { panic!() };
        let server = TftpServer::new(FirmwareFiles::from([("snponly.efi", vec![7; 3000].into())]));
        tokio::select! {
            () = server.serve(&socket, Arc::new(Loopback)) => panic!("it ended"),
            done = tokio::time::timeout(Duration::from_secs(60), test(address)) => done.unwrap(),
        }
    }

    #[tokio::test]
    async fn a_file_of_the_table_arrives_and_nothing_else_does() {
        with_server(async |server| {
            let request =
                b"\0\x01/snponly.efi\0octet\0blksize\x001468\0windowsize\x004\0tsize\x000\0";
            let (client, answer, from) = client_of(server, request).await;
            assert_ne!(from, server, "a port of its own");
            assert_eq!(answer, b"\0\x06blksize\x001468\0windowsize\x004\0tsize\x003000\0");
            client.send_to(&[0, 4, 0, 0], from).await.unwrap();
            let mut got = 0;
            let mut buffer = [0; LONGEST];
            while got < 3000 {
                let (length, _) = client.receive(&mut buffer).await.unwrap();
                got += length - 4;
            }
            client.send_to(&[0, 4, 0, 3], from).await.unwrap();
            for (request, code) in [
                (&b"\0\x01../../etc/passwd\0octet\0"[..], 1),
                (b"\0\x01snponly.efi\0netascii\0", 0),
                (b"\0\x02snponly.efi\0octet\0", 2),
            ] {
                let (_, answer, _) = client_of(server, request).await;
                assert_eq!(answer[..4], [0, 5, 0, code]);
            }
        })
        .await;
    }

    const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7);

    /// A network with one client, which acknowledges blocks 1, 2, ... after a pause each, as many as it is to, and
    /// asks for what it has once more all the time.
    struct Scripted {
        pause: Duration,
        acks: u16,
        acked: AtomicU16,
        next: Instant,
    }

    #[async_trait]
    impl Datagrams for Scripted {
        async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddrV4)> {
            let acked = self.acked.load(SeqCst);
            let due = self.next + self.pause * u32::from(acked);
            let again = Instant::now() + Duration::from_secs(1);
            let block = if acked < self.acks && due <= again {
                tokio::time::sleep_until(due).await;
                self.acked.store(acked + 1, SeqCst);
                acked + 1
            } else {
                tokio::time::sleep_until(again).await;
                acked
            };
            buffer[..4].copy_from_slice(&[0, 4, 0, block as u8]);
            Ok((4, CLIENT))
        }

        async fn send(&self, _: &[u8], _: SocketAddrV4) -> io::Result<()> {
            Ok(())
        }
    }

    struct ScriptedPorts {
        pause: Duration,
        acks: u16,
    }

    #[async_trait]
    impl Ports for ScriptedPorts {
        async fn open(&self) -> io::Result<Arc<dyn Datagrams>> {
            let (pause, acks) = (self.pause, self.acks);
            Ok(Arc::new(Scripted { pause, acks, acked: 0.into(), next: Instant::now() + pause }))
        }
    }

    /// How long a transfer lasts to a client that asked for pauses of so many seconds, acknowledges one block in
    /// `pause`, and `acks` of them.
    async fn lasts(timeout: Option<u64>, pause: u64, acks: u16) -> Duration {
        let server = TftpServer::new(FirmwareFiles::from([("f", vec![7; 100 * 512].into())]));
        let request = ReadRequest { name: "f", binary: true, timeout, ..ReadRequest::default() };
        let (mut transfer, slot) = server.begin(&request, CLIENT).unwrap();
        if timeout.is_some() {
            transfer.acknowledged(0); // what was granted
        }
        let ports = Arc::new(ScriptedPorts { pause: Duration::from_secs(pause), acks });
        let began = Instant::now();
        run(transfer, &slot.transfer.heard, CLIENT, ports).await;
        drop(slot);
        assert!(server.running.lock().all.is_empty());
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_transfer_ends_a_minute_after_the_last_acknowledgement_and_after_five_in_all() {
        for timeout in [Some(10), Some(4)] {
            assert_eq!(lasts(timeout, 1, 0).await, SILENCE);
            // Three blocks, each after 50 seconds.
            assert_eq!(lasts(timeout, 50, 3).await, Duration::from_secs(150) + SILENCE);
        }
        // A client that asked for no pause is given up after five tries.
        assert!(lasts(None, 1, 0).await < SILENCE);
        assert_eq!(lasts(Some(10), 50, 99).await, LONGEST_TRANSFER);
        assert_eq!(lasts(Some(10), 1, 101).await, Duration::from_secs(101));
    }

    #[tokio::test]
    async fn clients_that_say_nothing_keep_none_out_that_acknowledges() {
        let request = b"\0\x01snponly.efi\0octet\0timeout\x0010\0";
        with_server(async |server| {
            let honest = client_of(server, request).await;
            honest.0.send_to(&[0, 4, 0, 0], honest.2).await.unwrap();
            let mut buffer = [0; LONGEST];
            assert_eq!(honest.0.receive(&mut buffer).await.unwrap().0, 4 + 512);
            let mut silent = Vec::new();
            for number in 0..=MOST {
                let address = Ipv4Addr::new(127, 0, 1 + (number >> 8) as u8, number as u8);
                let client = UdpSocket::bind((address, 0)).await.unwrap();
                client.send_to(request, server).await.unwrap();
                client.receive(&mut buffer).await.unwrap();
                silent.push(client);
            }
            // One was given up for each of the last, and not the one that acknowledges.
            honest.0.send_to(&[0, 4, 0, 1], honest.2).await.unwrap();
            assert_eq!(honest.0.receive(&mut buffer).await.unwrap().0, 4 + 512);
            assert_eq!(buffer[..4], [0, 3, 0, 2]);
        })
        .await;
    }

    #[tokio::test]
    async fn one_client_has_few_transfers_at_a_time() {
        with_server(async |server| {
            let request = b"\0\x01snponly.efi\0octet\0";
            let mut clients = Vec::new();
            for _ in 0..MOST_EACH {
                clients.push(client_of(server, request).await);
            }
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            client.send_to(request, server).await.unwrap();
            // An unknown name is answered after it: the server had its turn.
            let (_, answer, _) = client_of(server, b"\0\x01x\0octet\0").await;
            assert_eq!(answer[1], 5);
            let mut buffer = [0; LONGEST];
            let none =
                tokio::time::timeout(Duration::from_millis(50), client.receive(&mut buffer)).await;
            none.unwrap_err();
            // One that ends makes room.
            let (ends, _, from) = clients.pop().unwrap();
            ends.send_to(&[0, 5, 0, 0, 0], from).await.unwrap();
            loop {
                client.send_to(request, server).await.unwrap();
                let got =
                    tokio::time::timeout(Duration::from_millis(50), client.receive(&mut buffer))
                        .await;
                if got.is_ok() {
                    break;
                }
            }
        })
        .await;
    }
}

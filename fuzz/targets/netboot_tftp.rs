//! What a machine sends by TFTP: one transfer as a state machine, and a server to which packets come from several
//! machines while time goes by. Whatever comes, only blocks of the file that was asked for are sent.
#![no_main]

use async_trait::async_trait;
use libfuzzer_sys::fuzz_target;
use netboot::Datagrams;
use netboot::datagram::Ports;
use netboot::tftp::packet::{ClientPacket, ReadRequest};
use netboot::tftp::server::TftpServer;
use netboot::tftp::transfer::{Transfer, TransferStep};
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FILE: &str = "snponly.efi";
/// The most packets of one input.
const MOST: usize = 64;

fn content() -> Vec<u8> {
    (0..5000_u32).map(|at| (at % 251) as u8).collect()
}

/// A block, with its number, holds what the file has there.
fn check(packet: &[u8], block_size: usize) {
    let [0, kind, high, low, block @ ..] = packet else { panic!("{packet:?}") };
    let number = usize::from(u16::from_be_bytes([*high, *low]));
    match kind {
        3 => {
            // Numbers begin again at zero.
            let content = content();
            let blocks = content.len() / block_size + 1;
            let mut fits =
                (0..).map(|round| number + round * 0x1_0000).take_while(|n| *n <= blocks);
            let right = |n: usize| {
                n > 0 && content.chunks(block_size).nth(n - 1).unwrap_or_default() == block
            };
            assert!(fits.any(right), "block {number}");
        }
        5 | 6 => {}
        _ => panic!("{packet:?}"),
    }
}

fn transfer(data: &[u8]) {
    let Some((length, rest)) = data.split_first() else { return };
    let (request, acks) = rest.split_at(usize::from(*length).min(rest.len()));
    let request = match ClientPacket::decode(request) {
        Some(ClientPacket::Read(request)) => request,
        _ => ReadRequest::default(),
    };
    let block_size =
        request.block_size.filter(|size| *size >= 8).map_or(512, |size| size.min(1468)) as usize;
    let mut transfer = Transfer::new(content().into(), &request);
    transfer.begin().iter().for_each(|packet| check(packet, block_size));
    for ack in acks.chunks_exact(2).take(MOST) {
        let step = match ack {
            [0xff, 0xff] => transfer.timed_out(),
            _ => transfer.acknowledged(u16::from_be_bytes([ack[0], ack[1]])),
        };
        assert!(transfer.patience() > Duration::ZERO);
        match step {
            TransferStep::Send(packets) => {
                packets.iter().for_each(|packet| check(packet, block_size))
            }
            TransferStep::Wait => {}
            _ => return,
        }
    }
}

/// Packets that come to one port, one a second, and then none.
#[derive(Default)]
struct Scripted(Mutex<VecDeque<(Vec<u8>, SocketAddrV4)>>);

#[async_trait]
impl Datagrams for Scripted {
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddrV4)> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let next = self.0.lock().expect("no panic").pop_front();
        let Some((packet, from)) = next else { return std::future::pending().await };
        let length = packet.len().min(buffer.len());
        buffer[..length].copy_from_slice(&packet[..length]);
        Ok((length, from))
    }

    async fn send(&self, data: &[u8], _: SocketAddrV4) -> io::Result<()> {
        assert!(data.len() >= 4 && data[0] == 0 && matches!(data[1], 3 | 5 | 6), "{data:?}");
        Ok(())
    }
}

/// What comes to the ports of transfers.
struct Replies(Vec<(Vec<u8>, SocketAddrV4)>);

#[async_trait]
impl Ports for Replies {
    async fn open(&self) -> io::Result<Arc<dyn Datagrams>> {
        match self.0.is_empty() {
            true => Err(io::ErrorKind::AddrInUse.into()),
            false => Ok(Arc::new(Scripted(Mutex::new(self.0.clone().into())))),
        }
    }
}

/// Packets, each with one byte for its sender and port and one for its length in front.
fn packets(mut data: &[u8]) -> (VecDeque<(Vec<u8>, SocketAddrV4)>, Vec<(Vec<u8>, SocketAddrV4)>) {
    let (mut requests, mut replies) = (VecDeque::new(), Vec::new());
    while let [who, length, rest @ ..] = data
        && requests.len() + replies.len() < MOST
    {
        let (packet, behind) = rest.split_at(usize::from(*length).min(rest.len()));
        let from =
            SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, who & 3), 1000 + u16::from(who >> 2 & 1));
        match who & 0x80 {
            0 => requests.push_back((packet.to_vec(), from)),
            _ => replies.push((packet.to_vec(), from)),
        }
        data = behind;
    }
    (requests, replies)
}

fn serve(data: &[u8]) {
    let (requests, replies) = packets(data);
    let socket = Scripted(Mutex::new(requests));
    let server = TftpServer::new([(FILE, content().into())].into());
    sojourn_fuzz::block_on_in_no_time(async {
        // Longer than any transfer may last.
        let serve = server.serve(&socket, Arc::new(Replies(replies)));
        tokio::time::timeout(Duration::from_secs(500), serve).await.expect_err("it goes on");
    });
    assert!(socket.0.lock().expect("no panic").is_empty(), "a request was not looked at");
}

fuzz_target!(|data: &[u8]| match data.split_first() {
    Some((0, data)) => transfer(data),
    Some((_, data)) => serve(data),
    None => {}
});

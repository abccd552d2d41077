//! What a machine sends before it has a system: DHCP at both ports, with and without addresses to hand
//! out, and TFTP; and the file that says which machine has which disk.
#![no_main]

use async_trait::async_trait;
use block::Error;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use netboot::dhcp::address::NetworkSettings;
use netboot::dhcp::server::Addresses;
use netboot::dhcp::{DhcpServer, Leases, Message, ServerAddress};
use netboot::identity::Claim;
use netboot::kernel::BootFile;
use netboot::script::Script;
use netboot::tftp::Transfer;
use netboot::tftp::packet::{ClientPacket, ReadRequest};
use netboot::{BootDecision, Machines, Registry};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

/// Every machine is ours.
struct All;

#[async_trait]
impl Machines for All {
    fn judge(&self, _: &Claim) -> BootDecision {
        BootDecision::Boot
    }

    async fn script(&self, _: &Claim) -> Option<Script> {
        None
    }

    async fn length(&self, _: &Claim, _: BootFile) -> block::Result<u64> {
        Err(Error::not_found("none"))
    }

    async fn file(&self, _: &Claim, _: BootFile) -> block::Result<Bytes> {
        Err(Error::not_found("none"))
    }
}

fn server(alone: bool) -> DhcpServer {
    let here = ServerAddress { address: Ipv4Addr::new(10, 0, 0, 1), http: 8067 };
    let addresses = alone.then(|| Addresses {
        network: NetworkSettings {
            mask: Ipv4Addr::new(255, 255, 255, 0),
            router: None,
            name_servers: Vec::new(),
        },
        leases: Leases::new(
            "10.0.0.2-10.0.0.5".parse().expect("range"),
            [here.address].into(),
            60,
            Vec::new(),
        ),
    });
    DhcpServer::new(here, Arc::new(All), addresses, Arc::new(|| 0))
}

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Registry::parse(text);
    }
    if let Some(message) = Message::decode(data) {
        let encoded = message.encode();
        // A file field without its last zero is cut; everything else comes back.
        let again = Message::decode(&encoded).expect("what was written is read");
        assert_eq!(again.encode(), encoded);
    }
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 68);
    for alone in [false, true] {
        let server = server(alone);
        if let Some((answer, _)) = server.answer(data, from) {
            assert!(!Message::decode(&answer).expect("an answer").request);
        }
        let _ = server.boot_answer(data);
    }
    let mut transfer = Transfer::new(vec![1; 5000].into(), &ReadRequest::default());
    if let Some(ClientPacket::Read(request)) = ClientPacket::decode(data) {
        transfer = Transfer::new(vec![1; 5000].into(), &request);
        let _ = transfer.begin();
    }
    for ack in data.chunks_exact(2).take(64) {
        let _ = transfer.acknowledged(u16::from_be_bytes([ack[0], ack[1]]));
        let _ = transfer.timed_out();
    }
});

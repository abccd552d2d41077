//! What a machine sends by DHCP before it has a system, to a server beside another one and to one that hands out
//! addresses; and the file that says which machine has which disk. The messages are raw, or those of four cards as
//! time goes by: then no address is granted to two cards at a time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netboot::dhcp::address::NetworkSettings;
use netboot::dhcp::server::Addresses;
use netboot::dhcp::{DhcpServer, Leases, Message, MessageType, ServerAddress};
use netboot::{MacAddress, Registry};
use sojourn_fuzz::machines::Everyone;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const HERE: ServerAddress = ServerAddress { address: Ipv4Addr::new(10, 0, 0, 1), http: 8067 };
const FROM: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 68);
/// Seconds that a lease lasts.
const LASTS: u64 = 60;
/// The first number of an address that is handed out, and the last one.
const RANGE: (u8, u8) = (2, 5);
/// The option with the address that a client wishes (RFC 2132, 9.1), that with the message's kind (9.6), and a PXE
/// client's name (PXE 2.1).
const WISH: u8 = 50;
const KIND: u8 = 53;
const VENDOR_CLASS: u8 = 60;

fn server(alone: bool, clock: &Arc<AtomicU64>) -> DhcpServer {
    let addresses = alone.then(|| Addresses {
        network: NetworkSettings {
            mask: Ipv4Addr::new(255, 255, 255, 0),
            router: None,
            name_servers: Vec::new(),
        },
        leases: Leases::new(
            "10.0.0.2-10.0.0.5".parse().expect("range"),
            [HERE.address].into(),
            LASTS,
            Vec::new(),
        ),
    });
    let clock = Arc::clone(clock);
    DhcpServer::new(
        HERE,
        Arc::new(Everyone),
        addresses,
        Arc::new(move || clock.load(Ordering::Relaxed)),
    )
}

/// One message, as it came.
fn raw(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Registry::parse(text);
    }
    if let Some(message) = Message::decode(data) {
        let encoded = message.encode();
        // A file field without its last zero is cut; everything else comes back.
        let again = Message::decode(&encoded).expect("what was written is read");
        assert_eq!(again.encode(), encoded);
    }
    let clock = Arc::default();
    for alone in [false, true] {
        let server = server(alone, &clock);
        if let Some((answer, _)) = server.answer(data, FROM) {
            assert!(!Message::decode(&answer).expect("an answer").request);
        }
        let _ = server.boot_answer(data);
    }
}

/// Who holds which address until when, as the server's answers say.
#[derive(Default)]
struct Granted(BTreeMap<Ipv4Addr, (MacAddress, u64)>);

impl Granted {
    fn grant(&mut self, address: Ipv4Addr, mac: MacAddress, now: u64) {
        let last = address.octets()[3];
        assert!((RANGE.0..=RANGE.1).contains(&last), "{address} is not of the range");
        if let Some((holder, until)) = self.0.get(&address) {
            assert!(
                *holder == mac || *until <= now,
                "{address} is {holder}'s until {until}, at {now} {mac} got it"
            );
        }
        self.0.retain(|_, (holder, _)| *holder != mac);
        self.0.insert(address, (mac, now + LASTS));
    }

    fn give_back(&mut self, address: Ipv4Addr, mac: MacAddress) {
        if self.0.get(&address).is_some_and(|(holder, _)| *holder == mac) {
            self.0.remove(&address);
        }
    }
}

/// Four cards ask, each step four bytes: what, which card, which address, how many seconds later.
fn in_turns(data: &[u8]) {
    let clock = Arc::new(AtomicU64::new(1_000));
    let server = server(true, &clock);
    let mut granted = Granted::default();
    for step in data.chunks_exact(4).take(512) {
        let now = clock.fetch_add(u64::from(step[3]), Ordering::Relaxed) + u64::from(step[3]);
        let mac = MacAddress([0x52, 0x54, 0, 0, 0, step[1] & 3]);
        let address = Ipv4Addr::new(10, 0, 0, step[2] & 7);
        let mut bytes = vec![0; 240];
        bytes[..3].copy_from_slice(&[1, 1, 6]);
        bytes[28..34].copy_from_slice(&mac.0);
        bytes[236..240].copy_from_slice(&[99, 130, 83, 99]);
        let kind = MessageType::of(step[0] & 15).unwrap_or(MessageType::Discover);
        if step[0] & 16 != 0 || kind == MessageType::Release {
            bytes[12..16].copy_from_slice(&address.octets());
        } else {
            bytes.extend([WISH, 4]);
            bytes.extend(address.octets());
        }
        if step[0] & 32 != 0 {
            bytes.extend([VENDOR_CLASS, 9]);
            bytes.extend(b"PXEClient");
        }
        bytes.extend([KIND, 1, kind as u8, 255]);
        let answer = server.answer(&bytes, FROM);
        let answer = answer.map(|(answer, _)| Message::decode(&answer).expect("an answer"));
        match (kind, answer) {
            (_, Some(answer)) if answer.kind() == Some(MessageType::Ack) => {
                if !answer.yours.is_unspecified() {
                    granted.grant(answer.yours, mac, now);
                }
            }
            (MessageType::Release | MessageType::Decline, answer) => {
                assert!(answer.is_none(), "nobody waits for an answer to {kind:?}");
                granted.give_back(address, mac);
            }
            _ => {}
        }
    }
}

fuzz_target!(|data: &[u8]| match data.split_first() {
    // The first byte of a message is 1 or 2.
    Some((0xff, steps)) => in_turns(steps),
    _ => raw(data),
});

//! The server: both ports, who is answered how often, leases that are kept.

use super::address::{self, NetworkSettings};
use super::client::{BootClient, FirmwareKind};
use super::leases::{Lease, Leases};
use super::{CLIENT_PORT, Message, MessageType, ServerAddress, answer};
use crate::datagram::LONGEST;
use crate::turns::AnswerTurns;
use crate::{BootDecision, Datagrams, MacAddress, Machines, RouterAdvertiser};
use parking_lot::Mutex;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Answers for a card in a second, or for those that share a slot of [`AnswerTurns`].
const ANSWERS: u32 = 20;
/// How long reading rests after a socket failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Unix seconds now.
pub type UnixClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What hands out addresses, where this is the only DHCP server.
pub struct Addresses {
    /// What is told of the network.
    pub network: NetworkSettings,
    /// Who has what.
    pub leases: Leases,
}

/// A DHCP server that tells machines what to boot.
pub struct DhcpServer {
    here: ServerAddress,
    machines: Arc<dyn Machines>,
    addresses: Option<Mutex<Addresses>>,
    clock: UnixClock,
    advertiser: Option<Arc<RouterAdvertiser>>,
    turns: AnswerTurns,
    counters: DhcpCounters,
}

/// What a server counted.
#[derive(Debug, Default)]
struct DhcpCounters {
    answered: AtomicU64,
    ignored: AtomicU64,
    held_back: AtomicU64,
}

impl DhcpServer {
    /// A server. Without `addresses` it stands beside another one and hands out none.
    pub fn new(
        here: ServerAddress,
        machines: Arc<dyn Machines>,
        addresses: Option<Addresses>,
        clock: UnixClock,
    ) -> Self {
        let turns = AnswerTurns::new(ANSWERS);
        let addresses = addresses.map(Mutex::new);
        let counters = DhcpCounters::default();
        Self { here, machines, addresses, clock, advertiser: None, turns, counters }
    }

    /// The same server, which tells `advertiser` of machines in iPXE.
    pub fn advertising(self, advertiser: Option<Arc<RouterAdvertiser>>) -> Self {
        Self { advertiser, ..self }
    }

    /// Answers at port 67 until the future is dropped.
    pub async fn serve(&self, socket: &dyn Datagrams) {
        answer_all(socket, |bytes, from| self.answer(bytes, from)).await;
    }

    /// Answers at port 4011 until the future is dropped.
    pub async fn serve_boot(&self, socket: &dyn Datagrams) {
        answer_all(socket, |bytes, from| Some((self.boot_answer(bytes)?, from))).await;
    }

    /// Answers that were sent, requests that were nobody's business, and answers that were held back.
    pub fn counters(&self) -> (u64, u64, u64) {
        let DhcpCounters { answered, ignored, held_back } = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (get(answered), get(ignored), get(held_back))
    }

    /// The leases that clients took; `None` where no addresses are handed out.
    pub fn leases(&self) -> Option<Vec<Lease>> {
        Some(self.addresses.as_ref()?.lock().leases.list())
    }

    /// The answer to what came to port 67, and where it goes.
    pub fn answer(&self, bytes: &[u8], from: SocketAddrV4) -> Option<Addressed> {
        let request = self.wanted(bytes)?;
        let boots = self.ours(&request);
        // Before an address is looked for: who is not answered is not to cost anything, nor to hold one.
        if boots.is_none() && self.addresses.is_none() || !self.in_turn(request.mac) {
            return None;
        }
        self.advertise(&request, boots.as_ref());
        let answer = match &self.addresses {
            None => answer::proxy(&request, boots.as_ref()?, self.here),
            Some(addresses) => {
                let Addresses { network, leases } = &mut *addresses.lock();
                let now = (self.clock)();
                address::answer(&request, boots.as_ref(), (leases, network, self.here), now)
            }
        };
        let Some(answer) = answer else {
            self.counters.ignored.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.counters.answered.fetch_add(1, Ordering::Relaxed);
        Some((answer.encode(), destination(&request, &answer, from)))
    }

    /// The answer to what came to port 4011; it goes back to where that came from.
    pub fn boot_answer(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let request = self.wanted(bytes)?;
        let client = self.ours(&request)?;
        let answer = answer::boot_server(&request, &client, self.here)?;
        self.in_turn(request.mac).then(|| {
            self.counters.answered.fetch_add(1, Ordering::Relaxed);
            answer.encode()
        })
    }

    /// Has the wait of a machine in iPXE for an IPv6 router end. It takes an offer once, and looks for a router meanwhile.
    fn advertise(&self, request: &Message, client: Option<&BootClient>) {
        let in_ipxe = client.is_some_and(|client| client.firmware == FirmwareKind::Ipxe);
        if let Some(advertiser) = &self.advertiser
            && in_ipxe
            && request.kind() == Some(MessageType::Request)
        {
            advertiser.saw(request.mac);
        }
    }

    /// A request of the network that this server stands in. What comes by a relay is of another one.
    fn wanted(&self, bytes: &[u8]) -> Option<Message> {
        let request = Message::decode(bytes).filter(|m| m.request && m.relay.is_unspecified());
        if request.is_none() {
            self.counters.ignored.fetch_add(1, Ordering::Relaxed);
        }
        request
    }

    /// Who asks, if it is a machine that is to start from here.
    fn ours(&self, request: &Message) -> Option<BootClient> {
        let client = BootClient::of(request)?;
        let ours = self.machines.judge(&client.machine) == BootDecision::Boot;
        if !ours {
            self.counters.ignored.fetch_add(1, Ordering::Relaxed);
        }
        ours.then_some(client)
    }

    /// Whether a card may be answered: not when it asks more often than any honest one does.
    fn in_turn(&self, mac: MacAddress) -> bool {
        let may = self.turns.take(&mac.0, (self.clock)());
        if !may {
            self.counters.held_back.fetch_add(1, Ordering::Relaxed);
        }
        may
    }
}

/// An answer and where it goes.
type Addressed = (Vec<u8>, SocketAddrV4);

async fn answer_all(
    socket: &dyn Datagrams,
    answer: impl Fn(&[u8], SocketAddrV4) -> Option<Addressed>,
) {
    let mut buffer = [0; LONGEST];
    loop {
        match socket.receive(&mut buffer).await {
            Ok((length, from)) => {
                if let Some((answer, to)) = answer(&buffer[..length], from)
                    && let Err(error) = socket.send(&answer, to).await
                {
                    tracing::debug!(%error, %to, "cannot send a DHCP answer");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot receive DHCP requests");
                tokio::time::sleep(PAUSE).await;
            }
        }
        // One that is flooded lets others have their turn.
        tokio::task::yield_now().await;
    }
}

/// Where an answer goes (RFC 2131, 4.1): to the client's address if it has one, else to all, as a
/// client without one hears nothing else from an ordinary socket.
fn destination(request: &Message, answer: &Message, from: SocketAddrV4) -> SocketAddrV4 {
    let refused = answer.kind() == Some(MessageType::Nak);
    let proven = request.client == *from.ip() && !request.client.is_unspecified();
    match proven && !refused {
        true => SocketAddrV4::new(request.client, from.port()),
        false => SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::option;
    use crate::identity::{BootRequest, Claim};
    use crate::kernel::BootFile;
    use crate::script::Script;
    use crate::turns::slot_of;
    use async_trait::async_trait;
    use bytes::Bytes;

    struct Only(MacAddress);

    #[async_trait]
    impl Machines for Only {
        fn judge(&self, machine: &Claim) -> BootDecision {
            if machine.mac == self.0 { BootDecision::Boot } else { BootDecision::Ignore }
        }

        async fn script(&self, _: &BootRequest) -> Option<Script> {
            None
        }

        async fn length(&self, _: &BootRequest, _: BootFile) -> block::Result<u64> {
            Err(block::Error::not_found("nothing"))
        }

        async fn file(&self, _: &BootRequest, _: BootFile) -> block::Result<Bytes> {
            Err(block::Error::not_found("nothing"))
        }
    }

    const MINE: MacAddress = MacAddress([0x52, 0x54, 0, 0, 0, 1]);
    const NOBODY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);

    fn server(addresses: Option<Addresses>) -> (DhcpServer, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(1000));
        let clock = Arc::clone(&time);
        let here = ServerAddress { address: Ipv4Addr::new(10, 0, 0, 1), http: 80 };
        let clock: UnixClock = Arc::new(move || clock.load(Ordering::Relaxed));
        (DhcpServer::new(here, Arc::new(Only(MINE)), addresses, clock), time)
    }

    fn discover(mac: MacAddress) -> Message {
        let mut bytes = vec![0; 236];
        (bytes[0], bytes[1], bytes[2]) = (1, 1, 6);
        bytes[28..34].copy_from_slice(&mac.0);
        bytes.extend([99, 130, 83, 99, 255]);
        let blank = Message::decode(&bytes).unwrap();
        blank.with(option::KIND, [1]).with(option::VENDOR_CLASS, *b"PXEClient:Arch:00000")
    }

    #[test]
    fn a_foreign_card_gets_nothing() {
        let (server, _) = server(None);
        assert!(server.answer(&discover(MINE).encode(), NOBODY).is_some());
        let foreign = MacAddress([0x52, 0x54, 0, 0, 0, 2]);
        assert_eq!(server.answer(&discover(foreign).encode(), NOBODY), None);
        let mut again = discover(foreign).encode();
        again[242] = 3; // a request
        assert_eq!(server.boot_answer(&again), None);
        assert_eq!(server.counters(), (1, 2, 0));
    }

    #[derive(Default)]
    struct Cards(Mutex<Vec<MacAddress>>);

    impl crate::Frames for Cards {
        fn send(&self, frame: &[u8]) -> std::io::Result<()> {
            self.0.lock().push(MacAddress(frame[..6].try_into().unwrap()));
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_machine_of_ours_that_takes_an_offer_in_ipxe_hears_that_there_is_no_router() {
        let advertiser = Arc::new(RouterAdvertiser::new(MacAddress([2, 0, 0, 0, 0, 9])));
        let server = server(None).0.advertising(Some(Arc::clone(&advertiser)));
        let foreign = MacAddress([0x52, 0x54, 0, 0, 0, 2]);
        let ipxe = |mac| discover(mac).with(option::USER_CLASS, *b"iPXE");
        let takes = |message: Message| {
            let mut bytes = message.encode();
            bytes[242] = MessageType::Request as u8;
            bytes
        };
        let mut relayed = ipxe(MINE);
        relayed.relay = Ipv4Addr::new(10, 9, 9, 9);
        let nobody =
            [ipxe(MINE).encode(), takes(ipxe(foreign)), takes(discover(MINE)), takes(relayed)];
        for request in nobody {
            let _ = server.answer(&request, NOBODY);
        }
        let heard = async || {
            let cards = Cards::default();
            let _ = tokio::time::timeout(Duration::from_secs(5), advertiser.serve(&cards)).await;
            cards.0.into_inner()
        };
        assert_eq!(heard().await, []);
        let _ = server.answer(&takes(ipxe(MINE)), NOBODY);
        assert_eq!(heard().await, [MINE]);
    }

    #[test]
    fn what_a_relay_forwards_is_not_answered() {
        let (server, _) = server(None);
        let mut relayed = discover(MINE);
        relayed.relay = Ipv4Addr::new(10, 9, 9, 9);
        assert_eq!(server.answer(&relayed.encode(), NOBODY), None);
    }

    #[test]
    fn ten_thousand_requests_of_a_second_get_few_answers() {
        let (server, time) = server(None);
        let request = discover(MINE).encode();
        let answers = (0..10_000).filter(|_| server.answer(&request, NOBODY).is_some()).count();
        assert_eq!(answers, ANSWERS as usize);
        time.fetch_add(1, Ordering::Relaxed);
        assert!(server.answer(&request, NOBODY).is_some(), "the next second is another one");
    }

    fn addresses(range: &str) -> Addresses {
        let network = NetworkSettings {
            mask: Ipv4Addr::new(255, 255, 255, 0),
            router: None,
            name_servers: Vec::new(),
        };
        let own = Ipv4Addr::new(10, 0, 0, 1);
        Addresses {
            network,
            leases: Leases::new(range.parse().unwrap(), [own].into(), 60, Vec::new()),
        }
    }

    #[test]
    fn a_card_that_is_not_answered_holds_no_address() {
        let (server, time) = server(Some(addresses("10.0.0.10-10.0.0.11")));
        let answered = |mac| server.answer(&discover(MacAddress(mac)).encode(), NOBODY).is_some();
        let (one, of_its_slot, other) =
            ([2, 0, 0, 0, 0, 31], [2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 7]);
        assert_eq!(slot_of(&one), slot_of(&of_its_slot));
        assert!((0..ANSWERS).all(|_| answered(one)));
        assert!(!answered(of_its_slot));
        time.fetch_add(1, Ordering::Relaxed);
        assert!(answered(other), "the second address is free");
    }

    #[test]
    fn an_answer_goes_to_all_unless_the_sender_has_the_address() {
        let (server, _) = server(None);
        let mut request = discover(MINE);
        let (_, to) = server.answer(&request.encode(), NOBODY).unwrap();
        assert_eq!(to, SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT));
        // Somebody claims the address of a victim.
        request.client = Ipv4Addr::new(10, 0, 0, 66);
        let (_, to) = server.answer(&request.encode(), NOBODY).unwrap();
        assert_eq!(*to.ip(), Ipv4Addr::BROADCAST);
        let from = SocketAddrV4::new(request.client, 68);
        assert_eq!(server.answer(&request.encode(), from).unwrap().1, from);
    }

    #[test]
    fn foreign_machines_get_addresses_and_no_boot_file_where_this_is_the_only_server() {
        let (server, _) = server(Some(addresses("10.0.0.10-10.0.0.20")));
        let read = |mac| {
            let (bytes, _) = server.answer(&discover(mac).encode(), NOBODY).unwrap();
            Message::decode(&bytes).unwrap()
        };
        assert_eq!(read(MINE).file, b"undionly.kpxe");
        let foreign = read(MacAddress([2, 0, 0, 0, 0, 9]));
        assert!(foreign.file.is_empty() && !foreign.yours.is_unspecified());
        assert_eq!(server.leases(), Some(Vec::new()), "it was offered and not taken");
    }
}

//! What is answered about addresses, where this is the only DHCP server of a network (RFC 2131, 4.3).

use super::answer::beside_address;
use super::client::BootClient;
use super::leases::Leases;
use super::{Message, MessageType, ServerAddress, option};
use std::net::Ipv4Addr;

/// What clients are told of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSettings {
    /// Its mask.
    pub mask: Ipv4Addr,
    /// The way out, if there is one.
    pub router: Option<Ipv4Addr>,
    /// Who knows names.
    pub name_servers: Vec<Ipv4Addr>,
}

impl NetworkSettings {
    fn holds(&self, address: Ipv4Addr, here: ServerAddress) -> bool {
        let net = |address: Ipv4Addr| u32::from(address) & u32::from(self.mask);
        net(address) == net(here.address)
    }
}

/// Answers any client. `boots` is who asks, when it is a machine that is to start from here.
pub fn answer(
    request: &Message,
    boots: Option<&BootClient>,
    (leases, network, here): (&mut Leases, &NetworkSettings, ServerAddress),
    now: u64,
) -> Option<Message> {
    if !request.request || !request.mac.is_unicast() {
        return None;
    }
    let (mac, wish) = (request.mac, request.address(option::REQUESTED_ADDRESS));
    let grant = |kind, address| {
        let mut answer = Message::answer(request, kind);
        answer.yours = address;
        answer.next_server = here.address;
        granted(answer, boots, network, here)
    };
    match request.kind()? {
        MessageType::Discover => {
            let address = leases.offer(mac, wish, now)?;
            Some(lasting(grant(MessageType::Offer, address), leases.lasts()))
        }
        MessageType::Request => {
            let server = request.address(option::SERVER);
            if server.is_some_and(|server| server != here.address) {
                return None; // it took another server's offer
            }
            let address = wish.unwrap_or(request.client);
            if address.is_unspecified() {
                return None;
            }
            if leases.take(mac, address, now) {
                let mut ack = lasting(grant(MessageType::Ack, address), leases.lasts());
                ack.client = request.client;
                return Some(ack);
            }
            Some(refused(request, network.holds(address, here), here))
        }
        MessageType::Inform if !request.client.is_unspecified() => {
            let mut ack = grant(MessageType::Ack, Ipv4Addr::UNSPECIFIED);
            ack.client = request.client;
            Some(ack)
        }
        MessageType::Release => {
            leases.release(mac, request.client);
            None
        }
        MessageType::Decline => {
            leases.decline(mac, wish?, now);
            None
        }
        _ => None,
    }
}

fn granted(
    answer: Message,
    boots: Option<&BootClient>,
    network: &NetworkSettings,
    here: ServerAddress,
) -> Message {
    let mut answer = answer
        .with(option::SERVER, here.address.octets())
        .with(option::MASK, network.mask.octets());
    if let Some(router) = network.router {
        answer = answer.with(option::ROUTER, router.octets());
    }
    if !network.name_servers.is_empty() {
        let all: Vec<u8> = network.name_servers.iter().flat_map(Ipv4Addr::octets).collect();
        answer = answer.with(option::NAME_SERVERS, all);
    }
    match boots {
        Some(client) => beside_address(answer, client, here),
        None => answer,
    }
}

fn lasting(answer: Message, seconds: u64) -> Message {
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
    answer.with(option::LEASE_TIME, seconds.to_be_bytes())
}

fn refused(request: &Message, ours: bool, here: ServerAddress) -> Message {
    let why = if ours { "the address is not free" } else { "the address is of another network" };
    let mut nak = Message::answer(request, MessageType::Nak);
    nak.broadcast = true;
    nak.with(option::SERVER, here.address.octets()).with(option::MESSAGE, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MacAddress;

    const HERE: ServerAddress = ServerAddress { address: Ipv4Addr::new(10, 0, 0, 1), http: 8067 };

    struct Site(Leases, NetworkSettings);

    impl Site {
        fn new() -> Self {
            let range = "10.0.0.10-10.0.0.20".parse().unwrap();
            let network = NetworkSettings {
                mask: Ipv4Addr::new(255, 255, 255, 0),
                router: Some(Ipv4Addr::new(10, 0, 0, 254)),
                name_servers: vec![Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3)],
            };
            Self(Leases::new(range, [HERE.address].into(), 3600, Vec::new()), network)
        }

        fn ask(&mut self, request: &Message) -> Option<Message> {
            let client = BootClient::of(request);
            answer(request, client.as_ref(), (&mut self.0, &self.1, HERE), 100)
        }
    }

    fn request(kind: MessageType) -> Message {
        let blank = Message::decode(&{
            let mut bytes = vec![0; 236];
            (bytes[0], bytes[1], bytes[2]) = (1, 1, 6);
            bytes[28..34].copy_from_slice(&[0x52, 0x54, 0, 1, 2, 3]);
            bytes.extend([99, 130, 83, 99, 255]);
            bytes
        });
        blank.unwrap().with(option::KIND, [kind as u8])
    }

    #[test]
    fn a_client_gets_an_address_and_may_keep_it() {
        let mut site = Site::new();
        let offer = site.ask(&request(MessageType::Discover)).unwrap();
        assert_eq!(offer.kind(), Some(MessageType::Offer));
        assert_eq!(offer.option(option::LEASE_TIME), Some(&3600u32.to_be_bytes()[..]));
        assert_eq!(offer.option(option::NAME_SERVERS), Some(&[10, 0, 0, 2, 10, 0, 0, 3][..]));
        assert!(offer.file.is_empty(), "it does not boot");
        let take = request(MessageType::Request)
            .with(option::SERVER, HERE.address.octets())
            .with(option::REQUESTED_ADDRESS, offer.yours.octets());
        let ack = site.ask(&take).unwrap();
        assert_eq!((ack.kind(), ack.yours), (Some(MessageType::Ack), offer.yours));
        let mut renew = request(MessageType::Request);
        renew.client = offer.yours;
        assert_eq!(site.ask(&renew).unwrap().kind(), Some(MessageType::Ack));
        assert_eq!(site.0.list().len(), 1);
        let mut release = request(MessageType::Release);
        release.client = offer.yours;
        assert_eq!(site.ask(&release), None);
        assert!(site.0.list().is_empty());
    }

    #[test]
    fn what_is_not_free_is_refused_and_other_servers_are_left_alone() {
        let mut site = Site::new();
        let foreign =
            request(MessageType::Request).with(option::REQUESTED_ADDRESS, [192, 168, 1, 1]);
        assert_eq!(site.ask(&foreign).unwrap().kind(), Some(MessageType::Nak));
        let other = foreign.with(option::SERVER, [10, 0, 0, 77]);
        assert_eq!(site.ask(&other), None);
        site.0.take(MacAddress([2; 6]), Ipv4Addr::new(10, 0, 0, 12), 100);
        let taken = request(MessageType::Request).with(option::REQUESTED_ADDRESS, [10, 0, 0, 12]);
        assert_eq!(site.ask(&taken).unwrap().kind(), Some(MessageType::Nak));
    }

    #[test]
    fn a_machine_that_boots_gets_both_in_one_answer() {
        let mut site = Site::new();
        let boots =
            request(MessageType::Discover).with(option::VENDOR_CLASS, *b"PXEClient:Arch:00007");
        let boots = boots.with(option::ARCHITECTURE, [0, 7]);
        let offer = site.ask(&boots).unwrap();
        assert_eq!(offer.file, b"snponly.efi");
        assert_eq!(offer.option(option::VENDOR_CLASS), None, "or it would ask port 4011");
        assert!(site.0.range().contains(offer.yours));
    }
}

//! A running server is announced where it listens, until it stops.

use super::interfaces::{self, LocalNetwork};
use crate::running::{ListenAddresses, RunningServer};
use discovery::message::LONGEST;
use discovery::{Announcement, CutQueries, DnsMessage, GROUP, OfferedService, ServiceKind};
use rustix::net::sockopt::{set_ip_multicast_if, set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket as StdSocket};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

/// How often it is looked where the server listens, and what networks there are.
const TICK: Duration = Duration::from_secs(2);
/// How often a change is said, one tick apart: a datagram may be lost (RFC 6762, 8.3).
const TIMES: u8 = 2;
/// Answers in a tick, to all together: more are asked for by nobody honest.
const ANSWERS: u32 = 100;

/// What of a server is the same in every network.
struct ServerIdentity {
    name: String,
    host: String,
}

/// A network in which the server is announced.
struct AnnouncedNetwork {
    network: LocalNetwork,
    said: Announcement,
    /// How often that is still to be said.
    left: u8,
}

/// Announces a server, and where it answers peers, until `stop`, which tells whether nobody serves in its place. What goes wrong is in
/// the log: to serve is more important.
pub(crate) async fn announce(
    running: &RunningServer,
    peers: Option<SocketAddr>,
    stop: impl Future<Output = bool>,
) {
    let server = match running.engine.disks.server().await {
        Ok(server) => server.to_string(),
        Err(e) => return tracing::warn!(error = e.message(), "the server is not announced"),
    };
    let number = &server[..server.floor_char_boundary(8)];
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let identity = ServerIdentity {
        name: Announcement::name_of(&host, number),
        host: format!("sojourn-{number}"),
    };
    match socket() {
        Ok(socket) => {
            let cut = CutQueries::new(server.bytes().fold(0, u8::wrapping_add));
            let (began, members) = (Instant::now(), BTreeMap::new());
            let announcer =
                Announcer { running, peers, identity, socket, cut, began, members, failed: false };
            announcer.serve(stop).await;
        }
        Err(error) => tracing::warn!(%error, "UDP port 5353: the server is not announced"),
    }
}

struct Announcer<'a> {
    running: &'a RunningServer,
    /// Where peers are answered.
    peers: Option<SocketAddr>,
    identity: ServerIdentity,
    /// Hears what is sent to all, and speaks in one network after the other.
    socket: UdpSocket,
    /// Questions of which the rest is to come.
    cut: CutQueries,
    /// From when on moments are told to these.
    began: Instant,
    members: BTreeMap<Ipv4Addr, AnnouncedNetwork>,
    /// Whether it was told that something failed.
    failed: bool,
}

impl Announcer<'_> {
    async fn serve(mut self, stop: impl Future<Output = bool>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut buffer, mut left) = (vec![0; LONGEST], ANSWERS);
        let mut stop = std::pin::pin!(stop);
        loop {
            let due = self.cut.next().map(|due| self.began + due);
            tokio::select! {
                last = &mut stop => {
                    if last {
                        for member in self.members.values() {
                            self.send(member, &member.said.goodbye(), GROUP).await;
                        }
                    }
                    return;
                }
                _ = tick.tick() => {
                    left = ANSWERS;
                    self.follow().await;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && left > 0 => {
                    if let Some((from, query)) = self.cut.due(self.began.elapsed()) {
                        left -= u32::from(self.answer(&query, from).await);
                    }
                }
                heard = self.socket.recv_from(&mut buffer), if left > 0 => match heard {
                    Ok((length, SocketAddr::V4(from))) => {
                        left -= u32::from(self.hear(&buffer[..length], from).await);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "cannot hear who looks for servers");
                        left = 0; // until the next tick
                    }
                },
            }
        }
    }

    /// Answers who asks, unless the rest of what they know is to come; whether it did.
    async fn hear(&mut self, bytes: &[u8], from: SocketAddrV4) -> bool {
        if self.member_of(from).is_none() {
            return false;
        }
        let now = self.began.elapsed();
        let query = DnsMessage::decode(bytes).and_then(|query| self.cut.take(from, query, now));
        match query {
            Some(query) => self.answer(&query, from).await,
            None => false,
        }
    }

    /// Answers who asks from a network in which the server is announced; whether it did.
    async fn answer(&self, query: &DnsMessage, from: SocketAddrV4) -> bool {
        let Some(member) = self.member_of(from) else { return false };
        let once = from.port() != GROUP.port();
        let Some(answer) = member.said.answer(query, once) else { return false };
        self.send(member, &answer, if once { from } else { GROUP }).await;
        true
    }

    fn member_of(&self, from: SocketAddrV4) -> Option<&AnnouncedNetwork> {
        self.members.values().find(|one| one.network.holds(*from.ip()))
    }

    /// Sends into a network.
    async fn send(&self, member: &AnnouncedNetwork, message: &DnsMessage, to: SocketAddrV4) {
        let chosen = set_ip_multicast_if(&self.socket, &member.network.address);
        let sent = match chosen {
            Ok(()) => self.socket.send_to(&message.encode(), to).await.map(drop),
            Err(e) => Err(e.into()),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, %to, "cannot tell of the server");
        }
    }

    /// Logs why the server is not announced somewhere: it is looked again every few seconds, and the first time says it.
    fn tell_failure(&mut self, what: &str, error: &str) {
        if std::mem::replace(&mut self.failed, true) {
            tracing::debug!(error, "{what}");
        } else {
            tracing::warn!(error, "{what}");
        }
    }

    /// Sees to it that what is announced is so.
    async fn follow(&mut self) {
        let networks = match interfaces::all() {
            Ok(networks) => networks,
            Err(error) => return self.tell_failure("networks are not known", error.message()),
        };
        let places = self.running.places.lock().clone();
        let wanted = networks.into_iter().filter_map(|network| {
            let services = services(&places, self.peers, network.address);
            (!services.is_empty()).then_some((network.address, (network, services)))
        });
        let wanted: BTreeMap<_, _> = wanted.collect();
        for (address, member) in &self.members {
            if !wanted.contains_key(address) {
                self.send(member, &member.said.goodbye(), GROUP).await;
                let _ = self.socket.leave_multicast_v4(*GROUP.ip(), *address);
            }
        }
        self.members.retain(|address, _| wanted.contains_key(address));
        for (address, (network, services)) in wanted {
            let said = Announcement {
                name: self.identity.name.clone(),
                host: self.identity.host.clone(),
                address,
                text: vec![format!("version={}", env!("CARGO_PKG_VERSION"))],
                services,
            };
            match self.members.get(&address) {
                Some(member) if member.said == said => {}
                Some(member) => {
                    // What is not offered any more.
                    self.send(member, &member.said.goodbye(), GROUP).await;
                    let network = member.network;
                    self.members.insert(address, AnnouncedNetwork { network, said, left: TIMES });
                }
                None => match self.join(network, said) {
                    Ok(member) => drop(self.members.insert(address, member)),
                    Err(error) => {
                        let what =
                            format!("cannot announce the server to the network of {address}");
                        self.tell_failure(&what, &error.to_string());
                    }
                },
            }
        }
        for member in self.members.values().filter(|member| member.left > 0) {
            self.send(member, &member.said.announce(), GROUP).await;
        }
        for member in self.members.values_mut() {
            member.left = member.left.saturating_sub(1);
        }
    }

    fn join(&self, network: LocalNetwork, said: Announcement) -> io::Result<AnnouncedNetwork> {
        self.socket.join_multicast_v4(*GROUP.ip(), network.address)?;
        let (name, address) = (&self.identity.name, network.address);
        tracing::info!(name, %address, "announced to this network");
        Ok(AnnouncedNetwork { network, said, left: TIMES })
    }
}

/// A socket for what is sent to all, at a port that other responders have, too: what is sent to this host alone is theirs.
fn socket() -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &GROUP)?;
    UdpSocket::from_std(StdSocket::from(socket))
}

/// What a server offers to who reaches it at `here`.
fn services(
    places: &ListenAddresses,
    peers: Option<SocketAddr>,
    here: Ipv4Addr,
) -> Vec<OfferedService> {
    let port = |listeners: &[String]| {
        let addresses = listeners.iter().filter_map(|listener| listener.parse::<SocketAddr>().ok());
        let mut reached =
            addresses.filter(|at| at.ip().is_unspecified() || at.ip() == IpAddr::V4(here));
        Some(reached.next()?.port())
    };
    let gateway: Vec<String> = places.gateway.iter().map(ToString::to_string).collect();
    let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
    let all = [
        (ServiceKind::Nbd, &places.nbd),
        (ServiceKind::Iscsi, &places.iscsi),
        (ServiceKind::Gateway, &gateway),
        (ServiceKind::Peer, &peers),
    ];
    let offered =
        all.into_iter().filter_map(|(kind, at)| Some(OfferedService { kind, port: port(at)? }));
    offered.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_what_is_reached_in_that_network() {
        let places = ListenAddresses {
            nbd: vec!["unix:/x".into(), "127.0.0.1:1".into(), "0.0.0.0:2".into()],
            iscsi: vec!["10.0.0.1:3".into()],
            vhost_user: None,
            http: None,
            gateway: Some("[::]:4".parse().unwrap()),
        };
        let at = |address: [u8; 4]| {
            let services = services(&places, Some("0.0.0.0:5".parse().unwrap()), address.into());
            services.iter().map(|one| (one.kind, one.port)).collect::<Vec<_>>()
        };
        assert_eq!(
            at([10, 0, 0, 1]),
            [
                (ServiceKind::Nbd, 2),
                (ServiceKind::Iscsi, 3),
                (ServiceKind::Gateway, 4),
                (ServiceKind::Peer, 5)
            ]
        );
        assert_eq!(
            at([192, 168, 0, 1]),
            [(ServiceKind::Nbd, 2), (ServiceKind::Gateway, 4), (ServiceKind::Peer, 5)]
        );
        assert_eq!(at([127, 0, 0, 1])[0], (ServiceKind::Nbd, 1));
        assert!(services(&ListenAddresses::default(), None, [10, 0, 0, 1].into()).is_empty());
    }
}

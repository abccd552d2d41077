//! Looking for the servers of the networks that this machine is in.

use super::interfaces::{self, LocalNetwork};
use block::{Error, Result};
use discovery::message::LONGEST;
use discovery::{Browse, DnsMessage, FoundService, GROUP, ServiceKind};
use futures::future::join_all;
use nbd::{Address, ClientOptions, Uri};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

/// How long after the first question the others follow: a datagram may be lost.
const AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(1000)];
/// How long hearing rests after a socket failed.
const PAUSE: Duration = Duration::from_millis(20);
/// How long one server may take to list its exports.
const PATIENCE: Duration = Duration::from_secs(5);
/// Servers that are asked for their exports.
const MOST_ASKED: usize = 100;

/// A service of a server, as `discover --json` prints it.
#[derive(Debug, Serialize)]
pub struct ServiceView {
    /// What the server is known by.
    pub server: String,
    /// `nbd`, `iscsi`, `gateway` or `peer`.
    pub service: &'static str,
    /// Where it is reached, as `10.0.0.1:10809`; null when it told no address.
    pub address: Option<String>,
    /// The version of the server; null when it told none.
    pub version: Option<String>,
    /// The exports that it lists, by name; null when it was not asked, or did not tell.
    pub exports: Option<Vec<String>>,
    /// Why it did not tell its exports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Looks for servers for so long, then asks those with NBD for their exports if `exports` says so.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when this machine is in no network in which one can look; any error
/// from the system.
pub async fn look(patience: Duration, exports: bool) -> Result<Vec<ServiceView>> {
    let mut networks = interfaces::all()?;
    // Who is found elsewhere, too, is not told of as being on this host.
    networks.sort_by_key(|network| network.address.is_loopback());
    let found = browse(&networks, Instant::now() + patience).await?;
    let views = found.into_iter().enumerate().map(async |(number, (network, found))| {
        // Anybody may announce any address; nothing is sent out of the network that it was heard in.
        let here = found.addresses.iter().copied().find(|address| network.holds(*address));
        let mut view = view(&found, here);
        let asked = exports && found.kind == ServiceKind::Nbd && number < MOST_ASKED;
        if let Some(address) = here.filter(|_| asked) {
            match list(address, found.port).await {
                Ok(list) => view.exports = Some(list),
                Err(e) => view.error = Some(e.message().to_owned()),
            }
        }
        view
    });
    Ok(join_all(views).await)
}

/// Looks for peers for so long. What is told is believed as far as that somebody may be there.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when this machine is in no network in which one can look; any error
/// from the system.
pub(crate) async fn look_for_peers(patience: Duration) -> Result<Vec<SocketAddr>> {
    let found = browse(&interfaces::all()?, Instant::now() + patience).await?;
    let peers = found.into_iter().filter(|(_, found)| found.kind == ServiceKind::Peer);
    // Nothing is sent out of the network that it was heard in.
    let reached = peers.filter_map(|(network, found)| {
        let address = found.addresses.into_iter().find(|address| network.holds(*address))?;
        Some(SocketAddr::from((address, found.port)))
    });
    Ok(reached.collect())
}

fn view(found: &FoundService, here: Option<Ipv4Addr>) -> ServiceView {
    let address = here.or_else(|| found.addresses.first().copied());
    ServiceView {
        server: found.name.clone(),
        service: match found.kind {
            ServiceKind::Nbd => "nbd",
            ServiceKind::Iscsi => "iscsi",
            ServiceKind::Gateway => "gateway",
            ServiceKind::Peer => "peer",
        },
        address: address.map(|address| SocketAddrV4::new(address, found.port).to_string()),
        version: found.text.get("version").cloned(),
        exports: None,
        error: None,
    }
}

async fn list(address: Ipv4Addr, port: u16) -> Result<Vec<String>> {
    let uri = Uri::new(Address::Tcp(address.to_string(), port), "");
    let options =
        ClientOptions { connect: PATIENCE, reconnect: Duration::ZERO, ..ClientOptions::default() };
    nbd::list_exports(&uri, &options).await
}

/// Asks in all networks at a time; what answers until `end`, by name, and where it was heard: of a service
/// that is heard in several networks, in the first of them.
async fn browse(
    networks: &[LocalNetwork],
    end: Instant,
) -> Result<Vec<(LocalNetwork, FoundService)>> {
    let mut sockets = Vec::new();
    for network in networks {
        // From the address of a network a question goes to that network.
        if let Ok(socket) = UdpSocket::bind((network.address, 0)).await
            && socket.send_to(&Browse::query(0).encode(), GROUP).await.is_ok()
        {
            sockets.push((*network, socket));
        }
    }
    if sockets.is_empty() {
        return Err(Error::unavailable(
            "no network of this machine takes multicast; `ip addr` and `ip route` show what there is",
        ));
    }
    let heard = sockets.iter().map(|(network, socket)| hear(*network, socket, end));
    let mut found: BTreeMap<_, (LocalNetwork, FoundService)> = BTreeMap::new();
    for (network, services) in networks_of(&sockets).zip(join_all(heard).await) {
        for service in services {
            let key = (service.name.clone(), service.kind, service.port);
            found.entry(key).or_insert((network, service));
        }
    }
    Ok(found.into_values().collect())
}

fn networks_of(sockets: &[(LocalNetwork, UdpSocket)]) -> impl Iterator<Item = LocalNetwork> {
    sockets.iter().map(|(network, _)| *network)
}

/// What answers in one network until `end`.
async fn hear(network: LocalNetwork, socket: &UdpSocket, end: Instant) -> Vec<FoundService> {
    let (mut browse, mut buffer) = (Browse::default(), vec![0; LONGEST]);
    let began = Instant::now();
    let again: Vec<_> = AGAIN.iter().map(|later| began + *later).filter(|at| *at < end).collect();
    let mut again = again.into_iter().peekable();
    while Instant::now() < end {
        let until = again.peek().copied().unwrap_or(end);
        match timeout_at(until, socket.recv_from(&mut buffer)).await {
            Ok(Ok((length, SocketAddr::V4(from)))) if network.holds(*from.ip()) => {
                if let Some(message) = DnsMessage::decode(&buffer[..length]) {
                    browse.take(&message);
                }
            }
            Ok(Ok(_)) => {}
            Ok(Err(_)) => tokio::time::sleep(PAUSE).await,
            Err(_) => {
                if again.next().is_some() {
                    let _ = socket.send_to(&Browse::query(0).encode(), GROUP).await;
                }
            }
        }
    }
    browse.found()
}

//! `sojourn netboot`: machines without a disk start from a home's disks. A process of its own beside the
//! server: it needs the low ports and reads what untrusted machines send before they are anybody, and
//! the server that holds all disks is to have neither.
//!
//! | module | concept |
//! |---|---|
//! | `interface` | the addresses of a network interface |
//! | `sockets` | sockets at that interface |
//! | `home_machines` | [`Machines`](netboot::Machines): what a home's machines do |
//! | `disks` | the home's server: its addresses, its disks, their kernels |
//! | `keep` | leases and sightings are kept in files |

mod disks;
mod home_machines;
mod interface;
mod keep;
mod sockets;

pub use home_machines::{MenuOptions, Rule};

use crate::http;
use crate::http::guests::{self, Guests};
use crate::machines::list;
use crate::origin::Origin;
use crate::signals::{Signals, Switch};
use axum::extract::{ConnectInfo, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use block::program::own_program;
use block::{Error, Result};
use bytes::Bytes;
use engine::Home;
use engine::world;
use home_machines::{BootOffer, HomeMachines};
use netboot::dhcp::address::NetworkSettings;
use netboot::dhcp::leases::AddressRange;
use netboot::dhcp::server::{Addresses, UnixClock};
use netboot::dhcp::{BOOT_PORT, DhcpServer, Leases, SERVER_PORT, ServerAddress};
use netboot::firmware::{self, FirmwareFiles};
use netboot::http::RequestAddress;
use netboot::overlay;
use netboot::tftp::TftpServer;
use netboot::{MacAddress, RouterAdvertiser};
use sockets::FrameSocket;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Where Debian's package `ipxe` puts its files.
const FIRMWARE: &str = "/usr/lib/ipxe";
/// The longest file of firmware, in bytes.
const LONGEST_FIRMWARE: u64 = 16 << 20;
const TFTP_PORT: u16 = 69;
/// Where packages put the program that keeps machines' disks, seen from the folder of this program.
const HELPER: &str = "../lib/sojourn/sojourn-diskless";
/// Machines that keep their places over HTTP while they wait for a script or a file, at a time: all of a classroom ask
/// at once, and files are sent to as many as there is memory for.
const PATIENT: usize = 48;
/// The longest program, in bytes: machines have all of it in memory.
const LONGEST_HELPER: u64 = 64 << 20;

/// What to do about machines that are not in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownMachines {
    /// Note that they asked, and send nothing.
    Ignore,
    /// Have them wait until somebody assigns them a disk.
    Wait,
    /// Give them a disk.
    Enrol(Rule),
}

/// How the network boots.
#[derive(Debug, Clone)]
pub struct NetbootOptions {
    /// The interface of the machines' network.
    pub interface: String,
    /// The addresses to hand out, where no other server does.
    pub dhcp: Option<Handing>,
    /// The port of the HTTP server.
    pub http_port: u16,
    /// Where iPXE lies, when not where Debian puts it.
    pub firmware: Option<PathBuf>,
    /// The program that keeps the disks of machines whose root is over NBD, when not where packages put it.
    pub helper: Option<PathBuf>,
    /// Other servers to which disks of this one may go: machines with a root over NBD try them, too.
    pub others: Vec<SocketAddr>,
    /// About machines that are not in the list.
    pub unknown: UnknownMachines,
    /// What machines in the list may choose from; none are asked where it is `None`.
    pub menu: Option<MenuOptions>,
}

/// Handing out addresses.
#[derive(Debug, Clone)]
pub struct Handing {
    /// Which.
    pub range: AddressRange,
    /// The way out.
    pub router: Option<Ipv4Addr>,
    /// Who knows names.
    pub name_servers: Vec<Ipv4Addr>,
    /// For how long, in seconds.
    pub lasts: u64,
}

/// Serves until a signal stops it.
///
/// # Errors
/// When the interface has no address, a port is in use or not allowed, or a file of the home is damaged.
pub async fn run(home: &Home, options: NetbootOptions) -> Result<()> {
    let mut signals = Signals::listen()?;
    home.must_exist()?;
    let (address, mask) = interface::address(&options.interface)?;
    let firmware = load_firmware(options.firmware.as_deref()).await?;
    let overlay = load_overlay(options.helper.as_deref()).await?;
    // All that can fail comes first: nobody is answered by half a server.
    let dhcp = sockets::broadcast(&options.interface, SERVER_PORT)?;
    let boot = sockets::broadcast(&options.interface, BOOT_PORT)?;
    let tftp = sockets::at(address, TFTP_PORT)?;
    let web = SocketAddr::from((address, options.http_port));
    let listener = TcpListener::bind(web).await;
    let listener = listener
        .map_err(|e| Error::io(format!("HTTP port {web}; choose another with --http-port"), e))?;
    let http_port = listener.local_addr().map_err(|e| Error::io(web, e))?.port();

    let here = ServerAddress { address, http: http_port };
    let clock: UnixClock = Arc::new(|| world::system().clock.now());
    let NetbootOptions { others, unknown, menu, .. } = options;
    let offer = BootOffer { here: address, others, overlay, unknown, menu };
    let seen = list::sightings(home).await?;
    let machines = HomeMachines::open(home, offer, Arc::clone(&clock), seen).await?;
    let addresses = match options.dhcp {
        Some(handing) => Some(addresses(home, handing, here, mask).await?),
        None => None,
    };
    let advertises = advertiser(&options.interface);
    let server = DhcpServer::new(here, Arc::clone(&machines) as _, addresses, clock)
        .advertising(advertises.as_ref().map(|(advertiser, _)| Arc::clone(advertiser)));
    let tftp_server = TftpServer::new(firmware.clone());
    let ports = Arc::new(sockets::TransferPorts { address });
    let base = format!("http://{address}:{http_port}");
    let router = netboot::http::router(Arc::clone(&machines) as _, firmware, base.clone());
    let router = guests::patiently(router, PATIENT).layer(from_fn(note_address));
    let (stop, never) = (Switch::new(), || false);
    let what = match &server.leases() {
        Some(_) => "as the only DHCP server",
        None => "beside another DHCP server",
    };
    tracing::info!(
        interface = options.interface,
        address = base,
        "machines start from here, {what}"
    );
    crate::notify::notify("READY=1");
    tokio::select! {
        () = server.serve(&dhcp) => {}
        () = server.serve_boot(&boot) => {}
        () = advertise(advertises.as_ref()) => {}
        () = tftp_server.serve(&tftp, ports) => {}
        () = http::answer(Guests::new(listener), router, stop.clone(), never) => {}
        () = machines.follow() => {}
        () = keep::follow(home, &server, &machines) => {}
        () = signals.stop() => {}
    }
    stop.throw();
    keep::save(home, &server, &machines).await
}

/// Notes where a request comes from.
async fn note_address(
    ConnectInfo(origin): ConnectInfo<Origin>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(address) = origin.address() {
        request.extensions_mut().insert(RequestAddress(address));
    }
    next.run(request).await
}

/// Who ends iPXE's wait for an IPv6 router, by which socket; `None` where frames may not be sent, or the interface
/// is no Ethernet: there machines wait.
fn advertiser(interface: &str) -> Option<(Arc<RouterAdvertiser>, FrameSocket)> {
    let card = interface::card(interface)?;
    let own = MacAddress(card.addr()?);
    match FrameSocket::at(&card) {
        Ok(socket) => Some((Arc::new(RouterAdvertiser::new(own)), socket)),
        Err(error) => {
            tracing::info!(
                error = error.message(),
                "iPXE waits 15 seconds for an IPv6 router: without CAP_NET_RAW it cannot be told that none is here"
            );
            None
        }
    }
}

async fn advertise(advertises: Option<&(Arc<RouterAdvertiser>, FrameSocket)>) {
    match advertises {
        Some((advertiser, socket)) => advertiser.serve(socket).await,
        None => std::future::pending().await,
    }
}

async fn addresses(
    home: &Home,
    handing: Handing,
    here: ServerAddress,
    mask: Ipv4Addr,
) -> Result<Addresses> {
    let net = |address: Ipv4Addr| u32::from(address) & u32::from(mask);
    let (first, last) = handing.range.ends();
    if net(first) != net(here.address) || net(last) != net(here.address) {
        return Err(Error::invalid(format!(
            "the range {} is not in the network of {}, whose mask is {mask}",
            handing.range, here.address
        )));
    }
    let earlier = keep::leases(home).await?;
    let network = net(here.address);
    let ends = [network.into(), (network | !u32::from(mask)).into()];
    let others = handing.router.iter().chain(&handing.name_servers).copied();
    let reserved = others.chain(ends).chain([here.address]).collect();
    Ok(Addresses {
        network: NetworkSettings {
            mask,
            router: handing.router,
            name_servers: handing.name_servers,
        },
        leases: Leases::new(handing.range, reserved, handing.lasts, earlier),
    })
}

/// What there is of iPXE. Machines whose cards have iPXE need none.
async fn load_firmware(dir: Option<&Path>) -> Result<FirmwareFiles> {
    let (dir, asked) = (dir.unwrap_or(Path::new(FIRMWARE)).to_owned(), dir.is_some());
    block::offload(move || {
        let mut files = FirmwareFiles::new();
        for name in firmware::names() {
            let path = dir.join(name);
            match std::fs::metadata(&path) {
                Ok(found) if found.len() <= LONGEST_FIRMWARE => {
                    let bytes = std::fs::read(&path).map_err(|e| Error::io(path.display(), e))?;
                    files.insert(name, Bytes::from(bytes));
                }
                Ok(_) => {
                    return Err(Error::invalid(format!(
                        "{} is no iPXE: it is too long",
                        path.display()
                    )));
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io(path.display(), e)),
            }
        }
        let dir = dir.display();
        match files.is_empty() {
            true if asked => Err(Error::not_found(format!(
                "{dir} has none of {:?}; put iPXE there under these names",
                firmware::names().collect::<Vec<_>>()
            ))),
            true => {
                tracing::warn!(
                    "no iPXE at {dir}: only machines whose network card has it can start; \
                                install the package ipxe, or give --firmware DIR"
                );
                Ok(files)
            }
            false => {
                tracing::info!(files = ?files.keys().collect::<Vec<_>>(), "iPXE found at {dir}");
                Ok(files)
            }
        }
    })
    .await
}

/// What is put in front of the initial RAM disks of machines whose root is over NBD; empty without the program that
/// keeps their disks.
async fn load_overlay(helper: Option<&Path>) -> Result<Bytes> {
    let (path, asked) = match helper {
        Some(path) => (path.to_owned(), true),
        None => (own_program()?.with_file_name(HELPER), false),
    };
    block::offload(move || {
        let failed = |e| Error::io(path.display(), e);
        let mut program = Vec::new();
        match std::fs::File::open(&path) {
            Ok(file) => file.take(LONGEST_HELPER + 1).read_to_end(&mut program).map_err(failed)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !asked => {
                tracing::warn!(
                    "no {}: machines that start by NBD use the nbd-client of their image, and lose their root \
                     when the server is restarted; install the package sojourn, or give --helper PATH",
                    path.display()
                );
                return Ok(Bytes::new());
            }
            Err(e) => return Err(failed(e)),
        };
        if program.len() as u64 > LONGEST_HELPER || !program.starts_with(b"\x7fELF") {
            return Err(Error::invalid(format!(
                "{} is not the program that keeps machines' disks (sojourn-diskless)",
                path.display()
            )));
        }
        Ok(overlay::archive(&program))
    })
    .await
}

//! Keeps a device connected: makes it, and puts a new connection in the place of each that dies.

use crate::backend::Backend;
use crate::driver::{DeviceSettings, Driver};
use crate::sysfs::{self, ConnectedDevice};
use async_trait::async_trait;
use block::{Error, ErrorKind, Result};
use nbd::codec::constants::export_flags;
use nbd::codec::option::Reinstatement;
use nbd::{ClientOptions, HandedSocket, Terms, Uri, connect_socket};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::task::JoinSet;

/// The sectors of the device, in bytes: what partition tables count in.
const SECTOR: u64 = 512;
/// The largest logical block that every kernel takes, in bytes.
const LARGEST_BLOCK: u64 = 4096;
/// Connections of a device at the most.
pub const MOST_CONNECTIONS: usize = 16;
/// Pauses between attempts to reach a server: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How often it is looked at whether somebody ended the device: the driver reports that to nobody.
const LOOK: Duration = Duration::from_secs(5);

/// How a device is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperOptions {
    /// The N of `/dev/nbdN`; `None`: the driver takes a free one.
    pub index: Option<u32>,
    /// Connections, 1 to [`MOST_CONNECTIONS`]; one with a server that does not allow more. With one, a new
    /// connection ends the one before at the server; with more, the driver sends a request that timed out
    /// again over another connection at once, and the server may carry out the first of the two later,
    /// behind what was written since.
    pub connections: usize,
    /// A request that is not answered for this long makes its connection count as dead.
    pub request_timeout: Duration,
    /// How long requests wait for a server that is away; they fail then.
    pub dead_timeout: Duration,
    /// Whether the device becomes larger when its export has, and the connection was replaced.
    pub grows: bool,
    /// By what the server knows which connections take each other's place, unless the device is taken up
    /// again; pauses are spread by it too, so that machines that lost one server do not come back in one
    /// instant. Random.
    pub id: [u8; 16],
    /// A number that is larger for each keeper that the machine starts, such as the milliseconds since it
    /// was booted.
    pub number: u64,
}

impl Default for KeeperOptions {
    fn default() -> Self {
        Self {
            index: None,
            connections: 1,
            request_timeout: Duration::from_secs(10),
            dead_timeout: Duration::from_secs(86_400),
            grows: true,
            id: [0; 16],
            number: 0,
        }
    }
}

/// A [number](KeeperOptions::number) that is larger for each keeper of a boot: the milliseconds since then.
pub fn number_since_boot() -> u64 {
    let booted = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (booted.tv_sec as u64) * 1000 + booted.tv_nsec as u64 / 1_000_000
}

/// Says whether a device can go on with an export, and why not.
pub type FitCheck<'a> = &'a (dyn Fn(&Terms) -> Result<()> + Sync);

/// How the server is reached.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Connects once to a server whose export `fits`, and chooses that. The connection takes the place of these.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when nobody answers, what `fits` says, and the server's refusals.
    async fn dial(
        &mut self,
        reinstates: Option<Reinstatement>,
        fits: FitCheck<'_>,
    ) -> Result<HandedSocket>;

    /// What the device is called for people.
    fn name(&self) -> String;

    /// Whether a connection may come to another server than the others have.
    fn are_several(&self) -> bool {
        false
    }
}

/// One export at one or several addresses: a server, and those that take over from it.
#[derive(Debug)]
pub struct ExportServers {
    name: String,
    /// Never empty.
    addresses: Vec<(Uri, ClientOptions)>,
    /// The one to try first: the last whose export fitted.
    first: usize,
}

impl ExportServers {
    /// The servers of one export, in the order in which they are tried. `name` is what the device is
    /// known by: the same for whoever takes it up again.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) when there is none.
    pub fn new(name: String, addresses: Vec<(Uri, ClientOptions)>) -> Result<Self> {
        if addresses.is_empty() {
            return Err(Error::invalid("no server was named; give nbd://HOST/EXPORT"));
        }
        Ok(Self { name, addresses, first: 0 })
    }

    /// The same, where the hosts are looked up once: while the root file system is away nobody can be asked for a
    /// name. The device is known by the first URI.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a name without an address, [`Invalid`](ErrorKind::Invalid) when there
    /// is no server.
    pub async fn looked_up(exports: Vec<(Uri, ClientOptions)>) -> Result<Self> {
        let name = exports.first().map(|(uri, _)| uri.to_string()).unwrap_or_default();
        let (mut addresses, mut failure) = (Vec::new(), None);
        for (uri, options) in exports {
            let nbd::Address::Tcp(host, port) = &uri.address else {
                addresses.push((uri, options));
                continue;
            };
            let found = match tokio::net::lookup_host((host.as_str(), *port)).await {
                Ok(found) => found,
                Err(e) => {
                    let why = format!("{uri}: the name {host} has no address: {e}");
                    failure = failure.or(Some(Error::not_found(why).with_source(e)));
                    continue;
                }
            };
            for address in found {
                let mut uri = uri.clone();
                // The certificate has the name.
                if let Some(tls) = &mut uri.tls {
                    tls.hostname.get_or_insert_with(|| host.clone());
                }
                uri.address = nbd::Address::Tcp(address.ip().to_string(), address.port());
                addresses.push((uri, options.clone()));
            }
        }
        match failure {
            Some(error) if addresses.is_empty() => return Err(error),
            // The others may do.
            Some(error) => tracing::warn!(%error, "a server is left out"),
            None => {}
        }
        Self::new(name, addresses)
    }
}

#[async_trait]
impl Dial for ExportServers {
    async fn dial(
        &mut self,
        reinstates: Option<Reinstatement>,
        fits: FitCheck<'_>,
    ) -> Result<HandedSocket> {
        let (mut unfit, mut failure) = (None, None);
        for turn in 0..self.addresses.len() {
            let number = (self.first + turn) % self.addresses.len();
            let (uri, options) = &self.addresses[number];
            let options = ClientOptions { reinstates, ..options.clone() };
            match connect_socket(uri, &options).await {
                // One that has something else does not keep the others from being asked.
                Ok(socket) => match fits(&socket.terms) {
                    Ok(()) => {
                        self.first = number;
                        for (_, options) in &mut self.addresses {
                            options.initial_contact = false;
                        }
                        return Ok(socket);
                    }
                    Err(error) => unfit = unfit.or(Some(error)),
                },
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let error = unfit.or(failure);
        Err(error.unwrap_or_else(|| Error::internal("a device without a server")))
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn are_several(&self) -> bool {
        self.addresses.len() > 1
    }
}

/// A device that is kept connected.
#[derive(Debug)]
pub struct Keeper<D, S> {
    driver: D,
    servers: S,
    index: u32,
    connections: usize,
    settings: DeviceSettings,
    /// Whether it becomes as large as its export does.
    grows: bool,
    /// The size that it is to have.
    grown: Option<u64>,
    terms: Terms,
    line: Option<ConnectionSeries>,
    pauses: Pauses,
    /// What carries encrypted connections.
    relays: JoinSet<()>,
}

impl<D: Driver, S: Dial> Keeper<D, S> {
    /// Makes the device. One of this number and server that lost its keeper is taken up again.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when the device is in use, [`Denied`](ErrorKind::Denied)
    /// without the rights, [`Invalid`](ErrorKind::Invalid) for settings or a size that cannot be; the
    /// server's refusals.
    pub async fn connect(mut driver: D, mut servers: S, options: &KeeperOptions) -> Result<Self> {
        if !(1..=MOST_CONNECTIONS).contains(&options.connections) {
            return Err(Error::invalid(format!(
                "a device has 1 to {MOST_CONNECTIONS} connections, not {}",
                options.connections
            )));
        }
        if options.connections > 1 && servers.are_several() {
            return Err(Error::invalid(
                "a device of several servers has one connection: with more, reads of one could be answered by a server \
                 that has lost the disk to another; give --connections 1, or one server",
            ));
        }
        if options.request_timeout < Duration::from_secs(1) {
            return Err(Error::invalid("a request needs a second to be answered at least"));
        }
        let mut relays = JoinSet::new();
        let known = match options.index {
            Some(index) => KnownDevice::of(driver.device(index)?, &servers.name()),
            None => None,
        };
        let id = known.as_ref().map_or(options.id, |known| known.backend.id);
        let new_line = || Some(ConnectionSeries { id, number: options.number });
        let mut line = if options.connections == 1 { new_line() } else { None };
        let fits = |terms: &Terms| match &known {
            Some(known) => known.goes_on_with(terms.clone(), options).map(drop),
            None => Ok(()),
        };
        let mut first = servers.dial(next_of(&mut line), &fits).await?;
        if line.is_none() && !first.terms.has(export_flags::CAN_MULTI_CONN) {
            // There will be one after all.
            line = new_line();
            drop(first);
            first = servers.dial(next_of(&mut line), &fits).await?;
        }
        let (terms, settings) = match &known {
            Some(known) => known.goes_on_with(first.terms.clone(), options)?,
            None => {
                let terms = first.terms.clone();
                let backend = Backend::new(servers.name(), id, terms.content.as_deref());
                let settings = settings(&terms, backend.to_string(), options)?;
                (terms, settings)
            }
        };
        let several = terms.has(export_flags::CAN_MULTI_CONN);
        let connections = if several && line.is_none() { options.connections } else { 1 };
        let mut sockets = vec![carried(&mut relays, first)];
        let index = match &known {
            Some(known) => {
                drop(sockets);
                known.device.index
            }
            None => {
                while sockets.len() < connections {
                    let same = |next: &Terms| match *next == terms {
                        true => Ok(()),
                        false => Err(Error::conflict(
                            "the export changed while it was connected; try again",
                        )),
                    };
                    let next = servers.dial(next_of(&mut line), &same).await?;
                    sockets.push(carried(&mut relays, next));
                }
                let handed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                driver.connect(options.index, &settings, &handed).await?
            }
        };
        let (grows, grown) = (options.grows, None);
        let mut keeper = Self {
            driver,
            servers,
            index,
            connections,
            settings,
            grows,
            grown,
            terms,
            line,
            pauses: Pauses::new(options.id),
            relays,
        };
        if known.is_some() {
            tracing::info!(device = %sysfs::path(index).display(), "is taken up again");
            keeper.mend_all().await?;
        }
        Ok(keeper)
    }

    /// The N of `/dev/nbdN`.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How many connections it has.
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// The size of the device, in bytes.
    pub fn size(&self) -> u64 {
        self.settings.size
    }

    /// Replaces connections that die, until somebody ends the device, or it becomes another server's. Nothing else ends
    /// it: the next lost connection would be the device's last.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when the device became another server's. It stays as it is then.
    pub async fn keep(&mut self) -> Result<()> {
        let mut told = false;
        loop {
            while self.relays.try_join_next().is_some() {}
            let mended = match tokio::time::timeout(LOOK, self.driver.died()).await {
                Ok(Ok(Some(index))) if index == self.index => {
                    tracing::warn!(device = self.index, "a connection is lost");
                    self.mend().await.map(|_| ())
                }
                Ok(Ok(Some(_))) => Ok(()),
                Ok(Ok(None)) => self.mend_all().await,
                Ok(Err(error)) => {
                    // Once: where this is written may be on the device.
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(device = self.index, %error, "no reports; it is looked at now and then");
                    }
                    tokio::time::sleep(LOOK).await;
                    self.mend_all().await
                }
                Err(_) if self.is_over() => return Ok(()),
                Err(_) => {
                    self.grow().await;
                    Ok(())
                }
            };
            match mended {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                other => other?,
            }
        }
    }

    /// Whether somebody ended the device, as far as that can be seen.
    fn is_over(&self) -> bool {
        self.driver.is_connected(self.index).is_ok_and(|is_connected| !is_connected)
    }

    /// Gives the device the size that its export has grown to. Not with a new connection: since Linux 6.9 the driver
    /// waits with a new size until what is under way was answered, which without a connection is never.
    async fn grow(&mut self) {
        let Some(size) = self.grown.take() else { return };
        let settings = DeviceSettings { size, ..self.settings.clone() };
        match self.driver.resize(self.index, &settings).await {
            Ok(()) => self.settings = settings,
            Err(error) => tracing::warn!(device = self.index, %error, "it does not grow"),
        }
    }

    /// Ends the device: what waits for an answer fails. Unmount what is on it before.
    ///
    /// # Errors
    /// Any error from the driver.
    pub async fn disconnect(mut self) -> Result<()> {
        self.driver.disconnect(self.index).await
    }

    /// Replaces every connection that is dead.
    async fn mend_all(&mut self) -> Result<()> {
        for _ in 0..self.connections {
            if !self.mend().await? {
                break;
            }
        }
        Ok(())
    }

    /// Replaces a dead connection, for as long as it takes to reach a server; `false` when none is dead.
    async fn mend(&mut self) -> Result<bool> {
        self.pauses.reset();
        let mut said = None;
        loop {
            match self.replace().await {
                Ok(was_dead) => {
                    if was_dead {
                        tracing::info!(device = self.index, "is connected again");
                    }
                    return Ok(was_dead);
                }
                Err(Mending::Over(error)) => return Err(error),
                Err(Mending::Later(error)) => {
                    let message = error.to_string();
                    // Once for each cause: where this is written may be on the device.
                    if said.as_ref() != Some(&message) {
                        tracing::warn!(device = self.index, error = message, "no server yet");
                        said = Some(message);
                    }
                }
            }
            tokio::time::sleep(self.pauses.next()).await;
            if self.is_over() {
                return Err(Error::not_found("the device was ended"));
            }
        }
    }

    async fn replace(&mut self) -> std::result::Result<bool, Mending> {
        let reinstates = next_of(&mut self.line);
        let (terms, backend) = (&self.terms, &self.settings.backend);
        let fits = |new: &Terms| {
            if !terms.is_content_of(new) {
                return Err(other_content(backend));
            }
            if !terms.continues_as(new) {
                return Err(other_export(backend));
            }
            Ok(())
        };
        let handed = self.servers.dial(reinstates, &fits).await.map_err(Mending::Later)?;
        let size = handed.terms.size;
        let (socket, relay) = (handed.socket, handed.relay);
        // Before the driver uses the socket.
        let relay = relay.map(|relay| self.relays.spawn(relay.run()));
        let replaced = self.driver.replace(self.index, &self.settings, socket.as_fd()).await;
        match replaced {
            Ok(true) => {
                self.grown = Some(size).filter(|size| self.grows && *size > self.settings.size)
            }
            Ok(false) | Err(_) => {
                relay.inspect(|relay| relay.abort());
            }
        }
        replaced.map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::Conflict => Mending::Over(error),
            _ => Mending::Later(error),
        })
    }
}

/// What keeps an export from a device under which something else lay.
fn other_content(backend: &str) -> Error {
    Error::conflict(format!(
        "{backend}: something else was put into its place (a reset, a rollback, a rebase, or what another server \
         had of it); under what uses the device it would be damage, so the device waits; restart what uses it"
    ))
}

/// What keeps an export from a device that is larger, or can more.
fn other_export(backend: &str) -> Error {
    Error::conflict(format!(
        "{backend}: is another export than the one that the device was made of, smaller or with less rights; the \
         device waits for the old one"
    ))
}

/// A device of the same server that lost its keeper.
struct KnownDevice {
    device: ConnectedDevice,
    /// The kernel's own text, by which alone it lets a connection be replaced.
    text: String,
    backend: Backend,
}

impl KnownDevice {
    fn of(device: Option<ConnectedDevice>, server: &str) -> Option<Self> {
        let device = device?;
        let text = device.backend.clone()?;
        let backend = Backend::parse(&text).filter(|backend| backend.server == server)?;
        Some(Self { device, text, backend })
    }

    /// What the device is kept by, if the export that a server has now is what it was made of. It keeps its size until
    /// its connections are replaced.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when something else was put into its place, or it can do less.
    fn goes_on_with(
        &self,
        terms: Terms,
        options: &KeeperOptions,
    ) -> Result<(Terms, DeviceSettings)> {
        let device = &self.device;
        let size = if device.size == 0 { terms.size } else { device.size };
        let was = Terms { size, content: self.backend.content.clone(), ..terms.clone() };
        if !was.is_content_of(&terms) {
            return Err(other_content(&self.text));
        }
        let is_less = terms.size < size
            || u64::from(terms.limits.minimum) > device.block_size
            || terms.has(export_flags::READ_ONLY) && !device.is_read_only;
        if is_less {
            return Err(other_export(&self.text));
        }
        let settings = DeviceSettings {
            size,
            block_size: device.block_size,
            ..settings(&terms, self.text.clone(), options)?
        };
        let content = was.content.or(terms.content);
        Ok((Terms { size, content, ..terms }, settings))
    }
}

/// Connections of which each takes the place of those before.
#[derive(Debug)]
struct ConnectionSeries {
    id: [u8; 16],
    number: u64,
}

/// What the next connection takes the place of.
fn next_of(line: &mut Option<ConnectionSeries>) -> Option<Reinstatement> {
    let line = line.as_mut()?;
    line.number += 1;
    Some(Reinstatement { id: line.id, number: line.number })
}

/// Why a connection was not replaced.
enum Mending {
    /// It can be tried again.
    Later(Error),
    /// The device is not ours any more.
    Over(Error),
}

/// Starts what has to run beside a socket.
fn carried(relays: &mut JoinSet<()>, handed: HandedSocket) -> std::os::fd::OwnedFd {
    if let Some(relay) = handed.relay {
        relays.spawn(relay.run());
    }
    handed.socket
}

fn settings(terms: &Terms, backend: String, options: &KeeperOptions) -> Result<DeviceSettings> {
    let block_size = u64::from(terms.limits.minimum).max(SECTOR);
    if block_size > LARGEST_BLOCK || !terms.size.is_multiple_of(block_size) || terms.size == 0 {
        return Err(Error::invalid(format!(
            "{backend}: {} bytes in blocks of {block_size} cannot be a device of the kernel",
            terms.size
        )));
    }
    Ok(DeviceSettings {
        size: terms.size,
        block_size,
        server_flags: terms.flags,
        request_timeout: options.request_timeout,
        dead_timeout: options.dead_timeout,
        backend,
    })
}

/// Exponential back-off, spread by a seed.
#[derive(Debug)]
struct Pauses {
    next: Duration,
    state: u64,
}

impl Pauses {
    fn new(seed: [u8; 16]) -> Self {
        let state = u128::from_le_bytes(seed) as u64;
        Self { next: PAUSES.0, state }
    }

    fn reset(&mut self) {
        self.next = PAUSES.0;
    }

    /// The next pause: half to all of a time that doubles.
    fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(PAUSES.1);
        // Knuth's MMIX generator: good enough to keep machines apart.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        whole / 2 + (whole / 2).mul_f64((self.state >> 40) as f64 / f64::from(1 << 24))
    }
}

#[cfg(test)]
mod tests;

//! The same exports by iSCSI: one target each, with the leases and rights that NBD clients have.

mod reservations;

use super::limits::{limits, of_initiators};
use super::listen::{self, ListenOptions};
use super::signals::Switch;
use async_trait::async_trait;
use block::{Device, Error, Observer, Result};
use engine::config::Config;
use iscsi::{Attachment, Initiator, Secrets, Server, SessionEnding, Targets};
use nbd::server::ClientPace;
use nbd::{Exports, Peer, Purpose, Session};
use reservations::ReservationFiles;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use store::Entropy;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The longest file of secrets that is read, in bytes.
const LONGEST: u64 = 16 << 20;

/// The iSCSI listeners of a server. Sessions do not go over to a successor: initiators are asked to log
/// out, and log in again.
pub(crate) struct Front {
    server: Server,
    places: Vec<String>,
    addresses: Vec<SocketAddr>,
    stop: Switch,
    serving: JoinSet<Result<()>>,
}

/// What it takes to serve iSCSI, read and checked.
pub(crate) struct IscsiPlan {
    places: Vec<String>,
    secrets: Option<Arc<Secrets>>,
    limits: iscsi::InitiatorLimits,
    reservations: ReservationFiles,
}

impl IscsiPlan {
    /// The listeners of the command line, else the configured ones; `None` when there are none.
    /// The paths of the configuration are relative to `home`.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) for an address that other machines reach where no secret is
    /// asked for; any error from the file of secrets.
    pub(crate) async fn new(
        home: &Path,
        config: &Config,
        asked: &ListenOptions,
    ) -> Result<Option<Self>> {
        let places = if asked.iscsi.is_empty() { &config.serve.iscsi } else { &asked.iscsi };
        let configured = config.serve.iscsi_chap.as_ref().map(|path| home.join(path));
        let path = asked.iscsi_chap.clone().or(configured);
        if places.is_empty() {
            return Ok(None);
        }
        let secrets = path.map(|path| read_secrets(&path).map(Arc::new)).transpose()?;
        for place in places {
            listen::check_iscsi(place, secrets.is_some(), asked.insecure).await?;
        }
        let limits = of_initiators(&limits(config));
        let reservations = ReservationFiles::of(home);
        Ok(Some(Self { places: places.clone(), secrets, limits, reservations }))
    }

    /// Opens the listeners. Initiators that connect wait until [`BoundIscsi::serve`].
    ///
    /// # Errors
    /// Any error from binding.
    pub(crate) async fn bind(self) -> Result<BoundIscsi> {
        let listeners = bind(&self.places).await?;
        Ok(BoundIscsi { plan: self, listeners })
    }
}

/// Open listeners that nobody serves yet.
pub(crate) struct BoundIscsi {
    plan: IscsiPlan,
    listeners: Vec<TcpListener>,
}

impl BoundIscsi {
    /// Serves them beside `nbd`, whose clients' limits on speed and whose processors to look for commands are
    /// theirs, too.
    pub(crate) fn serve(self, exports: Arc<dyn Exports>, nbd: nbd::Server) -> Front {
        let Self { plan: IscsiPlan { places, secrets, limits, reservations }, listeners } = self;
        let entropy = engine::world::system().entropy;
        let processors = nbd.processors();
        let targets = ExportTargets { exports, nbd, secrets, entropy, reservations };
        let mut front = Front {
            server: Server::new(Arc::new(targets), limits, processors),
            places,
            addresses: Vec::new(),
            stop: Switch::new(),
            serving: JoinSet::new(),
        };
        front.serve(listeners);
        front
    }
}

async fn bind(places: &[String]) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for place in places {
        let failed = |e| Error::io(format_args!("cannot listen for iSCSI at {place}"), e);
        listeners.push(TcpListener::bind(place.as_str()).await.map_err(failed)?);
    }
    Ok(listeners)
}

impl Front {
    /// Opens the listeners again after [`stop`](Self::stop), and serves them.
    ///
    /// # Errors
    /// Any error from binding.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let listeners = bind(&self.places).await?;
        self.serve(listeners);
        Ok(())
    }

    fn serve(&mut self, listeners: Vec<TcpListener>) {
        self.stop = Switch::new();
        self.addresses.clear();
        for listener in listeners {
            if let Ok(address) = listener.local_addr() {
                tracing::info!(%address, "listening for iSCSI");
                self.addresses.push(address);
            }
            let (server, stop) = (self.server.clone(), self.stop.wait());
            self.serving.spawn(async move { server.serve(listener, stop).await });
        }
    }

    /// Asks all initiators to log out, and closes all sessions and listeners.
    ///
    /// # Errors
    /// When sessions had to be cut off.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.stop.throw();
        self.addresses.clear();
        let mut result = Ok(());
        while let Some(ended) = self.serving.join_next().await {
            let ended = ended.unwrap_or_else(|e| {
                Err(Error::internal("an iSCSI listener panicked").with_source(e))
            });
            result = result.and(ended);
        }
        result
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }

    /// The server, which tells what it counted.
    pub(crate) fn server(&self) -> Server {
        self.server.clone()
    }
}

/// Reads the secrets of CHAP users, which others must not be able to read.
fn read_secrets(path: &Path) -> Result<Secrets> {
    let io = |e| Error::io(path.display(), e);
    let file = std::fs::File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if metadata.mode() & 0o077 != 0 {
        let path = path.display();
        let why = format!("{path} holds secrets, and others may use the file: chmod 600 {path}");
        return Err(Error::denied(why));
    }
    let mut text = zeroize::Zeroizing::new(String::new());
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > LONGEST {
        let path = path.display();
        return Err(Error::invalid(format!("{path} is longer than 16 MiB; is it the right file?")));
    }
    Secrets::parse(&text).map_err(|e| e.context(path.display()))
}

/// Exports as targets.
struct ExportTargets {
    exports: Arc<dyn Exports>,
    nbd: nbd::Server,
    secrets: Option<Arc<Secrets>>,
    entropy: Arc<dyn Entropy>,
    reservations: ReservationFiles,
}

/// The client as exports and access rules know it.
fn peer(client: &Initiator) -> Peer {
    let peer = Peer::tcp(client.address);
    match &client.user {
        Some(user) => peer.proven(user.clone()),
        None => peer,
    }
}

#[async_trait]
impl Targets for ExportTargets {
    async fn list(&self, client: &Initiator) -> Result<Vec<String>> {
        let list = self.exports.list(&peer(client)).await?;
        Ok(list.into_iter().map(|export| export.name).collect())
    }

    async fn attach(&self, name: &str, client: &Initiator) -> Result<Box<dyn Attachment>> {
        let peer = peer(client);
        let session = self.exports.open(name, &peer, Purpose::Use).await?;
        Ok(Box::new(Attached { session, pace: self.nbd.pace(&peer) }))
    }

    async fn kept_reservations(&self, identity: &str) -> Result<Option<String>> {
        self.reservations.load(identity).await
    }

    async fn keep_reservations(&self, identity: &str, record: Option<&str>) -> Result<()> {
        self.reservations.keep(identity, record).await
    }

    fn secrets(&self) -> Option<Arc<Secrets>> {
        self.secrets.clone()
    }

    fn random(&self, bytes: &mut [u8]) -> Result<()> {
        self.entropy.fill(bytes)
    }
}

/// A session's use of an export.
struct Attached {
    session: Box<dyn Session>,
    pace: ClientPace,
}

#[async_trait]
impl Attachment for Attached {
    fn device(&self) -> &Arc<dyn Device> {
        self.session.device()
    }

    fn identity(&self) -> String {
        self.session.identity()
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.session.observer()
    }

    fn pace(&self) -> Option<ClientPace> {
        Some(self.pace.clone())
    }

    async fn close(self: Box<Self>, ending: SessionEnding) {
        let ending = match ending {
            SessionEnding::Clean => nbd::server::SessionEnding::Clean,
            SessionEnding::Lost => nbd::server::SessionEnding::Lost,
        };
        self.session.close(ending).await;
    }
}

/// What status and metrics tell of iSCSI.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct IscsiView {
    /// Where it listens.
    pub listeners: Vec<String>,
    /// Whether initiators need a secret (CHAP).
    #[serde(default)]
    pub asks_for_secret: bool,
    /// Connections now.
    pub connections: u64,
    /// Sessions now that use a target.
    pub sessions: u64,
    /// Logins refused.
    pub logins_refused: u64,
    /// Commands answered.
    pub commands: u64,
    /// Bytes that initiators read.
    pub read_bytes: u64,
    /// Bytes that initiators wrote.
    pub written_bytes: u64,
    /// Commands that were found by busy polling, before the connection slept.
    #[serde(default)]
    pub busy_polled: u64,
}

impl IscsiView {
    /// That of a server which listens there.
    pub(crate) fn of(listeners: Vec<String>, server: &Server) -> Self {
        let counters = server.counters();
        Self {
            listeners,
            asks_for_secret: server.asks_for_secret(),
            connections: counters.connections,
            sessions: counters.sessions,
            logins_refused: counters.refused,
            commands: counters.commands,
            read_bytes: counters.read_bytes,
            written_bytes: counters.written_bytes,
            busy_polled: counters.busy_polled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_that_others_may_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chap");
        std::fs::write(&path, "alice:open sesame!!\n").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secrets(&path).is_ok(), good, "{mode:o}");
        }
        std::fs::write(&path, "alice:short\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = read_secrets(&path).unwrap_err();
        assert!(error.message().contains("line 1"), "{error}");
    }
}

//! Peers of a home of attached disks: the port where they are answered, and how they are found.

use crate::discovery::look::look_for_peers;
use ::peers::{Neighbours, PeerServer};
use access::PeerCredentials;
use agent::Porter;
use agent::peers::{AttachedPeers, EngineShelf};
use block::{Error, Result, offload};
use engine::config::attached::Attach;
use engine::{Config, Engine, Home};
use lookaside::share::MemberId;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long answers of others are waited for when they are looked for, …
const LOOK: Duration = Duration::from_secs(1);
/// … how soon that is done again at first, so many times, and then.
const SOON: Duration = Duration::from_secs(2);
const TIMES: u32 = 5;
const LATER: Duration = Duration::from_secs(15);
/// How often certificates are read again: some may have been renewed, others revoked.
const RENEW: Duration = Duration::from_secs(60);

/// Peers that are answered and asked until the server stops.
pub(crate) struct PeerPort {
    listener: TcpListener,
    address: SocketAddr,
    server: Arc<PeerServer>,
    neighbours: Arc<Neighbours>,
    certificates: PathBuf,
    credentials: PeerCredentials,
    known: Vec<SocketAddr>,
}

impl PeerPort {
    /// Answers nobody yet, and has `porter`, if there is one, tell of peers. What is in the way of that is in the log: that the disks can
    /// be used is more important.
    pub(crate) async fn open(
        home: &Home,
        config: &Config,
        engine: &Arc<Engine>,
        porter: Option<&Porter>,
    ) -> Option<Self> {
        let porter = porter?;
        let attach = config.attach.as_ref().filter(|attach| attach.peers)?;
        let opened = Self::try_open(home, config, attach, engine, porter).await;
        opened.inspect_err(|e| tracing::error!(error = e.message(), "there are no peers")).ok()
    }

    async fn try_open(
        home: &Home,
        config: &Config,
        attach: &Attach,
        engine: &Arc<Engine>,
        porter: &Porter,
    ) -> Result<Self> {
        let certificates = home.resolve(Path::new(&config.tls.dir));
        let credentials = PeerCredentials::load(&certificates)?;
        let sources = engine.loader().sources().ok_or_else(|| {
            Error::internal("a process of attached disks asks nobody but the store")
        })?;
        let asked = attach.peer_address;
        let fail = |e| Error::io(format!("peers at {asked}; set attach.peer_address"), e);
        let listener = TcpListener::bind(asked).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let mut random = [[0; 8]; 2];
        for number in &mut random {
            engine.store.world().entropy.fill(number)?;
        }
        let [member, log] = random.map(u64::from_le_bytes);
        let (member, shelf) = (MemberId(member), EngineShelf::new(engine, attach.peer_up.0, log));
        sources.share_link(shelf.link_share(member, config));
        let tls = Arc::clone(&credentials.client);
        let neighbours = Neighbours::new(Arc::clone(sources), Arc::clone(&shelf) as _, member, tls);
        neighbours.set_port(address.port());
        let server =
            PeerServer::new(Arc::clone(&shelf) as _, Arc::clone(&neighbours), &credentials.server);
        let (answering, found) = (Arc::clone(&server), Arc::clone(&neighbours));
        porter.set_peers(AttachedPeers { address, server: answering, neighbours: found, shelf });
        let known = attach.known_peers.clone();
        Ok(Self { listener, address, server, neighbours, certificates, credentials, known })
    }

    /// Where peers are answered.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers and asks peers until `stop`.
    pub(crate) async fn serve(self, stop: impl Future<Output = ()>) {
        let Self { listener, address, server, neighbours, certificates, credentials, known } = self;
        tracing::info!(%address, "peers are answered");
        let mut beside = JoinSet::new();
        beside.spawn(look_around(Arc::clone(&neighbours), known));
        let told = (Arc::clone(&server), Arc::clone(&neighbours));
        beside.spawn(renew(told, certificates, credentials));
        server.serve(listener, stop).await;
        beside.shutdown().await;
        neighbours.stop();
    }
}

/// Looks for peers, for ever.
async fn look_around(neighbours: Arc<Neighbours>, known: Vec<SocketAddr>) {
    for times in 0u32.. {
        known.iter().for_each(|address| neighbours.seen(*address));
        match look_for_peers(LOOK).await {
            Ok(found) => found.into_iter().for_each(|address| neighbours.heard_of(address)),
            Err(error) => tracing::debug!(error = error.message(), "peers are not looked for"),
        }
        sleep(if times < TIMES { SOON } else { LATER }).await;
    }
}

/// Reads the certificates again now and then, for ever.
async fn renew(
    (server, neighbours): (Arc<PeerServer>, Arc<Neighbours>),
    certificates: PathBuf,
    mut held: PeerCredentials,
) {
    loop {
        sleep(RENEW).await;
        let (dir, before) = (certificates.clone(), held.clone());
        match offload(move || before.reload(&dir)).await {
            Ok(None) => {}
            Ok(Some(read)) => {
                server.set_tls(&read.server);
                neighbours.set_tls(Arc::clone(&read.client));
                held = read;
            }
            Err(error) => tracing::warn!(error = error.message(), "certificates stay as they were"),
        }
    }
}

//! The server's half: a store, with each client's rights.
//!
//! | module | concept |
//! |---|---|
//! | `connection` | one connection: TLS, HTTP/2, and its end |
//! | `progress` | whether a connection goes on, or stands still |
//! | `answer` | from a request to its answer |
//! | `read`, `listing`, `write` | what the requests do |
//! | `labels` | what a published record may say in words |
//! | `whole` | which segments were found to be all there: pure |
//! | `checks` | checking what clients bring, at the cost of who brings it |
//! | `reply` | answers, and the bodies of requests |
//! | `client` | one client, over all its connections |
//! | `rights` | what a client may read |
//! | `spans` | sets of byte ranges: pure |
//! | `names` | the names of the store, as last looked up |
//! | `uploads` | what clients have brought |
//! | `limits` | [`GatewayLimits`], what a client may hold of the server |
//! | `counters` | [`GatewayCounters`], what the gateway did |

mod answer;
mod checks;
mod client;
mod connection;
mod counters;
mod holders;
mod labels;
mod limits;
mod listing;
mod machines;
mod names;
mod progress;
mod read;
mod readable;
mod reply;
mod rights;
mod spans;
mod uploads;
mod whole;
mod write;

pub use connection::Conversation;
pub use counters::{GatewayCounters, LiveGatewayCounters};
pub use limits::{ClientUsage, GatewayLimits, RequestPermit};
pub use progress::ConnectionProgress;
pub use reply::{ReplyBody, content, problem, slices};

use crate::wire::ObjectKey;
use access::{Refusals, Rules, ServerCredentials};
use arc_swap::ArcSwap;
use block::{Result, offload};
use checks::ContentChecks;
use client::Client;
use names::{KnownNames, StoreNames};
use nbd::{Credentials, Peer};
use object_store::ObjectStore;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use uploads::Uploads;

/// How long accepting rests after it failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);
/// Clients without a connection that are remembered.
const MOST_IDLE: usize = 256;

/// A store for clients with certificates, by rules.
pub struct Gateway {
    store: Store,
    backend: Arc<dyn ObjectStore>,
    rules: Arc<ArcSwap<Rules>>,
    credentials: ArcSwap<ServerCredentials>,
    limits: GatewayLimits,
    names: StoreNames,
    uploads: Arc<Uploads>,
    checks: ContentChecks,
    clients: Mutex<HashMap<String, Arc<Client>>>,
    places: Arc<Semaphore>,
    refusals: Refusals,
    failures: Refusals,
    tally: Arc<LiveGatewayCounters>,
    draining: watch::Sender<bool>,
}

impl Gateway {
    /// A gateway to `store`. What clients bring is noted in the file `uploads`.
    ///
    /// # Errors
    /// Any error from the file system, naming the file.
    pub fn new(
        store: Store,
        rules: Arc<ArcSwap<Rules>>,
        credentials: Arc<ServerCredentials>,
        uploads: &Path,
        limits: GatewayLimits,
    ) -> Result<Arc<Self>> {
        let uploads = Arc::new(Uploads::open(uploads, store.world().clock.now())?);
        let backend = store.object_store();
        Ok(Arc::new(Self {
            store,
            backend,
            rules,
            credentials: ArcSwap::new(credentials),
            limits,
            names: StoreNames::default(),
            uploads,
            checks: ContentChecks::new(),
            clients: Mutex::default(),
            places: Arc::new(Semaphore::new(limits.all_connections)),
            refusals: Refusals::default(),
            failures: Refusals::default(),
            tally: Arc::default(),
            draining: watch::Sender::new(false),
        }))
    }

    /// Answers at `listener` until [`drain`](Self::drain), and then until the requests that are under way
    /// have ended, for `last` at the most.
    pub async fn serve(self: &Arc<Self>, listener: TcpListener, last: Duration) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = self.draining() => break,
                _ = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => match Arc::clone(&self.places).try_acquire_owned() {
                        Ok(place) => {
                            let gateway = Arc::clone(self);
                            connections.spawn(async move {
                                gateway.welcome(stream, from).await;
                                drop(place);
                            });
                        }
                        Err(_) => tracing::debug!(%from, "a gateway client found no place"),
                    },
                    Err(error) => {
                        tracing::debug!(%error, "a gateway cannot accept a client");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
        drop(listener);
        let ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(last, ended).await.is_err() {
            tracing::debug!("gateway clients were cut off");
        }
    }

    /// Takes no more clients, and lets those that are there end what they do.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Shows and trusts other certificates from the next client on.
    pub fn set_credentials(&self, credentials: Arc<ServerCredentials>) {
        self.credentials.store(credentials);
    }

    /// What it did.
    pub fn counters(&self) -> GatewayCounters {
        self.tally.snapshot()
    }

    /// Lets a client in that shows who it is.
    async fn welcome(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let acceptor = TlsAcceptor::from(self.tls());
        let accepted =
            tokio::time::timeout(self.limits.patience.min(HANDSHAKE), acceptor.accept(stream));
        let stream = match accepted.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%from, %error, "a gateway client cannot encrypt");
                return;
            }
            Err(_) => {
                tracing::debug!(%from, "the TLS handshake did not end in time");
                return;
            }
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let name = match shown.map(|certificate| self.credentials.load().name(certificate)) {
            Some(Ok(name)) => name,
            Some(Err(error)) => {
                tracing::debug!(%from, %error, "a gateway client's certificate names nobody");
                return;
            }
            None => return,
        };
        if stream.get_ref().1.alpn_protocol() != Some(PROTOCOL) {
            tracing::debug!(%from, client = name, "a gateway client does not speak HTTP/2");
            return;
        }
        let client = self.client(&name, from);
        let leave = client.connect(self.limits.connections);
        tracing::debug!(client = name, %from, "a gateway client came");
        let (gateway, asking) = (Arc::clone(self), Arc::clone(&client));
        let answer = move |request, progress| {
            let (gateway, client) = (Arc::clone(&gateway), Arc::clone(&asking));
            async move { answer::answer(&gateway, &client, &progress, request).await }
        };
        let conversation =
            Conversation { client: name, limits: self.limits, tally: Arc::clone(&self.tally) };
        conversation.serve(stream, answer, self.draining(), &leave).await;
        client.disconnect(&leave);
    }

    /// What a handshake is made with: a certificate is asked of every client.
    fn tls(&self) -> Arc<ServerConfig> {
        let mut config = (*self.credentials.load().https(true)).clone();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Arc::new(config)
    }

    fn client(&self, name: &str, from: SocketAddr) -> Arc<Client> {
        let mut clients = self.clients.lock();
        if clients.len() > MOST_IDLE {
            clients.retain(|_, client| !client.is_gone() || Arc::strong_count(client) > 1);
        }
        let made = || {
            let peer = Peer::tcp(from).certified(name.to_owned());
            Arc::new(Client::new(name, peer, self.limits))
        };
        Arc::clone(clients.entry(name.to_owned()).or_insert_with(made))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn backend(&self) -> &dyn ObjectStore {
        &*self.backend
    }

    pub(crate) fn limits(&self) -> &GatewayLimits {
        &self.limits
    }

    pub(crate) fn checks(&self) -> &ContentChecks {
        &self.checks
    }

    pub(crate) fn tally(&self) -> Arc<LiveGatewayCounters> {
        Arc::clone(&self.tally)
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Requests that failed by the store.
    pub(crate) fn failures(&self) -> &Refusals {
        &self.failures
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// The names of the store, at most as old as `age`.
    pub(crate) async fn names(&self, age: Duration) -> Result<Arc<KnownNames>> {
        self.names.get(&self.store, age).await
    }

    /// The names of the store as they are now, looked up for that once in `pause` at the most.
    pub(crate) async fn names_now(&self, pause: Duration) -> Result<Arc<KnownNames>> {
        self.names.now(&self.store, pause).await
    }

    /// Resolves when the gateway drains.
    pub(crate) async fn draining(&self) {
        let mut draining = self.draining.subscribe();
        let _ = draining.wait_for(|draining| *draining).await;
    }

    /// Notes that a client has brought an object.
    pub(crate) async fn brought(&self, client: &Client, key: &ObjectKey) -> Result<()> {
        let (uploads, name, key) =
            (Arc::clone(&self.uploads), client.name().to_owned(), key.text());
        let now = self.store.world().clock.now();
        offload(move || uploads.note(&name, &key, now)).await
    }

    /// Whether a client has brought an object, and has not stayed away from it for long.
    pub(crate) async fn has_brought(&self, client: &Client, key: &ObjectKey) -> Result<bool> {
        let (uploads, name, key) =
            (Arc::clone(&self.uploads), client.name().to_owned(), key.text());
        let now = self.store.world().clock.now();
        offload(move || uploads.has(&name, &key, now)).await
    }
}

/// The protocol that a client has to agree to.
const PROTOCOL: &[u8] = b"h2";
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

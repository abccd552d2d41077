//! A server's gateway over a store in a directory, and clients that speak to it well and badly.

#![allow(dead_code, unreachable_pub)] // every test file uses a part of it
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use access::{Authority, Rule, Rules, ServerCredentials, client_config};
use arc_swap::ArcSwap;
use block::{Device, Memory, Span};
use bytes::Bytes;
use cache::{Cache, Config, PolicyKind};
use disk::{CreateOptions, Disks, Mode};
use gateway::{Gateway, GatewayLimits, GatewayStore, GatewayUrl};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::testing::{ScriptedStore, StoreCall, StoreFault};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::testing;
use store::{ManifestId, NewKey, RefBody, RefKind, RefRecord, Secret, Settings, Store, import};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// 2026-11-24, about: certificates are made for it.
const NOW: u64 = 1_795_000_000;

/// What a slow backend does to a call: long ranges take half a second, listings a whole one.
fn slowed(call: &StoreCall) -> StoreFault {
    match call {
        StoreCall::Ranges(_, ranges) if ranges.iter().any(|r| r.end - r.start > 256 << 10) => {
            StoreFault::Delay(Duration::from_millis(500))
        }
        StoreCall::List(_) => StoreFault::Delay(Duration::from_secs(1)),
        _ => StoreFault::None,
    }
}

/// What becomes of the calls on a backend.
type StorePlan = Box<dyn Fn(&StoreCall) -> StoreFault + Send>;

pub struct Lab {
    pub dir: tempfile::TempDir,
    /// What the server reads the store through.
    pub scripted: ScriptedStore,
    plan: Arc<Mutex<StorePlan>>,
    /// The store as the server opens it.
    pub store: Store,
    pub backend: Arc<dyn ObjectStore>,
    pub gateway: Arc<Gateway>,
    pub address: SocketAddr,
    pub rules: Arc<ArcSwap<Rules>>,
    limits: GatewayLimits,
    tasks: JoinSet<()>,
}

pub fn rule(certificate: &str, write: &[&str], read: &[&str]) -> Rule {
    let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
    let certificate = Some(certificate.to_owned());
    Rule { certificate, write: own(write), read: own(read), ..Rule::default() }
}

pub fn cache() -> Arc<Cache> {
    Arc::new(Cache::new(Config { capacity: 8 << 20, policy: PolicyKind::Lru, seed: 1 }))
}

fn secret() -> Secret {
    Secret::key_file(vec![7; 64]).unwrap()
}

impl Lab {
    /// A lab whose rules let each client write the disk of its own name, and read `debian`.
    pub async fn new() -> Self {
        Self::with(testing::settings(), GatewayLimits::default()).await
    }

    pub async fn with(settings: Settings, limits: GatewayLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tls = dir.path().join("tls");
        Authority::create(&tls, "lab", 3000, NOW).unwrap();
        let authority = Authority::open(&tls, NOW).unwrap();
        authority.server(&["localhost".to_owned()], 800).unwrap();
        for name in ["alice", "bob", "reader"] {
            authority.client(name, 800).unwrap();
        }
        let path = dir.path().join("store");
        let backend = objects::create_local(path.clone()).unwrap();
        let world = testing::world(1);
        let untouched: StorePlan = Box::new(|_| StoreFault::None);
        let plan = Arc::new(Mutex::new(untouched));
        let planned = Arc::clone(&plan);
        let scripted = ScriptedStore::new(Arc::clone(&backend), move |call| planned.lock()(call));
        let made: Arc<dyn ObjectStore> = Arc::new(scripted.clone());
        let store = if settings.is_encrypted() {
            let secret = secret();
            let key = NewKey { name: "lab", secret: &secret, cost: store::Argon2Cost::TRIVIAL };
            Store::create_encrypted(made, settings, world, &key).await.unwrap()
        } else {
            Store::create(made, settings, world).await.unwrap()
        };
        let rules = vec![
            rule("alice", &["alice", "alice-*"], &["debian", "debian:*"]),
            rule("bob", &["bob"], &["secret", "secret:*"]),
            rule("reader", &[], &["debian"]),
        ];
        let rules = Arc::new(ArcSwap::from_pointee(Rules::new(rules, true).unwrap()));
        let gateway = Self::gateway(&dir, &store, &rules, limits);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let serving = Arc::clone(&gateway);
        tasks.spawn(async move { serving.serve(listener, Duration::from_secs(2)).await });
        Self { dir, scripted, plan, store, backend, gateway, address, rules, limits, tasks }
    }

    /// Has the backend answer slowly from now on.
    pub fn slow_down(&self) {
        self.script(slowed);
    }

    /// Has the backend do to the server's calls what `plan` says from now on.
    pub fn script(&self, plan: impl Fn(&StoreCall) -> StoreFault + Send + 'static) {
        *self.plan.lock() = Box::new(plan);
    }

    fn gateway(
        dir: &tempfile::TempDir,
        store: &Store,
        rules: &Arc<ArcSwap<Rules>>,
        limits: GatewayLimits,
    ) -> Arc<Gateway> {
        let credentials = Arc::new(ServerCredentials::load(&dir.path().join("tls")).unwrap());
        let uploads = dir.path().join("uploads");
        Gateway::new(store.clone(), Arc::clone(rules), credentials, &uploads, limits).unwrap()
    }

    /// Ends the server without a word, and starts another one at the same address.
    pub async fn kill_and_restart(&mut self) {
        self.tasks.shutdown().await;
        self.gateway = Self::gateway(&self.dir, &self.store, &self.rules, self.limits);
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let serving = Arc::clone(&self.gateway);
        self.tasks.spawn(async move { serving.serve(listener, Duration::from_secs(2)).await });
    }

    pub fn config(&self, client: &str) -> ClientConfig {
        client_config(&self.dir.path().join("tls/clients").join(client)).unwrap()
    }

    /// The gateway as a client's object store, by way of `port`.
    pub fn object_store_at(&self, client: &str, port: u16) -> GatewayStore {
        let url: GatewayUrl = format!("gateway+https://localhost:{port}").parse().unwrap();
        GatewayStore::new(url, &self.config(client)).unwrap()
    }

    pub fn object_store(&self, client: &str) -> GatewayStore {
        self.object_store_at(client, self.address.port())
    }

    /// The store as a client opens it through the gateway.
    pub async fn open(&self, client: &str, seed: u64) -> Store {
        let bare: Arc<dyn ObjectStore> = Arc::new(self.object_store(client));
        let patient = objects::patient(bare, objects::Patience::COMMAND);
        Store::open_with(patient, testing::world(seed), async || Ok(Some(secret()))).await.unwrap()
    }

    /// The disks of a client's home, over the gateway.
    pub async fn disks(&self, client: &str, seed: u64) -> (tempfile::TempDir, Disks) {
        let home = tempfile::tempdir().unwrap();
        let store = self.open(client, seed).await;
        let disks = Disks::new(home.path().join("disks"), store, cache());
        (home, disks)
    }

    /// The disks of the server's own home.
    pub fn server_disks(&self) -> Disks {
        let path: PathBuf = self.dir.path().join("disks");
        Disks::new(path, self.store.clone(), cache())
    }

    /// Imports an image version at the server.
    pub async fn image(&self, name: &str, bytes: &[u8]) -> RefRecord {
        let session = testing::session(&self.store).await;
        let image = Memory::from(bytes.to_vec());
        let imported = import::from_device(&session, &image, &()).await.unwrap();
        let body = RefBody {
            manifest: Some(imported.manifest),
            size: imported.size,
            created: testing::NOW,
            labels: BTreeMap::new(),
        };
        let made = session.publish(RefKind::Image, name, body).await.unwrap();
        session.close(Ok(())).await.unwrap();
        made
    }

    pub async fn create(&self, disks: &Disks, name: &str, from: &str) {
        let options = CreateOptions { size: None, mode: Mode::Persistent };
        disks.create(name, &from.parse().unwrap(), options).await.unwrap();
    }

    /// The whole content of an image version, read through `store`.
    pub async fn read_image(&self, store: &Store, name: &str) -> block::Result<Vec<u8>> {
        let found = store.refs().get(RefKind::Image, name).await?;
        let found = found.ok_or_else(|| block::Error::not_found("no such image"))?;
        let manifest = store.manifest(&found.body.manifest.unwrap()).await?;
        let image = disk::Image::new(store.clone(), manifest, cache());
        read_all(&image).await
    }

    /// A client that lets the server send no more than 64 KiB before it takes some.
    pub async fn narrow(&self, client: &str) -> Raw {
        Raw::connect(self, client, Some(0xffff)).await
    }

    pub async fn raw(&self, client: &str) -> Raw {
        Raw::connect(self, client, None).await
    }
}

pub async fn read_all(device: &dyn Device) -> block::Result<Vec<u8>> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(Span::whole(device.size()), &mut bytes).await?;
    Ok(bytes)
}

/// The record number `sequence` of a disk's or snapshot's row, as any writer might encode it.
pub async fn record(
    kind: RefKind,
    name: &str,
    sequence: u64,
    body: Option<RefBody>,
) -> (String, Bytes) {
    let backend: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = Store::create(Arc::clone(&backend), testing::settings(), testing::world(99));
    let refs = store.await.unwrap().refs();
    let filler = body.clone().unwrap_or_else(|| empty_body(None));
    let mut last = refs.create(kind, name, filler.clone()).await.unwrap().sequence;
    while last + 1 < sequence {
        last = refs.update(kind, name, last, filler.clone()).await.unwrap().sequence;
    }
    match (&body, sequence) {
        (Some(_), 1) => {}
        (Some(body), _) => drop(refs.update(kind, name, last, body.clone()).await.unwrap()),
        (None, _) => refs.remove(kind, name, last).await.unwrap(),
    }
    let key = format!("refs/{kind}/{name}/{sequence:020}");
    let bytes = backend.get(&Path::from(key.as_str())).await.unwrap().bytes().await.unwrap();
    (key, bytes)
}

pub fn empty_body(manifest: Option<ManifestId>) -> RefBody {
    RefBody { manifest, size: 1 << 20, created: 1, labels: BTreeMap::new() }
}

/// TLS to the gateway, and nothing above it.
pub async fn encrypted(lab: &Lab, client: &str) -> TlsStream<TcpStream> {
    let mut config = lab.config(client);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(lab.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// A client that sends what it is told to.
pub struct Raw {
    sender: SendRequest<Full<Bytes>>,
    port: u16,
    _driver: JoinSet<()>,
}

/// What came back.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Raw {
    async fn connect(lab: &Lab, client: &str, window: Option<u32>) -> Self {
        let stream = encrypted(lab, client).await;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        if window.is_some() {
            builder.initial_stream_window_size(window).initial_connection_window_size(window);
        }
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender, port: lab.address.port(), _driver: driver }
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Got {
        self.try_send(method, path, headers, body).await.unwrap()
    }

    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Got, hyper::Error> {
        let uri = format!("https://localhost:{}{path}", self.port);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).unwrap();
        let mut sender = self.sender.clone();
        sender.ready().await?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Got { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Sends a request and leaves the body of its answer where it is.
    pub async fn begin(
        &self,
        method: &str,
        path: &str,
        body: Bytes,
    ) -> Result<hyper::Response<hyper::body::Incoming>, hyper::Error> {
        let uri = format!("https://localhost:{}{path}", self.port);
        let request = Request::builder().method(method).uri(uri);
        let request = request.body(Full::new(body)).unwrap();
        let mut sender = self.sender.clone();
        sender.ready().await?;
        sender.send_request(request).await
    }

    pub async fn get(&self, path: &str) -> Got {
        self.send("GET", path, &[], Bytes::new()).await
    }

    pub async fn range(&self, key: &str, start: u64, end: u64) -> Got {
        let range = format!("bytes={start}-{}", end - 1);
        let path = format!("/v1/objects/{key}");
        self.send("GET", &path, &[("range", &range)], Bytes::new()).await
    }

    pub async fn object(&self, key: &str) -> Got {
        self.get(&format!("/v1/objects/{key}")).await
    }

    pub async fn put(&self, key: &str, body: impl Into<Bytes>) -> Got {
        self.send("PUT", &format!("/v1/objects/{key}"), &[], body.into()).await
    }

    pub async fn delete(&self, key: &str) -> Got {
        self.send("DELETE", &format!("/v1/objects/{key}"), &[], Bytes::new()).await
    }
}

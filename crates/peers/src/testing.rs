//! A peer that behaves badly, and a shelf in memory: for tests of this and other crates.

use crate::server::speaking;
use crate::shelf::{Shelf, StoredChunk};
use crate::summary::{Inventory, SummaryPart};
use crate::wire::{FetchUrgency, Hello, PeerQuestion, StoreTag, VERSION, tag_of};
use async_trait::async_trait;
use block::{Error, Result};
use bytes::Bytes;
use gateway::GatewayLimits;
use gateway::http::{Conversation, content};
use lookaside::ChunkBytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use store::{ChunkId, ChunkRef, Encoding, MapId, Settings};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// How a [`BadPeer`] answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// With bytes that are something else.
    Lying,
    /// Never.
    Hanging,
    /// Something else, too, and a map that is as long as any can be.
    Flooding,
}

/// A peer that is a member, claims to have nothing, and answers badly what it is asked for as the owner.
#[derive(Debug)]
pub struct BadPeer {
    tag: StoreTag,
    manner: Manner,
    asked: AtomicU64,
}

impl BadPeer {
    /// One of the store with these settings.
    pub fn new(settings: &Settings, manner: Manner) -> Arc<Self> {
        Arc::new(Self { tag: tag_of(settings), manner, asked: AtomicU64::new(0) })
    }

    /// How many chunks and maps it was asked for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// Answers at `listener`, for ever.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: &ServerConfig) {
        let acceptor = TlsAcceptor::from(Arc::new(speaking(tls)));
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (this, acceptor) = (Arc::clone(&self), acceptor.clone());
            connections.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let answer = move |request: hyper::Request<_>, progress| {
                    let text = request.uri().path_and_query().map(|text| text.as_str().to_owned());
                    let this = Arc::clone(&this);
                    async move {
                        let bytes = this.answer(&text.unwrap_or_default()).await;
                        content("application/octet-stream", bytes, &progress, None)
                    }
                };
                let (limits, tally) = (GatewayLimits::default(), Arc::default());
                let conversation = Conversation { client: "anybody".to_owned(), limits, tally };
                conversation.serve(stream, answer, std::future::pending(), &Notify::new()).await;
            });
        }
    }

    async fn answer(&self, text: &str) -> Bytes {
        match PeerQuestion::parse(&self.tag, text) {
            Some(PeerQuestion::Hello { .. }) => {
                // Its weights are as good as anybody's.
                let (peer, member) = (VERSION, "0123456789abcdef".to_owned());
                let hello = Hello { peer, member, sojourn: "0".to_owned() };
                serde_json::to_vec(&hello).unwrap_or_default().into()
            }
            Some(PeerQuestion::Summary { log, .. }) => {
                if log == 1 {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
                SummaryPart { log: 1, from: 0, bits: Vec::new() }.encode().into()
            }
            Some(PeerQuestion::Chunk { at, .. }) => self.lie(at.len as usize).await,
            Some(PeerQuestion::Map { .. }) => match self.manner {
                Manner::Flooding => self.lie(MapId::MAX_LEN as usize).await,
                _ => self.lie(4096).await,
            },
            None => Bytes::new(),
        }
    }

    async fn lie(&self, len: usize) -> Bytes {
        self.asked.fetch_add(1, Relaxed);
        if self.manner == Manner::Hanging {
            std::future::pending::<()>().await;
        }
        let mut bytes = vec![0xee; len + 1];
        bytes[0] = 0; // plain bytes, or a map
        bytes.into()
    }
}

/// Chunks of a store in clear, in memory: some are here, others can be fetched.
pub struct MemoryShelf {
    settings: Settings,
    inventory: Arc<Inventory>,
    here: Mutex<HashMap<ChunkId, Bytes>>,
    distant: HashMap<ChunkId, Bytes>,
    fetched: AtomicU64,
    paid: AtomicU64,
}

impl MemoryShelf {
    /// A shelf with `here`, which can fetch `distant`.
    pub fn new(settings: &Settings, here: &[Bytes], distant: &[Bytes]) -> Arc<Self> {
        let by_id = |chunks: &[Bytes]| -> HashMap<ChunkId, Bytes> {
            chunks.iter().map(|plain| (settings.chunk_id(plain), plain.clone())).collect()
        };
        let inventory = Arc::new(Inventory::new(7));
        for plain in here {
            inventory.note(&lookaside::conformance::asked_for(settings, plain));
        }
        Arc::new(Self {
            settings: settings.clone(),
            inventory,
            here: Mutex::new(by_id(here)),
            distant: by_id(distant),
            fetched: AtomicU64::new(0),
            paid: AtomicU64::new(0),
        })
    }

    /// How many chunks were fetched.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Relaxed)
    }

    /// How many bytes were paid for.
    pub fn paid(&self) -> u64 {
        self.paid.load(Relaxed)
    }

    /// Chunks that are here, those among them that peers gave.
    pub fn len(&self) -> usize {
        self.here.lock().len()
    }

    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[async_trait]
impl Shelf for MemoryShelf {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    async fn chunk_here(&self, at: &ChunkRef) -> Result<Option<StoredChunk>> {
        Ok(self.here.lock().get(&at.id).map(|plain| (Encoding::Plain, plain.clone())))
    }

    async fn fetch_chunk(&self, at: &ChunkRef, _: FetchUrgency) -> Result<StoredChunk> {
        self.fetched.fetch_add(1, Relaxed);
        let found = self.distant.get(&at.id).cloned();
        let plain = found.ok_or_else(|| Error::not_found("there is no such chunk"))?;
        self.here.lock().insert(at.id, plain.clone());
        self.inventory.note(at);
        Ok((Encoding::Plain, plain))
    }

    async fn map_here(&self, _: &MapId) -> Option<Bytes> {
        None
    }

    async fn fetch_map(&self, id: &MapId) -> Result<Bytes> {
        Err(Error::not_found(id.to_string()))
    }

    fn keep(&self, at: &ChunkRef, given: &ChunkBytes) {
        if let Ok(plain) = given.clone().verify(&self.settings, at) {
            self.here.lock().insert(at.id, plain);
            self.inventory.note(at);
        }
    }

    async fn pay(&self, bytes: u64) {
        self.paid.fetch_add(bytes, Relaxed);
    }
}

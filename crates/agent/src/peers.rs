//! What this machine has of the store, for other machines nearby: the shelf of crate `peers`.

use crate::budget::ByteBudget;
use ::peers::shelf::{Shelf, StoredChunk};
use ::peers::wire::FetchUrgency;
use ::peers::{Inventory, Neighbours, PeerCounters, PeerServer};
use async_trait::async_trait;
use block::Result;
use bytes::Bytes;
use disk::{ChunkLine, Disk};
use engine::{Config, Engine};
use gateway::GatewayUrl;
use lookaside::ChunkBytes;
use lookaside::share::{KeptChunks, LinkShare, MemberId, ShareBy};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkRef, ManifestId, MapId, Settings};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Chunks of others that are being kept at a time; what comes beyond that is not kept.
const KEEPING: usize = 512;
/// How often is looked whether a disk stands on something else, and whether more of what it stands on is kept.
const LOOK: Duration = Duration::from_secs(2);
const RECOUNT: Duration = Duration::from_secs(60);

/// What was given to others and who is there, as `attach status` tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PeersView {
    /// Where others are answered.
    pub address: String,
    /// How many are there.
    pub there: usize,
    /// What they were given.
    #[serde(flatten)]
    pub counters: PeerCounters,
}

/// Peers of the disks of a home.
pub struct AttachedPeers {
    /// Where they are answered.
    pub address: SocketAddr,
    /// Who answers them.
    pub server: Arc<PeerServer>,
    /// Those that are known.
    pub neighbours: Arc<Neighbours>,
    /// What this machine has for them.
    pub shelf: Arc<EngineShelf>,
}

impl AttachedPeers {
    /// What is told of them.
    pub fn view(&self) -> PeersView {
        PeersView {
            address: self.address.to_string(),
            there: self.neighbours.count(),
            counters: self.server.counters(),
        }
    }
}

/// What this machine has of its store.
pub struct EngineShelf {
    engine: Arc<Engine>,
    line: ChunkLine,
    inventory: Arc<Inventory>,
    budget: ByteBudget,
    keeping: Arc<Semaphore>,
    tasks: Mutex<JoinSet<()>>,
}

impl EngineShelf {
    /// What `engine` has; others are given `rate` bytes per second at most, 0 is no limit. `log` is a random number.
    pub fn new(engine: &Arc<Engine>, rate: u64, log: u64) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            line: engine.loader().chunk_line(),
            inventory: Arc::new(Inventory::new(log)),
            budget: ByteBudget::new(rate),
            keeping: Arc::new(Semaphore::new(KEEPING)),
            tasks: Mutex::default(),
        })
    }

    /// How this machine, as `member`, shares the way to its store with others.
    pub fn link_share(&self, member: MemberId, config: &Config) -> LinkShare {
        // Of a bucket more than a chunk is read at a time, and what lies beside it is to have the same owner.
        let by = match GatewayUrl::is_meant(&config.store) {
            true => ShareBy::Chunk,
            false => ShareBy::Region,
        };
        let kept = Arc::new(NotedPlaces(Arc::clone(&self.inventory)));
        LinkShare { member, by, kept }
    }

    /// Notes, for ever, what of what a disk stands on is kept here. Can be dropped at any time.
    pub async fn follow(&self, disk: &Disk) -> Infallible {
        let mut noted: Option<(ManifestId, Instant)> = None;
        loop {
            let manifest = disk.published();
            let is_due = noted.is_none_or(|(id, at)| id != manifest.id() || at.elapsed() > RECOUNT);
            if is_due {
                match self.engine.kept_of(&manifest).await {
                    Ok((maps, chunks)) => {
                        maps.iter().for_each(|id| self.inventory.note_map(id));
                        chunks.iter().for_each(|at| self.inventory.note(at));
                    }
                    Err(error) => tracing::debug!(%error, "what is kept of a disk is not known"),
                }
                noted = Some((manifest.id(), Instant::now()));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[async_trait]
impl Shelf for EngineShelf {
    fn settings(&self) -> &Settings {
        self.engine.store.settings()
    }

    fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    async fn chunk_here(&self, at: &ChunkRef) -> Result<Option<StoredChunk>> {
        let noted = self.inventory.place(&at.id);
        let place = noted.unwrap_or(*at);
        if let Some(stored) = self.engine.kept_chunk(&place).await {
            return Ok(Some((place.encoding, stored)));
        }
        if noted.is_some() {
            self.inventory.forget(&at.id);
        }
        self.engine.cached_chunk(at).await
    }

    async fn fetch_chunk(&self, at: &ChunkRef, urgency: FetchUrgency) -> Result<StoredChunk> {
        let plain = self.line.chunk(at, urgency == FetchUrgency::Demand).await?;
        match self.engine.kept_chunk(at).await {
            Some(stored) => Ok((at.encoding, stored)),
            None => self.engine.as_stored(at, plain).await,
        }
    }

    async fn map_here(&self, id: &MapId) -> Option<Bytes> {
        let kept = self.engine.kept_map(id).await;
        match kept {
            Some(_) => self.inventory.note_map(id),
            None => self.inventory.forget_map(id),
        }
        kept
    }

    async fn fetch_map(&self, id: &MapId) -> Result<Bytes> {
        let object = self.engine.store.map_object(id).await?;
        Ok(self.map_here(id).await.unwrap_or(object))
    }

    fn keep(&self, at: &ChunkRef, given: &ChunkBytes) {
        let Ok(turn) = Arc::clone(&self.keeping).try_acquire_owned() else { return };
        let (engine, inventory) = (Arc::clone(&self.engine), Arc::clone(&self.inventory));
        let (at, given) = (*at, given.clone());
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            if engine.keep_chunk(&at, &given).await {
                inventory.note(&at);
            }
            drop(turn);
        });
    }

    async fn pay(&self, bytes: u64) {
        self.budget.spend(bytes).await;
    }
}

/// An inventory, as what is not asked of others.
struct NotedPlaces(Arc<Inventory>);

impl KeptChunks for NotedPlaces {
    fn has(&self, at: &ChunkRef) -> bool {
        let noted = self.0.place(&at.id);
        noted.is_some_and(|noted| noted.pack == at.pack && noted.offset == at.offset)
    }

    fn was_read(&self, at: &ChunkRef) {
        self.0.note(at);
    }
}

impl fmt::Debug for NotedPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotedPlaces({})", self.0.len())
    }
}

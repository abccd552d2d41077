//! Machines that share the way to a store: each a `Sources` of its own, with the others as peers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

use async_trait::async_trait;
use block::{Error, Result};
use bytes::Bytes;
use futures::future::join_all;
use lookaside::conformance::asked_for;
use lookaside::share::{KeptChunks, LinkShare, MemberId, ShareBy};
use lookaside::{
    ChunkBytes, ChunkSource, CostEstimate, Fetched, LinkSharer, ReadOrder, SourceKind, Sources,
    Urgency,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use store::{ChunkId, ChunkRef, MapId, testing};
use tokio::time::Instant;

const MS: fn(u64) -> Duration = Duration::from_millis;
/// What a read of the store takes, and a question to a peer.
const STORE: Duration = Duration::from_millis(80);
const LAN: Duration = Duration::from_millis(1);

/// How a machine answers others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Honest,
    Lying,
    Hanging,
    /// Answers like one whose connection broke.
    Gone,
    /// Answers like one that has no rights on what others read.
    Excluded,
}

#[derive(Debug)]
struct Machine {
    number: u64,
    sources: Sources,
    kept: Arc<Kept>,
    /// Loads that are under way, for all who want the same.
    loading: Mutex<HashMap<ChunkId, Arc<tokio::sync::OnceCell<Bytes>>>>,
    manner: Mutex<Manner>,
    /// Reads of the store, of all machines together.
    uplink: Arc<AtomicU64>,
    plain: Arc<HashMap<ChunkId, Bytes>>,
}

#[derive(Debug, Default)]
struct Kept(Mutex<HashMap<ChunkId, Bytes>>);

impl KeptChunks for Kept {
    fn has(&self, at: &ChunkRef) -> bool {
        self.0.lock().contains_key(&at.id)
    }

    fn was_read(&self, _: &ChunkRef) {}
}

/// A machine, as another one asks it.
#[derive(Debug)]
struct Peer(String, Weak<Machine>);

impl Machine {
    /// Reads a chunk as a guest would, or as for another machine.
    async fn read(&self, at: &ChunkRef) -> Result<Bytes> {
        if let Some(plain) = self.kept.0.lock().get(&at.id) {
            return Ok(plain.clone());
        }
        let cell = Arc::clone(self.loading.lock().entry(at.id).or_default());
        let load = async {
            let store = || async {
                self.uplink.fetch_add(1, Relaxed);
                tokio::time::sleep(STORE).await;
                Ok(self.plain[&at.id].clone())
            };
            let urgency = Urgency::Demand;
            let plain = self.sources.read(at, ReadOrder::Cheapest, urgency, store).await?;
            self.kept.0.lock().insert(at.id, plain.clone());
            Ok(plain)
        };
        cell.get_or_try_init(|| load).await.cloned()
    }
}

impl Peer {
    fn machine(&self) -> Result<Arc<Machine>> {
        let machine = self.1.upgrade().filter(|machine| *machine.manner.lock() != Manner::Gone);
        machine.ok_or_else(|| Error::unavailable("it is away"))
    }

    async fn answer(&self, at: &ChunkRef, fetch: bool) -> Result<ChunkBytes> {
        tokio::time::sleep(LAN).await;
        let machine = self.machine()?;
        let manner = *machine.manner.lock();
        let here = machine.kept.0.lock().get(&at.id).cloned();
        let plain = match (manner, here) {
            (Manner::Hanging, _) => std::future::pending().await,
            (Manner::Excluded, _) => return Err(Error::not_found("it may not read that")),
            (_, Some(plain)) => plain,
            (_, None) if fetch => machine.read(at).await?,
            (_, None) => return Err(Error::not_found("it is not here")),
        };
        Ok(ChunkBytes::Plain(match manner {
            Manner::Lying => plain.iter().map(|byte| byte ^ 1).collect(),
            _ => plain,
        }))
    }
}

#[async_trait]
impl ChunkSource for Peer {
    fn name(&self) -> &str {
        &self.0
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Peer
    }

    fn claims(&self, id: &ChunkId) -> bool {
        self.machine().is_ok_and(|machine| machine.kept.0.lock().contains_key(id))
    }

    fn chunks(&self) -> u64 {
        self.machine().map_or(0, |machine| machine.kept.0.lock().len() as u64)
    }

    async fn chunk(&self, at: &ChunkRef) -> Result<ChunkBytes> {
        self.answer(at, false).await
    }

    fn disown(&self, _: &ChunkId) {}

    fn sharer(&self) -> Option<&dyn LinkSharer> {
        Some(self)
    }
}

#[async_trait]
impl LinkSharer for Peer {
    fn member(&self) -> Option<MemberId> {
        self.machine().ok().map(|machine| MemberId(machine.number))
    }

    async fn fetch(&self, at: &ChunkRef, _: bool) -> Result<Fetched> {
        self.answer(at, true).await.map(|bytes| Fetched { bytes, took: LAN })
    }

    async fn fetch_map(&self, id: &MapId) -> Result<Bytes> {
        Err(Error::not_found(id.to_string()))
    }
}

/// So many machines in a network, and the chunks of their store.
fn network(machines: u64, chunks: u64) -> (Vec<Arc<Machine>>, Vec<ChunkRef>) {
    let settings = testing::settings();
    let plain = (0..chunks).map(|seed| Bytes::from(testing::noise(seed, 8192)));
    let plain: Vec<Bytes> = plain.collect();
    let wanted = plain.iter().map(|plain| asked_for(&settings, plain)).collect();
    let plain: HashMap<_, _> = plain.into_iter().map(|b| (settings.chunk_id(&b), b)).collect();
    let (plain, uplink) = (Arc::new(plain), Arc::new(AtomicU64::new(0)));
    let all: Vec<_> = (0..machines)
        .map(|number| {
            let kept = Arc::new(Kept::default());
            let sources =
                Sources::new(testing::settings(), "the store", CostEstimate::DISTANT, Vec::new());
            let share = LinkShare {
                member: MemberId(number),
                by: ShareBy::Chunk,
                kept: Arc::clone(&kept) as _,
            };
            sources.share_link(share);
            Arc::new(Machine {
                number,
                sources,
                kept,
                loading: Mutex::default(),
                manner: Mutex::new(Manner::Honest),
                uplink: Arc::clone(&uplink),
                plain: Arc::clone(&plain),
            })
        })
        .collect();
    for one in &all {
        for other in all.iter().filter(|other| other.number != one.number) {
            one.sources.add(Arc::new(Peer(other.number.to_string(), Arc::downgrade(other))));
        }
    }
    (all, wanted)
}

/// Has all read the same chunks at the same time, some at a time; gives how often the store was read.
async fn boot(machines: &[Arc<Machine>], chunks: &[ChunkRef]) -> u64 {
    let before = machines[0].uplink.load(Relaxed);
    let boots = machines.iter().map(async |machine| {
        for some in chunks.chunks(5) {
            for read in join_all(some.iter().map(|at| machine.read(at))).await {
                let plain = read.expect("no peer fails a read");
                assert!(some.iter().any(|at| machine.plain[&at.id] == plain));
            }
        }
    });
    join_all(boots).await;
    machines[0].uplink.load(Relaxed) - before
}

#[tokio::test(start_paused = true)]
async fn machines_that_boot_at_the_same_moment_read_each_chunk_once() {
    let (all, chunks) = network(8, 400);
    assert_eq!(boot(&all, &chunks).await, 400);
    let given: u64 = all.iter().flat_map(|one| one.sources.report()).map(|one| one.had).sum();
    assert_eq!(given, 8 * 400, "each machine got each chunk from somebody");
}

#[tokio::test(start_paused = true)]
async fn who_comes_later_gets_all_from_those_that_have_it() {
    let (all, chunks) = network(3, 200);
    assert_eq!(boot(&all[..1], &chunks).await, 200);
    assert_eq!(boot(&all[1..], &chunks).await, 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_lies_one_that_hangs_and_one_that_dies_cost_little_and_no_read() {
    for manner in [Manner::Lying, Manner::Hanging, Manner::Gone, Manner::Excluded] {
        let (all, chunks) = network(8, 400);
        let (bad, good) = all.split_first().unwrap();
        let first = boot(&all, &chunks[..100]).await;
        *bad.manner.lock() = manner;
        let rest = boot(good, &chunks[100..]).await;
        // Each of the others finds out for itself; one that may not read what they do is asked on, and says so at once.
        let share = if manner == Manner::Excluded { 300 } else { 75 };
        let most = 300 + share;
        assert!(first == 100 && rest <= most, "{manner:?}: {rest} reads for 300 chunks");
    }
}

#[tokio::test(start_paused = true)]
async fn machines_that_do_not_see_each_other_wait_for_nobody_in_a_circle() {
    let (all, chunks) = network(6, 120);
    for (one, other) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)] {
        all[one].sources.remove(&other.to_string());
    }
    let began = Instant::now();
    let reads = boot(&all, &chunks).await;
    assert!((120..=240).contains(&reads), "{reads}");
    let most = STORE * (120 / 5) * 3;
    assert!(began.elapsed() < most, "{:?}: somebody waited in vain", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_owner_has_as_long_as_the_store_takes_and_the_store_is_asked_then() {
    let (all, chunks) = network(2, 40);
    *all[1].manner.lock() = Manner::Hanging;
    let theirs = chunks.iter().find(|at| all[0].sources.prefers(at)).expect("a share of the other");
    let began = Instant::now();
    all[0].read(theirs).await.unwrap();
    let took = began.elapsed();
    assert!(took >= MS(1000) && took < MS(10_100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_here_is_asked_of_nobody() {
    let (all, chunks) = network(4, 50);
    boot(&all, &chunks).await;
    assert!(
        chunks.iter().all(|at| !all[0].sources.prefers(at) && all[0].sources.nearby(at).is_empty())
    );
}

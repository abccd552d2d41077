//! Everything that a disk stands on comes to this machine, behind whatever guests ask for.
//!
//! What a source nearby has is copied from there; the rest comes over the link, first the chunks of its
//! image's boot list, then all others in the order of the disk. They lie in the
//! piece cache, whose files outlive restarts and are verified whenever they are read: so a hoard can be
//! counted anew at any time, costs nothing twice, and one that was damaged or deleted is fetched again.

use crate::budget::ByteBudget;
use crate::progress::{HoardProgress, HoardState};
use block::{Error, ErrorKind, Result, offload};
use disk::Disk;
use engine::{Engine, boots};
use futures::{FutureExt, StreamExt, TryStreamExt};
use lookaside::{ChunkBytes, Sources};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use store::{ChunkId, ChunkRef, ManifestId, RefKind};
use tokio::sync::watch;
use tokio::time::Instant;

/// A request is to take about so long, so that a guest's read never waits long for one …
const REQUEST: Duration = Duration::from_millis(100);
/// … and has between so many bytes …
const LEAST: u64 = 64 << 10;
/// … and so many.
const MOST: u64 = 2 << 20;
/// How often is looked whether guests still wait, and whether the disk stands on something else.
const LOOK: Duration = Duration::from_millis(20);
const RELOOK: Duration = Duration::from_secs(1);
/// How often a complete hoard is counted again: something may have been dropped to make room.
const RECOUNT: Duration = Duration::from_secs(600);
/// Chunks that sources nearby are asked for at a time.
const NEARBY: usize = 4;
/// A request that takes longer is one to a store that does not answer.
const STALL: Duration = Duration::from_secs(15);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// The hoard of one disk.
pub struct Hoard {
    budget: Arc<ByteBudget>,
    wanted: watch::Sender<bool>,
    progress: Mutex<HoardProgress>,
}

impl Hoard {
    /// A hoard; nothing is fetched before [`follow`](Self::follow), and unless it is `wanted`.
    pub fn new(budget: Arc<ByteBudget>, wanted: bool) -> Self {
        Self { budget, wanted: watch::Sender::new(wanted), progress: Mutex::default() }
    }

    /// Says whether it is wanted. What is here stays.
    pub fn want(&self, wanted: bool) {
        if wanted && !*self.wanted.borrow() {
            *self.progress.lock() =
                HoardProgress { state: HoardState::Fetching, ..HoardProgress::default() };
        }
        self.wanted.send_replace(wanted);
    }

    /// How far it is.
    pub fn progress(&self) -> HoardProgress {
        match *self.wanted.borrow() {
            true => self.progress.lock().clone(),
            false => HoardProgress::default(),
        }
    }

    /// Fetches, for ever, what is missing of what `disk` stands on, one request at a time. Can be
    /// dropped at any time.
    pub async fn follow(&self, disk: &Disk, engine: &Arc<Engine>) -> Infallible {
        let mut wanted = self.wanted.subscribe();
        loop {
            while !*wanted.borrow_and_update() {
                // The sender is the hoard's own, which is borrowed here.
                let _ = wanted.changed().await;
            }
            let pause = tokio::select! {
                done = self.fetch(disk, engine) => match done {
                    Ok(manifest) => until_other(disk, manifest).boxed(),
                    Err(error) => {
                        self.fail(&error);
                        tokio::time::sleep(RETRY).boxed()
                    }
                },
                _ = wanted.changed() => continue,
            };
            tokio::select! {
                () = pause => {}
                _ = wanted.changed() => {}
            }
        }
    }

    fn fail(&self, error: &Error) {
        let mut progress = self.progress.lock();
        progress.state = HoardState::Offline;
        progress.error = Some(error.message().to_owned());
    }

    /// Fetches what is missing; gives what the disk stands on.
    async fn fetch(&self, disk: &Disk, engine: &Arc<Engine>) -> Result<ManifestId> {
        let (manifest, chunks) = in_order(disk, engine).await?;
        let size = |chunks: &[ChunkRef]| chunks.iter().map(|at| u64::from(at.stored)).sum::<u64>();
        let total = size(&chunks);
        let mut missing = missing(engine, chunks).await?;
        let state = if missing.is_empty() { HoardState::Complete } else { HoardState::Fetching };
        let here = total - size(&missing);
        *self.progress.lock() =
            HoardProgress { state, total_bytes: total, here_bytes: here, error: None };
        let all_missing = missing.clone();
        self.bring_nearby(&mut missing, engine).await?;
        let (mut rest, mut bytes) = (&missing[..], LEAST);
        while !rest.is_empty() {
            let (batch, others) = rest.split_at(batch(rest, bytes));
            rest = others;
            while engine.has_demand() {
                tokio::time::sleep(LOOK).await;
            }
            self.budget.spend(size(batch)).await;
            let began = Instant::now();
            self.fetched(engine.store.fetch(batch)).await?;
            bytes = next_size(bytes, began.elapsed());
            self.progress.lock().here_bytes += size(batch);
        }
        if !self::missing(engine, all_missing).await?.is_empty() {
            return Err(Error::new(
                ErrorKind::NoSpace,
                "what is hoarded cannot be kept here; make room, or raise pieces.size",
            ));
        }
        self.progress.lock().state = HoardState::Complete;
        Ok(manifest)
    }
}

impl Hoard {
    /// Takes what a key or another source has that is quicker than the store, and leaves the rest: the link
    /// carries nothing of it.
    async fn bring_nearby(&self, missing: &mut Vec<ChunkRef>, engine: &Arc<Engine>) -> Result<()> {
        let Some(sources) = engine.loader().sources().filter(|sources| !sources.is_empty()) else {
            return Ok(());
        };
        let mut brought = Vec::with_capacity(missing.len());
        let mut answers = futures::stream::iter(missing.clone())
            .map(|at| self.bring(at, sources, engine).boxed())
            .buffered(NEARBY);
        while let Some(kept) = answers.try_next().await? {
            brought.push(kept);
        }
        drop(answers);
        let mut brought = brought.into_iter();
        missing.retain(|_| !brought.next().unwrap_or(false));
        Ok(())
    }

    /// Copies a chunk from a source into the piece cache; whether it is there now.
    async fn bring(&self, at: ChunkRef, sources: &Sources, engine: &Engine) -> Result<bool> {
        while engine.has_demand() {
            tokio::time::sleep(LOOK).await;
        }
        for source in sources.nearby(&at) {
            // What comes over a network is paid for.
            if source.is_distant() {
                self.budget.spend(at.stored.into()).await;
            }
            let Some((given, plain)) = sources.bring(&source, &at).await else { continue };
            let stored = match given {
                ChunkBytes::Stored(encoding, bytes) => Some((encoding, bytes)),
                ChunkBytes::Plain(_) => None,
            };
            let kept = engine.store.keep(&engine.link, &at, stored, plain).await?;
            if kept {
                self.progress.lock().here_bytes += u64::from(at.stored);
            }
            return Ok(kept);
        }
        Ok(false)
    }

    /// Waits for a request; one that takes long is told of as one to a store that does not answer.
    async fn fetched(&self, request: impl Future<Output = Result<()>>) -> Result<()> {
        let mut request = pin!(request);
        if let Ok(done) = tokio::time::timeout(STALL, &mut request).await {
            return done;
        }
        self.fail(&Error::unavailable("the store does not answer"));
        request.await?;
        let mut progress = self.progress.lock();
        progress.state = HoardState::Fetching;
        progress.error = None;
        Ok(())
    }
}

/// Waits until the disk stands on something else, or it is time to count again.
async fn until_other(disk: &Disk, manifest: ManifestId) {
    let until = Instant::now() + RECOUNT;
    while disk.published().id() == manifest && Instant::now() < until {
        tokio::time::sleep(RELOOK).await;
    }
}

/// How many chunks the next request has: those at the beginning that lie in one pack and take no more than
/// `bytes`, at least one.
fn batch(chunks: &[ChunkRef], bytes: u64) -> usize {
    let (mut sum, pack) = (0, chunks.first().map(|at| at.pack));
    let fits = |at: &&ChunkRef| {
        sum += u64::from(at.stored);
        sum <= bytes && Some(at.pack) == pack
    };
    chunks.iter().take_while(fits).count().max(1)
}

/// What a request may have after one of `bytes` took `time`.
fn next_size(bytes: u64, time: Duration) -> u64 {
    match time {
        time if time < REQUEST / 2 => (bytes * 2).min(MOST),
        time if time > REQUEST * 2 => (bytes / 2).max(LEAST),
        _ => bytes,
    }
}

/// What a disk stands on, and its chunks: those that its image's boots read first.
async fn in_order(disk: &Disk, engine: &Engine) -> Result<(ManifestId, Vec<ChunkRef>)> {
    let manifest = disk.published();
    manifest.fetch_maps().await?;
    let mut chunks = manifest.chunks().await?;
    let asked = tokio::time::timeout(STALL, boot_chunks(disk, engine)).await;
    let boot = asked.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer")));
    let boot = boot.unwrap_or_else(|error| {
        // It makes boots quicker, no more.
        tracing::debug!(disk = disk.name(), %error, "the boot list does not come first");
        Vec::new()
    });
    let rank: HashMap<ChunkId, usize> =
        boot.into_iter().enumerate().map(|(n, id)| (id, n)).collect();
    chunks.sort_by_key(|at| rank.get(&at.id).copied().unwrap_or(usize::MAX));
    Ok((manifest.id(), chunks))
}

/// The boot list of a disk's image version.
async fn boot_chunks(disk: &Disk, engine: &Engine) -> Result<Vec<ChunkId>> {
    let version = disk.info().image.to_string();
    match engine.store.refs().get(RefKind::Image, &version).await? {
        Some(record) => Ok(boots::list::of(&engine.store, &record).await?.unwrap_or_default()),
        None => Ok(Vec::new()),
    }
}

/// The `chunks` that are not on this machine.
async fn missing(engine: &Arc<Engine>, mut chunks: Vec<ChunkRef>) -> Result<Vec<ChunkRef>> {
    let engine = Arc::clone(engine);
    offload(move || {
        chunks.retain(|at| !engine.store.has_kept(&engine.link, at));
        Ok(chunks)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Encoding, PackId};

    fn chunk(pack: u8, stored: u32) -> ChunkRef {
        let (id, pack) = (ChunkId::from([pack; 32]), PackId::from([pack; 32]));
        ChunkRef { id, len: 1 << 16, pack, offset: 0, stored, encoding: Encoding::Plain }
    }

    #[test]
    fn a_request_has_neighbours_of_one_pack_and_no_more_than_it_may() {
        let chunks = [chunk(1, 300), chunk(1, 300), chunk(1, 300), chunk(2, 300)];
        assert_eq!(batch(&chunks, 10), 1, "one at the least");
        assert_eq!(batch(&chunks, 600), 2);
        assert_eq!(batch(&chunks, 10_000), 3);
    }

    #[test]
    fn requests_grow_on_a_quick_link_and_shrink_on_a_slow_one() {
        let mut bytes = LEAST;
        for _ in 0..10 {
            bytes = next_size(bytes, Duration::from_millis(5));
        }
        assert_eq!(bytes, MOST);
        assert_eq!(next_size(bytes, Duration::from_millis(100)), bytes);
        for _ in 0..10 {
            bytes = next_size(bytes, Duration::from_secs(1));
        }
        assert_eq!(bytes, LEAST);
    }
}

//! The second stage of an import: chunks are hashed and compressed on the runtime's blocking
//! threads, a bounded number of batches at a time, and handed on in order.

use super::feed::{Batch, Feed, FeedItem};
use super::prepared::{ChunkOrigin, PreparedItem, Worked};
use super::writer::Writer;
use crate::chunk;
use crate::chunk_table::ChunkTable;
use crate::{Imported, Progress, Session, Store};
use block::{Error, Result, offload};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Batches in work: each holds its plain bytes and at most as many stored ones.
const BATCHES: usize = 5;

/// The stages, tied together. The first one is [`feed`](Self::feed), filled by the caller.
pub(crate) struct Pipeline<'a> {
    pub(crate) feed: Feed,
    store: &'a Store,
    /// The level of zstd.
    level: i32,
    known: Arc<ChunkTable>,
    tasks: JoinSet<(u64, Result<Worked>)>,
    submitted: u64,
    written: u64,
    finished: BTreeMap<u64, Worked>,
    writer: Writer<'a>,
}

impl<'a> Pipeline<'a> {
    pub(crate) async fn new(session: &'a Session, progress: &'a dyn Progress) -> Result<Self> {
        let (store, absent) = (session.store(), session.absent());
        let known = match &session.plan().journal {
            Some(journal) => {
                ChunkTable::of_packs(
                    store.backend(),
                    store.settings(),
                    absent,
                    journal.packs().await,
                )
                .await?
            }
            None => ChunkTable::load_without(store.backend(), store.settings(), absent).await?,
        };
        let writer = Writer::new(session, progress).avoiding(known.newer().clone());
        Ok(Self {
            feed: Feed::default(),
            store: session.store(),
            level: session.plan().level.max(store.settings().compression_level()),
            known: Arc::new(known),
            tasks: JoinSet::new(),
            submitted: 0,
            written: 0,
            finished: BTreeMap::new(),
            writer,
        })
    }

    /// Hands on what the feed has, if it is enough; waits while too much is in work.
    pub(crate) async fn advance(&mut self) -> Result<()> {
        if self.feed.is_ready() {
            self.submit().await?;
        }
        Ok(())
    }

    async fn submit(&mut self) -> Result<()> {
        let batch = self.feed.take();
        let (store, known, number) = (self.store.clone(), Arc::clone(&self.known), self.submitted);
        let level = self.level;
        self.submitted += 1;
        self.tasks.spawn(async move {
            (number, offload(move || work(&store, level, &known, batch)).await)
        });
        while self.submitted - self.written >= BATCHES as u64 {
            self.collect().await?;
        }
        Ok(())
    }

    /// Waits for a task, and writes what is next in order.
    async fn collect(&mut self) -> Result<()> {
        let (number, worked) = match self.tasks.join_next().await {
            Some(Ok(outcome)) => outcome,
            Some(Err(e)) => {
                return Err(Error::internal("a task of an import failed").with_source(e));
            }
            None => return Err(Error::internal("an import lost a task")),
        };
        self.finished.insert(number, worked?);
        while let Some(mut worked) = self.finished.remove(&self.written) {
            self.written += 1;
            let windows = std::mem::take(&mut worked.windows);
            self.writer.take(worked).await?;
            self.feed.recycle(windows);
        }
        Ok(())
    }

    /// Writes the rest, then the root of an image of `size` bytes.
    pub(crate) async fn finish(mut self, size: u64) -> Result<Imported> {
        self.feed.jump(0);
        self.submit().await?;
        while self.written < self.submitted {
            self.collect().await?;
        }
        self.writer.finish(size).await
    }
}

fn work(store: &Store, level: i32, known: &ChunkTable, batch: Batch) -> Result<Worked> {
    let settings = store.settings();
    let done = batch
        .items
        .into_iter()
        .map(|item| {
            Ok(match item {
                FeedItem::Base { segment, placed } => PreparedItem::Base { segment, placed },
                FeedItem::Shared { segment, id } => PreparedItem::Shared { segment, id },
                FeedItem::Chunk { start, data } => {
                    let id = chunk::id_of(settings, &data);
                    let len = data.len() as u32;
                    let source = match known.find(&id) {
                        Some(at) => ChunkOrigin::Known(at),
                        None => {
                            let (encoding, stored) = chunk::encode_at(settings, level, &id, data)?;
                            ChunkOrigin::New(encoding, stored)
                        }
                    };
                    PreparedItem::Chunk { start, len, id, source }
                }
            })
        })
        .collect::<Result<_>>()?;
    Ok(Worked { done, windows: batch.windows, scanned: batch.scanned, zero: batch.zero })
}

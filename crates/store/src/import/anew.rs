//! Chunks stored once more, side by side, wherever else the store has them.

use super::prepared::{ChunkOrigin, PreparedItem, Worked};
use super::writer::Writer;
use crate::chunker::PAGE;
use crate::rewritten;
use crate::{ChunkRef, Imported, Session, Store, chunk};
use block::{Result, offload};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::pin::pin;

/// Chunks that are read at the same time: few, as somebody may be waiting for other reads of the store.
const READS: usize = 2;

/// Stores chunks of the session's store in packs of their own, in this order, and a manifest that shows
/// them one behind the other. Nothing refers to it yet, as with [`from_device`](super::from_device).
///
/// None of the packs has the id of one that was rewritten: a collection would take it for that one, of
/// which all is elsewhere, and remove it. Readers of an image are led there, so that other writers need
/// not look out for this; readers of a boot copy are not.
///
/// They are compressed at `level` of zstd.
///
/// # Errors
/// Any error from reading the chunks and from an import; [`Invalid`](block::ErrorKind::Invalid) without any.
pub(crate) async fn anew(session: &Session, chunks: Vec<ChunkRef>, level: i32) -> Result<Imported> {
    let rewritten = rewritten::packs(session.store()).await?;
    let mut writer = Writer::new(session, &()).avoiding(rewritten);
    // All by value: over references the future would not be `Send` for the compiler.
    let store = session.store().clone();
    let reads = chunks.into_iter().map(move |at| encoded(store.clone(), at, level));
    let mut reads = pin!(stream::iter(reads).buffered(READS));
    let mut start = 0;
    while let Some((at, source)) = reads.try_next().await? {
        let done = PreparedItem::Chunk { start, len: at.len, id: at.id, source };
        start += u64::from(at.len) / PAGE as u64;
        writer
            .take(Worked { done: vec![done], windows: Vec::new(), scanned: at.len.into(), zero: 0 })
            .await?;
    }
    let size = start * PAGE as u64;
    crate::manifest_root::check_size(size)?;
    writer.finish(size).await
}

/// A chunk as it is stored again.
async fn encoded(store: Store, at: ChunkRef, level: i32) -> Result<(ChunkRef, ChunkOrigin)> {
    let plain = store.read_chunk(&at).await?;
    offload(move || {
        let (encoding, stored) = chunk::encode_at(store.settings(), level, &at.id, plain)?;
        Ok((at, ChunkOrigin::New(encoding, stored)))
    })
    .await
}

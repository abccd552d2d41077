//! A request that has to wait, done piece by piece: others have their turn between two.

use crate::server::session::checked::{CheckedRequest, RequestKind};
use block::{Device, Durability, Error, Extent, Result, Span};

/// Longer reads and writes are done in pieces of this length, between which others have their turn.
pub(super) const PIECE: u64 = 4 << 20;
/// Longer trims and zeroings are done in pieces of this length: a file system may lock the whole
/// file for each.
const EFFECT: u64 = 256 << 20;
/// Extents in one block status reply.
pub(super) const EXTENTS: usize = 1024;
/// A block status is told, and a read-ahead begun, of no more than so many bytes from the offset on. The
/// protocol lets both end early, and of more no client asks that has no extended headers.
const SURVEYED: u64 = 4 << 30;
/// In pieces of this length, between which others have their turn: a segment of an image's manifest.
const SURVEY: u64 = 256 << 20;

/// What a request that waited is answered with.
pub(super) enum Answer {
    Done,
    Data(Vec<u8>),
    Extents(Vec<Extent>),
}

/// Does a request by waiting. Gives the answer, and the payload buffer when it is free again.
pub(super) async fn run(
    device: &dyn Device,
    work: CheckedRequest,
    mut data: Vec<u8>,
    longest: u64,
) -> (Result<Answer>, Option<Vec<u8>>) {
    let CheckedRequest { span, durability, .. } = work;
    let result = match work.kind {
        RequestKind::Read => {
            for piece in span.pieces(longest.min(PIECE)) {
                if piece.offset() > span.offset() {
                    tokio::task::yield_now().await;
                }
                if let Err(e) = device.read(piece, &mut data[piece.index_in(span)]).await {
                    return (Err(e), Some(data));
                }
            }
            return (Ok(Answer::Data(data)), None);
        }
        RequestKind::Write => {
            // A write that waits for the disk, or for a store, is not torn further: every piece would.
            let waits = durability == Durability::Durable || device.is_written_through();
            let most = if waits { longest } else { longest.min(PIECE) };
            for piece in span.pieces(most) {
                if piece.offset() > span.offset() {
                    tokio::task::yield_now().await;
                }
                let part = &data[piece.index_in(span)];
                if let Err(e) = device.write(piece, part, durability).await {
                    return (Err(e), Some(data));
                }
            }
            return (Ok(Answer::Done), Some(data));
        }
        RequestKind::Flush => device.flush().await,
        RequestKind::Trim | RequestKind::Zero(_) => {
            for piece in span.pieces(EFFECT) {
                if piece.offset() > span.offset() {
                    tokio::task::yield_now().await;
                }
                let done = match work.kind {
                    RequestKind::Zero(mode) => device.zero(piece, mode, durability).await,
                    _ => device.discard(piece, durability).await,
                };
                if let Err(e) = done {
                    return (Err(e), None);
                }
            }
            Ok(())
        }
        RequestKind::Cache => read_ahead(device, span).await,
        RequestKind::Status { one } => {
            let limit = if one { 1 } else { EXTENTS };
            return (extents(device, span, limit).await.map(Answer::Extents), None);
        }
    };
    (result.map(|()| Answer::Done), None)
}

/// The pieces of a range that is surveyed.
fn surveyed(span: Span) -> impl Iterator<Item = Span> + Send {
    span.split_at(span.offset().saturating_add(SURVEYED)).0.pieces(SURVEY)
}

/// Says to the device that a range will be read soon.
async fn read_ahead(device: &dyn Device, span: Span) -> Result<()> {
    for piece in surveyed(span) {
        if piece.offset() > span.offset() {
            tokio::task::yield_now().await;
        }
        device.prefetch(piece).await?;
    }
    Ok(())
}

/// The extents of a range with neighbours of one kind joined, `limit` at most. They end early where the
/// device's answer does.
async fn extents(device: &dyn Device, span: Span, limit: usize) -> Result<Vec<Extent>> {
    let mut list: Vec<Extent> = Vec::new();
    for piece in surveyed(span) {
        if piece.offset() > span.offset() {
            tokio::task::yield_now().await;
        }
        // At least one: it may join the last.
        for extent in device.extents(piece, (limit - list.len()).max(1)).await? {
            block::extent::push(&mut list, extent.span, extent.kind);
        }
        let end = list.last().map_or(span.offset(), |last| last.span.end());
        if end < piece.end() || list.len() > limit {
            break;
        }
    }
    list.truncate(limit);
    if list.is_empty() {
        return Err(Error::internal(format!("no extent at offset {}", span.offset())));
    }
    Ok(list)
}

//! Objects as somebody might make them who keeps to no rule but the formats.

use crate::chunker::PAGE;
use crate::collection::Pin;
use crate::object;
use crate::object_kind::ObjectKind;
use crate::segment::{self, Placed, Segment};
use crate::servers::Announcement;
use crate::{ChunkRef, SegmentId, ServerId, Settings, WriterId};
use block::{Error, Result};
use bytes::Bytes;

/// A segment that names these chunks, one behind the other, and its key.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when there are too many.
pub fn segment_object(settings: &Settings, chunks: &[ChunkRef]) -> Result<(String, Bytes)> {
    let mut start = 0;
    let place = |at: &ChunkRef| {
        let blocks = at.len / PAGE as u32;
        start += blocks;
        Placed { start: start - blocks, blocks, skip: 0, at: *at }
    };
    let body = Segment::encode(&chunks.iter().map(place).collect::<Vec<_>>(), 0);
    let id = SegmentId(object::id_of(settings, ObjectKind::Segment, &body));
    let key = segment::key(&id);
    Ok((key.clone(), object::encode(settings, ObjectKind::Segment, &key, &body)?))
}

/// The pin `id` of a session that holds nothing, and its key.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal) when it cannot be written.
pub fn pin_object(
    settings: &Settings,
    id: WriterId,
    (sequence, age): (u64, u64),
    what: &str,
) -> Result<(String, Bytes)> {
    let pin = Pin { sequence, age, what: what.to_owned(), holds: Vec::new() };
    let body = serde_json::to_vec(&pin)
        .map_err(|e| Error::internal("a pin cannot be written").with_source(e))?;
    let key = ObjectKind::Pin.key(&id);
    Ok((key.clone(), object::encode(settings, ObjectKind::Pin, &key, &body)?))
}

/// The announcement of a server on a host, for a minute, and its key.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal) when it cannot be written.
pub fn server_object(
    settings: &Settings,
    server: &ServerId,
    host: &str,
) -> Result<(String, Bytes)> {
    let said = Announcement { server: *server, host: host.to_owned(), seconds: 60 };
    let body = serde_json::to_vec(&said)
        .map_err(|e| Error::internal("a server's lease cannot be written").with_source(e))?;
    let key = ObjectKind::Server.key(server);
    Ok((key.clone(), object::encode(settings, ObjectKind::Server, &key, &body)?))
}

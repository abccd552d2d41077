//! What a server says of its caches, and an export of its size.

use crate::remote;
use block::{Error, Result};
use engine::Home;
use nbd::Uri;
use server::client::ControlClient;

/// Look-ups in a server's cache so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookups {
    pub(super) pid: u32,
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// Parts of the store that the piece cache had, and had not; none where the server has none.
    pub(super) pieces: Option<(u64, u64)>,
    /// Bytes of those that it had not.
    pub(super) piece_bytes: u64,
}

impl Lookups {
    /// The share of the parts of the store, asked for since `before`, that the piece cache had.
    pub(super) fn share_of_pieces(&self, before: &Self) -> f64 {
        let (Some(now), Some(then)) = (self.pieces, before.pieces) else { return 0.0 };
        let kept = now.0.saturating_sub(then.0) as f64;
        let all = kept + now.1.saturating_sub(then.1) as f64;
        if all > 0.0 { kept / all } else { 0.0 }
    }
}

/// The look-ups of the server of this home; `None` when none runs.
pub(super) fn lookups(home: &Home) -> Result<Option<Lookups>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("cannot start the runtime", e))?;
    runtime.block_on(async {
        let Some(client) = ControlClient::connect(home).await? else { return Ok(None) };
        let status = client.status().await?;
        let (hits, misses) = (status.cache.hits, status.cache.misses);
        let pieces = status.pieces.map(|pieces| (pieces.hits, pieces.misses));
        let piece_bytes = status.pieces.map_or(0, |pieces| pieces.miss_bytes);
        Ok(Some(Lookups { pid: status.pid, hits, misses, pieces, piece_bytes }))
    })
}

/// The bytes of an export.
///
/// # Errors
/// Any error from the connection.
pub(super) fn export_size(target: &Uri) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("cannot start the runtime", e))?;
    let connect = remote::connect(target);
    runtime.block_on(async {
        let remote = connect.await?;
        let size = block::Device::size(&remote);
        remote.close().await;
        Ok(size)
    })
}

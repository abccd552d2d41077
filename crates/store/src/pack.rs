//! Packs.

use crate::PackId;
use object_store::path::Path;

/// The longest pack that is read: 32 MiB.
pub(crate) const MAX_LEN: u64 = 32 << 20;

/// The key of a pack.
pub(crate) fn path(id: &PackId) -> Path {
    Path::from(format!("packs/{id}"))
}

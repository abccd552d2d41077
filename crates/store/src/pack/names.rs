//! What packs are called.

use crate::PackId;
use crate::wire::damaged;
use block::Result;
use object_store::path::Path;

/// The prefix of the keys of packs.
pub(crate) const PREFIX: &str = "packs";

/// The id of the pack that a listing showed.
pub(crate) fn id_of_key(key: &str) -> Result<PackId> {
    key.strip_prefix(PREFIX)
        .and_then(|name| name.strip_prefix('/'))
        .and_then(|name| name.parse().ok())
        .ok_or_else(|| damaged(key, "its name is not a pack's"))
}

/// The key of a pack.
pub(crate) fn path(id: &PackId) -> Path {
    Path::from(format!("{PREFIX}/{id}"))
}

//! What sessions and collections of garbage know of each other.
//!
//! | module | concept |
//! |---|---|
//! | `lists` | lists of garbage, written and read |
//! | `pin` | sessions that write |
//! | `state` | how far collection is |

pub(crate) mod lists;
pub(crate) mod pin;
mod state;

pub(crate) use pin::{MAX_HELD, Pin};
pub(crate) use state::{CollectionState, Contents, List};

use object_store::ObjectMeta;

/// When an object was written, in Unix seconds of the store's clock.
pub(crate) fn seconds(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp()).unwrap_or(0)
}

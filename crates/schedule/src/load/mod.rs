//! Where requests come from.
//!
//! | module | load |
//! |---|---|
//! | [`layout`] | files on a disk, as a file system that has aged lays them out |
//! | [`surge`] | closed: processes that read files without the page cache (O_DIRECT) |
//! | [`buffered`] | closed: the same through a page cache with read-ahead |
//! | [`page_cache`] | what is in memory |
//! | [`random`](mod@random) | closed or open: accesses of one size, uniform or sequential |
//! | [`replay`] | open: a trace |

pub mod buffered;
pub mod layout;
pub mod page_cache;
pub mod random;
pub mod replay;
pub mod surge;
mod wakes;

use crate::{DiskRequest, Nanos};
use block::Result;
use std::fmt::Debug;

/// Where requests come from.
pub trait Load: Debug + Send {
    /// When the next request arrives, as far as is known; `None`: not before one is done, or never.
    fn next(&self) -> Option<Nanos>;

    /// Gives out what arrives at that moment. May be nothing.
    ///
    /// # Errors
    /// Any error from what it reads.
    fn arrive(&mut self, now: Nanos, requests: &mut Vec<DiskRequest>) -> Result<()>;

    /// A request is done.
    fn done(&mut self, now: Nanos, request: &DiskRequest);
}

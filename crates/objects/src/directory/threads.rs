//! The threads of a directory.

use super::NAME;
use block::offload;
use object_store::{Error, Result};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Threads at a time: more than a disk has use for, and few of those that the runtime has for all that blocks.
pub(crate) const THREADS: usize = 96;

/// Turns of a directory's work, each kept until its work ends, whoever waits for that: on a share that hangs,
/// attempts that were given up are still there, and would otherwise have every thread of the runtime in the end.
/// The flush of a disk on this machine needs one, too.
#[derive(Debug, Clone)]
pub(super) struct Threads(Arc<Semaphore>);

impl Default for Threads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(THREADS)))
    }
}

impl Threads {
    /// Does `work` away from the threads that serve requests. Without a turn it waits, and takes no thread so long:
    /// whoever has patience for a share notices that it does not answer.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Nobody closes them.
        let closed =
            |e: tokio::sync::AcquireError| Error::Generic { store: NAME, source: e.into() };
        let turn = Arc::clone(&self.0).acquire_owned().await.map_err(closed)?;
        let done = offload(move || {
            let _turn = turn;
            Ok(work())
        });
        done.await.map_err(|e| Error::Generic { store: NAME, source: e.into() })?
    }
}

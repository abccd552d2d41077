//! The runtime that commands run on.

use block::{Error, Result};

/// Tasks that a busy thread polls until it looks what has become ready. A connection with 16 requests in
/// flight takes some 30 us each time; one with little to do must not wait for a round of all of them
/// until it is even noticed.
const EVENT_INTERVAL: u32 = 3;

/// Runs the program's one runtime. What still blocks on a terminal or a pipe a second after the end
/// is left. Threads that end are waited for: glibc may read the memory of a thread that ends while it
/// is detached.
pub(crate) fn block_on<F: Future>(work: F) -> Result<F::Output> {
    // While there is one thread.
    block::mapped::handle_missing_pages();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build()
        .map_err(|e| Error::io("cannot start the runtime", e))?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(result)
}

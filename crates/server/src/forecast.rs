//! Keeps the forecast of the cache up to date.

use super::signals::Switch;
use cache::Cache;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// How often the forecast is made anew.
const TICK: Duration = Duration::from_secs(1);

/// Has the cache follow what is accessed, until `stop`.
pub(crate) async fn follow(cache: Arc<Cache>, stop: Switch) {
    // Nothing was accessed yet, and clients wait for the server to start.
    let mut tick = interval_at(Instant::now() + TICK, TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = std::pin::pin!(stop.wait());
    loop {
        tokio::select! {
            () = &mut stopped => return,
            _ = tick.tick() => {
                let cache = Arc::clone(&cache);
                let followed = block::offload(move || {
                    cache.follow();
                    Ok(())
                });
                if let Err(error) = followed.await {
                    tracing::error!(%error, "the cache is no longer followed");
                    return;
                }
            }
        }
    }
}

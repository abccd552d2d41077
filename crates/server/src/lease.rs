//! The server's lease: the others on the store learn that it is at work, and it learns which of its
//! disks they took.

use super::lease_questions;
use block::{Error, ErrorKind, Result};
use engine::Engine;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// How long a store that may be away is waited for.
const MOMENT: Duration = Duration::from_secs(5);

/// A lease that is kept up until [`end`](Self::end).
pub(crate) struct KeptLease {
    engine: Arc<Engine>,
    host: String,
    renewing: JoinSet<()>,
}

impl KeptLease {
    /// Starts to renew the lease, three times in its `time`. A store that cannot be written to, such
    /// as one behind a web server, has its images served without one.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the store or the directory of the disks cannot be read,
    /// [`Denied`](ErrorKind::Denied) when it may not be.
    pub(crate) async fn start(engine: &Arc<Engine>, time: Duration) -> Result<Self> {
        let host = host();
        let lost = match announce(engine, &host, time).await {
            Ok(()) => false,
            Err(e) if e.kind() == ErrorKind::Denied => {
                tracing::warn!(error = e.message(), "no lease: only images can be used");
                true
            }
            // What is served is what can be freed.
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                tracing::warn!(
                    error = e.message(),
                    "no lease: the store is full; another server may take the disks"
                );
                true
            }
            Err(e) => return Err(e),
        };
        Ok(Self::renewed(engine, host, time, lost))
    }

    /// The same of a server that follows another one, whose lease holds a while: whatever is in the way
    /// of renewing it now, its clients are there already.
    pub(crate) async fn go_on(engine: &Arc<Engine>, time: Duration) -> Self {
        match Self::start(engine, time).await {
            Ok(lease) => lease,
            Err(e) => {
                tracing::warn!(
                    error = e.message(),
                    "cannot renew the lease; another server may take the disks when it runs out"
                );
                Self::renewed(engine, host(), time, true)
            }
        }
    }

    /// The same of a server whose store may be away: that is waited for no longer than a moment.
    pub(crate) async fn without_waiting(engine: &Arc<Engine>, time: Duration) -> Self {
        let started = tokio::time::timeout(MOMENT, Self::start(engine, time)).await;
        match started.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer"))) {
            Ok(lease) => lease,
            Err(e) => {
                tracing::warn!(error = e.message(), "no lease yet; it is tried again");
                Self::renewed(engine, host(), time, true)
            }
        }
    }

    /// `lost`: there is none now.
    fn renewed(engine: &Arc<Engine>, host: String, time: Duration, lost: bool) -> Self {
        let mut renewing = JoinSet::new();
        let said = (Arc::clone(engine), host.clone());
        renewing.spawn(renew(time, lost, move || {
            let (engine, host) = said.clone();
            async move { announce(&engine, &host, time).await }
        }));
        // Beside it: a store that is slow to say who holds the disks is not in the way of a renewal.
        renewing.spawn(confirm(Arc::clone(engine), time));
        Self { engine: Arc::clone(engine), host, renewing }
    }

    /// Renews it no more: a successor does.
    pub(crate) async fn leave(mut self) {
        self.renewing.shutdown().await;
    }

    /// Says that the server is not at work any more: its disks may be taken at once. A store that is away is not
    /// waited for longer than a moment. Where another process serves a disk of this home (`serve --run`), the lease
    /// is that one's, too, and stays.
    pub(crate) async fn end(mut self) {
        self.renewing.shutdown().await;
        if self.engine.disks.is_any_open_elsewhere().await.unwrap_or(true) {
            return;
        }
        let farewell = announce(&self.engine, &self.host, Duration::ZERO);
        let said = tokio::time::timeout(MOMENT, farewell).await;
        let said = said.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer")));
        if let Err(e) = said {
            tracing::warn!(error = e.message(), "cannot end the lease; it runs out by itself");
        }
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

async fn announce(engine: &Engine, host: &str, time: Duration) -> Result<()> {
    let server = engine.disks.server().await?;
    engine.store.servers().announce(server, host, time).await
}

/// Renews the lease by `announce` for ever; `lost` when there is none now, which was said already. A request may hang
/// for minutes, for longer than the lease, while the next one would be answered at once: so the first one is given a
/// sixth of the `time`, and a second one, which follows at once, a third, as the store may just be slow.
async fn renew<F: Future<Output = Result<()>>>(
    time: Duration,
    mut lost: bool,
    announce: impl Fn() -> F,
) {
    let mut tick = tokio::time::interval(time / 3);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    loop {
        tick.tick().await;
        let mut said = tokio::time::timeout(time / 6, announce()).await;
        if said.is_err() {
            said = tokio::time::timeout(time / 3, announce()).await;
        }
        match said.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer"))) {
            Ok(()) => lost = false,
            Err(e) => {
                if !std::mem::replace(&mut lost, true) {
                    tracing::warn!(
                        error = e.message(),
                        "cannot renew the lease; another server may take the disks when it runs out"
                    );
                }
            }
        }
    }
}

/// Asks for ever, three times in `time`, which of the open disks were taken.
async fn confirm(engine: Arc<Engine>, time: Duration) {
    let ask = |name: &str| {
        let question = engine.open.question(name)?;
        let (engine, name) = (Arc::clone(&engine), name.to_owned());
        Some(async move { engine.open.judge(&name, question.ask().await).await })
    };
    lease_questions::ask(time / 3, || engine.open.names(), ask).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use tokio::time::Instant;

    const TIME: Duration = Duration::from_secs(60);

    /// The seconds at which the lease is renewed in five times its length, at a store that answers after these
    /// seconds, one after the other, and then at once.
    async fn renewals(answers: &[u64]) -> Vec<u64> {
        let (began, asked, renewed) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
        let announce = || {
            let number = asked.fetch_add(1, Relaxed);
            let takes = answers.get(number as usize).copied().unwrap_or(0);
            let renewed = &renewed;
            async move {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                renewed.fetch_add(1, Relaxed);
                Ok(())
            }
        };
        let mut seen = Vec::new();
        let look = async {
            while began.elapsed() < TIME * 5 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                if renewed.swap(0, Relaxed) > 0 {
                    seen.push(began.elapsed().as_secs());
                }
            }
        };
        tokio::select! {
            () = renew(TIME, false, announce) => unreachable!("it never returns"),
            () = look => seen,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_does_not_cost_the_lease() {
        let never = 1 << 20;
        for answers in [&[][..], &[never], &[0, never], &[never, 15], &[15, 15, 15, 15]] {
            let mut before = 0;
            let seen = renewals(answers).await;
            for at in &seen {
                assert!(at - before < TIME.as_secs(), "{answers:?}: renewed at {seen:?}");
                before = *at;
            }
            assert!(before > TIME.as_secs() * 4, "{answers:?}: renewed at {seen:?}");
        }
    }
}

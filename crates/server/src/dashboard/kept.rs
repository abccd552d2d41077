//! Answers that take a while to make, kept: made again when they may have changed, or are old, and once for all
//! who ask meanwhile.

use block::Result;
use bytes::Bytes;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How many times shorter a list is kept that did change: a script that makes disks one by one is not to keep a
/// processor busy here.
const WORTH_CHANGED: u32 = 10;
/// The most time before an answer is made again.
const MOST: Duration = Duration::from_secs(60);

/// How often an answer is made again of which nothing is known to have changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadingTerms {
    /// Not before so long.
    pub(super) least: Duration,
    /// So that at most one part in so many of the time goes to it.
    pub(super) parts: u32,
}

/// An answer as JSON, once it was made.
#[derive(Debug, Default)]
pub(super) struct KeptAnswer(Mutex<Option<MadeAnswer>>);

#[derive(Debug)]
struct MadeAnswer {
    body: Bytes,
    at: Instant,
    /// How long that took.
    took: Duration,
    /// [`RunningServer::changes`](crate::running::RunningServer::changes) then.
    changes: u64,
}

impl MadeAnswer {
    /// Whether it will do, with so many changes by now.
    fn will_do(&self, changes: u64, terms: ReadingTerms) -> bool {
        let age = self.at.elapsed();
        let worth = self.took.saturating_mul(terms.parts);
        match self.changes == changes {
            true => age < worth.clamp(terms.least, MOST),
            false => age < (worth / WORTH_CHANGED).min(MOST),
        }
    }
}

impl KeptAnswer {
    /// What is kept, if it will do; else what `read` gives, which is told how many changes there were, and tells how
    /// long it took.
    ///
    /// # Errors
    /// Any error from `read`; nothing is kept of them.
    pub(super) async fn get(
        &self,
        changes: u64,
        terms: ReadingTerms,
        read: impl AsyncFnOnce(u64) -> Result<(Bytes, Duration)>,
    ) -> Result<Bytes> {
        let mut kept = self.0.lock().await;
        if let Some(made) = kept.as_ref().filter(|made| made.will_do(changes, terms)) {
            return Ok(made.body.clone());
        }
        let (body, took) = read(changes).await?;
        *kept = Some(MadeAnswer { body: body.clone(), at: Instant::now(), took, changes });
        Ok(body)
    }
}

/// What `read` gives, and how long it took.
///
/// # Errors
/// Any error from `read`.
pub(super) async fn timed(read: impl Future<Output = Result<Bytes>>) -> Result<(Bytes, Duration)> {
    let began = Instant::now();
    let body = read.await?;
    Ok((body, began.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Error;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[tokio::test(start_paused = true)]
    async fn a_list_is_read_when_it_changed_or_is_old_and_once_for_all_who_ask() {
        let (kept, reads) = (KeptAnswer::default(), AtomicU32::new(0));
        let (took, parts) = (Duration::from_millis(100), 100);
        let terms = ReadingTerms { least: Duration::from_secs(2), parts };
        let ask = |changes| {
            let read = async |_| {
                timed(async {
                    tokio::time::sleep(took).await;
                    Ok(Bytes::from(reads.fetch_add(1, SeqCst).to_string()))
                })
                .await
            };
            kept.get(changes, terms, read)
        };
        let asked = futures::future::join_all((0..10).map(|_| ask(7))).await;
        assert!(asked.into_iter().all(|answer| answer.unwrap() == "0"));
        tokio::time::sleep(took * parts - Duration::from_millis(1)).await;
        assert_eq!(ask(7).await.unwrap(), "0");
        assert_eq!(ask(8).await.unwrap(), "1", "it changed long after it was read");
        assert_eq!(ask(9).await.unwrap(), "1", "it was read just now");
        tokio::time::sleep(took * parts / WORTH_CHANGED).await;
        assert_eq!(ask(9).await.unwrap(), "2");
        tokio::time::sleep(took * parts).await;
        assert_eq!(ask(9).await.unwrap(), "3");
        let failed = kept.get(10, terms, async |_| Err(Error::not_found("gone"))).await;
        assert_eq!(failed.unwrap(), "3", "read just now");
    }
}

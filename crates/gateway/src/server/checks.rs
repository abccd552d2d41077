//! Checking what clients bring, and packing what they read: that takes processor time, on a thread that cannot be
//! stopped. Who goes away meanwhile keeps what it uses until the check has ended, or it could begin as many as it likes.

use super::limits::{ClientUsage, RequestPermit};
use block::{Result, offload};
use std::num::NonZero;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The checks and packings of all clients: as many at the same time as there are processors.
pub(crate) struct ContentChecks(Arc<Semaphore>);

impl ContentChecks {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self(Arc::new(Semaphore::new(processors)))
    }

    /// Runs a check when it is its turn; gives what comes of it, and the request's turn again.
    ///
    /// # Errors
    /// That of the check; [`Unavailable`](block::ErrorKind::Unavailable) when others do not end.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        usage: &ClientUsage,
        turn: RequestPermit,
        check: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<(T, RequestPermit)> {
        let places = usage.checking(&self.0).await?;
        worked(places, turn, check).await
    }

    /// The same for packing something that is sent.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) async fn pack<T: Send + 'static>(
        &self,
        usage: &ClientUsage,
        turn: RequestPermit,
        pack: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<(T, RequestPermit)> {
        let places = usage.packing(&self.0).await?;
        worked(places, turn, pack).await
    }
}

async fn worked<T: Send + 'static>(
    places: [OwnedSemaphorePermit; 2],
    turn: RequestPermit,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<(T, RequestPermit)> {
    offload(move || {
        let done = work();
        drop(places);
        Ok((done?, turn))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::super::limits::GatewayLimits;
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn who_goes_away_from_a_check_has_no_other_one_before_it_has_ended() {
        let limits = GatewayLimits {
            requests: 2,
            bytes: 64 << 10,
            patience: Duration::from_millis(50),
            ..GatewayLimits::default()
        };
        let (checks, usage) = (ContentChecks::new(), ClientUsage::new(limits));
        let turn = async || {
            let mut turn = usage.turn().await?;
            usage.memory(&mut turn, 40 << 10).await.map(|()| turn)
        };
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (end, must_end) = mpsc::channel::<()>();
        {
            let check = move || {
                let _ = begun.send(());
                let _ = must_end.recv();
                Ok(())
            };
            let checking = checks.run(&usage, turn().await.unwrap(), check);
            tokio::select! {
                _ = checking => unreachable!("it has not ended"),
                _ = has_begun => {}
            }
        }
        assert!(turn().await.is_err(), "its bytes are in memory");
        let small = usage.turn().await.unwrap();
        assert!(checks.run(&usage, small, || Ok(())).await.is_err(), "one at a time");
        let other = usage.turn().await.unwrap();
        assert!(usage.turn().await.is_err(), "it is one of two requests");
        drop(end);
        while turn().await.is_err() {}
        drop(other);
        checks.run(&usage, turn().await.unwrap(), || Ok(())).await.unwrap();
    }
}

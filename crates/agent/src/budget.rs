//! A bandwidth budget that many share.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Bytes per second for whoever asks. An object goes as soon as those before it are paid for, so that
/// the mean never exceeds the rate by more than one object.
#[derive(Debug)]
pub struct ByteBudget {
    setting: watch::Sender<Setting>,
    /// When what was spent so far is paid for.
    paid: Mutex<Option<Instant>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setting {
    /// Bytes per second; 0 is no limit.
    rate: u64,
    paused: bool,
}

impl ByteBudget {
    /// A budget of `rate` bytes per second; 0 is no limit.
    pub fn new(rate: u64) -> Self {
        let setting = watch::Sender::new(Setting { rate, paused: false });
        Self { setting, paid: Mutex::new(None) }
    }

    /// Bytes per second; 0 is no limit.
    pub fn rate(&self) -> u64 {
        self.setting.borrow().rate
    }

    /// Changes the rate, also for those who wait.
    pub fn set_rate(&self, rate: u64) {
        *self.paid.lock() = None;
        self.setting.send_modify(|setting| setting.rate = rate);
    }

    /// Whether nobody gets anything.
    pub fn is_paused(&self) -> bool {
        self.setting.borrow().paused
    }

    /// Gives nobody anything until it is told otherwise.
    pub fn pause(&self, paused: bool) {
        self.setting.send_modify(|setting| setting.paused = paused);
    }

    /// Waits until so many bytes may be sent. Whoever goes away while waiting has spent nothing.
    pub async fn spend(&self, bytes: u64) {
        let mut changes = self.setting.subscribe();
        loop {
            let setting = *changes.borrow_and_update();
            let until = match setting.paused {
                true => None,
                false => match self.try_spend(bytes, setting.rate) {
                    Ok(()) => return,
                    Err(until) => Some(until),
                },
            };
            let waited = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = waited => {}
                // It is the budget's own, which is borrowed here.
                _ = changes.changed() => {}
            }
        }
    }

    /// Spends, or says when it may be tried again.
    fn try_spend(&self, bytes: u64, rate: u64) -> Result<(), Instant> {
        if rate == 0 {
            return Ok(());
        }
        let mut paid = self.paid.lock();
        let now = Instant::now();
        match *paid {
            Some(until) if until > now => Err(until),
            _ => {
                *paid = Some(now + Duration::from_secs_f64(bytes as f64 / rate as f64));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn many_who_spend_together_keep_to_the_rate() {
        let budget = Arc::new(ByteBudget::new(1000));
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let budget = Arc::clone(&budget);
            tasks.spawn(async move {
                for _ in 0..25 {
                    budget.spend(100).await;
                }
            });
        }
        while tasks.join_next().await.is_some() {}
        let took = begun.elapsed().as_secs_f64();
        assert!((9.8..10.5).contains(&took), "10,000 bytes took {took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_notices_another_rate_and_the_end_of_a_pause() {
        let budget = Arc::new(ByteBudget::new(1));
        budget.spend(1_000_000).await;
        let mut waiting = tokio::task::JoinSet::new();
        let waits = Arc::clone(&budget);
        waiting.spawn(async move { waits.spend(1).await });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(waiting.try_join_next().is_none());
        budget.pause(true);
        budget.set_rate(0);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(waiting.try_join_next().is_none());
        budget.pause(false);
        waiting.join_next().await.unwrap().unwrap();
    }
}

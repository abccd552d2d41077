//! Whether a guest waits for its disk: what is fetched of its memory behind it comes over the same link.

use crate::Monitor;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A guest leaves the link alone when its disk has answered no read slowly for so long: one may take that long.
const QUIET: Duration = Duration::from_secs(1);
/// How often QEMU is asked at the most.
const STEP: Duration = Duration::from_millis(100);
/// Reads that take longer than this on average did not come from a cache.
const SLOW: Duration = Duration::from_millis(10);

/// Whether the reads of a machine's disk come over the link, as far as that was looked at.
pub(crate) struct DiskUse {
    monitor: Arc<Monitor>,
    reads: DiskReads,
    slow: Instant,
    looked: Instant,
}

/// What disks have read since QEMU began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct DiskReads {
    answered: u64,
    nanoseconds: u64,
}

impl DiskUse {
    /// That of a machine whose guest may use it now.
    pub(crate) fn of(monitor: Arc<Monitor>) -> Self {
        let now = Instant::now();
        Self { monitor, reads: DiskReads::default(), slow: now, looked: now }
    }

    /// Waits until no read of the disk has been slow for a second. QEMU that does not tell has a guest without a disk.
    pub(crate) async fn until_quiet(&mut self) {
        loop {
            if self.looked.elapsed() >= STEP {
                let told = self.monitor.execute("query-blockstats", Value::Null).await;
                let reads = told.as_ref().map_or(self.reads, DiskReads::of);
                self.looked = Instant::now();
                if reads.were_slow_since(&self.reads) {
                    self.slow = self.looked;
                }
                self.reads = reads;
            }
            if self.slow.elapsed() >= QUIET {
                return;
            }
            sleep(STEP).await;
        }
    }
}

impl DiskReads {
    /// Those of QEMU's statistics.
    fn of(told: &Value) -> Self {
        let disks = told.as_array().map(Vec::as_slice).unwrap_or_default();
        let sum = |name: &str| {
            let counts = disks.iter().filter_map(|disk| disk["stats"][name].as_u64());
            counts.fold(0, u64::saturating_add)
        };
        Self { answered: sum("rd_operations"), nanoseconds: sum("rd_total_time_ns") }
    }

    fn were_slow_since(&self, before: &Self) -> bool {
        let answered = self.answered.saturating_sub(before.answered);
        let took = self.nanoseconds.saturating_sub(before.nanoseconds);
        took.checked_div(answered).is_some_and(|each| Duration::from_nanos(each) > SLOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_disk_whose_reads_come_from_a_cache_leaves_the_link_alone() {
        let told = |reads: u64, ms: u64| {
            let disk =
                json!({"stats": {"rd_operations": reads, "rd_total_time_ns": ms * 1_000_000}});
            DiskReads::of(&json!([disk, {"stats": {"rd_operations": 2}}, {"stats": {}}, 3]))
        };
        let before = told(5, 40);
        assert_eq!(before, DiskReads { answered: 7, nanoseconds: 40_000_000 });
        assert!(!told(5, 40).were_slow_since(&before), "nothing was read");
        assert!(!told(1005, 1040).were_slow_since(&before), "a millisecond each");
        assert!(told(15, 340).were_slow_since(&before), "30 ms each");
        assert_eq!(DiskReads::of(&json!({"class": "x"})), DiskReads::default());
    }
}

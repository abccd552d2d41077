//! What all front ends together may take of the process: its addresses, its mappings, its descriptors. Without a
//! bound one of them could take all that there are, and nobody would be served any more.

use block::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Memory that one front end may share, in bytes.
const MEMORY_OF_ONE: u64 = 8 << 40;
/// Memory that all together may share, in bytes: half of the addresses that a process has.
const MEMORY: u64 = 64 << 40;
/// Regions of it. Each takes a mapping, of which Linux gives a process 65,530, and a descriptor.
const REGIONS: u64 = 16_384;
/// Virtqueues. Each takes a thread while it is served.
const RINGS: u64 = 4096;
/// Descriptors that a virtqueue takes at most.
const RING_DESCRIPTORS: u64 = 7;

/// What there is for all front ends of a server.
#[derive(Debug)]
pub(crate) struct Allowances {
    memory: Arc<Allowance>,
    regions: Arc<Allowance>,
    rings: Arc<Allowance>,
    /// What regions and virtqueues take together.
    descriptors: Arc<Allowance>,
}

impl Allowances {
    /// The allowances of a process that has so many descriptors for regions and virtqueues.
    pub(crate) fn with_descriptors(most: u64) -> Self {
        let of = |most| Arc::new(Allowance { most, taken: AtomicU64::new(0) });
        Self { memory: of(MEMORY), regions: of(REGIONS), rings: of(RINGS), descriptors: of(most) }
    }

    /// Takes what so much memory of a front end needs, in so many regions.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for more than one front end may share,
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the others have left less.
    pub(crate) fn memory(&self, bytes: u64, regions: usize) -> Result<[Allotment; 3]> {
        if bytes > MEMORY_OF_ONE {
            return Err(Error::invalid(format!("guest memory of {bytes} bytes is too much")));
        }
        Ok([
            self.memory.take(bytes, "bytes of guest memory")?,
            self.regions.take(regions as u64, "regions of guest memory")?,
            self.descriptors(regions as u64)?,
        ])
    }

    /// Takes what a virtqueue needs.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when there are too many already.
    pub(crate) fn ring(&self) -> Result<[Allotment; 2]> {
        Ok([self.rings.take(1, "virtqueues")?, self.descriptors(RING_DESCRIPTORS)?])
    }

    fn descriptors(&self, count: u64) -> Result<Allotment> {
        let what = "descriptors for guest memory and virtqueues; the system allows too few open files \
                    (RLIMIT_NOFILE; LimitNOFILE= in a systemd unit)";
        self.descriptors.take(count, what)
    }
}

#[derive(Debug)]
struct Allowance {
    most: u64,
    taken: AtomicU64,
}

impl Allowance {
    fn take(self: &Arc<Self>, amount: u64, what: &str) -> Result<Allotment> {
        let fits = |taken: u64| taken.checked_add(amount).filter(|sum| *sum <= self.most);
        match self.taken.fetch_update(Relaxed, Relaxed, fits) {
            Ok(_) => Ok(Allotment { of: Arc::clone(self), amount }),
            Err(_) => Err(Error::unavailable(format!(
                "all front ends together may have {} {what}",
                self.most
            ))),
        }
    }
}

/// A part of an allowance. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Allotment {
    of: Arc<Allowance>,
    amount: u64,
}

impl Drop for Allotment {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.amount, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_more_than_there_is_and_what_is_given_back_can_be_taken_again() {
        let all = Allowances::with_descriptors(u64::MAX);
        assert!(all.memory(MEMORY_OF_ONE + 1, 1).is_err() && all.memory(u64::MAX, 1).is_err());
        let front_ends = MEMORY / MEMORY_OF_ONE;
        let mut taken: Vec<_> =
            (0..front_ends).map(|_| all.memory(MEMORY_OF_ONE, 1).unwrap()).collect();
        assert!(all.memory(1, 1).is_err());
        taken.pop();
        assert!(all.memory(1, REGIONS as usize).is_err(), "too many regions");
        assert!(all.memory(MEMORY_OF_ONE, 1).is_ok());
        let rings: Vec<_> = (0..RINGS).map(|_| all.ring().unwrap()).collect();
        assert!(all.ring().is_err());
        drop(rings);
        assert!(all.ring().is_ok());
    }

    #[test]
    fn where_there_are_few_descriptors_the_ring_or_the_region_beyond_them_is_refused() {
        let all = Allowances::with_descriptors(2 * RING_DESCRIPTORS + 3);
        let regions = all.memory(1, 3).unwrap();
        let rings = [all.ring().unwrap(), all.ring().unwrap()];
        assert!(all.ring().is_err() && all.memory(1, 1).is_err());
        drop(regions);
        assert!(all.memory(1, 4).is_err());
        assert!(all.memory(1, 3).is_ok(), "what was refused is given back");
        drop(rings);
        assert!(all.memory(1, 4).is_ok() && all.ring().is_ok());
    }
}

//! What stands between a borrowed disk and the first byte that it writes to an owner's: nothing is
//! written unless the owner's file systems were as they were a moment ago.
//!
//! A look at them holds for [a second](Watch::HOLDS) from when it began; the next write then waits for another one.
//! How old a look is, the clock says that goes on while the machine is suspended: a process that was stopped
//! meanwhile does not take an old look for a new one. Once they were found used by somebody else, nothing
//! is written or read any more. What could not be read allows no writes until a later look reads it.

use crate::around::Surroundings;
use crate::clock::BootClock;
use crate::direct::Direct;
use crate::loan::{Claim, Loan};
use block::{Error, ErrorKind, Result, offload};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nobody has looked for a while.
const STALE: u64 = 0;
/// Somebody else uses a lent file system.
const BROKEN: u64 = u64::MAX;

/// The owner's file systems that lend, and how they were when last looked at.
#[derive(Debug)]
pub struct Watch {
    /// Until when the last look holds, in nanoseconds of the clock; [`STALE`] or [`BROKEN`] when it does not.
    until: AtomicU64,
    clock: BootClock,
    /// Held while somebody looks. What was found when it was not as it should be.
    found: Mutex<Option<String>>,
    lenders: Vec<Lender>,
}

/// A file system, and the disk that it is on, which need not be held.
#[derive(Debug)]
struct Lender {
    path: PathBuf,
    disk: Direct,
    around: Arc<Surroundings>,
    claim: Claim,
}

impl Lender {
    fn look(&self) -> Result<()> {
        self.around.check()?;
        self.disk.forget();
        self.claim.check(&self.disk).map_err(|e| e.context(self.path.display()))
    }
}

impl Watch {
    /// How long a look at the file systems that lend allows writes to them.
    pub const HOLDS: Duration = Duration::from_secs(1);

    /// A watch over what makes these loans. Nobody has looked yet.
    ///
    /// # Errors
    /// Any error from opening the disks another time.
    pub fn new(loans: &[Loan]) -> Result<Arc<Self>> {
        Self::with_clock(loans, BootClock::since_boot())
    }

    pub(crate) fn with_clock(loans: &[Loan], clock: BootClock) -> Result<Arc<Self>> {
        let lender = |loan: &Loan| {
            let path = loan.disk.path().to_owned();
            let disk = Direct::open(loan.disk.file()).map_err(|e| Error::io(path.display(), e))?;
            Ok(Lender {
                path,
                disk,
                around: Arc::clone(loan.disk.around()),
                claim: loan.claim.clone(),
            })
        };
        let lenders = loans.iter().map(lender).collect::<Result<_>>()?;
        Ok(Arc::new(Self { until: AtomicU64::new(STALE), clock, found: Mutex::default(), lenders }))
    }

    /// Whether a look still holds, so that a write need not wait.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        match self.until.load(Ordering::Acquire) {
            STALE | BROKEN => false,
            until => self.clock.now() < until,
        }
    }

    /// Lets the last look expire before its time.
    pub fn expire(&self) {
        let stale = |until| (until != BROKEN).then_some(STALE);
        let _ = self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, stale);
    }

    /// Whether somebody else was found to use a lent file system.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) saying what was found.
    #[inline]
    pub fn intact(&self) -> Result<()> {
        match self.until.load(Ordering::Acquire) {
            BROKEN => Err(self.why()),
            _ => Ok(()),
        }
    }

    /// Looks, unless the last look still holds. Waits for the disks.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when a file system is not as it was when its free
    /// blocks were found; from then on always. [`Unavailable`](block::ErrorKind::Unavailable) when one cannot be
    /// read now.
    pub fn look(&self) -> Result<()> {
        let mut found = self.found.lock();
        if let Some(why) = &*found {
            return Err(Error::conflict(why.clone()));
        }
        if self.is_fresh() {
            return Ok(());
        }
        // Whoever is stopped while it looks looks once more. Of a disk that takes so long each time, a look
        // holds from its end: nothing could be written otherwise.
        let began = self.look_now(&mut found)?;
        let holds = |since: u64| since.saturating_add(Self::HOLDS.as_nanos() as u64);
        let until = match holds(began) {
            until if self.clock.now() < until => until,
            _ => match holds(self.look_now(&mut found)?) {
                until if self.clock.now() < until => until,
                _ => holds(self.clock.now()),
            },
        };
        self.until.store(until, Ordering::Release);
        Ok(())
    }

    /// Looks, and says when that began.
    fn look_now(&self, found: &mut Option<String>) -> Result<u64> {
        let began = self.clock.now();
        let mut unread = None;
        for lender in &self.lenders {
            match lender.look() {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Conflict => {
                    *found = Some(e.message().to_owned());
                    self.until.store(BROKEN, Ordering::Release);
                    return Err(e);
                }
                // Somebody may have been at another one.
                Err(e) => unread = Some(e),
            }
        }
        unread.map_or(Ok(began), Err)
    }

    /// [Looks](Self::look) where that may wait.
    ///
    /// # Errors
    /// Any error from [`look`](Self::look).
    pub(crate) async fn pass(self: &Arc<Self>) -> Result<()> {
        // By the time that this task goes on, the look may be too old again.
        while !self.is_fresh() {
            let watch = Arc::clone(self);
            offload(move || watch.look()).await?;
        }
        Ok(())
    }

    fn why(&self) -> Error {
        let found = self.found.lock();
        Error::conflict(found.as_deref().unwrap_or("a lent file system is in use").to_owned())
    }
}

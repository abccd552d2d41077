//! What stands between a borrowed disk and the first byte that it writes to an owner's: nothing is
//! written unless the owner's file systems were as they were a moment ago.
//!
//! A look at them holds until it [expires](Watch::expire), which the caller has happen about once a
//! second; the next write then waits for another look. Once they were found used by somebody else,
//! nothing is written or read any more.

use crate::around::Surroundings;
use crate::direct::Direct;
use crate::loan::{Claim, Loan};
use block::{Error, Result, offload};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Nobody has looked for a while.
const STALE: u8 = 0;
/// All was as it should be.
const FRESH: u8 = 1;
/// Somebody else uses a lent file system.
const BROKEN: u8 = 2;

/// The owner's file systems that lend, and how they were when last looked at.
#[derive(Debug)]
pub struct Watch {
    state: AtomicU8,
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
        self.around.check().map_err(|refusal| Error::conflict(refusal.sentence))?;
        self.disk.forget();
        self.claim.check(&self.disk).map_err(|e| e.context(self.path.display()))
    }
}

impl Watch {
    /// A watch over what makes these loans. Nobody has looked yet.
    ///
    /// # Errors
    /// Any error from opening the disks another time.
    pub fn new(loans: &[Loan]) -> Result<Arc<Self>> {
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
        Ok(Arc::new(Self { state: AtomicU8::new(STALE), found: Mutex::default(), lenders }))
    }

    /// Whether a look still holds, so that a write need not wait.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.state.load(Ordering::Acquire) == FRESH
    }

    /// Lets the last look expire.
    pub fn expire(&self) {
        let _ = self.state.compare_exchange(FRESH, STALE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether somebody else was found to use a lent file system.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) saying what was found.
    #[inline]
    pub fn intact(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            BROKEN => Err(self.why()),
            _ => Ok(()),
        }
    }

    /// Looks, unless the last look still holds. Waits for the disks.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when a file system is not as it was when its free
    /// blocks were found; from then on always.
    pub fn look(&self) -> Result<()> {
        let mut found = self.found.lock();
        if let Some(why) = &*found {
            return Err(Error::conflict(why.clone()));
        }
        if self.is_fresh() {
            return Ok(());
        }
        match self.lenders.iter().try_for_each(Lender::look) {
            Ok(()) => {
                self.state.store(FRESH, Ordering::Release);
                Ok(())
            }
            Err(e) => {
                *found = Some(e.message().to_owned());
                self.state.store(BROKEN, Ordering::Release);
                Err(e)
            }
        }
    }

    /// [Looks](Self::look) where that may wait.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when a file system is not as it was when its free
    /// blocks were found; from then on always.
    pub(crate) async fn pass(self: &Arc<Self>) -> Result<()> {
        if self.is_fresh() {
            return Ok(());
        }
        let watch = Arc::clone(self);
        offload(move || watch.look()).await
    }

    fn why(&self) -> Error {
        let found = self.found.lock();
        Error::conflict(found.as_deref().unwrap_or("a lent file system is in use").to_owned())
    }
}

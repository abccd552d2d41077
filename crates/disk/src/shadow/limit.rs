//! The limit of what the private blocks of a disk may take.

use super::Inner;
use crate::stack::Stack;
use block::{BLOCK, Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// How many bytes of blocks may be private, and what was refused.
#[derive(Default)]
pub(super) struct Limit {
    /// Bytes; 0 for any number.
    most: OnceLock<Arc<AtomicU64>>,
    /// Blocks that the last refusal was about; 0 when there has been room for them since.
    refused: AtomicU64,
    /// Held while room is reserved for blocks that are not private yet.
    reserving: Mutex<()>,
}

impl Limit {
    /// From now on there may be `most` bytes, which may change at any time.
    pub(super) fn set(&self, most: Arc<AtomicU64>) {
        let _ = self.most.set(most);
    }

    fn most(&self) -> u64 {
        self.most.get().map_or(0, |most| most.load(Ordering::Relaxed))
    }

    /// Waits until nobody else reserves room. Not for those who must not wait for the disk.
    pub(super) fn reserving(&self) -> MutexGuard<'_, ()> {
        self.reserving.lock()
    }

    /// Refuses to make so many more blocks private beyond the limit.
    #[inline]
    pub(super) fn check(&self, stack: &Stack, fresh: u64) -> Result<()> {
        match self.most() {
            0 => Ok(()),
            most => self.check_against(most, stack, fresh),
        }
    }

    #[cold]
    fn check_against(&self, most: u64, stack: &Stack, fresh: u64) -> Result<()> {
        if fresh == 0 || fits(stack.private() + fresh, most) {
            return Ok(());
        }
        self.refused.store(fresh, Ordering::Relaxed);
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the private blocks of a disk may take {most} bytes (limits.disk_space): raise it, \
                 commit the disk, remove its snapshots or reset it"
            ),
        ))
    }

    /// Whether as many blocks as were refused last still may not become private. Once they may, that
    /// refusal counts no more: from then on a single block is asked about.
    pub(super) fn is_reached(&self, stack: &Stack) -> bool {
        let refused = self.refused.load(Ordering::Relaxed);
        let most = self.most();
        if most > 0 && !fits(stack.private() + refused.max(1), most) {
            return true;
        }
        // Unless there was another one meanwhile.
        let _ = self.refused.compare_exchange(refused, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }
}

impl Inner {
    /// Refuses blocks that are to become private when there is no room for them: beyond the limit of
    /// the disk, or where it is kept from guests.
    #[inline]
    pub(super) fn admit(&self, stack: &Stack, blocks: Range<u64>) -> Result<()> {
        let fresh = stack.top().map.fresh(blocks);
        if fresh == 0 {
            return Ok(());
        }
        self.limit.check(stack, fresh)?;
        self.space.get().map_or(Ok(()), |space| space.take(fresh * BLOCK))
    }

    /// Refuses blocks that the limit or the file system has no room for. Nothing is counted in yet: it
    /// is for what is then done piece by piece. Waits for the file system.
    pub(super) fn check_room(&self, stack: &Stack, blocks: Range<u64>) -> Result<()> {
        let fresh = stack.top().map.fresh(blocks);
        self.limit.check(stack, fresh)?;
        let space = self.space.get().filter(|_| fresh > 0);
        space.map_or(Ok(()), |space| space.check(fresh * BLOCK).map(drop))
    }
}

fn fits(blocks: u64, most: u64) -> bool {
    blocks.saturating_mul(BLOCK) <= most
}

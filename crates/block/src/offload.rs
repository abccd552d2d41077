//! Work that blocks, away from the threads that serve requests: the one door to the runtime's
//! blocking threads.

use crate::{Error, Result};
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Reads that wait at a time: half of the threads that the runtime has for it, and more than any
/// storage serves at once.
const MOST_READS: usize = 256;

static READS: Semaphore = Semaphore::const_new(MOST_READS);

/// Threads that zero blocks, reserve their room or give it back at a time. For one file it is done one by one, so
/// that more of them would wait for each other.
const MOST_ZEROING: usize = 64;

static ZEROING: Semaphore = Semaphore::const_new(MOST_ZEROING);

thread_local! {
    /// How many [`Inline`] live on this thread.
    static INLINE: Cell<u32> = const { Cell::new(0) };
}

/// Runs work that blocks (a disk read, a compression) away from the threads that serve requests.
///
/// # Errors
/// What `work` returns; [`Internal`](crate::ErrorKind::Internal) when it panicked, and
/// [`Unavailable`](crate::ErrorKind::Unavailable) when it was not begun before the process ended.
#[allow(clippy::disallowed_methods)] // the one door
pub async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if is_inline() {
        return catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(Error::internal("an operation that was to run in the background panicked"))
        });
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) if e.is_cancelled() => Err(Error::unavailable("the process is ending")),
        Err(panic) => Err(Error::internal("a background operation panicked").with_source(panic)),
    }
}

/// Has work that blocks done, and does not wait for it: on the spot where [`Inline`] asks for that, else on such a
/// thread, also when the caller is gone. It is not begun when the process ends before.
#[allow(clippy::disallowed_methods)] // the one door
pub fn offload_behind(work: impl FnOnce() + Send + 'static) {
    if is_inline() {
        // As in the background, where a panic ends nothing else.
        drop(catch_unwind(AssertUnwindSafe(work)));
    } else {
        drop(tokio::task::spawn_blocking(work));
    }
}

/// Does what [`offload`] does, for a read of which there may be thousands at a time: they leave threads to what
/// there is less of, such as flushing and opening a disk.
pub(crate) async fn offload_read<T: Send + 'static>(
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let turn = READS.acquire().await;
    offload(move || {
        // Also of a caller that has gone away meanwhile.
        let _turn = turn;
        read()
    })
    .await
}

/// A turn at zeroing blocks, at reserving their room or giving it back, on a thread that may wait. Clients may ask for
/// that thousands of times at once: turns leave threads to what there is less of, as those of reads do.
#[derive(Debug)]
#[must_use]
pub struct ZeroingTurn {
    _permit: Option<SemaphorePermit<'static>>,
}

impl ZeroingTurn {
    /// Waits for one, the first come first. It goes with the work, to last as long: the caller may go away meanwhile.
    pub async fn take() -> Self {
        // On the spot no thread is taken, and what other threads have is not to change the course of a simulation.
        let permit = if is_inline() { None } else { ZEROING.acquire().await.ok() };
        Self { _permit: permit }
    }
}

/// Whether work that blocks is done on the spot on this thread.
pub(crate) fn is_inline() -> bool {
    INLINE.get() > 0
}

/// While one lives, [`offload`] on this thread does its work on the spot. A simulation that runs
/// all of its tasks on one thread takes the same course each time, as no other thread takes part.
#[derive(Debug)]
pub struct Inline(PhantomData<*const ()>);

impl Inline {
    /// From now on, until it is dropped.
    #[must_use]
    pub fn on_this_thread() -> Self {
        INLINE.set(INLINE.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        INLINE.set(INLINE.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use std::sync::{Arc, Mutex};

    async fn thread() -> std::thread::ThreadId {
        offload(|| Ok(std::thread::current().id())).await.unwrap()
    }

    #[tokio::test]
    async fn work_stays_on_the_thread_while_that_is_asked_for() {
        let here = std::thread::current().id();
        assert_ne!(thread().await, here);
        let outer = Inline::on_this_thread();
        let inner = Inline::on_this_thread();
        assert_eq!(thread().await, here);
        drop(inner);
        assert_eq!(thread().await, here);
        drop(outer);
        assert_ne!(thread().await, here);
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_done_on_the_spot_only_while_that_is_asked_for() {
        let here = std::thread::current().id();
        let (done, seen) = std::sync::mpsc::channel();
        let note = |done: &std::sync::mpsc::Sender<_>| {
            let done = done.clone();
            move || done.send(std::thread::current().id()).unwrap()
        };
        offload_behind(note(&done));
        assert_ne!(seen.recv().unwrap(), here);
        let _inline = Inline::on_this_thread();
        offload_behind(note(&done));
        assert_eq!(seen.try_recv().unwrap(), here);
        offload_behind(|| panic!("on purpose"));
    }

    #[tokio::test]
    async fn thousands_of_reads_keep_nothing_else_waiting() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let mut reads = tokio::task::JoinSet::new();
        for _ in 0..2000 {
            let held = Arc::clone(&held);
            // Each waits until all were let go.
            reads.spawn(offload_read(move || Ok(held.lock().unwrap().recv().is_err())));
        }
        tokio::task::yield_now().await;
        assert_ne!(thread().await, std::thread::current().id());
        drop(release);
        while let Some(read) = reads.join_next().await {
            assert!(read.unwrap().unwrap());
        }
    }

    #[tokio::test]
    async fn zeroing_has_a_bounded_number_of_turns_and_needs_none_on_the_spot() {
        use futures::FutureExt;
        let mut taken = Vec::new();
        for _ in 0..MOST_ZEROING {
            taken.push(ZeroingTurn::take().await);
        }
        assert!(ZeroingTurn::take().now_or_never().is_none());
        {
            let _inline = Inline::on_this_thread();
            assert!(ZeroingTurn::take().now_or_never().is_some());
        }
        taken.pop();
        assert!(ZeroingTurn::take().now_or_never().is_some());
    }

    #[test]
    fn work_that_comes_when_the_process_ends_did_not_panic() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        let ended = futures::FutureExt::now_or_never(offload(|| Ok(()))).unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_in_both_ways() {
        let fall = || async { offload::<()>(|| panic!("on purpose")).await.unwrap_err().kind() };
        assert_eq!(fall().await, ErrorKind::Internal);
        let _inline = Inline::on_this_thread();
        assert_eq!(fall().await, ErrorKind::Internal);
    }
}

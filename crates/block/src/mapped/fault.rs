//! What happens when a page of a mapped file cannot be had: the handler of SIGBUS.
//!
//! The thread that loads or stores goes on with memory of the process's own in that place, and the mapping
//! is torn: nobody relies on it any more. Threads that use the same page meanwhile find it torn afterwards,
//! as that is said before the page is there. Any other SIGBUS takes the way it took before.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence,
};

thread_local! {
    /// What this thread uses at the moment; null when it uses none.
    static USED: AtomicPtr<Guarded> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// The length of a page, in bytes; 0 until the handler is there.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Whether the handler has all threads pass a barrier (membarrier(2)), so that those who store need none.
static BARRIER: AtomicBool = AtomicBool::new(false);

/// Pages of guarded memory that are replaced one by one. Each makes three mappings of one, of which a process has a
/// limited number; behind them the whole mapping is replaced, which is torn and worth nothing anyway.
const PAGES: u32 = 16;

/// Mapped memory that may go away below whoever uses it: others can cut the file short, the file system can
/// be full, storage can fail. The kernel tells by SIGBUS, which would end the process.
#[derive(Debug)]
pub struct Guarded {
    ranges: Box<[Range<usize>]>,
    torn: AtomicBool,
    /// How many pages were replaced.
    replaced: AtomicU32,
}

impl Guarded {
    /// Guards these ranges of addresses. `None` where SIGBUS cannot be handled.
    ///
    /// # Safety
    /// Each range is a whole mapping of the caller's, made by one mmap(2), and stays so for as long as this
    /// lives. Nobody has a reference to its bytes: they can change at any time.
    pub unsafe fn new(ranges: impl IntoIterator<Item = Range<usize>>) -> Option<Self> {
        is_handled().then(|| Self {
            ranges: ranges.into_iter().collect(),
            torn: AtomicBool::new(false),
            replaced: AtomicU32::new(0),
        })
    }

    /// Does `work`, which may load from and store to the memory. Where a page cannot be had, it finds
    /// memory of this process there, of zeroes, and this is [torn](Self::is_torn). Another use of guarded
    /// memory within it is one of that memory alone.
    #[inline]
    pub fn access<T>(&self, work: impl FnOnce() -> T) -> T {
        USED.with(|used| {
            let _back = RestoreGuard { used, outer: used.load(Ordering::Relaxed) };
            used.store(ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
            // The handler runs on this thread: the order in which it sees things is the compiler's.
            compiler_fence(Ordering::SeqCst);
            let result = work();
            compiler_fence(Ordering::SeqCst);
            result
        })
    }

    /// Whether a page was missing. Whoever stored into memory of this process did so after this was set.
    #[inline]
    pub fn is_torn(&self) -> bool {
        self.torn.load(Ordering::SeqCst)
    }

    /// Whether a page may have been missing when this thread [accessed](Self::access) the memory last: if
    /// not, what it stored is in what was mapped.
    #[inline]
    pub fn was_torn(&self) -> bool {
        // The stores come before the look, or the look finds what the handler said before it changed the page.
        // A barrier here would wait for the stores' cache lines; the handler's costs nothing until a page is
        // missing.
        if BARRIER.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        self.is_torn()
    }
}

/// Puts back what a thread used before, also when it panics.
struct RestoreGuard<'a> {
    used: &'a AtomicPtr<Guarded>,
    outer: *mut Guarded,
}

impl Drop for RestoreGuard<'_> {
    fn drop(&mut self) {
        self.used.store(self.outer, Ordering::Relaxed);
    }
}

/// Puts the handler there, if it can be and is not yet. In a process with one thread this takes no time; in one
/// with several the kernel waits for a grace period of RCU, some 13 ms, and so does the first write of a server
/// that did not call this before.
pub fn handle_missing_pages() {
    is_handled();
}

/// Whether the handler is there; puts it there the first time.
fn is_handled() -> bool {
    static HANDLED: OnceLock<bool> = OnceLock::new();
    *HANDLED.get_or_init(|| install().is_some())
}

fn install() -> Option<()> {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: only asks; on success `before` is filled in.
    let before = unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) != 0 {
            return None;
        }
        before.assume_init()
    };
    // SAFETY: only asks.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    PAGE.store(page, Ordering::Relaxed);
    BEFORE.set(before).ok()?;
    // Linux 4.14, and no seccomp filter that forbids it.
    BARRIER.store(membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
    // SAFETY: zero is a value of all that `sigaction` has; the handler has the signature that SA_SIGINFO
    // asks for, and `BEFORE` and `PAGE` are set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        (libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) == 0).then_some(())
    }
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's own description of the signal.
    let address = unsafe { (*info).si_addr() }.addr();
    if !replace(address) {
        pass_on(signal, info, context);
    }
}

/// Puts memory in the place of the page that this thread used; `false` when it was no such use.
fn replace(address: usize) -> bool {
    let used = USED.with(|used| used.load(Ordering::Relaxed));
    // SAFETY: null, or what the caller of `access` on this thread holds a reference to.
    let Some(guarded) = (unsafe { used.as_ref() }) else { return false };
    let Some(range) = guarded.ranges.iter().find(|range| range.contains(&address)) else {
        return false;
    };
    // Before there is such a page: who stores into it must not think that the file has it.
    guarded.torn.store(true, Ordering::SeqCst);
    if BARRIER.load(Ordering::Relaxed) && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        return false;
    }
    let size = PAGE.load(Ordering::Relaxed);
    let page = address & !(size - 1);
    // A huge page cannot be replaced in part; the whole mapping can.
    let is_one_of_few = guarded.replaced.fetch_add(1, Ordering::Relaxed) < PAGES;
    (is_one_of_few && put_memory(page, size)) || put_memory(range.start, range.len())
}

/// Calls membarrier(2) for the threads of this process; `false` when the kernel does not do it.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call that touches no memory of the caller's; `errno` is as it was before.
    unsafe {
        let errno = *libc::__errno_location();
        let done = libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0;
        *libc::__errno_location() = errno;
        done
    }
}

/// Puts memory of this process, of zeroes, in the place of guarded memory.
fn put_memory(start: usize, len: usize) -> bool {
    let start = ptr::with_exposed_provenance_mut(start);
    // SAFETY: a part of a guarded mapping, which stays its owner's and is unmapped with it.
    unsafe {
        let errno = *libc::__errno_location();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let made = libc::mmap(start, len, access, flags, -1, 0);
        *libc::__errno_location() = errno;
        made != libc::MAP_FAILED
    }
}

/// Does what would be done without this handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    match before.map_or(libc::SIG_DFL, |before| before.sa_sigaction) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action, which the instruction meets that is done again on return; a signal
            // that somebody sent, or of memory that failed elsewhere, is sent once more.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if (*info).si_code <= 0 || (*info).si_code == libc::BUS_MCEERR_AO {
                    libc::raise(signal);
                }
            }
        }
        handler if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: a handler that was given with SA_SIGINFO has this signature.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler that was given without SA_SIGINFO has this signature.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler) };
            handler(signal);
        }
    }
}

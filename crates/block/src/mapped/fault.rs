//! What happens when a page of a mapped file cannot be had: the handler of SIGBUS.
//!
//! The thread that stores goes on with a page of the process's own in that place, and the mapping is torn:
//! nobody relies on it any more. Threads that store into the same page meanwhile find it torn afterwards,
//! as that is said before the page is there. Any other SIGBUS takes the way it took before.

use super::Mapping;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, compiler_fence};

thread_local! {
    /// What this thread stores to at the moment; null when it does not.
    static STORING: AtomicPtr<Mapping> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// The length of a page, in bytes; 0 until the handler is there.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Does `stores`, all of them into `mapping`.
#[inline]
pub(super) fn storing(mapping: &Mapping, stores: impl FnOnce()) {
    STORING.with(|storing| {
        storing.store(ptr::from_ref(mapping).cast_mut(), Ordering::Relaxed);
        // The handler runs on this thread: the order in which it sees things is the compiler's.
        compiler_fence(Ordering::SeqCst);
        stores();
        compiler_fence(Ordering::SeqCst);
        storing.store(ptr::null_mut(), Ordering::Relaxed);
    });
}

/// Whether the handler is there; puts it there the first time.
pub(super) fn is_handled() -> bool {
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

/// Puts memory in the place of the page that this thread stored to; `false` when it was no such store.
fn replace(address: usize) -> bool {
    let mapping = STORING.with(|storing| storing.load(Ordering::Relaxed));
    // SAFETY: null, or what the caller of `storing` on this thread holds a reference to.
    let Some(mapping) = (unsafe { mapping.as_ref() }) else { return false };
    if !(mapping.start..mapping.start + mapping.len).contains(&address) {
        return false;
    }
    // Before there is such a page: who stores into it must not think that the file has it.
    mapping.torn.store(true, Ordering::SeqCst);
    let size = PAGE.load(Ordering::Relaxed);
    let page = ptr::with_exposed_provenance_mut(address & !(size - 1));
    // SAFETY: a page of the mapping, which stays this mapping's and is unmapped with it.
    unsafe {
        let errno = *libc::__errno_location();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let made = libc::mmap(page, size, access, flags, -1, 0);
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

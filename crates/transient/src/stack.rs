//! Keeps what a cipher leaves on the stacks of the threads that use it from being swapped out.
//!
//! The compiler has not enough registers for the round keys of AES, and keeps them on the stack of
//! whoever encrypts (seen: all of them, down to 6.2 KiB deep). So that part of a thread's stack is
//! locked in memory the first time; where it cannot be, it is overwritten after every use.

use crate::sys;
use std::cell::Cell;
use std::hint::black_box;

/// How deep a cipher's frames reach, in bytes, with room to spare.
const DEPTH: usize = 32 << 10;
/// What of the caller's own frame is taken along.
const ABOVE: usize = 4 << 10;

/// How far this thread's stack is locked.
#[derive(Debug, Clone, Copy)]
enum StackWipe {
    /// From one address up to another.
    Locked(usize, usize),
    /// It cannot be.
    Swappable,
}

thread_local! {
    static STACK: Cell<StackWipe> = const { Cell::new(StackWipe::Locked(0, 0)) };
}

/// Does `work`, which handles a key: nothing of what it leaves on the stack is ever swapped out.
#[inline(never)]
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    let here = 0u8;
    let at = std::ptr::from_ref(black_box(&here)).addr();
    let locked = match STACK.get() {
        StackWipe::Locked(start, end) if start + DEPTH <= at && at + ABOVE <= end => true,
        StackWipe::Locked(..) => lock(at),
        StackWipe::Swappable => false,
    };
    let done = below(work);
    if !locked {
        wipe();
    }
    done
}

/// Calls `work` in a frame below the caller's.
#[inline(never)]
fn below<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Overwrites the stack where `work` was.
#[inline(never)]
fn wipe() {
    let mut stack = [0u8; DEPTH];
    black_box(&mut stack);
}

/// Locks the stack around an address of it; whether that could be done.
#[cold]
fn lock(at: usize) -> bool {
    wipe(); // so that the stack reaches that far
    // Somewhat more than is asked for next time, since callers are not all equally deep.
    let (start, end) = (at.saturating_sub(2 * DEPTH), at + 2 * ABOVE);
    let reached = sys::lock_stack(start, end - start)
        .map(|()| (start, end))
        .or_else(|_| sys::lock_stack(at - DEPTH, DEPTH + ABOVE).map(|()| (at - DEPTH, at + ABOVE)));
    let locked = reached.is_ok();
    STACK.set(reached.map_or(StackWipe::Swappable, |(start, end)| StackWipe::Locked(start, end)));
    locked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskKey;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn memory(at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, at as u64).unwrap();
        bytes
    }

    /// Addresses on this thread's stack where a round key of `cipher` is.
    #[inline(never)]
    fn left_behind(cipher: &crate::key::Cipher) -> Vec<usize> {
        let here = 0u8;
        let end = std::ptr::from_ref(black_box(&here)).addr() + ABOVE;
        let start = end - (96 << 10);
        let xts = cipher.xts().unwrap();
        let expanded = memory(std::ptr::from_ref(xts).addr(), size_of_val(xts));
        let keys: std::collections::HashSet<[u8; 16]> = expanded
            .as_chunks::<16>()
            .0
            .iter()
            .filter(|key| key.iter().filter(|byte| **byte != 0).count() > 8)
            .copied()
            .collect();
        assert!(keys.len() > 20, "these are no round keys");
        let stack = memory(start, end - start);
        let found = |at: &usize| stack[*at..].first_chunk().is_some_and(|row| keys.contains(row));
        (0..stack.len()).filter(found).map(|at| start + at).collect()
    }

    /// Whether the page of an address is locked and stays out of core dumps.
    fn is_locked(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.and_then(|(a, b)| {
                Some((usize::from_str_radix(a, 16).ok()?, usize::from_str_radix(b, 16).ok()?))
            });
            match (ends, line.strip_prefix("VmFlags:")) {
                (Some((start, end)), _) => inside = (start..end).contains(&address),
                (None, Some(flags)) if inside => {
                    return flags.contains(" lo") && flags.contains(" dd");
                }
                _ => {}
            }
        }
        false
    }

    /// Makes a key and uses it at two depths; then calls `check`.
    fn after_use(check: impl FnOnce(&crate::key::Cipher)) {
        let key = DiskKey::generate(|bytes| {
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 37 + 11) as u8);
            Ok(())
        });
        let cipher = key.unwrap().expand().unwrap();
        let mut bytes = vec![0; 8192];
        cipher.encrypt(0, &mut bytes).unwrap();
        below(|| {
            let room = [1u8; 8192];
            black_box(&room);
            cipher.decrypt(0, &mut bytes).unwrap();
        });
        check(&cipher);
    }

    #[test]
    fn round_keys_on_a_stack_are_in_locked_memory() {
        after_use(|cipher| {
            let locked = matches!(STACK.get(), StackWipe::Locked(..));
            assert!(locked, "this test needs a limit RLIMIT_MEMLOCK of 128 KiB");
            let swappable: Vec<usize> =
                left_behind(cipher).into_iter().filter(|at| !is_locked(*at)).collect();
            assert!(swappable.is_empty(), "round keys may be swapped out at {swappable:x?}");
        });
    }

    #[test]
    fn where_a_stack_cannot_be_locked_nothing_is_left_on_it() {
        STACK.set(StackWipe::Swappable);
        after_use(|cipher| assert_eq!(left_behind(cipher), []));
    }
}

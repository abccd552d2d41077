//! The key of a borrowed disk: random, in locked memory, gone with the process.
//!
//! Pages that hold a key are never swapped out, are left out of core dumps, and are wiped when they
//! are dropped. So is what expanding and using it leaves on a stack ([`stack`]), but for the wiping.

use crate::xts::{KEY, SECTOR, Xts};
use crate::{stack, sys};
use block::{Error, Result};
use zeroize::Zeroize;

/// A value alone in its pages, so that locking them locks nothing else.
#[repr(C, align(4096))]
struct LockedPage<T>(Option<T>);

/// A secret in locked memory.
struct Locked<T> {
    page: Box<LockedPage<T>>,
}

impl<T> Locked<T> {
    /// Puts what `make` makes into locked memory.
    fn new(make: impl FnOnce() -> T) -> Result<Self> {
        let mut page = Box::new(LockedPage(None));
        sys::lock(&*page).map_err(|e| {
            Error::io("cannot lock the memory of a key; raise the limit RLIMIT_MEMLOCK", e)
        })?;
        page.0 = Some(make());
        Ok(Self { page })
    }

    fn get(&self) -> Option<&T> {
        self.page.0.as_ref()
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // The secret wipes itself first, then the page may be swapped again.
        self.page.0 = None;
        sys::unlock(&*self.page);
    }
}

/// 64 random bytes that wipe themselves.
struct Bytes([u8; KEY]);

impl Drop for Bytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The key of one borrowed disk, for AES-256-XTS. It is never written anywhere.
pub struct DiskKey {
    bytes: Locked<Bytes>,
}

impl DiskKey {
    /// Makes a key from what `random` fills in, such as the system's generator.
    ///
    /// # Errors
    /// Any error from `random`; [`Denied`](block::ErrorKind::Denied) and others when memory cannot be
    /// locked; [`Internal`](block::ErrorKind::Internal) when the bytes are not random at all.
    pub fn generate(random: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let mut bytes = Locked::new(|| Bytes([0; KEY]))?;
        if let Some(Bytes(key)) = &mut bytes.page.0 {
            random(key)?;
            let (data, tweak) = key.split_at(KEY / 2);
            if data == tweak {
                return Err(Error::internal("the source of randomness gave the same bytes twice"));
            }
        }
        Ok(Self { bytes })
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> Result<&[u8; KEY]> {
        self.bytes.get().map(|bytes| &bytes.0).ok_or_else(missing)
    }

    /// The expanded key, in locked memory too.
    pub(crate) fn expand(&self) -> Result<Cipher> {
        let bytes = self.bytes()?;
        Ok(Cipher(stack::guarded(|| Locked::new(|| Xts::new(bytes)))?))
    }
}

impl std::fmt::Debug for DiskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// An expanded key.
pub(crate) struct Cipher(Locked<Xts>);

impl Cipher {
    /// The expanded key itself.
    pub(crate) fn xts(&self) -> Result<&Xts> {
        self.0.get().ok_or_else(missing)
    }

    /// Encrypts whole sectors in place; `first` is the number of the first one.
    pub(crate) fn encrypt(&self, first: u64, bytes: &mut [u8]) -> Result<()> {
        let xts = self.xts()?;
        stack::guarded(|| each_sector(first, bytes, |number, unit| xts.encrypt(number, unit)));
        Ok(())
    }

    /// Decrypts what [`encrypt`](Self::encrypt) made.
    pub(crate) fn decrypt(&self, first: u64, bytes: &mut [u8]) -> Result<()> {
        let xts = self.xts()?;
        stack::guarded(|| each_sector(first, bytes, |number, unit| xts.decrypt(number, unit)));
        Ok(())
    }
}

fn each_sector(first: u64, bytes: &mut [u8], mut each: impl FnMut(u64, &mut [u8])) {
    for (i, unit) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        each(first + i as u64, unit);
    }
}

fn missing() -> Error {
    Error::internal("a key was used after it was dropped")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kilobytes of this process that are locked.
    fn locked() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn a_key_lies_in_locked_memory_that_core_dumps_leave_out() {
        let before = locked();
        let key = DiskKey::generate(|bytes| {
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
            Ok(())
        })
        .unwrap();
        let cipher = key.expand().unwrap();
        assert!(locked() >= before + 8, "{} kB locked, {before} before", locked());
        let at = std::ptr::from_ref(cipher.xts().unwrap()).addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        let mut flags = None;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.and_then(|(a, b)| {
                Some((usize::from_str_radix(a, 16).ok()?, usize::from_str_radix(b, 16).ok()?))
            });
            match (ends, line.strip_prefix("VmFlags:")) {
                (Some((start, end)), _) => inside = (start..end).contains(&at),
                (None, Some(found)) if inside => flags = Some(found.to_owned()),
                _ => {}
            }
        }
        let flags = flags.expect("the mapping of the key");
        assert!(flags.contains("dd") && flags.contains("lo"), "{flags}");
    }

    #[test]
    fn a_source_without_randomness_is_refused() {
        let error = DiskKey::generate(|_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Internal);
    }

    #[test]
    fn a_key_does_not_print_itself() {
        let key = DiskKey::generate(|bytes| {
            bytes[0] = 0xab;
            Ok(())
        });
        assert_eq!(format!("{:?}", key.unwrap()), "Key(..)");
    }
}

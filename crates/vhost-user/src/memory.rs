//! The guest's memory: mapped, found by the addresses that the front end and the guest use, and guarded.

// Safety: what is guarded are whole mappings of vm-memory, each made by one mmap(2), which live as long as
// the `Arc`s that stand beside the guard. vm-memory reads and writes them by volatile accesses and copies,
// and gives no reference to their bytes.
#![allow(unsafe_code)]

use block::mapped::Guarded;
use block::{Error, Result};
use std::fs::File;
use std::sync::Arc;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

/// Regions at most, each of which is a mapping.
pub(crate) const REGIONS: usize = 509;

/// A part of the guest's memory, as the front end describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RamPart {
    /// Where the guest has it.
    pub(crate) guest: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// Where the front end has it.
    pub(crate) user: u64,
    /// Where it begins in the file.
    pub(crate) offset: u64,
}

/// The guest's memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct GuestRam {
    parts: Vec<RamPart>,
    map: Arc<GuestMemoryMmap>,
}

impl GuestRam {
    /// The same with one part more.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for what cannot be mapped, overlaps what is there, or is too
    /// much.
    pub(crate) fn with(&self, part: RamPart, file: File) -> Result<Self> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::invalid(format!("guest memory of {} bytes cannot be shared: {why}", part.len))
        };
        if self.parts.len() >= REGIONS {
            return Err(wrong(&format_args!("there are {REGIONS} parts of it already")));
        }
        let overlaps = |other: &RamPart| {
            part.user < other.user.saturating_add(other.len)
                && other.user < part.user.saturating_add(part.len)
        };
        if self.parts.iter().any(overlaps) {
            return Err(wrong(&"it overlaps other memory of the front end"));
        }
        let len = usize::try_from(part.len).map_err(|e| wrong(&e))?;
        let file = FileOffset::new(file, part.offset);
        let region = GuestRegionMmap::from_range(GuestAddress(part.guest), len, Some(file))
            .map_err(|e| wrong(&e))?;
        let map = self.map.insert_region(Arc::new(region)).map_err(|e| wrong(&e))?;
        let mut parts = self.parts.clone();
        parts.push(part);
        Ok(Self { parts, map: Arc::new(map) })
    }

    /// The same without a part, which is known by where it is.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when there is no such part.
    pub(crate) fn without(&self, guest: u64, user: u64, len: u64) -> Result<Self> {
        let is_it = |part: &RamPart| (part.guest, part.user, part.len) == (guest, user, len);
        if !self.parts.iter().any(is_it) {
            return Err(Error::invalid("there is no such guest memory to take back"));
        }
        let mut parts = self.parts.clone();
        parts.retain(|part| !is_it(part));
        if parts.is_empty() {
            return Ok(Self::default());
        }
        let (map, _) = self
            .map
            .remove_region(GuestAddress(guest), len)
            .map_err(|e| Error::invalid(format!("guest memory cannot be taken back: {e}")))?;
        Ok(Self { parts, map: Arc::new(map) })
    }

    /// How much it is, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len).fold(0, u64::saturating_add)
    }

    /// How many parts it has.
    pub(crate) fn regions(&self) -> usize {
        self.parts.len()
    }

    /// Where the guest has what the front end has at `user`.
    pub(crate) fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        let part = self
            .parts
            .iter()
            .find(|part| user.checked_sub(part.user).is_some_and(|into| into < part.len))?;
        Some(GuestAddress(part.guest + (user - part.user)))
    }

    /// The memory by the guest's addresses.
    pub(crate) fn map(&self) -> &Arc<GuestMemoryMmap> {
        &self.map
    }
}

/// GuestRam by the guest's addresses, and other memory beside it, which may go away at any time. All rings of
/// a connection share one: where one of them found a page missing, the others have this process's zeroes in
/// its place, too.
#[derive(Debug)]
pub(crate) struct SharedRam {
    map: Arc<GuestMemoryMmap>,
    guard: Guarded,
    /// A part of it was torn already when it was guarded anew.
    torn_before: bool,
    // Mapped for as long as it is guarded.
    _beside: Option<Arc<MmapRegion>>,
}

impl SharedRam {
    /// Guards both. `torn_before` says that a part of it was torn under an earlier guard.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) where that cannot be done.
    pub(crate) fn new(
        map: Arc<GuestMemoryMmap>,
        beside: Option<Arc<MmapRegion>>,
        torn_before: bool,
    ) -> Result<Self> {
        use vm_memory::GuestMemoryBackend;
        let range = |region: &MmapRegion| {
            let start = region.as_ptr().expose_provenance();
            start..start + region.size()
        };
        let mut ranges: Vec<_> = map.iter().map(|region| range(region)).collect();
        debug_assert!(map.iter().all(|region| region.len() > 0));
        ranges.extend(beside.as_deref().map(range));
        // SAFETY: whole mappings, which live as long as the guard (above).
        let guard = unsafe { Guarded::new(ranges) }
            .ok_or_else(|| Error::unsupported("this process cannot handle SIGBUS"))?;
        Ok(Self { map, guard, torn_before, _beside: beside })
    }

    /// Does `work` with the memory.
    #[inline]
    pub(crate) fn access<T>(&self, work: impl FnOnce(&GuestMemoryMmap) -> T) -> T {
        self.guard.access(|| work(&self.map))
    }

    /// Whether a part of it was not there any more: what was read before is worth nothing, and what was
    /// written need not be where the guest looks.
    #[inline]
    pub(crate) fn is_torn(&self) -> bool {
        self.torn_before || self.guard.was_torn()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::{Bytes, GuestMemoryBackend};

    fn part(guest: u64, len: u64, user: u64) -> (RamPart, File) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        (RamPart { guest, len, user, offset: 0 }, file)
    }

    fn memory(parts: &[(u64, u64, u64)]) -> GuestRam {
        parts.iter().fold(GuestRam::default(), |memory, (guest, len, user)| {
            let (part, file) = part(*guest, *len, *user);
            memory.with(part, file).unwrap()
        })
    }

    #[test]
    fn addresses_of_the_front_end_become_the_guests() {
        let memory = memory(&[(0, 0x1000, 0x7f00_0000), (1 << 32, 0x2000, 0x1000)]);
        assert_eq!(memory.guest_address(0x7f00_0fff), Some(GuestAddress(0xfff)));
        assert_eq!(memory.guest_address(0x1000), Some(GuestAddress(1 << 32)));
        assert_eq!(memory.guest_address(0x2fff), Some(GuestAddress((1 << 32) + 0x1fff)));
        for nothing in [0, 0xfff, 0x3000, 0x7f00_1000, u64::MAX] {
            assert_eq!(memory.guest_address(nothing), None, "{nothing:x}");
        }
    }

    #[test]
    fn what_overlaps_or_overflows_is_refused_and_changes_nothing() {
        let memory = memory(&[(0x1000, 0x1000, 0x5000)]);
        for (guest, len, user) in [
            (0x1800, 0x1000, 0x9000),
            (0x4000, 0x1000, 0x5800),
            (u64::MAX - 0xfff, 0x2000, 0x9000),
            (0x8000, u64::MAX, 0x9000),
        ] {
            let (mut part, file) = part(guest, 0x1000, user);
            part.len = len;
            assert!(memory.with(part, file).is_err(), "{guest:x} {len:x} {user:x}");
        }
        assert_eq!(memory.map().num_regions(), 1);
    }

    #[test]
    fn parts_come_and_go() {
        let one = memory(&[(0, 0x1000, 0x1000)]);
        let (second, file) = part(0x1000, 0x1000, 0x9000);
        let two = one.with(second, file).unwrap();
        assert!(two.without(0x1000, 0x9001, 0x1000).is_err());
        let back = two.without(0x1000, 0x9000, 0x1000).unwrap();
        assert_eq!((back.map().num_regions(), back.guest_address(0x9000)), (1, None));
        let none = back.without(0, 0x1000, 0x1000).unwrap();
        assert_eq!(none.map().num_regions(), 0);
    }

    #[test]
    fn memory_whose_file_was_cut_short_reads_as_zeroes_and_is_torn() {
        let (part, file) = part(0, 0x4000, 0);
        let memory = GuestRam::default().with(part, file.try_clone().unwrap()).unwrap();
        let shared = SharedRam::new(Arc::clone(memory.map()), None, false).unwrap();
        shared.access(|map| map.write_obj(7_u8, GuestAddress(0x3000)).unwrap());
        assert!(!shared.is_torn());
        file.set_len(0x1000).unwrap();
        let found = shared.access(|map| map.read_obj::<u8>(GuestAddress(0x3000)).unwrap());
        assert_eq!((found, shared.is_torn()), (0, true));
    }

    #[test]
    fn memory_that_is_torn_in_many_places_takes_few_mappings() {
        let (part, file) = part(0, 1000 << 12, 0);
        let memory = GuestRam::default().with(part, file.try_clone().unwrap()).unwrap();
        let shared = SharedRam::new(Arc::clone(memory.map()), None, false).unwrap();
        let start = memory.map().iter().next().unwrap().as_ptr().addr();
        file.set_len(0).unwrap();
        shared.access(|map| {
            for page in (0..1000).step_by(2) {
                assert_eq!(map.read_obj::<u8>(GuestAddress(page << 12)).unwrap(), 0);
            }
        });
        assert!(shared.is_torn());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let starts =
            maps.lines().filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok());
        let own = starts.filter(|at| (start..start + (1000 << 12)).contains(at)).count();
        assert!(own <= 64, "{own} mappings");
    }
}

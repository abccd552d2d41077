//! Linux swap space: page 0 is its header, all other pages but the bad ones are free while nobody
//! is suspended in it.
//!
//! Layout (`union swap_header` of the kernel, little-endian): version at 1024, last page at 1028,
//! number of bad pages at 1032, UUID at 1036, label at 1052, bad pages from 1536 on; the signature
//! fills the last ten bytes of page 0. The page size is not written down: it follows from where
//! the signature is.

use crate::bytes::{label, le32, uuid};
use crate::reader::SuspendedIn;
use crate::refusal::refuse;
use crate::{
    FileSystem, FileSystemReader, FreeList, FreeSpace, FreeSpaceOptions, Level, Refusal, Stamp,
    Volume, Window,
};
use block::Span;

/// The page sizes of the machines that Linux runs on, in bytes.
const PAGES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const SIGNATURE: usize = 10;
const BAD_PAGES: usize = 1536;

/// The last ten bytes (or fewer) of the first page of swap space, in use or suspended.
const SIGNATURES: &[&[u8]] = &[
    b"SWAPSPACE2",
    b"SWAP-SPACE",
    b"S1SUSPEND",
    b"S2SUSPEND",
    b"ULSUSPEND",
    b"LINHIB0001",
    b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c",
];

/// TuxOnIce leaves the signature as it is and writes this at the very start.
const TUXONICE: &[u8] = b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c";

/// What the last ten bytes of page 0 say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwapMark {
    Old,
    Current,
    Suspended,
}

fn mark(signature: &[u8]) -> Option<SwapMark> {
    const SUSPENDED: [&[u8]; 5] =
        [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001", TUXONICE];
    match signature {
        b"SWAPSPACE2" => Some(SwapMark::Current),
        b"SWAP-SPACE" => Some(SwapMark::Old),
        _ => {
            SUSPENDED.iter().any(|mark| signature.starts_with(mark)).then_some(SwapMark::Suspended)
        }
    }
}

/// How much of a swap space or swap file [`is_suspended`] wants to see, in bytes.
pub(crate) const HEAD: usize = PAGES[PAGES.len() - 1];

/// Whether the head of a swap space or swap file says that a suspended system is stored in it.
pub(crate) fn is_suspended(head: &[u8]) -> bool {
    let signatures = PAGES.iter().filter_map(|page| head.get(page - SIGNATURE..*page));
    head.starts_with(TUXONICE)
        || signatures.filter_map(mark).any(|mark| mark == SwapMark::Suspended)
}

/// Refuses when the mark of a suspended system is there.
///
/// # Errors
/// [`Code::Hibernated`](crate::Code::Hibernated), and any error from reading.
pub fn awake(window: &Window<'_>) -> Result<(), Refusal> {
    if is_suspended(&window.bytes(0, HEAD.min(window.size() as usize))?) {
        refuse!(
            Hibernated,
            "a suspended system is stored in this swap space; start it and shut it down"
        );
    }
    Ok(())
}

impl FileSystem {
    /// Linux swap space.
    pub const SWAP: Self = Self("swap");
}

/// The line of this file system in the table of readers.
pub(crate) const READER: FileSystemReader = FileSystemReader {
    kinds: &[FileSystem::SWAP],
    recognize: |head| {
        let at = |size: &usize| SIGNATURES.iter().any(|magic| head.has(size - SIGNATURE, magic));
        PAGES.iter().any(at).then_some(FileSystem::SWAP)
    },
    read,
    shows_mounted: false,
    suspended: SuspendedIn::Nothing,
};

/// Reads what is free.
fn read(window: &Window<'_>, _options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let head = window.bytes(0, PAGES[PAGES.len() - 1].min(window.size() as usize))?;
    let marks = || {
        PAGES
            .iter()
            .filter(|page| **page <= head.len())
            .filter_map(|page| Some((*page, mark(&head[page - SIGNATURE..*page])?)))
    };
    awake(window)?;
    let mut found = marks();
    let page = match (found.next(), found.next()) {
        (Some((page, SwapMark::Current)), None) => page,
        (Some(_), Some(_)) => {
            refuse!(Ambiguous, "it has the signatures of two page sizes; make it anew with mkswap");
        }
        (Some(_), None) => {
            refuse!(
                UnknownFeature,
                "version 0 of swap space is not known; make it anew with mkswap"
            );
        }
        (None, _) => refuse!(Structure, "no swap signature"),
    };
    match le32(&head, 1024) {
        1 => {}
        version if version.swap_bytes() == 1 => {
            refuse!(UnknownFeature, "a swap space of a big-endian machine");
        }
        version => refuse!(UnknownFeature, "version {version} of swap space; only 1 is known"),
    }
    let unit = page as u64;
    let last = u64::from(le32(&head, 1028));
    let size = (last + 1) * unit;
    if last == 0 || size > window.size() {
        refuse!(
            Geometry,
            "its header counts {} pages of {page} bytes, and it has room for {}",
            last + 1,
            window.size() / unit
        );
    }
    let bad = bad_pages(&head[..page], last)?;
    let mut free = FreeList::new();
    let mut at = 1;
    for page in bad {
        free.push(at * unit, page * unit)?;
        at = page + 1;
    }
    free.push(at * unit, size)?;
    let (free, dropped) = free.finish();
    Ok(FreeSpace {
        kind: FileSystem::SWAP,
        level: Level::Fast,
        usual: Level::Fast,
        unit: page as u32,
        size,
        free,
        dropped,
        stamp: Stamp::take(window, vec![Span::between(0, unit)])?,
        volume: Volume { uuid: uuid(&head[1036..1052]), label: label(&head[1052..1068]) },
    })
}

/// The pages that must not be used: listed once each, none of them the header, none behind the
/// last.
fn bad_pages(head: &[u8], last: u64) -> Result<Vec<u64>, Refusal> {
    let count = le32(head, 1032) as usize;
    let room = (head.len() - SIGNATURE - BAD_PAGES) / 4;
    if count > room {
        refuse!(Structure, "{count} bad pages are said to be listed, and there is room for {room}");
    }
    let mut list: Vec<u64> = (0..count).map(|i| u64::from(le32(head, BAD_PAGES + 4 * i))).collect();
    list.sort_unstable();
    if list.iter().any(|page| *page == 0 || *page > last) || list.windows(2).any(|w| w[0] == w[1]) {
        refuse!(Structure, "its list of bad pages is damaged; make it anew with mkswap");
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    fn swap(page: usize, pages: u32) -> Vec<u8> {
        let mut image = vec![0; page * pages as usize];
        image[1024..1028].copy_from_slice(&1u32.to_le_bytes());
        image[1028..1032].copy_from_slice(&(pages - 1).to_le_bytes());
        image[page - 10..page].copy_from_slice(b"SWAPSPACE2");
        image
    }

    #[allow(clippy::ptr_arg)] // a slice has no size, and so is no `dyn Source`
    fn read_image(image: &Vec<u8>) -> Result<FreeSpace, Refusal> {
        read(&Window::whole(image), &FreeSpaceOptions::default())
    }

    fn code(image: &Vec<u8>) -> Code {
        read_image(image).unwrap_err().code
    }

    #[test]
    fn every_page_but_the_header_is_free_at_every_page_size() {
        for page in PAGES {
            let found = read_image(&swap(page, 20)).unwrap();
            assert_eq!(found.free, [Span::between(page as u64, 20 * page as u64)]);
            assert_eq!(found.unit as usize, page);
        }
    }

    #[test]
    fn bad_pages_are_not_free() {
        let mut image = swap(4096, 20);
        image[1032..1036].copy_from_slice(&2u32.to_le_bytes());
        image[1536..1540].copy_from_slice(&19u32.to_le_bytes());
        image[1540..1544].copy_from_slice(&3u32.to_le_bytes());
        let found = read_image(&image).unwrap();
        let pages: Vec<(u64, u64)> =
            found.free.iter().map(|s| (s.offset() / 4096, s.end() / 4096)).collect();
        assert_eq!(pages, [(1, 3), (4, 19)]);
        image[1540..1544].copy_from_slice(&19u32.to_le_bytes());
        assert_eq!(code(&image), Code::Structure, "listed twice");
        image[1032..1036].copy_from_slice(&900u32.to_le_bytes());
        assert_eq!(code(&image), Code::Structure, "more than fit");
    }

    #[test]
    fn a_suspended_system_refuses_its_swap_space() {
        for signature in [
            &b"S1SUSPEND\0"[..],
            b"S2SUSPEND\0",
            b"ULSUSPEND\0",
            b"LINHIB0001",
            b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c\0\0",
        ] {
            let mut image = swap(4096, 20);
            image[4086..4096].copy_from_slice(signature);
            assert_eq!(code(&image), Code::Hibernated);
        }
    }

    #[test]
    fn what_is_in_doubt_is_refused() {
        let whole = swap(4096, 20);
        assert_eq!(code(&whole[..19 * 4096].to_vec()), Code::Geometry, "cut short");
        assert_eq!(code(&whole[..3000].to_vec()), Code::Structure, "less than a page");
        let mut old = whole.clone();
        old[4086..4096].copy_from_slice(b"SWAP-SPACE");
        assert_eq!(code(&old), Code::UnknownFeature);
        let mut big_endian = whole.clone();
        big_endian[1024..1028].copy_from_slice(&1u32.to_be_bytes());
        assert_eq!(code(&big_endian), Code::UnknownFeature);
        let mut two = whole.clone();
        two[8182..8192].copy_from_slice(b"SWAPSPACE2");
        assert_eq!(code(&two), Code::Ambiguous);
        let mut none = whole;
        none[1028..1032].fill(0);
        assert_eq!(code(&none), Code::Geometry);
    }
}

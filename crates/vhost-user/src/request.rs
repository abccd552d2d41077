//! Descriptor chains as requests of virtio-blk (virtio 1.2, 5.2.6): pure, on guest memory.
//!
//! A guest may write anything into its memory, at any time: each byte that is acted upon is read once.

use crate::config::{RANGES, SECTOR};
use block::{BLOCK, Span, ZeroMode};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// What a request begins with: its type, a priority, the first sector.
const HEADER: usize = 16;
/// A range to discard or to zero: its first sector, how many, flags.
const RANGE: usize = 16;
/// The most pieces of memory in one request. Drivers are told of fewer, but one that does not ask may have more.
const MOST_PIECES: usize = 1024;
/// Room for so many pieces is kept from request to request, on either side: as many as drivers are told of.
const KEPT_PIECES: usize = 128;
/// Chains that are kept for requests to come.
const KEPT_CHAINS: usize = 64;
/// The most data of one request, in bytes: a chain has no more than 4 GiB (virtio 1.2, 2.7.5.3.1), and its length goes
/// into 32 bits. Firmware may read a whole file at once.
pub(crate) const MOST_DATA: u64 = u32::MAX as u64 - 1;
/// The length of a disk's name, in bytes.
pub(crate) const ID: usize = 20;

/// What a request is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// It was done.
    Ok = 0,
    /// It failed, or is wrong.
    IoError = 1,
    /// Nothing of the kind is offered.
    Unsupported = 2,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read(Span),
    Write(Span),
    Flush,
    Discard,
    Zero,
    /// The disk's name.
    Id,
}

/// What an operation changes beside data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiscardRange {
    pub(crate) span: Span,
    pub(crate) mode: ZeroMode,
}

/// A part of a request in guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    at: GuestAddress,
    len: usize,
}

/// A table of descriptors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DescriptorTable {
    /// Where it is.
    pub(crate) at: GuestAddress,
    /// How many it has.
    pub(crate) size: u16,
}

impl DescriptorTable {
    /// Calls `each` for every piece of the chain that begins with `head`, and with whether the device
    /// writes there. A table that stands in for the rest of the chain (an indirect one) is followed, once.
    /// virtio-queue's own walk cannot begin with a given head, as it takes to do requests again.
    fn walk(
        self,
        memory: &GuestMemoryMmap,
        head: u16,
        mut each: impl FnMut(Segment, bool) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let (mut table, mut index, mut left, mut indirect) = (self, head, self.size, false);
        loop {
            if index >= table.size || left == 0 {
                return Err(Broken);
            }
            left -= 1;
            let at = table.at.0.checked_add(u64::from(index) * DESCRIPTOR).ok_or(Broken)?;
            let bytes: [u8; DESCRIPTOR as usize] =
                memory.read_obj(GuestAddress(at)).map_err(|_| Broken)?;
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
            let at = GuestAddress(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
            let len = u32::from_le_bytes([i, j, k, l]);
            let flags = u16::from_le_bytes([m, n]);
            if flags & flag::INDIRECT != 0 {
                let size = u64::from(len) / DESCRIPTOR;
                let good = !indirect
                    && flags & flag::NEXT == 0
                    && u64::from(len).is_multiple_of(DESCRIPTOR)
                    && size > 0;
                let size = u16::try_from(size).ok().filter(|_| good).ok_or(Broken)?;
                (table, index, left, indirect) = (Self { at, size }, 0, size, true);
                continue;
            }
            if len > 0 {
                each(Segment { at, len: len as usize }, flags & flag::WRITE != 0)?;
            }
            if flags & flag::NEXT == 0 {
                return Ok(());
            }
            index = u16::from_le_bytes([o, p]);
        }
    }
}

/// The length of a descriptor, in bytes.
const DESCRIPTOR: u64 = 16;

/// Flags of descriptors.
mod flag {
    pub(super) const NEXT: u16 = 1;
    /// The device writes there.
    pub(super) const WRITE: u16 = 2;
    /// It is a table of descriptors.
    pub(super) const INDIRECT: u16 = 4;
}

/// A request that cannot even be answered: it has no place for the status, or its chain is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// The memory of a request: what the guest gives, what it takes, where its status goes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain {
    /// What the guest gives, behind the header.
    given: Vec<Segment>,
    /// What it takes, before the status.
    taken: Vec<Segment>,
    given_len: u64,
    taken_len: u64,
    status: GuestAddress,
    header: [u8; HEADER],
}

/// Chains for requests to come: few and short ones, whatever a guest had in flight at one time.
#[derive(Debug, Default)]
pub(crate) struct SpareChains(Vec<Chain>);

impl SpareChains {
    /// One of them, or a new one.
    pub(crate) fn take(&mut self) -> Chain {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps a chain that is not used any more.
    pub(crate) fn give(&mut self, chain: Chain) {
        let longest = chain.given.capacity().max(chain.taken.capacity());
        if longest <= KEPT_PIECES && self.0.len() < KEPT_CHAINS {
            self.0.push(chain);
        }
    }
}

impl Chain {
    /// What it takes of this process's memory, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        let pieces = self.given.capacity() + self.taken.capacity();
        (pieces * size_of::<Segment>()) as u64
    }

    /// Takes up the chain that begins with descriptor `head` of a table, in the place of the one before.
    ///
    /// # Errors
    /// [`Broken`] for a chain that does not end, leaves its table, has no header, or no place for the
    /// status.
    pub(crate) fn take(
        &mut self,
        memory: &GuestMemoryMmap,
        table: DescriptorTable,
        head: u16,
    ) -> Result<(), Broken> {
        self.given.clear();
        self.taken.clear();
        (self.given_len, self.taken_len) = (0, 0);
        table.walk(memory, head, |piece, device_writes| {
            if self.given.len() + self.taken.len() >= MOST_PIECES {
                return Err(Broken);
            }
            let (pieces, len) = match device_writes {
                true => (&mut self.taken, &mut self.taken_len),
                false => (&mut self.given, &mut self.given_len),
            };
            pieces.push(piece);
            *len += piece.len as u64;
            Ok(())
        })?;
        if self.given_len < HEADER as u64 {
            return Err(Broken);
        }
        let last = self.taken.last_mut().ok_or(Broken)?;
        last.len -= 1;
        self.status = GuestAddress(last.at.0.checked_add(last.len as u64).ok_or(Broken)?);
        self.taken_len -= 1;
        let mut header = [0; HEADER];
        copy_out(memory, &self.given, 0, &mut header)?;
        self.header = header;
        skip(&mut self.given, HEADER);
        self.given_len -= HEADER as u64;
        Ok(())
    }

    /// What is asked for, on a device of `size` bytes whose requests are multiples of `grain`.
    ///
    /// # Errors
    /// The status to answer with.
    pub(crate) fn operation(&self, size: u64, grain: u64) -> Result<Operation, Status> {
        let kind = u32::from_le_bytes(self.header[..4].try_into().unwrap_or_default());
        let sector = u64::from_le_bytes(self.header[8..].try_into().unwrap_or_default());
        let span = |len: u64| {
            let offset = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
            let span = Span::within(offset, len, size).map_err(|_| Status::IoError)?;
            let fits = span.is_aligned(grain.max(SECTOR)) && (1..=MOST_DATA).contains(&len);
            if fits { Ok(span) } else { Err(Status::IoError) }
        };
        let ranges = || {
            let fits = self.given_len.is_multiple_of(RANGE as u64)
                && (1..=u64::from(RANGES)).contains(&(self.given_len / RANGE as u64));
            if fits { Ok(()) } else { Err(Status::IoError) }
        };
        match kind {
            0 => Ok(Operation::Read(span(self.taken_len)?)),
            1 => Ok(Operation::Write(span(self.given_len)?)),
            4 => Ok(Operation::Flush),
            8 => Ok(Operation::Id),
            11 => ranges().map(|()| Operation::Discard),
            13 => ranges().map(|()| Operation::Zero),
            _ => Err(Status::Unsupported),
        }
    }

    /// The ranges of a request to discard or to zero, on a device of `size` bytes whose requests are multiples of
    /// `grain`.
    ///
    /// # Errors
    /// The status to answer with.
    pub(crate) fn ranges(
        &self,
        memory: &GuestMemoryMmap,
        size: u64,
        grain: u64,
        zero: bool,
    ) -> Result<Vec<DiscardRange>, Status> {
        let mut bytes = vec![0; self.given_len as usize];
        copy_out(memory, &self.given, 0, &mut bytes).map_err(|Broken| Status::IoError)?;
        let mut ranges = Vec::with_capacity(bytes.len() / RANGE);
        for range in bytes.chunks_exact(RANGE) {
            let sector = u64::from_le_bytes(range[..8].try_into().unwrap_or_default());
            let sectors = u32::from_le_bytes(range[8..12].try_into().unwrap_or_default());
            let flags = u32::from_le_bytes(range[12..].try_into().unwrap_or_default());
            // Bit 0 lets room be given back, and has no meaning for what gives it back anyway.
            if flags & !u32::from(zero) != 0 {
                return Err(Status::Unsupported);
            }
            let offset = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
            let span = Span::within(offset, u64::from(sectors) * SECTOR, size)
                .map_err(|_| Status::IoError)?;
            if !span.is_aligned(grain) {
                return Err(Status::IoError);
            }
            let mode = ZeroMode { may_punch: flags & 1 != 0, only_if_fast: false };
            if !span.is_empty() {
                ranges.push(DiscardRange { span, mode });
            }
        }
        Ok(ranges)
    }

    /// Reads what the guest gives, from `offset` on, into all of `buf`.
    ///
    /// # Errors
    /// [`Broken`] where it points outside its memory, or gives less.
    pub(crate) fn gather(
        &self,
        memory: &GuestMemoryMmap,
        offset: usize,
        buf: &mut [u8],
    ) -> Result<(), Broken> {
        copy_out(memory, &self.given, offset, buf)
    }

    /// Writes `bytes` to what the guest takes, from `offset` on.
    ///
    /// # Errors
    /// [`Broken`] where it points outside its memory, or takes less.
    pub(crate) fn scatter(
        &self,
        memory: &GuestMemoryMmap,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Broken> {
        let mut rest = bytes;
        for piece in behind(&self.taken, offset) {
            let (now, later) = rest.split_at(piece.len.min(rest.len()));
            memory.write_slice(now, piece.at).map_err(|_| Broken)?;
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(Broken) }
    }

    /// Writes the disk's name, as far as it is asked for. Gives how many bytes that are.
    ///
    /// # Errors
    /// [`Broken`] where it points outside its memory.
    pub(crate) fn put_id(&self, memory: &GuestMemoryMmap, id: &[u8; ID]) -> Result<u32, Broken> {
        let len = (self.taken_len as usize).min(ID);
        self.scatter(memory, 0, &id[..len])?;
        Ok(len as u32)
    }

    /// Writes the status.
    ///
    /// # Errors
    /// [`Broken`] where it points outside its memory.
    pub(crate) fn put_status(
        &self,
        memory: &GuestMemoryMmap,
        status: Status,
    ) -> Result<(), Broken> {
        memory.write_obj(status as u8, self.status).map_err(|_| Broken)
    }
}

/// Takes the first `count` bytes away.
fn skip(pieces: &mut Vec<Segment>, count: usize) {
    let mut count = count;
    let mut gone = 0;
    for piece in pieces.iter_mut() {
        let now = count.min(piece.len);
        piece.at = GuestAddress(piece.at.0.wrapping_add(now as u64));
        piece.len -= now;
        count -= now;
        gone += usize::from(piece.len == 0);
        if count == 0 {
            break;
        }
    }
    pieces.drain(..gone);
}

/// The pieces behind the first `offset` bytes.
fn behind(pieces: &[Segment], offset: usize) -> impl Iterator<Item = Segment> {
    let mut skipped = offset;
    pieces.iter().filter_map(move |piece| {
        let now = skipped.min(piece.len);
        skipped -= now;
        (now < piece.len).then(|| Segment {
            at: GuestAddress(piece.at.0.wrapping_add(now as u64)),
            len: piece.len - now,
        })
    })
}

fn copy_out(
    memory: &GuestMemoryMmap,
    pieces: &[Segment],
    offset: usize,
    buf: &mut [u8],
) -> Result<(), Broken> {
    let mut rest = buf;
    for piece in behind(pieces, offset) {
        let (now, later) = rest.split_at_mut(piece.len.min(rest.len()));
        memory.read_slice(now, piece.at).map_err(|_| Broken)?;
        rest = later;
        if rest.is_empty() {
            return Ok(());
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(Broken) }
}

/// The name of a disk, made from what tells it from all others.
pub(crate) fn id(identity: &str) -> [u8; ID] {
    // Of `disk UUID` the 20 first digits, as iSCSI's serial number has them.
    let last = identity.rsplit(' ').next().unwrap_or(identity);
    let mut id = [0; ID];
    for (to, from) in id.iter_mut().zip(last.bytes()) {
        *to = from;
    }
    id
}

/// The grain of requests, in bytes.
pub(crate) fn grain(limits: block::Limits) -> u64 {
    u64::from(limits.minimum).clamp(SECTOR, BLOCK * 16)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use virtio_queue::desc::{RawDescriptor, split::Descriptor};
    use virtio_queue::mock::MockSplitQueue;
    use virtio_queue::{Queue, QueueOwnedT, QueueT};

    const SIZE: u64 = 1 << 20;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap()
    }

    fn header(kind: u32, sector: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }

    /// A chain of these pieces: address, length, whether the device writes.
    fn chain(memory: &GuestMemoryMmap, pieces: &[(u64, u32, bool)]) -> Result<Chain, Broken> {
        let mock = MockSplitQueue::new(memory, 64);
        let descriptors: Vec<RawDescriptor> = pieces
            .iter()
            .enumerate()
            .map(|(i, (at, len, write))| {
                let next = if i + 1 < pieces.len() { flag::NEXT } else { 0 };
                let flags = next | if *write { flag::WRITE } else { 0 };
                Descriptor::new(*at, *len, flags, i as u16 + 1).into()
            })
            .collect();
        mock.add_desc_chains(&descriptors, 0).unwrap();
        let mut queue: Queue = mock.create_queue().unwrap();
        let head = queue.iter(memory).unwrap().next().unwrap().head_index();
        let mut chain = Chain::default();
        let table = DescriptorTable { at: GuestAddress(queue.desc_table()), size: queue.size() };
        chain.take(memory, table, head).map(|()| chain)
    }

    /// The chain that begins with `head` of these descriptors: address, length, flags, next.
    fn table(descriptors: &[(u64, u32, u16, u16)], head: u16) -> Result<Chain, Broken> {
        let memory = memory();
        memory.write_slice(&header(4, 0), GuestAddress(0x8000)).unwrap();
        for (i, (at, len, flags, next)) in descriptors.iter().enumerate() {
            let raw: RawDescriptor = Descriptor::new(*at, *len, *flags, *next).into();
            memory.write_obj(raw, GuestAddress(i as u64 * 16)).unwrap();
        }
        let table = DescriptorTable { at: GuestAddress(0), size: 4 };
        let mut chain = Chain::default();
        chain.take(&memory, table, head).map(|()| chain)
    }

    #[test]
    fn chains_that_do_not_end_or_leave_their_table_are_broken() {
        use flag::{INDIRECT, NEXT, WRITE};
        let good = [(0x8000, 16, NEXT, 2), (0, 0, 0, 0), (0x9000, 1, WRITE, 0)];
        assert!(table(&good, 0).is_ok());
        assert!(table(&good, 1).is_err() && table(&good, 4).is_err());
        assert!(
            table(&[(0x8000, 16, NEXT, 1), (0x9000, 1, WRITE | NEXT, 0)], 0).is_err(),
            "a loop"
        );
        assert!(table(&[(0x8000, 16, NEXT, 4)], 0).is_err());
        // An indirect table of descriptors 2 and 3, which count from 0 there.
        let rest = [(0x8000, 16, NEXT, 1), (0x9000, 1, WRITE, 0)];
        let by = |len, flags| {
            let first = [(0, 0, 0, 0), (32, len, flags, 2)];
            table(&[&first[..], &rest].concat(), 1)
        };
        assert!(by(32, INDIRECT).is_ok());
        assert!(by(31, INDIRECT).is_err() && by(0, INDIRECT).is_err() && by(16, INDIRECT).is_err());
        assert!(by(32, INDIRECT | NEXT).is_err());
        assert!(by(1 << 21, INDIRECT).is_err(), "too long");
        // A table that names itself.
        assert!(table(&[(0, 64, INDIRECT, 0)], 0).is_err());
    }

    #[test]
    fn requests_are_what_the_specification_says() {
        let memory = memory();
        for (kind, sector, pieces, expected) in [
            (0, 8, vec![(0x9000, 4096, true)], Ok(Operation::Read(Span::between(4096, 8192)))),
            (
                0,
                2047,
                vec![(0x9000, 512, true)],
                Ok(Operation::Read(Span::between(SIZE - 512, SIZE))),
            ),
            (0, 2047, vec![(0x9000, 1024, true)], Err(Status::IoError)),
            (0, 0, vec![(0x9000, 511, true)], Err(Status::IoError)),
            (0, 0, vec![], Err(Status::IoError)),
            (0, u64::MAX, vec![(0x9000, 512, true)], Err(Status::IoError)),
            (1, 0, vec![(0x9000, 1024, false)], Ok(Operation::Write(Span::between(0, 1024)))),
            (4, 0, vec![], Ok(Operation::Flush)),
            (8, 0, vec![(0x9000, 20, true)], Ok(Operation::Id)),
            (11, 0, vec![(0x9000, 32, false)], Ok(Operation::Discard)),
            (11, 0, vec![(0x9000, 31, false)], Err(Status::IoError)),
            (11, 0, vec![], Err(Status::IoError)),
            (13, 0, vec![(0x9000, 16 * 33, false)], Err(Status::IoError)),
            (2, 0, vec![], Err(Status::Unsupported)),
        ] {
            memory.write_slice(&header(kind, sector), GuestAddress(0x8000)).unwrap();
            let mut all = vec![(0x8000, 16, false)];
            all.extend(pieces);
            all.push((0x8800, 1, true));
            let chain = chain(&memory, &all).unwrap();
            assert_eq!(chain.operation(SIZE, 512), expected, "{kind} at {sector}");
        }
    }

    #[test]
    fn a_chain_without_header_status_or_end_is_broken() {
        let memory = memory();
        let header = (0x8000, 16, false);
        for pieces in [
            vec![header],
            vec![header, (0x9000, 0, true)],
            vec![(0x8000, 15, false), (0x9000, 1, true)],
            vec![(0x9000, 1, true)],
            vec![(1 << 30, 16, false), (0x9000, 1, true)],
        ] {
            assert_eq!(chain(&memory, &pieces).err(), Some(Broken), "{pieces:?}");
        }
    }

    #[test]
    fn few_and_short_chains_are_kept_for_requests_to_come() {
        let mut spare = SpareChains::default();
        let of = |pieces| Chain { taken: Vec::with_capacity(pieces), ..Chain::default() };
        spare.give(of(MOST_PIECES));
        assert_eq!(spare.take().footprint(), 0, "a new one");
        (0..1000).for_each(|_| spare.give(of(KEPT_PIECES)));
        let kept =
            std::iter::repeat_with(|| spare.take()).take_while(|chain| chain.footprint() > 0);
        assert_eq!(kept.count(), KEPT_CHAINS);
    }

    #[test]
    fn where_the_guest_points_outside_its_memory_nothing_is_copied_there() {
        let memory = memory();
        memory.write_slice(&header(0, 0), GuestAddress(0x8000)).unwrap();
        let outside = [(0x8000, 16, false), (SIZE - 512, 1024, true), (0x9000, 1, true)];
        let chain = chain(&memory, &outside).unwrap();
        assert_eq!(chain.scatter(&memory, 0, &[7; 1024]), Err(Broken));
        assert_eq!(chain.scatter(&memory, 1000, &[7; 25]), Err(Broken), "more than it takes");
    }

    #[test]
    fn ranges_are_checked_one_by_one() {
        let memory = memory();
        let range = |sector: u64, sectors: u32, flags: u32| {
            [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
        };
        let by = |grain, kind, ranges: &[Vec<u8>]| {
            let bytes = ranges.concat();
            memory.write_slice(&header(kind, 0), GuestAddress(0x8000)).unwrap();
            memory.write_slice(&bytes, GuestAddress(0x9000)).unwrap();
            let pieces =
                [(0x8000, 16, false), (0x9000, bytes.len() as u32, false), (0xa000, 1, true)];
            chain(&memory, &pieces).unwrap().ranges(&memory, SIZE, grain, kind == 13)
        };
        let of = |kind, ranges: &[Vec<u8>]| by(512, kind, ranges);
        let found = of(13, &[range(8, 8, 1), range(0, 0, 0), range(16, 1, 0)]).unwrap();
        let spans: Vec<_> = found.iter().map(|range| (range.span, range.mode.may_punch)).collect();
        assert_eq!(spans, [(Span::between(4096, 8192), true), (Span::between(8192, 8704), false)]);
        assert_eq!(of(13, &[range(2047, 2, 0)]), Err(Status::IoError));
        assert_eq!(of(13, &[range(u64::MAX, 1, 0)]), Err(Status::IoError));
        assert_eq!(of(13, &[range(0, 1, 2)]), Err(Status::Unsupported));
        assert_eq!(of(11, &[range(0, 1, 1)]), Err(Status::Unsupported), "unmap is not for discard");
        for kind in [11, 13] {
            assert!(by(4096, kind, &[range(8, 16, 0)]).is_ok());
            for (sector, sectors) in [(1, 8), (8, 9)] {
                let found = by(4096, kind, &[range(8, 8, 0), range(sector, sectors, 0)]);
                assert_eq!(found, Err(Status::IoError), "not of the device's blocks");
            }
        }
    }

    #[test]
    fn a_disks_name_is_the_beginning_of_its_uuid() {
        assert_eq!(&id("disk 0123456789abcdef0123456789abcdef"), b"0123456789abcdef0123");
        assert_eq!(id("short")[..6], *b"short\0");
    }

    proptest! {
        /// However a request is cut into pieces, it is the same request.
        #[test]
        fn how_memory_is_cut_makes_no_difference(
            cuts in prop::collection::vec(1_u32..700, 1..12),
            data in prop::collection::vec(any::<u8>(), 1..4096),
            offset in 0_usize..2048,
        ) {
            let memory = memory();
            memory.write_slice(&header(1, 3), GuestAddress(0x8000)).unwrap();
            memory.write_slice(&data, GuestAddress(0x8010)).unwrap();
            let given = HEADER as u32 + data.len() as u32;
            let cut = |start: u64, len: u32, write: bool| {
                let mut pieces = Vec::new();
                let mut at = 0;
                for cut in cuts.iter().cycle().take(20) {
                    let now = (*cut).min(len - at);
                    pieces.push((start + u64::from(at), now, write));
                    at += now;
                }
                pieces.push((start + u64::from(at), len - at, write));
                pieces
            };
            let mut pieces = cut(0x8000, given, false);
            pieces.extend(cut(0x2_0000, 4097, true));
            let chain = chain(&memory, &pieces).unwrap();
            prop_assert_eq!(chain.given_len, data.len() as u64);
            let mut found = vec![0; data.len()];
            chain.gather(&memory, 0, &mut found).unwrap();
            prop_assert_eq!(&found, &data);
            let behind = offset.min(data.len());
            chain.gather(&memory, behind, &mut found[behind..]).unwrap();
            prop_assert_eq!(&found, &data);
            let fits = offset + data.len() <= 4096;
            prop_assert_eq!(chain.scatter(&memory, offset, &data).is_ok(), fits);
            chain.put_status(&memory, Status::Unsupported).unwrap();
            let mut taken = vec![0; 4098];
            memory.read_slice(&mut taken, GuestAddress(0x2_0000)).unwrap();
            prop_assert_eq!(&taken[4096..], &[2, 0]);
            if fits {
                prop_assert_eq!(&taken[offset..offset + data.len()], &data[..]);
            }
        }
    }
}

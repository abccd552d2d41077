//! What a peer has, as it tells others: 32 bits of each id, in the order in which they came.
//!
//! Ids are keyed hashes, so 32 of their bits are as good as any: of a million chunks, one in 4000 that are not there
//! seems to be there. An answer has the log's number, so that who knows one of an earlier start or from before
//! a rebuild notices, and the bits from where the asker's knowledge ends.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | the log's number |
//! | 8 | 8 | how many come before these |
//! | 16 | 4 each | the first bytes of ids, at most [`MOST_AT_ONCE`] |
//!
//! Numbers are little-endian.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::{ChunkId, ChunkRef, Encoding, MapId, PackId};
use tokio::sync::watch;

/// Chunks and maps that are told of at the most: 64 GiB of an image, about.
pub const MOST: usize = 1 << 20;
/// So long a log is at the most: it may tell of what is gone, too.
pub(crate) const LONGEST_LOG: u64 = 2 * MOST as u64;
/// Chunks and maps that one answer tells of at the most.
pub const MOST_AT_ONCE: usize = 1 << 16;
/// The longest answer, in bytes.
pub const LONGEST: usize = HEAD + 4 * MOST_AT_ONCE;
const HEAD: usize = 16;
/// So much is gathered before it is told: a boot brings hundreds of chunks in a second.
const GATHER: Duration = Duration::from_millis(100);
/// A log is written anew when it tells of so many that are gone, and of a quarter.
const GONE: usize = 1024;

type IdBits = u32;

fn bits(id: &[u8; 32]) -> IdBits {
    u32::from_le_bytes([id[0], id[1], id[2], id[3]])
}

/// What tells a chunk from the others of an [`Inventory`]; its low half are its [`bits`].
fn key(id: &ChunkId) -> u64 {
    let id = id.as_bytes();
    u64::from_le_bytes([id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]])
}

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryPart {
    /// The log's number.
    pub log: u64,
    /// How many ids come before these.
    pub from: u64,
    /// The first bytes of ids.
    pub bits: Vec<u32>,
}

impl SummaryPart {
    /// Encodes it for sending.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + 4 * self.bits.len());
        bytes.extend_from_slice(&self.log.to_le_bytes());
        bytes.extend_from_slice(&self.from.to_le_bytes());
        self.bits.iter().for_each(|bits| bytes.extend_from_slice(&bits.to_le_bytes()));
        bytes
    }

    /// Reads what was sent; `None` for what is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (log, rest) = bytes.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (bits, []) = rest.as_chunks::<4>() else { return None };
        let fits = bits.len() <= MOST_AT_ONCE;
        fits.then(|| Self {
            log: u64::from_le_bytes(*log),
            from: u64::from_le_bytes(*from),
            bits: bits.iter().map(|four| u32::from_le_bytes(*four)).collect(),
        })
    }
}

/// What a peer says that it has.
#[derive(Debug, Default)]
pub struct ClaimedChunks {
    log: u64,
    /// How much of the log was taken.
    next: u64,
    bits: HashSet<IdBits>,
}

impl ClaimedChunks {
    /// What is known: the log's number, and how much of it.
    pub fn known(&self) -> (u64, u64) {
        (self.log, self.next)
    }

    /// Takes a part; whether it goes on where the last one ended, or begins another log. Otherwise, and when there is
    /// more than any honest peer tells, all is forgotten.
    pub fn take(&mut self, part: &SummaryPart) -> bool {
        self.take_up_to(LONGEST_LOG, part)
    }

    /// The same, with at most so many ids: of what is beyond these it claims nothing.
    pub(crate) fn take_up_to(&mut self, most: u64, part: &SummaryPart) -> bool {
        if part.log != self.log || part.from != self.next {
            *self = Self { log: part.log, ..Self::default() };
        }
        let next = part.from.saturating_add(part.bits.len() as u64);
        if part.from != self.next || next > LONGEST_LOG {
            *self = Self::default();
            return false;
        }
        let room = most.saturating_sub(self.len());
        self.bits.extend(part.bits.iter().take(usize::try_from(room).unwrap_or(usize::MAX)));
        self.next = next;
        true
    }

    /// Whether it claims an id.
    pub fn claims(&self, id: &[u8; 32]) -> bool {
        self.bits.contains(&bits(id))
    }

    /// Forgets that it claims an id.
    pub fn disown(&mut self, id: &[u8; 32]) {
        self.bits.remove(&bits(id));
    }

    /// How many it claims.
    pub fn len(&self) -> u64 {
        self.bits.len() as u64
    }

    /// Whether it claims none.
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }
}

/// What is in the piece cache of this machine, as far as it was noted, and where: for other peers.
#[derive(Debug)]
pub struct Inventory {
    noted: Mutex<NotedChunks>,
    /// Changes with what is noted.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct NotedChunks {
    log: u64,
    bits: Vec<IdBits>,
    places: HashMap<u64, PlaceInPack>,
    packs: Vec<PackId>,
    pack_numbers: HashMap<PackId, u32>,
    maps: HashSet<MapId>,
    /// Entries of the log that are not here any more.
    gone: usize,
}

/// A place, in 16 bytes: there may be a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlaceInPack {
    pack: u32,
    offset: u32,
    stored: u32,
    /// Its low bits are the encoding: lengths are whole pages.
    len_and_encoding: u32,
}

impl Inventory {
    /// An empty one. `log` is not that of an earlier process: a random number.
    pub fn new(log: u64) -> Self {
        let noted = NotedChunks {
            log,
            bits: Vec::new(),
            places: HashMap::new(),
            packs: Vec::new(),
            pack_numbers: HashMap::new(),
            maps: HashSet::new(),
            gone: 0,
        };
        Self { noted: Mutex::new(noted), changes: watch::Sender::new(0) }
    }

    /// A chunk is kept here, at this place of the store.
    pub fn note(&self, at: &ChunkRef) {
        let mut noted = self.noted.lock();
        if noted.len() >= MOST && !noted.places.contains_key(&key(&at.id)) {
            return;
        }
        let Some(pack) = noted.pack_number(at.pack) else { return };
        let place = PlaceInPack {
            pack,
            offset: at.offset,
            stored: at.stored,
            len_and_encoding: at.len | at.encoding as u32,
        };
        if noted.places.insert(key(&at.id), place).is_none() {
            noted.bits.push(bits(at.id.as_bytes()));
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// A map is kept here.
    pub fn note_map(&self, id: &MapId) {
        let mut noted = self.noted.lock();
        if noted.len() < MOST && noted.maps.insert(*id) {
            noted.bits.push(bits(id.as_bytes()));
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Where a chunk was noted.
    pub fn place(&self, id: &ChunkId) -> Option<ChunkRef> {
        let noted = self.noted.lock();
        let place = noted.places.get(&key(id))?;
        Some(ChunkRef {
            id: *id,
            len: place.len_and_encoding & !0xfff,
            pack: *noted.packs.get(place.pack as usize)?,
            offset: place.offset,
            stored: place.stored,
            encoding: Encoding::from_number((place.len_and_encoding & 0xfff) as u8)?,
        })
    }

    /// A chunk is not kept any more.
    pub fn forget(&self, id: &ChunkId) {
        let mut noted = self.noted.lock();
        if noted.places.remove(&key(id)).is_some() {
            noted.one_is_gone();
        }
    }

    /// A map is not kept any more.
    pub fn forget_map(&self, id: &MapId) {
        let mut noted = self.noted.lock();
        if noted.maps.remove(id) {
            noted.one_is_gone();
        }
    }

    /// How many chunks and maps are noted.
    pub fn len(&self) -> usize {
        self.noted.lock().len()
    }

    /// Whether nothing is noted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What who knows so much of a log does not know yet.
    pub fn since(&self, log: u64, known: u64) -> SummaryPart {
        let noted = self.noted.lock();
        let from = usize::try_from(known).ok().filter(|from| *from <= noted.bits.len());
        let from = from.filter(|_| log == noted.log).unwrap_or(0);
        let end = noted.bits.len().min(from + MOST_AT_ONCE);
        SummaryPart { log: noted.log, from: from as u64, bits: noted.bits[from..end].to_vec() }
    }

    /// The same, once there is any or it is another log.
    pub async fn news(&self, log: u64, known: u64) -> SummaryPart {
        let mut changes = self.changes.subscribe();
        loop {
            let part = self.since(log, known);
            if part.log != log || part.bits.len() == MOST_AT_ONCE {
                return part;
            }
            if !part.bits.is_empty() {
                tokio::time::sleep(GATHER).await;
                return self.since(log, known);
            }
            // The sender is this one's own.
            let _ = changes.changed().await;
        }
    }
}

impl NotedChunks {
    fn len(&self) -> usize {
        self.places.len() + self.maps.len()
    }

    fn pack_number(&mut self, pack: PackId) -> Option<u32> {
        if let Some(number) = self.pack_numbers.get(&pack) {
            return Some(*number);
        }
        let number = u32::try_from(self.packs.len()).ok()?;
        self.packs.push(pack);
        self.pack_numbers.insert(pack, number);
        Some(number)
    }

    /// When much of the log is not so any more, it is written anew.
    fn one_is_gone(&mut self) {
        self.gone += 1;
        if self.gone < GONE.max(self.bits.len() / 4) {
            return;
        }
        let chunks = self.places.keys().map(|key| *key as u32);
        self.bits = chunks.chain(self.maps.iter().map(|id| bits(id.as_bytes()))).collect();
        (self.log, self.gone) = (self.log.wrapping_add(1), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(number: u32) -> ChunkId {
        let mut id = [7; 32];
        id[..4].copy_from_slice(&number.to_le_bytes());
        ChunkId(id)
    }

    fn at(number: u32) -> ChunkRef {
        let (len, stored, encoding) = (8192, 5000, Encoding::Zstd);
        let pack = PackId([(number % 3) as u8; 32]);
        ChunkRef { id: id(number), len, pack, offset: number, stored, encoding }
    }

    fn catch_up(claimed: &mut ClaimedChunks, inventory: &Inventory) {
        loop {
            let (log, known) = claimed.known();
            let part = SummaryPart::decode(&inventory.since(log, known).encode()).unwrap();
            assert!(claimed.take(&part));
            if part.bits.len() < MOST_AT_ONCE {
                return;
            }
        }
    }

    proptest! {
        #[test]
        fn a_part_is_read_as_it_was_written(log: u64, from: u64, bits in prop::collection::vec(any::<u32>(), 0..50)) {
            let part = SummaryPart { log, from, bits };
            prop_assert_eq!(SummaryPart::decode(&part.encode()), Some(part.clone()));
            prop_assert_eq!(SummaryPart::decode(&part.encode()[1..]), None);
        }

        /// Whatever comes and goes, who asks now and then claims at least what is there, and knows where it is.
        #[test]
        fn what_is_noted_is_claimed_and_found(steps in prop::collection::vec((0u32..200, 0u8..8), 1..300)) {
            let inventory = Inventory::new(5);
            let (mut claimed, mut here) = (ClaimedChunks::default(), HashSet::new());
            for (number, what) in steps {
                match what {
                    0..=3 => {
                        inventory.note(&at(number));
                        here.insert(number);
                    }
                    4 | 5 => {
                        inventory.forget(&id(number));
                        here.remove(&number);
                    }
                    6 => {
                        let known = MapId::of_kind(2, *id(1000 + number).as_bytes()).unwrap();
                        inventory.note_map(&known);
                        inventory.forget_map(&known);
                    }
                    _ => catch_up(&mut claimed, &inventory),
                }
            }
            catch_up(&mut claimed, &inventory);
            for number in 0..200 {
                let place = inventory.place(&id(number));
                prop_assert_eq!(place, here.contains(&number).then(|| at(number)));
                prop_assert!(!here.contains(&number) || claimed.claims(id(number).as_bytes()));
            }
            prop_assert_eq!(inventory.len(), here.len());
        }

        #[test]
        fn parts_of_a_liar_take_bounded_room(parts in prop::collection::vec((0u64..3, 0u64..9, 0usize..5), 1..50)) {
            let mut claimed = ClaimedChunks::default();
            for (log, from, count) in parts {
                let bits = vec![7; count];
                claimed.take(&SummaryPart { log, from: from * (MOST as u64 / 4), bits });
                prop_assert!(claimed.known().1 <= LONGEST_LOG && claimed.len() <= LONGEST_LOG);
            }
        }
    }

    #[test]
    fn a_log_is_written_anew_when_much_of_it_is_gone() {
        let inventory = Inventory::new(5);
        (0..2000).for_each(|number| inventory.note(&at(number)));
        let mut claimed = ClaimedChunks::default();
        catch_up(&mut claimed, &inventory);
        assert_eq!(claimed.len(), 2000);
        (0..1500).for_each(|number| inventory.forget(&id(number)));
        catch_up(&mut claimed, &inventory);
        assert!(claimed.len() < 1000, "{}", claimed.len());
        assert!((1500..2000).all(|number| claimed.claims(id(number).as_bytes())));
    }

    #[tokio::test(start_paused = true)]
    async fn news_is_waited_for_and_told_together() {
        let inventory = Inventory::new(5);
        let news = inventory.news(5, 0);
        let noting = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            inventory.note(&at(1));
            inventory.note(&at(2));
        };
        let (part, ()) = tokio::join!(news, noting);
        assert_eq!((part.log, part.from, part.bits), (5, 0, vec![1, 2]));
        assert_eq!(inventory.news(4, 9).await.bits.len(), 2, "of another log all is told at once");
    }
}

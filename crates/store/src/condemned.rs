//! Lists of objects that a collection found unreferenced: `condemned/<id>`.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 16 | random: gives each list its own id |
//! | 16 | 4 | n, number of objects |
//! | 20 | 4 | reserved |
//! | 24 | 40 × n | objects, by rising kind, then id |
//!
//! and of each object:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 manifest, 2 segment, 3 boot list, 4 pack, 5 moved |
//! | 1 | 3 | reserved |
//! | 4 | 4 | its length |
//! | 8 | 32 | its id; of a moved object the id of the pack that it is about |
//!
//! The id of a list is the hash of its body.

use crate::object_kind::ObjectKind;
use crate::wire::{damaged, unknown};
use crate::{BootListId, ManifestId, PackId, SegmentId};
use block::Result;
use bytes::Bytes;
use std::collections::HashSet;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Objects in one list at the most: what is left over goes into the next one.
pub(crate) const MAX_OBJECTS: usize = 1 << 20;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CondemnedHeader {
    random: [u8; 16],
    objects: U32,
    reserved: [u8; 4],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CondemnedEntry {
    kind: u8,
    reserved: [u8; 3],
    size: U32,
    id: [u8; 32],
}

/// What a collection may delete, in the order in which it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum CondemnedKind {
    Manifest = 1,
    Segment = 2,
    BootList = 3,
    Pack = 4,
    Moved = 5,
}

impl CondemnedKind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Manifest, Self::Segment, Self::BootList, Self::Pack, Self::Moved];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The first part of a key.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Manifest => ObjectKind::Root.prefix(),
            Self::Segment => ObjectKind::Segment.prefix(),
            Self::BootList => ObjectKind::BootList.prefix(),
            Self::Pack => crate::pack::PREFIX,
            Self::Moved => ObjectKind::Moved.prefix(),
        }
    }
}

/// What an object is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CondemnedName {
    pub(crate) kind: CondemnedKind,
    pub(crate) id: [u8; 32],
}

impl CondemnedName {
    /// Its key in the store.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.kind.prefix(), blake3::Hash::from_bytes(self.id))
    }
}

/// An object and its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CondemnedObject {
    pub(crate) name: CondemnedName,
    pub(crate) size: u32,
}

/// The key of a list.
pub(crate) fn key(id: &[u8; 32]) -> String {
    ObjectKind::Condemned.key(&blake3::Hash::from_bytes(*id))
}

/// The body of a list, whose items are in order, each once.
pub(crate) fn encode(random: [u8; 16], items: &[CondemnedObject]) -> Vec<u8> {
    let header = CondemnedHeader { random, objects: (items.len() as u32).into(), reserved: [0; 4] };
    let mut body = Vec::with_capacity(
        size_of::<CondemnedHeader>() + items.len() * size_of::<CondemnedEntry>(),
    );
    body.extend_from_slice(header.as_bytes());
    for CondemnedObject { name, size } in items {
        let entry = CondemnedEntry {
            kind: name.kind as u8,
            reserved: [0; 3],
            size: (*size).into(),
            id: name.id,
        };
        body.extend_from_slice(entry.as_bytes());
    }
    body
}

/// Checks the body of a list.
pub(crate) fn decode(key: &str, body: Bytes) -> Result<Vec<CondemnedObject>> {
    let (header, rows) =
        CondemnedHeader::ref_from_prefix(&body).map_err(|_| damaged(key, "it is too short"))?;
    let entries = <[CondemnedEntry]>::ref_from_bytes(rows)
        .map_err(|_| damaged(key, "its objects are cut off"))?;
    if header.reserved != [0; 4]
        || entries.len() != header.objects.get() as usize
        || entries.len() > MAX_OBJECTS
    {
        return Err(damaged(key, "its lengths do not match its size"));
    }
    let mut items: Vec<CondemnedObject> = Vec::with_capacity(entries.len());
    for entry in entries {
        let kind = CondemnedKind::from_number(entry.kind)
            .ok_or_else(|| unknown(key, &format!("objects of kind {}", entry.kind)))?;
        let name = CondemnedName { kind, id: entry.id };
        if entry.reserved != [0; 3] || items.last().is_some_and(|last| last.name >= name) {
            return Err(damaged(key, "its objects are not in order"));
        }
        items.push(CondemnedObject { name, size: entry.size.get() });
    }
    Ok(items)
}

/// Objects that count as absent: they are, or may be, about to be deleted.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    names: HashSet<CondemnedName>,
}

impl Absent {
    pub(crate) fn add(&mut self, items: &[CondemnedObject]) {
        self.names.extend(items.iter().map(|item| item.name));
    }

    pub(crate) fn pack(&self, id: &PackId) -> bool {
        self.has(CondemnedKind::Pack, id.0)
    }

    pub(crate) fn segment(&self, id: &SegmentId) -> bool {
        self.has(CondemnedKind::Segment, id.0)
    }

    pub(crate) fn manifest(&self, id: &ManifestId) -> bool {
        self.has(CondemnedKind::Manifest, id.0)
    }

    pub(crate) fn boot_list(&self, id: &BootListId) -> bool {
        self.has(CondemnedKind::BootList, id.0)
    }

    /// Whether the object of a key is among them.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        let Some((prefix, name)) = key.split_once('/') else { return false };
        let kind = CondemnedKind::ALL.into_iter().find(|kind| kind.prefix() == prefix);
        let id = crate::id::parse_hex("id", name).ok();
        kind.zip(id).is_some_and(|(kind, id)| self.has(kind, id))
    }

    pub(crate) fn has(&self, kind: CondemnedKind, id: [u8; 32]) -> bool {
        !self.names.is_empty() && self.names.contains(&CondemnedName { kind, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use proptest::prelude::*;

    fn items(raw: &[(u8, u8, u32)]) -> Vec<CondemnedObject> {
        let mut items: Vec<CondemnedObject> = raw
            .iter()
            .map(|(kind, id, size)| CondemnedObject {
                name: CondemnedName {
                    kind: CondemnedKind::ALL[usize::from(*kind) % 5],
                    id: [*id; 32],
                },
                size: *size,
            })
            .collect();
        items.sort_unstable();
        items.dedup_by_key(|item| item.name);
        items
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written_and_a_broken_one_is_refused(
            raw in prop::collection::vec((0u8..5, any::<u8>(), any::<u32>()), 0..20),
            cut in 1usize..100,
        ) {
            let items = items(&raw);
            let body = encode([7; 16], &items);
            prop_assert_eq!(decode("c", body.clone().into()).unwrap(), items);
            let short = body.len().saturating_sub(cut);
            prop_assert!(decode("c", body[..short].to_vec().into()).is_err());
        }
    }

    #[test]
    fn an_unknown_kind_asks_for_a_newer_build_and_disorder_is_damage() {
        let list = items(&[(0, 1, 5), (3, 2, 6)]);
        let good = encode([0; 16], &list);
        let mut newer = good.clone();
        newer[24] = 9;
        assert_eq!(decode("c", newer.into()).unwrap_err().kind(), ErrorKind::Unsupported);
        let mut swapped = encode([0; 16], &[list[1], list[0]]);
        assert_eq!(decode("c", swapped.clone().into()).unwrap_err().kind(), ErrorKind::Corrupt);
        swapped.truncate(20);
        assert!(decode("c", swapped.into()).is_err());
    }
}

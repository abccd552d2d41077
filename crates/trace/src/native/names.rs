//! Names of clients and disks, as frames that each add some to those before: a recorder learns them
//! as they come, and a file never holds one twice.

use crate::header::MAX_PARTIES;
use crate::{Header, TraceDisk};
use block::{Error, Result};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// Bytes that the names frames of a file may take together.
pub(crate) const MOST_BYTES: u64 = 256 << 20;
/// What a frame counts in addition: there must not be too many small ones.
pub(crate) const FRAME: u64 = 256;
/// Names of a frame that is written are cut off behind so many bytes.
const CUT: usize = 1 << 20;

/// A frame of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NamesFrame {
    /// Where the names frame before this one begins; 0 when this is the first.
    pub(crate) before: u64,
    /// The number of the first client in `clients`; what was said of it before holds no more.
    pub(crate) clients_from: usize,
    #[serde(deserialize_with = "few")]
    pub(crate) clients: Vec<String>,
    /// The same of disks.
    pub(crate) disks_from: usize,
    #[serde(deserialize_with = "few")]
    pub(crate) disks: Vec<TraceDisk>,
}

/// A list that is no longer than a trace may name clients or disks: three bytes of a file are a name of
/// nothing, which takes ten times as much in memory.
fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of {MAX_PARTIES} at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(one) = list.next_element()? {
                if all.len() >= MAX_PARTIES as usize {
                    return Err(A::Error::custom(format!(
                        "more than {MAX_PARTIES} clients or disks"
                    )));
                }
                all.push(one);
            }
            Ok(all)
        }
    }
    from.deserialize_seq(Few(PhantomData))
}

/// What a frame says of the one before it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Chain {
    before: u64,
}

/// Where the names frame before one of this payload begins, which stands at `at`; 0: it is the first.
pub(crate) fn before(payload: &[u8], at: u64) -> Result<u64> {
    let Chain { before } = read(payload, at)?;
    if before >= at {
        return Err(Error::corrupt(format!("offset {at}: names that point forwards")));
    }
    Ok(before)
}

/// Reads JSON.
fn read<'a, T: Deserialize<'a>>(payload: &'a [u8], at: u64) -> Result<T> {
    serde_json::from_slice(payload)
        .map_err(|e| Error::corrupt(format!("offset {at}: the trace's names cannot be read: {e}")))
}

impl NamesFrame {
    /// The names of `header` from these numbers on, as many as a frame should have.
    pub(crate) fn of(header: &Header, clients_from: usize, disks_from: usize) -> Self {
        let mut names = Self { clients_from, disks_from, ..Self::default() };
        let mut bytes = 0;
        for client in header.clients.iter().skip(clients_from) {
            if bytes >= CUT {
                break;
            }
            bytes += client.len() + 8;
            names.clients.push(client.clone());
        }
        for disk in header.disks.iter().skip(disks_from) {
            if bytes >= CUT {
                break;
            }
            bytes += disk.name.len() + disk.base.len() + 64;
            names.disks.push(disk.clone());
        }
        names
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.disks.is_empty()
    }

    /// Encodes them as a frame's payload.
    pub(crate) fn payload(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|e| Error::internal("a trace's names cannot be written").with_source(e))
    }

    /// Reads a frame's payload; `at` is where the frame stands.
    pub(crate) fn parse(payload: &[u8], at: u64) -> Result<Self> {
        before(payload, at)?;
        read(payload, at)
    }

    /// Adds them to those that a header has.
    pub(crate) fn add_to(self, header: &mut Header) -> Result<()> {
        put(&mut header.clients, self.clients_from, self.clients)?;
        put(&mut header.disks, self.disks_from, self.disks)
    }
}

/// Puts `new` into a list from a place on.
fn put<T>(list: &mut Vec<T>, from: usize, new: Vec<T>) -> Result<()> {
    if from > list.len() || new.len() > MAX_PARTIES as usize - from {
        return Err(Error::corrupt(format!(
            "the trace names clients or disks from number {from} on, where {} are known and \
             {MAX_PARTIES} are the limit",
            list.len()
        )));
    }
    let end = (from + new.len()).min(list.len());
    list.splice(from..end, new);
    Ok(())
}

/// From where on two lists differ.
pub(crate) fn same<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_added_behind_and_in_place_of_others_but_never_beyond() {
        let mut header = Header::default();
        let add = |header: &mut Header, from: usize, names: &[&str]| {
            let clients = names.iter().map(|name| (*name).to_owned()).collect();
            NamesFrame { clients_from: from, clients, ..NamesFrame::default() }.add_to(header)
        };
        add(&mut header, 0, &["a", "b", "c"]).unwrap();
        add(&mut header, 3, &["d"]).unwrap();
        add(&mut header, 1, &["x"]).unwrap();
        assert_eq!(header.clients, ["a", "x", "c", "d"]);
        assert!(add(&mut header, 5, &["gap"]).is_err());
        let clients = vec![String::new(); MAX_PARTIES as usize];
        let names = NamesFrame { clients_from: 1, clients, ..NamesFrame::default() };
        assert!(names.add_to(&mut header).is_err());
    }

    #[test]
    fn a_frame_of_more_names_than_a_trace_may_have_is_refused_while_it_is_read() {
        let list = |one: &str, count| vec![one; count].join(",");
        for (what, one) in [("clients", "\"\""), ("disks", "{}")] {
            let most = MAX_PARTIES as usize;
            let frame = |count| format!("{{\"{what}\":[{}]}}", list(one, count)).into_bytes();
            let names = NamesFrame::parse(&frame(most), 16).unwrap();
            assert_eq!(names.clients.len() + names.disks.len(), most);
            let error = NamesFrame::parse(&frame(most + 1), 16).unwrap_err();
            assert!(error.to_string().contains("more than 1048576 clients or disks"), "{error}");
        }
        assert!(before(b"{\"before\":16}", 16).is_err());
        assert_eq!(before(b"{\"before\":15,\"clients\":[\"a\"]}", 16).unwrap(), 15);
    }
}

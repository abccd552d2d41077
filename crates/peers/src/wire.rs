//! What passes between two peers, as both write and read it. Pure.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/TAG/?member=M&port=P` | [`Hello`], as JSON; the asker is the member M, and is asked itself at port P |
//! | `GET /v1/TAG/summary?log=L&from=N` | what there is beyond N of log L, once there is any |
//! | `GET /v1/TAG/chunks/ID?…` | the number of an encoding, or [`NOT_HERE`], and the chunk as stored |
//! | `GET /v1/TAG/maps/KEY` | the byte 0 or [`NOT_HERE`], and the object |
//!
//! `TAG` is the store's. With `&for=demand` or `&for=ahead` the owner of a chunk reads it from the store if it has to,
//! with `?for=all` that of a map.

use lookaside::share::MemberId;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use store::chunker::MAX_CHUNK;
use store::{ChunkId, ChunkRef, Encoding, MapId, PackId, Settings};

/// The version of the protocol, as it stands in paths.
pub const VERSION: u32 = 1;
/// What both agree to speak.
pub const PROTOCOL: &[u8] = b"h2";
/// The first byte of an answer that has nothing more: what was asked for is not here.
pub const NOT_HERE: u8 = 0xff;
/// The longest path and query that are read, in bytes.
pub const LONGEST_PATH: usize = 512;
/// The longest answer about a chunk, in bytes.
pub const LONGEST_CHUNK: u64 = MAX_CHUNK as u64 + 64;

/// Tells the stores apart, and is known to who has their key.
pub type StoreTag = [u8; 16];

/// The tag of a store: a keyed hash, as ids of chunks are, of what is the content of no chunk.
pub fn tag_of(settings: &Settings) -> StoreTag {
    let mut tag = StoreTag::default();
    tag.copy_from_slice(&settings.chunk_id(b"sojourn peers of one store v1").as_bytes()[..16]);
    tag
}

/// What a peer says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the protocol: [`VERSION`].
    pub peer: u32,
    /// Its number among those who share the way to the store: 16 hexadecimal digits.
    pub member: String,
    /// The version of the program.
    pub sojourn: String,
}

impl Hello {
    /// The member that it names; `None` when that is no number, or it speaks another version.
    pub fn member(&self) -> Option<MemberId> {
        (self.peer == VERSION).then(|| parse_member(&self.member)).flatten()
    }
}

/// For whom an owner reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchUrgency {
    /// A guest waits.
    Demand,
    /// It is read ahead.
    Ahead,
}

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerQuestion {
    /// Who are you?
    Hello {
        /// Who asks.
        member: MemberId,
        /// Where it is asked.
        port: u16,
    },
    /// What have you got, beyond this?
    Summary {
        /// The log that is known.
        log: u64,
        /// How much of it.
        from: u64,
    },
    /// A chunk.
    Chunk {
        /// The chunk, and where the asker would read it.
        at: ChunkRef,
        /// Read it from the store, if need be.
        fetch: Option<FetchUrgency>,
    },
    /// A map.
    Map {
        /// Which.
        id: MapId,
        /// Read it from the store, if need be.
        fetch: bool,
    },
}

impl PeerQuestion {
    /// Path and query.
    pub fn text(&self, tag: &StoreTag) -> String {
        let mut text = format!("/v1/{}/", hex(tag));
        // Writing into a string does not fail.
        let _ = match self {
            Self::Hello { member, port } => write!(text, "?member={:016x}&port={port}", member.0),
            Self::Summary { log, from } => write!(text, "summary?log={log:016x}&from={from}"),
            Self::Chunk { at, fetch } => {
                let encoding = at.encoding as u8;
                let _ = write!(
                    text,
                    "chunks/{}?len={}&pack={}&offset={}&stored={}&encoding={encoding}",
                    at.id, at.len, at.pack, at.offset, at.stored
                );
                text.push_str(match fetch {
                    Some(FetchUrgency::Demand) => "&for=demand",
                    Some(FetchUrgency::Ahead) => "&for=ahead",
                    None => "",
                });
                Ok(())
            }
            Self::Map { id, fetch } => {
                write!(text, "maps/{id}{}", if *fetch { "?for=all" } else { "" })
            }
        };
        text
    }

    /// Reads a question to a peer of the store with this tag. There is one form of each; `None` for all else.
    pub fn parse(tag: &StoreTag, text: &str) -> Option<Self> {
        if text.len() > LONGEST_PATH {
            return None;
        }
        let text = text.strip_prefix("/v1/")?.strip_prefix(&hex(tag))?.strip_prefix('/')?;
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let mut pairs = query.split('&');
        let mut value = |key: &str| pairs.next()?.strip_prefix(key)?.strip_prefix('=');
        let question = match path.split_once('/') {
            None if path.is_empty() => {
                let member = parse_member(value("member")?)?;
                Self::Hello { member, port: number(value("port")?)?.try_into().ok()? }
            }
            None if path == "summary" => {
                let log = parse_member(value("log")?)?.0;
                Self::Summary { log, from: number(value("from")?)? }
            }
            Some(("chunks", id)) => {
                let id: ChunkId = id.parse().ok()?;
                let len = small(value("len")?)?;
                let pack: PackId = value("pack")?.parse().ok()?;
                let (offset, stored) = (small(value("offset")?)?, small(value("stored")?)?);
                let encoding = u8::try_from(number(value("encoding")?)?).ok()?;
                let encoding = Encoding::from_number(encoding)?;
                let fits = len > 0 && len % 4096 == 0 && len <= MAX_CHUNK;
                if !fits || !encoding.allows(stored, len) {
                    return None;
                }
                let at = ChunkRef { id, len, pack, offset, stored, encoding };
                let fetch = match value("for") {
                    Some("demand") => Some(FetchUrgency::Demand),
                    Some("ahead") => Some(FetchUrgency::Ahead),
                    _ => None,
                };
                Self::Chunk { at, fetch }
            }
            Some(("maps", key)) => {
                let (folder, id) = key.split_once('/')?;
                let id: ChunkId = id.parse().ok()?;
                let of_kind = |number| MapId::of_kind(number, *id.as_bytes());
                let ids = (1..=3).filter_map(of_kind);
                let id = ids.into_iter().find(|id| id.path().as_ref().starts_with(folder))?;
                Self::Map { id, fetch: value("for") == Some("all") }
            }
            _ => return None,
        };
        // What was left out or added is another text.
        (question.text(tag).get(4 + 32 + 1..) == Some(text)).then_some(question)
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn small(text: &str) -> Option<u32> {
    u32::try_from(number(text)?).ok()
}

/// A number as 16 hexadecimal digits.
fn parse_member(text: &str) -> Option<MemberId> {
    let plain = text.len() == 16 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(MemberId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAG: StoreTag = [0xa5; 16];

    fn at(id: [u8; 32], pages: u32, offset: u32) -> ChunkRef {
        let (len, encoding) = (pages * 4096, Encoding::Plain);
        ChunkRef { id: ChunkId(id), len, pack: PackId([9; 32]), offset, stored: len, encoding }
    }

    fn any_question() -> impl Strategy<Value = PeerQuestion> {
        let urgency = prop_oneof![
            Just(None),
            Just(Some(FetchUrgency::Demand)),
            Just(Some(FetchUrgency::Ahead))
        ];
        prop_oneof![
            (any::<u64>(), any::<u16>())
                .prop_map(|(member, port)| PeerQuestion::Hello { member: MemberId(member), port }),
            (any::<u64>(), any::<u64>())
                .prop_map(|(log, from)| PeerQuestion::Summary { log, from }),
            (any::<[u8; 32]>(), 1u32..=64, any::<u32>(), urgency).prop_map(
                |(id, pages, offset, fetch)| PeerQuestion::Chunk {
                    at: at(id, pages, offset),
                    fetch
                }
            ),
            (any::<[u8; 32]>(), 1u32..=3, any::<bool>()).prop_filter_map(
                "a kind",
                |(id, kind, fetch)| {
                    MapId::of_kind(kind, id).map(|id| PeerQuestion::Map { id, fetch })
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_question_is_read_as_it_was_written_and_by_peers_of_its_store_alone(asked in any_question()) {
            let text = asked.text(&TAG);
            prop_assert!(text.len() <= LONGEST_PATH);
            prop_assert_eq!(PeerQuestion::parse(&TAG, &text), Some(asked));
            prop_assert_eq!(PeerQuestion::parse(&[0xa4; 16], &text), None);
        }

        #[test]
        fn there_is_one_form_of_a_question(asked in any_question(), cut in 0usize..200, with in "[a-z0-9&=?/]{0,3}") {
            let mut text = asked.text(&TAG);
            let cut = cut.min(text.len());
            text.replace_range(cut..(cut + with.len()).min(text.len()), &with);
            if let Some(other) = PeerQuestion::parse(&TAG, &text) {
                prop_assert_eq!(other.text(&TAG), text);
            }
        }
    }

    #[test]
    fn a_chunk_that_cannot_be_is_not_asked_for() {
        for (len, stored) in [(0, 0), (4095, 4095), (512 << 10, 512 << 10), (8192, 9000)] {
            let odd = ChunkRef { len, stored, ..at([1; 32], 1, 0) };
            let text = PeerQuestion::Chunk { at: odd, fetch: None }.text(&TAG);
            assert_eq!(PeerQuestion::parse(&TAG, &text), None, "{text}");
        }
    }

    #[test]
    fn who_speaks_another_version_is_no_member() {
        let hello = Hello { peer: VERSION, member: "00000000000000ff".into(), sojourn: "1".into() };
        assert_eq!(hello.member(), Some(MemberId(255)));
        assert_eq!(Hello { peer: 2, ..hello.clone() }.member(), None);
        assert_eq!(Hello { member: "+0000000000000ff".into(), ..hello }.member(), None);
    }
}

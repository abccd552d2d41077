//! What passes between client and server, as both write and read it. Pure.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/` | what this is, as JSON ([`About`]) |
//! | `GET`, `HEAD /v1/objects/<key>` | an object, or with `Range` a part of it |
//! | `PUT /v1/objects/<key>` | nothing |
//! | `DELETE /v1/objects/<key>` | nothing |
//! | `GET /v1/list/<prefix>` | [`ListedObject`]s, as JSON |
//! | `POST /v1/ranges` | parts of objects, one after the other ([`parse_batch`], [`PART`]) |

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use store::id::CondemnedId;
use store::{
    BootListId, ManifestId, PackId, RefKey, RefKind, SegmentId, ServerId, Settings, WriterId,
};

/// The version of the protocol, as it stands in paths.
pub const VERSION: u32 = 1;
/// The header that says when an object was written, in milliseconds since 1970 by the store's clock.
pub const MODIFIED: &str = "sojourn-modified";
/// The most parts of one batch.
pub const MOST_PARTS: usize = 1024;
/// The most bytes of one batch, and of one answer: 32 MiB, a whole pack.
pub const MOST_BYTES: u64 = 32 << 20;
/// The longest body of a batch's request: lines of up to 160 bytes.
pub const LONGEST_BATCH: usize = MOST_PARTS * 160;
/// Bytes before each part of a batch's answer: its length, a little-endian number, or [`ABSENT`].
pub const PART: usize = 4;
/// The length of a part that is not there, or not for this client.
pub const ABSENT: u32 = u32::MAX;
/// The longest path that is looked at.
const LONGEST_PATH: usize = 512;

/// What a gateway says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The version of the protocol: [`VERSION`].
    pub gateway: u32,
    /// The version of the program.
    pub sojourn: String,
    /// The name in the client's certificate.
    pub client: String,
    /// Whether the store is encrypted: then clients need its key.
    pub encrypted: bool,
}

/// An object of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedObject {
    /// Its key.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
    /// When it was written, in milliseconds since 1970.
    pub modified: i64,
}

/// The key of an object that a client may ask for at all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectKey {
    /// `store.json`.
    Settings,
    /// `keys/<number>`: who may open an encrypted store.
    KeySlots(u64),
    /// `packs/<id>`.
    Pack(PackId),
    /// `segments/<id>`.
    Segment(SegmentId),
    /// `manifests/<id>`.
    Manifest(ManifestId),
    /// `bootlists/<id>`.
    BootList(BootListId),
    /// `moved/<pack id>`.
    Moved(PackId),
    /// `condemned/<id>`.
    Condemned(CondemnedId),
    /// `pins/<id>`.
    Pin(WriterId),
    /// `servers/<id>`.
    Server(ServerId),
    /// `servers/clock`.
    Clock,
    /// `refs/<kind>/<name>/<number>`.
    Ref(RefKey),
}

impl ObjectKey {
    /// Reads a key; `None` for all that no object of a store is called.
    pub fn parse(settings: &Settings, text: &str) -> Option<Self> {
        if text == "store.json" {
            return Some(Self::Settings);
        }
        if text == "servers/clock" {
            return Some(Self::Clock);
        }
        let (folder, name) = text.split_once('/')?;
        match folder {
            "keys" => {
                let valid = name.len() == 20 && name.bytes().all(|c| c.is_ascii_digit());
                name.parse().ok().filter(|n| valid && *n > 0).map(Self::KeySlots)
            }
            "packs" => name.parse().ok().map(Self::Pack),
            "segments" => name.parse().ok().map(Self::Segment),
            "manifests" => name.parse().ok().map(Self::Manifest),
            "bootlists" => name.parse().ok().map(Self::BootList),
            "moved" => name.parse().ok().map(Self::Moved),
            "condemned" => name.parse().ok().map(Self::Condemned),
            "pins" => name.parse().ok().map(Self::Pin),
            "servers" => name.parse().ok().map(Self::Server),
            "refs" => RefKey::parse(settings, text).map(Self::Ref),
            _ => None,
        }
    }

    /// The key as text.
    pub fn text(&self) -> String {
        match self {
            Self::Settings => "store.json".to_owned(),
            Self::KeySlots(number) => format!("keys/{number:020}"),
            Self::Pack(id) => format!("packs/{id}"),
            Self::Segment(id) => format!("segments/{id}"),
            Self::Manifest(id) => format!("manifests/{id}"),
            Self::BootList(id) => format!("bootlists/{id}"),
            Self::Moved(id) => format!("moved/{id}"),
            Self::Condemned(id) => format!("condemned/{id}"),
            Self::Pin(id) => format!("pins/{id}"),
            Self::Server(id) => format!("servers/{id}"),
            Self::Clock => "servers/clock".to_owned(),
            Self::Ref(key) => key.text(),
        }
    }

    /// The key as the store's backend has it.
    pub fn path(&self) -> Path {
        Path::from(self.text())
    }

    /// The longest object of this key that a client may write, in bytes; `None` when it may write none.
    pub fn longest(&self) -> Option<u64> {
        match self {
            Self::Pack(_) => Some(MOST_BYTES),
            // 65536 entries of 56 bytes, each in a pack of its own.
            Self::Segment(_) => Some(6 << 20),
            // 32 bytes for each 256 MiB: 8 TiB.
            Self::Manifest(_) => Some(1 << 20),
            Self::Pin(_) | Self::Server(_) => Some(8 << 10),
            Self::Clock => Some(16),
            Self::Ref(_) => Some(64 << 10),
            _ => None,
        }
    }
}

/// What a client may list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListPrefix {
    /// `refs/<kind>`: the names that the client may use.
    Names(RefKind),
    /// `refs/<kind>/<name>`: the records of one.
    Name(RefKind, String),
    /// `keys`.
    KeySlots,
    /// `packs`, `moved`: there is nothing to see for a client.
    Nothing,
}

impl ListPrefix {
    /// Reads a prefix, with or without a slash at its end; `None` for what nobody may list.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('/').unwrap_or(text);
        let mut parts = text.split('/');
        let listed = match (parts.next()?, parts.next(), parts.next()) {
            ("keys", None, _) => Self::KeySlots,
            ("packs" | "moved", None, _) => Self::Nothing,
            ("refs", Some(kind), None) => Self::Names(kind_of(kind)?),
            ("refs", Some(kind), Some(row)) => {
                let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-:@".contains(&c);
                let valid = !row.is_empty() && row.len() <= 257 && row.bytes().all(plain);
                Self::Name(kind_of(kind)?, valid.then(|| row.to_owned())?)
            }
            _ => return None,
        };
        parts.next().is_none().then_some(listed)
    }
}

fn kind_of(text: &str) -> Option<RefKind> {
    RefKind::ALL.into_iter().find(|kind| kind.as_str() == text)
}

/// What a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// What this is.
    About,
    /// An object.
    Object(ObjectKey),
    /// A listing.
    List(ListPrefix),
    /// Parts of objects.
    Ranges,
}

impl Route {
    /// Reads a path; `None` for what there is not.
    pub fn parse(settings: &Settings, path: &str) -> Option<Self> {
        let rest = path.get(..LONGEST_PATH.min(path.len()))?.strip_prefix("/v1/")?;
        if path.len() > LONGEST_PATH {
            return None;
        }
        match rest {
            "" => Some(Self::About),
            "ranges" => Some(Self::Ranges),
            _ => match rest.split_once('/')? {
                ("objects", key) => ObjectKey::parse(settings, key).map(Self::Object),
                ("list", prefix) => ListPrefix::parse(prefix).map(Self::List),
                _ => None,
            },
        }
    }
}

/// Reads the header `Range`: `bytes=FIRST-LAST` or `bytes=FIRST-`, one range and no other form. The end of
/// the second is `None`.
pub fn parse_range(header: &str) -> Option<(u64, Option<u64>)> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        let plain = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        text.parse().ok().filter(|_| plain)
    };
    let first = number(first)?;
    if last.is_empty() {
        return Some((first, None));
    }
    let end = number(last)?.checked_add(1)?;
    (end > first).then_some((first, Some(end)))
}

/// A part of an object that a batch asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPart {
    /// The object.
    pub key: ObjectKey,
    /// Its bytes, at least one.
    pub range: Range<u64>,
}

/// Reads the body of a batch's request: a line `<key> <offset> <length>` for each part, the most urgent
/// first.
///
/// # Errors
/// What is wrong, with the number of the line.
pub fn parse_batch(settings: &Settings, body: &[u8]) -> Result<Vec<BatchPart>, String> {
    if body.len() > LONGEST_BATCH {
        return Err(format!("a batch is longer than {LONGEST_BATCH} bytes"));
    }
    let text = std::str::from_utf8(body).map_err(|_| "a batch is lines of text".to_owned())?;
    let (mut parts, mut total) = (Vec::new(), 0u64);
    for (index, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {why}", index + 1);
        if index >= MOST_PARTS {
            return Err(wrong(&format!("a batch has at most {MOST_PARTS} parts")));
        }
        let mut words = line.split(' ');
        let (Some(key), Some(offset), Some(len), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong("write KEY OFFSET LENGTH"));
        };
        let key = ObjectKey::parse(settings, key).ok_or_else(|| wrong("no object has this key"))?;
        let number = |text: &str| -> Option<u64> {
            let plain = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            text.parse().ok().filter(|_| plain)
        };
        let range = number(offset).zip(number(len)).and_then(|(offset, len)| {
            let end = offset.checked_add(len)?;
            (len > 0 && len <= MOST_BYTES).then_some(offset..end)
        });
        let range = range.ok_or_else(|| wrong("the offset or the length is not possible"))?;
        total += range.end - range.start;
        if total > MOST_BYTES {
            return Err(wrong(&format!("the parts have more than {MOST_BYTES} bytes together")));
        }
        parts.push(BatchPart { key, range });
    }
    if parts.is_empty() {
        return Err("a batch has at least one part".to_owned());
    }
    Ok(parts)
}

/// The line that asks for a part in a batch.
pub fn batch_line(path: &Path, range: &Range<u64>) -> String {
    format!("{path} {} {}\n", range.start, range.end.saturating_sub(range.start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use store::testing;

    const ID: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn every_key_of_a_store_comes_back_and_no_other() {
        let settings = testing::settings();
        let short = &ID[..32];
        for key in [
            "store.json".to_owned(),
            "servers/clock".to_owned(),
            format!("keys/{:020}", 7),
            format!("packs/{ID}"),
            format!("segments/{ID}"),
            format!("manifests/{ID}"),
            format!("bootlists/{ID}"),
            format!("moved/{ID}"),
            format!("condemned/{ID}"),
            format!("pins/{short}"),
            format!("servers/{short}"),
            format!("refs/image/debian:3/{:020}", 1),
            format!("refs/snapshot/alice@one/{:020}", 1),
            format!("refs/disk/alice/{:020}", 12),
        ] {
            let parsed = ObjectKey::parse(&settings, &key).unwrap();
            assert_eq!(parsed.text(), key);
            assert_eq!(parsed.path().as_ref(), key, "no character is escaped");
        }
        for key in [
            "",
            "store.json/",
            "listing",
            "packs",
            "packs/",
            "packs/../store.json",
            &format!("packs/{ID}0"),
            &format!("packs/{}", ID.to_uppercase()),
            &format!("packs//{ID}"),
            "keys/00000000000000000000",
            "keys/7",
            "refs/disk/alice/1",
            "refs/disk/al%69ce/00000000000000000001",
            "refs/host/alice/00000000000000000001",
            "refs/image/debian/00000000000000000001",
        ] {
            assert_eq!(ObjectKey::parse(&settings, key), None, "{key}");
        }
    }

    #[test]
    fn only_what_clients_need_can_be_listed() {
        assert_eq!(ListPrefix::parse("refs/disk"), Some(ListPrefix::Names(RefKind::Disk)));
        assert_eq!(ListPrefix::parse("packs/"), Some(ListPrefix::Nothing));
        let one = ListPrefix::Name(RefKind::Image, "debian:3".to_owned());
        assert_eq!(ListPrefix::parse("refs/image/debian:3"), Some(one));
        for prefix in ["", "/", "refs", "pins", "servers", "manifests", "refs/disk/a/1", "refs/x"] {
            assert_eq!(ListPrefix::parse(prefix), None, "{prefix}");
        }
    }

    #[test]
    fn a_range_is_one_range_of_bytes() {
        assert_eq!(parse_range("bytes=0-0"), Some((0, Some(1))));
        assert_eq!(parse_range("bytes=16-"), Some((16, None)));
        for header in [
            "bytes=-5",
            "bytes=5-4",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "lines=0-1",
            "bytes=0-18446744073709551615",
        ] {
            assert_eq!(parse_range(header), None, "{header}");
        }
    }

    #[test]
    fn a_batch_is_bounded_in_lines_and_bytes() {
        let settings = testing::settings();
        let line = format!("packs/{ID} 16 100\n");
        assert_eq!(parse_batch(&settings, line.as_bytes()).unwrap()[0].range, 16..116);
        let many = line.repeat(MOST_PARTS + 1);
        let large = format!("packs/{ID} 0 {MOST_BYTES}\npacks/{ID} 0 1\n");
        let zero = format!("packs/{ID} 0 0\n");
        let end = format!("packs/{ID} {} 1\n", u64::MAX);
        for bad in ["", "\n", &many, &large, &zero, &end, "packs/x 0 1\n", "store.json 0\n"] {
            assert!(
                parse_batch(&settings, bad.as_bytes()).is_err(),
                "{:?}",
                &bad[..bad.len().min(90)]
            );
        }
    }

    proptest! {
        #[test]
        fn no_path_range_or_batch_panics(text in "\\PC{0,80}", prefix in 0..4usize) {
            let settings = testing::settings();
            let text = format!("{}{text}", ["", "/v1/", "/v1/objects/", "bytes="][prefix]);
            Route::parse(&settings, &text);
            parse_range(&text);
            let _ = parse_batch(&settings, text.as_bytes());
        }
    }
}

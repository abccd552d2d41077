//! `disk.json`: what a disk is made of. It is replaced as a whole, never changed in place.

use crate::Mode;
use crate::maplog::{BLANK, Failure, RECENT, REMEDY};
use crate::unsynced;
use block::fs::{FsPath, Open};
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use store::{ImageName, ManifestId};

const FORMAT: &str = "sojourn-disk";
const VERSION: u32 = 1;
const FILE: &str = "disk.json";
const FRESH: &str = "disk.json.new";
const MAX_LEN: u64 = 64 << 10;
/// The most manifests that are kept for servers from which a disk was taken.
pub(crate) const MOST_LEFT: usize = 64;

/// What a disk is told apart by, also from an earlier one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        uuid.to_string()
    }
}

impl TryFrom<String> for Uuid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.len() == 32
            && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
        match u128::from_str_radix(&text, 16) {
            Ok(number) if digits => Ok(Self(number.to_be_bytes())),
            _ => Err("a disk's uuid is 32 lower-case hexadecimal digits".into()),
        }
    }
}

/// What `disk.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskRecord {
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
    pub(crate) mode: Mode,
    /// In bytes.
    pub(crate) size: u64,
    /// In Unix seconds.
    pub(crate) created: u64,
    /// The image version that the disk was made from or last rebased to, and its manifest.
    pub(crate) image: ImageName,
    pub(crate) origin: ManifestId,
    /// What the layers stand on: the origin, or a state of this disk that was published.
    pub(crate) base: ManifestId,
    /// Numbers of the layers, oldest first.
    pub(crate) layers: Vec<u32>,
    /// The next number; never used again.
    pub(crate) next_layer: u32,
    /// The [client](DiskClient) of an ephemeral disk.
    pub(crate) attached: Option<String>,
    /// Grows with each change of the server that holds the disk.
    pub(crate) epoch: u64,
    /// What servers from which the disk was taken may stand on: kept in the store for what was left
    /// there.
    pub(crate) left: Vec<ManifestId>,
    /// When the disk was as the store has it, in Unix seconds; when it was made unless this is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) published: Option<u64>,
    /// What it holds as a whole: another number when something else was put in its place.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) content: u64,
    /// What machines know it by, when that is not its uuid: it was kept beside a disk that has the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<Uuid>,
    /// When its newest snapshot says that it was made, in Unix seconds: the next one says something later, by whatever
    /// clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_snapshot: Option<u64>,
}

/// The client of an ephemeral disk, as [`DiskRecord::attached`] has it: its name, ` since ` and its process. To a program
/// that knows no processes that is the name of a client who does not come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskClient {
    pub(crate) name: String,
    /// What tells it from others of its name; one that an earlier program noted has none.
    pub(crate) process: Option<String>,
}

const SINCE: &str = " since ";

impl fmt::Display for DiskClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.process.as_ref().map_or(Ok(()), |process| write!(f, "{SINCE}{process}"))
    }
}

impl DiskClient {
    /// The client that was noted so.
    pub(crate) fn of(noted: &str) -> Self {
        let is_process =
            |text: &str| text.bytes().all(|c| c.is_ascii_hexdigit() || matches!(c, b'-' | b'/'));
        match noted.rsplit_once(SINCE) {
            // A name may be anything that a certificate says.
            Some((name, process)) if is_process(process) => {
                Self { name: name.to_owned(), process: Some(process.to_owned()) }
            }
            _ => Self { name: noted.to_owned(), process: None },
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The content of a disk with which a server begins that did not have all of it: another one than any server had.
pub(crate) fn first_content(epoch: u64) -> u64 {
    epoch << 32
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskDocument {
    format: String,
    version: u32,
    /// CRC-32C of `disk` as compact JSON, in hexadecimal.
    checksum: String,
    disk: DiskRecord,
}

/// What every version of the document has.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    version: u32,
}

fn checksum(record: &DiskRecord) -> Result<String> {
    let bytes = serde_json::to_vec(record)
        .map_err(|e| Error::internal("a disk's record cannot be written as JSON").with_source(e))?;
    Ok(format!("{:08x}", crc32c::crc32c(&bytes)))
}

impl DiskRecord {
    /// What machines know the disk by: no two disks are the same.
    pub(crate) fn identity(&self) -> Uuid {
        self.identity.unwrap_or(self.uuid)
    }

    /// What machines are to know it by when it is kept as `name`: the same at each try.
    pub(crate) fn kept_identity(&self, name: &str) -> Uuid {
        let mut hasher = blake3::Hasher::new_derive_key("sojourn identity of a kept disk v1");
        hasher.update(&self.identity().0).update(&self.epoch.to_le_bytes()).update(name.as_bytes());
        let mut identity = Uuid([0; 16]);
        hasher.finalize_xof().fill(&mut identity.0);
        identity
    }

    /// Something else is put in the place of what the disk holds. Two servers never make the same number of it: each
    /// counts within its epoch.
    pub(crate) fn renew_content(&mut self) {
        let first = first_content(self.epoch);
        self.content = if self.content >= first { self.content + 1 } else { first + 1 };
    }

    /// Reads the record of the disk in `directory`. Waits for the disk.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when it is damaged or missing,
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a later version.
    pub(crate) fn load(directory: &FsPath) -> Result<Self> {
        let path = directory.join(FILE);
        let file = path.open(Open::READ).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::corrupt(format!("{}: is missing; {REMEDY}", path.display()))
            }
            _ => path.error(e),
        })?;
        let bytes = file.read_to_end(0, MAX_LEN + 1).map_err(|e| path.error(e))?;
        Self::decode(&bytes).map_err(|e| e.context(path.display()))
    }

    /// Reads the document.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let corrupt = |why: &dyn fmt::Display| Error::corrupt(format!("{why}; {REMEDY}"));
        if bytes.len() as u64 > MAX_LEN {
            return Err(corrupt(&format!("is longer than {MAX_LEN} bytes")));
        }
        let preamble: Preamble = serde_json::from_slice(bytes).map_err(|e| corrupt(&e))?;
        if preamble.format != FORMAT {
            return Err(corrupt(&"is not the record of a disk"));
        }
        if preamble.version != VERSION {
            return Err(Error::unsupported(format!(
                "the disk is of format version {}, this program reads {VERSION}; use a newer one",
                preamble.version
            )));
        }
        let document: DiskDocument = serde_json::from_slice(bytes).map_err(|e| corrupt(&e))?;
        let record = document.disk;
        if checksum(&record)? != document.checksum {
            return Err(corrupt(&"the checksum does not match"));
        }
        if !record.layers_make_sense() {
            return Err(corrupt(&"the list of layers makes no sense"));
        }
        Ok(record)
    }

    /// Whether each layer is there once, and the next one has a number of its own.
    fn layers_make_sense(&self) -> bool {
        let mut numbers = self.layers.clone();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len() == self.layers.len()
            && numbers.last().is_some_and(|last| *last < self.next_layer)
    }

    /// The document.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let document = DiskDocument {
            format: FORMAT.into(),
            version: VERSION,
            checksum: checksum(self)?,
            disk: self.clone(),
        };
        let mut bytes = serde_json::to_vec_pretty(&document).map_err(|e| {
            Error::internal("a disk's record cannot be written as JSON").with_source(e)
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Replaces the record in `directory`, on stable storage. Waits for the disk.
    pub(crate) fn save(&self, directory: &FsPath) -> Result<(), Failure> {
        // What could not be read again replaces nothing.
        if !self.layers_make_sense() {
            return Err(Failure::Retry(Error::internal(format!(
                "disk {:?} was to have the layers {:?} before layer {}",
                self.name, self.layers, self.next_layer
            ))));
        }
        let bytes = self.encode().map_err(Failure::Retry)?;
        let (fresh, path) = (directory.join(FRESH), directory.join(FILE));
        let written = fresh
            .open(Open::REPLACE)
            .and_then(|file| file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()))
            .and_then(|()| fresh.replace(&path));
        let left = written.map_err(|error| {
            let _ = fresh.remove_file();
            Failure::Retry(path.error(error))
        })?;
        fresh.settle(left).map_err(Failure::Lost)
    }

    /// Removes what a crash left in `directory`: layers that the record does not name, and files
    /// that were to replace others.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when one of the layers holds something and is newer than the record, which
    /// was put back alone; any error from the file system. Nothing was removed when the record is the older one.
    pub(crate) fn sweep(&self, directory: &FsPath) -> Result<()> {
        let failed = |e| directory.error(e);
        let mut strays = Vec::new();
        for entry in directory.read_dir().map_err(failed)? {
            let Some(name) = entry.name.to_str() else { continue };
            let (number, suffix) = name.split_once('.').unwrap_or((name, ""));
            let number = number.parse().ok();
            let stray = match suffix {
                _ if name == FRESH => true,
                "map.new" => true,
                "data" | "map" | RECENT | unsynced::SUFFIX => {
                    number.is_some_and(|number| !self.layers.contains(&number))
                }
                _ => false,
            };
            if !stray {
                continue;
            }
            let path = directory.join(name);
            // Numbers are not used again, and a layer holds nothing before the record knows of its number.
            let is_newer = number.is_some_and(|number| number >= self.next_layer);
            if is_newer && holds_something(&path, suffix)? {
                return Err(Error::corrupt(format!(
                    "{}: is older than {} beside it; {REMEDY}",
                    directory.join(FILE).display(),
                    path.display()
                )));
            }
            strays.push(path);
        }
        for path in &strays {
            match path.remove_file() {
                // Whoever looks for room was quicker.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other.map_err(failed)?,
            }
        }
        if strays.is_empty() { Ok(()) } else { directory.sync_directory() }
    }
}

/// Whether a file of a layer has more in it than that of an empty one.
fn holds_something(path: &FsPath, suffix: &str) -> Result<bool> {
    let empty = match suffix {
        "data" => 0,
        "map" => BLANK,
        _ => return Ok(false),
    };
    match path.metadata() {
        Ok(found) => Ok(found.len > empty),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(path.error(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> DiskRecord {
        DiskRecord {
            name: "web".into(),
            uuid: Uuid([7; 16]),
            mode: Mode::Ephemeral,
            size: 10 << 30,
            created: 1_767_225_600,
            image: "debian:3".parse().unwrap(),
            origin: ManifestId::from([1; 32]),
            base: ManifestId::from([2; 32]),
            layers: vec![3, 5],
            next_layer: 6,
            attached: Some("pid:12".into()),
            epoch: 4,
            left: vec![ManifestId::from([3; 32])],
            published: Some(1_767_225_601),
            content: 0,
            identity: Some(Uuid([9; 16])),
            last_snapshot: Some(1_767_225_602),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        record().save(&dir.path().into()).unwrap();
        assert_eq!(DiskRecord::load(&dir.path().into()).unwrap(), record());
        let other = DiskRecord { size: 11 << 30, attached: None, ..record() };
        other.save(&dir.path().into()).unwrap();
        assert_eq!(DiskRecord::load(&dir.path().into()).unwrap(), other);
    }

    #[test]
    fn a_damaged_record_is_refused_or_means_the_same() {
        let good = record().encode().unwrap();
        for len in 0..good.len() - 2 {
            assert!(DiskRecord::decode(&good[..len]).is_err(), "cut to {len}");
        }
        for at in 0..good.len() {
            for flip in [1, 4, 0x20, 0x80] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                match DiskRecord::decode(&bad) {
                    Ok(read) => assert_eq!(read, record(), "byte {at}"),
                    Err(e) => assert!(
                        matches!(
                            e.kind(),
                            block::ErrorKind::Corrupt | block::ErrorKind::Unsupported
                        ),
                        "byte {at}: {e:?}"
                    ),
                }
            }
        }
    }

    #[test]
    fn a_client_is_known_again_with_its_process_and_without() {
        for (name, process) in [
            ("pid:12", Some("3f2a-91/7")),
            ("pid:12", None),
            ("cert:long since gone@ip:::1", None),
            ("cert:a since 1@pid:12", Some("3f2a-91/7")),
        ] {
            let client = DiskClient { name: name.to_owned(), process: process.map(str::to_owned) };
            assert_eq!(DiskClient::of(&client.to_string()), client);
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let text = String::from_utf8(record().encode().unwrap()).unwrap();
        let later = text.replace("\"version\": 1", "\"version\": 2, \"more\": []");
        let error = DiskRecord::decode(later.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Unsupported);
        assert!(error.message().contains("version 2"), "{error}");
    }

    #[test]
    fn sweeping_leaves_what_the_record_names() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["0003.data", "0003.map", "0004.data", "0004.map", "0005.map.new", "lock"];
        let more = [
            "disk.json.new",
            "room.map.new",
            "notes.txt",
            "0003.unsynced",
            "0004.unsynced",
            "0003.recent",
            "0004.recent",
        ];
        for name in names.iter().chain(&more) {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        record().sweep(&dir.path().into()).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let kept = ["0003.data", "0003.map", "0003.recent", "0003.unsynced", "lock", "notes.txt"];
        assert_eq!(left, kept);
    }
}

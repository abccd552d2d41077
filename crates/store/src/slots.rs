//! The key slots of an encrypted store, as they are stored.
//!
//! The master key seals everything and never changes. Each slot holds it wrapped under a
//! passphrase or a key file. All slots are in one document, `keys/<20-digit sequence>`, of which
//! the newest counts; to change them is to create the next one and to delete those before it.

use crate::World;
use crate::document::{self, Form};
use crate::encoding::TAG;
use crate::id::parse_hex;
use crate::name::check_name;
use crate::seal;
use crate::secret::{Argon2Cost, Secret};
use block::{Error, ErrorKind, Result, offload};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::Created;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

const PREFIX: &str = "keys";
pub(crate) const FORM: Form = Form {
    format: "sojourn-keys",
    version: 1,
    remedy: "restore it from a backup (without it the store cannot be opened)",
};
/// The most slots of a store.
pub(crate) const MAX_SLOTS: usize = 16;
/// How often the newest document is looked for again when it vanished since the listing.
const TRIES: usize = 5;

/// Who is to open a store: a name for the slot, and a secret.
#[derive(Debug, Clone, Copy)]
pub struct NewKey<'a> {
    /// What the slot is called: a name of the form that disks have.
    pub name: &'a str,
    /// The passphrase or the key file.
    pub secret: &'a Secret,
    /// What a try of the passphrase costs.
    pub cost: Argon2Cost,
}

/// What opens a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotKind {
    /// A passphrase.
    Passphrase,
    /// A key file.
    KeyFile,
}

impl SlotKind {
    /// The kind in words, as it stands in the document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passphrase => "passphrase",
            Self::KeyFile => "key-file",
        }
    }

    fn of(secret: &Secret) -> Self {
        if secret.is_passphrase() { Self::Passphrase } else { Self::KeyFile }
    }
}

/// A slot as it is shown: nothing secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeySlot {
    /// Its name.
    pub name: String,
    /// What opens it.
    pub kind: SlotKind,
    /// When it was made, in Unix seconds.
    pub created: u64,
}

/// All slots of a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlotsDocument {
    format: String,
    version: u16,
    pub(crate) sequence: u64,
    /// The id of the master key: a document of another store, or of one that was never finished, does not
    /// count.
    key_id: String,
    pub(crate) slots: Vec<StoredSlot>,
}

/// The master key, wrapped under one secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredSlot {
    pub(crate) name: String,
    kind: SlotKind,
    created: u64,
    salt: String,
    argon2id: Option<Argon2id>,
    wrapped: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Argon2id {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// A slot whose fields were checked.
struct CheckedSlot {
    salt: [u8; 16],
    cost: Option<Argon2Cost>,
    wrapped: [u8; 32 + TAG],
}

/// The first bytes of the hash of a master key: tells whether a key is the right one.
pub(crate) fn key_id_of(master: &[u8; 32]) -> [u8; 16] {
    let mut id = [0; 16];
    let hash = blake3::derive_key("sojourn 2026-11-21 key id v1", master);
    id.copy_from_slice(&hash[..16]);
    id
}

impl StoredSlot {
    /// Wraps a master key.
    pub(crate) fn wrap(world: &World, key: &NewKey<'_>, master: &[u8; 32]) -> Result<Self> {
        let mut salt = [0; 16];
        world.entropy.fill(&mut salt)?;
        let kind = SlotKind::of(key.secret);
        let cost = (kind == SlotKind::Passphrase).then_some(key.cost);
        let wrapping = key.secret.stretch(&salt, cost)?;
        let wrapped = seal::wrap(&wrapping, &context(master, kind, key.name), master)?;
        Ok(Self {
            name: key.name.to_owned(),
            kind,
            created: world.clock.now(),
            salt: hex(&salt),
            argon2id: cost.map(|cost| Argon2id {
                memory_kib: cost.memory,
                passes: cost.passes,
                lanes: cost.lanes,
            }),
            wrapped: hex(&wrapped),
        })
    }

    fn parse(&self) -> Result<CheckedSlot, String> {
        check_name("key slot", &self.name).map_err(|e| e.message().to_owned())?;
        let cost = match (self.kind, &self.argon2id) {
            (SlotKind::Passphrase, Some(c)) => {
                Some(Argon2Cost::checked(c.memory_kib, c.passes, c.lanes).map_err(str::to_owned)?)
            }
            (SlotKind::KeyFile, None) => None,
            _ => return Err("the cost of its secret is missing, or there is one too many".into()),
        };
        let text = |e: Error| e.message().to_owned();
        Ok(CheckedSlot {
            salt: parse_hex("salt", &self.salt).map_err(text)?,
            cost,
            wrapped: parse_hex("wrapped key", &self.wrapped).map_err(text)?,
        })
    }

    /// The master key, if the secret is the slot's.
    fn open(&self, key_id: &[u8; 16], secret: &Secret) -> Result<Option<Zeroizing<[u8; 32]>>> {
        let parsed = self.parse().map_err(|why| FORM.damaged(PREFIX, &why))?;
        let wrapping = secret.stretch(&parsed.salt, parsed.cost)?;
        let context = context_of(key_id, self.kind, &self.name);
        let master = seal::unwrap(&wrapping, &context, &parsed.wrapped).map(Zeroizing::new);
        Ok(master.ok().filter(|master| key_id_of(master) == *key_id))
    }

    /// What may be shown of it.
    pub(crate) fn shown(&self) -> KeySlot {
        KeySlot { name: self.name.clone(), kind: self.kind, created: self.created }
    }
}

/// What a wrapped key is bound to.
fn context(master: &[u8; 32], kind: SlotKind, name: &str) -> Vec<u8> {
    context_of(&key_id_of(master), kind, name)
}

fn context_of(key_id: &[u8; 16], kind: SlotKind, name: &str) -> Vec<u8> {
    format!("sojourn key slot 1\n{}\n{}\n{name}", hex(key_id), kind.as_str()).into_bytes()
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl SlotsDocument {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        FORM.encode(self)
    }

    pub(crate) fn decode(key: &str, bytes: &[u8]) -> Result<Self> {
        let document: Self = FORM.decode(key, bytes)?;
        let damaged = |why: &str| Err(FORM.damaged(key, why));
        parse_hex::<16>("key id", &document.key_id).map_err(|e| FORM.damaged(key, e.message()))?;
        if document.slots.is_empty() || document.slots.len() > MAX_SLOTS {
            return damaged("it has no slots, or too many");
        }
        for (index, slot) in document.slots.iter().enumerate() {
            if let Err(why) = slot.parse() {
                return damaged(&why);
            }
            if document.slots[..index].iter().any(|other| other.name == slot.name) {
                return damaged("two of its slots have one name");
            }
        }
        Ok(document)
    }
}

/// Checks whether bytes are a document of slots.
pub(crate) fn check_bytes(key: &str, bytes: &[u8]) -> Result<()> {
    SlotsDocument::decode(key, bytes).map(|_| ())
}

/// Reads a document of slots, and checks all but what only a secret tells.
pub(crate) async fn check(backend: &dyn ObjectStore, key: &str) -> Result<()> {
    let document = read(backend, key).await?;
    if self::key(document.sequence) == key {
        return Ok(());
    }
    Err(FORM.damaged(key, "it has another one's number"))
}

async fn read(backend: &dyn ObjectStore, key: &str) -> Result<SlotsDocument> {
    SlotsDocument::decode(key, &objects::get(backend, key, document::MAX_LEN).await?)
}

/// The key of the document with this number.
pub(crate) fn key(sequence: u64) -> String {
    format!("{PREFIX}/{sequence:020}")
}

/// The numbers of all documents, the newest first.
pub(crate) async fn sequences(backend: &dyn ObjectStore) -> Result<Vec<u64>> {
    let listed = objects::list(backend, PREFIX).await?;
    let number = |key: &str| {
        let digits = key.strip_prefix(PREFIX)?.strip_prefix('/')?;
        let valid = digits.len() == 20 && digits.bytes().all(|c| c.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|n| valid && (1..u64::MAX).contains(n))
    };
    let mut found: Vec<u64> =
        listed.iter().filter_map(|meta| number(meta.location.as_ref())).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// The newest document of a master key.
pub(crate) async fn newest(backend: &dyn ObjectStore, key_id: &[u8; 16]) -> Result<SlotsDocument> {
    for _ in 0..TRIES {
        let mut vanished = false;
        for sequence in sequences(backend).await? {
            let key = key(sequence);
            let document = match read(backend, &key).await {
                Ok(document) => document,
                // Replaced by a newer one since the listing.
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    vanished = true;
                    break;
                }
                Err(e) => return Err(e),
            };
            if document.sequence != sequence {
                return Err(FORM.damaged(&key, "it has another one's number"));
            }
            if document.key_id == hex(key_id) {
                return Ok(document);
            }
        }
        if !vanished {
            break;
        }
    }
    Err(Error::corrupt(
        "the store is encrypted, and its key slots (the objects below keys/) are missing; restore \
         them from a backup",
    ))
}

/// Whether the document with this number is one of this master key. A damaged one is nobody's.
pub(crate) async fn is_of(
    backend: &dyn ObjectStore,
    sequence: u64,
    key_id: &[u8; 16],
) -> Result<bool> {
    match read(backend, &key(sequence)).await {
        Ok(document) => Ok(document.key_id == hex(key_id)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The master key of a store, opened with a secret; and the document that has it, wrapped.
///
/// # Errors
/// [`Denied`](ErrorKind::Denied) when the secret opens no slot.
pub(crate) async fn unlock(
    backend: &dyn ObjectStore,
    key_id: [u8; 16],
    secret: &Secret,
) -> Result<(Zeroizing<[u8; 32]>, Vec<u8>)> {
    let document = newest(backend, &key_id).await?;
    let bytes = document.encode()?;
    Ok((open_one(document.slots, key_id, secret).await?, bytes))
}

/// The master key out of a document that was kept, if it is one of this store and the secret opens a slot.
pub(crate) async fn unlock_kept(
    kept: Option<&[u8]>,
    key_id: [u8; 16],
    secret: &Secret,
) -> Option<Zeroizing<[u8; 32]>> {
    let document = SlotsDocument::decode("the kept key slots", kept?).ok()?;
    let is_ours = document.key_id == hex(&key_id);
    let slots = is_ours.then_some(document.slots)?;
    open_one(slots, key_id, secret).await.ok()
}

async fn open_one(
    slots: Vec<StoredSlot>,
    key_id: [u8; 16],
    secret: &Secret,
) -> Result<Zeroizing<[u8; 32]>> {
    let kind = SlotKind::of(secret);
    let (fitting, others): (Vec<StoredSlot>, Vec<StoredSlot>) =
        slots.into_iter().partition(|slot| slot.kind == kind);
    let names = |slots: &[StoredSlot]| {
        slots.iter().map(|slot| slot.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (what, other) = match kind {
        SlotKind::Passphrase => ("passphrase", "key file"),
        SlotKind::KeyFile => ("key file", "passphrase"),
    };
    if fitting.is_empty() {
        return Err(Error::denied(format!(
            "no {what} opens the store; give the {other} of one of its key slots ({})",
            names(&others)
        )));
    }
    let wrong = format!(
        "wrong {what}: it opens none of the store's key slots for one ({}); give the right one",
        names(&fitting)
    );
    let secret = secret.clone();
    let master = offload(move || {
        for slot in &fitting {
            if let Some(master) = slot.open(&key_id, &secret)? {
                return Ok(Some(master));
            }
        }
        Ok(None)
    })
    .await?;
    master.ok_or_else(|| Error::denied(wrong))
}

/// Writes the first slot of a store that is about to be made; returns its number. What an
/// interrupted attempt left is passed over.
pub(crate) async fn create(
    backend: &dyn ObjectStore,
    world: &World,
    master: &[u8; 32],
    new: &NewKey<'_>,
) -> Result<u64> {
    check_name("key slot", new.name)?;
    let slots = vec![StoredSlot::wrap(world, new, master)?];
    let sequence = sequences(backend).await?.first().map_or(1, |newest| newest + 1);
    let key_id = hex(&key_id_of(master));
    let document =
        SlotsDocument { format: FORM.format.into(), version: 1, sequence, key_id, slots };
    match objects::put_new(backend, &key(sequence), document.encode()?.into()).await? {
        Created::Ours => Ok(sequence),
        Created::Theirs => Err(Error::conflict(
            "somebody else is making a store in the same place; look at it, and try again",
        )),
    }
}

/// Removes the slots of a store that was not made after all, or those before a newer document.
pub(crate) async fn delete(backend: &dyn ObjectStore, sequence: u64) -> Result<()> {
    let key = key(sequence);
    match backend.delete(&Path::from(key.as_str())).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(e) => Err(objects::error(&key, e)),
    }
}

//! Who may open an encrypted store: its key slots, listed and changed.

use crate::Store;
use crate::name::check_name;
use crate::slots::{
    KeySlot, MAX_SLOTS, NewKey, SlotsDocument, StoredSlot, delete, is_of, key, key_id_of, newest,
    sequences,
};
use block::{Error, Result, offload};
use object_store::ObjectStore;
use objects::Created;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The key slots of an open store.
#[derive(Debug, Clone)]
pub struct KeySlots {
    store: Store,
}

impl Store {
    /// Who may open the store, if it is encrypted.
    pub fn keys(&self) -> KeySlots {
        KeySlots::new(self.clone())
    }
}

impl KeySlots {
    fn new(store: Store) -> Self {
        Self { store }
    }

    /// All slots, in the order in which they were made.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) when the store is not encrypted;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub async fn list(&self) -> Result<Vec<KeySlot>> {
        Ok(self.newest().await?.slots.iter().map(StoredSlot::shown).collect())
    }

    /// Lets another passphrase or key file open the store.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when a slot has the name, or when somebody else changes
    /// the slots; [`Invalid`](block::ErrorKind::Invalid) for a bad name or when there are 16; and as
    /// [`list`](Self::list).
    pub async fn add(&self, new: &NewKey<'_>) -> Result<KeySlot> {
        check_name("key slot", new.name)?;
        let mut document = self.settled().await?;
        if document.slots.iter().any(|slot| slot.name == new.name) {
            return Err(Error::conflict(format!(
                "key slot {:?} exists already; choose another name, or use \"sojourn store key \
                 rotate\"",
                new.name
            )));
        }
        if document.slots.len() >= MAX_SLOTS {
            return Err(Error::invalid(format!(
                "the store has {MAX_SLOTS} key slots, and cannot have more; remove one first"
            )));
        }
        let slot = self.wrap(new).await?;
        document.slots.push(slot.clone());
        self.replace(document).await?;
        Ok(slot.shown())
    }

    /// Replaces the passphrase or key file of a slot. The old one then opens the store no longer;
    /// who has a copy of the old document and the old secret still has the master key.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no such slot; and any error from [`add`](Self::add).
    pub async fn rotate(&self, new: &NewKey<'_>) -> Result<KeySlot> {
        let mut document = self.settled().await?;
        let index = position(&document, new.name)?;
        let slot = self.wrap(new).await?;
        document.slots[index] = slot.clone();
        self.replace(document).await?;
        Ok(slot.shown())
    }

    /// Removes a slot. Repeated after an interruption, it deletes what that left, also when the slot itself is gone.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for the last one; and any error from [`rotate`](Self::rotate).
    pub async fn remove(&self, name: &str) -> Result<()> {
        let mut document = self.settled().await?;
        let index = position(&document, name)?;
        if document.slots.len() == 1 {
            return Err(Error::invalid(format!(
                "key slot {name:?} is the last one, without which nobody could open the store; \
                 add another one first"
            )));
        }
        document.slots.remove(index);
        self.replace(document).await
    }

    async fn newest(&self) -> Result<SlotsDocument> {
        newest(self.store.backend(), &key_id_of(self.master()?)).await
    }

    /// The newest document, once those are deleted that an interrupted change has left before it: secrets that were
    /// taken back open them. What cannot be deleted keeps nobody from changing the newest one, which deletes all before
    /// it and says what it could not.
    async fn settled(&self) -> Result<SlotsDocument> {
        let document = self.newest().await?;
        if let Err(error) = self.delete_before(document.sequence).await {
            tracing::warn!(%error, "an old document of the store's keys cannot be deleted: secrets that were taken back open it");
        }
        Ok(document)
    }

    async fn delete_before(&self, newest: u64) -> Result<()> {
        let (backend, key_id) = (self.store.backend(), key_id_of(self.master()?));
        for sequence in sequences(backend).await? {
            if sequence < newest && is_of(backend, sequence, &key_id).await? {
                delete(backend, sequence).await?;
            }
        }
        Ok(())
    }

    fn master(&self) -> Result<&[u8; 32]> {
        self.store.settings().master().ok_or_else(|| {
            Error::unsupported(
                "the store is not encrypted, and has no keys; make an encrypted one with \
                 \"sojourn init --encrypt\" and copy the images",
            )
        })
    }

    async fn wrap(&self, new: &NewKey<'_>) -> Result<StoredSlot> {
        let master = Zeroizing::new(*self.master()?);
        let world = self.store.world().clone();
        let (name, secret, cost) = (new.name.to_owned(), new.secret.clone(), new.cost);
        offload(move || {
            StoredSlot::wrap(&world, &NewKey { name: &name, secret: &secret, cost }, &master)
        })
        .await
    }

    /// Writes the next document, then deletes those before it.
    async fn replace(&self, mut document: SlotsDocument) -> Result<()> {
        let backend: Arc<dyn ObjectStore> = self.store.shared_backend();
        let changed = || {
            Error::conflict("somebody else changed the store's keys; look at them and try again")
        };
        // In this order: who changes the keys after the listing takes the number that is tried here.
        let before = sequences(&*backend).await?;
        if self.newest().await?.sequence != document.sequence {
            return Err(changed());
        }
        // Above all that is there, also what is not of this master key.
        document.sequence = before.first().map_or(1, |newest| newest + 1);
        let bytes = document.encode()?.into();
        match objects::put_new(&*backend, &key(document.sequence), bytes).await? {
            Created::Ours => {}
            Created::Theirs => return Err(changed()),
        }
        // Others may have changed them more than once since the listing, and deleted what stood
        // there: then this one counts for nobody. A document of another master key says nothing of
        // that: were this one deleted for it, and by others those before it, none would be left.
        if self.newest().await.map_err(unknown)?.sequence > document.sequence {
            delete(&*backend, document.sequence).await?;
            return Err(changed());
        }
        for sequence in before {
            delete(&*backend, sequence).await.map_err(left_behind)?;
        }
        Ok(())
    }
}

/// The error of what kept it from being seen whether the new document counts.
fn unknown(e: Error) -> Error {
    e.context(
        "the new keys were written, and it is not known whether they count; look at them, and repeat the command: an old \
         passphrase or key file may still open the store",
    )
}

/// The error of what kept the documents before the newest one from being deleted.
fn left_behind(e: Error) -> Error {
    e.context(
        "the new keys count, but the old ones could not be deleted, so that an old passphrase or key \
         file still opens a copy of them; repeat the command, or delete the object",
    )
}

fn position(document: &SlotsDocument, name: &str) -> Result<usize> {
    document.slots.iter().position(|slot| slot.name == name).ok_or_else(|| {
        let names: Vec<_> = document.slots.iter().map(|slot| slot.name.as_str()).collect();
        Error::not_found(format!(
            "there is no key slot {name:?}; the store has {}",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests;

//! Boot copies: made of the lists that are whole, once and one at a time.

use super::list::{is_open, of};
use block::Result;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;
use store::{BootListId, RefBody, RefKind, RefRecord, Store, boot_copy, boot_list, images};

/// Where a list was left without a boot copy, every server that sees a boot notices. Each waits for a
/// time by chance, up to this for each chunk of the list, as a longer one takes longer to copy: so most
/// of them find it made.
const CHANCE: Duration = Duration::from_millis(75);
/// … and up to this.
const LONGEST_CHANCE: Duration = Duration::from_secs(300);

/// The list of a version, if it is whole and has no boot copy.
fn uncopied(record: &RefRecord) -> Option<BootListId> {
    let has_copy = record.body.labels.contains_key(RefBody::BOOT_COPY);
    if has_copy || is_open(record) {
        return None;
    }
    record.body.boot_list().ok().flatten()
}

/// Gives a version the boot copy of its list, if that is whole, has none and is worth one; says whether
/// it did. It can take minutes.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or [`NoSpace`](block::ErrorKind::NoSpace) when the store
/// cannot be read or written to, [`Corrupt`](block::ErrorKind::Corrupt) when the list or a chunk is damaged.
pub(super) async fn copy(store: &Store, version: &str) -> Result<bool> {
    let Some(record) = store.refs().get(RefKind::Image, version).await? else { return Ok(false) };
    let Some(id) = uncopied(&record) else { return Ok(false) };
    let manifest = images::manifest_of(&record)?;
    let list = boot_list::read(store, &id).await?;
    let Some(chunks) = boot_copy::choose(store, &manifest, &list).await? else { return Ok(false) };
    let session = store.session(&format!("boot copy of {version}")).await?;
    let named = async {
        let copy = boot_copy::make(&session, chunks).await?;
        boot_copy::name(&session, version, &manifest, id, copy).await
    };
    let named = named.await;
    session.close(named).await
}

/// The boot copies that a server makes: one at a time, and each once. One that was not made, because
/// the store was slow, or broken, or cannot be written to, waits for the server's next start.
#[derive(Default)]
pub(super) struct Copying {
    /// The versions that were dealt with, each with its list.
    tried: Mutex<HashSet<(String, BootListId)>>,
    turn: tokio::sync::Mutex<()>,
}

impl Copying {
    /// Makes the copies that these versions' whole lists have not: at once when this server recorded
    /// their last boot, else after a while, as others may be about to make them.
    pub(super) async fn complete(&self, store: &Store, versions: &[String], at_once: bool) {
        for version in versions {
            match self.complete_one(store, version, at_once).await {
                Ok(true) => tracing::info!(image = version, "boot copy made"),
                Ok(false) => {}
                Err(error) => {
                    let error = error.message();
                    tracing::warn!(image = version, error, "a boot list gets no boot copy");
                }
            }
        }
    }

    async fn complete_one(&self, store: &Store, version: &str, at_once: bool) -> Result<bool> {
        let Some(record) = store.refs().get(RefKind::Image, version).await? else {
            return Ok(false);
        };
        let Some(list) = uncopied(&record) else { return Ok(false) };
        if !self.tried.lock().insert((version.to_owned(), list)) {
            return Ok(false);
        }
        if !at_once {
            let chunks = of(store, &record).await?.unwrap_or_default().len();
            tokio::time::sleep(by_chance(store, chunks)?).await;
        }
        let _turn = self.turn.lock().await;
        copy(store, version).await
    }
}

/// How long a server waits before it makes a copy of so many chunks that another one left out.
fn by_chance(store: &Store, chunks: usize) -> Result<Duration> {
    let mut dice = [0; 4];
    store.world().entropy.fill(&mut dice)?;
    let most = CHANCE.saturating_mul(u32::try_from(chunks).unwrap_or(u32::MAX)).min(LONGEST_CHANCE);
    Ok(most.mul_f64(f64::from(u32::from_le_bytes(dice)) / f64::from(u32::MAX)))
}

#[cfg(test)]
mod tests;

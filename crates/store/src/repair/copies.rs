//! Making those boot copies anew that are of no use any more.
//!
//! Whoever reads a copy reads at the places that its manifest names, and looks nowhere else. So one of
//! which a pack came out as another one helps nobody, though all its chunks can be read; and one whose
//! manifest is lost cannot be found. The image and the list say what was in it.

use super::Repair;
use crate::manifest_root;
use crate::rewritten;
use crate::{
    ChunkRef, Manifest, ManifestId, PackId, RefBody, RefKind, RefRecord, Session, Store, boot_copy,
    boot_list, pack, segment,
};
use block::{Error, ErrorKind, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Repair<'_> {
    /// The packs that boot copies need, as far as these can be read.
    pub(super) async fn packs_of_copies(&self) -> Result<HashSet<PackId>> {
        let mut packs = HashSet::new();
        for record in self.copied().await? {
            let Ok(Some(copy)) = record.body.boot_copy() else { continue };
            match read(self.store, &copy).await {
                Ok((_, chunks)) => packs.extend(chunks.iter().map(|at| at.pack)),
                Err(e) if is_loss(&e) || e.kind() == ErrorKind::Unsupported => {}
                Err(e) => return Err(e),
            }
        }
        Ok(packs)
    }

    /// Makes the boot copies of image versions anew that cannot be read where they ought to be, and
    /// takes those off that nothing tells any more how to make. One that cannot be made is left as it is:
    /// it harms nobody.
    pub(super) async fn copies(&mut self) -> Result<()> {
        let Some(session) = self.session else { return Ok(()) };
        let records = self.copied().await?;
        if records.is_empty() {
            return Ok(());
        }
        let listed = objects::list(self.store.backend(), pack::PREFIX).await?;
        let mut packs: HashSet<PackId> =
            listed.iter().filter_map(|meta| pack::id_of_key(meta.location.as_ref()).ok()).collect();
        // One that came back after it was rewritten goes with the next collection: all of it is elsewhere.
        for rewritten in rewritten::packs(self.store).await? {
            packs.remove(&rewritten);
        }
        // Several versions can have the same one: those that are of use, and what others became.
        let mut sound = HashSet::new();
        let mut made: HashMap<ManifestId, ManifestId> = HashMap::new();
        for record in records {
            // A label that makes no sense is told of by a verification.
            let Ok(Some(copy)) = record.body.boot_copy() else { continue };
            if sound.contains(&copy) {
                continue;
            }
            if !made.contains_key(&copy) && !self.is_of_no_use(&copy, &packs).await? {
                sound.insert(copy);
                continue;
            }
            match renew(session, &record, copy, made.get(&copy).copied()).await {
                Ok(Renewed::Made(anew)) => {
                    made.insert(copy, anew);
                    self.report.boot_copies.push(record.name);
                }
                Ok(Renewed::Dropped) => self.report.dropped_boot_copies.push(record.name),
                Ok(Renewed::Overtaken) => {}
                Err(error) => {
                    let (image, error) = (record.name, error.message());
                    tracing::warn!(image, error, "a boot copy that is of no use is not made anew");
                }
            }
        }
        Ok(())
    }

    /// The image versions that have boot copies.
    async fn copied(&self) -> Result<Vec<RefRecord>> {
        let mut records = self.store.refs().list(RefKind::Image).await?.records;
        records.retain(|record| record.body.labels.contains_key(RefBody::BOOT_COPY));
        Ok(records)
    }

    /// Whether a part of a copy is not where boots look for it, in one of these packs and sound. One that
    /// only a newer build can read is left to that.
    async fn is_of_no_use(&self, copy: &ManifestId, packs: &HashSet<PackId>) -> Result<bool> {
        let (manifest, chunks) = match read(self.store, copy).await {
            Ok(read) => read,
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(false),
            Err(e) if is_loss(&e) => return Ok(true),
            Err(e) => return Err(e),
        };
        // What was read may have come from another store.
        let bad = |key: String| {
            let is_fault = self.report.found.iter().any(|fault| fault.object == key);
            is_fault && !self.report.restored.contains(&key)
        };
        let mut segments = (0..manifest.segments()).filter_map(|at| manifest.segment_id(at));
        Ok(bad(manifest_root::key(copy))
            || segments.any(|id| bad(segment::key(&id)))
            || chunks
                .iter()
                .any(|at| !packs.contains(&at.pack) || bad(pack::path(&at.pack).to_string())))
    }
}

/// A copy's manifest and chunks.
async fn read(store: &Store, copy: &ManifestId) -> Result<(Arc<Manifest>, Vec<ChunkRef>)> {
    let manifest = store.stored_manifest(copy).await?;
    let chunks = boot_copy::chunks(&manifest).await?;
    Ok((manifest, chunks))
}

/// Whether an error says that something is lost. What only a newer build can read is not.
fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

/// What became of a copy that was of no use.
enum Renewed {
    /// The version has this one now.
    Made(ManifestId),
    /// The version has none now.
    Dropped,
    /// The version was changed by somebody else meanwhile.
    Overtaken,
}

/// Makes the copy of a version's list, unless it was made for another version already, and names it.
async fn renew(
    session: &Session,
    record: &RefRecord,
    copy: ManifestId,
    made: Option<ManifestId>,
) -> Result<Renewed> {
    let (store, name) = (session.store(), record.name.as_str());
    let chunks = match (record.body.manifest, record.body.boot_list()?) {
        (Some(manifest), Some(list)) => match boot_list::read(store, &list).await {
            Ok(_) if made.is_some() => Some((manifest, list, Vec::new())),
            Ok(ids) => {
                let chunks = boot_copy::choose(store, &manifest, &ids).await?;
                chunks.map(|chunks| (manifest, list, chunks))
            }
            Err(e) if is_loss(&e) => None,
            Err(e) => return Err(e),
        },
        _ => None,
    };
    let Some((manifest, list, chunks)) = chunks else {
        return Ok(match boot_copy::unname(session, name, copy).await? {
            true => Renewed::Dropped,
            false => Renewed::Overtaken,
        });
    };
    let anew = match made {
        Some(anew) => anew,
        None => {
            let anew = boot_copy::make(session, chunks).await?;
            check(store, &anew).await?;
            anew
        }
    };
    Ok(match boot_copy::name(session, name, &manifest, list, anew).await? {
        true => Renewed::Made(anew),
        false => Renewed::Overtaken,
    })
}

/// Reads a whole copy: a pack that was there already is kept when its index is right.
async fn check(store: &Store, copy: &ManifestId) -> Result<()> {
    for at in read(store, copy).await?.1 {
        store.read_at(&at).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

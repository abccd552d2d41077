//! Making those boot copies anew that are of no use any more.
//!
//! Whoever reads a copy reads at the places that its manifest names, and looks nowhere else. So one of
//! which a pack came out as another one helps nobody, though all its chunks can be read; and one whose
//! manifest is lost cannot be found. The image and the list say what was in it.

use super::Repair;
use crate::verify::pack_id_of;
use crate::{
    ChunkRef, ManifestId, PackId, RefBody, RefKind, RefRecord, Session, Store, backend, bootcopy,
    bootlist, manifest, pack, segment,
};
use block::{Error, ErrorKind, Result};
use std::collections::HashSet;

impl Repair<'_> {
    /// The packs that boot copies need, as far as these can be read.
    pub(super) async fn packs_of_copies(&self) -> Result<HashSet<PackId>> {
        let mut packs = HashSet::new();
        for record in self.copied().await? {
            let Ok(Some(copy)) = record.body.boot_copy() else { continue };
            match chunks(self.store, &copy).await {
                Ok(chunks) => packs.extend(chunks.iter().map(|at| at.pack)),
                Err(e) if is_loss(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(packs)
    }

    /// Makes the boot copies of image versions anew that cannot be read where they ought to be. One that
    /// cannot be made is left as it is: it harms nobody.
    pub(super) async fn copies(&mut self) -> Result<()> {
        let Some(session) = self.session else { return Ok(()) };
        let records = self.copied().await?;
        if records.is_empty() {
            return Ok(());
        }
        let listed = backend::list(self.store.backend(), pack::PREFIX).await?;
        let packs: HashSet<PackId> =
            listed.iter().filter_map(|meta| pack_id_of(meta.location.as_ref()).ok()).collect();
        for record in records {
            // A label that makes no sense is told of by a verification.
            let Ok(Some(copy)) = record.body.boot_copy() else { continue };
            if !self.is_of_no_use(&copy, &packs).await? {
                continue;
            }
            match renew(session, &record).await {
                Ok(true) => self.report.boot_copies.push(record.name),
                Ok(false) => {}
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

    /// Whether a part of a copy is not where boots look for it, in one of these packs and sound.
    async fn is_of_no_use(&self, copy: &ManifestId, packs: &HashSet<PackId>) -> Result<bool> {
        let bad = |key: String| {
            let is_fault = self.report.found.iter().any(|fault| fault.object == key);
            is_fault && !self.report.restored.contains(&key)
        };
        if bad(manifest::key(copy)) {
            return Ok(true);
        }
        let read = async {
            let manifest = self.store.stored_manifest(copy).await?;
            let mut segments = (0..manifest.segments()).filter_map(|at| manifest.segment_id(at));
            Ok(segments.any(|id| bad(segment::key(&id)))
                || bootcopy::chunks(&manifest)
                    .await?
                    .iter()
                    .any(|at| !packs.contains(&at.pack) || bad(pack::path(&at.pack).to_string())))
        };
        match read.await {
            Err(e) if is_loss(&e) => Ok(true),
            other => other,
        }
    }
}

async fn chunks(store: &Store, copy: &ManifestId) -> Result<Vec<ChunkRef>> {
    bootcopy::chunks(&*store.stored_manifest(copy).await?).await
}

/// Whether an error says that something is lost. What only a newer build can read is not.
fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

/// Makes the copy of a version's list, and names it; says whether the version has it now.
async fn renew(session: &Session, record: &RefRecord) -> Result<bool> {
    let (Some(manifest), Some(id)) = (record.body.manifest, record.body.boot_list()?) else {
        return Ok(false);
    };
    let list = bootlist::read(session.store(), &id).await?;
    let Some(chunks) = bootcopy::choose(session.store(), &manifest, &list).await? else {
        return Ok(false);
    };
    let copy = bootcopy::make(session, chunks).await?;
    bootcopy::name(session, &record.name, id, copy).await
}

#[cfg(test)]
mod tests;

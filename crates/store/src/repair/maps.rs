//! Damaged maps of rewritten packs that no name needs.
//!
//! One that a name needs is made anew with the pack that it is about, out of the indexes of the packs that
//! have the chunks now.

use super::{Repair, RepairReport};
use crate::rewritten;
use crate::verify::{self, Fault};
use crate::{PackId, pack};
use block::{ErrorKind, Result};

impl Repair<'_> {
    /// Removes `moved` objects that cannot be read, were not written anew, and that no name needs. Where a
    /// root, a segment or a name cannot be read nobody can tell, and they stay.
    pub(super) async fn drop_bad_maps(&mut self, full: &verify::StoreVerifyReport) -> Result<()> {
        let is_map = |fault: &&Fault| {
            let maps = ["refs/", "manifests/", "segments/"];
            maps.iter().any(|prefix| fault.object.starts_with(prefix))
        };
        let mut maps = full.faults.iter().filter(is_map);
        let blind = maps.any(|fault| !self.report.restored.contains(&fault.object));
        let is_restored = |report: &RepairReport, pack: &PackId| {
            report.restored.contains(&pack::path(pack).to_string())
        };
        for fault in &full.faults {
            let key = &fault.object;
            let name = key.strip_prefix("moved/").map(str::parse::<PackId>);
            let Some(Ok(pack)) = name else { continue };
            match rewritten::load(self.store, &pack).await {
                Ok(_) => self.restored(key.clone()),
                // A dry run: what packs hold of its chunks would say where they are.
                Err(e) if e.kind() == ErrorKind::Corrupt && self.session.is_none() => {
                    if !full.unsure.contains_key(&pack) || is_restored(&self.report, &pack) {
                        self.restored(key.clone());
                    }
                }
                // It is needed, and nobody knows where the chunks are.
                Err(e)
                    if e.kind() == ErrorKind::Corrupt
                        && full.unsure.contains_key(&pack)
                        && !is_restored(&self.report, &pack) => {}
                Err(e) if e.kind() == ErrorKind::Corrupt && !blind => {
                    objects::delete(self.store.backend(), key).await?;
                    self.report.removed.push(key.clone());
                }
                // A newer build's, say: it stays as it is.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

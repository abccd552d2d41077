//! Image versions from one store to another one.
//!
//! The stores may differ in their keys, and so in every id: a version is read, verified, and stored
//! anew as an import does. What the other store has already is not stored again, so a copy that
//! was interrupted goes on where it ended.

use crate::{
    ChunkId, ImportStats, Manifest, ManifestId, Progress, RefBody, RefKind, RefRecord, Session,
    Store, boot_copy, boot_list, chunk, import,
};
use block::{Device, Error, Result};
use serde::Serialize;
use std::collections::HashSet;

/// The label of a copied version: the ids of its manifest in the stores that it came through, that of the last one
/// first, with a space between them.
pub const LABEL: &str = "copy_of";

/// The most ids in a label.
const MOST_IDS: usize = 16;

/// What became of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Copied {
    /// It is in the other store now.
    Made(ImportStats),
    /// It was there already.
    Present,
}

/// Copies the image version `record` of `from` to the store of `session`, under its name. `view` is
/// the version's content as a device.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the other store has another version of that name;
/// any error from reading and from an import.
pub async fn version(
    from: &Store,
    record: &RefRecord,
    manifest: &Manifest,
    view: &dyn Device,
    session: &Session,
    progress: &dyn Progress,
) -> Result<Copied> {
    if is_present(record, session.store()).await? {
        return Ok(Copied::Present);
    }
    let imported = import::from_device(session, view, progress).await?;
    let mut labels = record.body.labels.clone();
    labels.insert(LABEL.to_owned(), label(ids(record)));
    let has_boot_copy = labels.remove(RefBody::BOOT_COPY).is_some();
    if let Some(id) = record.body.boot_list()? {
        let list = boot_list::read(from, &id).await?;
        let list = translated(from, manifest, &list, session.store()).await?;
        if list.is_empty() {
            labels.remove(boot_list::LABEL);
            labels.remove(boot_list::BOOTS);
        } else {
            let id = boot_list::write(session, &list).await?;
            labels.insert(boot_list::LABEL.to_owned(), id.to_string());
            if has_boot_copy
                && let Some(id) = boot_copy::of_list(session, &imported.manifest, &list).await
            {
                labels.insert(RefBody::BOOT_COPY.to_owned(), id.to_string());
            }
        }
    }
    let body = RefBody {
        manifest: Some(imported.manifest),
        size: imported.size,
        created: record.body.created,
        labels,
    };
    session.publish(RefKind::Image, &record.name, body).await?;
    Ok(Copied::Made(imported.stats))
}

/// The ids of a version: here, and in the stores that it came through.
fn ids(record: &RefRecord) -> Vec<ManifestId> {
    let label = record.body.labels.get(LABEL).map_or("", String::as_str);
    // Somebody else may have written anything there.
    let earlier = label.split(' ').take(MOST_IDS).filter_map(|id| id.parse().ok());
    record.body.manifest.into_iter().chain(earlier).collect()
}

/// The label of a copy of the version with these ids.
fn label(mut ids: Vec<ManifestId>) -> String {
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(*id));
    if ids.len() > MOST_IDS {
        // The last one is that of the original, which all copies have in common.
        ids.drain(MOST_IDS - 1..ids.len() - 1);
    }
    ids.iter().map(ManifestId::to_string).collect::<Vec<_>>().join(" ")
}

/// Whether the other store has the version: both are copies of one, or one is a copy of the other.
async fn is_present(record: &RefRecord, to: &Store) -> Result<bool> {
    let Some(found) = to.refs().get(RefKind::Image, &record.name).await? else { return Ok(false) };
    let there = ids(&found);
    if ids(record).iter().any(|id| there.contains(id)) {
        return Ok(true);
    }
    Err(Error::conflict(format!(
        "image {} exists in the other store with other content; remove it there, or import under \
         another tag",
        record.name
    )))
}

/// A boot list in the ids of the other store.
async fn translated(
    from: &Store,
    manifest: &Manifest,
    list: &[ChunkId],
    to: &Store,
) -> Result<Vec<ChunkId>> {
    let mut ids = Vec::with_capacity(list.len());
    for located in boot_list::locate(manifest, list).await? {
        let plain = from.read_chunk(&located.at).await?;
        ids.push(chunk::id_of(to.settings(), &plain));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, testing};
    use block::{ErrorKind, Memory};
    use object_store::memory::InMemory;
    use std::sync::Arc;

    const NAME: &str = "debian:1";

    fn content() -> Vec<u8> {
        testing::noise(1, 16 << 10)
    }

    /// A store with a key of its own.
    async fn store(seed: u64) -> Store {
        let settings = Settings::generate(&testing::FixedEntropy::new(seed)).unwrap();
        Store::create(Arc::new(InMemory::new()), settings, testing::world(seed)).await.unwrap()
    }

    /// A store with an image version that has such a label.
    async fn original(seed: u64, label: Option<String>) -> Store {
        let store = store(seed).await;
        let session = testing::session(&store).await;
        let done = import::from_device(&session, &Memory::from(content()), &()).await.unwrap();
        let labels = label.map(|label| (LABEL.to_owned(), label)).into_iter().collect();
        let body = RefBody { manifest: Some(done.manifest), size: done.size, created: 1, labels };
        let made = session.publish(RefKind::Image, NAME, body).await;
        session.close(made).await.unwrap();
        store
    }

    async fn record(store: &Store) -> RefRecord {
        store.refs().get(RefKind::Image, NAME).await.unwrap().unwrap()
    }

    /// Copies the version; whether that was needed.
    async fn copy(from: &Store, to: &Store) -> Result<bool> {
        let record = record(from).await;
        let manifest = from.manifest(&record.body.manifest.unwrap()).await?;
        let view = Memory::from(content());
        let session = testing::session(to).await;
        let copied = version(from, &record, &manifest, &view, &session, &()).await;
        Ok(matches!(session.close(copied).await?, Copied::Made(_)))
    }

    #[tokio::test]
    async fn a_version_is_known_again_whichever_way_it_came() {
        let (a, b) = (original(1, None).await, store(2).await);
        let (c, d) = (store(3).await, store(4).await);
        for (from, to) in [(&a, &b), (&b, &c), (&a, &d)] {
            assert!(copy(from, to).await.unwrap());
        }
        let all = [&a, &b, &c, &d];
        for (from, to) in all.iter().flat_map(|from| all.map(|to| (*from, to))) {
            assert!(!copy(from, to).await.unwrap());
        }
        let other = original(5, None).await;
        assert_eq!(copy(&other, &c).await.unwrap_err().kind(), ErrorKind::Conflict);
    }

    #[tokio::test]
    async fn a_long_way_is_not_remembered_but_for_its_beginning_and_its_end() {
        let first = original(1, None).await;
        let mut way = vec![first.clone()];
        for seed in 2..=MOST_IDS as u64 + 5 {
            let next = store(seed).await;
            assert!(copy(&way[way.len() - 1], &next).await.unwrap());
            way.push(next);
        }
        let [.., before, last] = &way[..] else { panic!("it is a long way") };
        assert_eq!(ids(&record(last).await).len(), MOST_IDS + 1);
        assert!(!copy(&first, last).await.unwrap());
        assert!(!copy(last, before).await.unwrap());
    }

    #[tokio::test]
    async fn a_label_that_somebody_else_wrote_is_read_as_far_as_it_makes_sense() {
        let known = ManifestId([7; 32]);
        let (long, many) = ("x".repeat(40_000), format!("{known} ").repeat(500));
        for junk in ["", " ", "é", "zz zz", &long, &many] {
            let (from, to) = (original(1, Some(junk.to_owned())).await, store(2).await);
            assert!(copy(&from, &to).await.unwrap());
            let made = record(&to).await;
            assert!(made.body.labels[LABEL].len() <= 2 * 65, "{junk:.20}");
            assert!(!copy(&from, &to).await.unwrap(), "{junk:.20}");
        }
    }
}

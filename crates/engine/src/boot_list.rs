//! Boot lists of image versions: reading them, and giving one to a version, with a boot copy.

use block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use store::{
    BootListId, ChunkId, Manifest, ManifestId, RefBody, RefKind, RefRecord, Session, Store,
    bootcopy, bootlist, images,
};

/// How often a version whose ref was changed by somebody else is tried again.
const ATTEMPTS: usize = 8;

/// The boot list of a version; `None` when it has none.
///
/// # Errors
/// Any error from the store, naming the version.
pub async fn of(store: &Store, record: &RefRecord) -> Result<Option<Vec<ChunkId>>> {
    let read = async {
        match record.body.boot_list()? {
            Some(id) => bootlist::read(store, &id).await.map(Some),
            None => Ok(None),
        }
    };
    read.await.map_err(|e| e.context(format!("boot list of image {}", record.name)))
}

/// What a boot list names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootListView {
    /// From how many boots the server recorded it; `None` for a list of one's own.
    pub boots: Option<u32>,
    /// Chunks that the list names.
    pub chunks: usize,
    /// The ones that the image has.
    pub present_chunks: usize,
    /// Their bytes.
    pub present_bytes: u64,
    /// Their bytes in packs.
    pub stored_bytes: u64,
    /// What its boot copy takes in packs; `None` when it has none, or one that cannot be read.
    pub copy_stored_bytes: Option<u64>,
}

impl BootListView {
    /// What the boot list of a version names; `None` when it has none.
    ///
    /// # Errors
    /// Any error from the store.
    pub async fn of(
        store: &Store,
        record: &RefRecord,
        manifest: &Manifest,
    ) -> Result<Option<Self>> {
        let Some(list) = of(store, record).await? else { return Ok(None) };
        let located = bootlist::locate(manifest, &list).await?;
        Ok(Some(Self {
            boots: record.body.recorded_boots(),
            chunks: list.len(),
            present_chunks: located.len(),
            present_bytes: located.iter().map(|found| u64::from(found.at.len)).sum(),
            stored_bytes: located.iter().map(|found| u64::from(found.at.stored)).sum(),
            copy_stored_bytes: copy_stored_bytes(store, record).await,
        }))
    }
}

async fn copy_stored_bytes(store: &Store, record: &RefRecord) -> Option<u64> {
    let read = async {
        let Some(id) = record.body.boot_copy()? else { return Ok(None) };
        let copy = store.manifest(&id).await?;
        let chunks = bootcopy::chunks(&copy).await?;
        Ok::<_, Error>(Some(chunks.iter().map(|at| u64::from(at.stored)).sum()))
    };
    read.await.unwrap_or_else(|error| {
        tracing::warn!(
            error = error.message(),
            "the boot copy of image {} is of no use",
            record.name
        );
        None
    })
}

/// From how many boots a list is recorded at the most: guests of one image boot differently, and what
/// few of them read is not worth loading for all.
const BOOTS: u32 = 4;

/// Whether the next boot of a version is to be added to its list.
pub fn is_open(record: &RefRecord) -> bool {
    record.body.recorded_boots().is_some_and(|boots| boots < BOOTS)
}

/// What became of a recorded boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// Chunks of it that were not on the list.
    pub new: usize,
    /// Boots that the list was recorded from.
    pub boots: u32,
}

impl Added {
    /// Whether this boot was the last one: the list is whole now.
    pub fn is_last(self) -> bool {
        self.boots >= BOOTS
    }
}

/// Gives a version the list of these chunks, whatever it had. `copies`: with a boot copy, if it is worth
/// one.
///
/// # Errors
/// Any error from the store; [`NotFound`](ErrorKind::NotFound) when the version was removed.
pub async fn set(store: &Store, version: &str, chunks: &[ChunkId], copies: bool) -> Result<()> {
    change(store, version, BootListChange::Set(chunks)).await?;
    if copies && let Err(error) = copy(store, version).await {
        // The list is of use without it.
        tracing::warn!(image = version, error = error.message(), "a boot list gets no boot copy");
    }
    Ok(())
}

/// Adds what a boot read to the list of a version, behind what is there; `None` when the list was
/// recorded from enough boots, or is somebody's own. The last of these boots makes the list whole:
/// [`copy`] is for it then.
///
/// # Errors
/// Any error from the store; [`NotFound`](ErrorKind::NotFound) when the version was removed.
pub async fn add(store: &Store, version: &str, boot: &[ChunkId]) -> Result<Option<Added>> {
    change(store, version, BootListChange::Add(boot)).await
}

/// The list of a version, if it is whole and has no boot copy.
pub fn uncopied(record: &RefRecord) -> Option<BootListId> {
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
/// Any error from the store.
pub async fn copy(store: &Store, version: &str) -> Result<bool> {
    let Some(record) = store.refs().get(RefKind::Image, version).await? else { return Ok(false) };
    let Some(id) = uncopied(&record) else { return Ok(false) };
    let manifest = images::manifest_of(&record)?;
    let list = bootlist::read(store, &id).await?;
    let Some(chunks) = bootcopy::choose(store, &manifest, &list).await? else { return Ok(false) };
    let session = store.session(&format!("boot copy of {version}")).await?;
    let named = async {
        let copy = bootcopy::make(&session, chunks).await?;
        bootcopy::name(&session, version, &manifest, id, copy).await
    };
    let named = named.await;
    session.close(named).await
}

/// Stores a list for a version that shows `manifest` and is not there yet, and names it in the version's
/// labels, as somebody's own; and its boot copy, if `copies` are wanted and it is worth one.
///
/// # Errors
/// Any error from storing the list; without a copy boots are slower, no more.
pub async fn give(
    session: &Session,
    manifest: &ManifestId,
    labels: &mut BTreeMap<String, String>,
    list: &[ChunkId],
    copies: bool,
) -> Result<()> {
    name(session, labels, list, None).await?;
    if copies && let Some(copy) = bootcopy::of_list(session, manifest, list).await {
        labels.insert(RefBody::BOOT_COPY.to_owned(), copy.to_string());
    }
    Ok(())
}

/// Stores a list, and names it in the labels of a version. `boots`: from how many boots it was recorded,
/// or `None` for somebody's own.
async fn name(
    session: &Session,
    labels: &mut BTreeMap<String, String>,
    list: &[ChunkId],
    boots: Option<u32>,
) -> Result<()> {
    let id = bootlist::write(session, list).await?;
    labels.insert(bootlist::LABEL.to_owned(), id.to_string());
    match boots {
        Some(boots) => labels.insert(bootlist::BOOTS.to_owned(), boots.to_string()),
        None => labels.remove(bootlist::BOOTS),
    };
    // That of the list before.
    labels.remove(RefBody::BOOT_COPY);
    Ok(())
}

/// What is done to a list.
#[derive(Clone, Copy)]
enum BootListChange<'a> {
    Set(&'a [ChunkId]),
    Add(&'a [ChunkId]),
}

async fn change(store: &Store, version: &str, change: BootListChange<'_>) -> Result<Option<Added>> {
    let session = store.session(&format!("boot list of {version}")).await?;
    let outcome = attempts(&session, version, change).await;
    session.close(outcome).await
}

/// Makes the change, again when somebody else was quicker.
async fn attempts(
    session: &Session,
    version: &str,
    change: BootListChange<'_>,
) -> Result<Option<Added>> {
    let refs = session.store().refs();
    for _ in 0..ATTEMPTS {
        let Some(record) = refs.get(RefKind::Image, version).await? else {
            return Err(Error::not_found(format!("image {version} was removed")));
        };
        let (list, added) = match change {
            BootListChange::Set(chunks) => (chunks.to_vec(), None),
            BootListChange::Add(_) if !is_open(&record) => return Ok(None),
            BootListChange::Add(boot) => {
                let (mut list, before) = match of(session.store(), &record).await {
                    Ok(list) => {
                        (list.unwrap_or_default(), record.body.recorded_boots().unwrap_or_default())
                    }
                    // One that is lost is begun anew; that it cannot be read now says nothing.
                    Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                        (Vec::new(), 0)
                    }
                    Err(e) => return Err(e),
                };
                let known: HashSet<ChunkId> = list.iter().copied().collect();
                list.extend(boot.iter().filter(|id| !known.contains(id)));
                let added = Added { new: list.len() - known.len(), boots: before + 1 };
                (list, Some(added))
            }
        };
        let mut body = record.body;
        let boots = added.map(|added| added.boots);
        name(session, &mut body.labels, &list, boots).await?;
        session.check().await?;
        match refs.update(RefKind::Image, version, record.sequence, body).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            other => return other.map(|_| added),
        }
    }
    Err(Error::conflict(format!("the ref of image {version} changes all the time; try again")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use store::{import, testing};

    const IMAGE: &str = "debian:1";

    /// A store with an image, and the image's chunks.
    async fn image() -> (tempfile::TempDir, Store, Vec<ChunkId>) {
        image_of(4).await
    }

    /// The same with an image of so many MiB.
    async fn image_of(mib: usize) -> (tempfile::TempDir, Store, Vec<ChunkId>) {
        let dir = tempfile::tempdir().unwrap();
        let backend = objects::create_local(dir.path()).unwrap();
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let session = testing::session(&store).await;
        let bytes = block::Memory::from(testing::noise(3, mib << 20));
        let done = import::from_device(&session, &bytes, &()).await.unwrap();
        let body = RefBody {
            manifest: Some(done.manifest),
            size: done.size,
            created: 1,
            labels: BTreeMap::new(),
        };
        session.publish(RefKind::Image, IMAGE, body).await.unwrap();
        let manifest = store.manifest(&done.manifest).await.unwrap();
        let all = block::Span::whole(done.size);
        let chunks = bootlist::of_ranges(&manifest, &[all]).await.unwrap();
        (dir, store, chunks)
    }

    async fn listed(store: &Store) -> Vec<ChunkId> {
        let record = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        of(store, &record).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn the_first_boots_make_the_list_together_and_later_ones_leave_it() {
        let (_dir, store, chunks) = image().await;
        let boot = async |range: std::ops::Range<usize>| add(&store, IMAGE, &chunks[range]).await;
        assert_eq!(boot(4..8).await.unwrap(), Some(Added { new: 4, boots: 1 }));
        assert_eq!(boot(0..6).await.unwrap(), Some(Added { new: 4, boots: 2 }));
        let both = [&chunks[4..8], &chunks[0..4]].concat();
        assert_eq!(listed(&store).await, both, "what is new comes behind");
        for boots in 3..=BOOTS {
            assert_eq!(boot(2..7).await.unwrap(), Some(Added { new: 0, boots }));
        }
        assert_eq!(boot(0..12).await.unwrap(), None);
        assert_eq!(listed(&store).await, both);
    }

    #[tokio::test]
    async fn a_list_that_is_lost_is_begun_anew_and_one_that_cannot_be_read_is_left() {
        let (dir, store, chunks) = image().await;
        for boot in [0..3, 3..6] {
            add(&store, IMAGE, &chunks[boot]).await.unwrap();
        }
        let record = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        let id = record.body.boot_list().unwrap().unwrap();
        let path = dir.path().join("bootlists").join(id.to_string());
        let aside = dir.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        // Whoever opens it is told that it leads nowhere.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let unreadable = add(&store, IMAGE, &chunks[6..9]).await.unwrap_err();
        assert_ne!(unreadable.kind(), ErrorKind::NotFound, "{unreadable}");
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(listed(&store).await, &chunks[..6], "nothing was changed");
        std::fs::remove_file(&path).unwrap();
        let begun = add(&store, IMAGE, &chunks[6..9]).await.unwrap();
        assert_eq!(begun, Some(Added { new: 3, boots: 1 }));
        assert_eq!(listed(&store).await, &chunks[6..9]);
    }

    #[tokio::test]
    async fn a_list_gets_its_copy_when_it_is_whole_and_another_list_takes_it_away() {
        let (_dir, store, chunks) = image_of(16).await;
        let scattered: Vec<_> = chunks.iter().rev().step_by(8).copied().collect();
        let named = async || {
            let record = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
            record.body.boot_copy().unwrap()
        };
        for boots in 1..=BOOTS {
            assert!(!copy(&store, IMAGE).await.unwrap(), "the list may still grow");
            let added = add(&store, IMAGE, &scattered).await.unwrap().unwrap();
            assert_eq!((added.boots, added.is_last()), (boots, boots == BOOTS));
        }
        assert_eq!(named().await, None);
        assert!(copy(&store, IMAGE).await.unwrap());
        let manifest = store.manifest(&named().await.unwrap()).await.unwrap();
        assert!(!copy(&store, IMAGE).await.unwrap(), "it has one");
        let copied = bootcopy::chunks(&manifest).await.unwrap();
        assert_eq!(copied.iter().map(|at| at.id).collect::<Vec<_>>(), scattered);
        set(&store, IMAGE, &chunks[..9], true).await.unwrap();
        assert_eq!(named().await, None, "one place is not worth one");
        set(&store, IMAGE, &scattered, true).await.unwrap();
        assert_eq!(named().await, Some(manifest.id()));
        set(&store, IMAGE, &scattered, false).await.unwrap();
        assert_eq!(named().await, None, "nobody wants one");
    }

    #[tokio::test]
    async fn no_boot_is_added_to_a_list_of_ones_own() {
        let (_dir, store, chunks) = image().await;
        add(&store, IMAGE, &chunks[..3]).await.unwrap();
        set(&store, IMAGE, &chunks[6..9], true).await.unwrap();
        assert_eq!(add(&store, IMAGE, &chunks[..3]).await.unwrap(), None);
        assert_eq!(listed(&store).await, &chunks[6..9]);
        let gone = add(&store, "debian:2", &chunks[..3]).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
}

//! A parcel: a suspended machine as one ref, `NAME@NUMBER`. It names the memory image, the snapshot of the
//! disk that belongs to it, and the description of the machine, all of one moment, and is made last.

use crate::image::MemoryLayout;
use crate::save::SavedMemory;
use crate::{MachineSpec, MemoryImage};
use block::{Error, ErrorKind, Result};
use disk::Loader;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::machines;
use store::{DamagedRef, ManifestId, RefBody, RefKind, RefRecord, Session, Store};

/// The labels of a parcel's ref.
const MACHINE: &str = machines::DESCRIPTION;
const LAYOUT: &str = "layout";
const SNAPSHOT: &str = "snapshot";
const TOKEN: &str = "token";

/// A suspended machine in the store. Its serialized form is for a process that is to go on with it, and is kept nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parcel {
    /// Counts the parcels of its machine, from 1.
    pub number: u64,
    /// The machine.
    pub spec: MachineSpec,
    /// The manifest of its memory image.
    pub memory: ManifestId,
    /// What that shows.
    pub layout: MemoryLayout,
    /// The manifest of its disk.
    pub disk: ManifestId,
    /// The snapshot of its disk, whose name without the disk's is this.
    pub snapshot: String,
    /// When it was made, in Unix seconds.
    pub created: u64,
    /// Tells it from another parcel of its number; those that were kept on a host first have one.
    pub token: Option<String>,
    /// The record of its ref.
    sequence: u64,
}

impl Parcel {
    /// Its name, such as `work@5`.
    pub fn name(&self) -> String {
        format!("{}@{}", self.spec.name, self.number)
    }

    /// Why the machine cannot go on from this parcel: its disk is not what it was.
    pub fn disk_was_written(&self) -> Error {
        let name = self.name();
        Error::conflict(format!(
            "disk {:?} was written since {name} was made; drop what was written with 'sojourn vm rollback {name}', \
             then resume it by that name",
            self.spec.disk
        ))
    }

    /// The number of the parcel after one.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when there is none: somebody made a parcel of the last number.
    pub(crate) fn number_after(machine: &str, number: u64) -> Result<u64> {
        number.checked_add(1).ok_or_else(|| {
            Error::corrupt(format!(
                "there is no number after that of parcel {machine}@{number}; remove that parcel"
            ))
        })
    }

    /// Makes a parcel.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when there is one of this number; any error from the session.
    pub async fn publish(
        session: &Session,
        spec: &MachineSpec,
        number: u64,
        saved: &SavedMemory,
        disk: ManifestId,
        token: Option<&str>,
    ) -> Result<Self> {
        let memory = (saved.imported.manifest, saved.layout);
        Self::name_memory(session, spec, number, memory, disk, token).await
    }

    /// Has a session keep what the parcel leads to.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when it was removed; any error from the session.
    pub async fn hold(&self, session: &Session) -> Result<()> {
        match session.hold(RefKind::Parcel, &self.name()).await? {
            Some(_) => Ok(()),
            None => Err(self.was_removed()),
        }
    }

    /// The same of a parcel that was read shortly before the session began: where what it leads to was held from the
    /// start, its record is not read again.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when it was removed; any error from the session.
    pub(crate) async fn still_held(&self, session: &Session) -> Result<()> {
        let roots = [self.memory, self.disk];
        match session.still_holds(RefKind::Parcel, &self.name(), self.sequence, &roots).await? {
            true => Ok(()),
            false => Err(self.was_removed()),
        }
    }

    fn was_removed(&self) -> Error {
        Error::not_found(format!("parcel {} was removed", self.name()))
    }

    /// Makes the first parcel of another machine, `spec`, of what this one holds: they share memory and disk, and
    /// each goes its own way. `disk` is what the other machine's own disk holds.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when this one was removed meanwhile,
    /// [`Conflict`](ErrorKind::Conflict) when the other machine has a parcel; any error from the session.
    pub async fn copy_to(
        &self,
        session: &Session,
        spec: &MachineSpec,
        disk: ManifestId,
    ) -> Result<Self> {
        self.hold(session).await?;
        Self::name_memory(session, spec, 1, (self.memory, self.layout), disk, None).await
    }

    async fn name_memory(
        session: &Session,
        spec: &MachineSpec,
        number: u64,
        (memory, layout): (ManifestId, MemoryLayout),
        disk: ManifestId,
        token: Option<&str>,
    ) -> Result<Self> {
        let name = format!("{}@{number}", spec.name);
        let size = layout.memory;
        let layout = serde_json::to_string(&layout)
            .map_err(|e| Error::internal("a layout cannot be written").with_source(e))?;
        let mut labels = BTreeMap::from([
            (MACHINE.to_owned(), spec.encode()?),
            (LAYOUT.to_owned(), layout),
            (SNAPSHOT.to_owned(), machines::snapshot_name(&spec.name, number)),
            (RefBody::ALSO.to_owned(), disk.to_string()),
        ]);
        labels.extend(token.map(|token| (TOKEN.to_owned(), token.to_owned())));
        let body = RefBody {
            manifest: Some(memory),
            size,
            created: session.store().world().clock.now(),
            labels,
        };
        Self::read(&session.publish(RefKind::Parcel, &name, body).await?)
    }

    /// The parcel of a ref.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when the ref is none of a parcel's,
    /// [`Unsupported`](ErrorKind::Unsupported) when a newer build made it.
    pub fn read(found: &RefRecord) -> Result<Self> {
        let parcel = || -> Result<Self> {
            let label = |name: &str| {
                found
                    .body
                    .labels
                    .get(name)
                    .ok_or_else(|| Error::corrupt(format!("lacks the label {name:?}")))
            };
            let number = found.name.rsplit_once('@').and_then(|(_, number)| number.parse().ok());
            let number = number.ok_or_else(|| Error::corrupt("has no number"))?;
            let spec = MachineSpec::decode(label(MACHINE)?)?;
            let layout = MemoryLayout::decode(label(LAYOUT)?)?;
            if found.name != format!("{}@{number}", spec.name) || layout.memory != spec.memory {
                return Err(Error::corrupt("is another machine's"));
            }
            // It is removed with the parcel.
            let snapshot = label(SNAPSHOT)?;
            if *snapshot != machines::snapshot_name(&spec.name, number) {
                return Err(Error::corrupt("names a snapshot that is not its own"));
            }
            let memory = found.body.manifest.ok_or_else(|| Error::corrupt("names no memory"))?;
            Ok(Self {
                number,
                memory,
                disk: label(RefBody::ALSO)?.parse()?,
                snapshot: snapshot.clone(),
                created: found.body.created,
                token: found.body.labels.get(TOKEN).cloned(),
                sequence: found.sequence,
                spec,
                layout,
            })
        };
        parcel().map_err(|e| e.context(format!("parcel {}", found.name)))
    }

    /// All parcels that can be read, by machine and then by number, and those that cannot.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be
    /// listed.
    pub async fn list(
        store: &Store,
        machine: Option<&str>,
    ) -> Result<(Vec<Self>, Vec<DamagedRef>)> {
        let of_machine = |name: &str| {
            machine.is_none_or(|machine| name.rsplit_once('@').is_some_and(|at| at.0 == machine))
        };
        let listing = store.refs().list_some(RefKind::Parcel, of_machine).await?;
        let (mut parcels, mut damaged) = (Vec::new(), listing.damaged);
        for found in &listing.records {
            match Self::read(found) {
                Ok(parcel) => parcels.push(parcel),
                Err(error) => damaged.push(DamagedRef { name: found.name.clone(), error }),
            }
        }
        parcels.sort_by(|a, b| (&a.spec.name, a.number).cmp(&(&b.spec.name, b.number)));
        Ok((parcels, damaged))
    }

    /// The newest parcel of a machine, or `None`.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) and others when that, or what may be a newer one, cannot be read; any error from
    /// the store.
    pub async fn newest(store: &Store, machine: &str) -> Result<Option<Self>> {
        let number = |name: &str| {
            let (of, number) = name.rsplit_once('@')?;
            (of == machine).then_some(())?;
            number.parse::<u64>().ok()
        };
        let found = store.refs().last_of(RefKind::Parcel, number).await?;
        found.as_ref().map(Self::read).transpose()
    }

    /// The parcel `NAME@NUMBER`, or the newest of the machine `NAME`.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none; any error from the store.
    pub async fn find(store: &Store, name: &str) -> Result<Self> {
        if name.contains('@') {
            let found = store.refs().get(RefKind::Parcel, name).await?;
            let found = found.ok_or_else(|| {
                Error::not_found(format!("there is no parcel {name}; see 'sojourn vm list'"))
            })?;
            return Self::read(&found);
        }
        Self::newest(store, name).await?.ok_or_else(|| {
            Error::not_found(format!(
                "machine {name:?} was never suspended; start it with 'sojourn vm start {name}'"
            ))
        })
    }

    /// Its memory, read through `loader`.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) and others when its manifest cannot be read.
    pub async fn image(&self, store: &Store, loader: &Arc<Loader>) -> Result<Arc<MemoryImage>> {
        let manifest = store.manifest(&self.memory).await;
        let manifest = manifest.map_err(|e| e.context(format!("parcel {}", self.name())))?;
        MemoryImage::new(loader, manifest, self.layout).map(Arc::new)
    }

    /// Removes it from the store.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when it was changed meanwhile;
    /// [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied) or
    /// [`NoSpace`](ErrorKind::NoSpace) when the store cannot be written to. One that is gone already is none.
    pub async fn remove(&self, store: &Store) -> Result<()> {
        match store.refs().remove(RefKind::Parcel, &self.name(), self.sequence).await {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::save::{self, MachineTail, MemorySource};
    use crate::spec::tests::spec;
    use async_trait::async_trait;
    use block::Span;
    use objects::testing::{ScriptedStore, StoreCall, StoreFault};
    use store::{gc, import, testing};

    /// Memory of which one extent is not zero.
    struct Little;

    #[async_trait]
    impl MemorySource for Little {
        fn size(&self) -> u64 {
            spec().memory
        }

        fn changed(&self, extent: u64) -> bool {
            extent == 3
        }

        async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
            buf.fill((span.offset() >> 12) as u8);
            Ok(())
        }
    }

    pub(crate) async fn fresh() -> Store {
        let backend = Arc::new(object_store::memory::InMemory::new());
        Store::create(backend, testing::settings(), testing::world(1)).await.unwrap()
    }

    /// A session of a store that gives no answer when one is to end.
    pub(crate) async fn session_that_stays() -> Session {
        let script = |call: &StoreCall| match call {
            StoreCall::Delete(at) if at.to_string().starts_with("pins/") => StoreFault::Hold,
            _ => StoreFault::None,
        };
        let memory = Arc::new(object_store::memory::InMemory::new());
        let backend = Arc::new(ScriptedStore::new(memory, script));
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        store.session("test").await.unwrap()
    }

    pub(crate) async fn make(store: &Store, number: u64) -> Parcel {
        let session = store.session("test").await.unwrap();
        let made = async {
            let disk = import::from_stream(&session, &[number as u8; 8192][..], &()).await?;
            let tail = MachineTail { state: b"devices", ..MachineTail::default() };
            let saved = save::memory(&session, None, &Little, tail, None, &()).await?;
            Parcel::publish(&session, &spec(), number, &saved, disk.manifest, None).await
        };
        let made = made.await;
        session.close(made).await.unwrap()
    }

    pub(crate) async fn collect(store: &Store) {
        let now = gc::GcOptions { grace: std::time::Duration::ZERO, ..gc::GcOptions::default() };
        gc::collect(store, &now, &()).await.unwrap();
    }

    #[tokio::test]
    async fn a_collection_keeps_memory_and_disk_of_a_parcel_until_it_is_removed() {
        let store = fresh().await;
        let parcel = make(&store, 1).await;
        collect(&store).await;
        let cache =
            cache::Config { capacity: 1 << 24, policy: cache::PolicyKind::default(), seed: 1 };
        let cache = Arc::new(cache::Cache::new(cache));
        let loader = Loader::new(store.clone(), cache, disk::LoadOptions::default());
        let image = parcel.image(&store, &loader).await.unwrap();
        assert_eq!(image.state().await.unwrap(), b"devices");
        store.stored_manifest(&parcel.disk).await.unwrap();
        parcel.remove(&store).await.unwrap();
        parcel.remove(&store).await.unwrap();
        collect(&store).await;
        for manifest in [parcel.memory, parcel.disk] {
            let gone = store.stored_manifest(&manifest).await.unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::NotFound);
        }
    }

    #[tokio::test]
    async fn a_copy_keeps_the_memory_when_the_parcel_that_it_was_made_of_is_gone() {
        let store = fresh().await;
        let parcel = make(&store, 3).await;
        let other = parcel.spec.twin("play", "play-disk", [7; 16], false);
        let session = store.session("test").await.unwrap();
        let copy = parcel.copy_to(&session, &other, parcel.disk).await.unwrap();
        let copy = session.close(Ok(copy)).await.unwrap();
        assert_eq!((copy.name().as_str(), copy.memory), ("play@1", parcel.memory));
        assert_eq!(Parcel::newest(&store, "work").await.unwrap(), Some(parcel.clone()));
        parcel.remove(&store).await.unwrap();
        collect(&store).await;
        store.stored_manifest(&copy.memory).await.unwrap();
        store.stored_manifest(&copy.disk).await.unwrap();
        let session = store.session("test").await.unwrap();
        let late = parcel.copy_to(&session, &other, parcel.disk).await.unwrap_err();
        assert_eq!(
            session.close(Err::<(), _>(late)).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[tokio::test]
    async fn parcels_are_found_by_name_and_the_newest_by_number() {
        let store = fresh().await;
        assert_eq!(Parcel::newest(&store, "work").await.unwrap(), None);
        for number in [1, 2, 10] {
            make(&store, number).await;
        }
        assert_eq!(Parcel::find(&store, "work").await.unwrap().number, 10);
        assert_eq!(Parcel::find(&store, "work@2").await.unwrap().name(), "work@2");
        for missing in ["work@3", "play"] {
            assert_eq!(
                Parcel::find(&store, missing).await.unwrap_err().kind(),
                ErrorKind::NotFound
            );
        }
        let session = store.session("test").await.unwrap();
        let tail = MachineTail::default();
        let saved = save::memory(&session, None, &Little, tail, None, &()).await.unwrap();
        let again =
            Parcel::publish(&session, &spec(), 2, &saved, saved.imported.manifest, None).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict, "a parcel never changes");
    }
}

use super::*;
use crate::layer::{object_layer, ranges_by_get};
use crate::testing::{Failing, FaultRates, Unreliable};
use crate::{Patience, patient};
use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{GetOptions, GetResult, PutPayload, PutResult};
use std::fmt;

/// What is wrong with a fake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// Looks whether an object exists, and then writes it.
    ChecksThenWrites,
    /// Writes whatever the condition says.
    IgnoresConditions,
    /// Shows the objects of a listing a write late.
    ListsLate,
    /// Says that all objects are of the same time.
    HasNoTime,
}

/// A backend with a flaw. A model of backends that must not be used: it answers otherwise than the one below, which
/// no script does.
#[derive(Debug)]
struct Fake {
    inner: InMemory,
    flaw: Flaw,
    last: parking_lot::Mutex<Option<Path>>,
}

impl fmt::Display for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fake")
    }
}

object_layer!(Fake);

#[async_trait]
impl crate::layer::ObjectLayer for Fake {
    type Below = InMemory;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> object_store::Result<PutResult> {
        if opts.mode == PutMode::Create && self.flaw == Flaw::ChecksThenWrites {
            if self.inner.head(location).await.is_ok() {
                let source = "taken".into();
                return Err(object_store::Error::AlreadyExists {
                    path: location.to_string(),
                    source,
                });
            }
            tokio::task::yield_now().await;
            opts.mode = PutMode::Overwrite;
        }
        if self.flaw == Flaw::IgnoresConditions {
            opts.mode = PutMode::Overwrite;
        }
        *self.last.lock() = Some(location.clone());
        self.inner.put_opts(location, payload, opts).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        let mut found = self.inner.get_opts(location, options).await?;
        if self.flaw == Flaw::HasNoTime {
            found.meta.last_modified = Default::default();
        }
        Ok(found)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let late = self.last.lock().clone().filter(|_| self.flaw == Flaw::ListsLate);
        let found = self.inner.list(prefix);
        Box::pin(
            found.try_filter(move |meta| std::future::ready(Some(&meta.location) != late.as_ref())),
        )
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> object_store::Result<Vec<bytes::Bytes>> {
        ranges_by_get(self, location, ranges).await
    }
}

fn now() -> u64 {
    1_767_225_600
}

fn quick() -> CheckOptions {
    CheckOptions { rounds: 3, large: 1 << 20, pause: Duration::from_secs(2), ..Default::default() }
}

async fn failed(flaw: Flaw) -> Vec<&'static str> {
    let fake = Fake { inner: InMemory::new(), flaw, last: parking_lot::Mutex::default() };
    let fake: Arc<dyn ObjectStore> = Arc::new(fake);
    let report = backend(&fake, [1; 16], &now, quick()).await.unwrap();
    report.findings.iter().filter(|finding| !finding.passed).map(|finding| finding.name).collect()
}

#[tokio::test]
async fn a_sound_backend_passes_and_is_left_empty() {
    let dir = tempfile::tempdir().unwrap();
    let sound: [Arc<dyn ObjectStore>; 2] =
        [Arc::new(InMemory::new()), crate::local(dir.path()).unwrap()];
    for sound in sound {
        let report = backend(&sound, [1; 16], &now, quick()).await.unwrap();
        assert!(report.passed(), "{report:#?}");
        let left: Vec<_> = sound.list(None).try_collect().await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn a_backend_that_checks_and_then_writes_fails_the_race_and_nothing_else() {
    assert_eq!(failed(Flaw::ChecksThenWrites).await, ["one creator wins"]);
}

#[tokio::test]
async fn a_backend_that_ignores_conditions_fails() {
    let failed = failed(Flaw::IgnoresConditions).await;
    assert!(failed.contains(&"create if absent") && failed.contains(&"one creator wins"));
}

#[tokio::test]
async fn a_backend_that_lists_late_fails() {
    assert_eq!(failed(Flaw::ListsLate).await[0], "list after write");
}

#[tokio::test]
async fn a_backend_without_times_fails() {
    assert_eq!(failed(Flaw::HasNoTime).await, ["modification times"]);
}

#[tokio::test]
async fn a_network_that_fails_for_moments_does_not_condemn_a_backend() {
    let faults = FaultRates { conflict: 0, delay: Duration::from_millis(2), ..FaultRates::all(30) };
    let faulty = Unreliable::new(Arc::new(InMemory::new()), 11, faults);
    let sound = patient(Arc::new(faulty.clone()), Patience::COMMAND);
    let report = backend(&sound, [1; 16], &now, quick()).await.unwrap();
    assert!(report.passed(), "{report:#?}");
    assert!(faulty.injected() > 5);
}

#[tokio::test]
async fn a_backend_that_cannot_be_written_to_is_an_error_and_not_a_finding() {
    let full: Arc<dyn ObjectStore> = Arc::new(Failing::new(Arc::new(InMemory::new()), 0));
    let error = backend(&full, [1; 16], &now, quick()).await.unwrap_err();
    assert_eq!(error.kind(), block::ErrorKind::NoSpace);
}

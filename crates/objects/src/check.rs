//! Whether a backend can be trusted with a store: what every store relies upon, tried out.
//!
//! The one thing that many engines get wrong is creation of an object that must not exist: some
//! check and then write, some ignore the condition. A store there loses the work of one of two
//! writers without any error, so this is raced before a backend is trusted.

use crate::Created;
use block::{Error, Result};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// How thorough a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckOptions {
    /// Creators of one object at the same time.
    pub creators: u32,
    /// How often they race.
    pub rounds: u32,
    /// Bytes of the large object.
    pub large: u64,
    /// The pause in which the store's clock has to go on; at least 2 s.
    pub pause: Duration,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { creators: 32, rounds: 6, large: 12 << 20, pause: Duration::from_secs(3) }
    }
}

/// What was tried, and how it came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// One for each thing that a store needs.
    pub findings: Vec<Finding>,
}

/// One thing that a store needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// What it is needed for.
    pub purpose: &'static str,
    /// Whether the backend can do it.
    pub passed: bool,
    /// What was seen.
    pub detail: String,
}

impl CheckReport {
    /// Whether the backend can do all of it.
    pub fn passed(&self) -> bool {
        self.findings.iter().all(|finding| finding.passed)
    }
}

/// Tries out everything that a store needs of a backend, below `check/` and the name
/// that `nonce` gives (random bytes), and removes what it wrote. `clock` tells the Unix time in seconds.
///
/// # Errors
/// Any error from a backend that cannot even be reached or written to; what it does wrong is in the
/// report.
pub async fn backend(
    backend: &Arc<dyn ObjectStore>,
    nonce: [u8; 16],
    clock: &(dyn Fn() -> u64 + Sync),
    options: CheckOptions,
) -> Result<CheckReport> {
    let name = nonce.iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    });
    let trial = Trial { backend: Arc::clone(backend), root: format!("check/{name}"), options };
    // Before anything is judged: an error here is one of credentials, buckets or networks.
    let first = trial.path("first");
    trial.put(&first, Bytes::from_static(b"first")).await?;
    let findings = vec![
        finding("read after write", "everything", trial.read_after_write().await),
        finding("ranges", "reading chunks out of packs", trial.ranges().await),
        finding("large objects", "packs", trial.large().await),
        finding("create if absent", "names: two writers must not overwrite each other", {
            trial.create_if_absent().await
        }),
        finding("one creator wins", "names: two writers must not overwrite each other", {
            trial.race().await
        }),
        finding("list after write", "names, and knowing what is stored", trial.list().await),
        finding("deletion", "collecting garbage", trial.deletion().await),
        finding("modification times", "collecting garbage only when it is old enough", {
            trial.times(clock).await
        }),
    ];
    trial.clean().await;
    Ok(CheckReport { findings })
}

/// What a trial came to: what was seen, or what is wrong.
type TrialOutcome = Result<String, String>;

fn finding(name: &'static str, purpose: &'static str, outcome: TrialOutcome) -> Finding {
    let passed = outcome.is_ok();
    let detail = outcome.unwrap_or_else(|wrong| wrong);
    Finding { name, purpose, passed, detail }
}

struct Trial {
    backend: Arc<dyn ObjectStore>,
    root: String,
    options: CheckOptions,
}

/// The text of an error, for a finding.
fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Trial {
    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.root))
    }

    async fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        crate::put_over(&*self.backend, path.as_ref(), bytes).await
    }

    async fn get(&self, path: &Path) -> Result<Bytes> {
        crate::get(&*self.backend, path.as_ref(), 1 << 30).await
    }

    async fn expect(&self, path: &Path, bytes: &[u8], when: &str) -> Result<(), String> {
        let found = self.get(path).await.map_err(text)?;
        if found == bytes {
            return Ok(());
        }
        Err(format!(
            "{when}, an object of {} bytes read back as other {}",
            bytes.len(),
            found.len()
        ))
    }

    async fn read_after_write(&self) -> TrialOutcome {
        let path = self.path("object");
        for (content, when) in [("one", "after it was written"), ("three", "after it was replaced")]
        {
            self.put(&path, Bytes::from_static(content.as_bytes())).await.map_err(text)?;
            self.expect(&path, content.as_bytes(), when).await?;
            let size = self.backend.head(&path).await.map_err(text)?.size;
            if size != content.len() as u64 {
                return Err(format!("{when}, its length was said to be {size}"));
            }
        }
        match self.get(&self.path("absent")).await {
            Err(e) if e.kind() == block::ErrorKind::NotFound => {
                Ok("an object is read as it was written last".into())
            }
            Err(e) => Err(format!("an absent object gives another error than \"not found\": {e}")),
            Ok(_) => Err("an object that was never written can be read".into()),
        }
    }

    async fn ranges(&self) -> TrialOutcome {
        let bytes: Vec<u8> =
            (0..200_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let path = self.path("ranges");
        self.put(&path, bytes.clone().into()).await.map_err(text)?;
        for (start, end) in
            [(0, 1), (1, 4097), (199_999, 200_000), (100_000, 200_000), (0, 200_000)]
        {
            let found = self.backend.get_range(&path, start..end).await.map_err(text)?;
            if found != bytes[start as usize..end as usize] {
                return Err(format!("bytes {start} to {end} came back as {} others", found.len()));
            }
        }
        match self.backend.get_range(&path, 199_000..300_000).await {
            Ok(found) if found != bytes[199_000..] => {
                Err("a range that reaches beyond the end gave wrong bytes".into())
            }
            _ => Ok("parts of an object are read as they were written".into()),
        }
    }

    async fn large(&self) -> TrialOutcome {
        let len = self.options.large as usize;
        let bytes: Bytes = (0..len).map(|n| (n >> 10) as u8 ^ n as u8).collect::<Vec<_>>().into();
        let path = self.path("large");
        self.put(&path, bytes.clone()).await.map_err(text)?;
        self.expect(&path, &bytes, "after it was written in one request").await?;
        Ok(format!("an object of {} MiB is written in one request", len >> 20))
    }

    /// A creation, which may be refused.
    async fn create(&self, path: &Path, bytes: Bytes) -> object_store::Result<()> {
        let options = PutOptions::from(PutMode::Create);
        self.backend.put_opts(path, bytes.into(), options).await.map(|_| ())
    }

    /// A creation that has to succeed. One that was tried again after it had landed is refused, but
    /// landed.
    async fn must_create(&self, path: &Path, bytes: Bytes) -> Result<(), String> {
        match crate::put_new(&*self.backend, path.as_ref(), bytes).await {
            Ok(Created::Ours) => Ok(()),
            Ok(Created::Theirs) => Err(format!("{path} exists, although nobody made it")),
            Err(e) => Err(text(e)),
        }
    }

    async fn create_if_absent(&self) -> TrialOutcome {
        let path = self.path("created");
        self.must_create(&path, Bytes::from_static(b"mine")).await?;
        match self.create(&path, Bytes::from_static(b"yours")).await {
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(e) => return Err(format!("a second creation gives another error: {e}")),
            Ok(()) => {
                return Err("a second creation of an object succeeded: the condition is ignored, \
                            and one writer overwrites another without a word"
                    .into());
            }
        }
        self.expect(&path, b"mine", "after a second creation was refused").await?;
        Ok("a second creation is refused".into())
    }

    /// Many creators of one object at the same time, several times.
    async fn race(&self) -> TrialOutcome {
        let CheckOptions { creators, rounds, .. } = self.options;
        for round in 0..rounds {
            let path = self.path(&format!("race-{round}"));
            let start = Arc::new(Barrier::new(creators as usize));
            let mut racers = JoinSet::new();
            for creator in 0..creators {
                let (backend, path) = (Arc::clone(&self.backend), path.clone());
                let start = Arc::clone(&start);
                racers.spawn(async move {
                    let content = format!("creator {creator} of round {round}");
                    start.wait().await;
                    let options = PutOptions::from(PutMode::Create);
                    let outcome = backend.put_opts(&path, content.clone().into(), options).await;
                    (content, outcome.map(|_| ()))
                });
            }
            let mut winners = Vec::new();
            while let Some(done) = racers.join_next().await {
                let (content, outcome) = done.map_err(text)?;
                // What was refused or is unknown may have landed all the same: its writer reads
                // back. What was said to be done must have been.
                if outcome.is_ok() {
                    winners.push(content);
                }
            }
            if winners.len() > 1 {
                return Err(format!(
                    "in round {} of {rounds}, {} of {creators} creators of one object were told \
                     that they made it; all but one lost their work. Do not keep a store here",
                    round + 1,
                    winners.len()
                ));
            }
            if let [winner] = winners.as_slice() {
                self.expect(&path, winner.as_bytes(), "after a race, for the winner").await?;
            }
        }
        Ok(format!("{rounds} times, of {creators} creators at most one was told that it made it"))
    }

    async fn listed(&self, folder: &str) -> Result<Vec<ObjectMeta>, String> {
        let mut found =
            crate::list(&*self.backend, self.path(folder).as_ref()).await.map_err(text)?;
        found.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(found)
    }

    async fn list(&self) -> TrialOutcome {
        const OBJECTS: usize = 30;
        for number in 0..OBJECTS {
            let path = self.path(&format!("list/{number:03}/x"));
            self.put(&path, vec![7; number].into()).await.map_err(text)?;
            let found = self.listed("list").await?;
            if found.len() != number + 1 {
                return Err(format!(
                    "after {} objects were written, a listing shows {}",
                    number + 1,
                    found.len()
                ));
            }
        }
        self.put(&self.path("listing/other"), Bytes::new()).await.map_err(text)?;
        let found = self.listed("list").await?;
        for (number, meta) in found.iter().enumerate() {
            if meta.location != self.path(&format!("list/{number:03}/x")) {
                return Err(format!("a listing shows {}, which was not asked for", meta.location));
            }
            if meta.size != number as u64 {
                return Err(format!("a listing says {} for {number} bytes", meta.size));
            }
        }
        Ok("a listing shows at once what was written, with its length".into())
    }

    async fn deletion(&self) -> TrialOutcome {
        let path = self.path("deleted/x");
        for turn in 0..2 {
            self.must_create(&path, Bytes::from_static(b"x")).await?;
            self.backend.delete(&path).await.map_err(text)?;
            if self.backend.head(&path).await.is_ok() {
                return Err("a deleted object can still be read".into());
            }
            if !self.listed("deleted").await?.is_empty() {
                return Err(format!("a deleted object is still listed (turn {turn})"));
            }
        }
        Ok("a deleted object is gone at once, and can be created again".into())
    }

    /// Ages are measured by the store's own clock, never by ours.
    async fn times(&self, clock: &(dyn Fn() -> u64 + Sync)) -> TrialOutcome {
        let (old, new) = (self.path("times/old"), self.path("times/new"));
        let modified = async |path: &Path| -> Result<i64, String> {
            Ok(self.backend.head(path).await.map_err(text)?.last_modified.timestamp())
        };
        self.put(&old, Bytes::from_static(b"old")).await.map_err(text)?;
        let first = modified(&old).await?;
        tokio::time::sleep(self.options.pause).await;
        self.put(&new, Bytes::from_static(b"new")).await.map_err(text)?;
        let second = modified(&new).await?;
        let still = modified(&old).await?;
        self.put(&old, Bytes::from_static(b"again")).await.map_err(text)?;
        let renewed = modified(&old).await?;
        let listed = self.listed("times").await?;
        let pause = self.options.pause.as_secs() as i64;
        if second - first < pause - 1 {
            return Err(format!(
                "an object that was written {pause} s after another one is said to be {} s younger",
                second - first
            ));
        }
        if still != first {
            return Err("the time of an object changed without a write".into());
        }
        if renewed < second {
            return Err("writing an object again does not renew its time".into());
        }
        if listed.iter().any(|meta| {
            let by_name = if meta.location == old { renewed } else { second };
            meta.last_modified.timestamp() != by_name
        }) {
            return Err("a listing says other times than the objects themselves".into());
        }
        let skew = second - clock() as i64;
        let skew = match skew {
            -60..=60 => String::new(),
            skew => {
                format!("; the store's clock differs from this machine's by {skew} s (no harm)")
            }
        };
        Ok(format!("an object's time is that of its last write{skew}"))
    }

    /// Removes everything; what cannot be removed is litter, not an error.
    async fn clean(&self) {
        let Ok(found) = crate::list(&*self.backend, &self.root).await else { return };
        let paths = futures::stream::iter(found.into_iter().map(|meta| Ok(meta.location)));
        let deleted = self.backend.delete_stream(Box::pin(paths));
        if let Err(e) = deleted.try_for_each(|_| async { Ok(()) }).await {
            let e = Error::unavailable(format!("objects of the check are left: {e}"));
            tracing::warn!(prefix = %self.root, error = %e, "remove them by hand");
        }
    }
}

#[cfg(test)]
mod tests;

//! Sessions: writing to a store while somebody collects its garbage.
//!
//! What a session stores has no ref until its end, and what it finds stored may lose its refs
//! meanwhile. So a session is seen in the store: a *pin* says which record of garbage collection it
//! had seen when it began. What had been condemned by then counts as absent for it: it stores such
//! chunks again, under names that nothing condemned has. What is condemned later is not deleted
//! before the session has ended and its ref is taken into account.
//!
//! A pin is renewed every hour. One that was not for a day is of a session that died, and is removed;
//! should its session live after all, it notices and publishes nothing.

use crate::collection::{CollectionState, Contents, Pin, pin};
use crate::condemned::Absent;
use crate::{LookedUpRef, ManifestId, RefBody, RefKind, RefRecord, Store, UploadPlan, WriterId};
use block::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often a pin is renewed.
const RENEWAL: Duration = Duration::from_secs(3600);
/// How soon a renewal that failed is tried again.
const RETRY: Duration = Duration::from_secs(300);
/// A session whose pin is older publishes nothing: half of what a collection waits at the least.
const TRUSTED: Duration = Duration::from_secs(12 * 3600);
/// Until then the number of a record tells it from any that may have taken its place: records stay for an hour at the
/// least after they were superseded.
const RECENT: Duration = Duration::from_secs(1800);
/// Changes of a name, or collections, that a session gives way to before it gives up.
const ATTEMPTS: usize = 16;

/// The right to write to a store: what it stores and what it relies on stays until
/// [`close`](Self::close), and then as long as a ref names it. One that is dropped instead counts as
/// alive for another day.
pub struct Session {
    inner: Arc<Inner>,
    plan: UploadPlan,
    _renewal: JoinSet<()>,
}

struct Inner {
    store: Store,
    what: String,
    began: Instant,
    /// The newest record of garbage collection when it began.
    sequence: u64,
    absent: Arc<Absent>,
    pinned: Mutex<Pinned>,
}

/// The session's pins. An earlier one stays until the end: whoever lists pins while another one is
/// being written sees one of them.
struct Pinned {
    id: WriterId,
    earlier: Vec<WriterId>,
    held: Vec<ManifestId>,
    renewed: Instant,
}

/// What is done about lists of condemned objects that are damaged.
#[derive(Debug, Clone, Copy)]
enum Damaged {
    Refused,
    Ignored,
}

impl Store {
    /// Begins to write to the store; `what` tells people what this is, such as `import of debian`.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when collections follow each other too fast;
    /// [`Corrupt`](block::ErrorKind::Corrupt) when their records or lists are damaged;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub async fn session(&self, what: &str) -> Result<Session> {
        self.begin(what, Damaged::Refused, &[]).await
    }

    /// Begins to write to the store with a pin that keeps the manifests `holds`, and what they lead to, from the
    /// start: that saves a second pin. A manifest may have been collected before. Whether it is still named is told
    /// by [`hold`](Session::hold), which writes no other pin then.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when collections follow each other too fast;
    /// [`Corrupt`](block::ErrorKind::Corrupt) when their records or lists are damaged;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub async fn session_holding(&self, what: &str, holds: &[ManifestId]) -> Result<Session> {
        self.begin(what, Damaged::Refused, holds).await
    }

    /// Begins a [`session`](Self::session) also when lists of condemned objects or their record are damaged.
    /// Not all that is condemned counts as absent for it, so that it must store no chunks.
    pub(crate) async fn session_despite_damage(&self, what: &str) -> Result<Session> {
        self.begin(what, Damaged::Ignored, &[]).await
    }

    async fn begin(&self, what: &str, damaged: Damaged, holds: &[ManifestId]) -> Result<Session> {
        must_fit(holds)?;
        let what: String = what.chars().take(pin::MAX_WHAT / 4).collect();
        let began = Instant::now();
        for _ in 0..ATTEMPTS {
            let sequence = CollectionState::newest(self).await?;
            let body = Pin { sequence, age: 0, what: what.clone(), holds: holds.to_vec() };
            let id = body.write(self).await?;
            // From here on a collection that this session has not seen sees the session.
            let state = match damaged {
                Damaged::Refused => CollectionState::load(self).await,
                Damaged::Ignored => {
                    CollectionState::load_despite_damage(self).await.map(|(state, _)| state)
                }
            };
            let seen = match state {
                Ok(state) if state.sequence == sequence => match damaged {
                    Damaged::Refused => match state.contents(self).await {
                        Ok(lists) if lists.is_outdated => Ok(None),
                        lists => lists.and_then(Contents::whole).map(Some),
                    },
                    Damaged::Ignored => state.contents(self).await.map(|lists| Some(lists.absent)),
                },
                Ok(_) => Ok(None),
                Err(e) => Err(e),
            };
            match seen {
                Ok(Some(absent)) => {
                    let held = holds.to_vec();
                    let pinned = Pinned { id, earlier: Vec::new(), held, renewed: began };
                    let inner = Arc::new(Inner {
                        store: self.clone(),
                        what,
                        began,
                        sequence,
                        absent: Arc::new(absent),
                        pinned: Mutex::new(pinned),
                    });
                    let mut renewal = JoinSet::new();
                    renewal.spawn(keep_renewed(Arc::clone(&inner)));
                    let plan = UploadPlan::default();
                    return Ok(Session { inner, plan, _renewal: renewal });
                }
                other => {
                    pin::delete(self, &id).await?;
                    other?;
                }
            }
        }
        Err(Error::conflict(
            "garbage collections follow each other too fast to begin to write; try again",
        ))
    }
}

/// Renews the pin for ever.
async fn keep_renewed(inner: Arc<Inner>) {
    let mut pause = RENEWAL;
    loop {
        tokio::time::sleep(pause).await;
        pause = match inner.replace_pin(&[]).await {
            Ok(()) => RENEWAL,
            Err(error) => {
                tracing::warn!(what = inner.what, %error, "cannot renew the pin of a session");
                RETRY
            }
        };
    }
}

impl Inner {
    /// Writes another pin, that also holds `more`.
    async fn replace_pin(&self, more: &[ManifestId]) -> Result<()> {
        let mut pinned = self.pinned.lock().await;
        let mut holds = pinned.held.clone();
        holds.extend(more.iter().filter(|id| !pinned.held.contains(id)));
        must_fit(&holds)?;
        let renewed = Instant::now();
        let age = renewed.duration_since(self.began).as_secs();
        let (sequence, what) = (self.sequence, self.what.clone());
        let fresh = Pin { sequence, age, what, holds: holds.clone() }.write(&self.store).await?;
        // Whatever comes of it: the session's end removes it.
        pinned.earlier.push(fresh);
        let old = pinned.id;
        // The two overlap, or else the session was taken for dead in between.
        if !pin::exists(&self.store, &old).await? {
            pin::delete(&self.store, &fresh).await?;
            return Err(lost(&self.what));
        }
        pinned.earlier.retain(|id| *id != fresh);
        pinned.earlier.push(old);
        (pinned.id, pinned.held, pinned.renewed) = (fresh, holds, renewed);
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        let pinned = self.pinned.lock().await;
        self.must_be_recent(&pinned)?;
        match pin::exists(&self.store, &pinned.id).await? {
            true => Ok(()),
            false => Err(lost(&self.what)),
        }
    }

    /// What can be told of the pin without asking the store.
    fn must_be_recent(&self, pinned: &Pinned) -> Result<()> {
        if pinned.renewed.elapsed() > TRUSTED { Err(lost(&self.what)) } else { Ok(()) }
    }
}

/// Refuses to hold more than a pin can name.
fn must_fit(holds: &[ManifestId]) -> Result<()> {
    match holds.len() > pin::MAX_HELD {
        true => Err(Error::invalid(format!(
            "one session cannot hold more than {} manifests",
            pin::MAX_HELD
        ))),
        false => Ok(()),
    }
}

fn lost(what: &str) -> Error {
    Error::fenced(format!(
        "{what}: was silent for so long that its place in the store was given up; do it again"
    ))
}

impl Session {
    /// The store that it writes to.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The same, with uploads as planned.
    #[must_use]
    pub fn uploading(self, plan: UploadPlan) -> Self {
        Self { plan: plan.bounded(), ..self }
    }

    /// How it uploads.
    pub(crate) fn plan(&self) -> &UploadPlan {
        &self.plan
    }

    /// What it does, in its own words.
    pub(crate) fn what(&self) -> &str {
        &self.inner.what
    }

    /// What counts as absent.
    pub(crate) fn absent(&self) -> &Arc<Absent> {
        &self.inner.absent
    }

    /// The key of its pin.
    pub(crate) async fn pin_key(&self) -> String {
        pin::key(&self.inner.pinned.lock().await.id)
    }

    /// The keys of all its pins: it has several once one was renewed.
    pub(crate) async fn pin_keys(&self) -> Vec<String> {
        let pinned = self.inner.pinned.lock().await;
        pinned.earlier.iter().chain([&pinned.id]).map(pin::key).collect()
    }

    /// The newest record of a name, or `None`. What it keeps in the store stays there until the
    /// session ends, also when the name is removed.
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when the session was taken for dead; any error from the refs.
    pub async fn hold(&self, kind: RefKind, name: &str) -> Result<Option<RefRecord>> {
        let refs = self.store().refs();
        for _ in 0..ATTEMPTS {
            let Some(found) = refs.get(kind, name).await? else { return Ok(None) };
            let roots = found.body.roots()?;
            let held = {
                let pinned = self.inner.pinned.lock().await;
                roots.iter().all(|id| pinned.held.contains(id))
            };
            if held {
                return Ok(Some(found));
            }
            // Only what still has its name after it was pinned is sure to stay.
            self.inner.replace_pin(&roots).await?;
        }
        Err(Error::conflict(format!("{kind} {name:?} changes all the time; try again")))
    }

    /// Whether a name is still there, whose record of number `sequence` was read shortly before the session began and
    /// names the manifests `roots`: as [`hold`](Self::hold), but that record is not read again where these were [held
    /// from the start](Store::session_holding).
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when the session was taken for dead; any error from the refs.
    pub async fn still_holds(
        &self,
        kind: RefKind,
        name: &str,
        sequence: u64,
        roots: &[ManifestId],
    ) -> Result<bool> {
        let is_held = {
            let pinned = self.inner.pinned.lock().await;
            roots.iter().all(|id| pinned.held.contains(id))
        };
        // Much later there may be another record of that number.
        if is_held
            && self.inner.began.elapsed() < RECENT
            && self.store().refs().sequence(kind, name).await? == Some(sequence)
        {
            return Ok(true);
        }
        Ok(self.hold(kind, name).await?.is_some())
    }

    /// Keeps manifests, and what they lead to, until the session ends.
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when the session was taken for dead;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub(crate) async fn hold_manifests(&self, ids: &[ManifestId]) -> Result<()> {
        self.inner.replace_pin(ids).await
    }

    /// Makes a name; as [`Refs::create`](crate::Refs::create).
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when the session was taken for dead: then there is no such name;
    /// [`Conflict`](block::ErrorKind::Conflict) when it exists;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub async fn publish(&self, kind: RefKind, name: &str, body: RefBody) -> Result<RefRecord> {
        self.check().await?;
        let refs = self.store().refs();
        let record = refs.create(kind, name, body).await?;
        match self.check().await {
            Err(e) if e.kind() == block::ErrorKind::Fenced => {
                match refs.remove(kind, name, record.sequence).await {
                    // As by a gateway, which lets clients remove nothing.
                    Err(left) if left.kind() == block::ErrorKind::Denied => {
                        Err(e
                            .context(format!("{kind} {name} stays ({}), and this", left.message())))
                    }
                    removed => removed.and(Err(e)),
                }
            }
            // It was alive before.
            _ => Ok(record),
        }
    }

    /// Makes a name, or moves it on, if it is still what it was when it was looked up; as
    /// [`Refs::write_over`](crate::Refs::write_over).
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when the session was taken for dead: then the name means what it did, or is
    /// removed; [`Conflict`](block::ErrorKind::Conflict) when somebody else changed the name since;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend: what the name means has to be looked up then.
    pub async fn publish_over(&self, found: &LookedUpRef, body: RefBody) -> Result<RefRecord> {
        let inner = &self.inner;
        inner.must_be_recent(&*inner.pinned.lock().await)?;
        let refs = self.store().refs();
        let record = refs.write_over(found, body).await?;
        let Err(error) = self.check().await else { return Ok(record) };
        // What it means may be gone already, or nobody can tell: it is given back to what it meant.
        let (kind, name) = (found.kind(), &record.name);
        let given_back = match found.record() {
            Some(before) => {
                refs.update(kind, name, record.sequence, before.body.clone()).await.map(drop)
            }
            None => refs.remove(kind, name, record.sequence).await,
        };
        if let Err(e) = given_back {
            return Err(e.context(format!("{name} could not be given back after: {error}")));
        }
        Err(error)
    }

    /// Looks whether the session is still alive: then all that it stored is there, and so is what it
    /// holds.
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when it was taken for dead;
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) from the
    /// backend.
    pub async fn check(&self) -> Result<()> {
        self.inner.check().await
    }

    /// Ends it, and hands on the outcome of what it was for. What has no ref by now is garbage.
    ///
    /// # Errors
    /// That of `outcome`; a pin that cannot be removed is only in the way of the next collection.
    pub async fn close<T>(self, outcome: Result<T>) -> Result<T> {
        let pinned = self.inner.pinned.lock().await;
        for id in pinned.earlier.iter().chain([&pinned.id]) {
            if let Err(error) = pin::delete(self.store(), id).await {
                tracing::warn!(what = self.inner.what, %error, "a pin stays in the store for a day");
            }
        }
        outcome
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.inner.what)
    }
}

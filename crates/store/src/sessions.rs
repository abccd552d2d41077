//! Who is at work on a store, as the [pins](crate::Session) of sessions say, and ending what died.

use crate::collection::pin;
use crate::collection::seconds;
use crate::gc::census;
use crate::{Session, Store, WriterId};
use block::{Error, ErrorKind, Result};
use serde::Serialize;

/// A pin of a session. One that was renewed has several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PinInfo {
    /// What it is called.
    pub id: WriterId,
    /// What the session does, in its own words; `None` when the pin is damaged.
    pub what: Option<String>,
    /// For how many seconds the session has been going on, or did until the pin was written.
    pub age: u64,
    /// Seconds since the pin was written, by the store's clock.
    pub silent: u64,
}

/// All pins, the oldest first.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the backend cannot be
/// listed, or its clock cannot be asked by writing an object.
pub async fn list(store: &Store) -> Result<Vec<PinInfo>> {
    let mut seen = census::pins(store).await?;
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let now = store.servers().clock().await?;
    seen.sort_by_key(|seen| seconds(&seen.meta));
    let info = |seen: census::ListedPin| {
        let id = seen.meta.location.as_ref().rsplit_once('/')?.1.parse().ok()?;
        let silent = now.saturating_sub(seconds(&seen.meta));
        let age = seen.pin.as_ref().map_or(0, |pin| pin.age).saturating_add(silent);
        Some(PinInfo { id, what: seen.pin.map(|pin| pin.what), age, silent })
    };
    Ok(seen.into_iter().filter_map(info).collect())
}

/// Ends the session of a pin: should it be at work after all, it fails and publishes nothing.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is no such pin; [`Unavailable`](ErrorKind::Unavailable) or
/// [`Denied`](ErrorKind::Denied) from the backend.
pub async fn end(store: &Store, id: &WriterId) -> Result<()> {
    if !pin::exists(store, id).await? {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("no session has the pin {id}; see `sojourn store sessions list`"),
        ));
    }
    pin::delete(store, id).await
}

/// Ends the sessions that do the same as this one, in the same words: what a process left that was
/// killed. For a caller who knows that no other one is at work. What they stored, and nobody condemned,
/// stays as long as this session lasts.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the pins cannot be listed or
/// removed.
pub async fn end_predecessors(session: &Session) -> Result<()> {
    let own = session.pin_keys().await;
    for pin in list(session.store()).await? {
        if pin.what.as_deref() == Some(session.what()) && !own.contains(&pin::key(&pin.id)) {
            pin::delete(session.store(), &pin.id).await?;
        }
    }
    Ok(())
}

/// Takes away the pins of sessions that were begun through this store and dropped without an end: for a
/// program that is interrupted. What is still at work with one of them fails.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when a pin cannot be removed.
pub async fn end_abandoned(store: &Store) -> Result<()> {
    let pins: Vec<WriterId> = store.pins().lock().iter().copied().collect();
    for id in pins {
        pin::delete(store, &id).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use object_store::ObjectStore;
    use objects::testing::Clocked;
    use std::sync::Arc;

    #[tokio::test]
    async fn sessions_that_were_dropped_can_be_ended_and_those_of_others_stay() {
        let backend = Clocked::new(testing::NOW);
        let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
        let store = Store::create(shared.clone(), testing::settings(), testing::world(1)).await;
        let store = store.unwrap();
        let other = Store::open(shared, testing::world(2)).await.unwrap();
        let theirs = other.session("theirs").await.unwrap();
        drop(store.session("ours").await.unwrap());
        assert_eq!(list(&store).await.unwrap().len(), 2);
        end_abandoned(&store).await.unwrap();
        assert_eq!(list(&store).await.unwrap().len(), 1);
        theirs.check().await.unwrap();
    }

    #[tokio::test]
    async fn sessions_are_listed_with_what_they_do_and_one_that_is_ended_publishes_nothing() {
        let backend = Clocked::new(testing::NOW);
        let shared: Arc<dyn ObjectStore> = Arc::new(backend.clone());
        let store = Store::create(shared, testing::settings(), testing::world(1)).await.unwrap();
        assert_eq!(list(&store).await.unwrap(), []);
        let session = store.session("import of debian").await.unwrap();
        backend.advance(7000);
        let [found] = &list(&store).await.unwrap()[..] else { panic!("one session") };
        assert_eq!((found.what.as_deref(), found.silent), (Some("import of debian"), 7000));
        end(&store, &found.id).await.unwrap();
        assert_eq!(session.check().await.unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(end(&store, &found.id).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

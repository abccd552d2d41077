//! Which servers are at work, as the others see it.
//!
//! A server writes an object of its own, `servers/<server id>`, again and again. One that has not
//! been written for longer than it promises is of a server that is gone. Ages are differences of
//! times that the store itself put on objects: no server's clock is believed.

use crate::object;
use crate::object_kind::ObjectKind;
use crate::wire::damaged;
use crate::{ServerId, Store};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The object that is written to learn what time it is for the store.
pub(crate) const PROBE: &str = "servers/clock";
/// The longest time that a server may promise, in seconds: a day.
const LONGEST: u64 = 24 * 3600;

/// What a server's object says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Announcement {
    pub(crate) server: ServerId,
    pub(crate) host: String,
    /// For how many seconds from its writing the server counts as being at work.
    pub(crate) seconds: u64,
}

impl Announcement {
    pub(crate) fn decode(key: &str, body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body).map_err(|e| damaged(key, &format!("not its format: {e}")))
    }
}

/// Checks the body of a server's object.
pub(crate) fn check(key: &str, body: &[u8]) -> Result<()> {
    Announcement::decode(key, body).map(drop)
}

/// A server as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedServer {
    /// The host that it runs on, in its own words.
    pub host: String,
    /// How long ago it said that it is at work.
    pub silent: Duration,
    /// How long that holds; zero when it said good-bye.
    pub lease: Duration,
}

impl ListedServer {
    /// Whether it is at work.
    pub fn is_alive(&self) -> bool {
        self.silent < self.lease
    }
}

/// The servers of a store.
#[derive(Debug)]
pub struct Servers<'a> {
    store: &'a Store,
}

impl Store {
    /// The servers that use it.
    pub fn servers(&self) -> Servers<'_> {
        Servers { store: self }
    }
}

impl Servers<'_> {
    /// Says that a server is at work, for `lease` from now on, in whole seconds and at most a day;
    /// with zero that it is not any more.
    ///
    /// # Errors
    /// Any error from the backend.
    pub async fn announce(&self, server: ServerId, host: &str, lease: Duration) -> Result<()> {
        let announcement = Announcement {
            server,
            host: host.chars().take(255).collect(),
            seconds: lease.as_secs().min(LONGEST),
        };
        let body = serde_json::to_vec(&announcement)
            .map_err(|e| Error::internal("a server's lease cannot be written").with_source(e))?;
        let key = ObjectKind::Server.key(&server);
        let bytes = object::encode(self.store.settings(), ObjectKind::Server, &key, &body)?;
        objects::put_over(self.store.backend(), &key, bytes).await
    }

    /// What is known of a server; `None` when it was never at work, or its object is damaged.
    ///
    /// # Errors
    /// Any error from the backend.
    pub async fn seen(&self, server: &ServerId) -> Result<Option<ListedServer>> {
        let Some(said) = self.said(server).await.or_else(|error| match error.kind() {
            ErrorKind::Corrupt => {
                tracing::warn!(%error, "a server's lease cannot be read");
                Ok(None)
            }
            _ => Err(error),
        })?
        else {
            return Ok(None);
        };
        let written = self.written(&ObjectKind::Server.key(server)).await?;
        // Written after it was looked at: no server seems livelier than it is.
        let now = self.probe().await?;
        let silent = Duration::from_millis(u64::try_from(now - written).unwrap_or(0));
        let lease = Duration::from_secs(said.seconds.min(LONGEST));
        Ok(Some(ListedServer { host: said.host, silent, lease }))
    }

    /// What a server said last; `None` when it never said anything.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when that is damaged; any error from the backend.
    pub(crate) async fn said(&self, server: &ServerId) -> Result<Option<Announcement>> {
        let (backend, kind) = (self.store.backend(), ObjectKind::Server);
        let key = kind.key(server);
        let body = match object::read(backend, self.store.settings(), kind, &key).await {
            Ok(body) => body,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let said = Announcement::decode(&key, &body)?;
        match said.server == *server {
            true => Ok(Some(said)),
            false => Err(damaged(&key, "it is of another server")),
        }
    }

    /// What time it is for the store, in Unix seconds.
    pub(crate) async fn clock(&self) -> Result<u64> {
        Ok(u64::try_from(self.probe().await? / 1000).unwrap_or(0))
    }

    /// Asks the [`clock`](Self::clock), in milliseconds.
    async fn probe(&self) -> Result<i64> {
        objects::put_over(self.store.backend(), PROBE, Bytes::from_static(b"clock\n")).await?;
        self.written(PROBE).await
    }

    /// When an object was written, in milliseconds of the store's clock.
    async fn written(&self, key: &str) -> Result<i64> {
        let meta = self.store.backend().head(&Path::from(key)).await;
        meta.map(|meta| meta.last_modified.timestamp_millis()).map_err(|e| objects::error(key, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    async fn store() -> Store {
        let backend = Arc::new(InMemory::new());
        Store::create(backend, testing::settings(), testing::world(1)).await.unwrap()
    }

    #[tokio::test]
    async fn a_server_is_alive_for_as_long_as_it_promised() {
        let store = store().await;
        let (here, other) = (ServerId([1; 16]), ServerId([2; 16]));
        let servers = store.servers();
        assert_eq!(servers.seen(&here).await.unwrap(), None);
        servers.announce(here, "lab-3", Duration::from_secs(3600)).await.unwrap();
        let seen = servers.seen(&here).await.unwrap().unwrap();
        assert_eq!((seen.host.as_str(), seen.is_alive()), ("lab-3", true));
        assert_eq!(servers.seen(&other).await.unwrap(), None);
        servers.announce(here, "lab-3", Duration::ZERO).await.unwrap();
        assert!(!servers.seen(&here).await.unwrap().unwrap().is_alive());
    }

    #[tokio::test]
    async fn a_damaged_lease_holds_nothing() {
        let store = store().await;
        let id = ServerId([1; 16]);
        let key = ObjectKind::Server.key(&id);
        objects::put_over(store.backend(), &key, Bytes::from_static(b"noise")).await.unwrap();
        assert_eq!(store.servers().seen(&id).await.unwrap(), None);
    }
}

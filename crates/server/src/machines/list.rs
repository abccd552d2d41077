//! The list of machines in a home. Commands and `sojourn netboot` change it, one at a time.

use super::file;
use block::fs::FsPath;
use block::lock::{LockFile, Taking};
use block::{Error, Result};
use engine::Home;
use netboot::Registry;
use netboot::identity::Claim;
use netboot::registry::Machine;
use netboot::sightings::{Sighting, TextUuid};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::Instant;

/// How long one waits for another that changes the list.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks.
const PAUSE: Duration = Duration::from_millis(20);

/// The machines of a home, as `--json machine list` prints them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MachineListView {
    /// Those in the list, by name.
    pub machines: Vec<Machine>,
    /// Those that asked and are not, the last seen first.
    pub waiting: Vec<Sighting>,
}

impl MachineListView {
    /// The machines of a home as they are now.
    ///
    /// # Errors
    /// Any error from [`load`], and the same for the file of machines that asked.
    pub async fn of(home: &Home) -> Result<Self> {
        let registry = load(home).await?;
        let mut waiting = sightings(home).await?;
        waiting.retain(|seen| waits(&registry, seen));
        Ok(Self { machines: registry.machines().to_vec(), waiting })
    }
}

/// Whether a machine that asked is not in the list: neither its card nor its board.
pub(super) fn waits(registry: &Registry, seen: &Sighting) -> bool {
    let uuid = seen.uuid.map(|TextUuid(uuid)| uuid);
    registry.find(&Claim { mac: seen.mac, uuid }).is_none()
}

fn path(home: &Home) -> FsPath {
    FsPath::from(home.machines().as_path())
}

/// The machines that asked and were not in the list, the last seen first.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the file is damaged;
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be read.
pub(crate) async fn sightings(home: &Home) -> Result<Vec<Sighting>> {
    file::read(home.machines_seen()).await
}

/// Reads the list.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when it is damaged;
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be read.
pub async fn load(home: &Home) -> Result<Registry> {
    let path = path(home);
    block::offload(move || Registry::load(&path)).await
}

/// Changes the list, durably, and does something else about what became of it, before anybody changes it again.
///
/// # Errors
/// Any error that [`update`] gives, with the list as it was; any error from `then`, with the list changed already.
pub(super) async fn update_then<T: Send + 'static>(
    home: &Home,
    change: impl FnOnce(&mut Registry) -> Result<T> + Send + 'static,
    then: impl FnOnce(&T) -> Result<()> + Send + 'static,
) -> Result<T> {
    let lock = lock(home).await?;
    let path = path(home);
    block::offload(move || {
        let mut registry = Registry::load(&path)?;
        let result = change(&mut registry)?;
        registry.save(&path)?;
        then(&result)?;
        drop(lock);
        Ok(result)
    })
    .await
}

/// Changes the list, durably; nothing is written when `change` fails.
///
/// # Errors
/// Any error from `change` and from [`load`]; [`Conflict`](block::ErrorKind::Conflict) when another process keeps
/// changing it.
pub async fn update<T: Send + 'static>(
    home: &Home,
    change: impl FnOnce(&mut Registry) -> Result<T> + Send + 'static,
) -> Result<T> {
    update_then(home, change, |_| Ok(())).await
}

/// That nobody is called so.
pub(super) fn unknown(who: &str) -> Error {
    let who: String = who.chars().take(80).collect();
    Error::not_found(format!("no machine {who}; see `sojourn machine list` for what there is"))
}

async fn lock(home: &Home) -> Result<LockFile> {
    let path = path(home).with_extension("lock");
    let end = Instant::now() + PATIENCE;
    loop {
        let path = path.clone();
        match block::offload(move || LockFile::take(path)).await? {
            Taking::Ours(lock) => return Ok(lock),
            Taking::Held(holder) if Instant::now() >= end => {
                return Err(Error::conflict(format!(
                    "the list of machines is being changed by {holder}"
                )));
            }
            Taking::Held(_) | Taking::Replaced => tokio::time::sleep(PAUSE).await,
        }
    }
}

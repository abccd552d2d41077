//! Leases and sightings, kept in files of the home. They may be a second old after a crash: a card gets
//! the same address again even then, unless the range is nearly full.

use super::home_machines::HomeMachines;
use block::fs::{FsPath, Open};
use block::{Error, Result};
use engine::Home;
use netboot::dhcp::{DhcpServer, Lease};
use netboot::registry::replace_file;
use netboot::sightings::Sighting;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How often what changed is written.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest file that is read, in bytes.
const LONGEST: u64 = 32 << 20;

/// The machines that asked and were not in the list, the last seen first.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the file is damaged;
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be read.
pub async fn sightings(home: &Home) -> Result<Vec<Sighting>> {
    read(home.machines_seen()).await
}

/// The leases of an earlier time.
pub(super) async fn leases(home: &Home) -> Result<Vec<Lease>> {
    read(home.leases()).await
}

/// Writes what changed, now and then, until the future is dropped.
pub(super) async fn follow(home: &Home, server: &DhcpServer, machines: &HomeMachines) {
    let mut leases = server.leases();
    loop {
        tokio::time::sleep(PAUSE).await;
        let now = server.leases();
        let saved = match now == leases {
            true => save_sightings(home, machines).await,
            false => save(home, server, machines).await,
        };
        match saved {
            Ok(()) => leases = now,
            Err(error) => tracing::warn!(error = error.message(), "cannot write what machines did"),
        }
    }
}

/// Writes all of it.
pub(super) async fn save(home: &Home, server: &DhcpServer, machines: &HomeMachines) -> Result<()> {
    if let Some(leases) = server.leases() {
        write(home.leases(), leases).await?;
    }
    save_sightings(home, machines).await
}

async fn save_sightings(home: &Home, machines: &HomeMachines) -> Result<()> {
    match machines.changed_sightings() {
        Some(list) => write(home.machines_seen(), list).await,
        None => Ok(()),
    }
}

async fn read<T: DeserializeOwned + Send + 'static>(path: PathBuf) -> Result<Vec<T>> {
    block::offload(move || {
        let file = match FsPath::from(path.as_path()).open(Open::READ) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io(path.display(), e)),
        };
        let bytes = file.read_to_end(0, LONGEST).map_err(|e| Error::io(path.display(), e))?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Error::invalid(format!("{} is damaged ({e}); remove it", path.display())))
    })
    .await
}

async fn write<T: Serialize + Send + 'static>(path: PathBuf, list: Vec<T>) -> Result<()> {
    block::offload(move || {
        let bytes = serde_json::to_vec(&list)
            .map_err(|e| Error::internal("cannot write a list").with_source(e))?;
        replace_file(&FsPath::from(path.as_path()), &bytes)
    })
    .await
}

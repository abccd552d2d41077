//! Leases and sightings, kept in files of the home. They may be a second old after a crash: a card gets
//! the same address again even then, unless the range is nearly full.

use super::home_machines::HomeMachines;
use crate::machines::file;
use block::Result;
use engine::Home;
use netboot::dhcp::{DhcpServer, Lease};
use std::time::Duration;

/// How often what changed is written.
const PAUSE: Duration = Duration::from_secs(1);

/// The leases of an earlier time.
pub(super) async fn leases(home: &Home) -> Result<Vec<Lease>> {
    file::read(home.leases()).await
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
        file::write(home.leases(), leases).await?;
    }
    save_sightings(home, machines).await
}

async fn save_sightings(home: &Home, machines: &HomeMachines) -> Result<()> {
    match machines.changed_sightings() {
        Some(list) => file::write(home.machines_seen(), list).await,
        None => Ok(()),
    }
}

//! Who holds a disk, and whose server that is.

use super::Gateway;
use super::client::Client;
use block::{Error, Result};
use disk::succession;
use store::offered::{self, ServerOwner};
use store::{RefKind, RefRecord, ServerId};

/// Whether a server is the client's.
///
/// # Errors
/// Any error from the store.
pub(super) async fn owns(gateway: &Gateway, client: &Client, server: &ServerId) -> Result<bool> {
    let owner = offered::server_owner(gateway.store(), client.owner(), server).await?;
    Ok(owner == ServerOwner::This)
}

/// Whether a server's id is the client's. One that nobody announced is from now on, unless a disk names it: then it is
/// of a server that never announced itself, and that nobody could tell from this client's any more.
///
/// # Errors
/// Any error from the store.
pub(super) async fn claim(gateway: &Gateway, client: &Client, server: &ServerId) -> Result<bool> {
    let store = gateway.store();
    match offered::server_owner(store, client.owner(), server).await? {
        ServerOwner::This => return Ok(true),
        ServerOwner::Other => return Ok(false),
        ServerOwner::Unknown => {}
    }
    // The client may have learned the id from a record of a moment ago.
    let names = client.names_now(gateway).await?;
    let is_its = |disk: &RefRecord| succession::last_holder(disk).ok().flatten() == Some(*server);
    if names.records(RefKind::Disk).any(is_its) {
        return Ok(false);
    }
    offered::claim_server(store, client.owner(), server).await?;
    Ok(true)
}

/// The record of a disk that a server of this client holds, or held last.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when there is no such disk, [`Fenced`](block::ErrorKind::Fenced)
/// when another client holds it; any error from the store.
pub(super) async fn held_disk(gateway: &Gateway, client: &Client, disk: &str) -> Result<RefRecord> {
    let found = gateway.store().refs().get(RefKind::Disk, disk).await?;
    let found = found.ok_or_else(|| Error::conflict(format!("there is no disk {disk:?}")))?;
    let own = match succession::last_holder(&found)? {
        Some(holder) => owns(gateway, client, &holder).await?,
        None => false,
    };
    if own { Ok(found) } else { Err(not_held(disk)) }
}

/// What is said when no server of this client holds a disk.
pub(super) fn not_held(disk: &str) -> Error {
    Error::fenced(format!("disk {disk:?} is not held by a server of this client"))
}

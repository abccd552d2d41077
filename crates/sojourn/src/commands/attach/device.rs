//! Attached disks as block devices of this machine. Each has a keeper, `sojourn device connect`, a process of
//! its own: it goes on when the one that looks after the disks is started anew, and that one starts it again
//! when it was killed, or when the machine was.

use crate::commands::device;
use agent::api::AttachRequest;
use block::{Error, Result};
use engine::{Home, devices};
use nbd::{Address, Uri};
use nbd_device::{Backend, BlockDevices, Driver, Netlink, resident, sysfs};
use server::client::ControlClient;
use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// How often is looked whether a device lost its keeper.
const LOOK: Duration = Duration::from_secs(2);
/// The pause after a keeper that did not start.
const RETRY: Duration = Duration::from_secs(30);
/// How long another process may take to bring a device up.
const OTHER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Where an attached disk is served.
fn uri(home: &Home, disk: &str) -> Result<Uri> {
    Ok(Uri::new(Address::unix(home.nbd_socket())?, disk))
}

/// Whether a device is connected to this server.
fn is_of(index: u32, uri: &Uri) -> Result<bool> {
    let backend = BlockDevices::open()?.backend(index)?.and_then(|text| Backend::parse(&text));
    Ok(backend.is_some_and(|backend| backend.server == uri.to_string()))
}

/// Makes an attached disk the device `index`, and has it kept and brought up again until
/// [`take_down`]. Nothing is done where it is that already.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when it is another device already; any error from asking the process of
/// the home. A keeper that fails says why itself, and gives its exit code.
pub(super) async fn bring_up(
    home: &Home,
    disk: &str,
    index: u32,
    client: ControlClient,
) -> Result<()> {
    let path = sysfs::path(index).display().to_string();
    let before = devices::of(home, disk)?;
    if let Some(other) = before.as_ref().filter(|other| **other != path) {
        return Err(Error::conflict(format!(
            "disk {disk} is {other} already; detach it, and attach it with --device {path}"
        )));
    }
    let request = |device| AttachRequest::Device { name: disk.to_owned(), device };
    client.attach(&request(Some(path))).await?;
    let connected = connect(home, disk, index).await;
    if !matches!(connected, Ok(Ok(())))
        && let Some(client) = ControlClient::connect(home).await?
    {
        client.attach(&request(before)).await?;
    }
    match connected? {
        Ok(()) => Ok(()),
        Err(code) => std::process::exit(code),
    }
}

/// Starts the keeper of a device, unless somebody else does or did; the exit code of one that failed.
async fn connect(home: &Home, disk: &str, index: u32) -> Result<Result<(), i32>> {
    let uri = uri(home, disk)?;
    let until = Instant::now() + OTHER;
    loop {
        if let Some(lock) = devices::lock_keeper(home, disk)? {
            return device::keep(&uri, index, lock).await;
        }
        if is_of(index, &uri)? {
            return Ok(Ok(()));
        }
        if Instant::now() > until {
            return Err(Error::unavailable(format!(
                "a keeper of disk {disk} is there, and {} is not; see dmesg",
                sysfs::path(index).display()
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Ends the device of an attached disk, if it is one.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the device is mounted or used otherwise: it stays;
/// [`Denied`](block::ErrorKind::Denied) without the rights.
pub(super) async fn take_down(home: &Home, disk: &str, client: ControlClient) -> Result<()> {
    let Some(path) = devices::of(home, disk)? else { return Ok(()) };
    let (index, uri) = (sysfs::index_of(Path::new(&path))?, uri(home, disk)?);
    let mut driver = Netlink::open().await?;
    // Older kernels do not tell whose a device is; nor is it told of what other programs connected.
    let is_ours = match driver.device(index)?.and_then(|device| device.backend) {
        Some(_) => is_of(index, &uri)?,
        None => devices::lock_keeper(home, disk)?.is_none(),
    };
    let is_up = driver.is_connected(index)? && is_ours;
    // Whoever is tired of waiting for that leaves a device that is known, and what it has to write with it.
    if is_up {
        let at = sysfs::path(index);
        block::offload(move || device::sync_free(&at)).await?;
    }
    // Before it ends: nobody is to bring it up again.
    let request = |device| AttachRequest::Device { name: disk.to_owned(), device };
    client.attach(&request(None)).await?;
    let ended = async {
        if !is_up {
            return Ok(());
        }
        // Somebody may have opened it since.
        let at = sysfs::path(index);
        block::offload(move || device::sync_free(&at)).await?;
        driver.disconnect(index).await
    };
    let ended = ended.await;
    if ended.is_err()
        && let Some(client) = ControlClient::connect(home).await?
    {
        client.attach(&request(Some(path))).await?;
    }
    ended
}

/// Looks after the devices of a home for ever: brings up those that have no keeper, and keeps this process in
/// memory while there is one, as what it needs may be on the device.
pub(super) async fn look_after(home: &Home) -> Infallible {
    let mut is_resident = false;
    // One that fails holds up no other.
    let mut resting: HashMap<String, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let at = home.clone();
        let found = block::offload(move || devices::all(&at)).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "nobody knows which devices are to be kept");
            Vec::new()
        });
        for (disk, path) in found {
            if resting.get(&disk).is_some_and(|until| *until > Instant::now()) {
                continue;
            }
            if let Err(error) = look(home, &disk, &path, &mut is_resident).await {
                tracing::warn!(disk, device = path, %error, "a device is not kept");
                resting.insert(disk, Instant::now() + RETRY);
            }
        }
    }
}

async fn look(home: &Home, disk: &str, path: &str, is_resident: &mut bool) -> Result<()> {
    if !*is_resident {
        resident::stay()?;
        *is_resident = true;
    }
    let index = sysfs::index_of(Path::new(path))?;
    let Some(lock) = devices::lock_keeper(home, disk)? else { return Ok(()) };
    // It may have been taken down since; and before there is a server nobody could connect.
    if devices::of(home, disk)?.as_deref() != Some(path)
        || ControlClient::connect(home).await?.is_none()
    {
        return Ok(());
    }
    // The keeper goes on, whoever waits for it.
    match tokio::time::timeout(OTHER, device::keep(&uri(home, disk)?, index, lock)).await {
        Ok(Ok(Ok(()))) => {
            tracing::info!(disk, device = path, "is kept");
            Ok(())
        }
        Ok(Ok(Err(code))) => {
            Err(Error::unavailable(format!("its keeper ended with exit code {code}")))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::unavailable("its keeper does not say that it is connected")),
    }
}

//! The home's server, as netboot uses it: where machines reach it, its disks, and the kernels on them.

use crate::client::ControlClient;
use crate::status::StatusView;
use block::{Device, Error, ErrorKind, Result};
use bytes::Bytes;
use disk::Mode;
use engine::Home;
use engine::api::{DiskReply, DiskRequest, DiskView};
use nbd::ClientOptions;
use netboot::kernel::{self, BootFile, BootFiles, GivenKernel, GivenKernels};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use store::images;

/// For how long a disk that was made for a menu is as good as a new one, in seconds.
const FRESH: u64 = 60;

/// How kernels are read: the server is on this machine, and a machine waits.
fn options() -> ClientOptions {
    ClientOptions { connect: Duration::from_secs(5), ..ClientOptions::default() }
}

/// The server's state.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when none runs.
pub(super) async fn status(home: &Home) -> Result<StatusView> {
    connect(home).await?.status().await
}

async fn connect(home: &Home) -> Result<ControlClient> {
    ControlClient::connect(home)
        .await?
        .ok_or_else(|| Error::unavailable("the server of the disks does not run"))
}

/// Where machines reach NBD on this address.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) with the remedy.
pub(super) fn nbd_address(status: &StatusView, here: Ipv4Addr) -> Result<SocketAddr> {
    reached(&status.listeners, here).ok_or_else(|| {
        Error::unavailable(format!(
            "the server does not listen for NBD at {here}: serve --nbd {here}:10809"
        ))
    })
}

/// Where machines reach iSCSI on this address.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) with the remedy.
pub(super) fn iscsi_address(status: &StatusView, here: Ipv4Addr) -> Result<SocketAddr> {
    let listeners = status.iscsi.as_ref().map(|iscsi| iscsi.listeners.as_slice());
    reached(listeners.unwrap_or_default(), here).ok_or_else(|| {
        Error::unavailable(format!(
            "the server does not listen for iSCSI at {here}: serve --iscsi {here}:3260"
        ))
    })
}

fn reached(listeners: &[String], here: Ipv4Addr) -> Option<SocketAddr> {
    let addresses = listeners.iter().filter_map(|listener| listener.parse::<SocketAddr>().ok());
    let mut reached = addresses
        .filter(|address| address.ip().is_unspecified() || address.ip() == IpAddr::V4(here));
    Some(SocketAddr::from((here, reached.next()?.port())))
}

/// What a disk is.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound), and any error from the server.
pub(super) async fn show(home: &Home, disk: &str) -> Result<DiskView> {
    ask(home, DiskRequest::Show { name: disk.to_owned() }).await
}

/// Makes a disk.
///
/// # Errors
/// Any error from the server.
pub(super) async fn create(home: &Home, name: &str, from: &str, mode: Mode) -> Result<DiskView> {
    let (name, from) = (name.to_owned(), from.to_owned());
    ask(home, DiskRequest::Create { name, from, mode, size: None }).await
}

/// Has a disk be there that was made from an image as it is now and forgets what is written. An earlier one of this name
/// is made anew, unless its machine, which was switched off, seems to use it still.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when a disk that keeps what is written has its name, and while somebody
/// uses the one from another image; any error from the server.
pub(super) async fn must_be_made_of(home: &Home, name: &str, from: &str, now: u64) -> Result<()> {
    match show(home, name).await {
        Ok(disk) if disk.mode != "ephemeral" => {
            return Err(Error::conflict(format!(
                "disk {name} keeps what is written to it, and menus use disks of this name: call it otherwise"
            )));
        }
        // It was made a moment ago: whoever asks again and again has nothing made each time.
        Ok(disk) if is_of(&disk.image, from) && now.saturating_sub(disk.created) < FRESH => {
            return Ok(());
        }
        Ok(disk) => {
            let remove = DiskRequest::Remove { name: name.to_owned(), lost: false };
            match connect(home).await?.disk(&remove).await {
                Err(e) if e.kind() == ErrorKind::Conflict && is_of(&disk.image, from) => {
                    return Ok(());
                }
                removed => drop(removed?),
            }
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    match create(home, name, from, Mode::Ephemeral).await {
        // Its machine asked twice.
        Err(e) if e.kind() == ErrorKind::Conflict => show(home, name).await.map(drop),
        made => made.map(drop),
    }
}

/// Whether a version of an image is what its name, with or without a tag, means.
pub(super) fn is_of(version: &str, image: &str) -> bool {
    match image.contains(':') {
        true => version == image,
        false => images::image_of(version) == image,
    }
}

async fn ask(home: &Home, request: DiskRequest) -> Result<DiskView> {
    match connect(home).await?.disk(&request).await? {
        DiskReply::Disk(disk) => Ok(disk),
        _ => Err(Error::internal("the server gave another answer than it was asked for")),
    }
}

/// The export that has what a disk would start: the disk itself once it is not as its image any more, or there is
/// no such image, else the image, which any number of clients may read. An ephemeral disk starts without what its
/// last client wrote.
pub(super) fn export_of(disk: &DiskView) -> String {
    match disk.unchanged || disk.mode == "ephemeral" && disk.over_image {
        true => disk.image.clone(),
        false => disk.name.clone(),
    }
}

/// What an export would start: a kernel that was given for the image which its disk is made from, or else its own.
///
/// # Errors
/// Any error from the server and from looking.
pub(super) async fn find(home: &Home, export: &str, image: &str) -> Result<BootFiles> {
    match given(home, image).await? {
        Some(given) => with_export(home, export, |disk| kernel::find_given(disk, given)).await,
        None => with_export(home, export, kernel::find).await,
    }
}

async fn given(home: &Home, image: &str) -> Result<Option<GivenKernel>> {
    let (kernels, image) = (GivenKernels::of(&home.boot()), image.to_owned());
    block::offload(move || kernels.get(&image)).await
}

/// A file of that, with something in front of it.
///
/// # Errors
/// Any error from the server and from reading.
pub(super) async fn read(
    home: &Home,
    export: &str,
    files: &BootFiles,
    which: BootFile,
    front: Bytes,
) -> Result<Bytes> {
    with_export(home, export, |device| files.read(device, which, front)).await
}

/// Works on an export that is looked at: the server may not know yet that the machine which has it was switched off.
async fn with_export<T, F: Future<Output = Result<T>>>(
    home: &Home,
    export: &str,
    work: impl FnOnce(Arc<dyn Device>) -> F,
) -> Result<T> {
    let remote = Arc::new(connect(home).await?.look(export, options()).await?);
    let done = work(Arc::clone(&remote) as _).await;
    if let Some(remote) = Arc::into_inner(remote) {
        remote.close().await;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starts_is_the_disk_once_it_is_not_as_its_image() {
        let disk = |mode: &str, unchanged, over_image| DiskView {
            name: "alice".into(),
            image: "debian:1".into(),
            mode: mode.into(),
            size: 1 << 30,
            created: 0,
            // None, as after a snapshot.
            private_bytes: 0,
            unchanged,
            over_image,
            snapshots: Vec::new(),
            error: None,
        };
        assert_eq!(export_of(&disk("persistent", true, true)), "debian:1");
        assert_eq!(export_of(&disk("persistent", false, true)), "alice");
        assert_eq!(export_of(&disk("ephemeral", false, true)), "debian:1");
        // Made of a snapshot, or of an image that was removed.
        assert_eq!(export_of(&disk("ephemeral", false, false)), "alice");
    }

    #[test]
    fn machines_are_sent_to_where_the_server_really_listens() {
        let here = Ipv4Addr::new(10, 0, 0, 1);
        let list = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let reached = |all: &[&str]| reached(&list(all), here).map(|address| address.to_string());
        assert_eq!(
            reached(&["unix:/x", "127.0.0.1:1", "0.0.0.0:2"]).as_deref(),
            Some("10.0.0.1:2")
        );
        assert_eq!(reached(&["[::]:3"]).as_deref(), Some("10.0.0.1:3"));
        assert_eq!(reached(&["10.0.0.1:4"]).as_deref(), Some("10.0.0.1:4"));
        assert_eq!(reached(&["10.0.0.2:5", "127.0.0.1:6", "unix:/x"]), None);
    }
}

//! What is asked of the kernel's NBD driver, and what it reports.

use crate::sysfs::ConnectedDevice;
use async_trait::async_trait;
use block::Result;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// How a device is to be, in the driver's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Bytes; a multiple of `block_size`.
    pub size: u64,
    /// The logical block size in bytes: a power of two, 512 to the page size.
    pub block_size: u64,
    /// The export's transmission flags, as the server told them.
    pub server_flags: u16,
    /// A request that the server does not answer for this long makes its connection count as dead;
    /// whole seconds, at least one.
    pub request_timeout: Duration,
    /// With all connections dead, requests wait this long for another one and fail then; whole seconds.
    pub dead_timeout: Duration,
    /// Who is at the other end, for whoever looks at the device: the driver lets it be reconnected only
    /// by somebody who says the same (Linux 5.14 and newer).
    pub backend: String,
}

/// The kernel's driver.
#[async_trait]
pub trait Driver: Send {
    /// Makes a device of these sockets, on which the export was chosen. `index` is the N of
    /// `/dev/nbdN`; without it the driver takes a free one. Returns N.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the device is in use,
    /// [`Denied`](block::ErrorKind::Denied) without the right to administer the system,
    /// [`Invalid`](block::ErrorKind::Invalid) when the driver refuses the settings.
    async fn connect(
        &mut self,
        index: Option<u32>,
        settings: &DeviceSettings,
        sockets: &[BorrowedFd<'_>],
    ) -> Result<u32>;

    /// Puts a socket in the place of a dead connection; `false` when none is dead.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when the device is not connected,
    /// [`Conflict`](block::ErrorKind::Conflict) when it belongs to another backend.
    async fn replace(
        &mut self,
        index: u32,
        settings: &DeviceSettings,
        socket: BorrowedFd<'_>,
    ) -> Result<bool>;

    /// Gives a device the size of `settings`, when what is under way was answered.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when the device is not connected.
    async fn resize(&mut self, index: u32, settings: &DeviceSettings) -> Result<()>;

    /// Ends a device: what waits for an answer fails.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when the device is not connected.
    async fn disconnect(&mut self, index: u32) -> Result<()>;

    /// Whether the device is connected.
    ///
    /// # Errors
    /// When that cannot be read.
    fn is_connected(&self, index: u32) -> Result<bool>;

    /// A device as it is now; `None` when it is not connected.
    ///
    /// # Errors
    /// When that cannot be read.
    fn device(&self, index: u32) -> Result<Option<ConnectedDevice>>;

    /// Waits until a connection of some device dies, and tells of which; `None` when reports were
    /// lost, so that any connection of any device may be dead. Nothing is lost when the future is
    /// dropped.
    ///
    /// # Errors
    /// When the driver cannot be listened to any more.
    async fn died(&mut self) -> Result<Option<u32>>;
}

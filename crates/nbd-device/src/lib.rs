//! An NBD export as a block device of this machine: `/dev/nbdN` of the Linux kernel.
//!
//! The kernel's driver sends the requests. This crate connects and negotiates, hands the sockets to the
//! driver over netlink, and then keeps the device alive: when a connection dies, because the server
//! was restarted, crashed or hung, or the link was cut, requests wait in the kernel until another one
//! is there. Debian's nbd-client does not do that, and the file system on the device dies with the
//! connection (NetworkBlockDevice/nbd issues 93 and 95).
//!
//! This crate may know NBD's client side and the kernel's driver. It must not know what an export is
//! made of, nor who asks for the device.
//!
//! | module | concept |
//! |---|---|
//! | [`driver`] | [`Driver`], what is asked of the kernel's driver, and what it reports |
//! | `backend` | [`Backend`], what the kernel remembers of a device |
//! | `message` | the driver's netlink messages: pure |
//! | `netlink` | the driver, reached by netlink |
//! | [`keeper`] | [`Keeper`], which connects a device and keeps it connected |
//! | [`sysfs`] | the devices that are connected now |
//! | [`background`] | a keeper in the background |
//! | [`resident`] | a process that goes on while the device below it does not answer |

mod backend;
pub mod background;
pub mod driver;
pub mod keeper;
mod message;
mod netlink;
pub mod resident;
pub mod sysfs;

pub use backend::Backend;
pub use driver::{DeviceSettings, Driver};
pub use keeper::{Keeper, KeeperOptions};
pub use netlink::Netlink;
pub use sysfs::{BlockDevices, ConnectedDevice};

//! Network boot: machines without a disk find this server, are recognised, and start from theirs.
//!
//! This crate may know DHCP, TFTP, HTTP routes, iPXE scripts, the file systems in which a kernel
//! lies, and which machine is to have which disk by name. It must not know what a disk or an image
//! is made of, nor where sockets, time and firmware come from: its caller brings them, and answers
//! what a machine is to do by implementing [`Machines`].
//!
//! | module | concept |
//! |---|---|
//! | [`identity`] | [`MacAddress`] and [`MachineUuid`], which is all that a machine says of itself |
//! | [`datagram`] | [`Datagrams`] and [`Frames`], sockets or simulated ones |
//! | [`machines`] | [`Machines`], what the caller decides about each machine |
//! | [`advertisement`] | [`RouterAdvertiser`], which ends iPXE's wait for an IPv6 router |
//! | [`dhcp`] | messages (pure), answers (pure), leases, and the server beside another one or alone |
//! | [`tftp`] | packets (pure), one transfer as a state machine (pure), the server |
//! | [`firmware`] | which iPXE a machine's firmware can start |
//! | [`script`] | iPXE scripts, made from what a machine is to do: pure |
//! | [`http`] | scripts, kernels and firmware over HTTP |
//! | [`kernel`] | the kernel that a disk would start, found in the disk's own file system |
//! | [`overlay`] | what is put in front of a machine's initial RAM disk: pure |
//! | [`registry`] | [`Registry`], the file that says which machine has which disk |
//! | [`sightings`] | machines that asked and are not known, so many at most |
//! | `turns` | how often somebody is answered in a second |

pub mod advertisement;
pub mod datagram;
pub mod dhcp;
pub mod firmware;
pub mod http;
pub mod identity;
pub mod kernel;
pub mod machines;
pub mod overlay;
pub mod registry;
pub mod script;
pub mod sightings;
pub mod tftp;
mod turns;

pub use advertisement::RouterAdvertiser;
pub use datagram::{Datagrams, Frames};
pub use identity::{BootRequest, MacAddress, MachineUuid};
pub use machines::{BootDecision, Machines};
pub use registry::Registry;

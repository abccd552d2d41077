//! How a server behaves under load, by arithmetic: closed queueing networks.
//!
//! This crate may know service demands, centres, clients and hit ratios. It must not know where
//! the numbers come from: it reads no clock, no trace and no server.
//!
//! A closed network has a fixed number of clients. Each thinks, asks, waits for the answer and
//! thinks again; an answer takes a *demand* of service at each *centre* (a processor, a disk, a
//! link), where the clients queue. All times are in seconds, all rates per second.
//!
//! | module | concept |
//! |---|---|
//! | [`network`] | [`Network`] of [`Centre`]s, and its [`Solution`] for a number of clients |
//! | `exact` | the exact solution, by one of the next two |
//! | `mva` | the exact solution, by mean value analysis |
//! | `convolution` | the exact solution with centres of several servers |
//! | `approximate` | about the solution, for more clients than the exact one goes to |
//! | [`multiclass`] | the exact solution for clients of several kinds |
//! | [`bounds`] | [`Bounds`]: asymptotes and the knee |
//! | [`profile`] | [`Profile`]: the demands of a storage server by block size, hit or miss |
//! | [`file`](mod@file) | a profile as a TOML file |
//! | [`fit`] | demands from measurements, by the utilisation law |
//! | [`centres`] | the centres of a profile, from demands measured at one block size after the other |
//! | [`head_room`] | how many more clients a running server holds, from its counters |
//! | [`predict`] | a profile and a hit-ratio curve: how many clients, and what to buy next |

mod approximate;
pub mod bounds;
pub mod centres;
mod convolution;
mod exact;
pub mod file;
pub mod fit;
pub mod head_room;
pub mod multiclass;
mod mva;
pub mod network;
pub mod predict;
pub mod profile;

pub use bounds::Bounds;
pub use network::{Centre, CentreKind, CentreUse, Network, Solution};
pub use profile::{Demand, Profile, ProfileCentre};

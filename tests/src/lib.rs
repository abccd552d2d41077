//! What the end-to-end tests share: homes, servers, tools, hostile clients, file systems that fill
//! up or hang. The tests themselves are in `tests/`.
//!
//! It may know the command line and the wire, as a user and a client do. It must not link any part
//! of the engine: what is tested is the binary, with clients that nobody here wrote wherever there
//! are any.
//!
//! Every function panics when something is not as a test needs it: that is how a test fails.

// The harness waits for real processes, and a test fails by a panic.
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

pub mod attached;
pub mod client;
pub mod clients;
pub mod content;
pub mod counting;
pub mod home;
pub mod initiator;
pub mod link;
pub mod s3;
pub mod slow;
pub mod small;
pub mod tool;
pub mod virtio;

pub use client::Client;
pub use counting::CountingMachine;
pub use home::{Home, Server};
pub use initiator::Initiator;
pub use link::Link;
pub use s3::S3;
pub use small::SmallFileSystem;
pub use virtio::VirtioDisk;

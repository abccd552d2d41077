//! QEMU's monitor protocol (QMP): one JSON object a line, in both directions.
//!
//! | module | concept |
//! |---|---|
//! | [`message`] | what QEMU says, parsed; pure |
//! | `client` | [`Monitor`], one connection |

mod client;
pub mod message;

pub use client::Monitor;
pub use message::QmpMessage;

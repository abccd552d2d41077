//! One server follows another on the same home, and no client notices: the sockets that listen and
//! the clients' go from process to process over a unix socket (`SCM_RIGHTS`, unix(7)).
//!
//! The successor listens at `successor.sock` in the home and asks over the control socket; the
//! server connects there, and sends items: a header of 12 bytes (`SJHO`, the lengths of what
//! follows, little-endian), to which the descriptor is tied if there is one, JSON, and raw bytes. The
//! first one comes at once and says how long the server may wait for its disks until it sends the
//! others. The successor prepares [all that can fail](super::prepared), and answers one byte when it is
//! done, the server one that they are the successor's now. Until then both can go back to what was. Then
//! the server closes its disks, lets go of the home's lock, for which the successor waits, and ends;
//! unless it has connections that are encrypted: their keys are in its memory, so it carries what passes
//! over them to their end.
//!
//! | module | role |
//! |---|---|
//! | [`wire`] | the items: what is written to the socket, and read from it |
//! | [`give`] | the server that hands over |
//! | [`take`] | the successor |
//! | [`spawn`] | the successor's process, where the server starts it itself |

mod give;
mod spawn;
mod take;
mod wire;

pub(crate) use self::spawn::Succession;
pub(crate) use self::take::take_over;

use std::time::Duration;

/// How long one of the two waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;

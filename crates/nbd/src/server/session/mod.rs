//! One client, from the greeting to the end of its session.
//!
//! | module | concept |
//! |---|---|
//! | `remainder` | what is left of a connection's streams |
//! | `checked` | a request that was found to be right |
//! | `input`, `replies` | the buffers of a connection |
//! | `observing` | what a session's observer is told |
//! | `options` | what is done with each option |
//! | `handshake` | the negotiation: bytes off the stream, replies onto it |
//! | `engine` | from requests to the device and back |
//! | `connection` | transmission: the request loop of one connection |
//! | `passing` | connections on their way to another process |
//! | `protocol` | all of it from the top: begin reading here |

mod checked;
mod connection;
mod engine;
mod handshake;
mod input;
mod observing;
mod options;
pub(super) mod passing;
pub(super) mod protocol;
pub(super) mod remainder;
mod replies;

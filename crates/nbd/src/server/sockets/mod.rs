//! Sockets that listen and sockets that are connected: know nothing of the protocol.
//!
//! | module | concept |
//! |---|---|
//! | `registered` | a socket's registration with the runtime, for one direction alone |
//! | `stream` | a connected socket that wakes for what is waited for |
//! | `tls` | encryption, and clients with certificates |
//! | `listener` | listening sockets |

pub(super) mod listener;
mod registered;
pub(super) mod stream;
pub(super) mod tls;

//! Who goes first, and how much each may hold: knows nothing of the protocol.
//!
//! | module | concept |
//! |---|---|
//! | `order` | who goes first on a thread |
//! | `lone_receiver` | which connection alone receives on its thread |
//! | `busy_poll` | busy polling: for how long a connection polls for the next request |
//! | `idle_processors` | how many processors the machine has to spare for that |
//! | `budget` | the bytes that all connections together may hold |
//! | `spare` | buffers that are kept for reuse |
//! | `pace` | how fast a client may go |

pub(super) mod budget;
pub(super) mod busy_poll;
pub(super) mod idle_processors;
pub(super) mod lone_receiver;
pub(super) mod order;
pub(super) mod pace;
pub(super) mod spare;

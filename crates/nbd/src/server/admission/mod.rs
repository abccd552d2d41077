//! Who may connect, and what clients may take.
//!
//! | module | concept |
//! |---|---|
//! | `limits` | bounds on what clients may take |
//! | `negotiations` | who leaves when there are too many that negotiate |
//! | `attachments` | in which order clients attached to an export: supersession |
//! | `complaints` | how often the log hears of clients that break the protocol |
//! | `state` | what all connections of a server share |
//! | `seat` | a connection's place among those that are let in |

pub(super) mod attachments;
pub(super) mod complaints;
pub(super) mod limits;
pub(super) mod negotiations;
pub(super) mod seat;
pub(super) mod state;

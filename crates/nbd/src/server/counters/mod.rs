//! What a server counts and times.
//!
//! | module | concept |
//! |---|---|
//! | `traffic` | requests and bytes |
//! | `latency` | how long requests took |
//! | `registry` | the counters of a server, its exports and its clients |

pub(super) mod latency;
pub(super) mod registry;
pub(super) mod traffic;

//! Replaying traces: emulated clients, thousands of them, against any NBD server.
//!
//! This crate may know traces, the protocol and sockets. It must not know which server it talks to
//! nor how results are shown. It uses whatever runtime it is called in; a connection is one task,
//! whatever number of clients and requests it carries.
//!
//! | module | concept |
//! |---|---|
//! | [`script`] | [`Script`], what the clients do: a trace in memory |
//! | [`plan`] | [`ReplayPlan`], how it is replayed: clients, exports, pace |
//! | [`run`](mod@run) | [`run()`], doing it |
//! | `connection` | the clients of one connection |
//! | `state` | what all connections share; [`Hub`], to look while it runs |
//! | `replies` | the parser of what comes in |
//! | `timer` | waking at exact times |
//! | [`pattern`] | what writes hold |
//! | `verify` | what reads must find |
//! | `detail` | what is counted by client and time |
//! | [`report`] | what is counted, and the [`ReplayReport`] |
//! | [`summary`] | [`Summary`] of times |

mod connection;
mod detail;
pub mod pattern;
pub mod plan;
mod replies;
pub mod report;
pub mod run;
pub mod script;
mod state;
pub mod summary;
mod timer;
mod verify;

pub use detail::{Answers, ClientAnswers, Interval};
pub use plan::{Pace, ReplayPlan};
pub use report::{Lateness, OpReport, Progress, ReplayReport, Verified};
pub use run::{PreparedReplay, prepare, run};
pub use script::{Script, ScriptSelection};
pub use state::Hub;
pub use summary::Summary;

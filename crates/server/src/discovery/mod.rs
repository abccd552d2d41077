//! Servers of the network: this one is announced, others are looked for.
//!
//! | module | concept |
//! |---|---|
//! | `interfaces` | the networks that this machine is in |
//! | `announce` | what a running server offers in each of them |
//! | [`look`](mod@look) | which servers there are, and what they export |

mod announce;
mod interfaces;
pub mod look;

pub(crate) use announce::announce;

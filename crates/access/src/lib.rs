//! Who a client is, and what it may do: certificates, access rules, and exports that keep to them.
//!
//! This crate may know X.509, the files of a certificate directory, and what the NBD server tells
//! of a client. It must not know what an export is made of, nor where rules come from.
//!
//! | module | concept |
//! |---|---|
//! | [`name`] | the names that certificates give to clients |
//! | [`rules`] | [`Rules`], which client may do what: pure |
//! | [`tokens`] | [`Tokens`], which program may do what over HTTP; their file |
//! | [`guarded`] | [`Guarded`], exports that keep to the rules |
//! | [`refusals`] | [`Refusals`], refused requests in the log, and no flood of them |
//! | [`read_only`] | [`ReadOnly`], a device that refuses changes |
//! | [`authority`] | [`Authority`], which makes and revokes certificates |
//! | [`credentials`] | [`ServerCredentials`], what a server shows, and whom it trusts |
//! | [`client`] | the same for a client |
//! | [`peer`] | the same for two that are clients of one authority |
//! | [`cryptography`] | what TLS is made with |
//! | `files` | the files of a certificate directory |

pub mod authority;
pub mod client;
pub mod credentials;
pub mod cryptography;
pub mod guarded;
pub mod name;
pub mod peer;
pub mod read_only;
pub mod refusals;
pub mod rules;
pub mod tokens;

mod files;

pub use authority::{Authority, Issued};
pub use client::{client_config, client_tls};
pub use credentials::ServerCredentials;
pub use guarded::Guarded;
pub use peer::PeerCredentials;
pub use read_only::ReadOnly;
pub use refusals::Refusals;
pub use rules::{Right, Rule, Rules};
pub use tokens::{Token, TokenRight, Tokens};

//! What goes from a server to the one that follows it.

use super::listen::InheritedListener;
use nbd::server::PassedConnection;
use std::os::fd::OwnedFd;

/// What a server hands to the next one.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    pub(crate) listeners: Vec<InheritedListener>,
    /// The HTTP port, and the address that was asked for.
    pub(crate) http: Option<(String, OwnedFd)>,
    /// The gateway's port, and the address that was asked for.
    pub(crate) gateway: Option<(String, OwnedFd)>,
    pub(crate) clients: Vec<PassedConnection>,
}

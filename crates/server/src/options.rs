//! What the user asked of a server, on top of the configuration.

use super::listen;
use crate::borrow::shadow::BorrowRequest;
use block::Result;
use engine::config::listener::ConfiguredListener;
use engine::config::throttle::ThrottleRule;
use engine::{Config, Home, StoreUse};
use std::path::PathBuf;

/// What the user asked for, on top of the configuration.
pub struct ServerOptions {
    /// The configuration file, to read it again.
    pub config_path: PathBuf,
    /// Changes the log level when the configuration is read again; `None` when the user has fixed it.
    pub change_log_level: Option<fn(&str) -> Result<()>>,
    /// Instead of the HTTP port of the configuration.
    pub http: Option<ConfiguredListener>,
    /// Instead of the gateway's address of the configuration.
    pub gateway: Option<String>,
    /// Where the vhost-user sockets are, instead of the directory of the configuration.
    pub vhost_user: Option<PathBuf>,
    /// Where to listen.
    pub listen: listen::ListenOptions,
    /// What a client gets that names no export.
    pub default_export: Option<String>,
    /// Where to record what clients ask, whatever the configuration says.
    pub trace: Option<PathBuf>,
    /// Where ephemeral disks keep their private blocks, when not in the home.
    pub borrow: Option<BorrowRequest>,
    /// What exports are as slow as that no rule of the configuration is for.
    pub throttle: Option<ThrottleRule>,
    /// Announce the server to its networks, whatever the configuration says.
    pub announce: bool,
    /// Follow the server that runs, if one does.
    pub take_over: bool,
    /// It is started for machines of the home, which go on while the store is away.
    pub for_machines: bool,
}

impl ServerOptions {
    /// What it opens the store of its home for.
    pub(crate) fn store_use(&self) -> StoreUse {
        if self.for_machines { StoreUse::MachineServer } else { StoreUse::Server }
    }

    /// The directory of the vhost-user sockets, if there are to be any; that of the configuration is
    /// relative to the home.
    pub(crate) fn vhost_user_dir(&self, home: &Home, config: &Config) -> Option<PathBuf> {
        let configured = config.serve.vhost_user.as_ref().map(|dir| home.dir().join(dir));
        self.vhost_user.clone().or(configured)
    }
}

//! Options of every command.

use crate::values::LogFormat;
use block::Result;
use engine::Home;
use server::remote::ServerUrl;
use std::path::PathBuf;

/// Options of every command.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Global {
    /// Where the configuration, the local store and the disks are [default: /var/lib/sojourn for
    /// root, else ~/.local/share/sojourn]
    #[arg(long, env = "SOJOURN_HOME", global = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The key file of an encrypted store [default: SOJOURN_PASSPHRASE, else `key_file` in
    /// sojourn.toml, else the passphrase is asked for]
    #[arg(long, env = "SOJOURN_KEY_FILE", global = true, value_name = "PATH")]
    pub(crate) key_file: Option<PathBuf>,
    /// Work on a server of another machine by its HTTP API: disks, images, status. https://HOST:PORT,
    /// with ?tls-certificates=DIR for ca-cert.pem and a client's certificate
    #[arg(long, env = "SOJOURN_SERVER", global = true, value_name = "URL")]
    pub(crate) server: Option<ServerUrl>,
    /// The file with the token for --server [default: the token itself in SOJOURN_TOKEN]
    #[arg(long, env = "SOJOURN_TOKEN_FILE", global = true, value_name = "PATH")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print one JSON document on stdout instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to log on stderr: error, warn, info, debug, trace, or a filter such as nbd=debug
    #[arg(long, env = "SOJOURN_LOG", global = true, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// How log lines look
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

impl Global {
    /// The home that the command line means.
    ///
    /// # Errors
    /// Any error from [`Home::with_key_file`].
    pub(crate) fn home(&self) -> Result<Home> {
        Home::with_key_file(self.home.as_deref(), self.key_file.as_deref())
    }
}

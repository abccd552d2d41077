//! Servers besides the daemon: of a home or a file, until one client has left, a command has ended, or
//! a signal comes.

use super::exports::HomeExports;
use super::file::FileExports;
use super::lease::KeptLease;
use super::limits::limits;
use super::listen::ListenOptions;
use super::one_client::{self, Single};
use super::options::ServerOptions;
use super::record::{Recording, recorded};
use super::security::Security;
use super::throttle::{Throttles, throttled};
use super::without_home;
use crate::borrow::shadow::Shadows;
use block::Result;
use engine::boots::{BootHelps, Boots};
use engine::{Config, Engine, Home, StoreUse};
use nbd::Exports;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// What a server serves until it ends by itself.
#[derive(Debug, Clone)]
pub enum ServeUntil {
    /// One client, on standard input and output or on a socket from `LISTEN_FDS`, until it leaves.
    OneClient,
    /// A shell command, which finds the export in its environment.
    Command(String),
}

impl ServeUntil {
    /// Serves `exports`, of which `name` is the default one. Certificates are looked for in `home`,
    /// unless the command line says where they are.
    ///
    /// # Errors
    /// When the export cannot be opened, when the client breaks the protocol, or when the command
    /// cannot be run.
    pub(crate) async fn serve(
        &self,
        exports: Arc<dyn Exports>,
        home: &Path,
        config: &Config,
        asked: &ListenOptions,
        name: &str,
    ) -> Result<ExitCode> {
        let limits = limits(config);
        match self {
            Self::Command(command) => one_client::run(exports, limits, command, name).await,
            Self::OneClient => {
                let asked = asked.under(config);
                let client = Single::find(&asked).await?;
                let security = Security::of(home, config, &asked, &[client.tls], false)?;
                let default = Some(name.to_owned()).filter(|name| !name.is_empty());
                client.serve(security.guard(exports, default), limits, &security).await
            }
        }
    }
}

/// Serves a home for one client or one command.
///
/// # Errors
/// When the home cannot be opened; any error from [`ServeUntil::serve`]; when a disk could not be closed properly.
pub async fn serve_home(
    home: &Home,
    config: &Config,
    options: &ServerOptions,
    until: &ServeUntil,
) -> Result<ExitCode> {
    let shadows = match &options.borrow {
        Some(wanted) => Some(Shadows::borrow(wanted).await?),
        None => None,
    };
    let room = shadows.as_ref().map(Shadows::room);
    let engine = Engine::open_with(home, config, StoreUse::Server, room).await?;
    // Not ended with this server: there may be others of this home. It runs out by itself.
    let _lease = KeptLease::start(&engine, Duration::from_secs(config.serve.lease_seconds)).await?;
    let default = options.default_export.clone();
    let boots = Arc::new(Boots::new(Arc::clone(&engine), BootHelps::of(&config.serve)));
    let exports = Arc::new(HomeExports::new(Arc::clone(&engine), default, boots));
    let name = options.default_export.as_deref().unwrap_or_default();
    let recording = Recording::wanted(options.trace.as_deref(), config, Some(home))?;
    let throttles = Throttles::new(&config.throttle, options.throttle.as_ref())?;
    let exports = throttled(throttles.as_ref(), exports);
    let exports = recorded(recording.as_ref(), exports);
    let result = until.serve(exports, home.dir(), config, &options.listen, name).await;
    if let Some(recording) = &recording {
        recording.finish().await;
    }
    engine.open.close_all().await?;
    if let Some(shadows) = shadows {
        shadows.end().await?;
    }
    result
}

/// Serves the file at `path`: until it ends by itself if `until` is given, else until a signal.
///
/// # Errors
/// Any error from the file, from listening and from flushing it at the end.
pub async fn serve_file(
    path: &Path,
    opening: formats::OpenOptions,
    home: &Home,
    config: &Config,
    options: &ServerOptions,
    until: Option<&ServeUntil>,
) -> Result<ExitCode> {
    let device = formats::open(path, opening).await?;
    let exports = FileExports::new(Arc::clone(&device), path);
    let name = exports.name().to_owned();
    let recording = Recording::wanted(options.trace.as_deref(), config, None)?;
    let throttles = Throttles::new(&config.throttle, options.throttle.as_ref())?;
    let exports = throttled(throttles.as_ref(), Arc::new(exports));
    let exports = recorded(recording.as_ref(), exports);
    let result = match until {
        Some(until) => until.serve(exports, home.dir(), config, &options.listen, &name).await,
        None => {
            let asked = options.listen.under(config);
            without_home::run(exports, Some(name), home.dir(), config, &asked).await
        }
    };
    if let Some(recording) = &recording {
        recording.finish().await;
    }
    if !device.read_only() {
        device.flush().await?;
    }
    result
}

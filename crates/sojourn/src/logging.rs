//! Logs on stderr: people's lines or JSON, with a level that can change while the program runs.

use block::{Error, Result};
use engine::config::log::{self, LogFormat};
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts logging. Called once.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when `level` is not a level or a filter.
pub(crate) fn start(level: &str, format: LogFormat) -> Result<()> {
    let (filter, handle) = reload::Layer::new(log::filter(level)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Human => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let _ = FILTER.set(handle);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(|e| Error::internal("cannot start logging").with_source(e))
}

/// Changes the level.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when `level` is not a level or a filter.
pub(crate) fn change(level: &str) -> Result<()> {
    let filter = log::filter(level)?;
    match FILTER.get() {
        Some(handle) => handle
            .reload(filter)
            .map_err(|e| Error::internal("cannot change the log level").with_source(e)),
        None => Ok(()),
    }
}

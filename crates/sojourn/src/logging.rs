//! Logs on stderr: people's lines or JSON, with a level that can change while the program runs.

use block::{Error, Result};
use serde::Deserialize;
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts logging. Called once.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when `level` is not a level or a filter.
pub(crate) fn start(level: &str, format: LogFormat) -> Result<()> {
    let (filter, handle) = reload::Layer::new(parse(level)?);
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
/// As [`start`].
pub(crate) fn change(level: &str) -> Result<()> {
    let filter = parse(level)?;
    match FILTER.get() {
        Some(handle) => handle
            .reload(filter)
            .map_err(|e| Error::internal("cannot change the log level").with_source(e)),
        None => Ok(()),
    }
}

/// Whether `level` is a level or a filter.
///
/// # Errors
/// As [`start`].
pub(crate) fn check_level(level: &str) -> Result<()> {
    parse(level).map(drop)
}

fn parse(level: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(level).map_err(|e| {
        Error::invalid(format!(
            "log level '{level}': {e}; use error, warn, info, debug, trace or a filter such as \
             nbd=debug"
        ))
    })
}

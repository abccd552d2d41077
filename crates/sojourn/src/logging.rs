//! Logs on stderr: people's lines or JSON, with a level that can change while the program runs.

use block::{Error, Result};
use serde::Deserialize;
use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::filter::LevelFilter;
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
    let wrong = |why: &dyn Display| {
        Error::invalid(format!(
            "log level '{level}': {why}; use error, warn, info, debug, trace or a filter such as \
             nbd=debug"
        ))
    };
    // A filter takes any word for the name of a part of the program, of which all is to be logged.
    let is_level = |word: &&str| word.parse::<LevelFilter>().is_ok();
    let words = level.split(',').map(str::trim).filter(|word| !word.contains(['=', '[']));
    if let Some(word) = words.clone().find(|word| !is_level(word)) {
        return Err(wrong(&format!("'{word}' is no level")));
    }
    EnvFilter::try_new(level).map_err(|e| wrong(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_taken_and_no_other_word() {
        for level in ["info", "WARN", "off", "nbd=debug", "info,nbd=trace", "warn,store=off"] {
            assert!(check_level(level).is_ok(), "{level}");
        }
        for level in ["verbose", "warning", "nbd", "info,loud", "nbd=loud"] {
            let error = check_level(level).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Invalid, "{level}");
            assert!(error.message().contains("use error, warn"), "{error}");
        }
    }
}

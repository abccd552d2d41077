//! What is logged, and how log lines look.

use block::{Error, Result};
use serde::Deserialize;
use std::fmt::Display;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// Whether `level` is a level or a filter.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when it is neither.
pub fn check_level(level: &str) -> Result<()> {
    filter(level).map(drop)
}

/// The filter that a level, or the text of a filter, stands for.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when it is neither.
pub fn filter(level: &str) -> Result<EnvFilter> {
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

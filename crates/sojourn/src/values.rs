//! Values of options that several commands take, as the parser knows them.

use engine::config::{listener, log};

/// Whether connections are encrypted
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TlsMode {
    /// They are not
    Off,
    /// If the client wants it
    Optional,
    /// Always: a client that does not encrypt gets nothing
    Required,
}

impl From<TlsMode> for listener::TlsMode {
    fn from(mode: TlsMode) -> Self {
        match mode {
            TlsMode::Off => Self::Off,
            TlsMode::Optional => Self::Optional,
            TlsMode::Required => Self::Required,
        }
    }
}

/// How log lines look
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Human,
    /// One JSON object a line
    Json,
}

impl From<LogFormat> for log::LogFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Human => Self::Human,
            LogFormat::Json => Self::Json,
        }
    }
}

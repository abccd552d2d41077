//! `[attach]`: a home of attached disks, whose file is written by `sojourn attach`.

use super::Config;
use block::{ByteSize, Error, Result};
use serde::Deserialize;
use toml::{Table, Value};

/// `[attach]`: how attached disks go to their store.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Attach {
    /// Bytes per second that go up at most; 0 is no limit.
    pub up: ByteSize,
    /// Bytes per second that are hoarded at most; 0 is no limit.
    pub down: ByteSize,
    /// Seconds from a first write until it goes up.
    pub after_seconds: u64,
}

impl Default for Attach {
    fn default() -> Self {
        Self { up: ByteSize(0), down: ByteSize(0), after_seconds: 5 }
    }
}

/// The text of the file of a home of attached disks: what `sojourn attach` sets, and the sections of
/// `extra`, which are written as they are.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal) when it cannot be written as TOML.
pub fn text(config: &Config) -> Result<String> {
    let attach = config.attach.clone().unwrap_or_default();
    let mut all = Table::new();
    let mut set = |key: &str, value: Value| all.insert(key.to_owned(), value);
    set("store", Value::String(config.store.clone()));
    if let Some(path) = &config.key_file {
        set("key_file", Value::String(path.clone()));
    }
    if !config.sources.is_empty() {
        let sources = config.sources.iter().cloned().map(Value::String);
        set("sources", Value::Array(sources.collect()));
    }
    let after = i64::try_from(attach.after_seconds).unwrap_or(i64::MAX);
    let up = ("up", Value::String(attach.up.0.to_string()));
    let down = ("down", Value::String(attach.down.0.to_string()));
    set("attach", section([up, down, ("after_seconds", Value::Integer(after))]));
    set("pieces", section([("size", Value::String(config.pieces.size.0.to_string()))]));
    set("tls", section([("dir", Value::String(config.tls.dir.clone()))]));
    let seconds = |value: u64| Value::Integer(i64::try_from(value).unwrap_or(i64::MAX));
    set(
        "serve",
        section([
            ("lease_seconds", seconds(config.serve.lease_seconds)),
            ("store_seconds", seconds(config.serve.store_seconds)),
        ]),
    );
    let body = toml::to_string(&all)
        .map_err(|e| Error::internal("cannot write the configuration").with_source(e))?;
    Ok(format!("# Disks that `sojourn attach` uses here; docs/attach.md.\n{body}"))
}

fn section<const N: usize>(values: [(&str, Value); N]) -> Value {
    Value::Table(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut config = Config {
            store: "gateway+https://lab \"x\"".into(),
            key_file: Some("/k".into()),
            sources: vec!["/media/usb".into(), "s3://b/p".into()],
            attach: Some(Attach {
                up: ByteSize(1 << 20),
                down: ByteSize(2 << 20),
                after_seconds: 7,
            }),
            ..Config::default()
        };
        config.pieces.size = ByteSize(64 << 30);
        config.tls.dir = "/etc/pki".into();
        config.serve.store_seconds = 20;
        assert_eq!(Config::parse(&text(&config).unwrap()).unwrap(), config);
    }
}

//! `[attach]`: a home of attached disks, whose file is written by `sojourn attach`.

use super::Config;
use block::{ByteSize, Error, Result};
use serde::Deserialize;
use std::net::SocketAddr;
use toml::{Table, Value};
use toml_edit::{Array, DocumentMut, Item, TableLike, value};

/// `[attach]`: how attached disks go to their store.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Attach {
    /// Bytes per second that go up at most; 0 is no limit.
    pub up: ByteSize,
    /// Bytes per second that are hoarded at most; 0 is no limit.
    pub down: ByteSize,
    /// Seconds from a first write until it goes up.
    #[serde(deserialize_with = "super::time::seconds")]
    pub after_seconds: u64,
    /// Whether other machines of the network are asked for chunks, and answered.
    pub peers: bool,
    /// Where they are answered: `IP:PORT`; port 0 is any free one.
    pub peer_address: SocketAddr,
    /// Bytes per second that they are given at most; 0 is no limit.
    pub peer_up: ByteSize,
    /// Those that are not found by themselves: `IP:PORT` each.
    pub known_peers: Vec<SocketAddr>,
}

impl Default for Attach {
    fn default() -> Self {
        Self {
            up: ByteSize(0),
            down: ByteSize(0),
            after_seconds: 5,
            peers: false,
            peer_address: SocketAddr::from(([0, 0, 0, 0], 0)),
            peer_up: ByteSize(50 << 20),
            known_peers: Vec::new(),
        }
    }
}

/// The text of the file of a new home of attached disks.
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
    let peers = ("peers", Value::Boolean(attach.peers));
    set("attach", section([up, down, ("after_seconds", Value::Integer(after)), peers]));
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

/// The text of the file after `sojourn attach` changed its configuration from `before` to `after`: what is the
/// same in both stays as it is written, with its comments.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the text is no TOML, or has a value where a section belongs.
pub fn edited(text: &str, before: &Config, after: &Config) -> Result<String> {
    let mut document: DocumentMut =
        text.parse().map_err(|e| Error::invalid(format!("sojourn.toml: {e}")).with_source(e))?;
    if let Some(path) = after.key_file.as_ref().filter(|_| after.key_file != before.key_file) {
        set_value(document.as_table_mut(), "key_file", path.as_str());
    }
    let new = after.sources.iter().filter(|source| !before.sources.contains(source));
    for source in new {
        let list = document.entry("sources").or_insert_with(|| value(Array::new()));
        list.as_array_mut().ok_or_else(|| misplaced("sources"))?.push(source);
    }
    if after.tls.dir != before.tls.dir {
        set_in(&mut document, "tls", "dir", after.tls.dir.as_str())?;
    }
    let rates = |config: &Config| {
        let attach = config.attach.clone().unwrap_or_default();
        [("up", attach.up.0), ("down", attach.down.0)]
    };
    for ((key, new), (_, old)) in rates(after).into_iter().zip(rates(before)) {
        if new != old {
            set_in(&mut document, "attach", key, new.to_string())?;
        }
    }
    let asks_peers = |config: &Config| config.attach.as_ref().is_some_and(|attach| attach.peers);
    if asks_peers(after) != asks_peers(before) {
        set_in(&mut document, "attach", "peers", asks_peers(after))?;
    }
    Ok(document.to_string())
}

fn set_in(
    document: &mut DocumentMut,
    section: &str,
    key: &str,
    new: impl Into<toml_edit::Value>,
) -> Result<()> {
    let table = document.entry(section).or_insert_with(toml_edit::table);
    let table = table.as_table_like_mut().ok_or_else(|| misplaced(section))?;
    set_value(table, key, new);
    Ok(())
}

/// Sets a value. What stands beside it stays.
fn set_value(table: &mut dyn TableLike, key: &str, new: impl Into<toml_edit::Value>) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = new.into();
            *old.decor_mut() = decor;
        }
        None => drop(table.insert(key, value(new))),
    }
}

fn misplaced(what: &str) -> Error {
    Error::invalid(format!("sojourn.toml: {what} is not what it should be; docs/config.md"))
}

fn section<const N: usize>(values: [(&str, Value); N]) -> Value {
    Value::Table(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_leaves_the_rest_of_the_file_as_it_was_written() {
        let text = "# mine\nstore = \"s3://b/p\" # far\nsources = [\n  \"/a\", # a key\n]\n\n[attach]\n\
                    up = \"1\" # slow\nafter_seconds = 5\n\n[cache]\nsize = \"9MiB\" # small\n";
        let before = Config::parse(text).unwrap();
        let mut after = before.clone();
        after.sources.push("/b".into());
        after.key_file = Some("/k".into());
        after.tls.dir = "/pki".into();
        after.attach =
            Some(Attach { up: ByteSize(7), peers: true, ..before.attach.clone().unwrap() });
        let written = edited(text, &before, &after).unwrap();
        assert_eq!(Config::parse(&written).unwrap(), after, "{written}");
        for kept in ["# mine", "# far", "# a key", "# slow", "[cache]", "# small"] {
            assert!(written.contains(kept), "{kept}: {written}");
        }
        assert_eq!(edited(&written, &after, &after).unwrap(), written);
        let wrong = edited("attach = 1", &before, &after).unwrap_err();
        assert_eq!(wrong.kind(), block::ErrorKind::Invalid);
    }

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
                peers: true,
                ..Attach::default()
            }),
            ..Config::default()
        };
        config.pieces.size = ByteSize(64 << 30);
        config.tls.dir = "/etc/pki".into();
        config.serve.store_seconds = 20;
        assert_eq!(Config::parse(&text(&config).unwrap()).unwrap(), config);
    }
}

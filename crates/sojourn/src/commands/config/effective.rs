//! Every setting as it counts: what the file says, else the default.

use super::layout;
use access::Rule;
use block::ByteSize;
use engine::Config;
use engine::config::attached::Attach;
use engine::config::listener::{ConfiguredListener, TlsMode};
use engine::config::log::LogFormat;
use engine::config::throttle::{StallRule, ThrottleRule};
use engine::config::{Cache, Limits, Log, Pieces, Serve, Tls, Trace};
use engine::disk_io::DiskIo;
use serde::Serialize;
use serde_json::{Value, json};

/// A setting.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    /// The key, such as `cache.size`.
    pub(super) key: &'static str,
    /// Sizes in bytes, times in what the key's name ends in; null where nothing is set and there is no default.
    pub(super) value: Value,
    /// Where the file sets it, from 1; null for the default.
    pub(super) line: Option<usize>,
    /// For people, where that is another text than the value's.
    #[serde(skip)]
    pub(super) shown: Option<String>,
}

/// The settings of a configuration, one by one.
struct SettingList<'a> {
    all: Vec<Setting>,
    /// The configuration's file.
    text: &'a str,
}

impl SettingList<'_> {
    fn add(&mut self, key: &'static str, value: Value) {
        self.all.push(Setting { key, value, line: layout::line_of(self.text, key), shown: None });
    }

    /// A size, which people are shown with its unit.
    fn add_size(&mut self, key: &'static str, size: &ByteSize) {
        self.add(key, json!(size.0));
        if let Some(setting) = self.all.last_mut() {
            setting.shown = (size.0 > 0).then(|| size.to_string());
        }
    }

    fn add_serve(&mut self, serve: &Serve, tls: &Tls) {
        let Serve {
            nbd,
            iscsi,
            iscsi_chap,
            announce,
            tls: serve_tls,
            http,
            http_names,
            http_access,
            gateway,
            vhost_user,
            insecure,
            idle_seconds,
            stop_seconds,
            store_seconds,
            lease_seconds,
            response_ms,
            slow_ms,
            busy_poll_us,
            boot_lists,
            boot_copies,
            read_ahead,
            loads,
            io,
            store_disk,
        } = serve;
        let Tls { dir: tls_dir } = tls;
        self.add("serve.nbd", nbd.iter().map(place).collect());
        self.add("serve.tls", json!(serve_tls.to_string()));
        self.add("tls.dir", json!(tls_dir));
        self.add("serve.iscsi", json!(iscsi));
        self.add("serve.iscsi_chap", json!(iscsi_chap));
        self.add("serve.announce", json!(announce));
        self.add("serve.http", http.as_ref().map_or(Value::Null, place));
        self.add("serve.http_names", json!(http_names));
        self.add("serve.http_access", json!(http_access.to_string()));
        self.add("serve.gateway", json!(gateway));
        self.add("serve.vhost_user", json!(vhost_user));
        self.add("serve.insecure", json!(insecure));
        self.add("serve.idle_seconds", json!(idle_seconds));
        self.add("serve.store_seconds", json!(store_seconds));
        self.add("serve.stop_seconds", json!(stop_seconds));
        self.add("serve.response_ms", json!(response_ms));
        self.add("serve.slow_ms", json!(slow_ms));
        self.add("serve.busy_poll_us", json!(busy_poll_us));
        self.add("serve.lease_seconds", json!(lease_seconds));
        self.add("serve.boot_lists", json!(boot_lists));
        self.add("serve.boot_copies", json!(boot_copies));
        self.add_size("serve.read_ahead", read_ahead);
        self.add("serve.loads", json!(loads));
        let io = match io {
            DiskIo::Portable => "portable",
            DiskIo::Ring => "ring",
        };
        self.add("serve.io", json!(io));
        self.add("serve.store_disk", json!(store_disk));
    }

    fn add_limits(&mut self, limits: &Limits) {
        let Limits {
            connections,
            handshake_seconds,
            in_flight,
            total_in_flight,
            request,
            client_connections,
            client_iops,
            client_bandwidth,
            disk_space,
        } = limits;
        self.add("limits.connections", json!(connections));
        self.add("limits.handshake_seconds", json!(handshake_seconds));
        self.add_size("limits.in_flight", in_flight);
        self.add_size("limits.total_in_flight", total_in_flight);
        self.add_size("limits.request", request);
        self.add("limits.client_connections", json!(client_connections));
        self.add("limits.client_iops", json!(client_iops));
        self.add_size("limits.client_bandwidth", client_bandwidth);
        self.add_size("limits.disk_space", disk_space);
    }

    fn add_attach(&mut self, attach: &Attach) {
        let Attach { up, down, after_seconds, peers, peer_address, peer_up, known_peers } = attach;
        self.add_size("attach.up", up);
        self.add_size("attach.down", down);
        self.add_size("attach.peer_up", peer_up);
        self.add("attach.after_seconds", json!(after_seconds));
        self.add("attach.peers", json!(peers));
        self.add("attach.peer_address", json!(peer_address.to_string()));
        let known: Vec<String> = known_peers.iter().map(ToString::to_string).collect();
        self.add("attach.known_peers", json!(known));
    }
}

/// All settings, in the order of the documentation.
pub(super) fn settings(config: &Config, text: &str) -> Vec<Setting> {
    let mut listed = SettingList { all: Vec::new(), text };
    // Every field is named, here and above, so that none can be forgotten.
    let Config {
        store,
        key_file,
        sources,
        access,
        cache,
        pieces,
        serve,
        tls,
        trace,
        throttle,
        limits,
        log,
        attach,
    } = config;
    listed.add("store", json!(store));
    listed.add("sources", json!(sources));
    listed.add("access", access.iter().map(rule).collect());
    listed.add("key_file", json!(key_file));
    let Cache { size, policy, single_flight } = cache;
    listed.add_size("cache.size", size);
    listed.add("cache.policy", json!(policy.to_string()));
    listed.add("cache.single_flight", json!(single_flight));
    let Pieces { size, dir } = pieces;
    listed.add_size("pieces.size", size);
    listed.add("pieces.dir", json!(dir));
    listed.add_serve(serve, tls);
    listed.add("throttle", throttle.iter().map(throttled).collect());
    let Trace { dir, size, files } = trace;
    listed.add("trace.dir", json!(dir));
    listed.add_size("trace.size", size);
    listed.add("trace.files", json!(files));
    listed.add_limits(limits);
    if let Some(attach) = attach {
        listed.add_attach(attach);
    }
    let Log { level, format } = log;
    listed.add("log.level", json!(level));
    let format = match format {
        LogFormat::Human => "human",
        LogFormat::Json => "json",
    };
    listed.add("log.format", json!(format));
    listed.all
}

/// A listener, as it is written.
fn place(place: &ConfiguredListener) -> Value {
    let ConfiguredListener { address, tls } = place;
    match tls {
        None => json!(address),
        Some(tls) => json!({ "address": address, "tls": TlsMode::to_string(tls) }),
    }
}

/// A rule, as it is written.
fn rule(rule: &Rule) -> Value {
    let Rule { certificate, chap, uid, write, read } = rule;
    let fields = [
        ("certificate", json!(certificate)),
        ("chap", json!(chap)),
        ("uid", json!(uid)),
        ("write", json!(write)),
        ("read", json!(read)),
    ];
    said(fields)
}

/// An entry of the throttle, as it is written.
fn throttled(rule: &ThrottleRule) -> Value {
    let ThrottleRule { exports, profile, times, fail, bad, stall } = rule;
    let stall = stall.map(|StallRule { part, ms }| json!({ "part": part, "ms": ms }));
    said([
        ("exports", json!(exports)),
        ("profile", json!(profile)),
        ("times", json!(times)),
        ("fail", json!(fail)),
        ("bad", json!(bad)),
        ("stall", json!(stall)),
    ])
}

/// The fields that say anything.
fn said<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let fields = fields.into_iter().filter(|(_, value)| !empty(value));
    Value::Object(fields.map(|(key, value)| (key.to_owned(), value)).collect())
}

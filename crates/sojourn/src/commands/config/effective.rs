//! Every setting as it counts: what the file says, else the default.

use super::layout;
use access::Rule;
use block::ByteSize;
use engine::Config;
use engine::config::attached::Attach;
use engine::config::log::LogFormat;
use engine::config::place::{Place, TlsMode};
use engine::config::throttle::{StallRule, ThrottleRule};
use engine::config::{Cache, Limits, Log, Pieces, Serve, Tls, Trace};
use engine::disk_io::DiskIo;
use serde::Serialize;
use serde_json::{Value, json};

/// A setting.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    /// As in `cache.size`.
    pub(super) key: &'static str,
    /// Sizes in bytes, times in what the key's name ends in; null where nothing is set and there is no default.
    pub(super) value: Value,
    /// Where the file sets it, from 1; null for the default.
    pub(super) line: Option<usize>,
    /// For people, where that is another text than the value's.
    #[serde(skip)]
    pub(super) shown: Option<String>,
}

/// All settings, in the order of the documentation.
pub(super) fn settings(config: &Config, text: &str) -> Vec<Setting> {
    let mut all = Vec::new();
    let mut add = |key: &'static str, value: Value, shown: Option<String>| {
        all.push(Setting { key, value, line: layout::line_of(text, key), shown });
    };
    let size = |size: &ByteSize| (json!(size.0), (size.0 > 0).then(|| size.to_string()));
    // Every field is named, so that none can be forgotten.
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
    add("store", json!(store), None);
    add("sources", json!(sources), None);
    add("access", access.iter().map(rule).collect(), None);
    add("key_file", json!(key_file), None);
    let Cache { size: cache_size, policy, single_flight } = cache;
    let (value, shown) = size(cache_size);
    add("cache.size", value, shown);
    add("cache.policy", json!(policy.to_string()), None);
    add("cache.single_flight", json!(single_flight), None);
    let Pieces { size: pieces_size, dir } = pieces;
    let (value, shown) = size(pieces_size);
    add("pieces.size", value, shown);
    add("pieces.dir", json!(dir), None);
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
    } = serve;
    add("serve.nbd", nbd.iter().map(place).collect(), None);
    add("serve.tls", json!(serve_tls.to_string()), None);
    let Tls { dir: tls_dir } = tls;
    add("tls.dir", json!(tls_dir), None);
    add("serve.iscsi", json!(iscsi), None);
    add("serve.iscsi_chap", json!(iscsi_chap), None);
    add("serve.announce", json!(announce), None);
    add("serve.http", http.as_ref().map_or(Value::Null, place), None);
    add("serve.http_names", json!(http_names), None);
    add("serve.http_access", json!(http_access.to_string()), None);
    add("serve.gateway", json!(gateway), None);
    add("serve.vhost_user", json!(vhost_user), None);
    add("serve.insecure", json!(insecure), None);
    add("serve.idle_seconds", json!(idle_seconds), None);
    add("serve.store_seconds", json!(store_seconds), None);
    add("serve.stop_seconds", json!(stop_seconds), None);
    add("serve.response_ms", json!(response_ms), None);
    add("serve.slow_ms", json!(slow_ms), None);
    add("serve.busy_poll_us", json!(busy_poll_us), None);
    add("serve.lease_seconds", json!(lease_seconds), None);
    add("serve.boot_lists", json!(boot_lists), None);
    add("serve.boot_copies", json!(boot_copies), None);
    let (value, shown) = size(read_ahead);
    add("serve.read_ahead", value, shown);
    add("serve.loads", json!(loads), None);
    let io = match io {
        DiskIo::Portable => "portable",
        DiskIo::Ring => "ring",
    };
    add("serve.io", json!(io), None);
    add("throttle", throttle.iter().map(throttled).collect(), None);
    let Trace { dir: trace_dir, size: trace_size, files } = trace;
    add("trace.dir", json!(trace_dir), None);
    let (value, shown) = size(trace_size);
    add("trace.size", value, shown);
    add("trace.files", json!(files), None);
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
    add("limits.connections", json!(connections), None);
    add("limits.handshake_seconds", json!(handshake_seconds), None);
    for (key, bytes) in [
        ("limits.in_flight", in_flight),
        ("limits.total_in_flight", total_in_flight),
        ("limits.request", request),
    ] {
        let (value, shown) = size(bytes);
        add(key, value, shown);
    }
    add("limits.client_connections", json!(client_connections), None);
    add("limits.client_iops", json!(client_iops), None);
    for (key, bytes) in
        [("limits.client_bandwidth", client_bandwidth), ("limits.disk_space", disk_space)]
    {
        let (value, shown) = size(bytes);
        add(key, value, shown);
    }
    if let Some(Attach { up, down, after_seconds, peers, peer_address, peer_up, known_peers }) =
        attach
    {
        for (key, bytes) in [("attach.up", up), ("attach.down", down), ("attach.peer_up", peer_up)]
        {
            let (value, shown) = size(bytes);
            add(key, value, shown);
        }
        add("attach.after_seconds", json!(after_seconds), None);
        add("attach.peers", json!(peers), None);
        add("attach.peer_address", json!(peer_address.to_string()), None);
        let known: Vec<String> = known_peers.iter().map(ToString::to_string).collect();
        add("attach.known_peers", json!(known), None);
    }
    let Log { level, format } = log;
    add("log.level", json!(level), None);
    let format = match format {
        LogFormat::Human => "human",
        LogFormat::Json => "json",
    };
    add("log.format", json!(format), None);
    all
}

/// A listener, as it is written.
fn place(place: &Place) -> Value {
    let Place { address, tls } = place;
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

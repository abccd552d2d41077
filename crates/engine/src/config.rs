//! `sojourn.toml`: what can be set, the defaults, and errors that name the line.
//!
//! Documented for users in docs/config.md; keep the two together.
//!
//! | module | concept |
//! |---|---|
//! | [`place`] | where to listen, and whether encrypted |
//! | [`attached`] | a home of attached disks |
//! | [`throttle`] | what exports are as slow as |
//! | [`log`] | what is logged, and how |
//! | [`time`] | times as people write them |
//! | `mistakes` | what a text that cannot be read was meant to be |

pub mod attached;
pub mod log;
mod mistakes;
pub mod place;
pub mod throttle;
pub mod time;

use self::attached::Attach;
use self::log::LogFormat;
use self::place::{ConfiguredListener, HttpAccess, TlsMode};
use self::throttle::ThrottleRule;
use crate::disk_io::DiskIo;
use crate::home::Home;
use access::{Rule, Rules};
use block::{ByteSize, Error, ErrorKind, Result};
use cache::PolicyKind;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::Path;

/// The largest configuration file that is read, in bytes.
const MAXIMUM: u64 = 1 << 20;

/// The whole file. Every key has a default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The store: a directory (relative to the home) or a URL.
    pub store: String,
    /// The key file of an encrypted store (relative to the home).
    pub key_file: Option<String>,
    /// Other stores with the same key that are asked for what is missing or damaged: directories
    /// (relative to the home) or URLs.
    pub sources: Vec<String>,
    /// Which clients may use which exports. None: all may use all, unless TLS is required.
    pub access: Vec<Rule>,
    /// `[cache]`.
    pub cache: Cache,
    /// `[pieces]`.
    pub pieces: Pieces,
    /// `[serve]`.
    pub serve: Serve,
    /// `[tls]`.
    pub tls: Tls,
    /// `[trace]`.
    pub trace: Trace,
    /// What exports are to be as slow as, or how they fail.
    pub throttle: Vec<ThrottleRule>,
    /// `[limits]`.
    pub limits: Limits,
    /// `[log]`.
    pub log: Log,
    /// `[attach]`; only in a home of attached disks.
    pub attach: Option<Attach>,
}

/// `[cache]`: the memory that all disks share.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// Its capacity.
    pub size: ByteSize,
    /// What is kept when it is full.
    pub policy: PolicyKind,
    /// Whether readers that miss the same chunk at the same time share one load.
    pub single_flight: bool,
}

/// `[pieces]`: what is kept on the local disk of a store over a network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pieces {
    /// Its limit; 0 keeps nothing.
    pub size: ByteSize,
    /// The directory (relative to the home).
    pub dir: String,
}

/// `[serve]`: where the server listens, and how it treats disks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Serve {
    /// NBD listeners: `unix:PATH` (relative to the home) or `HOST:PORT`.
    pub nbd: Vec<ConfiguredListener>,
    /// iSCSI listeners: `HOST:PORT`.
    pub iscsi: Vec<String>,
    /// The file of iSCSI clients' secrets (relative to the home).
    pub iscsi_chap: Option<String>,
    /// The directory of the disks' vhost-user sockets (relative to the home).
    pub vhost_user: Option<String>,
    /// Whether the server is announced to the networks in which it listens.
    pub announce: bool,
    /// Whether TCP listeners that do not say it themselves are encrypted.
    pub tls: TlsMode,
    /// The HTTP listener for metrics and status; none when absent.
    pub http: Option<ConfiguredListener>,
    /// Names beside the machine's own by which that is asked without TLS.
    pub http_names: Vec<String>,
    /// Who may look there without a token.
    pub http_access: HttpAccess,
    /// Where the store is open to others by HTTPS, `IP:PORT`; nowhere when absent.
    pub gateway: Option<String>,
    /// Allows addresses that other machines reach.
    pub insecure: bool,
    /// Seconds that a disk stays open after its last session.
    #[serde(deserialize_with = "time::seconds")]
    pub idle_seconds: u64,
    /// Seconds that a graceful stop waits for clients.
    #[serde(deserialize_with = "time::seconds")]
    pub stop_seconds: u64,
    /// Seconds that readers wait for a store over a network that does not answer.
    #[serde(deserialize_with = "time::seconds")]
    pub store_seconds: u64,
    /// Seconds after which another server may take the disks of one that fell silent.
    #[serde(deserialize_with = "time::seconds")]
    pub lease_seconds: u64,
    /// The longest mean response, in milliseconds, up to which head-room is reckoned; 0: any.
    #[serde(deserialize_with = "time::milliseconds")]
    pub response_ms: u64,
    /// Beyond so many milliseconds a disk or the store is called slow; 0: never.
    #[serde(deserialize_with = "time::milliseconds")]
    pub slow_ms: u64,
    /// The longest that the next request of a quick client is looked for, in microseconds; 0: never.
    /// Without it, while the machine has processors to spare.
    pub busy_poll_us: Option<u64>,
    /// Whether boots are recorded, and loaded ahead of the next ones.
    pub boot_lists: bool,
    /// Whether the chunks of a whole boot list are stored once more, side by side, and read from there.
    pub boot_copies: bool,
    /// How far ahead of a guest that reads in order its disk is loaded; 0 is not at all.
    pub read_ahead: ByteSize,
    /// The most requests to the store at a time; 0 is no limit, and no turns between disks.
    pub loads: u32,
    /// How reads of files wait for the disk.
    pub io: DiskIo,
}

/// `[tls]`: the server's certificates.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The directory (relative to the home) that `sojourn cert` fills.
    pub dir: String,
}

/// `[trace]`: a recording of what clients ask.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// The directory (relative to the home) that every run of the server writes files to; none:
    /// nothing is recorded.
    pub dir: Option<String>,
    /// Where a file ends, and the next one begins.
    pub size: ByteSize,
    /// How many files are kept; 0 keeps all.
    pub files: u32,
}

/// `[limits]`: what one client, and all together, may ask for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections at a time.
    pub connections: u32,
    /// Seconds in which a client must finish the handshake.
    #[serde(deserialize_with = "time::seconds")]
    pub handshake_seconds: u64,
    /// Bytes of requests and answers in memory per connection.
    pub in_flight: ByteSize,
    /// The same for all connections together, beyond 256 KiB of each.
    pub total_in_flight: ByteSize,
    /// The longest read or write.
    pub request: ByteSize,
    /// Connections at a time of one client; 0 is no limit.
    pub client_connections: u32,
    /// Requests of one client in a second; 0 is no limit.
    pub client_iops: u64,
    /// Bytes that one client reads and writes in a second; 0 is no limit.
    pub client_bandwidth: ByteSize,
    /// What the private blocks of one disk may take in the home; 0 is no limit.
    pub disk_space: ByteSize,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A level or a filter.
    pub level: String,
    /// How lines look.
    pub format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: "store".into(),
            sources: Vec::new(),
            access: Vec::new(),
            key_file: None,
            cache: Cache::default(),
            pieces: Pieces::default(),
            serve: Serve::default(),
            tls: Tls::default(),
            trace: Trace::default(),
            throttle: Vec::new(),
            limits: Limits::default(),
            log: Log::default(),
            attach: None,
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self { size: ByteSize(256 << 20), policy: PolicyKind::default(), single_flight: true }
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self { size: ByteSize(4 << 30), dir: "pieces".into() }
    }
}

impl Default for Serve {
    fn default() -> Self {
        Self {
            nbd: vec!["unix:nbd.sock".into()],
            iscsi: Vec::new(),
            iscsi_chap: None,
            vhost_user: None,
            announce: false,
            tls: TlsMode::Off,
            http: None,
            http_names: Vec::new(),
            http_access: HttpAccess::Open,
            gateway: None,
            insecure: false,
            idle_seconds: 30,
            stop_seconds: 10,
            store_seconds: 600,
            lease_seconds: 60,
            response_ms: 0,
            slow_ms: 1000,
            busy_poll_us: None,
            boot_lists: true,
            boot_copies: true,
            read_ahead: ByteSize(2 << 20),
            loads: 64,
            io: DiskIo::Portable,
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self { dir: "tls".into() }
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self { dir: None, size: ByteSize(1 << 30), files: 16 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            handshake_seconds: 30,
            in_flight: ByteSize(16 << 20),
            total_in_flight: ByteSize(1 << 30),
            request: ByteSize(32 << 20),
            client_connections: 0,
            client_iops: 0,
            client_bandwidth: ByteSize(0),
            disk_space: ByteSize(0),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Human }
    }
}

impl Config {
    /// That of a server of one file, where none was named. The command line names the file and the
    /// certificates: where every client shows one, it may use the file.
    pub fn of_a_file(tls: Option<TlsMode>) -> Self {
        let certified = || Rule {
            certificate: Some("*".to_owned()),
            write: vec!["*".to_owned()],
            ..Rule::default()
        };
        let access = match tls {
            Some(TlsMode::Required) => vec![certified()],
            _ => Vec::new(),
        };
        Self { access, ..Self::default() }
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it is missing, [`ErrorKind::Invalid`] with the line and the key
    /// when it is wrong.
    pub fn load(path: &Path) -> Result<Self> {
        use std::io::Read;
        let io = |e| Error::io(path.display(), e);
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(MAXIMUM + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > MAXIMUM {
            let what = format!("{} is longer than 1 MiB; is it the right file?", path.display());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Self::parse(&text).map_err(|e| e.context(path.display()))
    }

    /// The configuration of a home.
    ///
    /// # Errors
    /// As [`load`](Self::load), when nobody ran `sojourn init` there, and for root on another user's.
    pub fn of(home: &Home) -> Result<Self> {
        home.must_exist()?;
        home.must_be_ours()?;
        Self::load(&home.config())
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the line and the key.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text).map_err(|e| mistakes::explain(text, &e))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let bad = |key: &str, why: &str| Err(Error::invalid(format!("{key}: {why}")));
        if !self.cache.policy.serves() {
            return bad(
                "cache.policy",
                "this policy is for comparisons only; use duel or another that docs/simulate.md names",
            );
        }
        if self.store.is_empty() {
            return bad("store", "is empty; give a directory or a file:// URL");
        }
        if !(self.pieces.size.0 == 0 || self.pieces.size.0 >= 16 << 20) {
            return bad("pieces.size", "must be 0 (nothing is kept) or at least 16MiB");
        }
        if self.pieces.dir.is_empty() {
            return bad("pieces.dir", "is empty; give a directory");
        }
        Rules::new(self.access.clone(), false)?;
        if self.serve.http.as_ref().is_some_and(|http| http.address.parse::<SocketAddr>().is_err())
        {
            return bad("serve.http", "is not IP:PORT, such as 127.0.0.1:9180");
        }
        let is_name = |name: &String| {
            let part = |part: &str| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            };
            name.split('.').all(part)
        };
        if !self.serve.http_names.iter().all(is_name) {
            return bad("serve.http_names", "are names of this machine, such as lab.example.org");
        }
        if self.serve.gateway.as_ref().is_some_and(|at| at.parse::<SocketAddr>().is_err()) {
            return bad("serve.gateway", "is not IP:PORT, such as 0.0.0.0:9443");
        }
        if self.tls.dir.is_empty() {
            return bad("tls.dir", "is empty; give a directory");
        }
        if self.trace.dir.as_deref() == Some("") {
            return bad("trace.dir", "is empty; give a directory, or leave it out");
        }
        if self.trace.size.0 < 1 << 20 {
            return bad("trace.size", "must be at least 1MiB");
        }
        if self.limits.connections == 0 {
            return bad("limits.connections", "is 0; at least 1 is needed");
        }
        if self.limits.handshake_seconds == 0 {
            return bad("limits.handshake_seconds", "is 0; at least 1 is needed");
        }
        if !(1 << 16..=32 << 20).contains(&self.limits.request.0) {
            return bad("limits.request", "must be 64KiB to 32MiB");
        }
        let slow = 1..1_000_000;
        if slow.contains(&self.limits.client_bandwidth.0) {
            return bad("limits.client_bandwidth", "must be 0 (no limit) or at least 1MB a second");
        }
        if !(1 << 20..=1 << 30).contains(&self.limits.in_flight.0) {
            return bad("limits.in_flight", "must be 1MiB to 1GiB");
        }
        if !(64 << 20..=1 << 40).contains(&self.limits.total_in_flight.0) {
            return bad("limits.total_in_flight", "must be 64MiB to 1TiB");
        }
        for (key, seconds) in [
            ("limits.handshake_seconds", self.limits.handshake_seconds),
            ("serve.idle_seconds", self.serve.idle_seconds),
            ("serve.stop_seconds", self.serve.stop_seconds),
            ("serve.store_seconds", self.serve.store_seconds),
            ("serve.lease_seconds", self.serve.lease_seconds),
        ] {
            if seconds > 86_400 {
                return bad(key, "is more than a day; write seconds, or text such as \"30s\"");
            }
        }
        if self.serve.read_ahead.0 > 64 << 20 {
            return bad("serve.read_ahead", "must be at most 64MiB");
        }
        if self.serve.loads > 4096 {
            return bad("serve.loads", "must be at most 4096");
        }
        if self.serve.slow_ms > 86_400_000 {
            return bad("serve.slow_ms", "is more than a day; write milliseconds");
        }
        if self.serve.busy_poll_us > Some(1000) {
            return bad("serve.busy_poll_us", "must be at most 1000");
        }
        if self.serve.lease_seconds < 3 {
            return bad("serve.lease_seconds", "must be at least 3");
        }
        log::check_level(&self.log.level).map_err(|e| e.context("log.level"))?;
        Ok(())
    }

    /// The text of a new file: every key with its default, commented out.
    pub fn template(store: Option<&str>, key_file: Option<&Path>) -> Result<String> {
        let store = match store {
            Some(store) => format!("store = {}", toml::Value::String(store.to_owned())),
            None => "# store = \"store\"".to_owned(),
        };
        let key_file = match key_file.map(|path| (path, path.to_str())) {
            Some((_, Some(path))) => {
                format!("key_file = {}", toml::Value::String(path.to_owned()))
            }
            Some((path, None)) => {
                return Err(Error::invalid(format!(
                    "the key file's path {} is not UTF-8; choose another one",
                    path.display()
                )));
            }
            None => "# key_file = \"store.key\"".to_owned(),
        };
        Ok(TEMPLATE.replace("{STORE}", &store).replace("{KEY_FILE}", &key_file))
    }
}

const TEMPLATE: &str = r##"# Configuration of Sojourn; docs/config.md says what each key means.
# A key that is commented out shows its default.

# Where images live: a directory (relative to this file's home), or s3://, gs://, az://, https://.
{STORE}

# Stores that are asked for what is missing or damaged in this one.
# sources = []              # such as ["/media/usb", "/srv/copy-of-the-store"]

# The key file of an encrypted store (relative to the home).
{KEY_FILE}

# Which clients may use which exports; docs/security.md. Without rules all may use all, unless TLS is
# required somewhere: then none may.
# access = [{ certificate = "alice", write = ["alice"], read = ["debian", "debian:*"] }]

# Exports that are as slow, or as faulty, as another disk; docs/disk-lab.md.
# throttle = [{ exports = ["alice"], profile = "hdd-7200" }]

[cache]
# size = "256MiB"
# policy = "duel"           # or arc, fbr, fmpq, lirs, lru, mq, s3fifo, twoq, wtinylfu
# single_flight = true      # many that miss the same chunk at a time share one load

# Parts of a store over a network that are kept on this machine's disk.
[pieces]
# size = "4GiB"
# dir = "pieces"

[serve]
# nbd = ["unix:nbd.sock"]   # unix:PATH (relative to the home) or HOST:PORT
# tls = "off"               # of HOST:PORT: "optional" or "required" need certificates
# iscsi = ["127.0.0.1:3260"]  # off unless set: every export as an iSCSI target
# iscsi_chap = "chap"       # lines of USER:SECRET; off unless set: nobody is asked for a secret
# vhost_user = "vhost-user" # off unless set: a vhost-user socket for every disk, in there
# announce = false          # true: `sojourn discover` finds the server in its networks
# http = "127.0.0.1:9180"   # off unless set: /metrics, /healthz, /v1/status
# http_names = ["lab.example.org"]  # by which it is asked without TLS, beside the machine's own
# http_access = "open"      # "tokens": nobody looks without one; changes always need one
# gateway = "0.0.0.0:9443"  # off unless set: the store by HTTPS, for clients with certificates
# insecure = false          # true allows addresses that other machines reach
# idle_seconds = 30         # a disk without clients is closed after this
# lease_seconds = 60        # fallen silent for this long, another server may take its disks
# loads = 64                # the most requests to the store at a time; disks take turns
# io = "portable"           # "ring": reads that wait for the disk go by io_uring
# read_ahead = "2MiB"       # for each disk whose guest reads in order; 0 is off
# boot_lists = true         # record what boots read, and load it ahead of the next ones
# boot_copies = true        # store that once more, side by side, for slow disks
# store_seconds = 600       # readers wait this long for a store over a network
# stop_seconds = 10         # a graceful stop waits this long for clients
# response_ms = 0           # head-room ends where the mean response is longer; 0: anywhere
# slow_ms = 1000            # disks and the store are called slow beyond this; 0: never
# busy_poll_us = 200        # always look this long for a quick client's next request; 0: never
                            # not set: while the machine has processors to spare

# The certificates of the server and of the authority that it trusts; sojourn cert makes them.
[tls]
# dir = "tls"

# What clients ask, recorded.
[trace]
# dir = "traces"            # off unless set: every run of the server writes files here
# size = "1GiB"             # where a file ends and the next one begins
# files = 16                # how many are kept; 0 keeps all

[limits]
# connections = 4096
# handshake_seconds = 30
# in_flight = "16MiB"       # per connection
# total_in_flight = "1GiB"  # of all connections
# request = "32MiB"
# client_connections = 0    # of one client: a process, or an address; 0 is no limit
# client_iops = 0           # requests of one client in a second
# client_bandwidth = 0      # bytes of one client in a second, such as "100MB"
# disk_space = 0            # for the private blocks of one disk, such as "20GiB"

[log]
# level = "info"
# format = "human"          # or "json"
"##;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}", key in "[a-z.]{1,12}", value in "[-0-9a-zA-Z\"\\[\\]]{0,12}") {
            let _ = Config::parse(&text);
            let _ = Config::parse(&format!("{text}\n{key} = {value}\n"));
        }
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn the_template_says_the_defaults() {
        let template = Config::template(None, None).unwrap();
        assert_eq!(Config::parse(&template).unwrap(), Config::default());
        let uncommented: String = template
            .lines()
            .filter(|line| line.contains(" = ") || line.starts_with('['))
            .map(|line| format!("{}\n", line.trim_start_matches("# ")))
            .collect();
        let mut expected = Config { key_file: Some("store.key".into()), ..Config::default() };
        expected.access = vec![Rule {
            certificate: Some("alice".into()),
            write: vec!["alice".into()],
            read: vec!["debian".into(), "debian:*".into()],
            ..Rule::default()
        }];
        expected.throttle = vec![ThrottleRule {
            exports: vec!["alice".into()],
            ..ThrottleRule::for_all(Some("hdd-7200".into()), None, None)
        }];
        expected.trace.dir = Some("traces".into());
        expected.serve.http = Some("127.0.0.1:9180".into());
        expected.serve.http_names = vec!["lab.example.org".into()];
        expected.serve.busy_poll_us = Some(200);
        expected.serve.iscsi = vec!["127.0.0.1:3260".into()];
        expected.serve.iscsi_chap = Some("chap".into());
        expected.serve.vhost_user = Some("vhost-user".into());
        expected.serve.gateway = Some("0.0.0.0:9443".into());
        assert_eq!(Config::parse(&uncommented).unwrap(), expected);
    }

    #[test]
    fn the_documentation_names_every_key_and_its_example_is_valid() {
        let page = include_str!("../../../docs/config.md");
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        assert_eq!(Config::parse(example).unwrap().cache.size, ByteSize(4 << 30));
        let mut table = String::new();
        for line in TEMPLATE.lines() {
            if let Some(name) = line.strip_prefix('[') {
                table = format!("{}.", name.trim_end_matches(']'));
            } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") {
                assert!(page.contains(&format!("| `{table}{key}` |")), "{table}{key}");
            }
        }
    }

    #[test]
    fn a_store_with_quotes_in_its_path_survives_the_template() {
        let store = "/srv/a \"b\" \\c";
        let template = Config::template(Some(store), None).unwrap();
        assert_eq!(Config::parse(&template).unwrap().store, store);
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        for (text, line, word) in [
            ("\n[cache]\nsise = 3\n", "line 3", "sise"),
            ("[cache]\nsize = \"lots\"\n", "line 2", "lots"),
            ("[cache]\nsize = -1\n", "line 2", "a number of bytes"),
            ("[cache]\npolicy = \"magic\"\n", "line 2", "magic"),
            ("[limits]\nconnections = \"many\"\n", "line 2", "connections"),
            ("[serve]\nhttp = 7\n", "line 2", "http"),
            ("nonsense", "line 1", "nonsense"),
            ("[serve]\nidle_seconds = \"soon\"\n", "line 2", "30 or \"30s\""),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(line), "{text}: {error}");
            assert!(error.message().contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_their_key() {
        for (text, key) in [
            ("store = \"\"", "store"),
            ("pieces.size = 1", "pieces.size"),
            ("trace.size = 1", "trace.size"),
            ("pieces.dir = \"\"", "pieces.dir"),
            ("limits.connections = 0", "limits.connections"),
            ("limits.request = \"1GiB\"", "limits.request"),
            ("limits.in_flight = 1", "limits.in_flight"),
            ("limits.client_bandwidth = \"64KiB\"", "limits.client_bandwidth"),
            ("serve.idle_seconds = 10000000", "serve.idle_seconds"),
            ("serve.gateway = \"here\"", "serve.gateway"),
            ("serve.loads = 5000", "serve.loads"),
            ("serve.read_ahead = \"1GiB\"", "serve.read_ahead"),
            ("serve.slow_ms = 100000000", "serve.slow_ms"),
            ("serve.busy_poll_us = 1001", "serve.busy_poll_us"),
            ("log.level = \"=?=\"", "log.level"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.message().starts_with(key), "{text}: {error}");
        }
    }
}

//! `sojourn.toml`: what can be set, the defaults, and errors that name the line.
//!
//! Documented for users in docs/config.md; keep the two together.
//!
//! | module | concept |
//! |---|---|
//! | [`listener`] | where to listen, and whether encrypted |
//! | [`attached`] | a home of attached disks |
//! | [`throttle`] | what exports are as slow as |
//! | [`log`] | what is logged, and how |
//! | [`time`] | times as people write them |
//! | `mistakes` | what a text that cannot be read was meant to be |

pub mod attached;
mod check;
pub mod listener;
pub mod log;
mod mistakes;
mod template;
pub mod throttle;
pub mod time;

#[cfg(test)]
mod tests;

use self::attached::Attach;
use self::listener::{ConfiguredListener, HttpAccess, TlsMode};
use self::log::LogFormat;
use self::throttle::ThrottleRule;
use crate::disk_io::DiskIo;
use crate::home::Home;
use access::Rule;
use block::{ByteSize, Error, ErrorKind, Result};
use cache::PolicyKind;
use serde::Deserialize;
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
    /// How long connections poll for the next request of a quick client, in microseconds; 0: never.
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
    /// What the disk is like that a store in a directory is on: `flash`, or the profile of one that turns. Chunks
    /// are read from that in the order that suits its arm.
    pub store_disk: String,
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
            store_disk: "flash".into(),
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
    /// Any error from [`load`](Self::load), when nobody ran `sojourn init` there, and for root on another user's.
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
}

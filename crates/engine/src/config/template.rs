//! The file that a new home gets.

use super::Config;
use block::{Error, Result};
use std::path::Path;

impl Config {
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

pub(super) const TEMPLATE: &str = r##"# Configuration of Sojourn; docs/config.md says what each key means.
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
# store_disk = "flash"      # a disk that turns, such as "hdd-7200": read as it suits its arm
# read_ahead = "2MiB"       # for each disk whose guest reads in order; 0 is off
# boot_lists = true         # record what boots read, and load it ahead of the next ones
# boot_copies = true        # store that once more, side by side, for slow disks
# store_seconds = 600       # readers wait this long for a store over a network
# stop_seconds = 10         # a graceful stop waits this long for clients
# response_ms = 0           # head-room ends where the mean response is longer; 0: anywhere
# slow_ms = 1000            # disks and the store are called slow beyond this; 0: never
# busy_poll_us = 200        # always poll this long for a quick client's next request; 0: never
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

//! The arguments of a fit.

use crate::lists::{Numbers, Sizes};
use block::ByteSize;
use engine::config::time::duration;
use nbd::Uri;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `sojourn model fit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn model fit 'nbd://server/debian' --pid 4711 --out server.toml
  sojourn model fit 'nbd+unix:///debian?socket=/srv/sojourn/nbd.sock' --home /srv/sojourn \\
      --block 4K,32K --disk sda --out server.toml
  sojourn --home /srv/sojourn model fit 'nbd+unix:///debian?socket=/srv/sojourn/nbd.sock' \\
      --add-pieces server.toml --out with-pieces.toml

Reads at random from the export, only reads: first a part that fits the server's cache, again and
again, then all of it. Processor, disk and network are measured by the utilisation law where they
can be watched; what remains of the response is a queue and a delay, found from how the
throughput grows with the clients. Then it reads with other numbers of clients and says how far
the model is off. docs/model.md tells more.")]
pub(crate) struct Args {
    /// The export: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, or encrypted, with
    /// nbds:// and ?tls-certificates=DIR
    pub(crate) target: Uri,
    /// Where to write the profile
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Bytes of a request; what other sizes take is reckoned from these
    #[arg(long, value_name = "LIST", default_value = "4K,128K")]
    pub(crate) block: Sizes,
    /// Numbers of clients to measure at
    #[arg(long, value_name = "LIST", default_value = "1,4,16")]
    pub(crate) loads: Numbers,
    /// Numbers of clients to check at
    #[arg(long, value_name = "LIST", default_value = "2,8,32")]
    pub(crate) check: Numbers,
    /// How long each number of clients is measured
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    pub(crate) time: Duration,
    /// How often to measure while loads with misses differ by more than 15 % from the model, as they do
    /// when the machine was disturbed; the best one counts
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: u32,
    /// How much of the export is read for hits: less than the server's cache
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub(crate) hot: ByteSize,
    /// Measure hits alone: of a server without a cache, or all of whose data fit in it
    #[arg(long)]
    pub(crate) hits_only: bool,
    /// The server's process on this machine [default: the server of --home, if it runs]
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The disk that the server's store is on, as in /proc/diskstats
    #[arg(long, value_name = "DISK")]
    pub(crate) disk: Option<String>,
    /// The network interface between server and clients
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// The interface's speed in bits a second [default: what it says]
    #[arg(long, value_name = "BITS", requires = "network")]
    pub(crate) speed: Option<u64>,
    /// The server has a piece cache, and PROFILE was measured without: measure what each piece takes that comes
    /// into it, by first reads of one client, and write PROFILE with that. Needs --home, and an empty piece cache
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["hits_only", "disk", "network"])]
    pub(crate) add_pieces: Option<String>,
    /// Write the profile even if the check says that it is wrong
    #[arg(long)]
    pub(crate) force: bool,
}

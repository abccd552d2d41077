//! `sojourn simulate`: what a cache would do under the load of a trace.
//!
//! | module | verbs |
//! |---|---|
//! | [`cache`] | `cache`: policies and sizes |
//! | [`curve`] | `curve`: LRU at all sizes in one pass |
//! | [`tune`] | `tune`: the best policy for a size |
//! | [`budget`] | `tune` with `--blocks` or `--split`: how to spend memory |

mod budget;
mod cache;
mod curve;
mod tune;

use crate::commands::trace::Reading;
use crate::output::Output;
use ::cache::PolicyKind;
use block::{ByteSize, Error, Result};
use clap::{Subcommand, ValueEnum};
use simulate::{Estimate, Options, Sharing, Stream};
use std::path::PathBuf;

/// What to find out.
#[derive(Debug, Subcommand)]
pub(crate) enum Simulate {
    /// Hit ratios of policies at sizes
    Cache(cache::Args),
    /// The hit ratio of LRU at all sizes, in one pass
    Curve(curve::Args),
    /// The best policy for a size, blocks and division of memory, and what they are expected to save
    Tune(tune::Args),
}

/// Carries a verb out.
pub(crate) fn run(verb: &Simulate, output: Output) -> Result<()> {
    match verb {
        Simulate::Cache(args) => cache::run(args, output),
        Simulate::Curve(args) => curve::run(args, output),
        Simulate::Tune(args) => tune::run(args, output),
    }
}

/// The load: a trace, and how it reaches the cache.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Load {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Bytes of a cached block
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block: ByteSize,
    /// Bytes of a request that count as one reference, to compare blocks of several sizes [default:
    /// the block]
    #[arg(long, value_name = "SIZE")]
    per: Option<ByteSize>,
    /// Cache writes too, not only reads
    #[arg(long)]
    writes: bool,
    /// Which blocks are the same: those of one disk for all its clients; those of one image until a
    /// client writes them; or none between clients
    #[arg(long, value_enum, default_value_t = Share::Disk)]
    share: Share,
    /// A cache in front of each client, as POLICY:SIZE or SIZE (lru): only its misses go on
    #[arg(long, value_name = "CACHE", value_parser = client)]
    client: Option<(PolicyKind, u64)>,
    #[command(flatten)]
    reading: Reading,
}

/// Which blocks are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Share {
    Disk,
    Image,
    Private,
}

/// Reads a client's cache: the size stands last, as policies have parameters of their own.
fn client(text: &str) -> Result<(PolicyKind, u64)> {
    let (policy, size) = text.rsplit_once(':').unwrap_or(("lru", text));
    Ok((policy.parse()?, size.parse::<ByteSize>()?.0))
}

impl Load {
    /// How the trace becomes references; only one block of `one_in` is kept.
    fn options(&self, one_in: u32) -> Result<Options> {
        let bytes = |size: ByteSize| u32::try_from(size.0).unwrap_or(u32::MAX);
        let block = bytes(self.block);
        let per = self.per.map(bytes);
        let sharing = match self.share {
            Share::Disk => Sharing::Disk,
            Share::Image => Sharing::Image,
            Share::Private => Sharing::Private,
        };
        let client = match self.client {
            Some((policy, size)) => Some((policy, self.blocks(size)?)),
            None => None,
        };
        Ok(Options { block, per, writes: self.writes, sharing, client, one_in })
    }

    /// Reads the trace; only one block of `one_in` goes into the stream.
    fn read(&self, one_in: u32) -> Result<Stream> {
        let mut source = self.reading.open(&self.trace)?;
        let stream = Stream::read(&mut *source, &self.options(one_in)?)?;
        if stream.is_empty() {
            return Err(self.nothing());
        }
        Ok(stream)
    }

    /// Reads the trace for its curve, looking at so many blocks at most.
    fn estimate(&self, samples: u32) -> Result<(Estimate, Stream)> {
        let mut source = self.reading.open(&self.trace)?;
        let (estimate, stream) = Estimate::read(&mut *source, &self.options(1)?, samples)?;
        if estimate.references == 0 {
            return Err(self.nothing());
        }
        Ok((estimate, stream))
    }

    fn nothing(&self) -> Error {
        Error::invalid(format!(
            "{}: nothing in it reaches the cache; with --writes writes do too",
            self.trace.display()
        ))
    }

    /// How many blocks fit in so many bytes.
    fn blocks(&self, size: u64) -> Result<u32> {
        match u32::try_from(size / self.block.0.max(1)) {
            Ok(blocks) if blocks > 0 => Ok(blocks),
            _ => Err(Error::invalid(format!(
                "a cache of {} does not hold a block of {}, or more than 2^32 of them; give another size",
                ByteSize(size),
                self.block
            ))),
        }
    }

    /// What the clients' own caches answer of their reads.
    fn client_hit_ratio(&self, stream: &Stream) -> Option<f64> {
        let ratio = stream.client_hits as f64 / stream.client_reads.max(1) as f64;
        self.client.map(|_| ratio)
    }

    /// The trace and its load in a line.
    fn describe(&self, stream: &Stream) -> String {
        let distinct = u64::from(stream.blocks()) * self.block.0;
        let mut text = format!(
            "{}: {} requests, {} references of clients, {} simulated, to {} of distinct blocks of {}",
            self.trace.display(),
            stream.requests,
            stream.before,
            stream.len(),
            ByteSize(distinct),
            self.block
        );
        if stream.one_in > 1 {
            text.push_str(&format!(" (one block of {})", stream.one_in));
        }
        if let Some(ratio) = self.client_hit_ratio(stream) {
            text.push_str(&format!("; clients' own caches hit {} %", percent(ratio)));
        }
        text
    }
}

/// A trace of which only a curve was made, in a line.
fn describe_estimate(load: &Load, estimate: &Estimate, stream: &Stream) -> String {
    let distinct = estimate.distinct.saturating_mul(load.block.0);
    format!(
        "{}: {} requests, {} references of clients, {} counted, to about {} of distinct blocks of {} \
         ({} of them looked at)",
        load.trace.display(),
        stream.requests,
        stream.before,
        estimate.references,
        ByteSize(distinct),
        load.block,
        estimate.samples
    )
}

/// A share in percent, as tables have it.
fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

/// Writes a page.
fn write_page(path: &std::path::Path, page: &report::Report) -> Result<()> {
    std::fs::write(path, page.render()).map_err(|e| Error::io(path.display(), e))
}

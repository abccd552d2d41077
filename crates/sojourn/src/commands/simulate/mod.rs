//! `sojourn simulate`: what a cache would do under the load of a trace, and what a disk and its
//! scheduler would.
//!
//! | module | verbs |
//! |---|---|
//! | [`cache`] | `cache`: policies and sizes |
//! | [`curve`] | `curve`: LRU at all sizes in one pass |
//! | [`tune`] | `tune`: the best policy for a size |
//! | [`disk`] | `disk`: schedulers on models of disks |
//! | [`profiles`] | `profiles`: the disks that there are models of |

mod cache;
mod curve;
mod disk;
mod profiles;
mod tune;

use super::runnable::{Invocation, Runnable, done};
use crate::commands::trace::Reading;
use crate::lists::Amounts;
use crate::output::{Output, visible};
use ::cache::PolicyKind;
use ::trace::Header;
use block::{ByteSize, Error, Result};
use clap::{Subcommand, ValueEnum};
use simulate::{Chunks, Estimate, Law, ReferenceOptions, ReferenceStream, Sharing};
use std::path::PathBuf;
use std::process::ExitCode;
use store::chunker::{MAX_PAGES, MEAN_PAGES, MIN_PAGES};

/// Hit ratios from fewer sampled blocks than this may be off by points.
const FEWEST: u32 = 2500;

/// What to find out.
#[derive(Debug, Subcommand)]
pub(crate) enum SimulateCommand {
    /// Hit ratios of policies at sizes
    Cache(cache::Args),
    /// The hit ratio of LRU at all sizes, in one pass
    Curve(curve::Args),
    /// The best policy for a size, blocks and division of memory, and what they are expected to save
    Tune(tune::Args),
    /// Disk schedulers under a load on models of disks, and which of them wins
    Disk(disk::Args),
    /// The disks that there are models of
    Profiles(profiles::Args),
}

impl Runnable for SimulateCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, invocation.output))
    }
}

/// Carries a verb out.
fn run(verb: &SimulateCommand, output: Output) -> Result<()> {
    match verb {
        SimulateCommand::Cache(args) => cache::run(args, output),
        SimulateCommand::Curve(args) => curve::run(args, output),
        SimulateCommand::Tune(args) => tune::run(args, output),
        SimulateCommand::Disk(args) => disk::run(args, output),
        SimulateCommand::Profiles(args) => profiles::run(args, output),
    }
}

/// The load: a trace, and how it reaches the cache.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CacheLoadArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// What is cached at a time: blocks of so many bytes, or `chunks` as a server of ours has them
    /// [default: chunks for a recording of such a server that nothing below speaks against, else 4K]
    #[arg(long, value_name = "SIZE|chunks", value_parser = block_of)]
    block: Option<Block>,
    /// The mean length of the chunks in the cache
    #[arg(long, value_name = "SIZE", default_value = "120K")]
    grain: ByteSize,
    /// Bytes of a request that count as one reference, to compare blocks of several sizes [default:
    /// the block]
    #[arg(long, value_name = "SIZE")]
    per: Option<ByteSize>,
    /// Cache writes too, not only reads
    #[arg(long)]
    writes: bool,
    /// Which blocks are the same: on disks made from one image, where the trace names it, until a disk
    /// writes them; on one disk for all its clients; on all disks until a client writes them; or none
    /// between clients
    #[arg(long, value_enum, default_value_t = Share::Base)]
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
    Base,
    Disk,
    Image,
    Private,
}

/// What is cached at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Bytes(u64),
    Chunks,
}

fn block_of(text: &str) -> Result<Block> {
    match text {
        "chunks" => Ok(Block::Chunks),
        _ => Ok(Block::Bytes(text.parse::<ByteSize>()?.0)),
    }
}

/// The chunks that our store cuts images into, as far as requests tell.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a grain below a block or above 1 GiB.
pub(crate) fn chunks(grain: u64) -> Result<Chunks> {
    Chunks::new(grain, Law { least: MIN_PAGES, mean: MEAN_PAGES, most: MAX_PAGES })
}

/// Reads a client's cache: the size stands last, as policies have parameters of their own.
fn client(text: &str) -> Result<(PolicyKind, u64)> {
    let (policy, size) = text.rsplit_once(':').unwrap_or(("lru", text));
    Ok((policy.parse()?, size.parse::<ByteSize>()?.0))
}

impl CacheLoadArgs {
    /// What is cached of a trace that says this.
    fn block(&self, header: &Header) -> Block {
        let recorded = header.disks.iter().any(|disk| !disk.base.is_empty());
        let plain = self.per.is_none() && self.client.is_none() && !self.writes;
        self.block.unwrap_or(match recorded && plain && self.share == Share::Base {
            true => Block::Chunks,
            false => Block::Bytes(block::BLOCK),
        })
    }

    /// How a trace that says this becomes references; only one block of `one_in` is kept.
    fn options(&self, header: &Header, one_in: u32) -> Result<ReferenceOptions> {
        let bytes = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        let sharing = match self.share {
            Share::Base => Sharing::Base,
            Share::Disk => Sharing::Disk,
            Share::Image => Sharing::Image,
            Share::Private => Sharing::Private,
        };
        let (size, chunks) = match self.block(header) {
            Block::Bytes(size) => (size, None),
            Block::Chunks => (block::BLOCK, Some(chunks(self.grain.0)?)),
        };
        let client = match self.client {
            Some((policy, room)) => Some((policy, blocks(room, size)?)),
            None => None,
        };
        let per = self.per.map(|per| bytes(per.0));
        let writes = self.writes;
        Ok(ReferenceOptions { block: bytes(size), chunks, per, writes, sharing, client, one_in })
    }

    /// The size of blocks, where nothing else is asked for.
    fn one_size(&self) -> Result<Vec<u64>> {
        match self.block {
            None => Ok(vec![block::BLOCK]),
            Some(Block::Bytes(size)) => Ok(vec![size]),
            Some(Block::Chunks) => {
                Err(Error::invalid("memory is divided for blocks, not chunks: give --block SIZE"))
            }
        }
    }

    /// What is read of a trace for blocks whose size is still to be chosen.
    fn options_of_blocks(&self, header: &Header) -> Result<ReferenceOptions> {
        let load = Self { block: Some(Block::Bytes(block::BLOCK)), ..self.clone() };
        load.options(header, 1)
    }

    /// Reads the trace; only one block of `one_in` goes into the stream.
    fn read(&self, one_in: u32) -> Result<ReferenceStream> {
        let mut source = self.reading.open(&self.trace)?;
        let options = self.options(source.header(), one_in)?;
        let stream = ReferenceStream::read(&mut *source, &options)?;
        if stream.is_empty() {
            return Err(self.nothing());
        }
        if stream.blocks() < FEWEST && one_in > 1 {
            tracing::warn!(
                blocks = stream.blocks(),
                one_in,
                points = off_by(stream.blocks()).round(),
                "the sample is small, hit ratios may be off by so many points; give a smaller --one-in"
            );
        }
        Ok(stream)
    }

    /// Reads the trace for its curve, looking at so many blocks at most.
    fn estimate(&self, samples: u32) -> Result<(Estimate, ReferenceStream)> {
        let mut source = self.reading.open(&self.trace)?;
        let options = self.options(source.header(), 1)?;
        let (estimate, stream) = Estimate::read(&mut *source, &options, samples)?;
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

    /// What the clients' own caches answer of their reads.
    fn client_hit_ratio(&self, stream: &ReferenceStream) -> Option<f64> {
        let ratio = stream.client_hits as f64 / stream.client_reads.max(1) as f64;
        self.client.map(|_| ratio)
    }

    /// What was cached.
    fn what(&self, stream: &ReferenceStream) -> String {
        let size = ByteSize(stream.block.into());
        match stream.block.is_power_of_two() {
            true => format!("blocks of {size}"),
            false => format!("chunks of {size} on average"),
        }
    }

    /// The trace and its load in a line.
    fn describe(&self, stream: &ReferenceStream) -> String {
        let distinct = u64::from(stream.blocks()) * u64::from(stream.block);
        let mut text = format!(
            "{}: {} requests, {} references of clients, {} simulated, to {} of distinct {}",
            visible(&self.trace.display().to_string()),
            stream.requests,
            stream.before,
            stream.len(),
            ByteSize(distinct),
            self.what(stream)
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

/// How many blocks fit in so many bytes.
fn blocks(size: u64, block: u64) -> Result<u32> {
    match u32::try_from(size / block.max(1)) {
        Ok(blocks) if blocks > 0 => Ok(blocks),
        _ => Err(Error::invalid(format!(
            "a cache of {} does not hold a block of {}, or more than 2^32 of them; give another size",
            ByteSize(size),
            ByteSize(block)
        ))),
    }
}

/// Sizes of a cache, each with the blocks that it holds, for a stream.
fn sizes(amounts: &Amounts, stream: &ReferenceStream) -> Result<Vec<(u64, u32)>> {
    let block = u64::from(stream.block);
    let whole = u64::from(stream.blocks()) * u64::from(stream.one_in) * block;
    amounts.of(whole, block).into_iter().map(|size| Ok((size, blocks(size, block)?))).collect()
}

/// A trace of which only a curve was made, in a line.
fn describe_estimate(
    load: &CacheLoadArgs,
    estimate: &Estimate,
    stream: &ReferenceStream,
) -> String {
    let distinct = estimate.distinct.saturating_mul(stream.block.into());
    format!(
        "{}: {} requests, {} references of clients, {} counted, to about {} of distinct {} \
         ({} of them looked at)",
        visible(&load.trace.display().to_string()),
        stream.requests,
        stream.before,
        estimate.references,
        ByteSize(distinct),
        load.what(stream),
        estimate.samples
    )
}

/// By how many points a hit ratio from so many sampled blocks may be off: twice the standard error of a share of
/// one half.
fn off_by(blocks: u32) -> f64 {
    100.0 / f64::from(blocks.max(1)).sqrt()
}

/// A share in percent, as tables have it.
fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

/// Writes a page.
pub(crate) fn write_page(path: &std::path::Path, page: &report::Report) -> Result<()> {
    std::fs::write(path, page.render()).map_err(|e| Error::io(path.display(), e))
}

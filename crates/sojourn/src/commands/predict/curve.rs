//! The hit ratios of a trace by size of the cache.

use super::load::{ClientRelation, Counter, TraceLoad};
use super::server::{Cached, Reads, TouchedChunks};
use super::{Args, Data};
use block::{Error, Result};
use model::predict::HitCurve;
use simulate::ServerLoad;
use std::path::Path;

/// The longest curve file that is read, in bytes.
const LONGEST: u64 = 16 << 20;
/// Caches of fewer entries than this say nothing.
const FEWEST: u64 = 16;

/// What a trace says of a server.
pub(super) struct TraceAnswers {
    pub(super) load: TraceLoad,
    /// The share of its reads that need nothing but the cache, by the cache's size.
    pub(super) curve: HitCurve,
    /// What the cache itself does; empty where the curve comes from a file.
    pub(super) cached: Vec<Cached>,
    /// The requests, where they are to be simulated.
    pub(super) requests: Option<ServerLoad>,
}

/// Reads the trace, for a server whose misses take so many seconds.
///
/// # Errors
/// Any error from the files.
pub(super) fn of(args: &Args, miss: f64) -> Result<TraceAnswers> {
    let mut source = args.reading.open(&args.trace)?;
    let mut counter = Counter::default();
    let mut keys = TouchedChunks::new(args.grain.0, args.data == Data::Private)?;
    let mut requests = args.served.simulate.then(|| ServerLoad::new(keys.cuts().clone()));
    let mut reads = Reads::default();
    let mut relation = ClientRelation::within(miss);
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        counter.take(&batch);
        if args.curve.is_some() {
            continue;
        }
        keys.learn(source.header());
        for request in &batch {
            let chunks = keys.of(request)?;
            if let Some(requests) = &mut requests {
                requests.push(request, chunks.unwrap_or_default())?;
            }
            if let Some(chunks) = chunks {
                relation.take(request, chunks);
                reads.push(chunks)?;
            }
        }
    }
    let mut load = counter.load(source.header());
    load.related = if source.header().times { relation.share() } else { 0.0 };
    if load.requests == 0 {
        return Err(Error::invalid(format!("{}: holds no requests", args.trace.display())));
    }
    if let Some(path) = &args.curve {
        return Ok(TraceAnswers { load, curve: read(path)?, cached: Vec::new(), requests: None });
    }
    let cached = reads.curve(args.policy, &sizes(args), args.grain.0, args.served.pieces.0);
    let points = cached.iter().map(|point| (point.size, point.answered)).collect();
    Ok(TraceAnswers { load, curve: HitCurve::new(points)?, cached, requests })
}

/// The sizes to simulate: those asked for and twice as much; where clients divide the cache among
/// them, also smaller ones.
fn sizes(args: &Args) -> Vec<u64> {
    let least = args.grain.0.saturating_mul(FEWEST);
    let mut sizes: Vec<u64> =
        args.memory.0.iter().flat_map(|size| [*size, size.saturating_mul(2)]).collect();
    if args.data == Data::Private {
        let halves = |size: &u64| std::iter::successors(Some(*size), |size| Some(size / 2));
        let smaller = args.memory.0.iter().flat_map(halves).take_while(|size| *size >= least);
        sizes.extend(smaller.collect::<Vec<_>>());
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Reads a file of sizes and hit ratios.
fn read(path: &Path) -> Result<HitCurve> {
    let io = |e| Error::io(path.display(), e);
    if std::fs::metadata(path).map_err(io)?.len() > LONGEST {
        return Err(Error::invalid(format!("{}: too long for a curve", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(io)?;
    HitCurve::parse(&text).map_err(|e| e.context(path.display()))
}

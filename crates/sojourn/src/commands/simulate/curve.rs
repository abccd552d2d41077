//! `sojourn simulate curve`: LRU at all sizes in one pass.

use super::{CacheLoadArgs, describe_estimate, percent, write_page};
use crate::lists::Amounts;
use crate::output::{Output, Table, raw};
use block::{ByteSize, Result};
use report::{Axis, Plot, Report, Series, Unit};
use serde::Serialize;
use simulate::{Curve, Estimate};
use std::path::PathBuf;

/// Amounts that are shown when none are given.
const POINTS: u64 = 24;

/// Arguments of `sojourn simulate curve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn simulate curve day.trace
  sojourn simulate curve huge.trace --one-in 100 --size 1G-64G
  zstdcat endless.csv.zst | sojourn simulate curve - --samples 8192
  sojourn simulate curve day.trace --csv > curve.csv
  sojourn predict --profile server.toml --trace day.trace --curve curve.csv --memory 1G

With --one-in N only one block of N is looked at: N times less memory, and a hit ratio that is
usually less than a hundredth off. With --samples N it is N blocks at most, however many the trace
touches: about 100 bytes of memory for each.")]
pub(crate) struct Args {
    #[command(flatten)]
    load: CacheLoadArgs,
    /// Amounts of the cache [default: steps up to all blocks of the trace]
    #[arg(long, value_name = "LIST")]
    size: Option<Amounts>,
    /// Look at one block of N only
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    one_in: u32,
    /// Look at so many blocks at most
    #[arg(long, value_name = "N", conflicts_with = "one_in")]
    samples: Option<u32>,
    /// Print lines of a size in bytes, a comma and a hit ratio
    #[arg(long)]
    csv: bool,
    /// Also write a page with a plot
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Point {
    bytes: u64,
    hit_ratio: f64,
}

#[derive(Debug, Serialize)]
struct CurveView {
    /// All references.
    references: u64,
    /// Distinct blocks of those that were looked at.
    blocks: u32,
    /// Distinct blocks of all, estimated from them.
    distinct_blocks: u64,
    /// Blocks for each one that was looked at.
    one_in: f64,
    points: Vec<Point>,
}

/// A curve, however it came about.
enum CurveLine {
    Whole(Curve),
    Bounded(Estimate),
}

impl CurveLine {
    fn hit_ratios(&self, sizes: &[u64]) -> Vec<f64> {
        match self {
            Self::Whole(curve) => curve.hit_ratios(sizes),
            Self::Bounded(estimate) => estimate.hit_ratios(sizes),
        }
    }

    fn view(&self, points: Vec<Point>) -> CurveView {
        match self {
            Self::Whole(curve) => CurveView {
                references: curve.references,
                blocks: curve.blocks,
                distinct_blocks: u64::from(curve.blocks) * u64::from(curve.one_in),
                one_in: f64::from(curve.one_in),
                points,
            },
            Self::Bounded(estimate) => CurveView {
                references: estimate.references,
                blocks: estimate.samples,
                distinct_blocks: estimate.distinct,
                one_in: 1.0 / estimate.rate,
                points,
            },
        }
    }
}

/// Computes the curve.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let (line, title, block) = match args.samples {
        None => {
            let stream = args.load.read(args.one_in)?;
            (
                CurveLine::Whole(Curve::of(&stream)),
                args.load.describe(&stream),
                u64::from(stream.block),
            )
        }
        Some(samples) => {
            let (estimate, stream) = args.load.estimate(samples)?;
            let title = describe_estimate(&args.load, &estimate, &stream);
            (CurveLine::Bounded(estimate), title, stream.block.into())
        }
    };
    let mut view = line.view(Vec::new());
    let sizes = match &args.size {
        Some(sizes) => sizes.of(view.distinct_blocks.saturating_mul(block), block),
        None => steps(view.distinct_blocks.saturating_mul(block), block),
    };
    let blocks: Vec<u64> = sizes.iter().map(|size| size / block).collect();
    let points = sizes.iter().zip(line.hit_ratios(&blocks));
    view.points = points.map(|(bytes, hit_ratio)| Point { bytes: *bytes, hit_ratio }).collect();
    if let Some(path) = &args.html {
        let line = view.points.iter().map(|point| (point.bytes as f64, point.hit_ratio * 100.0));
        let x = Axis::log("cache", Unit::Bytes);
        let plot = Plot::new("Hit ratio of LRU by size", x, Axis::new("hits", Unit::Percent));
        let page =
            Report::new("LRU curve").text(&title).plot(plot.series(Series::new("lru", line)));
        write_page(path, &page)?;
    }
    if args.csv {
        let line = |point: &Point| format!("{},{:.6}\n", point.bytes, point.hit_ratio);
        let text: String = view.points.iter().map(line).collect();
        return raw(format!("bytes,hit_ratio\n{text}").as_bytes());
    }
    output.print(&view, || {
        let mut table = Table::new(&[">size", ">hit %"]);
        for point in &view.points {
            table.row([ByteSize(point.bytes).to_string(), percent(point.hit_ratio)]);
        }
        format!("{title}\n\n{}", table.render())
    })
}

/// Amounts from small to all, each a half more or a third more than the one before: powers of two and
/// the middle between them.
fn steps(all: u64, block: u64) -> Vec<u64> {
    let top = all.max(block).checked_next_power_of_two().unwrap_or(1 << 63);
    let halves = (0..POINTS / 2).map(|step| top >> step);
    let mut sizes: Vec<u64> = halves.flat_map(|size| [size, size / 4 * 3]).collect();
    sizes.retain(|size| *size >= block);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

//! `sojourn simulate curve`: LRU at all sizes in one pass.

use super::{Load, percent, write_page};
use crate::lists::Sizes;
use crate::output::{Output, Table, raw};
use block::{ByteSize, Result};
use report::{Axis, Plot, Report, Series, Unit};
use serde::Serialize;
use simulate::Curve;
use std::path::PathBuf;

/// Sizes that are shown when none are given.
const POINTS: u64 = 24;

/// Arguments of `sojourn simulate curve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn simulate curve day.trace
  sojourn simulate curve huge.trace --one-in 100 --size 1G-64G
  sojourn simulate curve day.trace --csv > curve.csv
  sojourn predict --profile server.toml --trace day.trace --curve curve.csv --memory 1G

With --one-in N only one block of N is looked at: N times less memory, and a hit ratio that is
usually less than a hundredth off.")]
pub(crate) struct Args {
    #[command(flatten)]
    load: Load,
    /// Sizes of the cache [default: steps up to all blocks of the trace]
    #[arg(long, value_name = "LIST")]
    size: Option<Sizes>,
    /// Look at one block of N only
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    one_in: u32,
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
struct View {
    #[serde(flatten)]
    curve: Curve,
    points: Vec<Point>,
}

/// Computes the curve.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let stream = args.load.read(args.one_in)?;
    let title = args.load.describe(&stream);
    let curve = Curve::of(&stream);
    let all = u64::from(stream.blocks()).saturating_mul(u64::from(args.one_in)) * args.load.block.0;
    let sizes = match &args.size {
        Some(sizes) => sizes.0.clone(),
        None => steps(all, args.load.block.0),
    };
    let blocks: Vec<u64> = sizes.iter().map(|size| size / args.load.block.0).collect();
    let ratios = curve.hit_ratios(&blocks);
    let points = sizes.iter().zip(ratios);
    let points = points.map(|(bytes, hit_ratio)| Point { bytes: *bytes, hit_ratio }).collect();
    let view = View { curve, points };
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

/// Sizes from small to all, each a half more or a third more than the one before: powers of two and
/// the middle between them.
fn steps(all: u64, block: u64) -> Vec<u64> {
    let top = all.max(block).next_power_of_two();
    let halves = (0..POINTS / 2).map(|step| top >> step);
    let mut sizes: Vec<u64> = halves.flat_map(|size| [size, size / 4 * 3]).collect();
    sizes.retain(|size| *size >= block);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

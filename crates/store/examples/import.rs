//! Imports a file into a fresh store and prints what it cost.
//!
//! `cargo run --release -p store --example import -- FILE STORE_DIRECTORY`

#![allow(clippy::print_stdout, clippy::disallowed_methods)] // a tool, not the library

use block::{Device, Durability, Error, Extent, RandomFile, Result, Span, ZeroMode};
use std::fs::OpenOptions;
use std::time::Instant;
use store::{Store, World, import, testing, verify};

/// A file to read.
struct Source(RandomFile, u64);

#[async_trait::async_trait]
impl Device for Source {
    fn size(&self) -> u64 {
        self.1
    }
    fn read_only(&self) -> bool {
        true
    }
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.0.read(span.offset(), buf).await
    }
    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(Error::denied("read-only"))
    }
    async fn flush(&self) -> Result<()> {
        Ok(())
    }
    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(Error::denied("read-only"))
    }
    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(Error::denied("read-only"))
    }
    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.0.extents(span, limit)
    }
}

/// CPU seconds of this process, and its largest resident size in MiB.
fn usage() -> (f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let ticks = fields.get(11).unwrap_or(&0) + fields.get(12).unwrap_or(&0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    (ticks as f64 / 100.0, peak.unwrap_or(0) / 1024)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err(Error::invalid("usage: import FILE STORE_DIRECTORY"));
    };
    let file = RandomFile::open(file, OpenOptions::new().read(true))?;
    let size = file.len()?;
    let world: World = testing::world(1);
    let backend = objects::create_local(directory.as_str())?;
    let store = match Store::open(backend.clone(), world.clone()).await {
        Ok(store) => store,
        Err(_) => Store::create(backend, testing::settings(), world).await?,
    };
    let (before, start) = (usage().0, Instant::now());
    let session = store.session("example").await?;
    let done = import::from_device(&session, &Source(file, size), &()).await?;
    let (after, peak) = usage();
    println!("{:#?}", done.stats);
    let data = (done.stats.scanned - done.stats.zero) as f64 / 1e6;
    println!(
        "import: {data:.0} MB of data in {:.2} s, {:.2} CPU s: {:.0} MB per CPU s; peak {peak} MiB",
        start.elapsed().as_secs_f64(),
        after - before,
        data / (after - before)
    );
    let (before, start) = (usage().0, Instant::now());
    let report = verify::manifest(&store, &done.manifest, &()).await?;
    println!(
        "verify: {} chunks, {} damaged in {:.2} s, {:.2} CPU s",
        report.chunks,
        report.damaged.len(),
        start.elapsed().as_secs_f64(),
        usage().0 - before
    );
    Ok(())
}

//! Imports a large sparse image into a fresh store, removes it, collects the garbage, and prints what
//! that took of memory.
//!
//! `cargo run --release -p store --example store_memory -- STORE_DIRECTORY [GIB_OF_DATA]`: the image has five
//! times as much room as data (100 GiB and 20 GiB unless told otherwise). No two of its pages are
//! alike, but all compress well, so that the store stays small and has as many chunks as a real one.

#![allow(clippy::print_stdout)] // a tool, not the library

use block::{Device, Durability, Error, Extent, ExtentKind, Result, Span, ZeroMode};
use std::collections::BTreeMap;
use std::time::Duration;
use store::gc::{GcOptions, collect};
use store::{RefBody, RefKind, Settings, Store, import, testing};

/// Every fifth of these has data.
const STRIPE: u64 = 64 << 20;
const PAGE: u64 = 4096;

struct Synthetic {
    size: u64,
}

#[async_trait::async_trait]
impl Device for Synthetic {
    fn size(&self) -> u64 {
        self.size
    }
    fn read_only(&self) -> bool {
        true
    }
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        for (number, page) in buf.chunks_mut(PAGE as usize).enumerate() {
            let at = span.offset() + number as u64 * PAGE;
            if (at / STRIPE).is_multiple_of(5) {
                // Spread, so that pages end chunks as often as random ones do.
                let word = (at / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                page.iter_mut().zip(word.to_le_bytes()).for_each(|(byte, value)| *byte = value);
            }
        }
        Ok(())
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
        let mut extents = Vec::new();
        let mut at = span.offset();
        while at < span.end() && extents.len() < limit {
            let end = (at / STRIPE + 1) * STRIPE;
            let end = end.min(span.end());
            let data = (at / STRIPE).is_multiple_of(5);
            let kind = if data { ExtentKind::Data } else { ExtentKind::Hole };
            extents.push(Extent { span: Span::between(at, end), kind });
            at = end;
        }
        Ok(extents)
    }
}

/// The largest resident size of this process in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(directory) = arguments.next() else {
        return Err(Error::invalid("usage: memory STORE_DIRECTORY [GIB_OF_DATA]"));
    };
    let data: u64 = match arguments.next() {
        Some(text) => text.parse().map_err(|_| Error::invalid("not a number of GiB"))?,
        None => 20,
    };
    let settings = Settings::generate(&testing::FixedEntropy::new(1))?;
    let world = testing::world(1);
    let store = Store::create(objects::create_local(directory.as_str())?, settings, world).await?;
    let session = store.session("example").await?;
    let device = Synthetic { size: 5 * (data << 30) };
    let done = import::from_device(&session, &device, &()).await?;
    let body = RefBody {
        manifest: Some(done.manifest),
        size: done.size,
        created: 0,
        labels: BTreeMap::new(),
    };
    let made = session.publish(RefKind::Image, "large:1", body).await;
    let made = session.close(made).await?;
    println!("import: {} chunks, peak {} MiB", done.stats.new_chunks, peak());
    let again = store.session("example").await?;
    let repeated = import::from_device(&again, &device, &()).await;
    let repeated = again.close(repeated).await?;
    println!("import again: {} chunks known, peak {} MiB", repeated.stats.reused_chunks, peak());
    // In use, then garbage.
    let options = GcOptions { grace: Duration::ZERO, ..GcOptions::default() };
    let report = collect(&store, &options, &()).await?;
    println!("collection: {} chunks in use, peak {} MiB", report.live.chunks, peak());
    store.refs().remove(RefKind::Image, "large:1", made.sequence).await?;
    let report = collect(&store, &options, &()).await?;
    println!("collection: {} objects freed, peak {} MiB", report.freed.objects, peak());
    Ok(())
}

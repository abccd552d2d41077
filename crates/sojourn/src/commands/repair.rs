//! `sojourn repair`: what is missing or damaged comes from elsewhere, by hash.

use super::runnable::{Invocation, Runnable, writes};
use super::verify::describe;
use crate::output::Output;
use crate::progress::Bar;
use crate::remote;
use crate::stores;
use async_trait::async_trait;
use block::{Device, Error, Result};
use bytes::Bytes;
use engine::Config;
use engine::Home;
use engine::StoreUse;
use engine::sources::{self, SourcePlace};
use lookaside::ChunkSource;
use std::process::ExitCode;
use std::sync::Arc;
use store::repair::{ChunkLookup, RepairReport, RepairSource};
use store::{ChunkId, ChunkRef, MapId, Settings, Store};

/// Arguments of `sojourn repair`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn repair --from /mnt/backup/store            a copy of the store
  sojourn repair --from s3://bucket/store --dry-run  only say what it could heal
  sojourn repair --from golden.qcow2 --from /dev/sdb
  sojourn repair --from /media/usb                   a medium, or a tree that was indexed
  sojourn repair                                     keep what is sound of damaged packs

Everything is verified before it is written. From an image or a device come the chunks that are in
it, wherever they stand; media and a store with the same key also give maps and boot lists. What
nobody has stays broken and is named with those whom it touches; the exit code is 7 then. Import
the image again, and repair once more.")]
pub(crate) struct Args {
    /// A store (a directory or URL), a medium, an indexed tree, an image file, a block device, an nbd://
    /// or nbds:// URI; may be repeated
    #[arg(long, value_name = "PLACE")]
    pub(crate) from: Vec<String>,
    /// Write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        writes(run(self, &invocation.home()?, invocation.output))
    }
}

/// Repairs.
async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let config = Config::of(home)?;
    let store = stores::open_for(home, &config, StoreUse::Inspection).await?;
    let mut from = Vec::with_capacity(args.from.len());
    for place in &args.from {
        from.push(source(place, &store, home, &config).await?);
    }
    let bar = Bar::bytes("repairing", None);
    let report = store::repair::store(&store, &from, args.dry_run, &bar).await?;
    drop(bar);
    output.print(&report, || text(&report))?;
    match report.left.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(Error::corrupt(format!(
            "{} of the store's objects {} missing or damaged ({}); look for another source, or \
             import the images again and repair once more",
            report.left.len(),
            if args.dry_run { "would stay" } else { "are still" },
            first.object
        ))),
    }
}

async fn source(place: &str, store: &Store, home: &Home, config: &Config) -> Result<RepairSource> {
    let device: Arc<dyn Device> = match SourcePlace::of(place)? {
        SourcePlace::Store(place) => {
            return Ok(RepairSource::Store(sources::open(&place, home, config).await?));
        }
        SourcePlace::Export(uri) => Arc::new(remote::connect(&uri.parse()?).await?),
        SourcePlace::Image(path) => sources::open_image(home, &path).await?,
        indexed => {
            let settings = store.settings().clone();
            let source = sources::chunk_source(&indexed, &settings, home).await?;
            return Ok(RepairSource::Chunks(Arc::new(SourceLookup { source, settings })));
        }
    };
    Ok(RepairSource::Device { name: place.to_owned(), device })
}

/// A medium or an indexed tree, as a repair asks it.
struct SourceLookup {
    source: Arc<dyn ChunkSource>,
    settings: Settings,
}

#[async_trait]
impl ChunkLookup for SourceLookup {
    fn claims(&self, id: &ChunkId) -> bool {
        self.source.claims(id)
    }

    async fn read(&self, at: &ChunkRef) -> Result<Bytes> {
        self.source.chunk(at).await?.verify(&self.settings, at)
    }

    async fn map(&self, id: &MapId) -> Option<Bytes> {
        self.source.claims_map(id)?;
        self.source.map(id).await.ok()
    }
}

fn text(report: &RepairReport) -> String {
    let mut text = String::new();
    for newer in &report.newer_packs {
        text.push_str(&format!("packs/{}: left as it is: {}\n", newer.pack, newer.why));
    }
    let copies = report.boot_copies.iter().chain(&report.dropped_boot_copies);
    if report.found.is_empty() && copies.count() == 0 {
        text.push_str(match report.newer_packs.as_slice() {
            [] => "nothing is missing or damaged\n",
            _ => "nothing else is missing or damaged\n",
        });
        return text;
    }
    let would = if report.dry_run { "would be " } else { "" };
    text.push_str(&format!("{} objects were missing or damaged\n", report.found.len()));
    for key in &report.restored {
        text.push_str(&format!("{key}: {would}restored\n"));
    }
    for rewritten in &report.rewritten {
        text.push_str(&format!(
            "packs/{}: what is left of it is in {} new packs\n",
            rewritten.pack,
            rewritten.into.len()
        ));
    }
    for image in &report.boot_copies {
        text.push_str(&format!("image {image}: its boot copy was made anew\n"));
    }
    for image in &report.dropped_boot_copies {
        text.push_str(&format!(
            "image {image}: its boot copy was of no use, and no boot list says how to make it anew\n"
        ));
    }
    text.push_str(&format!(
        "{} chunks {would}healed, {} lost\n",
        report.healed_chunks, report.lost_chunks
    ));
    for fault in &report.left {
        text.push_str(&describe(fault));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::repair::NewerPack;

    #[test]
    fn a_pack_of_a_newer_format_is_named_and_is_no_damage() {
        let pack = "ab".repeat(32).parse().unwrap();
        let why = "it has format version 9".to_owned();
        let mut report = RepairReport::default();
        assert_eq!(text(&report), "nothing is missing or damaged\n");
        report.newer_packs.push(NewerPack { pack, why });
        let named = text(&report);
        assert!(named.contains(&"ab".repeat(32)) && named.contains("format version 9"), "{named}");
        assert!(named.ends_with("nothing else is missing or damaged\n"), "{named}");
    }
}

//! `sojourn media`: what answers chunks in place of the store.

use crate::output::{Output, Table};
use crate::progress::Bar;
use crate::stores;
use block::{ByteSize, Error, ErrorKind, Result, offload};
use clap::Subcommand;
use engine::{Config, Home, sources};
use lookaside::media::{self, MediaImage, MediaListing, MediaWriteReport, RecordKind};
use serde::Serialize;
use std::path::PathBuf;
use store::{ImageName, RefKind, Store, images};

/// The verbs of `sojourn media`.
#[derive(Debug, Subcommand)]
pub(crate) enum Media {
    /// Put images and disks onto a medium
    #[command(after_help = "\
Examples:
  sojourn media write /media/usb debian alice        the newest debian, and alice's published state
  sojourn media write /media/usb debian --size 4GiB  what matters most of it
  sojourn media write /media/usb --refresh           all that is on it, as it is now

Boot lists of all go first, then the rest of each in image order, as far as there is room. What is
on the medium is not written again; what nothing on it needs any more is deleted. The medium may be
pulled out at any time: the same command goes on.")]
    Write(WriteArgs),
    /// What is on a medium
    #[command(after_help = "\
Examples:
  sojourn media list /media/usb
  sojourn --json media list /media/usb | jq '.[].present'")]
    List(Place),
    /// Read all of a medium and check it
    #[command(after_help = "\
Examples:
  sojourn media verify /media/usb
  sojourn media verify /media/usb --drop-damaged     then write again what was lost

A damaged medium gives no wrong byte, and takes time for nothing. Exit code 7 when it is damaged.")]
    Verify(VerifyArgs),
    /// Index a directory tree or an image file by content, so that it can be a source
    #[command(after_help = "\
Examples:
  sojourn media index /usr
  sojourn media index old-debian.qcow2
  sojourn serve --source /usr --source old-debian.qcow2

The index is kept in the home; what did not change since the last time is not read again. It holds
for a file while its size and its time of change are the same.")]
    Index(IndexArgs),
    /// Take an image or a disk off a medium
    #[command(after_help = "\
Examples:
  sojourn media remove /media/usb debian

With the last one nothing of sojourn is left on the medium.")]
    Remove(RemoveArgs),
}

/// Arguments of `sojourn media write`.
#[derive(Debug, clap::Args)]
pub(crate) struct WriteArgs {
    /// A directory: a mounted key or disk
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Images, with or without a version, and disks
    #[arg(value_name = "NAME", required_unless_present = "refresh")]
    names: Vec<String>,
    /// The most that everything of sojourn on it may take [default: all the room there is]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Write all that is on it as it is now
    #[arg(long)]
    refresh: bool,
}

/// Arguments of `sojourn media list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// The directory that was written to
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Arguments of `sojourn media verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The directory that was written to
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Delete damaged files
    #[arg(long)]
    drop_damaged: bool,
}

/// Arguments of `sojourn media index`.
#[derive(Debug, clap::Args)]
pub(crate) struct IndexArgs {
    /// A directory, an image file or a block device
    #[arg(value_name = "PATH")]
    path: String,
}

/// Arguments of `sojourn media remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The directory that was written to
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// As `media list` shows it
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) async fn run(verb: &Media, home: &Home, output: Output) -> Result<()> {
    let config = Config::of(home)?;
    let store = stores::open(home, &config).await?;
    match verb {
        Media::Write(args) => write(args, &store, output).await,
        Media::List(place) => list(place, &store, output).await,
        Media::Verify(args) => verify(args, &store, output).await,
        Media::Index(args) => index(args, &store, home, output).await,
        Media::Remove(args) => remove(args, &store, output).await,
    }
}

async fn write(args: &WriteArgs, store: &Store, output: Output) -> Result<()> {
    let mut names = args.names.clone();
    if args.refresh {
        let there = listing(args.dir.clone(), store).await?;
        names.extend(there.into_iter().map(|listing| listing.record.name));
    }
    names.sort();
    names.dedup();
    let mut images = Vec::with_capacity(names.len());
    for name in &names {
        match resolve(store, name).await {
            Ok(image) => images.push(image),
            // What was removed since stays on the medium until it is taken off.
            Err(e) if e.kind() == ErrorKind::NotFound && !args.names.contains(name) => {
                tracing::warn!(name, error = %e, "not refreshed");
            }
            Err(e) => return Err(e),
        }
    }
    let size = args.size.map(|size| size.0);
    let bar = Bar::bytes("writing", None);
    let report = media::write(store, &args.dir, &images, size, &bar).await?;
    drop(bar);
    output.print(&report, || described(&report))
}

/// The image or disk of a name.
async fn resolve(store: &Store, name: &str) -> Result<MediaImage> {
    let image: ImageName = name.parse()?;
    match images::resolve(store, &image).await {
        Ok(found) => {
            return Ok(MediaImage {
                name: name.to_owned(),
                kind: RecordKind::Image,
                manifest: images::manifest_of(&found)?,
                boot_list: found.body.boot_list().ok().flatten(),
                version: found.name,
            });
        }
        Err(e) if e.kind() == ErrorKind::NotFound && image.tag.is_none() => {}
        Err(e) => return Err(e),
    }
    let found = store.refs().get(RefKind::Disk, name).await?.ok_or_else(|| {
        Error::not_found(format!(
            "there is no image and no disk called {name}; see `sojourn image list` and \
             `sojourn disk list`"
        ))
    })?;
    let manifest = found.body.manifest.ok_or_else(|| {
        Error::not_found(format!("disk {name} has no published state yet; take a snapshot of it"))
    })?;
    // Its image's boots are its own.
    let base = match found.body.labels.get("image").map(|image| image.parse()) {
        Some(Ok(image)) => images::resolve(store, &image).await.ok(),
        _ => None,
    };
    Ok(MediaImage {
        name: name.to_owned(),
        kind: RecordKind::Disk,
        version: name.to_owned(),
        manifest,
        boot_list: base.and_then(|base| base.body.boot_list().ok().flatten()),
    })
}

fn described(report: &MediaWriteReport) -> String {
    let mut text = format!(
        "{} written in {} chunks, {} were there, {} freed; {} used\n",
        ByteSize(report.written_bytes),
        report.written_chunks,
        ByteSize(report.kept_bytes),
        ByteSize(report.freed_bytes),
        ByteSize(report.used_bytes)
    );
    for image in &report.images {
        let state = match (image.missing_bytes, image.boot_chunks) {
            (0, _) => "all of it".to_owned(),
            (missing, 0) => format!(
                "{} of {} chunks; {} did not fit",
                image.present,
                image.chunks,
                ByteSize(missing)
            ),
            (missing, boot) => format!(
                "{} of {} chunks, {} of the {boot} that a boot reads; {} did not fit",
                image.present,
                image.chunks,
                image.boot_present,
                ByteSize(missing)
            ),
        };
        text.push_str(&format!("{}: {state}\n", image.version));
    }
    text
}

async fn listing(dir: PathBuf, store: &Store) -> Result<Vec<MediaListing>> {
    let settings = store.settings().clone();
    offload(move || Ok(media::Media::open(&settings, &dir)?.list())).await
}

async fn list(place: &Place, store: &Store, output: Output) -> Result<()> {
    let listed = listing(place.dir.clone(), store).await?;
    output.print(&listed, || {
        let mut table =
            Table::new(&["NAME", "KIND", "VERSION", ">SIZE", ">CHUNKS", ">THERE", ">BOOT"]);
        for one in &listed {
            let record = &one.record;
            table.row([
                record.name.clone(),
                record.kind.to_string(),
                record.version.clone(),
                ByteSize(record.size).to_string(),
                one.chunks.to_string(),
                one.present.to_string(),
                format!("{}/{}", one.boot_present, record.boot_chunks),
            ]);
        }
        table.render()
    })
}

async fn verify(args: &VerifyArgs, store: &Store, output: Output) -> Result<()> {
    let bar = Bar::bytes("verifying", None);
    let report = media::verify(store.settings(), &args.dir, args.drop_damaged, &bar).await?;
    drop(bar);
    output.print(&report, || {
        let mut text = format!(
            "{} chunks in {} packs, {}; {} chunks are damaged\n",
            report.chunks,
            report.packs,
            ByteSize(report.bytes),
            report.damaged_chunks
        );
        for file in &report.damaged {
            let what = if report.dropped { "deleted" } else { "damaged" };
            text.push_str(&format!("{file}: {what}\n"));
        }
        text
    })?;
    match report.damaged.as_slice() {
        [] => Ok(()),
        _ if report.dropped => Ok(()),
        [first, ..] => Err(Error::corrupt(format!(
            "{} files of the medium are damaged ({first}); drop them with --drop-damaged and write \
             again",
            report.damaged.len()
        ))),
    }
}

async fn index(args: &IndexArgs, store: &Store, home: &Home, output: Output) -> Result<()> {
    let bar = Bar::bytes("indexing", None);
    let report = sources::index(&args.path, store.settings(), home, &bar).await?;
    drop(bar);
    output.print(&report, || {
        format!(
            "{} in {} files read, {} files as before, {} left out; {} chunks",
            ByteSize(report.read_bytes),
            report.read_files,
            report.kept_files,
            report.skipped,
            report.chunks
        )
    })
}

async fn remove(args: &RemoveArgs, store: &Store, output: Output) -> Result<()> {
    #[derive(Serialize)]
    struct Removed {
        freed_bytes: u64,
    }
    let (settings, dir, name) = (store.settings().clone(), args.dir.clone(), args.name.clone());
    let freed_bytes = offload(move || media::remove(&settings, &dir, &name)).await?;
    output.print(&Removed { freed_bytes }, || {
        format!("{} was taken off; {} freed", args.name, ByteSize(freed_bytes))
    })
}

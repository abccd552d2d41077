//! `sojourn media`: what answers chunks in place of the store.

mod remote;

use super::runnable::{Invocation, Runnable, finish};
use crate::output::{Output, Table};
use crate::progress::Bar;
use crate::stores;
use block::{ByteSize, Error, ErrorKind, Result, offload};
use cache::{Cache, PolicyKind};
use clap::Subcommand;
use disk::{LoadOptions, Loader};
use engine::{Config, Home, sources};
use lookaside::media::{
    self, MediaImage, MediaListing, MediaVerifyReport, MediaWriteReport, RecordKind,
};
use lookaside::tree::IndexReport;
use serde::{Deserialize, Serialize};
use server::remote::RemoteServer;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use store::{RefKind, Store, images};
use vm::Parcel;

/// Memory for the beginning of a machine's memory image, in bytes.
const SCRATCH: u64 = 16 << 20;

/// The verbs of `sojourn media`.
#[derive(Debug, Subcommand)]
pub(crate) enum MediaCommand {
    /// Put images, disks and suspended machines onto a medium
    #[command(after_help = "\
Examples:
  sojourn media write /media/usb debian alice        the newest debian, and alice's published state
  sojourn media write /media/usb debian --size 4GiB  what matters most of it
  sojourn media write /media/usb work                machine work as it was suspended last; work@5
  sojourn media write /media/usb --refresh           all that is on it, as it is now

Maps of all go first, then what boots and resumes read first, then the rest of each, as far as there
is room. What is on the medium is not written again; what nothing on it needs any more is deleted.
The medium may be pulled out at any time: the same command goes on.")]
    Write(WriteArgs),
    /// What is on a medium
    #[command(after_help = "\
Examples:
  sojourn media list /media/usb
  sojourn --json media list /media/usb | jq '.[].present'")]
    List(MediaListArgs),
    /// Read all of a medium and check it
    #[command(after_help = "\
Examples:
  sojourn media verify /media/usb
  sojourn media verify /media/usb --drop-damaged     then write again what was lost

A damaged medium gives no wrong byte, and takes time for nothing. Exit code 7 when it is damaged, 6
when some of it cannot be read now; what cannot be read is not dropped.")]
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
    /// Take an image, a disk or a machine off a medium
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
    /// Images, with or without a version, disks, and machines, with or without a parcel's number
    #[arg(value_name = "NAME", required_unless_present = "refresh")]
    names: Vec<String>,
    /// The most that everything of sojourn on it may take, in whole clusters of its file system
    /// [default: all the room there is]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Write all that is on it as it is now
    #[arg(long)]
    refresh: bool,
    /// With --server: make a medium of a directory that is none. Without it such a directory is taken for the place of one
    /// that is not mounted. On this machine one is made without being asked for
    #[arg(long)]
    make: bool,
}

/// Arguments of `sojourn media list`.
#[derive(Debug, clap::Args)]
pub(crate) struct MediaListArgs {
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
    /// The name that `media list` shows
    #[arg(value_name = "NAME")]
    name: String,
}

impl Runnable for MediaCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        finish(remote::run(self, &server, output))
    }
}

async fn run(verb: &MediaCommand, home: &Home, output: Output) -> Result<()> {
    let config = Config::of(home)?;
    let store = stores::open(home, &config).await?;
    match verb {
        MediaCommand::Write(args) => write(args, &store, output).await,
        MediaCommand::List(place) => list(place, &store, output).await,
        MediaCommand::Verify(args) => verify(args, &store, output).await,
        MediaCommand::Index(args) => index(args, &store, home, output).await,
        MediaCommand::Remove(args) => remove(args, &store, output).await,
    }
}

async fn write(args: &WriteArgs, store: &Store, output: Output) -> Result<()> {
    let mut images = Vec::new();
    for name in args.names.iter().collect::<BTreeSet<_>>() {
        images.extend(resolve(store, name).await?);
    }
    if args.refresh {
        for MediaListing { record, .. } in listing(args.dir.clone(), store).await? {
            let named = |image: &MediaImage| image.name == record.name && image.kind == record.kind;
            if images.iter().any(named) {
                continue;
            }
            match find(store, record.kind, &record.name).await {
                Ok(Some(image)) => images.push(image),
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                // What was removed since stays on the medium until it is taken off.
                _ => tracing::warn!(name = record.name, "it is gone, and not refreshed"),
            }
        }
    }
    let size = args.size.map(|size| size.0);
    let bar = Bar::bytes("writing", None);
    let report = media::write(store, &args.dir, &images, size, &bar).await?;
    drop(bar);
    output.print(&report, || described(&report))
}

/// The image of a name, or the disk and the machine, which may have the same one.
async fn resolve(store: &Store, name: &str) -> Result<Vec<MediaImage>> {
    if let Some(image) = find(store, RecordKind::Image, name).await? {
        return Ok(vec![image]);
    }
    let (mut found, mut unpublished) = (Vec::new(), None);
    for kind in [RecordKind::Disk, RecordKind::Machine] {
        match find(store, kind, name).await {
            // A disk without a published state; a machine may be called the same.
            Err(e) if kind == RecordKind::Disk && e.kind() == ErrorKind::NotFound => {
                unpublished = Some(e);
            }
            one => found.extend(one?),
        }
    }
    match found.is_empty() {
        false => Ok(found),
        true => Err(unpublished.unwrap_or_else(|| {
            Error::not_found(format!(
                "there is no image, no disk and no suspended machine called {name}; see `sojourn image list`, \
                 `sojourn disk list` and `sojourn vm list`"
            ))
        })),
    }
}

/// What has a name, if there is one of this kind.
async fn find(store: &Store, kind: RecordKind, name: &str) -> Result<Option<MediaImage>> {
    match kind {
        // A parcel's name is none of an image or a disk.
        RecordKind::Image | RecordKind::Disk if name.contains('@') => Ok(None),
        RecordKind::Image => image(store, name).await,
        RecordKind::Disk => disk(store, name).await,
        RecordKind::Machine => machine(store, name).await,
    }
}

async fn image(store: &Store, name: &str) -> Result<Option<MediaImage>> {
    let found = match images::resolve(store, &name.parse()?).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    Ok(Some(MediaImage {
        name: name.to_owned(),
        kind: RecordKind::Image,
        manifest: images::manifest_of(&found)?,
        disk: None,
        boot_list: found.body.boot_list().ok().flatten(),
        boot_copy: found.body.boot_copy().ok().flatten(),
        first: Vec::new(),
        version: found.name,
    }))
}

/// A disk, as it was published last.
async fn disk(store: &Store, name: &str) -> Result<Option<MediaImage>> {
    if name.contains(':') {
        return Ok(None);
    }
    let Some(found) = store.refs().get(RefKind::Disk, name).await? else { return Ok(None) };
    let manifest = found.body.manifest.ok_or_else(|| {
        Error::not_found(format!("disk {name} has no published state yet; take a snapshot of it"))
    })?;
    // Its image's boots are its own.
    let base = match found.body.labels.get("image").map(|image| image.parse()) {
        Some(Ok(image)) => images::resolve(store, &image).await.ok(),
        _ => None,
    };
    let base = base.as_ref().map(|base| &base.body);
    Ok(Some(MediaImage {
        name: name.to_owned(),
        kind: RecordKind::Disk,
        version: name.to_owned(),
        manifest,
        disk: None,
        boot_list: base.and_then(|base| base.boot_list().ok().flatten()),
        boot_copy: base.and_then(|base| base.boot_copy().ok().flatten()),
        first: Vec::new(),
    }))
}

/// A suspended machine: its memory, with the state of its devices, and its disk.
async fn machine(store: &Store, name: &str) -> Result<Option<MediaImage>> {
    if name.contains(':') {
        return Ok(None);
    }
    let parcel = match Parcel::find(store, name).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let config = cache::Config { capacity: SCRATCH, policy: PolicyKind::default(), seed: 0 };
    let cache = Arc::new(Cache::new(config));
    let loader = Loader::new(store.clone(), cache, LoadOptions::default());
    let first = parcel.image(store, &loader).await?.first_chunks().await?;
    Ok(Some(MediaImage {
        name: name.to_owned(),
        kind: RecordKind::Machine,
        version: parcel.name(),
        manifest: parcel.memory,
        disk: Some(parcel.disk),
        boot_list: None,
        boot_copy: None,
        first,
    }))
}

fn described(report: &MediaWriteReport) -> String {
    let mut text = format!(
        "{} written in {} chunks and {} maps, {} were there, {} freed; {} used\n",
        ByteSize(report.written_bytes),
        report.written_chunks,
        report.written_maps,
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
                "{} of {} chunks, {} of the {boot} that come first; {} did not fit",
                image.present,
                image.chunks,
                image.boot_present,
                ByteSize(missing)
            ),
        };
        text.push_str(&format!("{}: {state}\n", image.version));
    }
    for error in &report.unreadable {
        text.push_str(&format!("cannot be read, and counts as missing: {error}\n"));
    }
    text
}

async fn listing(dir: PathBuf, store: &Store) -> Result<Vec<MediaListing>> {
    let settings = store.settings().clone();
    offload(move || Ok(media::Media::open(&settings, &dir)?.list())).await
}

async fn list(place: &MediaListArgs, store: &Store, output: Output) -> Result<()> {
    print_list(&listing(place.dir.clone(), store).await?, output)
}

fn print_list(listed: &[MediaListing], output: Output) -> Result<()> {
    output.print(&listed, || {
        let mut table = Table::new(&[
            "NAME", "KIND", "VERSION", ">SIZE", ">CHUNKS", ">THERE", ">FIRST", ">MAPS",
        ]);
        for one in listed {
            let record = &one.record;
            table.row([
                record.name.clone(),
                record.kind.to_string(),
                record.version.clone(),
                ByteSize(record.size).to_string(),
                one.chunks.to_string(),
                one.present.to_string(),
                format!("{}/{}", one.boot_present, record.boot_chunks),
                format!("{}/{}", one.maps_present, one.maps),
            ]);
        }
        table.render()
    })
}

async fn verify(args: &VerifyArgs, store: &Store, output: Output) -> Result<()> {
    let bar = Bar::bytes("verifying", None);
    let report = media::verify(store.settings(), &args.dir, args.drop_damaged, &bar).await?;
    drop(bar);
    print_verified(&report, output)
}

fn print_verified(report: &MediaVerifyReport, output: Output) -> Result<()> {
    output.print(report, || {
        let mut text = format!(
            "{} chunks in {} packs and {} maps, {}; {} chunks and {} maps are damaged\n",
            report.chunks,
            report.packs,
            report.maps,
            ByteSize(report.bytes),
            report.damaged_chunks,
            report.damaged_maps
        );
        for file in &report.damaged {
            let what = if report.dropped { "deleted" } else { "damaged" };
            text.push_str(&format!("{file}: {what}\n"));
        }
        for error in &report.unreadable {
            text.push_str(&format!("cannot be read: {error}\n"));
        }
        text
    })?;
    match (report.damaged.as_slice(), report.unreadable.as_slice()) {
        ([first, ..], _) if !report.dropped => Err(Error::corrupt(format!(
            "{} files of the medium are damaged ({first}); drop them with --drop-damaged and write \
             again",
            report.damaged.len()
        ))),
        (_, [first, ..]) => Err(Error::unavailable(format!(
            "{} files of the medium cannot be read now ({first}); if it stays so, delete them and write again",
            report.unreadable.len()
        ))),
        _ => Ok(()),
    }
}

async fn index(args: &IndexArgs, store: &Store, home: &Home, output: Output) -> Result<()> {
    let bar = Bar::bytes("indexing", None);
    let report = sources::index(&args.path, store.settings(), home, &bar).await?;
    drop(bar);
    print_indexed(&report, output)
}

fn print_indexed(report: &IndexReport, output: Output) -> Result<()> {
    output.print(report, || {
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

/// What came of taking something off.
#[derive(Debug, Serialize, Deserialize)]
struct TakenOff {
    freed_bytes: u64,
}

async fn remove(args: &RemoveArgs, store: &Store, output: Output) -> Result<()> {
    let (settings, dir, name) = (store.settings().clone(), args.dir.clone(), args.name.clone());
    let freed_bytes = offload(move || media::remove(&settings, &dir, &name)).await?;
    print_taken_off(&args.name, &TakenOff { freed_bytes }, output)
}

fn print_taken_off(name: &str, taken: &TakenOff, output: Output) -> Result<()> {
    output.print(taken, || format!("{name} was taken off; {} freed", ByteSize(taken.freed_bytes)))
}

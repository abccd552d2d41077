//! `sojourn image`: golden images and their versions.

mod arguments;
mod boot;
mod boot_list;
mod export;
mod import;
pub(super) mod target;

use self::arguments::{ExportArgs, ImportArgs};
use self::boot::BootCommand;
use self::boot_list::BootListCommand;
use super::prune::Retain;
use super::runnable::{Invocation, Runnable, writes};
use crate::output::{Output, Table, fields, moment};
use crate::progress::Bar;
use crate::stores;
use block::{ByteSize, Error, Result};
use clap::Subcommand;
use engine::api::ImageView;
use engine::image_verbs::{self, InUse, PruneView};
use engine::image_views::{self, ImageDetails};
use engine::{Config, Home, sources};
use serde::Serialize;
use server::remote::RemoteServer;
use std::process::ExitCode;
use store::verify::ImageVerifyReport;
use store::{Store, images};

/// The verbs of `sojourn image`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Bring an image into the store as a new version
    #[command(after_help = "\
Examples:
  sojourn image import golden.raw debian            next number as the tag: debian:1, debian:2, …
  sojourn image import golden.qcow2 debian:stable   a tag of your own
  zcat golden.raw.gz | sojourn image import - debian
  sojourn image import new.raw debian --boot-list debian:1   what boots read is as it was
  sojourn image import nbd://127.0.0.1/disk debian

Nothing becomes visible before all of it is stored. An import that was interrupted is repeated
with the same command; what it had stored is not stored again.

Compressed files are refused, and on stdin all but raw images; --format raw says that a disk does
begin as they do.

With --server the image is read on this machine and sent, raw, to the server's store.")]
    Import(ImportArgs),
    /// List the images and their versions
    #[command(after_help = "\
Examples:
  sojourn image list
  sojourn --json image list | jq -r '.[].image'")]
    List,
    /// What an image version holds, and what stands on it
    #[command(after_help = "\
Examples:
  sojourn image show debian        the newest version
  sojourn image show debian:2")]
    Show(ImageNameArgs),
    /// Write an image version to a file or an NBD server
    #[command(after_help = "\
Examples:
  sojourn image export debian:2 out.raw                  sparse
  sojourn image export debian out.qcow2 --format qcow2
  sojourn image export debian - | zstd > out.raw.zst     raw, holes as zeroes
  sojourn image export debian nbd://127.0.0.1/target")]
    Export(ExportArgs),
    /// Read all that an image version holds and check it
    #[command(after_help = "\
Examples:
  sojourn image verify debian:2    exit code 7 when something is damaged")]
    Verify(ImageNameArgs),
    /// Take the name from an image version; refused while a disk or a snapshot stands on it
    #[command(after_help = "\
Examples:
  sojourn image remove debian:1")]
    #[command(aliases = ["rm", "delete"])]
    Remove(ImageNameArgs),
    /// Bring back an image version that was removed, while a collection has not deleted it
    #[command(after_help = "\
Examples:
  sojourn image restore debian:1")]
    Restore(ImageNameArgs),
    /// Remove all but the newest versions of an image, and those that a disk or a snapshot stands on
    #[command(after_help = "\
Examples:
  sojourn image prune debian --keep 5
  sojourn image prune debian --within 30d --dry-run
  sojourn image prune debian --keep 3 --within 7d     what either keeps stays")]
    Prune(PruneArgs),
    /// A kernel for an image version, in place of one from its own file system
    #[command(subcommand)]
    Boot(BootCommand),
    /// What a boot of an image version reads, so that it can be loaded ahead
    #[command(subcommand, name = "boot-list")]
    BootList(BootListCommand),
}

/// An image version.
#[derive(Debug, clap::Args)]
pub(crate) struct ImageNameArgs {
    /// NAME[:TAG]; the newest version without a tag
    pub(crate) name: String,
}

/// Arguments of `sojourn image prune`.
#[derive(Debug, clap::Args)]
pub(crate) struct PruneArgs {
    /// The image's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) keep: Retain,
}

/// What a verification found.
#[derive(Serialize)]
struct VerifyView {
    image: String,
    #[serde(flatten)]
    report: ImageVerifyReport,
}

impl Runnable for ImageCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        writes(run(self, &invocation.home()?, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        writes(run_on(self, &server, output))
    }
}

/// Carries out a verb. Images need no server: versions never change, and refs are made at once.
async fn run(verb: &ImageCommand, home: &Home, output: Output) -> Result<()> {
    let what_for = match verb {
        ImageCommand::Verify(_) => engine::StoreUse::Inspection,
        _ => engine::StoreUse::Command,
    };
    let store = stores::open_for(home, &Config::of(home)?, what_for).await?;
    match verb {
        ImageCommand::Import(args) => import::run(args, home, &store, output).await,
        ImageCommand::List => list(&store, output).await,
        ImageCommand::Show(args) => show(args, &store, output).await,
        ImageCommand::Export(args) => {
            sources::add(&store, &args.source, home, &Config::of(home)?).await?;
            export::run(args, &store, output).await
        }
        ImageCommand::Verify(args) => verify(args, &store, output).await,
        ImageCommand::Remove(args) => remove(args, &store, output).await,
        ImageCommand::Restore(args) => restore(args, &store, output).await,
        ImageCommand::Prune(args) => prune(args, &store, output).await,
        ImageCommand::Boot(verb) => boot::run(verb, home, &store, output).await,
        ImageCommand::BootList(verb) => {
            let copies = Config::of(home)?.serve.boot_copies;
            boot_list::run(verb, &store, copies, output).await
        }
    }
}

/// Carries out a verb on a server of another machine, which has the store.
async fn run_on(verb: &ImageCommand, server: &RemoteServer, output: Output) -> Result<()> {
    match verb {
        ImageCommand::Import(args) => import::run_on(args, server, output).await,
        ImageCommand::List => print_list(&server.images().await?, output),
        ImageCommand::Show(args) => print_details(&server.image(&args.name).await?, output),
        ImageCommand::Remove(args) => output.done(&server.remove_image(&args.name).await?),
        ImageCommand::Restore(args) => output.done(&server.restore_image(&args.name).await?),
        _ => Err(Error::unsupported(
            "of the verbs on images import, list, show, remove and restore work with --server; run the others \
             on the server's machine",
        )),
    }
}

async fn list(store: &Store, output: Output) -> Result<()> {
    print_list(&image_views::views(store).await?, output)
}

fn print_list(views: &[ImageView], output: Output) -> Result<()> {
    output.print(&views, || {
        let mut table = Table::new(&["IMAGE", ">SIZE", "CREATED", "SOURCE"]);
        for view in views {
            let (size, created, source) = match &view.error {
                None => {
                    (ByteSize(view.size).to_string(), moment(view.created), view.source.clone())
                }
                Some(error) => ("-".into(), "damaged".into(), Some(error.clone())),
            };
            table.row([view.image.clone(), size, created, source.unwrap_or_default()]);
        }
        table.render()
    })
}

async fn show(args: &ImageNameArgs, store: &Store, output: Output) -> Result<()> {
    print_details(&ImageDetails::of(store, &args.name.parse()?).await?, output)
}

fn print_details(view: &ImageDetails, output: Output) -> Result<()> {
    output.print(view, || {
        let image = &view.image;
        let used_by =
            if view.used_by.is_empty() { "nothing".to_owned() } else { view.used_by.join(", ") };
        fields(&[
            ("image", image.image.clone()),
            ("size", format!("{} ({} bytes)", ByteSize(image.size), image.size)),
            ("created", moment(image.created)),
            ("source", image.source.clone().unwrap_or_default()),
            ("data", format!("{} in {} chunks", ByteSize(view.data_bytes), view.chunks)),
            ("stored", ByteSize(view.stored_bytes).to_string()),
            ("boot list", view.boot_list.as_ref().map_or("none".into(), boot_list::in_words)),
            ("used by", used_by),
            ("manifest", image.manifest.clone()),
        ])
    })
}

async fn verify(args: &ImageNameArgs, store: &Store, output: Output) -> Result<()> {
    let record = images::resolve(store, &args.name.parse()?).await?;
    let bar = Bar::bytes("verifying", Some(record.body.size));
    let report = store::verify::manifest(store, &images::manifest_of(&record)?, &bar).await?;
    drop(bar);
    let view = VerifyView { image: record.name, report };
    let damaged = &view.report.damaged;
    output.print(&view, || {
        let mut text = format!(
            "image {}: {} chunks, {} read, {} damaged\n",
            view.image,
            view.report.chunks,
            ByteSize(view.report.bytes),
            damaged.len()
        );
        for damage in damaged {
            text.push_str(&format!("{} at {}: {}\n", damage.object, damage.offset, damage.why));
        }
        text
    })?;
    match damaged.first() {
        None => Ok(()),
        Some(first) => Err(Error::corrupt(format!(
            "image {} is damaged: {} at {}: {}; import it again under a new tag, or restore {} in \
             the store",
            view.image, first.object, first.offset, first.why, first.object
        ))),
    }
}

async fn remove(args: &ImageNameArgs, store: &Store, output: Output) -> Result<()> {
    image_verbs::remove(store, &args.name).await?;
    output.done(&format!("image {} removed", args.name))
}

async fn restore(args: &ImageNameArgs, store: &Store, output: Output) -> Result<()> {
    image_verbs::restore(store, &args.name).await?;
    output.done(&format!("image {} is there again", args.name))
}

async fn prune(args: &PruneArgs, store: &Store, output: Output) -> Result<()> {
    let dry_run = args.keep.dry_run;
    let view = image_verbs::prune(store, &args.name, args.keep.retention(), dry_run).await?;
    output.print(&view, || pruned(&view, dry_run))
}

fn pruned(view: &PruneView, dry_run: bool) -> String {
    let removed = if dry_run { "would be removed" } else { "removed" };
    let mut text: String =
        view.removed.iter().map(|image| format!("image {image} {removed}\n")).collect();
    for InUse { image, used_by } in &view.in_use {
        text.push_str(&format!("image {image} stays: used by {}\n", used_by.join(", ")));
    }
    if text.is_empty() { "nothing to remove".to_owned() } else { text }
}

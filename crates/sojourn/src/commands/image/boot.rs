//! `sojourn image boot`: a kernel for an image version, in place of one from its file system.

use super::ImageNameArgs;
use crate::output::{Output, fields};
use block::{ByteSize, Error, ErrorKind, Result};
use clap::Subcommand;
use engine::Home;
use netboot::kernel::given::{self, GivenFile, KernelToGive};
use netboot::kernel::{GivenKernel, GivenKernels};
use serde::Serialize;
use std::path::PathBuf;
use store::{ImageName, Store, images};

/// The verbs of `sojourn image boot`.
#[derive(Debug, Subcommand)]
pub(crate) enum BootCommand {
    /// Give a version a kernel, which machines with an NBD root start instead of its own
    #[command(after_help = "\
Examples:
  sojourn image boot set debian --kernel vmlinuz-6.1 --initrd initrd.img-6.1
  sojourn image boot set debian:2 --kernel vmlinuz --append 'root=/dev/nbd0p2 ro console=ttyS0'

The files are copied into the home. They count for disks that are made from this version, whose
machines start by --method nbd, from their next start on; a kernel given before is replaced.
Without root= the root is the disk's partition that has /etc.")]
    Set(BootSetArgs),
    /// Which kernel was given for a version
    #[command(after_help = "\
Examples:
  sojourn image boot show debian:2
  sojourn --json image boot show debian | jq -r .kernel.name")]
    Show(ImageNameArgs),
    /// Take the kernel back that was given for a version: machines start that of its file system
    #[command(after_help = "\
Examples:
  sojourn image boot unset debian:2")]
    Unset(ImageNameArgs),
}

/// Arguments of `sojourn image boot set`.
#[derive(Debug, clap::Args)]
pub(crate) struct BootSetArgs {
    /// NAME[:TAG]; the newest version without a tag
    pub(crate) name: String,
    /// The kernel
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: PathBuf,
    /// The initial RAM disk
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<PathBuf>,
    /// The kernel's parameters
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, default_value = "")]
    pub(crate) append: String,
}

/// What was given for an image version.
#[derive(Serialize)]
struct BootView {
    image: String,
    kernel: FileView,
    initrd: Option<FileView>,
    append: Vec<String>,
}

/// A file of it.
#[derive(Serialize)]
struct FileView {
    name: String,
    bytes: u64,
}

impl BootView {
    fn of(image: &str, given: GivenKernel) -> Self {
        let file = |GivenFile { name, bytes, .. }: GivenFile| FileView { name, bytes };
        Self {
            image: image.to_owned(),
            kernel: file(given.kernel),
            initrd: given.initrd.map(file),
            append: given.append,
        }
    }
}

/// Carries out a verb.
pub(super) async fn run(
    verb: &BootCommand,
    home: &Home,
    store: &Store,
    output: Output,
) -> Result<()> {
    let kernels = GivenKernels::of(&home.boot());
    match verb {
        BootCommand::Set(args) => set(args, kernels, store, output).await,
        BootCommand::Show(args) => {
            let image = version(store, &args.name).await?;
            let found = image.clone();
            let given = block::offload(move || kernels.get(&found)).await?;
            let given = given.ok_or_else(|| none(&image))?;
            let view = BootView::of(&image, given);
            output.print(&view, || describe(&view))
        }
        BootCommand::Unset(args) => {
            let image = version(store, &args.name).await?;
            let found = image.clone();
            match block::offload(move || kernels.unset(&found)).await? {
                true => output.done(&format!("image {image} starts by its own kernel again")),
                false => Err(none(&image)),
            }
        }
    }
}

async fn set(
    args: &BootSetArgs,
    kernels: GivenKernels,
    store: &Store,
    output: Output,
) -> Result<()> {
    let append = given::parameters(&args.append).map_err(|e| e.context("--append"))?;
    let image = images::resolve(store, &args.name.parse()?).await?.name;
    let give = KernelToGive { kernel: args.kernel.clone(), initrd: args.initrd.clone(), append };
    let found = image.clone();
    let given = block::offload(move || kernels.set(&found, &give)).await?;
    output.done(&format!("image {image} starts by the kernel {}", given.kernel.name))
}

/// The version that a name means. What was given for one stays when that is removed.
async fn version(store: &Store, name: &str) -> Result<String> {
    let name: ImageName = name.parse()?;
    match images::resolve(store, &name).await {
        Ok(record) => Ok(record.name),
        Err(e) if e.kind() == ErrorKind::NotFound && name.tag.is_some() => Ok(name.to_string()),
        Err(e) => Err(e),
    }
}

fn none(image: &str) -> Error {
    Error::not_found(format!(
        "no kernel was given for image {image}: its machines start that of its file system"
    ))
}

fn describe(view: &BootView) -> String {
    let file = |file: &FileView| format!("{} ({})", file.name, ByteSize(file.bytes));
    fields(&[
        ("image", view.image.clone()),
        ("kernel", file(&view.kernel)),
        ("initrd", view.initrd.as_ref().map_or_else(|| "none".to_owned(), file)),
        ("append", view.append.join(" ")),
    ])
}

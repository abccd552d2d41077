//! `sojourn image`: golden images and their versions.

pub(super) mod target;

use self::target::{ExportTarget, Replacement};
use super::boot_list::{self, BootListCommand};
use super::prune::Retain;
use crate::output::{Output, Table, fields, moment};
use crate::progress::Bar;
use crate::remote;
use crate::stores;
use block::copy::{CopyOptions, copy};
use block::{ByteSize, Device, Durability, Error, Result, Span, offload};
use clap::Subcommand;
use engine::Config;
use engine::Home;
use engine::api::ImageView;
use engine::boot_list::give;
use engine::image_verbs;
use engine::image_views::{self, ImageDetails, Users};
use engine::world;
use engine::{self, sources};
use formats::{Format, OpenOptions, Packed};
use nbd::Remote;
use serde::Serialize;
use server::remote::RemoteServer;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::chunker::MAX_CHUNK;
use store::verify::ImageVerifyReport;
use store::{
    ImageName, ImportStats, Imported, RefBody, RefKind, RefRecord, Session, Store, images, import,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Cache of an export, in bytes: every chunk is read once, some of them in two requests.
const EXPORT_CACHE: u64 = 32 << 20;
/// Bytes read at a time for standard output.
const PIECE: u64 = 4 << 20;
/// What standard input is called.
const STDIN: &str = "standard input";
/// Bytes at the beginning of standard input that are looked at.
const HEAD: u64 = 512;

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
begin as they do.")]
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
    /// What a boot of an image version reads, so that it can be loaded ahead
    #[command(subcommand, name = "boot-list")]
    BootList(BootListCommand),
}

/// Arguments of `sojourn image import`.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// A file or block device, an NBD URI (nbd://, nbd+unix://, or nbds:// with
    /// ?tls-certificates=DIR), or - for a raw image on stdin
    pub(crate) source: String,
    /// The image's name, with or without a tag: NAME[:TAG]
    pub(crate) name: String,
    /// The source's format (raw, qcow2, vmdk, vhd, vhdx, vdi) [default: found by its magic]; raw
    /// takes the bytes as they are
    #[arg(long, value_parser = parse_format)]
    pub(crate) format: Option<Format>,
    /// The boot list: a file of ranges, or an image version whose list is taken
    #[arg(long, value_name = "FILE|IMAGE")]
    pub(crate) boot_list: Option<String>,
}

impl ImportArgs {
    /// The error for a name that is a source, and a source that is a name.
    fn swapped(&self) -> Option<Error> {
        let named = self.source.parse::<ImageName>().is_ok() && !Path::new(&self.source).exists();
        let is_source = self.name == "-" || is_uri(&self.name) || Path::new(&self.name).exists();
        (named && is_source).then(|| {
            Error::invalid(format!(
                "the source comes first, then the name: sojourn image import {} {}",
                self.name, self.source
            ))
        })
    }
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

/// Arguments of `sojourn image export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// NAME[:TAG]; the newest version without a tag
    pub(crate) name: String,
    /// A file to make, a block device, an NBD URI (nbd://, nbd+unix://, or nbds:// with
    /// ?tls-certificates=DIR) to write to, or - for a raw image on stdout
    pub(crate) target: String,
    /// The file's format: raw or qcow2 [default: qcow2 when the file's name ends so, else raw]
    #[arg(long, value_parser = parse_format)]
    pub(crate) format: Option<Format>,
    /// Replace the file when it exists, or what the block device holds
    #[arg(long)]
    pub(crate) force: bool,
    /// Another store with the same key that is asked for what is missing or damaged; may be repeated
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) source: Vec<String>,
}

/// What an import gave.
#[derive(Serialize)]
struct ImportView {
    #[serde(flatten)]
    image: ImageView,
    stats: ImportStats,
}

/// What an export wrote.
#[derive(Serialize)]
struct ExportView {
    image: String,
    target: String,
    size: u64,
    /// Bytes written as data; the rest is zeroes.
    data_bytes: u64,
}

/// What was removed of an image.
#[derive(Serialize)]
struct PruneView {
    /// Versions that were removed, or would be.
    removed: Vec<String>,
    /// Older ones that stay, because something stands on them.
    in_use: Vec<InUse>,
}

/// A version that cannot be removed.
#[derive(Serialize)]
struct InUse {
    image: String,
    used_by: Vec<String>,
}

/// What a verification found.
#[derive(Serialize)]
struct VerifyView {
    image: String,
    #[serde(flatten)]
    report: ImageVerifyReport,
}

/// Carries out a verb. Images need no server: versions never change, and refs are made at once.
pub(crate) async fn run(verb: &ImageCommand, home: &Home, output: Output) -> Result<()> {
    let what_for = match verb {
        ImageCommand::Verify(_) => engine::StoreUse::Inspection,
        _ => engine::StoreUse::Command,
    };
    let store = stores::open_for(home, &Config::of(home)?, what_for).await?;
    match verb {
        ImageCommand::Import(args) => import_image(args, home, &store, output).await,
        ImageCommand::List => list(&store, output).await,
        ImageCommand::Show(args) => show(args, &store, output).await,
        ImageCommand::Export(args) => {
            sources::add(&store, &args.source, home, &Config::of(home)?).await?;
            export(args, &store, output).await
        }
        ImageCommand::Verify(args) => verify(args, &store, output).await,
        ImageCommand::Remove(args) => remove(args, &store, output).await,
        ImageCommand::Restore(args) => restore(args, &store, output).await,
        ImageCommand::Prune(args) => prune(args, &store, output).await,
        ImageCommand::BootList(verb) => {
            let copies = Config::of(home)?.serve.boot_copies;
            boot_list::run(verb, &store, copies, output).await
        }
    }
}

/// Carries out a verb on a server of another machine, which has the store.
pub(crate) async fn run_on(
    verb: &ImageCommand,
    server: &RemoteServer,
    output: Output,
) -> Result<()> {
    match verb {
        ImageCommand::List => print_list(&server.images().await?, output),
        ImageCommand::Show(args) => print_details(&server.image(&args.name).await?, output),
        ImageCommand::Remove(args) => output.done(&server.remove_image(&args.name).await?),
        ImageCommand::Restore(args) => output.done(&server.restore_image(&args.name).await?),
        _ => Err(Error::unsupported(
            "of the verbs on images list, show, remove and restore work with --server; run the others on the \
             server's machine",
        )),
    }
}

async fn import_image(args: &ImportArgs, home: &Home, store: &Store, output: Output) -> Result<()> {
    let name: ImageName = args.name.parse().map_err(|e| args.swapped().unwrap_or(e))?;
    images::must_be_free(store, &name).await?;
    let session = store.session(&format!("import of {name}")).await?;
    let imported = import_version(args, &name, home, &session).await;
    let (record, stats) = session.close(imported).await?;
    let view = ImportView { image: image_views::view(&record)?, stats };
    output.print(&view, || {
        let stats = &view.stats;
        format!(
            "image {} made: {}, of which {} were new and took {} in the store",
            view.image.image,
            ByteSize(view.image.size),
            ByteSize(stats.new_bytes),
            ByteSize(stats.stored_bytes)
        )
    })
}

async fn import_version(
    args: &ImportArgs,
    name: &ImageName,
    home: &Home,
    session: &Session,
) -> Result<(RefRecord, ImportStats)> {
    let imported = read_source(args, home, session).await.map_err(|e| {
        let source = if args.source == "-" { STDIN } else { &args.source };
        if e.message().contains(source) { e } else { e.context(source) }
    })?;
    let source = match args.source.as_str() {
        "-" => STDIN.to_owned(),
        uri if is_uri(uri) => uri.to_owned(),
        path => Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let mut labels = BTreeMap::from([(images::SOURCE.to_owned(), source)]);
    if let Some(what) = &args.boot_list {
        let manifest = session.store().manifest(&imported.manifest).await?;
        let list = boot_list::from(session.store(), &manifest, what).await?;
        let copies = Config::of(home)?.serve.boot_copies;
        give(session, &imported.manifest, &mut labels, &list, copies).await?;
    }
    let body = RefBody {
        manifest: Some(imported.manifest),
        size: imported.size,
        created: world::system().clock.now(),
        labels,
    };
    Ok((images::publish(session, name, body).await?, imported.stats))
}

async fn read_source(args: &ImportArgs, home: &Home, session: &Session) -> Result<Imported> {
    if args.source == "-" {
        if args.format.is_some_and(|format| format != Format::Raw) {
            return Err(Error::unsupported(
                "standard input can only be raw; put the image into a file to import it",
            ));
        }
        return read_stdin(args, session).await;
    }
    if is_uri(&args.source) {
        if args.format.is_some() {
            return Err(Error::invalid("--format is for files; an NBD server gives raw bytes"));
        }
        let remote = connect(&args.source).await?;
        let bar = Bar::bytes("importing", Some(remote.size()));
        let imported = import::from_device(session, &remote, &bar).await;
        remote.close().await;
        return imported;
    }
    if let Some((scheme @ ("http" | "https" | "ftp"), _)) = args.source.split_once("://") {
        return Err(Error::unsupported(format!(
            "{scheme} is not read here; have it downloaded: curl -fL {} | sojourn image import - {}",
            args.source, args.name
        )));
    }
    let path = Path::new(&args.source);
    if args.format.is_none()
        && let Some(packed) = packed(path).await?
    {
        return Err(is_packed(&args.source, packed, &args.source, &args.name));
    }
    let scratch = home.scratch();
    std::fs::create_dir_all(&scratch).map_err(|e| Error::io(scratch.display(), e))?;
    let options = OpenOptions { format: args.format, read_only: true, scratch };
    let device = formats::open(path, options).await?;
    let bar = Bar::bytes("importing", Some(device.size()));
    import::from_device(session, &*device, &bar).await
}

async fn packed(path: &Path) -> Result<Option<Packed>> {
    let path = path.to_owned();
    offload(move || formats::packed(&path)).await
}

async fn read_stdin(args: &ImportArgs, session: &Session) -> Result<Imported> {
    let mut stdin = tokio::io::stdin();
    let mut head = Vec::new();
    let begun = (&mut stdin).take(HEAD).read_to_end(&mut head).await;
    begun.map_err(|e| Error::io(STDIN, e))?;
    if args.format.is_none() {
        must_be_raw(&head, &args.name)?;
    }
    let bar = Bar::bytes("importing", None);
    import::from_stream(session, Cursor::new(head).chain(stdin), &bar).await
}

/// Refuses a stream that begins as no raw disk does.
fn must_be_raw(head: &[u8], name: &str) -> Result<()> {
    if let Some(packed) = Packed::by_magic(head) {
        return Err(is_packed(STDIN, packed, "FILE", name));
    }
    match Format::by_magic(head) {
        Format::Raw => Ok(()),
        format => Err(Error::unsupported(format!(
            "{STDIN} is a {format} image, and can only be raw; put it into a file and import that: \
             sojourn image import FILE {name}"
        ))),
    }
}

/// The error for a packed source.
fn is_packed(source: &str, packed: Packed, file: &str, name: &str) -> Error {
    Error::unsupported(format!(
        "{source} is packed with {packed}; unpack it on the way: {} {file} | sojourn image import - \
         {name}",
        packed.unpacker()
    ))
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

async fn export(args: &ExportArgs, store: &Store, output: Output) -> Result<()> {
    let record = images::resolve(store, &args.name.parse()?).await?;
    let target = ExportTarget::of(args)?;
    let manifest = store.manifest(&images::manifest_of(&record)?).await?;
    let cache = Arc::new(cache::Cache::new(cache::Config {
        capacity: EXPORT_CACHE,
        policy: cache::PolicyKind::Lru,
        seed: 0,
    }));
    let image = disk::Image::new(store.clone(), manifest, cache);
    let bar = Bar::bytes("exporting", Some(image.size()));
    let data_bytes = match &target {
        ExportTarget::Remote => {
            let remote = connect(&args.target).await?;
            let copied = copy_to(&image, &remote, false, &bar).await;
            remote.close().await;
            copied.map_err(|e| e.context(&args.target))?
        }
        ExportTarget::Stdout => return export_stdout(&image, &bar).await,
        ExportTarget::BlockDevice => export_device(&args.target, &image, &bar).await?,
        ExportTarget::File(file, format) => {
            let written = export_file(file, *format, store, &image, &bar).await;
            written.inspect_err(|_| file.clear()).map_err(|e| file.named(e))?
        }
    };
    drop(bar);
    let view = ExportView {
        image: record.name,
        target: args.target.clone(),
        size: image.size(),
        data_bytes,
    };
    output.print(&view, || {
        format!(
            "image {} written to {}: {}, {} of data",
            view.image,
            view.target,
            ByteSize(view.size),
            ByteSize(view.data_bytes)
        )
    })
}

/// Writes all of an image to standard output, in order; nothing else goes there.
async fn export_stdout(image: &disk::Image, bar: &Bar) -> Result<()> {
    let failed = |e| Error::io("standard output", e);
    let mut out = tokio::io::stdout();
    let mut buf = vec![0; image.size().min(PIECE) as usize];
    for piece in Span::whole(image.size()).pieces(PIECE) {
        let part = &mut buf[..piece.len() as usize];
        image.read(piece, part).await?;
        out.write_all(part).await.map_err(failed)?;
        bar.moved(piece.len());
    }
    out.flush().await.map_err(failed)
}

async fn export_device(path: &str, image: &disk::Image, bar: &Bar) -> Result<u64> {
    let options =
        OpenOptions { format: Some(Format::Raw), read_only: false, scratch: PathBuf::new() };
    let device = formats::open(Path::new(path), options).await?;
    copy_to(image, &*device, false, bar).await
}

async fn export_file(
    file: &Replacement,
    format: Format,
    store: &Store,
    image: &disk::Image,
    bar: &Bar,
) -> Result<u64> {
    file.clear();
    let device = formats::create(&file.partial, format, image.size()).await?;
    let limits = device.limits();
    // Long reads and both cores, where the file takes whatever comes.
    let data = if limits.minimum <= 512 && limits.maximum >= MAX_CHUNK {
        sweep_to(store, image, &*device, bar).await?
    } else {
        copy_to(image, &*device, true, bar).await?
    };
    drop(device);
    file.finish()?;
    Ok(data)
}

/// Writes an image to a file that reads as zeroes; returns how many bytes of data it has.
async fn sweep_to(store: &Store, image: &disk::Image, to: &dyn Device, bar: &Bar) -> Result<u64> {
    let mut data = 0;
    store::sweep::read(store, image.manifest(), bar, async |span, bytes| {
        data += span.len();
        to.write(span, &bytes, Durability::Buffered)
            .await
            .map_err(|e| e.context(format_args!("writing at offset {}", span.offset())))
    })
    .await?;
    to.flush().await?;
    Ok(data)
}

async fn copy_to(from: &dyn Device, to: &dyn Device, fresh: bool, bar: &Bar) -> Result<u64> {
    let options = CopyOptions { fresh, ..CopyOptions::default() };
    copy(from, to, options, &|bytes| bar.moved(bytes)).await
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
    let name: ImageName = args.name.parse()?;
    if name.tag.is_some() {
        return Err(Error::invalid("all versions of an image are looked at; give its name alone"));
    }
    let versions = images::versions(store, &name.name).await?;
    if versions.is_empty() {
        return Err(Error::not_found(format!(
            "no image {name}; see `sojourn image list` for what there is"
        )));
    }
    let created: Vec<u64> = versions.iter().map(|version| version.body.created).collect();
    let old = args.keep.superseded(&created, world::system().clock.now())?;
    let users = Users::load(store).await?;
    let mut view = PruneView { removed: Vec::new(), in_use: Vec::new() };
    for version in &versions[..old] {
        let used_by = users.of(version);
        if !used_by.is_empty() {
            view.in_use.push(InUse { image: version.name.clone(), used_by });
            continue;
        }
        if !args.keep.dry_run {
            store.refs().remove(RefKind::Image, &version.name, version.sequence).await?;
        }
        view.removed.push(version.name.clone());
    }
    output.print(&view, || pruned(&view, args.keep.dry_run))
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

async fn connect(uri: &str) -> Result<Remote> {
    remote::connect(&uri.parse()?).await
}

fn is_uri(text: &str) -> bool {
    ["nbd", "nbds"].iter().any(|scheme| {
        text.strip_prefix(scheme)
            .is_some_and(|rest| rest.starts_with("://") || rest.starts_with("+unix://"))
    })
}

fn parse_format(text: &str) -> Result<Format> {
    text.parse()
}

//! `sojourn image import`: from a file of any format, an NBD server, or standard input.

use super::arguments::{ImportArgs, is_uri};
use crate::commands::boot_list;
use crate::output::Output;
use crate::progress::Bar;
use crate::remote;
use block::{ByteSize, Device, Error, Result, offload};
use engine::api::ImageView;
use engine::boot_list::give;
use engine::{Config, Home, image_views, world};
use formats::{Format, OpenOptions, Packed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use store::{ImageName, ImportStats, Imported, RefBody, RefRecord, Session, Store, images, import};
use tokio::io::AsyncReadExt;

/// What standard input is called.
const STDIN: &str = "standard input";
/// Bytes at the beginning of standard input that are looked at.
const HEAD: u64 = 512;

/// What an import gave.
#[derive(Serialize)]
struct ImportView {
    #[serde(flatten)]
    image: ImageView,
    stats: ImportStats,
}

pub(super) async fn run(
    args: &ImportArgs,
    home: &Home,
    store: &Store,
    output: Output,
) -> Result<()> {
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
        let remote = remote::connect(&args.source.parse()?).await?;
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

//! `sojourn image import`: from a file of any format, an NBD server, or standard input.

use super::arguments::{ImportArgs, is_uri};
use super::boot_list;
use crate::output::Output;
use crate::progress::Bar;
use crate::remote;
use block::{ByteSize, Device, Error, Result, Span, offload};
use bytes::{Bytes, BytesMut};
use engine::api::ImportView;
use engine::boots::given::give;
use engine::image_verbs::{RawStream, is_packed};
use engine::{Config, Home, image_views, world};
use formats::{Format, OpenOptions, Packed};
use server::remote::{ImageUpload, RemoteServer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{ImageName, ImportStats, Imported, RefBody, RefRecord, Session, Store, images, import};
use tokio::io::{AsyncReadExt, Stdin};

/// What standard input is called.
const STDIN: &str = "standard input";
/// The most bytes that are sent at a time.
const PIECE: u64 = 1 << 20;

/// What an image is read from.
enum ImageSource {
    /// A file or a block device.
    File(Arc<dyn Device>),
    /// An export of an NBD server.
    Export(nbd::Remote),
    /// Standard input.
    Stdin(RawStream<Stdin>),
}

impl ImageSource {
    /// Opens what the arguments name; what has to be converted first is put into `scratch`.
    async fn open(args: &ImportArgs, scratch: PathBuf) -> Result<Self> {
        if args.source == "-" {
            if args.format.is_some_and(|format| format != Format::Raw) {
                return Err(Error::unsupported(
                    "standard input can only be raw; put the image into a file to import it",
                ));
            }
            let (what, as_it_is) = (STDIN.to_owned(), args.format.is_some());
            let (source, bytes) = (what.clone(), tokio::io::stdin());
            return Ok(Self::Stdin(RawStream { what, source, as_it_is, bytes }));
        }
        if is_uri(&args.source) {
            if args.format.is_some() {
                return Err(Error::invalid("--format is for files; an NBD server gives raw bytes"));
            }
            return Ok(Self::Export(remote::connect(&args.source.parse()?).await?));
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
        std::fs::create_dir_all(&scratch).map_err(|e| Error::io(scratch.display(), e))?;
        let options = OpenOptions { format: args.format, read_only: true, scratch };
        let device = formats::open(path, options).await?;
        must_be_whole_sectors(path, args.format, device.size()).await?;
        Ok(Self::File(device))
    }

    /// Has all of it stored.
    async fn import(self, session: &Session, name: &str) -> Result<Imported> {
        let bar = |size| Bar::bytes("importing", size);
        match self {
            Self::File(device) => {
                import::from_device(session, &*device, &bar(Some(device.size()))).await
            }
            Self::Export(remote) => {
                let imported =
                    import::from_device(session, &remote, &bar(Some(remote.size()))).await;
                remote.close().await;
                imported
            }
            Self::Stdin(stream) => {
                let bytes = stream.begun(name).await?;
                import::from_stream(session, bytes, &bar(None)).await
            }
        }
    }

    /// Has all of it sent to a server.
    async fn send(self, server: &RemoteServer, name: &str, source: &str) -> Result<ImportView> {
        let upload = |size| ImageUpload { name, source, size };
        match self {
            Self::File(device) => send_device(server, upload(Some(device.size())), &*device).await,
            Self::Export(remote) => {
                let sent = send_device(server, upload(Some(remote.size())), &remote).await;
                remote.close().await;
                sent
            }
            Self::Stdin(stream) => {
                let mut bytes = stream.begun(name).await?;
                let bar = Bar::bytes("sending", None);
                let next = async || {
                    let mut piece = BytesMut::with_capacity(PIECE as usize);
                    let read = bytes.read_buf(&mut piece).await;
                    bar.moved(read.map_err(|e| Error::io(STDIN, e))? as u64);
                    Ok(piece.freeze())
                };
                server.import_image(upload(None), next).await
            }
        }
    }
}

/// Sends a device, from its first byte to its last.
async fn send_device(
    server: &RemoteServer,
    upload: ImageUpload<'_>,
    device: &dyn Device,
) -> Result<ImportView> {
    let size = device.size();
    import::check_size(size)?;
    let bar = Bar::bytes("sending", Some(size));
    let mut pieces = Span::whole(size).pieces(PIECE);
    let next = async || {
        let Some(piece) = pieces.next() else { return Ok(Bytes::new()) };
        let mut bytes = vec![0; piece.len() as usize];
        device.read(piece, &mut bytes).await?;
        bar.moved(piece.len());
        Ok(Bytes::from(bytes))
    };
    server.import_image(upload, next).await
}

pub(super) async fn run(
    args: &ImportArgs,
    home: &Home,
    store: &Store,
    output: Output,
) -> Result<()> {
    let name = name_of(args)?;
    images::must_be_free(store, &name).await?;
    let session = store.session(&format!("import of {name}")).await?;
    let imported = import_version(args, &name, home, &session).await;
    let (record, stats) = session.close(imported).await?;
    print(&ImportView { image: image_views::view(&record)?, stats }, output)
}

/// Sends an image to a server, in whose store it becomes a version.
pub(super) async fn run_on(args: &ImportArgs, server: &RemoteServer, output: Output) -> Result<()> {
    let name = name_of(args)?.to_string();
    if args.boot_list.is_some() {
        return Err(Error::unsupported(format!(
            "a boot list is given on the server's machine: sojourn image boot-list record {name} FILE"
        )));
    }
    let sent = match ImageSource::open(args, std::env::temp_dir()).await {
        Ok(source) => source.send(server, &name, &origin(args)).await,
        Err(e) => Err(named(e, args)),
    };
    print(&sent?, output)
}

fn name_of(args: &ImportArgs) -> Result<ImageName> {
    args.name.parse().map_err(|e| args.swapped().unwrap_or(e))
}

fn print(view: &ImportView, output: Output) -> Result<()> {
    output.print(view, || {
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

/// What the version tells of where it came from.
fn origin(args: &ImportArgs) -> String {
    match args.source.as_str() {
        "-" => STDIN.to_owned(),
        uri if is_uri(uri) => uri.to_owned(),
        path => Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

/// An error that names the source.
fn named(error: Error, args: &ImportArgs) -> Error {
    let source = if args.source == "-" { STDIN } else { &args.source };
    if error.message().contains(source) { error } else { error.context(source) }
}

async fn import_version(
    args: &ImportArgs,
    name: &ImageName,
    home: &Home,
    session: &Session,
) -> Result<(RefRecord, ImportStats)> {
    let imported = match ImageSource::open(args, home.scratch()).await {
        Ok(source) => source.import(session, &args.name).await,
        Err(e) => Err(e),
    };
    let imported = imported.map_err(|e| named(e, args))?;
    let mut labels = BTreeMap::from([(images::SOURCE.to_owned(), origin(args))]);
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

/// Refuses an image file whose disk ends within a sector, with what makes it longer: to make the file longer,
/// as with a raw one, would not.
async fn must_be_whole_sectors(path: &Path, format: Option<Format>, size: u64) -> Result<()> {
    if size.is_multiple_of(512) {
        return Ok(());
    }
    let format = match format {
        Some(format) => format,
        None => {
            let path = path.to_owned();
            offload(move || formats::probe(&path)).await?
        }
    };
    let path = path.display();
    let whole = size.next_multiple_of(512);
    match format {
        // The import says it.
        Format::Raw => Ok(()),
        Format::Qcow2 => Err(Error::invalid(format!(
            "{path}: the disk in it has {size} bytes, which is not a multiple of 512; make it longer: \
             qemu-img resize -f qcow2 {path} {whole}"
        ))),
        format => Err(Error::invalid(format!(
            "{path}: the disk in it has {size} bytes, which is not a multiple of 512; convert the {format} \
             image to qcow2 with qemu-img convert -O qcow2, and make that longer: qemu-img resize NEW.qcow2 \
             {whole}"
        ))),
    }
}

async fn packed(path: &Path) -> Result<Option<Packed>> {
    let path = path.to_owned();
    offload(move || formats::packed(&path)).await
}

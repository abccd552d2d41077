//! `sojourn image export`: to a file, a block device, an NBD server, or standard output.

use super::arguments::ExportArgs;
use super::target::{ExportTarget, Replacement};
use crate::output::Output;
use crate::progress::Bar;
use crate::remote;
use block::copy::{CopyOptions, copy};
use block::{ByteSize, Device, Durability, Error, Result, Span};
use formats::{Format, OpenOptions};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::chunker::MAX_CHUNK;
use store::{Store, images};
use tokio::io::AsyncWriteExt;

/// Cache of an export, in bytes: every chunk is read once, some of them in two requests.
const EXPORT_CACHE: u64 = 32 << 20;
/// Bytes read at a time for standard output.
const PIECE: u64 = 4 << 20;

/// What an export wrote.
#[derive(Serialize)]
struct ExportView {
    image: String,
    target: String,
    size: u64,
    /// Bytes written as data; the rest is zeroes.
    data_bytes: u64,
}

pub(super) async fn run(args: &ExportArgs, store: &Store, output: Output) -> Result<()> {
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
            let remote = remote::connect(&args.target.parse()?).await?;
            let copied = copy_to(&image, &remote, false, &bar).await;
            remote.close().await;
            copied.map_err(|e| e.context(&args.target))?
        }
        ExportTarget::Stdout => return export_stdout(&image, &bar).await,
        ExportTarget::BlockDevice => export_device(&args.target, &image, &bar).await?,
        ExportTarget::File(file, format) => export_file(file, *format, store, &image, &bar).await?,
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
    let write = async |device: &dyn Device| {
        let limits = device.limits();
        // Long reads and both cores, where the file takes whatever comes.
        match limits.minimum <= 512 && limits.maximum >= MAX_CHUNK {
            true => data_to(store, image, device, bar).await,
            false => copy_to(image, device, true, bar).await,
        }
    };
    file.fill(format, image.size(), write).await
}

/// Writes an image to a file that reads as zeroes; returns how many bytes of data it has.
async fn data_to(store: &Store, image: &disk::Image, to: &dyn Device, bar: &Bar) -> Result<u64> {
    let mut data = 0;
    store::bulk_read::image(store, image.manifest(), bar, async |span, bytes| {
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

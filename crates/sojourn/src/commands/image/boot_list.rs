//! `sojourn image boot-list`: what a boot of an image version reads.

use super::ImageNameArgs;
use super::target::exists;
use crate::output::Output;
use block::{ByteSize, Error, Result, Span};
use clap::Subcommand;
use engine::boots::given;
use engine::boots::list::{self, BootListView};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use store::boot_list::{self, Located};
use store::{ChunkId, ImageName, Manifest, RefRecord, Store, images};

/// The longest file of ranges that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// The verbs of `sojourn image boot-list`.
#[derive(Debug, Subcommand)]
pub(crate) enum BootListCommand {
    /// How much a version's boot list names, and how much of that the image has
    #[command(after_help = "\
Examples:
  sojourn image boot-list show debian:2")]
    Show(ImageNameArgs),
    /// Write the list as ranges of the image: a line `OFFSET LENGTH` for each, in bytes
    #[command(after_help = "\
Examples:
  sojourn image boot-list export debian:2 boot.txt
  sojourn image boot-list export debian -            to standard output

A file that exists is replaced with --force only.")]
    Export(BootListExportArgs),
    /// Give a version another boot list
    #[command(after_help = "\
Examples:
  sojourn image boot-list record debian:3 debian:2     the chunks that both have
  sojourn image boot-list record debian:3 boot.txt     ranges, as `export` writes them

A server records the list of a version that has none by itself, from the first boot of a disk
(serve.boot_lists).")]
    Record(BootListRecordArgs),
}

/// Arguments of `sojourn image boot-list export`.
#[derive(Debug, clap::Args)]
pub(crate) struct BootListExportArgs {
    /// NAME[:TAG]; the newest version without a tag
    pub(crate) name: String,
    /// A file to make, or - for standard output
    pub(crate) file: PathBuf,
    /// Replace the file when it exists
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `sojourn image boot-list record`.
#[derive(Debug, clap::Args)]
pub(crate) struct BootListRecordArgs {
    /// NAME[:TAG]; the newest version without a tag
    pub(crate) name: String,
    /// A file of ranges, or an image version whose list is taken
    pub(crate) from: String,
}

/// What a boot list names, in words.
pub(crate) fn in_words(list: &BootListView) -> String {
    let mut text = format!(
        "{} in {} of {} chunks, {} stored",
        ByteSize(list.present_bytes),
        list.present_chunks,
        list.chunks,
        ByteSize(list.stored_bytes)
    );
    if let Some(bytes) = list.copy_stored_bytes {
        text.push_str(&format!(", once more side by side in {}", ByteSize(bytes)));
    }
    text
}

/// Carries out a verb.
/// `copies`: a list that is set gets a boot copy.
pub(crate) async fn run(
    verb: &BootListCommand,
    store: &Store,
    copies: bool,
    output: Output,
) -> Result<()> {
    match verb {
        BootListCommand::Show(args) => {
            let (record, manifest) = version(store, &args.name).await?;
            let view = BootListView::of(store, &record, &manifest).await?;
            let view = view.ok_or_else(|| none(&record.name))?;
            output
                .print(&view, || format!("boot list of image {}: {}", record.name, in_words(&view)))
        }
        BootListCommand::Export(args) => export(args, store, output).await,
        BootListCommand::Record(args) => {
            let (record, manifest) = version(store, &args.name).await?;
            let list = from(store, &manifest, &args.from).await?;
            given::set(store, &record.name, &list, copies).await?;
            let (record, manifest) = version(store, &record.name).await?;
            let view = BootListView::of(store, &record, &manifest).await?;
            let view = view.ok_or_else(|| none(&record.name))?;
            output.print(&view, || {
                format!("boot list of image {} set: {}", record.name, in_words(&view))
            })
        }
    }
}

/// The list that a file of ranges or another image version means for an image.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a file that holds other things;
/// [`NotFound`](block::ErrorKind::NotFound) when it is neither a file nor an image with a list.
pub(crate) async fn from(store: &Store, manifest: &Manifest, what: &str) -> Result<Vec<ChunkId>> {
    let path = Path::new(what);
    if path.is_file() {
        let ranges = ranges(path, manifest.size())?;
        let list = boot_list::of_ranges(manifest, &ranges).await?;
        if list.is_empty() {
            return Err(Error::invalid(format!("{what}: its ranges are holes in this image")));
        }
        return Ok(list);
    }
    let name: ImageName = what.parse().map_err(|_| {
        Error::not_found(format!("{what:?} is neither a file nor the name of an image"))
    })?;
    let record = images::resolve(store, &name).await.map_err(|e| match e.kind() {
        block::ErrorKind::NotFound => e.context(format!("no file {what}, and")),
        _ => e,
    })?;
    list::of(store, &record).await?.ok_or_else(|| none(&record.name))
}

async fn version(store: &Store, name: &str) -> Result<(RefRecord, std::sync::Arc<Manifest>)> {
    let record = images::resolve(store, &name.parse()?).await?;
    let manifest = store.manifest(&images::manifest_of(&record)?).await?;
    Ok((record, manifest))
}

fn none(name: &str) -> Error {
    Error::not_found(format!(
        "image {name} has no boot list; boot a disk of it under `sojourn serve`, or give it one \
         with `sojourn image boot-list record`"
    ))
}

async fn export(args: &BootListExportArgs, store: &Store, output: Output) -> Result<()> {
    let (record, manifest) = version(store, &args.name).await?;
    let list = list::of(store, &record).await?.ok_or_else(|| none(&record.name))?;
    let located = boot_list::locate(&manifest, &list).await?;
    let mut text = String::new();
    for Located { span, .. } in &located {
        let _ = writeln!(text, "{} {}", span.offset(), span.len());
    }
    if args.file.as_os_str() == "-" {
        return crate::output::raw(text.as_bytes());
    }
    write(&args.file, args.force, text.as_bytes())?;
    let done = format!("{} ranges written to {}", located.len(), args.file.display());
    output.done(&done)
}

/// Writes a file; one that is there only when that is asked for.
fn write(path: &Path, force: bool, text: &[u8]) -> Result<()> {
    let mut options = std::fs::File::options();
    options.write(true).create(true).truncate(true).create_new(!force);
    let written = options.open(path).and_then(|mut file| file.write_all(text));
    written.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => exists(path),
        _ => Error::io(path.display(), e),
    })
}

/// Reads lines of an offset and a length in bytes; empty ones and those that begin with `#` say
/// nothing.
fn ranges(path: &Path, size: u64) -> Result<Vec<Span>> {
    let io = |e| Error::io(path.display(), e);
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(io)?;
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > LONGEST {
        return Err(Error::invalid(format!("{}: is longer than 64 MiB", path.display())));
    }
    parse(&text, size).map_err(|e| e.context(path.display()))
}

fn parse(text: &str, size: u64) -> Result<Vec<Span>> {
    let mut ranges = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = || {
            Error::invalid(format!(
                "line {}: write an offset and a length in bytes that lie in the image ({size} \
                 bytes), such as: 1048576 4096",
                number + 1
            ))
        };
        let (offset, length) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
        let offset: u64 = offset.parse().map_err(|_| wrong())?;
        let length: u64 = length.trim().parse().map_err(|_| wrong())?;
        let end = offset.checked_add(length).filter(|end| *end <= size).ok_or_else(wrong)?;
        ranges.push(Span::between(offset, end));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_what_is_none_is_refused_by_its_line() {
        let good = parse("# boot\n0 512\n\n4096\t8192 \n", 1 << 20).unwrap();
        assert_eq!(good, [Span::between(0, 512), Span::between(4096, 12288)]);
        for bad in ["1", "a 5", "5 -1", "1048576 1", "18446744073709551615 2", "1 2 3"] {
            let error = parse(&format!("0 512\n{bad}\n"), 1 << 20).unwrap_err();
            assert!(error.message().starts_with("line 2: "), "{bad}: {error}");
        }
    }
}

//! Writing traces: our own format, and those that others read.

use crate::foreign::definition::FormatWriter;
pub use crate::foreign::writer::Exported;
use crate::foreign::writer::TextWriter;
use crate::native::column::Effort;
use crate::native::writer::Writer;
use crate::{Format, Source};
use block::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How to write a trace.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The format: one that is written.
    pub format: Format,
    /// Bytes of a block where the format numbers blocks (oracle-general); 1 or more.
    pub unit: u32,
}

/// The format that a file's name asks for: `.sjt`, `.iolog`, `.load`, `.csv`, `.oracleGeneral`,
/// with `.gz` or `.zst` behind it (which [`export`] refuses for `.oracleGeneral`).
pub fn format_of(path: &Path) -> Option<Format> {
    let name = plain_name(path)?;
    let (_, extension) = name.rsplit_once('.')?;
    written().find(|format| {
        format.definition().endings.iter().any(|ending| ending.eq_ignore_ascii_case(extension))
    })
}

/// The formats that are written.
fn written() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| format.is_written())
}

/// Names as a sentence has them: `a, b or c`.
fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<_> = names.collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The format to write a file in when nobody says it: that of its name, our own for a name that
/// ends in nothing.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) when the name ends in something else.
pub fn format_for(path: &Path) -> Result<Format> {
    Packing::of(path)?;
    let name = plain_name(path).unwrap_or_default();
    match (format_of(path), name.rsplit_once('.')) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(Format::Sojourn),
        (None, Some((_, extension))) => Err(Error::unsupported(format!(
            "{}: no format that is written ends in .{extension}; call it {}, or say the format with \
             --to",
            path.display(),
            listed(written().map(|format| format!(".{}", format.definition().endings[0])))
        ))),
    }
}

/// A file's name in small letters, without what says that it is compressed.
fn plain_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    Some(name.trim_end_matches(".gz").trim_end_matches(".zst").to_owned())
}

/// What a file is compressed with while it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    /// What the name of a file asks for.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for what is not written.
    fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("gz") => Ok(Self::Gzip),
            Some("zst") => Ok(Self::Zstd),
            Some(other @ ("xz" | "bz2" | "lz4" | "lzma" | "zip" | "7z")) => {
                Err(Error::unsupported(format!(
                    "{}: traces are written with .gz or .zst behind the name, not with .{other}; \
                     choose one of them",
                    path.display()
                )))
            }
            _ => Ok(Self::None),
        }
    }
}

/// Writes all of a source to a file, which is there under its name only when it is whole, in place
/// of what was there; where the name is a link, the file that it leads to. `-` is the standard
/// output; into what is no file, such as a pipe, it is written directly.
///
/// # Errors
/// Any error from the source and from the file; [`Unsupported`](block::ErrorKind::Unsupported) for a format
/// that is only read, and for a compression that is not written.
pub fn export(source: &mut dyn Source, path: &Path, options: &ExportOptions) -> Result<Exported> {
    let direct = path.as_os_str() == "-" || path.metadata().is_ok_and(|m| !m.is_file());
    let writer = options.format.definition().writer;
    let in_place = matches!(writer, FormatWriter::File(_));
    if direct && in_place {
        return Err(Error::unsupported(format!(
            "{} is written to a file alone, not to a pipe",
            options.format
        )));
    }
    let packing = Packing::of(path)?;
    if packing != Packing::None && in_place {
        return Err(Error::unsupported(format!(
            "{}: {} is not compressed while it is written; leave the last part of the name out, and \
             compress the file then",
            path.display(),
            options.format
        )));
    }
    if path.as_os_str() == "-" {
        return write(source, Box::new(io::stdout()), path, options);
    }
    let failed = |e| Error::io(path.display(), e);
    if direct {
        let file = File::options().write(true).open(path).map_err(failed)?;
        return write(source, Box::new(file), path, options);
    }
    let partial = Partial::beside(path)?;
    let file = partial.file.try_clone().map_err(failed)?;
    let done = match writer {
        FormatWriter::File(write) => write(source, &file, path, options.unit)?,
        _ => write(source, packing.sink(file).map_err(failed)?, path, options)?,
    };
    partial.finish()?;
    Ok(done)
}

/// Exports to one file at a time.
const MOST_PARTIAL: u32 = 1000;

/// A file that is written beside the one that it then replaces; it goes when it does not. It is locked: an export that
/// was killed leaves it unlocked, for the next one to remove.
struct Partial {
    path: PathBuf,
    target: PathBuf,
    file: File,
}

impl Partial {
    /// The one for a file, or for the file that a link leads to.
    fn beside(path: &Path) -> Result<Self> {
        let target = block::file::behind_links(path);
        let Some(name) = target.file_name() else {
            return Err(Error::invalid(format!("{} is not a file's name", path.display())));
        };
        let failed = |e| Error::io(path.display(), e);
        for number in 0..MOST_PARTIAL {
            let mut partial = OsString::from(".");
            partial.push(name);
            partial.push(match number {
                0 => ".partial".to_owned(),
                _ => format!(".partial-{number}"),
            });
            let partial = target.with_file_name(partial);
            if let Some(file) = make_locked(&partial).map_err(failed)? {
                return Ok(Self { path: partial, target, file });
            }
        }
        Err(Error::conflict(format!("{} is written by {MOST_PARTIAL} exports", path.display())))
    }

    /// Gives it its name, once it is on stable storage.
    fn finish(&self) -> Result<()> {
        let failed = |e| Error::io(self.target.display(), e);
        self.file.sync_all().map_err(failed)?;
        std::fs::rename(&self.path, &self.target).map_err(failed)?;
        block::file::sync_directory(match self.target.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        })
    }
}

/// Makes a file and locks it, in place of one that nobody has locked; `None` when somebody has.
fn make_locked(path: &Path) -> io::Result<Option<File>> {
    let is_there = |file: &File| -> io::Result<bool> {
        let ours = file.metadata()?;
        let there = std::fs::symlink_metadata(path);
        Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
    };
    match File::open(path) {
        Ok(left) if left.try_lock().is_err() => return Ok(None),
        // Whoever held it until now may have given it its name meanwhile.
        Ok(left) if is_there(&left)? => std::fs::remove_file(path)?,
        Err(e) if e.kind() != io::ErrorKind::NotFound => std::fs::remove_file(path)?,
        _ => {}
    }
    let file = match File::options().read(true).write(true).create_new(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        file => file?,
    };
    // Another export may have taken it for one that was left.
    Ok((file.try_lock().is_ok() && is_there(&file)?).then_some(file))
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where bytes go, and what has to be done at the end.
trait OutputSink: Write {
    fn finish(self: Box<Self>) -> io::Result<()>;
}

impl OutputSink for File {
    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

impl OutputSink for io::Stdout {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.flush()
    }
}

impl OutputSink for flate2::write::GzEncoder<File> {
    fn finish(self: Box<Self>) -> io::Result<()> {
        (*self).finish().map(drop)
    }
}

impl OutputSink for zstd::Encoder<'static, File> {
    fn finish(self: Box<Self>) -> io::Result<()> {
        (*self).finish().map(drop)
    }
}

impl Packing {
    /// Compresses on the way.
    fn sink(self, file: File) -> io::Result<Box<dyn OutputSink>> {
        Ok(match self {
            Self::None => Box::new(file),
            Self::Gzip => {
                Box::new(flate2::write::GzEncoder::new(file, flate2::Compression::default()))
            }
            Self::Zstd => Box::new(zstd::Encoder::new(file, 3)?),
        })
    }
}

fn write(
    source: &mut dyn Source,
    out: Box<dyn OutputSink>,
    path: &Path,
    options: &ExportOptions,
) -> Result<Exported> {
    let mut out = BufWriter::with_capacity(256 << 10, out);
    let done = match options.format.definition().writer {
        FormatWriter::Native => native(source, &mut out, path)?,
        FormatWriter::Text(writer) => text(source, &mut out, path, &mut *writer())?,
        FormatWriter::None | FormatWriter::File(_) => {
            return Err(Error::unsupported(format!(
                "{} is only read; write {}",
                options.format,
                listed(written().map(|format| format.to_string()))
            )));
        }
    };
    let out = out.into_inner().map_err(io::IntoInnerError::into_error);
    out.and_then(OutputSink::finish).map_err(|e| Error::io(path.display(), e))?;
    Ok(done)
}

fn native(source: &mut dyn Source, out: &mut dyn Write, path: &Path) -> Result<Exported> {
    let mut writer = Writer::new(out, path, source.header().clone(), Effort::Normal)?;
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        for request in &batch {
            writer.push(request)?;
        }
    }
    *writer.header_mut() = source.header().clone();
    let requests = writer.requests();
    writer.finish()?;
    Ok(Exported { requests, records: requests, left_out: 0 })
}

fn text(
    source: &mut dyn Source,
    out: &mut dyn Write,
    path: &Path,
    format: &mut dyn TextWriter,
) -> Result<Exported> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::Unsupported => Error::unsupported(format!("{}: {e}", path.display())),
        _ => Error::io(path.display(), e),
    };
    let mut done = Exported::default();
    format.begin(source.header(), out).map_err(failed)?;
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        for request in &batch {
            let written = format.request(source.header(), request, out).map_err(failed)?;
            done.requests += 1;
            done.records += u64::from(written);
            done.left_out += u64::from(!written);
        }
    }
    format.end(source.header(), out).map_err(failed)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Memory, Request};

    const CSV: ExportOptions = ExportOptions { format: Format::Csv, unit: 4096 };

    fn requests(count: u64) -> Memory {
        let request = |at| Request { time: at, length: 4096, ..Request::default() };
        Memory::new(Header::default(), (0..count).map(request).collect())
    }

    /// A source of which another export writes the same file meanwhile.
    struct Disturbed<'a>(Memory, &'a Path);

    impl Source for Disturbed<'_> {
        fn header(&self) -> &Header {
            self.0.header()
        }

        fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
            assert_eq!(export(&mut requests(1), self.1, &CSV)?.requests, 1);
            self.0.read(batch)
        }
    }

    #[test]
    fn two_exports_to_one_file_are_both_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(folder.path().join(".t.csv.partial"), "of one that was killed").unwrap();
        export(&mut Disturbed(requests(5), &path), &path, &CSV).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 6);
        let names = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["t.csv"]);
    }
}

//! A file's bytes, whatever it is compressed with, and a look at the first of them.

use block::{Error, Result};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

/// Bytes that are looked at to tell the format.
pub(crate) const SAMPLE: usize = 64 << 10;

/// What a file compressed with xz may make us take, in KiB: twice what its highest level needs.
const XZ_MEMORY: u32 = 128 << 10;

/// An open file: its first bytes, and a reader of all of them.
pub(crate) struct TraceInput {
    pub(crate) sample: Vec<u8>,
    /// The sample is the whole of it.
    pub(crate) whole: bool,
    pub(crate) reader: Box<dyn Read + Send>,
    /// What it was compressed with.
    pub(crate) compressed: bool,
}

/// Opens a file and takes its compression off.
pub(crate) fn open(path: &Path) -> Result<TraceInput> {
    let file = File::open(path).map_err(|e| Error::io(path.display(), e))?;
    let is_dir = file.metadata().map_err(|e| Error::io(path.display(), e))?.is_dir();
    if is_dir {
        return Err(Error::invalid(format!("{}: a directory, not a trace", path.display())));
    }
    of(Box::new(file)).map_err(|e| Error::io(path.display(), e))
}

/// Opens any input as [`open`] does.
pub(crate) fn of(mut raw: Box<dyn Read + Send>) -> io::Result<TraceInput> {
    let (first, _) = sample(&mut raw, 6)?;
    let magic = first.clone();
    let raw = Cursor::new(first).chain(raw);
    let (mut reader, compressed): (Box<dyn Read + Send>, bool) = match magic.as_slice() {
        [0x1f, 0x8b, ..] => {
            let reader = flate2::bufread::MultiGzDecoder::new(BufReader::new(raw));
            (Box::new(Named { reader, name: "gzip" }), true)
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            let raw = BufReader::new(raw);
            let reader = lzma_rust2::XzReader::new_mem_limit(raw, true, XZ_MEMORY);
            (Box::new(Named { reader, name: "xz" }), true)
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            (Box::new(Named { reader: zstd::Decoder::new(raw)?, name: "zstd" }), true)
        }
        _ => (Box::new(raw), false),
    };
    let (sample, whole) = sample(&mut reader, SAMPLE)?;
    let reader = Box::new(Cursor::new(sample.clone()).chain(reader));
    Ok(TraceInput { sample, whole, reader, compressed })
}

/// A decompressor whose errors say what they are of.
struct Named<R> {
    reader: R,
    name: &'static str,
}

impl<R: Read> Read for Named<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let what = |e: io::Error| {
            let (name, kind) = (self.name, e.kind());
            let text = match kind {
                io::ErrorKind::UnexpectedEof => format!("the {name} data end too early"),
                io::ErrorKind::OutOfMemory => {
                    format!("the {name} data want more memory than the 128 MiB that are allowed")
                }
                io::ErrorKind::Interrupted => return e,
                _ => format!("the {name} data are damaged: {e}"),
            };
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        self.reader.read(buf).map_err(what)
    }
}

/// Up to `size` bytes, and whether the input ended before.
fn sample(reader: &mut dyn Read, size: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::with_capacity(size);
    reader.take(size as u64).read_to_end(&mut bytes)?;
    let whole = bytes.len() < size;
    Ok((bytes, whole))
}

//! A disk whose data is in flat files, one after the other.

use super::descriptor::{ExtentData, extents};
use super::siblings::Siblings;
use async_trait::async_trait;
use block::image_lock::LockedFile;
use block::{
    Device, Durability, Error, Extent, ExtentKind, RandomFile, Result, Span, ZeroMode, extent,
    offload,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SECTOR: u64 = 512;

/// A disk made of pieces of files; it is only read.
pub(super) struct Flat {
    path: PathBuf,
    /// The descriptor, which stays locked.
    _descriptor: LockedFile,
    /// In the order of the disk, without gaps.
    pieces: Arc<[FlatPiece]>,
}

struct FlatPiece {
    /// Where it is on the disk.
    span: Span,
    /// The file of its data, and where that begins there; none for zeroes.
    data: Option<(Arc<RandomFile>, u64)>,
}

impl Flat {
    /// Opens what a descriptor names, as far as it may.
    ///
    /// # Errors
    /// All name the descriptor. [`Corrupt`](block::ErrorKind::Corrupt) when it is damaged, or a file
    /// is too short; [`Denied`](block::ErrorKind::Denied) when it names a file that it may not;
    /// [`Unsupported`](block::ErrorKind::Unsupported) for what is not read; any error from opening.
    pub(super) fn open(descriptor: LockedFile, path: &Path, text: &str) -> Result<Self> {
        let extents = extents(text).map_err(|e| e.context(path.display()))?;
        let too_large = || {
            Error::corrupt(format!(
                "{}: no disk is as large as its parts; fetch it again",
                path.display()
            ))
        };
        let siblings = Siblings::of(path);
        // A file may hold several parts.
        let mut files: BTreeMap<String, (Arc<RandomFile>, u64)> = BTreeMap::new();
        let mut pieces = Vec::with_capacity(extents.len());
        let mut at = 0;
        for part in extents {
            let len = part.sectors.checked_mul(SECTOR).ok_or_else(too_large)?;
            let end = u64::checked_add(at, len).filter(|end| *end <= i64::MAX as u64);
            let span = Span::between(at, end.ok_or_else(too_large)?);
            let data = match part.data {
                ExtentData::Zero => None,
                ExtentData::File { name, sector } => {
                    if !files.contains_key(&name) {
                        let file = siblings.open(&name).map_err(|e| e.context(path.display()))?;
                        let len = file.len()?;
                        files.insert(name.clone(), (Arc::new(file), len));
                    }
                    let (file, held) = &files[&name];
                    let begin = sector.checked_mul(SECTOR).ok_or_else(too_large)?;
                    if begin.checked_add(len).is_none_or(|end| end > *held) {
                        return Err(Error::corrupt(format!(
                            "{}: truncated: {name} has {held} bytes, and {len} from byte {begin} on \
                             belong to the disk; fetch it again",
                            path.display()
                        )));
                    }
                    Some((Arc::clone(file), begin))
                }
            };
            at = span.end();
            if !span.is_empty() {
                pieces.push(FlatPiece { span, data });
            }
        }
        Ok(Self { path: path.to_owned(), _descriptor: descriptor, pieces: pieces.into() })
    }

    fn read_only<T>(&self) -> Result<T> {
        let path = self.path.display();
        Err(Error::denied(format!("{path}: vmdk images can only be read; convert it to qcow2")))
    }
}

/// The parts of a span with the pieces that they are in, in order.
fn parts(pieces: &[FlatPiece], span: Span) -> impl Iterator<Item = (&FlatPiece, Span)> {
    let first = pieces.partition_point(|piece| piece.span.end() <= span.offset());
    pieces[first..].iter().map_while(move |piece| Some((piece, piece.span.intersect(span)?)))
}

#[async_trait]
impl Device for Flat {
    fn size(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.span.end())
    }

    fn read_only(&self) -> bool {
        true
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        for (piece, part) in parts(&self.pieces, span) {
            let buf = &mut buf[part.index_in(span)];
            match &piece.data {
                Some((file, begin)) => {
                    file.read(begin + (part.offset() - piece.span.offset()), buf).await?;
                }
                None => buf.fill(0),
            }
        }
        Ok(())
    }

    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        self.read_only()
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        self.read_only()
    }

    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        self.read_only()
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let pieces = Arc::clone(&self.pieces);
        offload(move || {
            let mut list = Vec::new();
            for (piece, part) in parts(&pieces, span) {
                if list.len() >= limit {
                    break;
                }
                let Some((file, begin)) = &piece.data else {
                    extent::push(&mut list, part, ExtentKind::Hole);
                    continue;
                };
                let from = begin + (part.offset() - piece.span.offset());
                let held =
                    file.extents(Span::between(from, from + part.len()), limit - list.len())?;
                let mut end = part.offset();
                for Extent { span, kind } in held {
                    let start = part.offset() + (span.offset() - from);
                    end = start + span.len();
                    extent::push(&mut list, Span::between(start, end), kind);
                }
                if end < part.end() {
                    break; // there were more than the limit
                }
            }
            Ok(list)
        })
        .await
    }
}

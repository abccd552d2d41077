//! The piece cache: parts of a remote store's immutable objects, kept on a local disk.
//!
//! Packs are kept in pieces of 128 KiB, cut at multiples of that; the indexes of packs, segments
//! and roots as they were asked for. Of a store that lets only chunks be read the
//! ranges of packs are kept as they were asked for, too. A piece is a file; its name is a hash of the store's place,
//! the object's key and the part. A file is believed only if its own hash is right, so torn, old
//! and foreign files do no harm: they are fetched again. Nothing is synced. Everything may be
//! deleted at any time, and several processes may share the directory.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `SOJPIEC1` |
//! | 8 | 32 | BLAKE3, keyed with the file's name, of the rest |
//! | 40 | … | the part |

use super::Hint;
use super::batch::RangeBatches;
use super::gathered::again;
use super::layer::object_layer;
use super::local_disk::{LocalDisk, PieceOptions, ToldPart};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, Shared, WeakShared, try_join_all};
use futures::stream;
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore, PutOptions,
    PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a piece of a pack.
const PIECE: u64 = 128 << 10;
/// The longest object that is kept whole.
const LONGEST: u64 = 16 << 20;
/// What is kept: objects whose names are hashes of their content.
const KEPT: [&str; 4] = ["packs/", "segments/", "manifests/", "bootlists/"];
/// Kept, too, where that is asked for: it never changes, and the store cannot be opened without it.
const SETTINGS: &str = "store.json";

/// Whether the settings of a store are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepSettings {
    /// They are read from the store, and not kept.
    #[default]
    Never,
    /// They are read from the store, and kept for who opens it next.
    ForNext,
    /// They are read from the store when none are kept.
    Always,
}

type PieceName = [u8; 32];
type Fetch = BoxFuture<'static, Result<Bytes, Arc<Error>>>;

/// A part of an object.
#[derive(Clone, Copy)]
enum ObjectPart {
    /// A piece of a pack, by its number.
    Piece(u64),
    /// A range, as it was asked for.
    Range(u64, u64),
    /// The whole object.
    Whole,
}

/// A backend whose immutable objects are kept on a local disk.
#[derive(Clone)]
pub(crate) struct PieceCache {
    inner: Arc<dyn ObjectStore>,
    disk: Arc<LocalDisk>,
    /// Hash of the store's place.
    place: [u8; 32],
    /// Who gives ranges of packs where they are fetched and kept as they were asked for, and not in pieces: not
    /// all that lies beside one may be read.
    as_asked: Option<Arc<dyn RangeBatches>>,
    /// The store may be away for long: see [`distant`](Self::distant).
    is_distant: bool,
    settings: KeepSettings,
    /// Pieces that are on their way, for all who want them.
    flights: Arc<Mutex<HashMap<PieceName, WeakShared<Fetch>>>>,
}

impl PieceCache {
    /// Puts itself in front of `inner`, the store at `place`.
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, place: &str, options: PieceOptions) -> Self {
        let place = *blake3::hash(place.as_bytes()).as_bytes();
        let disk = Arc::new(LocalDisk::new(options));
        let (as_asked, flights) = (None, Arc::default());
        let settings = KeepSettings::Never;
        Self { inner, disk, place, as_asked, is_distant: false, settings, flights }
    }

    /// The same, but ranges of packs are fetched from `ranges`, as they were asked for, and kept so.
    #[must_use]
    pub(crate) fn taking_ranges_from(self, ranges: Arc<dyn RangeBatches>) -> Self {
        Self { as_asked: Some(ranges), ..self }
    }

    /// The same in front of a store that may be away for long: what is written is kept like what is read,
    /// and so are the store's settings, without which it cannot be opened.
    #[must_use]
    pub(crate) fn distant(self) -> Self {
        Self { is_distant: true, settings: KeepSettings::Always, ..self }
    }

    /// The same, keeping the store's settings as `settings` says.
    #[must_use]
    pub(crate) fn keeping_settings(self, settings: KeepSettings) -> Self {
        Self { settings, ..self }
    }

    fn keeps(&self, path: &Path) -> bool {
        is_kept(path) || (self.settings == KeepSettings::Always && path.as_ref() == SETTINGS)
    }

    /// Keeps an object that was written, in the parts that it may be read in.
    async fn keep_written(&self, path: &Path, bytes: Bytes) {
        if !path.as_ref().starts_with("packs/") {
            return self.disk.keep(self.name(path, ObjectPart::Whole), bytes).await;
        }
        for (number, start) in (0..bytes.len()).step_by(PIECE as usize).enumerate() {
            let piece = bytes.slice(start..bytes.len().min(start + PIECE as usize));
            self.disk.keep(self.name(path, ObjectPart::Piece(number as u64)), piece).await;
        }
    }

    /// Whether a range of an object is kept, by the names of the files: none is read.
    pub(crate) fn has(&self, path: &Path, range: &Range<u64>) -> bool {
        let own = || {
            self.disk.has(self.name(path, ObjectPart::Range(range.start, range.end - range.start)))
        };
        let mut numbers = range.start / PIECE..range.end.div_ceil(PIECE);
        (self.keeps_ranges() && own())
            || numbers.all(|number| self.disk.has(self.name(path, ObjectPart::Piece(number))))
    }

    /// Keeps a range of an object that came from elsewhere.
    pub(crate) async fn keep_range(&self, path: &Path, range: &Range<u64>, bytes: Bytes) {
        if is_kept(path) && self.keeps_ranges() && bytes.len() as u64 == range.end - range.start {
            let name = self.name(path, ObjectPart::Range(range.start, range.end - range.start));
            self.disk.keep(name, bytes).await;
        }
    }

    /// Whether an object is kept as a whole, by the name of the file: it is not read.
    pub(crate) fn has_object(&self, path: &Path) -> bool {
        self.disk.has(self.name(path, ObjectPart::Whole))
    }

    /// Keeps an object that came from elsewhere, unless it is longer than any that is kept.
    pub(crate) async fn keep_object(&self, path: &Path, bytes: Bytes) {
        if is_kept(path) && !path.as_ref().starts_with("packs/") && bytes.len() as u64 <= LONGEST {
            self.disk.keep(self.name(path, ObjectPart::Whole), bytes).await;
        }
    }

    /// Whether ranges are looked for as they are asked for, and not in pieces alone.
    fn keeps_ranges(&self) -> bool {
        self.is_distant || self.as_asked.is_some()
    }

    /// What was kept where, and what that was good for.
    pub(crate) fn disk(&self) -> Arc<LocalDisk> {
        Arc::clone(&self.disk)
    }

    fn name(&self, path: &Path, part: ObjectPart) -> PieceName {
        let (kind, a, b) = match part {
            ObjectPart::Piece(number) => (0u8, number, PIECE),
            ObjectPart::Range(start, len) => (1, start, len),
            ObjectPart::Whole => (2, 0, 0),
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.place);
        hasher.update(&[kind]).update(&a.to_le_bytes()).update(&b.to_le_bytes());
        hasher.update(path.as_ref().as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// A piece, kept or fetched. It is shorter than [`PIECE`] at the end of the object.
    async fn piece(&self, path: &Path, number: u64) -> Result<Bytes> {
        let name = self.name(path, ObjectPart::Piece(number));
        if let Some(found) = self.disk.read(name).await {
            return Ok(found);
        }
        let fetch = self.flight(name, path, number);
        fetch.await.map_err(|e| again(&e))
    }

    /// The fetch of a piece; one for all who want it at the same time.
    fn flight(&self, name: PieceName, path: &Path, number: u64) -> Shared<Fetch> {
        let mut flights = self.flights.lock();
        if let Some(fetch) = flights.get(&name).and_then(WeakShared::upgrade) {
            return fetch;
        }
        let (this, path) = (self.clone(), path.clone());
        let fetch = async move {
            // Another fetch may have ended since it was looked for.
            let kept = if this.disk.has(name) { this.disk.read(name).await } else { None };
            let bytes = match kept {
                Some(bytes) => Ok(bytes),
                None => this.fetch(name, &path, number).await.map_err(Arc::new),
            };
            this.flights.lock().remove(&name);
            bytes
        };
        let fetch = fetch.boxed().shared();
        // Fetches that everybody left are dropped, and swept here.
        if flights.len() >= 1024 {
            flights.retain(|_, fetch| fetch.upgrade().is_some());
        }
        if let Some(weak) = fetch.downgrade() {
            flights.insert(name, weak);
        }
        fetch
    }

    /// Fetches a piece, and keeps it.
    async fn fetch(&self, name: PieceName, path: &Path, number: u64) -> Result<Bytes> {
        let range = number * PIECE..(number + 1) * PIECE;
        let bytes = self.inner.get_ranges(path, &[range]).await?.pop().unwrap_or_default();
        self.disk.keep(name, bytes.clone()).await;
        Ok(bytes)
    }

    async fn range(&self, path: &Path, range: &Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let numbers = range.start / PIECE..range.end.div_ceil(PIECE);
        let first = numbers.start * PIECE;
        let at = |end: u64, bytes: &Bytes| ((end - first) as usize).min(bytes.len());
        if numbers.end - numbers.start == 1 {
            let piece = self.piece(path, numbers.start).await?;
            return Ok(piece.slice(at(range.start, &piece)..at(range.end, &piece)));
        }
        let pieces = try_join_all(numbers.map(|number| self.piece(path, number))).await?;
        let mut whole = Vec::with_capacity(pieces.len() * PIECE as usize);
        for piece in &pieces {
            whole.extend_from_slice(piece);
            if piece.len() as u64 != PIECE {
                break; // the object ends here
            }
        }
        let whole = Bytes::from(whole);
        Ok(whole.slice(at(range.start, &whole)..at(range.end, &whole)))
    }

    /// A range of an object as it was asked for, if it is kept: by itself, or in pieces of what was written.
    async fn kept_range(&self, path: &Path, range: &Range<u64>) -> Option<Bytes> {
        if range.is_empty() {
            return Some(Bytes::new());
        }
        let own = self.name(path, ObjectPart::Range(range.start, range.end - range.start));
        if self.disk.has(own) {
            return self.disk.read(own).await;
        }
        let numbers = range.start / PIECE..range.end.div_ceil(PIECE);
        let names: Vec<PieceName> =
            numbers.map(|n| self.name(path, ObjectPart::Piece(n))).collect();
        if !names.iter().all(|name| self.disk.has(*name)) {
            return None;
        }
        let mut whole = Vec::new();
        for name in names {
            whole.extend_from_slice(&self.disk.read(name).await?);
        }
        let skip = (range.start % PIECE) as usize;
        let end = skip + (range.end - range.start) as usize;
        (whole.len() >= end).then(|| Bytes::from(whole).slice(skip..end))
    }

    /// Ranges of an object as they were asked for, kept or fetched together; each is kept as it comes.
    async fn as_asked(
        &self,
        source: &dyn RangeBatches,
        path: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let mut found = Vec::with_capacity(ranges.len());
        let mut missing = Vec::new();
        for range in ranges {
            let kept = self.kept_range(path, range).await;
            if kept.is_none() {
                missing.push(range.clone());
            }
            found.push(kept);
        }
        let mut parts = source.ranges(path, &missing);
        let mut all = Vec::with_capacity(ranges.len());
        for (range, kept) in ranges.iter().zip(found) {
            if let Some(bytes) = kept {
                all.push(bytes);
                continue;
            }
            let bytes = parts.next().await.transpose()?.unwrap_or_default();
            let len = range.end - range.start;
            // A shorter one ends with the object, and is not what its name would say.
            if bytes.len() as u64 == len {
                self.disk
                    .keep(self.name(path, ObjectPart::Range(range.start, len)), bytes.clone())
                    .await;
            }
            all.push(bytes);
        }
        Ok(all)
    }

    /// Which part a request is kept as, if it is.
    fn part(&self, path: &Path, options: &GetOptions) -> Option<ObjectPart> {
        let plain = options.if_match.is_none()
            && options.if_none_match.is_none()
            && options.if_modified_since.is_none()
            && options.if_unmodified_since.is_none()
            && options.version.is_none()
            && !options.head;
        if !plain || !self.keeps(path) || options.extensions.get() == Some(&Hint::Fresh) {
            return None;
        }
        match &options.range {
            None if !path.as_ref().starts_with("packs/") => Some(ObjectPart::Whole),
            Some(GetRange::Bounded(range)) if options.extensions.get() == Some(&Hint::Exact) => {
                Some(ObjectPart::Range(range.start, range.end - range.start))
            }
            _ => None,
        }
    }

    /// Reads from the backend, and mends what is kept of that where it is something else. Whoever wants it fresh does
    /// not believe what is kept, but may be wrong: nothing is given up for no answer, nor for the same one.
    async fn fresh(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let (asked, head) = (options.range.clone(), options.head);
        let found = self.inner.get_opts(path, options).await?;
        if head {
            return Ok(found);
        }
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let is_whole = asked.is_none();
        let told = match asked {
            Some(GetRange::Bounded(asked)) => asked,
            _ => range.clone(),
        };
        if range.end - range.start > LONGEST {
            // It goes by piecemeal, and is compared with nothing.
            let parts = self.parts_around(path, &told, is_whole, &Bytes::new());
            self.disk.forget(parts.iter().map(|part| part.name).collect()).await;
            return Ok(found);
        }
        let bytes = found.bytes().await?;
        let parts = self.parts_around(path, &told, is_whole, &bytes);
        for part in self.disk.forget_changed(parts).await.into_iter().filter(|part| part.is_all) {
            self.disk.keep(part.name, part.bytes).await;
        }
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    /// The parts that what is at `told` of an object may be kept in, with what `bytes`, which are there, say of each.
    /// `is_whole`: they are all of the object.
    fn parts_around(
        &self,
        path: &Path,
        told: &Range<u64>,
        is_whole: bool,
        bytes: &Bytes,
    ) -> Vec<ToldPart> {
        let len = told.end.saturating_sub(told.start);
        let part = |part, within, bytes, is_all| {
            let name = self.name(path, part);
            ToldPart { name, within, bytes, is_all }
        };
        let is_all = bytes.len() as u64 == len;
        let own = ObjectPart::Range(told.start, len);
        let mut parts = vec![part(own, 0..len, bytes.clone(), is_all)];
        parts.push(match is_whole {
            true => part(ObjectPart::Whole, 0..u64::MAX, bytes.clone(), true),
            false => part(ObjectPart::Whole, told.clone(), bytes.clone(), false),
        });
        let last = told.end.min(told.start.saturating_add(LONGEST)).div_ceil(PIECE);
        for number in told.start / PIECE..last {
            let first = number * PIECE;
            let (start, end) = (told.start.max(first), told.end.min(first + PIECE));
            let at = |offset: u64| ((offset - told.start) as usize).min(bytes.len());
            let (told, is_all) = (bytes.slice(at(start)..at(end)), is_all && end - start == PIECE);
            parts.push(part(ObjectPart::Piece(number), start - first..end - first, told, is_all));
        }
        parts
    }

    /// Forgets what is kept of an object of `len` bytes that is written anew.
    async fn forget(&self, path: &Path, len: u64) {
        if is_kept(path) {
            let pieces = (0..len.div_ceil(PIECE)).map(ObjectPart::Piece);
            let names =
                pieces.chain([ObjectPart::Whole]).map(|part| self.name(path, part)).collect();
            self.disk.forget(names).await;
        }
    }
}

fn is_kept(path: &Path) -> bool {
    KEPT.iter().any(|prefix| path.as_ref().starts_with(prefix))
}

/// An answer that was not asked of the backend.
fn answer(path: &Path, part: ObjectPart, bytes: Bytes) -> GetResult {
    let len = bytes.len() as u64;
    let start = if let ObjectPart::Range(start, _) = part { start } else { 0 };
    GetResult {
        payload: GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed()),
        meta: ObjectMeta {
            location: path.clone(),
            last_modified: Default::default(),
            size: start + len,
            e_tag: None,
            version: None,
        },
        range: start..start + len,
        attributes: Default::default(),
        extensions: Default::default(),
    }
}

impl fmt::Display for PieceCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl fmt::Debug for PieceCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pieces({:?})", self.inner)
    }
}

object_layer!(PieceCache);

#[async_trait]
impl super::layer::ObjectLayer for PieceCache {
    type Below = dyn ObjectStore;

    fn below(&self) -> &Self::Below {
        &*self.inner
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let len = payload.content_length() as u64;
        let written = (self.is_distant && is_kept(location)).then(|| payload.clone());
        let result = self.inner.put_opts(location, payload, opts).await;
        match written {
            _ if result.is_err() => {}
            Some(payload) => self.keep_written(location, payload.into()).await,
            None => self.forget(location, len).await,
        }
        result
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(part) = self.part(location, &options) else {
            if options.extensions.get() == Some(&Hint::Fresh) && is_kept(location) {
                return self.fresh(location, options).await;
            }
            let for_next = self.settings == KeepSettings::ForNext
                && location.as_ref() == SETTINGS
                && !options.head
                && options.range.is_none();
            let found = self.inner.get_opts(location, options).await?;
            if !for_next || found.meta.size > LONGEST {
                return Ok(found);
            }
            let bytes = found.bytes().await?;
            self.disk.keep(self.name(location, ObjectPart::Whole), bytes.clone()).await;
            return Ok(answer(location, ObjectPart::Whole, bytes));
        };
        let name = self.name(location, part);
        if let Some(bytes) = self.disk.read(name).await {
            return Ok(answer(location, part, bytes));
        }
        let found = self.inner.get_opts(location, options).await?;
        if found.range.end - found.range.start > LONGEST {
            return Ok(found);
        }
        let bytes = found.bytes().await?;
        self.disk.keep(name, bytes.clone()).await;
        Ok(answer(location, part, bytes))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if !is_kept(location) {
            return self.inner.get_ranges(location, ranges).await;
        }
        if let Some(source) = &self.as_asked {
            return self.as_asked(&**source, location, ranges).await;
        }
        let range = async |range: &Range<u64>| {
            let own = self.name(location, ObjectPart::Range(range.start, range.end - range.start));
            if self.is_distant
                && self.disk.has(own)
                && let Some(bytes) = self.disk.read(own).await
            {
                return Ok(bytes);
            }
            self.range(location, range).await
        };
        try_join_all(ranges.iter().map(range)).await
    }
}

#[cfg(test)]
mod tests;

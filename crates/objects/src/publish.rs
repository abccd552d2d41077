//! A store behind a plain web server, which cannot list: an object `listing` says what there is.
//!
//! [`publish`] writes it; readers go by it. It is the only object of a store that is replaced. It
//! says no more than a listing of the backend would, so an old one shows an old state of the
//! names, all of it sound while the collector's grace period lasts.
//!
//! The object is a line `sojourn-listing 1 <CRC-32C of the rest> <length of the rest>`, then one
//! line `<size> <last modified, Unix seconds> <key>` for each object, sorted by key.

use super::{error, get, list};
use crate::header::{HeaderLine, header_line};
use async_trait::async_trait;
use block::Result;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use std::fmt;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

/// The key of the listing.
pub const KEY: &str = "listing";
const MAGIC: &str = "sojourn-listing";
const VERSION: u64 = 1;
/// The longest listing that is written or read: some 2.5 million objects.
const MAX_LEN: u64 = 256 << 20;

/// Writes the listing of a store for those who read it through a web server; returns how many
/// objects it names.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the
/// backend cannot be listed or written to, [`NoSpace`](block::ErrorKind::NoSpace) when it is full.
pub async fn publish(backend: &dyn ObjectStore) -> Result<u64> {
    let mut found = list(backend, "").await?;
    found.retain(|meta| meta.location.as_ref() != KEY);
    found.sort_unstable_by(|a, b| a.location.cmp(&b.location));
    let mut text = String::new();
    for meta in &found {
        let time = meta.last_modified.timestamp();
        let _ = writeln!(text, "{} {time} {}", meta.size, meta.location);
    }
    let whole = format!("{}{text}", header(&text));
    if whole.len() as u64 > MAX_LEN {
        return Err(block::Error::unsupported(format!(
            "the store has {} objects, too many for a web server; serve it from an object store",
            found.len()
        )));
    }
    backend.put(&Path::from(KEY), whole.into()).await.map_err(|e| error(KEY, e))?;
    Ok(found.len() as u64)
}

/// Reads the listing of a store and checks it.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is none, [`Corrupt`](block::ErrorKind::Corrupt) when it is
/// damaged; [`Unavailable`](block::ErrorKind::Unavailable) or
/// [`Denied`](block::ErrorKind::Denied) from the backend.
pub async fn check(backend: &dyn ObjectStore) -> Result<()> {
    decode(&get(backend, KEY, MAX_LEN).await?, None).map(drop)
}

fn header(text: &str) -> String {
    format!("{MAGIC} {VERSION} {:08x} {}\n", crc32c::crc32c(text.as_bytes()), text.len())
}

/// Reads a listing: the objects below `prefix`.
fn decode(bytes: &[u8], prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
    let damaged = |why: &str| {
        block::Error::corrupt(format!(
            "object {KEY} is damaged: {why}; write it again with \"sojourn store publish\""
        ))
    };
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
    let (line, rest) = text.split_once('\n').ok_or_else(|| damaged("no header line"))?;
    match header_line(MAGIC, &format!("{line}\n"), rest.as_bytes()) {
        HeaderLine::Version(VERSION) => {}
        HeaderLine::Version(version) => {
            return Err(block::Error::unsupported(format!(
                "object {KEY} has format version {version}, this build reads up to {VERSION}; use \
                 a newer sojourn"
            )));
        }
        HeaderLine::Damaged(why) => return Err(damaged(why)),
    }
    if header(rest).trim_end() != line {
        return Err(damaged("checksum or length mismatch"));
    }
    let mut found = Vec::new();
    for line in rest.lines() {
        let mut fields = line.splitn(3, ' ');
        let mut next = || fields.next().ok_or_else(|| damaged("a line lacks a field"));
        let size = next()?.parse().map_err(|_| damaged("a size is not a number"))?;
        let time: i64 = next()?.parse().map_err(|_| damaged("a time is not a number"))?;
        let location = Path::parse(next()?).map_err(|_| damaged("a key is not possible"))?;
        let below = prefix.is_none_or(|prefix| {
            location.prefix_match(prefix).is_some_and(|mut rest| rest.next().is_some())
        });
        if below {
            let last_modified =
                object_time(time).ok_or_else(|| damaged("a time is not possible"))?;
            found.push(ObjectMeta { location, last_modified, size, e_tag: None, version: None });
        }
    }
    Ok(found)
}

/// A backend's time from Unix seconds.
fn object_time<T: Default + std::ops::Add<std::time::Duration, Output = T>>(
    unix: i64,
) -> Option<T> {
    // The default is the start of 1970; the years are bounded so that nothing overflows.
    let seconds = u64::try_from(unix).ok().filter(|seconds| *seconds < 1 << 37)?;
    Some(T::default() + std::time::Duration::from_secs(seconds))
}

/// A store behind a web server: it can be read, and is listed by its own [`KEY`].
#[derive(Clone)]
pub(crate) struct Published {
    inner: Arc<dyn ObjectStore>,
}

impl Published {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner }
    }
}

/// What becomes of a write.
fn read_only(path: &Path) -> Error {
    Error::PermissionDenied {
        path: path.to_string(),
        source: "a store behind a web server is read only; change it where it is kept".into(),
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Published({:?})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Published {
    async fn put_opts(
        &self,
        location: &Path,
        _: PutPayload,
        _: PutOptions,
    ) -> object_store::Result<PutResult> {
        Err(read_only(location))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(read_only(location))
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> object_store::Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        locations.and_then(|location| async move { Err(read_only(&location)) }).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let (inner, prefix) = (Arc::clone(&self.inner), prefix.cloned());
        let listing = async move {
            let failed = |e: block::Error| {
                let missing = e.kind() == block::ErrorKind::NotFound;
                let what = if missing {
                    "the store was not published: run \"sojourn store publish\" where it is kept"
                        .to_owned()
                } else {
                    e.message().to_owned()
                };
                Error::NotSupported { source: what.into() }
            };
            let bytes = get(&*inner, KEY, MAX_LEN).await.map_err(failed)?;
            let found = decode(&bytes, prefix.as_ref()).map_err(failed)?;
            Ok::<_, Error>(stream::iter(found.into_iter().map(Ok)))
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        Err(Error::NotSupported { source: "a web server does not list".into() })
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(read_only(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use object_store::memory::InMemory;
    use proptest::prelude::*;

    #[tokio::test]
    async fn a_published_store_lists_what_its_backend_does_and_takes_no_write() {
        let memory = Arc::new(InMemory::new());
        for key in ["refs/image/a:1/1", "refs/image/b:1/1", "packs/x", "refs/imagex/c"] {
            memory.put(&Path::from(key), key.into()).await.unwrap();
        }
        let published = Published::new(memory.clone());
        let error = list(&published, "refs/image").await.unwrap_err();
        assert!(error.message().contains("sojourn store publish"), "{error}");
        assert_eq!(publish(&*memory).await.unwrap(), 4);
        assert_eq!(publish(&*memory).await.unwrap(), 4, "it does not list itself");
        for prefix in ["refs/image", "packs", "refs", "none"] {
            let mut theirs = list(&published, prefix).await.unwrap();
            let mut ours = list(&*memory, prefix).await.unwrap();
            theirs.sort_by(|a, b| a.location.cmp(&b.location));
            ours.sort_by(|a, b| a.location.cmp(&b.location));
            let brief = |all: &[ObjectMeta]| -> Vec<_> {
                all.iter()
                    .map(|m| (m.location.clone(), m.size, m.last_modified.timestamp()))
                    .collect()
            };
            assert_eq!(brief(&theirs), brief(&ours), "{prefix}");
        }
        let path = Path::from("packs/y");
        let refused =
            published.put(&path, "y".into()).await.map_err(|e| super::error(path.as_ref(), e));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied);
        assert!(published.delete(&path).await.is_err());
    }

    #[tokio::test]
    async fn any_truncation_or_flipped_bit_of_a_listing_is_refused() {
        let memory = InMemory::new();
        memory.put(&Path::from("packs/x"), "1".into()).await.unwrap();
        publish(&memory).await.unwrap();
        let good = get(&memory, KEY, MAX_LEN).await.unwrap();
        assert_eq!(decode(&good, None).unwrap().len(), 1);
        for len in 0..good.len() {
            assert!(decode(&good[..len], None).is_err());
        }
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 1;
            assert!(decode(&bad, None).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_lines_are_refused_without_panic(lines in "([0-9-]{0,20} [0-9-]{0,20} [a-z/.%]{0,10}\n?){0,4}") {
            let _ = decode(format!("{}{lines}", header(&lines)).as_bytes(), None);
        }
    }
}

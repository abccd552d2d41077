//! [`ScriptedStore`], a layer that notes what it is asked, and does what a script says.

use crate::RangeBatches;
use crate::layer::object_layer;
use async_trait::async_trait;
use block::testing::{CallRecorder, UnderWay};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A call on a backend, as a script sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreCall {
    /// An object is written, whole or in parts.
    Put(Path),
    /// An object, one range or its metadata is asked for.
    Get(Path),
    /// Several ranges of an object are asked for.
    Ranges(Path, Vec<Range<u64>>),
    /// One range of a [batch](RangeBatches) has its turn.
    Part(Path, Range<u64>),
    /// An object is removed.
    Delete(Path),
    /// Objects under a prefix are listed.
    List(Path),
    /// An object is copied to this place.
    Copy(Path),
}

/// What is to happen to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// Nothing: the call goes through.
    None,
    /// It fails as an input or output does; nothing is done.
    Fail(ErrorKind),
    /// It goes through after a while.
    Delay(Duration),
    /// It goes through once it is [released](CallRecorder::release).
    Hold,
}

/// A backend that notes every call, and asks a script what shall become of it. What the script lets
/// through, the backend below does. Clones share the script and the notes.
#[derive(Clone)]
pub struct ScriptedStore {
    inner: Arc<dyn ObjectStore>,
    script: Arc<StoreScript>,
    /// What it was asked.
    pub calls: Arc<CallRecorder<StoreCall>>,
}

struct StoreScript {
    plan: Box<dyn Fn(&StoreCall) -> StoreFault + Send + Sync>,
    written: Box<dyn Fn(&Path) + Send + Sync>,
}

impl ScriptedStore {
    /// Puts itself and the script `plan` in front of `inner`.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        plan: impl Fn(&StoreCall) -> StoreFault + Send + Sync + 'static,
    ) -> Self {
        Self::telling(inner, plan, |_| ())
    }

    /// The same; tells `written` of every object that was put, well or not, before that is answered.
    pub fn telling(
        inner: Arc<dyn ObjectStore>,
        plan: impl Fn(&StoreCall) -> StoreFault + Send + Sync + 'static,
        written: impl Fn(&Path) + Send + Sync + 'static,
    ) -> Self {
        let script = StoreScript { plan: Box::new(plan), written: Box::new(written) };
        Self { inner, script: Arc::new(script), calls: Arc::default() }
    }

    /// Waits or fails as planned; the call is under way until the answer is dropped.
    async fn meet(&self, call: StoreCall) -> Result<UnderWay<'_, StoreCall>> {
        let fault = (self.script.plan)(&call);
        let under_way = self.calls.enter(call, 0);
        match fault {
            StoreFault::None => {}
            StoreFault::Fail(kind) => {
                let source = std::io::Error::new(kind, "injected fault").into();
                return Err(Error::Generic { store: "scripted", source });
            }
            StoreFault::Delay(time) => tokio::time::sleep(time).await,
            StoreFault::Hold => self.calls.hold().await,
        }
        Ok(under_way)
    }
}

impl fmt::Display for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scripted({})", self.inner)
    }
}

impl fmt::Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

object_layer!(ScriptedStore);

#[async_trait]
impl crate::layer::ObjectLayer for ScriptedStore {
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
        let _under_way = self.meet(StoreCall::Put(location.clone())).await?;
        let put = self.inner.put_opts(location, payload, opts).await;
        (self.script.written)(location);
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let _under_way = self.meet(StoreCall::Put(location.clone())).await?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let _under_way = self.meet(StoreCall::Get(location.clone())).await?;
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let call = StoreCall::Ranges(location.clone(), ranges.to_vec());
        let _under_way = self.meet(call).await?;
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .and_then(move |location| {
                let this = this.clone();
                async move {
                    let _under_way = this.meet(StoreCall::Delete(location.clone())).await?;
                    this.inner.delete(&location).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listing = async move {
            this.meet(StoreCall::List(prefix.clone().unwrap_or_default())).await?;
            Ok::<_, Error>(this.inner.list(prefix.as_ref()))
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let call = StoreCall::List(prefix.cloned().unwrap_or_default());
        let _under_way = self.meet(call).await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let _under_way = self.meet(StoreCall::Copy(to.clone())).await?;
        self.inner.copy_opts(from, to, options).await
    }
}

impl RangeBatches for ScriptedStore {
    fn ranges<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> BoxStream<'a, Result<Bytes>> {
        let parts = async move {
            self.meet(StoreCall::Ranges(location.clone(), ranges.to_vec())).await?;
            let part = move |range: &'a Range<u64>| async move {
                let call = StoreCall::Part(location.clone(), range.clone());
                let _under_way = self.meet(call).await?;
                self.inner.get_range(location, range.clone()).await
            };
            Ok::<_, Error>(stream::iter(ranges).then(part))
        };
        stream::once(parts).try_flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn it_fails_holds_and_notes_what_the_script_says() {
        let backend = ScriptedStore::new(Arc::new(InMemory::new()), |call| match call {
            StoreCall::Put(path) if path.as_ref() == "bad" => {
                StoreFault::Fail(ErrorKind::ConnectionReset)
            }
            StoreCall::Put(_) => StoreFault::Hold,
            _ => StoreFault::None,
        });
        let (good, bad) = (Path::from("good"), Path::from("bad"));
        backend.put(&bad, "x".into()).await.unwrap_err();
        let release = async {
            backend.calls.until(|log| log.held == 1).await;
            assert!(backend.head(&good).await.is_err(), "it is not there yet");
            backend.calls.release(1);
        };
        let (put, ()) = tokio::join!(backend.put(&good, "abcdef".into()), release);
        put.unwrap();
        let parts: Vec<Bytes> = backend.ranges(&good, &[0..2, 4..6]).try_collect().await.unwrap();
        assert_eq!(parts, ["ab", "ef"]);
        let (list, ranges) = (backend.list(None).try_collect::<Vec<_>>(), vec![0..2, 4..6]);
        assert_eq!(list.await.unwrap().len(), 1);
        backend.delete(&good).await.unwrap();
        let expected = [
            StoreCall::Put(bad),
            StoreCall::Put(good.clone()),
            StoreCall::Get(good.clone()),
            StoreCall::Ranges(good.clone(), ranges),
            StoreCall::Part(good.clone(), 0..2),
            StoreCall::Part(good.clone(), 4..6),
            StoreCall::List(Path::default()),
            StoreCall::Delete(good),
        ];
        assert_eq!(backend.calls.log().asked, expected);
    }
}

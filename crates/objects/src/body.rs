//! An object, or a range of one, over a link that is thin or breaks: it is waited for as long as something comes, and
//! what has come is not asked for again.

use super::hint::MostBytes;
use super::patient::{Attempts, Patient, failure};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, Result};
use std::io::ErrorKind;
use std::ops::Range;
use tokio::time::Instant;

/// What has come of an object, or of a range of one.
struct PartialBody {
    /// The answer to the first request, without its body.
    answer: GetResult,
    parts: Vec<Bytes>,
    len: u64,
    /// Something came, of use or not.
    moved: bool,
}

impl PartialBody {
    fn new(answer: &GetResult) -> Self {
        let answer = GetResult {
            payload: GetResultPayload::Stream(stream::empty().boxed()),
            meta: answer.meta.clone(),
            range: answer.range.clone(),
            attributes: answer.attributes.clone(),
            extensions: answer.extensions.clone(),
        };
        Self { answer, parts: Vec::new(), len: 0, moved: false }
    }

    /// What has not come.
    fn rest(&self) -> Range<u64> {
        self.answer.range.start + self.len..self.answer.range.end
    }

    /// Whether an answer is the rest of this very object.
    fn goes_on_with(&self, answer: &GetResult) -> bool {
        let (was, is) = (&self.answer.meta, &answer.meta);
        answer.range == self.rest()
            && was.size == is.size
            && was.last_modified == is.last_modified
            && was.e_tag == is.e_tag
    }

    fn push(&mut self, part: Bytes) {
        self.moved = true;
        self.len += part.len() as u64;
        if !part.is_empty() {
            self.parts.push(part);
        }
    }

    fn forget(&mut self) {
        self.parts.clear();
        self.len = 0;
    }

    fn into_answer(mut self) -> GetResult {
        let bytes = match self.parts.len() {
            1 => self.parts.remove(0),
            _ => {
                let mut whole = BytesMut::with_capacity(self.len as usize);
                self.parts.iter().for_each(|part| whole.extend_from_slice(part));
                whole.freeze()
            }
        };
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        GetResult { payload, ..self.answer }
    }
}

impl Patient {
    /// One reading, body and all. Nobody gives up as long as something comes each time.
    ///
    /// # Errors
    /// The failure of the last request, when trying again cannot help, or time is up.
    pub(super) async fn body(&self, location: &Path, options: &GetOptions) -> Result<GetResult> {
        let mut attempts = Attempts::begin();
        let mut came = None;
        loop {
            let before = came.as_ref().map(|body: &PartialBody| body.len);
            let failed = match self.go_on(location, options, &mut came).await {
                Ok(None) => break,
                Ok(Some(too_long)) => return Ok(too_long),
                Err(failed) => failed,
            };
            if came.as_ref().is_some_and(|body| body.len > 0 && body.rest().is_empty()) {
                // The link broke behind the last byte.
                break;
            }
            // What came of a first answer counts, too, even when it is of no use.
            let moved = |body: &PartialBody| match before {
                Some(before) => body.len > before,
                None => body.moved,
            };
            if came.as_ref().is_some_and(moved) {
                attempts = Attempts::begin();
            }
            self.after(&mut attempts, location.as_ref(), failed).await?;
        }
        came.map(PartialBody::into_answer)
            .ok_or_else(|| failure(ErrorKind::UnexpectedEof, "there was no answer".to_owned()))
    }

    /// One request, for what has not come yet. An answer that is longer than whoever asked can use is given as it is.
    async fn go_on(
        &self,
        location: &Path,
        options: &GetOptions,
        came: &mut Option<PartialBody>,
    ) -> Result<Option<GetResult>> {
        let mut wish = options.clone();
        match came.as_ref().map(|body| (body.len, body.rest())) {
            Some((1.., rest)) => wish.range = Some(GetRange::Bounded(rest)),
            // All of an answer was lost: a store that sent a shorter form, of which a part is of no use, sends the
            // object itself when a range is asked for, and that can be gone on with.
            Some((0, rest)) if options.range.is_none() && !options.head && !rest.is_empty() => {
                wish.range = Some(GetRange::Offset(0));
            }
            _ => {}
        }
        let (read, began) = (self.ask(), Instant::now());
        let limit = self.patience().read;
        let answer = self.within(limit, self.backend().get_opts(location, wish)).await??;
        if MostBytes::is_exceeded(options, answer.meta.size) {
            return Ok(Some(answer));
        }
        let body = match came {
            Some(body) if body.len > 0 => {
                if !body.goes_on_with(&answer) {
                    // It was replaced meanwhile: all of it has to be of one object.
                    body.forget();
                    return Err(failure(ErrorKind::InvalidData, "it was replaced".to_owned()));
                }
                body
            }
            _ => came.insert(PartialBody::new(&answer)),
        };
        let wanted = body.rest();
        let mut frames = answer.into_stream();
        while let Some(part) = self.within(limit, frames.next()).await? {
            body.push(part?);
            self.moves();
            if body.rest().start > wanted.end {
                body.forget();
                return Err(failure(ErrorKind::InvalidData, "the body is too long".to_owned()));
            }
        }
        if !body.rest().is_empty() {
            let why = format!("the body ended after {} bytes", body.len);
            return Err(failure(ErrorKind::UnexpectedEof, why));
        }
        read.succeeded();
        self.came(wanted.end - wanted.start, began);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layer::{object_layer, ranges_by_get};
    use super::*;
    use crate::Patience;
    use crate::testing::{ScriptedStore, StoreCall, StoreFault};
    use async_trait::async_trait;
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};
    use std::fmt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    const FRAME: usize = 1 << 10;
    const LEN: usize = 100 << 10;
    const SECOND: Duration = Duration::from_secs(1);

    /// A link over which a frame comes each second, that breaks or hangs after so many of a request.
    #[derive(Debug)]
    struct ThinLink {
        inner: InMemory,
        frames: usize,
        hangs: bool,
        /// Whole objects come in a form of which only all of it is of use: until then parts are empty.
        packed: bool,
        carried: Arc<AtomicU64>,
        requests: AtomicU64,
    }

    impl fmt::Display for ThinLink {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("thin")
        }
    }

    object_layer!(ThinLink);

    #[async_trait]
    impl crate::layer::ObjectLayer for ThinLink {
        type Below = dyn ObjectStore;

        fn below(&self) -> &Self::Below {
            &self.inner
        }

        async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
            ranges_by_get(self, location, ranges).await
        }

        async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let packed = self.packed && options.range.is_none();
            let answer = self.inner.get_opts(location, options).await?;
            let head = PartialBody::new(&answer).answer;
            let bytes = answer.bytes().await?;
            let (frames, hangs, carried) = (self.frames, self.hangs, Arc::clone(&self.carried));
            // It may break behind the last one, too.
            let count = bytes.len().div_ceil(FRAME);
            let count = if frames == count { count + 1 } else { count };
            let frame = move |number: usize| {
                let part = bytes.slice(number * FRAME..bytes.len().min((number + 1) * FRAME));
                let carried = Arc::clone(&carried);
                async move {
                    if number == frames && hangs {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(SECOND).await;
                    if number == frames {
                        return Err(failure(ErrorKind::ConnectionReset, "cut".to_owned()));
                    }
                    carried.fetch_add(part.len() as u64, Ordering::Relaxed);
                    Ok(part)
                }
            };
            let mut body = stream::iter(0..count).then(frame).boxed();
            if packed {
                let whole = self.inner.get(location).await?.bytes().await?;
                let empty = body.map(|part| part.map(|_| Bytes::new()));
                body = empty.chain(stream::iter([Ok(whole)])).boxed();
            }
            Ok(GetResult { payload: GetResultPayload::Stream(body), ..head })
        }
    }

    fn content(seed: u8) -> Bytes {
        (0..LEN).map(|at| (at / 7) as u8 ^ seed).collect()
    }

    async fn link(frames: usize, hangs: bool) -> (Arc<ThinLink>, Patient, Path) {
        link_with(frames, hangs, false).await
    }

    async fn link_with(frames: usize, hangs: bool, packed: bool) -> (Arc<ThinLink>, Patient, Path) {
        let (inner, path) = (InMemory::new(), Path::from("a"));
        inner.put(&path, content(0).into()).await.unwrap();
        let (carried, requests) = (Arc::default(), AtomicU64::new(0));
        let link = Arc::new(ThinLink { inner, frames, hangs, packed, carried, requests });
        let patient = Patient::new(Arc::clone(&link) as _, Patience::COMMAND);
        (link, patient, path)
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_body_over_a_thin_link_comes_in_one_request() {
        let (link, patient, path) = link(usize::MAX, false).await;
        assert_eq!(patient.get(&path).await.unwrap().bytes().await.unwrap(), content(0));
        let part = patient.get_range(&path, 5000..90_000).await.unwrap();
        assert_eq!(part, content(0).slice(5000..90_000));
        assert_eq!(link.requests.load(Ordering::Relaxed), 2);
        assert_eq!(patient.tally().snapshot().retries, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_come_before_a_link_breaks_is_not_asked_for_again() {
        for hangs in [false, true] {
            let (link, patient, path) = link(30, hangs).await;
            assert_eq!(patient.get(&path).await.unwrap().bytes().await.unwrap(), content(0));
            assert_eq!(link.carried.load(Ordering::Relaxed), LEN as u64);
            assert_eq!(link.requests.load(Ordering::Relaxed), 4);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_form_that_is_of_use_only_whole_is_waited_for_and_not_asked_for_twice() {
        let (link, patient, path) = link_with(usize::MAX, false, true).await;
        assert_eq!(patient.get(&path).await.unwrap().bytes().await.unwrap(), content(0));
        assert_eq!(link.requests.load(Ordering::Relaxed), 1);
        for hangs in [false, true] {
            let (link, patient, path) = link_with(30, hangs, true).await;
            assert_eq!(patient.get(&path).await.unwrap().bytes().await.unwrap(), content(0));
            assert_eq!(link.carried.load(Ordering::Relaxed), (30 * FRAME + LEN) as u64);
            assert_eq!(link.requests.load(Ordering::Relaxed), 5, "once packed, then on and on");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_body_of_an_object_that_is_longer_than_it_may_be_is_not_read() {
        let (link, patient, path) = link(usize::MAX, false).await;
        let read = crate::get(&patient, path.as_ref(), LEN as u64 - 1).await;
        assert_eq!(read.unwrap_err().kind(), block::ErrorKind::Corrupt);
        assert_eq!(link.carried.load(Ordering::Relaxed), 0);
        let read = crate::get(&patient, path.as_ref(), LEN as u64).await;
        assert_eq!(read.unwrap(), content(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_breaks_behind_the_last_byte_breaks_nothing() {
        let (link, patient, path) = link(LEN / FRAME, false).await;
        assert_eq!(patient.get(&path).await.unwrap().bytes().await.unwrap(), content(0));
        assert_eq!(link.requests.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_replaced_meanwhile_is_read_anew() {
        let (link, patient, path) = link(60, false).await;
        let replaced = async {
            tokio::time::sleep(30 * SECOND).await;
            link.inner.put(&path, content(9).into()).await.unwrap();
        };
        let (read, ()) = tokio::join!(patient.get(&path), replaced);
        assert_eq!(read.unwrap().bytes().await.unwrap(), content(9));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_waits_for_others_on_its_connection_is_not_asked_for_again() {
        let (first, path) = (Path::from("first"), Path::from("behind it"));
        let inner = InMemory::new();
        inner.put(&first, "a".into()).await.unwrap();
        inner.put(&path, "b".into()).await.unwrap();
        let behind = path.clone();
        let link = ScriptedStore::new(Arc::new(inner), move |call| match call {
            StoreCall::Get(path) if *path == behind => StoreFault::Delay(50 * SECOND),
            _ => StoreFault::Delay(5 * SECOND),
        });
        let one = Patient::batching(Arc::new(link.clone()), Patience::COMMAND);
        // Each over its own: one that hangs says nothing of the others.
        let several = Patient::new(Arc::new(link.clone()), Patience::COMMAND);
        for (patient, comes) in [(one, true), (several, false)] {
            let others = async {
                loop {
                    patient.get(&first).await.unwrap();
                }
            };
            let read = tokio::select! {
                read = patient.get(&path) => read,
                never = others => never,
            };
            assert_eq!(read.is_ok(), comes);
            let asked = |call: &StoreCall| matches!(call, StoreCall::Get(at) if *at == path);
            assert!(!comes || link.calls.log().count(asked) == 1, "it was asked for again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_over_which_nothing_comes_is_given_up() {
        let (_link, patient, path) = link(0, true).await;
        let began = Instant::now();
        patient.get(&path).await.unwrap_err();
        assert!(began.elapsed() <= 60 * SECOND, "{:?}", began.elapsed());
    }
}

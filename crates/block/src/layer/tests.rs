use crate::{
    Attempt, Device, Durability, Error, Extent, Filling, Limits, Memory, Result, Sink, Span,
    ZeroMode,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a device was asked, and the last future that it gave.
#[derive(Default)]
struct Asked {
    calls: Mutex<Vec<&'static str>>,
    future: AtomicUsize,
}

/// Answers nothing, and notes every call and the address of its future, which is why no scripted device
/// does: that one stands on another device, so its futures say nothing of those below.
#[derive(Default)]
struct Noting(Asked);

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Where a future is in memory.
fn address<T>(future: &Answer<'_, T>) -> usize {
    std::ptr::from_ref(&**future).addr()
}

impl Noting {
    fn note(&self, call: &'static str) {
        self.0.calls.lock().push(call);
    }

    fn answer<T: Send + 'static>(&self, call: &'static str, answer: T) -> Answer<'static, T> {
        self.note(call);
        let future: Answer<'static, T> = Box::pin(async move {
            tokio::task::yield_now().await;
            Ok(answer)
        });
        self.0.future.store(address(&future), Ordering::Relaxed);
        future
    }
}

/// A call in the form that `async_trait` gives it.
macro_rules! noted {
    ($($name:ident $(<$life:lifetime>)? ($($type:ty),*) -> $out:ty = $answer:expr;)*) => {$(
        fn $name<'a, $($life,)? 'async_trait>(&'a self, $(_: $type),*) -> Answer<'async_trait, $out>
        where
            'a: 'async_trait,
            $($life: 'async_trait,)?
            Self: 'async_trait,
        {
            self.answer(stringify!($name), $answer)
        }
    )*};
}

const LIMITS: Limits = Limits { minimum: 512, preferred: 65536, maximum: 1 << 20 };

impl Device for Noting {
    fn size(&self) -> u64 {
        77
    }
    fn limits(&self) -> Limits {
        LIMITS
    }
    fn read_only(&self) -> bool {
        true
    }
    fn try_read(&self, _: Span, _: &mut [u8]) -> Result<Attempt> {
        self.note("try_read");
        Ok(Attempt::Done)
    }
    fn try_read_to(&self, _: Span, _: &mut dyn Sink) -> Result<Attempt> {
        self.note("try_read_to");
        Ok(Attempt::Done)
    }
    fn try_write(&self, _: Span, _: &[u8]) -> Result<Attempt> {
        self.note("try_write");
        Ok(Attempt::Done)
    }
    noted! {
        read<'b>(Span, &'b mut [u8]) -> () = ();
        write<'b>(Span, &'b [u8], Durability) -> () = ();
        flush() -> () = ();
        discard(Span, Durability) -> () = ();
        zero(Span, ZeroMode, Durability) -> () = ();
        extents(Span, usize) -> Vec<Extent> = Vec::new();
        prefetch(Span) -> () = ();
    }
}

/// A layer that changes nothing, and has every read and write wait.
struct Unchanged<D>(D);

impl<D: Device> crate::Layer for Unchanged<D> {
    type Below = D;
    fn below(&self) -> &D {
        &self.0
    }
    fn try_read(&self, _: Span, _: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }
    fn try_read_to(&self, _: Span, _: &mut dyn Sink) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }
    fn try_write(&self, _: Span, _: &[u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }
}

/// Calls all that waits; fails where the future is not the very one that `bottom` gave.
fn each_is_the_one_below(top: &dyn Device, bottom: &Asked) {
    let span = Span::whole(8);
    let mode = ZeroMode { may_punch: true, only_if_fast: true };
    let last = || bottom.future.load(Ordering::Relaxed);
    let mut buf = [0; 8];
    let read = top.read(span, &mut buf);
    assert_eq!(address(&read), last());
    let write = top.write(span, &[0; 8], Durability::Durable);
    assert_eq!(address(&write), last());
    let flush = top.flush();
    assert_eq!(address(&flush), last());
    let discard = top.discard(span, Durability::Durable);
    assert_eq!(address(&discard), last());
    let zero = top.zero(span, mode, Durability::Durable);
    assert_eq!(address(&zero), last());
    let extents = top.extents(span, 1);
    assert_eq!(address(&extents), last());
    let prefetch = top.prefetch(span);
    assert_eq!(address(&prefetch), last());
    let calls = std::mem::take(&mut *bottom.calls.lock());
    assert_eq!(calls, ["read", "write", "flush", "discard", "zero", "extents", "prefetch"]);
}

#[test]
fn a_call_that_is_not_changed_is_the_lower_device_s_own_future_and_no_box_more() {
    let bottom = Arc::new(Noting::default());
    each_is_the_one_below(&bottom, &bottom.0);
    let erased: Arc<dyn Device> = Arc::clone(&bottom) as _;
    each_is_the_one_below(&erased, &bottom.0);
    each_is_the_one_below(&Unchanged(Unchanged(Arc::clone(&erased))), &bottom.0);
    let top = Unchanged(erased);
    assert_eq!((top.size(), top.limits(), top.read_only()), (77, LIMITS, true));
}

#[test]
fn the_fast_path_of_a_shared_device_is_its_own() {
    let bottom = Arc::new(Noting::default());
    let shared: &dyn Device = &bottom;
    let (span, mut buf) = (Span::whole(8), [0; 8]);
    assert_eq!(shared.try_read(span, &mut buf).unwrap(), Attempt::Done);
    assert_eq!(shared.try_read_to(span, &mut Filling::new(&mut buf)).unwrap(), Attempt::Done);
    assert_eq!(shared.try_write(span, &buf).unwrap(), Attempt::Done);
    assert_eq!(*bottom.0.calls.lock(), ["try_read", "try_read_to", "try_write"]);
}

/// Refuses to flush.
struct Unflushed(Memory);

#[async_trait]
impl crate::Layer for Unflushed {
    type Below = Memory;
    fn below(&self) -> &Memory {
        &self.0
    }
    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.0.try_read(span, buf)
    }
    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        self.0.try_read_to(span, sink)
    }
    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        self.0.try_write(span, data)
    }
    async fn flush(&self) -> Result<()> {
        Err(Error::unavailable("not flushed"))
    }
}

#[tokio::test]
async fn a_layer_changes_what_it_names_and_nothing_else() {
    let device: Arc<dyn Device> = Arc::new(Unflushed(Memory::new(4096)));
    let (span, mut buf) = (Span::whole(4096), [0; 4096]);
    device.write(span, &[7; 4096], Durability::Buffered).await.unwrap();
    device.read(span, &mut buf).await.unwrap();
    assert_eq!(buf, [7; 4096]);
    assert_eq!(device.flush().await.unwrap_err().message(), "not flushed");
}

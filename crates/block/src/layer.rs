//! [`Layer`], a device over another one that says only what it changes.

use crate::{Attempt, Device, Durability, Extent, Limits, Result, Sink, Span, ZeroMode};
use std::pin::Pin;
use std::sync::Arc;

/// Asynchronous calls, in the form that `async_trait` gives them, passed on to the same call of
/// another trait: the future that this gives is handed out as it is, so that a layer which changes
/// nothing about a call allocates nothing for it.
macro_rules! pass_on {
    (to $trait:ident $how:tt: $(
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? ($($arg:ident: $type:ty),*) -> $out:ty;
    )*) => {$(
        $(#[$doc])*
        fn $name<'a, $($life,)? 'async_trait>(
            &'a self,
            $($arg: $type),*
        ) -> Pin<Box<dyn Future<Output = Result<$out>> + Send + 'async_trait>>
        where
            'a: 'async_trait,
            $($life: 'async_trait,)?
            Self: 'async_trait,
        {
            pass_on!($how self, $trait, $name, $($arg),*)
        }
    )*};
    ((of the device below) $self:ident, $trait:ident, $name:ident, $($arg:ident),*) => {
        $trait::$name($self.below(), $($arg),*)
    };
    ((of itself) $self:ident, $trait:ident, $name:ident, $($arg:ident),*) => {
        $trait::$name($self, $($arg),*)
    };
}

/// A device that stands on one other device and changes some of its calls: whoever implements this is
/// a [`Device`], and every call that it does not name is the lower device's.
///
/// The fast path has no default. A layer that changes `read` and left `try_read` to the lower device
/// would be passed by, and one that left it out would make every read wait: it says which it wants.
///
/// The calls of the two traits have the same names: implement this one by its path
/// (`impl block::Layer for ...`), import [`Device`] only, and call the device below by
/// [`below`](Self::below).
pub trait Layer: Send + Sync {
    /// The device below.
    type Below: Device + ?Sized;

    /// The device below.
    fn below(&self) -> &Self::Below;

    /// See [`Device::try_read`].
    ///
    /// # Errors
    /// Any error from [`Device::try_read`].
    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt>;

    /// See [`Device::try_read_to`].
    ///
    /// # Errors
    /// Any error from [`Device::try_read_to`].
    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt>;

    /// See [`Device::try_write`].
    ///
    /// # Errors
    /// Any error from [`Device::try_write`].
    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt>;

    /// See [`Device::size`].
    fn size(&self) -> u64 {
        self.below().size()
    }

    /// See [`Device::limits`].
    fn limits(&self) -> Limits {
        self.below().limits()
    }

    /// See [`Device::read_only`].
    fn read_only(&self) -> bool {
        self.below().read_only()
    }

    /// See [`Device::is_written_through`].
    fn is_written_through(&self) -> bool {
        self.below().is_written_through()
    }

    pass_on! { to Device (of the device below):
        /// See [`Device::read`].
        read<'b>(span: Span, buf: &'b mut [u8]) -> ();
        /// See [`Device::write`].
        write<'b>(span: Span, data: &'b [u8], durability: Durability) -> ();
        /// See [`Device::flush`].
        flush() -> ();
        /// See [`Device::discard`].
        discard(span: Span, durability: Durability) -> ();
        /// See [`Device::zero`].
        zero(span: Span, mode: ZeroMode, durability: Durability) -> ();
        /// See [`Device::extents`].
        extents(span: Span, limit: usize) -> Vec<Extent>;
        /// See [`Device::prefetch`].
        prefetch(span: Span) -> ();
    }
}

// A call that is new in `Device` is to be passed on, also where it has a default.
#[deny(clippy::missing_trait_methods)]
impl<L: Layer> Device for L {
    fn size(&self) -> u64 {
        Layer::size(self)
    }

    fn limits(&self) -> Limits {
        Layer::limits(self)
    }

    fn read_only(&self) -> bool {
        Layer::read_only(self)
    }

    fn is_written_through(&self) -> bool {
        Layer::is_written_through(self)
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        Layer::try_read(self, span, buf)
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        Layer::try_read_to(self, span, sink)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        Layer::try_write(self, span, data)
    }

    pass_on! { to Layer (of itself):
        read<'b>(span: Span, buf: &'b mut [u8]) -> ();
        write<'b>(span: Span, data: &'b [u8], durability: Durability) -> ();
        flush() -> ();
        discard(span: Span, durability: Durability) -> ();
        zero(span: Span, mode: ZeroMode, durability: Durability) -> ();
        extents(span: Span, limit: usize) -> Vec<Extent>;
        prefetch(span: Span) -> ();
    }
}

impl<D: Device + ?Sized> Layer for Arc<D> {
    type Below = D;

    fn below(&self) -> &D {
        self
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        (**self).try_read(span, buf)
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        (**self).try_read_to(span, sink)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        (**self).try_write(span, data)
    }
}

#[cfg(test)]
mod tests;

//! Several ranges of an object in one request, each handed on as it comes.

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{ObjectStore, Result};
use std::ops::Range;

/// A backend that answers several ranges of an object in one request, one after the other: what has come when the
/// link breaks need not be asked for again.
pub trait RangeBatches: ObjectStore {
    /// The bytes of the ranges, in their order, each as soon as it is here. A part is shorter than its range when
    /// the object ends in it. After an error nothing follows.
    fn ranges<'a>(
        &'a self,
        location: &'a Path,
        ranges: &'a [Range<u64>],
    ) -> BoxStream<'a, Result<Bytes>>;
}

//! [`ObjectLayer`], an object store over another one that says only what it changes.

use bytes::Bytes;
use futures::future::{self, BoxFuture, FutureExt};
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload,
    OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, RenameTargetMode, Result, coalesce_ranges,
};
use std::ops::Range;

/// Asynchronous calls, in the form that `async_trait` gives them, passed on to the same call of
/// another trait: the future that this gives is handed out as it is.
#[doc(hidden)]
#[macro_export]
macro_rules! pass_on {
    ($how:tt: $(
        $(#[$doc:meta])*
        $name:ident <$($life:lifetime),+> ($($arg:ident: $type:ty),*) -> $out:ty;
    )*) => {$(
        $(#[$doc])*
        fn $name<'a, $($life,)+ 'async_trait>(
            &'a self,
            $($arg: $type),*
        ) -> futures::future::BoxFuture<'async_trait, object_store::Result<$out>>
        where
            'a: 'async_trait,
            $($life: 'async_trait,)+
            Self: 'async_trait,
        {
            $crate::pass_on!($how self, $name, $($arg),*)
        }
    )*};
    ((to the store below) $self:ident, $name:ident, $($arg:ident),*) => {
        ObjectStore::$name($self.below(), $($arg),*)
    };
    ((to the layer) $self:ident, $name:ident, $($arg:ident),*) => {
        $crate::layer::ObjectLayer::$name($self, $($arg),*)
    };
}

/// An object store that stands on one other and changes some of its calls; every call that it does not
/// name is the lower one's. [`object_layer`] makes it an [`ObjectStore`].
///
/// Reading several ranges has no default: it is a second way to read. A layer that changes `get_opts`
/// and left this to the lower store would be passed by ([`ranges_by_get`] goes through the layer), and
/// one that left it out would take from the lower store what it does better for many ranges at once.
///
/// Listing from an offset and renaming are second ways, too. Nothing here asks for them, so they have a
/// default, but not the lower store's: they are made of the layer's own listing, copying and deleting.
pub trait ObjectLayer: ObjectStore {
    /// The store below.
    type Below: ObjectStore + ?Sized;

    /// The store below.
    fn below(&self) -> &Self::Below;

    pass_on! { (to the store below):
        /// See [`ObjectStore::put_opts`].
        put_opts<'b>(location: &'b Path, payload: PutPayload, opts: PutOptions) -> PutResult;
        /// See [`ObjectStore::put_multipart_opts`].
        put_multipart_opts<'b>(
            location: &'b Path,
            opts: PutMultipartOptions
        ) -> Box<dyn MultipartUpload>;
        /// See [`ObjectStore::get_opts`].
        get_opts<'b>(location: &'b Path, options: GetOptions) -> GetResult;
        /// See [`ObjectStore::list_with_delimiter`].
        list_with_delimiter<'b>(prefix: Option<&'b Path>) -> ListResult;
        /// See [`ObjectStore::copy_opts`].
        copy_opts<'b, 'c>(from: &'b Path, to: &'c Path, options: CopyOptions) -> ();
    }

    /// See [`ObjectStore::get_ranges`].
    fn get_ranges<'a, 'b, 'c, 'async_trait>(
        &'a self,
        location: &'b Path,
        ranges: &'c [Range<u64>],
    ) -> BoxFuture<'async_trait, Result<Vec<Bytes>>>
    where
        'a: 'async_trait,
        'b: 'async_trait,
        'c: 'async_trait,
        Self: 'async_trait;

    /// See [`ObjectStore::rename_opts`].
    fn rename_opts<'a, 'b, 'c, 'async_trait>(
        &'a self,
        from: &'b Path,
        to: &'c Path,
        options: RenameOptions,
    ) -> BoxFuture<'async_trait, Result<()>>
    where
        'a: 'async_trait,
        'b: 'async_trait,
        'c: 'async_trait,
        Self: 'async_trait,
    {
        let RenameOptions { target_mode, extensions } = options;
        let mode = match target_mode {
            RenameTargetMode::Overwrite => CopyMode::Overwrite,
            RenameTargetMode::Create => CopyMode::Create,
        };
        async move {
            ObjectLayer::copy_opts(self, from, to, CopyOptions { mode, extensions }).await?;
            self.delete(from).await
        }
        .boxed()
    }

    /// See [`ObjectStore::delete_stream`].
    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.below().delete_stream(locations)
    }

    /// See [`ObjectStore::list`].
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.below().list(prefix)
    }

    /// See [`ObjectStore::list_with_offset`].
    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let offset = offset.clone();
        ObjectLayer::list(self, prefix)
            .try_filter(move |meta| future::ready(meta.location > offset))
            .boxed()
    }
}

/// Ranges of an object by [`get_opts`](ObjectStore::get_opts) of `store` itself, where ranges that lie
/// near each other are one request.
///
/// # Errors
/// Any error from the requests.
pub async fn ranges_by_get(
    store: &dyn ObjectStore,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let get = |range| store.get_range(location, range);
    coalesce_ranges(ranges, get, OBJECT_STORE_COALESCE_DEFAULT).await
}

/// Makes an [`ObjectLayer`] an [`ObjectStore`]. (Rust lets no crate implement another's trait for
/// whatever implements its own.) The crate that uses it depends on `bytes`, `futures` and `object_store`.
#[macro_export]
macro_rules! object_layer {
    ($layer:ty) => {
        // A call that is new in `ObjectStore` is to be one of the layer, also where it has a default.
        #[deny(clippy::missing_trait_methods)]
        impl object_store::ObjectStore for $layer {
            $crate::pass_on! { (to the layer):
                put_opts<'b>(
                    location: &'b object_store::path::Path,
                    payload: object_store::PutPayload,
                    opts: object_store::PutOptions
                ) -> object_store::PutResult;
                put_multipart_opts<'b>(
                    location: &'b object_store::path::Path,
                    opts: object_store::PutMultipartOptions
                ) -> Box<dyn object_store::MultipartUpload>;
                get_opts<'b>(
                    location: &'b object_store::path::Path,
                    options: object_store::GetOptions
                ) -> object_store::GetResult;
                get_ranges<'b, 'c>(
                    location: &'b object_store::path::Path,
                    ranges: &'c [std::ops::Range<u64>]
                ) -> Vec<bytes::Bytes>;
                list_with_delimiter<'b>(
                    prefix: Option<&'b object_store::path::Path>
                ) -> object_store::ListResult;
                copy_opts<'b, 'c>(
                    from: &'b object_store::path::Path,
                    to: &'c object_store::path::Path,
                    options: object_store::CopyOptions
                ) -> ();
                rename_opts<'b, 'c>(
                    from: &'b object_store::path::Path,
                    to: &'c object_store::path::Path,
                    options: object_store::RenameOptions
                ) -> ();
            }

            fn delete_stream(
                &self,
                locations: futures::stream::BoxStream<
                    'static,
                    object_store::Result<object_store::path::Path>,
                >,
            ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::path::Path>>
            {
                $crate::layer::ObjectLayer::delete_stream(self, locations)
            }

            fn list(
                &self,
                prefix: Option<&object_store::path::Path>,
            ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>>
            {
                $crate::layer::ObjectLayer::list(self, prefix)
            }

            fn list_with_offset(
                &self,
                prefix: Option<&object_store::path::Path>,
                offset: &object_store::path::Path,
            ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>>
            {
                $crate::layer::ObjectLayer::list_with_offset(self, prefix, offset)
            }
        }
    };
}
pub use object_layer;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FaultRates, Unreliable};
    use object_store::memory::InMemory;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn renaming_and_listing_from_an_offset_do_not_pass_by_the_layer() {
        let unreliable = Unreliable::new(Arc::new(InMemory::new()), 1, FaultRates::default());
        let layer: &dyn ObjectStore = &unreliable;
        let [a, b, c] = ["a", "b", "c"].map(Path::from);
        layer.put(&a, "first".into()).await.unwrap();
        layer.put(&b, "second".into()).await.unwrap();
        let before = unreliable.calls();
        layer.rename(&a, &c).await.unwrap();
        assert_eq!(unreliable.calls() - before, 2, "a copy and a deletion");
        let taken = layer.rename_if_not_exists(&b, &c).await.unwrap_err();
        assert!(matches!(taken, object_store::Error::AlreadyExists { .. }), "{taken}");
        let before = unreliable.calls();
        let found: Vec<_> = layer.list_with_offset(None, &b).try_collect().await.unwrap();
        assert_eq!(unreliable.calls() - before, 1, "a listing");
        assert_eq!(found.iter().map(|meta| &meta.location).collect::<Vec<_>>(), [&c]);
        assert_eq!(layer.get(&c).await.unwrap().bytes().await.unwrap(), "first");
    }
}

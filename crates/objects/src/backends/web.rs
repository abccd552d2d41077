//! Any web server: `https://HOST/PATH`, read only, by the listing that [`publish`](crate::publish) writes.

use super::super::attempts::once;
use super::super::publish::Published;
use super::{RemoteKind, client_options};
use object_store::http::HttpBuilder;
use std::sync::Arc;

pub(super) const KIND: RemoteKind = RemoteKind {
    schemes: &["https", "http"],
    has_buckets: false,
    open: |url, _| {
        let builder = HttpBuilder::new()
            .with_url(url.url)
            .with_client_options(client_options().with_allow_http(true))
            .with_retry(once());
        Ok(Arc::new(builder.build().map_err(|e| url.refused(e))?))
    },
    layer: |store| Arc::new(Published::new(store)),
};

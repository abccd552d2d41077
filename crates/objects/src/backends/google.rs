//! Google Cloud Storage: `gs://BUCKET/PREFIX`, with `GOOGLE_*` in the environment.

use super::super::attempts::once;
use super::{RemoteKind, client_options, no_layer};
use object_store::gcp::GoogleCloudStorageBuilder;
use std::sync::Arc;

pub(super) const KIND: RemoteKind = RemoteKind {
    schemes: &["gs"],
    has_buckets: true,
    open: |url, environment| {
        let mut builder = GoogleCloudStorageBuilder::new().with_client_options(client_options());
        for (key, value) in environment.with_prefix("GOOGLE_") {
            if let Ok(key) = key.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        let builder = builder.with_bucket_name(url.bucket).with_retry(once());
        Ok(Arc::new(builder.build().map_err(|e| url.refused(e))?))
    },
    layer: no_layer,
};

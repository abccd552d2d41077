//! Azure Blob Storage: `az://CONTAINER/PREFIX`, with `AZURE_STORAGE_*` in the environment.

use super::super::attempts::once;
use super::{RemoteKind, client_options, no_layer};
use block::Error;
use object_store::azure::MicrosoftAzureBuilder;
use std::sync::Arc;

pub(super) const KIND: RemoteKind = RemoteKind {
    schemes: &["az"],
    has_buckets: true,
    open: |url, environment| {
        let mut builder = MicrosoftAzureBuilder::new().with_client_options(client_options());
        for (key, value) in environment.with_prefix("AZURE_") {
            if let Ok(key) = key.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        if environment.with_prefix("AZURE_STORAGE_").next().is_none() {
            return Err(Error::denied(format!(
                "store {}: there are no credentials; set AZURE_STORAGE_ACCOUNT_NAME and \
                 AZURE_STORAGE_ACCOUNT_KEY",
                url.url
            )));
        }
        let builder = builder.with_container_name(url.bucket).with_retry(once());
        Ok(Arc::new(builder.build().map_err(|e| url.refused(e))?))
    },
    layer: no_layer,
};

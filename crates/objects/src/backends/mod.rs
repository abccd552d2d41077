//! The kinds of stores over a network, a file for each: what their URLs look like, and how they are opened.

mod azure;
mod google;
mod s3;
mod web;

use super::attempts::client_options;
use super::environment::Environment;
use super::fault;
use block::{Error, ErrorKind, Result};
use object_store::ObjectStore;
use std::sync::Arc;

/// All of them.
const KINDS: [&RemoteKind; 4] = [&s3::KIND, &google::KIND, &azure::KIND, &web::KIND];

/// A kind of store over a network.
#[derive(Debug)]
pub(crate) struct RemoteKind {
    /// The schemes of its URLs; the first is the one that messages name.
    schemes: &'static [&'static str],
    /// Whether its URLs are `scheme://BUCKET/PREFIX`; else they are what a browser takes.
    has_buckets: bool,
    /// Opens the bucket, or what stands for it. Asks nothing over the network.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when there are no credentials; what the builder of the backend says.
    open: fn(&RemoteUrl<'_>, &Environment) -> Result<Arc<dyn ObjectStore>>,
    /// Puts the layer in front that such a store needs, behind those that join and keep.
    pub(crate) layer: fn(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
}

/// The URL of a store over a network, taken apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteUrl<'a> {
    url: &'a str,
    pub(crate) kind: &'static RemoteKind,
    /// The bucket or container; empty for a kind without.
    pub(crate) bucket: &'a str,
    /// Where its keys begin, without slashes around it; empty for a kind without buckets.
    pub(crate) prefix: &'a str,
}

impl<'a> RemoteUrl<'a> {
    /// Takes `url` apart, which is `scheme://rest`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) when it lacks a bucket or host; [`Unsupported`](ErrorKind::Unsupported) when no
    /// kind has such a scheme.
    pub(crate) fn of(url: &'a str, scheme: &str, rest: &'a str) -> Result<Self> {
        let Some(kind) = KINDS.into_iter().find(|kind| kind.schemes.contains(&scheme)) else {
            let known: Vec<_> =
                KINDS.iter().map(|kind| format!("{}://", kind.schemes[0])).collect();
            return Err(Error::unsupported(format!(
                "store {url:?}: scheme {scheme:?} is not supported; use a directory, {}",
                known.join(", ")
            )));
        };
        if !kind.has_buckets {
            if rest.trim_matches('/').is_empty() {
                return Err(Error::invalid(format!("store {url:?} names no host")));
            }
            return Ok(Self { url, kind, bucket: "", prefix: "" });
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        if bucket.is_empty() || !bucket.bytes().all(is_plain) {
            return Err(Error::invalid(format!(
                "store {url:?}: a bucket is needed, as in {scheme}://BUCKET/PREFIX"
            )));
        }
        Ok(Self { url, kind, bucket, prefix: prefix.trim_matches('/') })
    }

    /// The bucket, or what stands for it.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when credentials are missing or make no sense.
    pub(crate) fn open(&self, environment: &Environment) -> Result<Arc<dyn ObjectStore>> {
        (self.kind.open)(self, environment)
    }

    /// What the builder of a backend says, with the remedy.
    fn refused(&self, e: object_store::Error) -> Error {
        let (kind, remedy) = fault::meaning(&e).unwrap_or((
            ErrorKind::Denied,
            "check the environment variables with its credentials and endpoint",
        ));
        Error::new(kind, format!("store {}: {e}; {remedy}", self.url)).with_source(e)
    }
}

/// The layer of a kind that needs none.
fn no_layer(store: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    store
}

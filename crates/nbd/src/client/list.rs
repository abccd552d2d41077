//! What a server exports.

use super::ClientOptions;
use super::link::{dial, in_time};
use super::negotiate::encrypt_and_list;
use crate::Uri;
use block::Result;

/// The exports that the server of `uri` lists, by name; which export that names does not matter.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached,
/// [`Denied`](block::ErrorKind::Denied) when it lists none to this client, or wants encryption,
/// [`Invalid`](block::ErrorKind::Invalid) when it is no NBD server, or lists more than 10,000
/// or 1 MiB of them.
pub async fn list_exports(uri: &Uri, options: &ClientOptions) -> Result<Vec<String>> {
    let attempt = async {
        let stream = dial(uri, options).await?.boxed();
        encrypt_and_list(stream, uri, options).await
    };
    in_time(uri, options, attempt).await
}

//! What a backend's error means: whether trying again may help, and what the user can do.

use block::ErrorKind;
use object_store::client::{HttpError, HttpErrorKind};
use std::io;

/// Whether trying again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retryability {
    /// It may.
    Passing,
    /// It cannot.
    Final,
}

/// What the services say, in their own words, and what to do about it.
const SAYINGS: &[(&str, ErrorKind, &str)] = &[
    (
        "NoSuchBucket",
        ErrorKind::Invalid,
        "the bucket does not exist; make it first, or correct the store's URL",
    ),
    (
        "ContainerNotFound",
        ErrorKind::Invalid,
        "the container does not exist; make it first, or correct the store's URL",
    ),
    (
        "The specified bucket does not exist",
        ErrorKind::Invalid,
        "the bucket does not exist; make it first, or correct the store's URL",
    ),
    (
        "Missing SecretAccessKey",
        ErrorKind::Denied,
        "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY; set both",
    ),
    (
        "Missing AccessKeyId",
        ErrorKind::Denied,
        "AWS_SECRET_ACCESS_KEY is set without AWS_ACCESS_KEY_ID; set both",
    ),
    (
        "InvalidAccessKeyId",
        ErrorKind::Denied,
        "the store does not know the access key; check AWS_ACCESS_KEY_ID or the profile",
    ),
    (
        // versitygw, with the status of an absent object.
        "XAdminUserNotFound",
        ErrorKind::Denied,
        "the store does not know the access key; check AWS_ACCESS_KEY_ID or the profile",
    ),
    (
        "SignatureDoesNotMatch",
        ErrorKind::Denied,
        "the store refuses the signature; check AWS_SECRET_ACCESS_KEY (and AWS_REGION)",
    ),
    ("ExpiredToken", ErrorKind::Denied, "the credentials have expired; get new ones"),
    (
        "RequestTimeTooSkewed",
        ErrorKind::Denied,
        "this machine's clock is wrong by more than the store accepts; set the clock",
    ),
    (
        "AuthorizationHeaderMalformed",
        ErrorKind::Invalid,
        "the bucket is in another region; set AWS_REGION to it",
    ),
    (
        "PermanentRedirect",
        ErrorKind::Invalid,
        "the bucket is in another region; set AWS_REGION to it",
    ),
    (
        "incorrectly configured region",
        ErrorKind::Invalid,
        "the bucket is in another region; set AWS_REGION to it",
    ),
    (
        // Before the address, which Google's machines have too.
        "computeMetadata",
        ErrorKind::Denied,
        "there are no credentials; set GOOGLE_APPLICATION_CREDENTIALS to a key file",
    ),
    (
        "169.254.169.254",
        ErrorKind::Denied,
        "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE \
         and ~/.aws/credentials (AWS_SKIP_SIGNATURE=true for a public bucket)",
    ),
    (
        "AuthenticationFailed",
        ErrorKind::Denied,
        "the store refuses the credentials; check AZURE_STORAGE_ACCOUNT_NAME and \
         AZURE_STORAGE_ACCOUNT_KEY",
    ),
    (
        "QuotaExceeded",
        ErrorKind::NoSpace,
        "the store is full or its quota is used up; free some room and try again",
    ),
    (
        // HTTP's "insufficient storage", whatever the body says.
        "status code: 507",
        ErrorKind::NoSpace,
        "the store is full; free some room and try again",
    ),
    (
        "InvalidBucketName",
        ErrorKind::Invalid,
        "the bucket's name is not valid; correct the store's URL",
    ),
    (
        "invalid peer certificate",
        ErrorKind::Denied,
        "the server's certificate is not trusted; install its authority's certificate on this \
         machine (SSL_CERT_FILE), or correct the store's URL",
    ),
    (
        "builder error for url",
        ErrorKind::Denied,
        "plain http is not allowed for this store; use https, or set AWS_ALLOW_HTTP=true",
    ),
    (
        "Received non-partial response when range requested",
        ErrorKind::Unsupported,
        "the web server does not answer range requests; serve the store with one that does, such \
         as nginx",
    ),
];

/// What is known about an error from the words in it.
pub(crate) fn meaning(error: &object_store::Error) -> Option<(ErrorKind, &'static str)> {
    let text = words(error);
    SAYINGS.iter().find(|(word, ..)| text.contains(word)).map(|(_, kind, remedy)| (*kind, *remedy))
}

/// The messages of an error and of its causes.
fn words(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(at) = cause {
        text.push_str(&format!(" {at}"));
        cause = at.source();
    }
    text
}

/// Whether the operation may be tried again.
pub(crate) fn verdict(error: &object_store::Error) -> Retryability {
    use object_store::Error as Backend;
    let Backend::Generic { .. } = error else { return Retryability::Final };
    if meaning(error).is_some() {
        return Retryability::Final;
    }
    match status(error) {
        Some(408 | 429 | 500..) => return Retryability::Passing,
        // A creation or removal beside another one; the state tells what became of it.
        Some(_) => return Retryability::Final,
        None => {}
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(http) = at.downcast_ref::<HttpError>() {
            // A request that cannot even be built is a fault of ours.
            let hopeless = http.kind() == HttpErrorKind::Unknown && at.source().is_none();
            return if hopeless { Retryability::Final } else { Retryability::Passing };
        }
        if let Some(io) = at.downcast_ref::<io::Error>() {
            use io::ErrorKind::{
                InvalidInput, NotFound, PermissionDenied, ReadOnlyFilesystem, StorageFull,
                Unsupported,
            };
            let last = matches!(
                io.kind(),
                StorageFull
                    | PermissionDenied
                    | ReadOnlyFilesystem
                    | InvalidInput
                    | NotFound
                    | Unsupported
            );
            return if last { Retryability::Final } else { Retryability::Passing };
        }
        cause = at.source();
    }
    // "200 OK" with an error in its body.
    let text = words(error);
    let busy = ["InternalError", "SlowDown"].iter().any(|word| text.contains(word));
    if busy { Retryability::Passing } else { Retryability::Final }
}

/// The HTTP status that an error was made from, which its type does not show.
fn status(error: &object_store::Error) -> Option<u16> {
    let text = words(error);
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

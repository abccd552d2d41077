//! What is taken out of a request, and what is wrong with it: every fault is answered as the errors of verbs
//! are, with a status of its own where HTTP has one.

use crate::answers::{problem, refusal};
use crate::bearer::Caller;
use crate::origin::Origin;
use axum::RequestPartsExt;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use block::Error;
use cache::PolicyKind;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};

/// The longest body, in bytes.
const LONGEST: usize = 64 << 10;

/// `POST /api/v1/disks`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateDisk {
    pub(super) name: String,
    pub(super) from: String,
    #[serde(default)]
    pub(super) ephemeral: bool,
    #[serde(default)]
    pub(super) write_through: bool,
    #[serde(default, deserialize_with = "some_whole_number")]
    pub(super) size: Option<u64>,
}

/// A snapshot to make, or to go back to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SnapshotName {
    pub(super) snapshot: String,
}

/// An image version to make.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitTo {
    pub(super) image: String,
}

/// An image version to move to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RebaseOn {
    pub(super) image: String,
    #[serde(default)]
    pub(super) keep_mine: bool,
}

/// The size that a disk is to have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GrowTo {
    #[serde(deserialize_with = "whole_number")]
    pub(super) size: u64,
}

/// How a disk is taken.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeHow {
    #[serde(default)]
    pub(super) force: bool,
}

/// The name of what is left of a disk.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeepAs {
    pub(super) new: String,
}

/// A body that says nothing: `{}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Which disk is removed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveHow {
    #[serde(default)]
    pub(super) lost: bool,
}

/// How an image is imported.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ImportHow {
    /// Where it came from, as the version tells.
    #[serde(default)]
    pub(super) source: String,
    /// What the bytes are: looked at, if nobody says.
    #[serde(default)]
    pub(super) format: Option<SentFormat>,
}

/// What may be sent as an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SentFormat {
    /// The bytes of a disk, whatever they begin with.
    Raw,
}

/// How the block cache is to be; what is not named stays.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeCache {
    #[serde(default, deserialize_with = "some_whole_number")]
    pub(super) size: Option<u64>,
    #[serde(default)]
    pub(super) policy: Option<PolicyKind>,
}

/// How long a server that is to end waits for its clients; for ever without a number of seconds.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainFor {
    #[serde(default, deserialize_with = "some_whole_number")]
    pub(super) seconds: Option<u64>,
}

/// A whole number, such as one of bytes. 1e9 and 7.0 are integers in JSON, too.
fn whole_number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    /// The largest number up to which a float holds every integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = Number::deserialize(from)?;
    let whole = |number: f64| (0.0..=EXACT).contains(&number) && number.fract() == 0.0;
    let float = || number.as_f64().filter(|number| whole(*number)).map(|number| number as u64);
    let wrong = || D::Error::custom(format!("{number} is not a whole number"));
    number.as_u64().or_else(float).ok_or_else(wrong)
}

/// The same, or null.
pub(super) fn some_whole_number<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Whole(#[serde(deserialize_with = "whole_number")] u64);
    Ok(Option::<Whole>::deserialize(from)?.map(|Whole(number)| number))
}

/// Who asks, and from where.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub(super) caller: Caller,
    pub(super) origin: Origin,
}

impl<S: Sync> FromRequestParts<S> for Asker {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let caller = parts.extensions.get::<Caller>().cloned();
        let origin = parts.extract::<ConnectInfo<Origin>>().await.ok();
        match (caller, origin) {
            (Some(caller), Some(ConnectInfo(origin))) => Ok(Self { caller, origin }),
            _ => Err(problem(&Error::internal("a request without a sender"))),
        }
    }
}

/// The names in the path.
pub(super) struct PathNames<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathNames<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let names = Path::<T>::from_request_parts(parts, state).await;
        names.map(|Path(names)| Self(names)).map_err(|e| problem(&Error::invalid(e.body_text())))
    }
}

/// The parameters behind the path.
pub(super) struct QueryParameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|e| problem(&Error::invalid(e.body_text())))
    }
}

/// What a body of bytes says that it is. No form of another page can.
const BYTES: &str = "application/octet-stream";

/// The media type that a request says its body has.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(kind.split(';').next().unwrap_or_default().trim())
}

/// The answer to a body that does not say that it is bytes; `None` when it does.
pub(super) fn says_no_bytes(headers: &HeaderMap, what: &str) -> Option<Response> {
    if media_type(headers).is_some_and(|kind| kind.eq_ignore_ascii_case(BYTES)) {
        return None;
    }
    let error = Error::invalid(format!("send {what}, with content-type: {BYTES}"));
    Some(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, &error))
}

/// The body, which is a JSON object and says so: a form of another page cannot.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let kind = media_type(request.headers());
        if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
            let error = Error::invalid("send a JSON object, with content-type: application/json");
            return Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, &error));
        }
        let body = to_bytes(request.into_body(), LONGEST).await.map_err(|_| {
            let error =
                Error::invalid(format!("the body is longer than {LONGEST} bytes, or broke off"));
            refusal(StatusCode::PAYLOAD_TOO_LARGE, &error)
        })?;
        let wrong = |e: serde_json::Error| problem(&Error::invalid(format!("the body: {e}")));
        // Read as an object first: a list of the fields is not what the document says.
        let object: Map<String, Value> = serde_json::from_slice(&body).map_err(wrong)?;
        T::deserialize(Value::Object(object)).map(Self).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_are_whole_numbers_however_they_are_written() {
        let grow = |size: Value| GrowTo::deserialize(json!({ "size": size })).map(|body| body.size);
        assert_eq!(grow(json!(7)).unwrap(), 7);
        assert_eq!(grow(json!(u64::MAX)).unwrap(), u64::MAX);
        assert_eq!(grow(json!(7.0)).unwrap(), 7);
        assert_eq!(grow(json!(1e15)).unwrap(), 1_000_000_000_000_000);
        for wrong in [json!(-1), json!(0.5), json!(1e300), json!("7"), json!(null), json!([7])] {
            assert!(grow(wrong.clone()).is_err(), "{wrong}");
        }
        let create = |size: Value| {
            let body = json!({"name": "a", "from": "b", "size": size});
            CreateDisk::deserialize(body).map(|body| body.size)
        };
        assert_eq!(create(json!(null)).unwrap(), None);
        assert_eq!(create(json!(7.0)).unwrap(), Some(7));
        assert!(create(json!(0.5)).is_err());
        assert_eq!(CreateDisk::deserialize(json!({"name": "a", "from": "b"})).unwrap().size, None);
    }
}

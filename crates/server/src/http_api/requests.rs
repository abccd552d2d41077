//! What is taken out of a request, and what is wrong with it: every fault is answered as the errors of verbs
//! are, with a status of its own where HTTP has one.

use crate::answers::{problem, refusal};
use crate::bearer::Caller;
use crate::origin::Origin;
use axum::RequestPartsExt;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::Response;
use block::Error;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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

/// The body, which is a JSON object and says so: a form of another page cannot.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim());
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

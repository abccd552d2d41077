//! What comes of a request as an answer over HTTP.

use crate::api::Problem;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use block::{Error, ErrorKind, Result};
use serde::Serialize;

/// What was done or found as an answer, or why it was not.
pub(crate) fn answered<T: Serialize>(done: Result<T>) -> Response {
    match done {
        Ok(view) => Json(view).into_response(),
        Err(e) => problem(&e),
    }
}

/// An error as an answer, with the status of its kind.
pub(crate) fn problem(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict | ErrorKind::Fenced => StatusCode::CONFLICT,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refusal(status, error)
}

/// An error as an answer, with another status than that of its kind.
pub(crate) fn refusal(status: StatusCode, error: &Error) -> Response {
    (status, Json(Problem::from(error))).into_response()
}

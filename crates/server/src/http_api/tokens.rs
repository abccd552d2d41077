//! What a token is for, told to its bearer.

use super::requests::Asker;
use crate::bearer::ask_for_token;
use axum::Json;
use axum::response::{IntoResponse, Response};

pub(super) async fn own(asker: Asker) -> Response {
    match asker.caller.shown_token() {
        Some(token) => Json(token).into_response(),
        None => ask_for_token(),
    }
}

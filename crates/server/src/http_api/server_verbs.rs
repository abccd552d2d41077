//! Verbs on the server itself: its block cache, its configuration, its end. Only tokens that are for all of it
//! reach these paths.

use super::carry::HttpApi;
use super::requests::{Asker, ChangeCache, DrainFor, JsonBody, Nothing};
use crate::answers::problem;
use crate::api::CacheRequest;
use crate::audit::Deed;
use crate::orders;
use crate::status::CacheView;
use access::TokenRight;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use block::Error;
use serde_json::json;

pub(super) async fn cache(State(api): State<HttpApi>, asker: Asker) -> Response {
    match asker.caller.must_have(TokenRight::Read) {
        Ok(()) => Json(CacheView::of(&api.running().engine.cache)).into_response(),
        Err(e) => problem(&e),
    }
}

pub(super) async fn change_cache(
    State(api): State<HttpApi>,
    asker: Asker,
    JsonBody(ChangeCache { size, policy }): JsonBody<ChangeCache>,
) -> Response {
    let request = CacheRequest { size, policy };
    let (deed, running) = (Deed::of_server("cache", &request), api.running());
    let change = async move { orders::change_cache(&running, &request).await };
    api.change_server(asker, deed, change).await
}

pub(super) async fn reload(
    State(api): State<HttpApi>,
    asker: Asker,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Response {
    let running = api.running();
    let reload = async move { orders::reload(&running).await };
    api.change_server(asker, Deed::of_server("reload", &()), reload).await
}

pub(super) async fn drain(
    State(api): State<HttpApi>,
    asker: Asker,
    JsonBody(request): JsonBody<DrainFor>,
) -> Response {
    let (deed, running) = (Deed::of_server("drain", &request), api.running());
    let drain = async move {
        let draining = orders::drain(&running, request.seconds)?;
        Ok::<_, Error>(json!({ "connections": draining.connections }))
    };
    api.change_server(asker, deed, drain).await
}

//! What is carried out where.

use super::carry::{HttpApi, ImageRequest};
use super::import;
use super::lab;
use super::machines;
use super::media;
use super::requests::{
    Asker, CommitTo, CreateDisk, GrowTo, JsonBody, KeepAs, Nothing, PathNames, QueryParameters,
    RebaseOn, RemoveHow, SnapshotName, TakeHow,
};
use super::rights;
use super::server_verbs;
use super::tokens;
use super::vms;
use crate::answers::problem;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use disk::Mode;
use engine::api::DiskRequest;

/// What is carried out by each method at each path, all of which `openapi.json` describes.
fn table() -> [(&'static str, &'static str, MethodRouter<HttpApi>); 53] {
    [
        ("/api/v1/disks", "post", post(create)),
        ("/api/v1/disks/{disk}", "get", get(show)),
        ("/api/v1/disks/{disk}", "delete", delete(remove)),
        ("/api/v1/disks/{disk}/snapshots", "post", post(snapshot)),
        ("/api/v1/disks/{disk}/snapshots/{snapshot}", "delete", delete(remove_snapshot)),
        ("/api/v1/disks/{disk}/rollback", "post", post(rollback)),
        ("/api/v1/disks/{disk}/commit", "post", post(commit)),
        ("/api/v1/disks/{disk}/rebase", "post", post(rebase)),
        ("/api/v1/disks/{disk}/reset", "post", post(reset)),
        ("/api/v1/disks/{disk}/grow", "post", post(grow)),
        ("/api/v1/disks/{disk}/publish", "post", post(publish)),
        ("/api/v1/disks/{disk}/release", "post", post(release)),
        ("/api/v1/disks/{disk}/take", "post", post(take)),
        ("/api/v1/disks/{disk}/keep", "post", post(keep)),
        ("/api/v1/elsewhere", "get", get(elsewhere)),
        ("/api/v1/images/{image}", "get", get(show_image)),
        ("/api/v1/images/{image}", "delete", delete(remove_image)),
        ("/api/v1/images/{image}/import", "post", post(import::import)),
        ("/api/v1/images/{image}/restore", "post", post(restore_image)),
        ("/api/v1/machines", "get", get(machines::machines)),
        ("/api/v1/machines/{machine}", "get", get(machines::machine)),
        ("/api/v1/machines/{machine}", "delete", delete(machines::forget)),
        ("/api/v1/machines/{machine}/assign", "post", post(machines::assign)),
        ("/api/v1/vms", "get", get(vms::list)),
        ("/api/v1/vms", "post", post(vms::create)),
        ("/api/v1/vms/{vm}", "get", get(vms::show)),
        ("/api/v1/vms/{vm}", "delete", delete(vms::remove)),
        ("/api/v1/vms/{vm}/log", "get", get(vms::log)),
        ("/api/v1/vms/{vm}/memory", "get", get(vms::memory)),
        ("/api/v1/vms/{vm}/start", "post", post(vms::start)),
        ("/api/v1/vms/{vm}/suspend", "post", post(vms::suspend)),
        ("/api/v1/vms/{vm}/resume", "post", post(vms::resume)),
        ("/api/v1/vms/{vm}/checkpoint", "post", post(vms::checkpoint)),
        ("/api/v1/vms/{vm}/rollback", "post", post(vms::rollback)),
        ("/api/v1/vms/{vm}/discard", "post", post(vms::discard)),
        ("/api/v1/vms/{vm}/clone", "post", post(vms::clone)),
        ("/api/v1/vms/{vm}/stop", "post", post(vms::stop)),
        ("/api/v1/media", "get", get(media::list)),
        ("/api/v1/media/{medium}", "get", get(media::show)),
        ("/api/v1/media/{medium}/write", "post", post(media::write)),
        ("/api/v1/media/{medium}/verify", "post", post(media::verify)),
        ("/api/v1/media/{medium}/index", "post", post(media::index)),
        ("/api/v1/media/{medium}/held/{held}", "delete", delete(media::remove)),
        ("/api/v1/lab/recordings", "get", get(lab::recordings_list)),
        ("/api/v1/lab/stats", "post", post(lab::stats)),
        ("/api/v1/lab/curves", "post", post(lab::curves)),
        ("/api/v1/lab/tune", "post", post(lab::tune)),
        ("/api/v1/lab/predict", "post", post(lab::predict)),
        ("/api/v1/token", "get", get(tokens::own)),
        ("/api/v1/cache", "get", get(server_verbs::cache)),
        ("/api/v1/cache", "post", post(server_verbs::change_cache)),
        ("/api/v1/reload", "post", post(server_verbs::reload)),
        ("/api/v1/drain", "post", post(server_verbs::drain)),
    ]
}

/// The paths, which are to be merged with those that only read.
pub(crate) fn routes(api: HttpApi) -> Router {
    let table = table().into_iter();
    let router = table.fold(Router::new(), |router, (path, _, answer)| router.route(path, answer));
    router.with_state(api)
}

/// The paths and methods, to hold a document to.
#[cfg(test)]
pub(crate) fn operations() -> Vec<(&'static str, &'static str)> {
    table().into_iter().map(|(path, method, _)| (path, method)).collect()
}

async fn create(State(api): State<HttpApi>, asker: Asker, body: JsonBody<CreateDisk>) -> Response {
    let JsonBody(CreateDisk { name, from, ephemeral, write_through, size }) = body;
    let chosen = Mode::chosen(ephemeral, write_through);
    let mode = *chosen.as_ref().unwrap_or(&Mode::default());
    let request = DiskRequest::Create { name, from, mode, size };
    // Who may not is told nothing else.
    match rights::check(&asker.caller, &request).and(chosen) {
        Ok(_) => api.change(asker, request, StatusCode::CREATED).await,
        Err(e) => problem(&e),
    }
}

async fn show(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
) -> Response {
    api.look(&asker, DiskRequest::Show { name }).await
}

async fn elsewhere(State(api): State<HttpApi>, asker: Asker) -> Response {
    api.look(&asker, DiskRequest::Elsewhere).await
}

async fn remove(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    QueryParameters(RemoveHow { lost }): QueryParameters<RemoveHow>,
) -> Response {
    api.change(asker, DiskRequest::Remove { name, lost }, StatusCode::OK).await
}

async fn remove_snapshot(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames((name, snapshot)): PathNames<(String, String)>,
) -> Response {
    api.change(asker, DiskRequest::RemoveSnapshot { name, snapshot }, StatusCode::OK).await
}

async fn snapshot(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(SnapshotName { snapshot }): JsonBody<SnapshotName>,
) -> Response {
    api.change(asker, DiskRequest::Snapshot { name, snapshot }, StatusCode::CREATED).await
}

async fn rollback(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(SnapshotName { snapshot }): JsonBody<SnapshotName>,
) -> Response {
    api.change(asker, DiskRequest::Rollback { name, snapshot }, StatusCode::OK).await
}

async fn commit(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(CommitTo { image }): JsonBody<CommitTo>,
) -> Response {
    api.change(asker, DiskRequest::Commit { name, image }, StatusCode::CREATED).await
}

async fn rebase(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(RebaseOn { image, keep_mine }): JsonBody<RebaseOn>,
) -> Response {
    api.change(asker, DiskRequest::Rebase { name, image, keep_mine }, StatusCode::OK).await
}

async fn reset(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Response {
    api.change(asker, DiskRequest::Reset { name }, StatusCode::OK).await
}

async fn grow(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(GrowTo { size }): JsonBody<GrowTo>,
) -> Response {
    api.change(asker, DiskRequest::Grow { name, size }, StatusCode::OK).await
}

async fn publish(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Response {
    api.change(asker, DiskRequest::Publish { name }, StatusCode::OK).await
}

async fn release(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Response {
    api.change(asker, DiskRequest::Release { name }, StatusCode::OK).await
}

async fn take(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(TakeHow { force }): JsonBody<TakeHow>,
) -> Response {
    api.change(asker, DiskRequest::Take { name, force, lost: false }, StatusCode::OK).await
}

async fn keep(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(KeepAs { new }): JsonBody<KeepAs>,
) -> Response {
    api.change(asker, DiskRequest::Keep { name, new }, StatusCode::CREATED).await
}

async fn show_image(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
) -> Response {
    api.look_at_image(&asker, &name).await
}

async fn remove_image(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
) -> Response {
    api.change_image(asker, ImageRequest::Remove { name }).await
}

async fn restore_image(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Response {
    api.change_image(asker, ImageRequest::Restore { name }).await
}

//! What is answered where.

use super::assets;
use super::boots::ToldBoots;
use super::borrowed::ToldBorrowing;
use super::lists::Lists;
use super::maps::Maps;
use super::sampler::{Sampler, Watcher};
use crate::answers::problem;
use crate::bearer::Caller;
use crate::running::RunningServer;
use crate::signals::Switch;
use access::TokenRight;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Extension, Router};
use block::{Error, Result};
use bytes::Bytes;
use serde::Deserialize;
use std::sync::Arc;

/// The API as a document.
const OPENAPI: &str = include_str!("openapi.json");

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Dashboard {
    running: Arc<RunningServer>,
    sampler: Arc<Sampler>,
    lists: Arc<Lists>,
    maps: Arc<Maps>,
    boots: Arc<ToldBoots>,
    borrowing: Arc<ToldBorrowing>,
}

impl Dashboard {
    /// Makes the routes of a server, until `stop`; they need [`follow`](Self::follow).
    /// At most so many `streams` are open at a time.
    pub(crate) fn new(running: &Arc<RunningServer>, stop: Switch, streams: usize) -> Self {
        let sampler = Sampler::new(running, &assets::PAGE, stop, streams);
        let (lists, maps, boots, borrowing) = Default::default();
        Self { running: Arc::clone(running), sampler, lists, maps, boots, borrowing }
    }

    /// Works while somebody watches, until the port closes.
    pub(crate) async fn follow(self) {
        self.sampler.follow().await;
    }
}

/// The API: what is answered at each of its paths, all of which [`OPENAPI`] describes.
fn api() -> [(&'static str, MethodRouter<Dashboard>); 10] {
    [
        ("/api/v1/status", get(status)),
        ("/api/v1/disks", get(disks)),
        ("/api/v1/disks/{disk}/map", get(map)),
        ("/api/v1/images", get(images)),
        ("/api/v1/lineage", get(lineage)),
        ("/api/v1/boots", get(boots)),
        ("/api/v1/boots/{storm}", get(storm)),
        ("/api/v1/borrowed", get(borrowed)),
        ("/api/v1/live", get(live)),
        ("/api/v1/openapi.json", get(|| async { sent(Ok(OPENAPI.into())) })),
    ]
}

/// The page and its API.
pub(crate) fn routes(dashboard: Dashboard) -> Router {
    let files = assets::paths().map(|path| (path, get(asset)));
    let all = api().into_iter().chain(files);
    let router = all.fold(Router::new(), |router, (path, answer)| router.route(path, answer));
    router.fallback(nothing).with_state(dashboard)
}

async fn status(State(dashboard): State<Dashboard>) -> Response {
    sent(dashboard.sampler.status().await)
}

async fn disks(
    State(Dashboard { running, lists, .. }): State<Dashboard>,
    Extension(caller): Extension<Caller>,
) -> Response {
    sent(match caller.token() {
        Some(_) => lists.disks_for(&running, &caller).await,
        None => lists.disks(&running).await,
    })
}

async fn images(
    State(Dashboard { running, lists, .. }): State<Dashboard>,
    Extension(caller): Extension<Caller>,
) -> Response {
    sent(match caller.token() {
        Some(_) => lists.images_for(&running, &caller).await,
        None => lists.images(&running).await,
    })
}

async fn lineage(
    State(Dashboard { running, lists, .. }): State<Dashboard>,
    Extension(caller): Extension<Caller>,
) -> Response {
    sent(match caller.token() {
        Some(_) => lists.lineage_for(&running, &caller).await,
        None => lists.lineage(&running).await,
    })
}

async fn boots(State(Dashboard { running, boots, .. }): State<Dashboard>) -> Response {
    sent(boots.now(&running).await)
}

async fn storm(
    State(Dashboard { running, boots, .. }): State<Dashboard>,
    number: std::result::Result<Path<u64>, PathRejection>,
) -> Response {
    sent(match number {
        Ok(Path(number)) => boots.storm(&running, number).await,
        Err(e) => Err(Error::invalid(e.body_text())),
    })
}

async fn borrowed(State(Dashboard { running, borrowing, .. }): State<Dashboard>) -> Response {
    sent(borrowing.get(&running).await)
}

/// What is wanted of a map.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapQuery {
    #[serde(default = "MapQuery::cells")]
    cells: usize,
}

impl MapQuery {
    fn cells() -> usize {
        1024
    }
}

async fn map(
    State(Dashboard { running, maps, .. }): State<Dashboard>,
    Extension(caller): Extension<Caller>,
    disk: std::result::Result<Path<String>, PathRejection>,
    query: std::result::Result<Query<MapQuery>, QueryRejection>,
) -> Response {
    let asked = || {
        let Path(disk) = disk.map_err(|e| Error::invalid(e.body_text()))?;
        caller.must_have(TokenRight::Read)?;
        caller.must_see_disk(&disk)?;
        let wrong =
            |e: QueryRejection| Error::invalid(format!("{}; write ?cells=N", e.body_text()));
        let Query(MapQuery { cells }) = query.map_err(wrong)?;
        Ok::<_, Error>((disk, cells))
    };
    sent(match asked() {
        Ok((disk, cells)) => maps.get(&running, disk, cells).await,
        Err(e) => Err(e),
    })
}

/// What is wanted of a stream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LiveQuery {
    #[serde(default)]
    disks: bool,
}

/// A stream of events, and who watches it.
type LiveState = (Watcher, Caller);

async fn live(
    State(dashboard): State<Dashboard>,
    Extension(caller): Extension<Caller>,
    query: std::result::Result<Query<LiveQuery>, QueryRejection>,
) -> Response {
    let watcher = match query {
        Ok(Query(query)) => dashboard.sampler.watch(query.disks),
        Err(e) => Err(Error::invalid(format!("{}; write ?disks=true or nothing", e.body_text()))),
    };
    match watcher {
        Ok(watcher) => {
            let begun = (watcher, caller);
            let body = futures::stream::unfold(begun, async |(mut watcher, caller): LiveState| {
                let bytes = watcher.next().await?;
                // A stream may last for days, and its token not.
                caller.must_still_hold().await.ok()?;
                Some((Ok::<_, std::convert::Infallible>(bytes), (watcher, caller)))
            });
            ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
        }
        Err(e) => problem(&e),
    }
}

async fn asset(uri: Uri, headers: HeaderMap) -> Response {
    assets::send(uri.path(), &headers).unwrap_or_else(|| problem(&nowhere(&uri)))
}

async fn nothing(uri: Uri) -> Response {
    problem(&nowhere(&uri))
}

fn nowhere(uri: &Uri) -> Error {
    let path: String = uri.path().chars().take(80).collect();
    Error::not_found(format!("nothing is at {path:?}; /api/v1/openapi.json tells what there is"))
}

fn sent(answer: Result<Bytes>) -> Response {
    match answer {
        Ok(json) => ([(CONTENT_TYPE, "application/json")], json).into_response(),
        Err(e) => problem(&e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_api;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn the_document_has_the_paths_and_methods_that_there_are() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut told = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
                told.insert((path.as_str(), method.as_str()));
            }
        }
        let reads = api().map(|(path, _)| (path, "get"));
        assert_eq!(told, reads.into_iter().chain(http_api::operations()).collect());
    }

    #[test]
    fn the_document_says_what_every_operation_may_answer_and_takes() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let what = format!("{method} {path}");
                let answers = operation["responses"].as_object().unwrap();
                if path == "/api/v1/openapi.json" {
                    continue;
                }
                for status in ["401", "403", "421", "503"] {
                    assert!(answers.contains_key(status), "{what}: {status}");
                }
                let names = path.matches('{').count();
                let told = operation["parameters"].as_array().into_iter().flatten();
                let told = told.filter(|parameter| parameter["in"] == "path").count();
                assert_eq!(told, names, "{what}");
                if method != "get" {
                    assert!(operation["x-right"].is_string(), "{what}");
                    assert_eq!(operation["requestBody"].is_object(), method == "post", "{what}");
                }
            }
        }
    }

    #[test]
    fn the_document_names_the_kinds_of_errors() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let kinds = &document["components"]["schemas"]["Problem"]["properties"]["kind"]["enum"];
        let told: BTreeSet<&str> =
            kinds.as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()).collect();
        assert_eq!(told, block::ErrorKind::ALL.map(|kind| kind.as_str()).into());
    }
}

//! A verb carried out: by few at a time, noted in the audit log, and answered.

use super::requests::Asker;
use super::rights;
use crate::answers::problem;
use crate::audit::{Actor, Deed};
use crate::bearer::{AnsweredToken, Caller, ask_for_token, looks};
use crate::errand::{Errand, ErrandKind, ErrandResult, ErrandTurn, Errands};
use crate::origin::Origin;
use crate::running::RunningServer;
use crate::study::Studies;
use access::TokenRight;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, RequestExt};
use block::{Error, ErrorKind, Result};
use engine::api::{DiskReply, DiskRequest, MadeView};
use engine::image_views::ImageDetails;
use engine::{image_verbs, verbs};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot};

/// Changes that are carried out at a time: a quarter of the clients that have a place.
const CHANGES: usize = 16;
/// Images of these that are taken in at a time: each is cut and compressed by all processors, and may take long.
const IMPORTS: usize = 2;
/// Disks, images and lists of machines that are looked at at a time; more wait.
const LOOKS: usize = 4;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct HttpApi {
    running: Arc<RunningServer>,
    changes: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    imports: Arc<Semaphore>,
    studies: Studies,
    errands: Errands,
}

/// A verb on an image version, as it is noted.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub(super) enum ImageRequest {
    Remove { name: String },
    Restore { name: String },
}

/// The turn of a verb.
enum VerbTurn {
    Change { _turn: OwnedSemaphorePermit },
    Errand { _turn: ErrandTurn },
}

/// Marks an answer to a change that was carried out, well or not: it is in the audit log.
#[derive(Clone)]
struct CarriedOut;

impl HttpApi {
    /// Makes the API of a server.
    pub(crate) fn new(running: &Arc<RunningServer>) -> Self {
        let (changes, looks) = (Semaphore::new(CHANGES), Semaphore::new(LOOKS));
        let (changes, looks) = (Arc::new(changes), Arc::new(looks));
        let imports = Arc::new(Semaphore::new(IMPORTS));
        let (studies, errands) = (Studies::new(), Errands::new());
        Self { running: Arc::clone(running), changes, looks, imports, studies, errands }
    }

    /// Carries out a verb on disks that changes nothing, for bearers of tokens: each looks into the store
    /// anew, which others have lists for that are kept.
    pub(super) async fn look(&self, asker: &Asker, request: DiskRequest) -> Response {
        if asker.caller.token().is_none() {
            return ask_for_token();
        }
        let looked = async {
            rights::check(&asker.caller, &request)?;
            let _turn = self.turn_to_look().await?;
            self.running.all_attached().await;
            verbs::perform(&self.running.engine, request).await
        };
        match looked.await {
            Ok(reply) => Json(shown(reply, &asker.caller)).into_response(),
            Err(e) => problem(&e),
        }
    }

    /// Carries out a verb on disks, and answers with `status` when it is done.
    pub(super) async fn change(
        &self,
        asker: Asker,
        request: DiskRequest,
        status: StatusCode,
    ) -> Response {
        if let Err(e) = rights::check(&asker.caller, &request) {
            return problem(&e);
        }
        let (deed, running) = (Deed::of("disk", &request), Arc::clone(&self.running));
        let verb = async move { verbs::perform(&running.engine, request).await };
        match self.carry_out(&asker, deed, verb).await {
            Ok(Ok(reply)) => {
                let place = (status == StatusCode::CREATED).then(|| place(&reply)).flatten();
                let mut response = (status, Json(shown(reply, &asker.caller))).into_response();
                if let Some(place) = place {
                    response.headers_mut().insert(LOCATION, place);
                }
                carried(response)
            }
            Ok(Err(e)) => carried(problem(&e)),
            Err(response) => response,
        }
    }

    /// Carries out a verb on an image version.
    pub(super) async fn change_image(&self, asker: Asker, request: ImageRequest) -> Response {
        let (ImageRequest::Remove { name } | ImageRequest::Restore { name }) = request.clone();
        let right = match request {
            ImageRequest::Remove { .. } => TokenRight::Admin,
            ImageRequest::Restore { .. } => TokenRight::Operate,
        };
        let allowed =
            asker.caller.must_have(right).and_then(|()| asker.caller.must_see_image(&name));
        if let Err(e) = allowed {
            return problem(&e);
        }
        let (deed, running) = (Deed::of("image", &request), Arc::clone(&self.running));
        let verb = async move {
            let store = &running.engine.store;
            match request {
                ImageRequest::Remove { name } => {
                    image_verbs::remove(store, &name).await?;
                    Ok(format!("image {name} removed"))
                }
                ImageRequest::Restore { name } => {
                    image_verbs::restore(store, &name).await?;
                    Ok(format!("image {name} is there again"))
                }
            }
        };
        match self.carry_out(&asker, deed, verb).await {
            Ok(Ok(done)) => carried(Json(json!({ "done": done })).into_response()),
            // Whose disks stand on it is not everybody's to know.
            Ok(Err(e)) if e.kind() == ErrorKind::Conflict && asker.caller.is_limited() => {
                let why = format!("image {name} is used, or is there, or is being changed");
                carried(problem(&Error::conflict(why)))
            }
            Ok(Err(e)) => carried(problem(&e)),
            Err(response) => response,
        }
    }

    /// What an image version holds and what stands on it, for bearers of tokens: its map is read.
    pub(super) async fn look_at_image(&self, asker: &Asker, name: &str) -> Response {
        let caller = &asker.caller;
        if caller.token().is_none() {
            return ask_for_token();
        }
        let looked = async {
            caller.must_have(TokenRight::Read)?;
            caller.must_see_image(name)?;
            let _turn = self.turn_to_look().await?;
            let mut found = ImageDetails::of(&self.running.engine.store, &name.parse()?).await?;
            // The newest may be another one than the token is for.
            caller.must_see_image(&found.image.image)?;
            found.used_by.retain(|user| caller.sees_user(user));
            caller.hide_source(&mut found.image.source);
            Ok::<_, Error>(found)
        };
        match looked.await {
            Ok(found) => Json(found).into_response(),
            Err(e) => problem(&e),
        }
    }

    /// The studies of traces.
    pub(super) fn studies(&self) -> &Studies {
        &self.studies
    }

    /// The commands that are carried out.
    pub(super) fn errands(&self) -> &Errands {
        &self.errands
    }

    /// The turn of a look at what is in files.
    pub(super) async fn turn_to_look(&self) -> Result<SemaphorePermit<'_>> {
        self.looks.acquire().await.map_err(|_| stopping())
    }

    /// The turn of an image that is taken in.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when as many are taken in as may be: the answer is [`busy`].
    pub(super) fn turn_to_import(&self) -> Result<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.imports).try_acquire_owned();
        turn.map_err(|_| {
            Error::unavailable(format!(
                "the server takes {IMPORTS} images in already; try again in a moment"
            ))
        })
    }

    /// The server.
    pub(super) fn running(&self) -> Arc<RunningServer> {
        Arc::clone(&self.running)
    }

    /// Carries out what is asked of the server itself, which takes the right to administer all of it.
    pub(super) async fn change_server<T: Serialize + Send + 'static>(
        &self,
        asker: Asker,
        deed: Deed,
        verb: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Response {
        if let Err(e) = asker.caller.must_have(TokenRight::Admin) {
            return problem(&e);
        }
        match self.carry_out(&asker, deed, verb).await {
            Ok(Ok(done)) => carried(Json(done).into_response()),
            Ok(Err(e)) => carried(problem(&e)),
            Err(response) => response,
        }
    }

    /// Carries out a verb in a task of its own: it is finished, and noted, even when its client goes away,
    /// which keeps its place meanwhile. Fails with an answer when it could not begin.
    pub(super) async fn carry_out<T: Send + 'static>(
        &self,
        asker: &Asker,
        deed: Deed,
        verb: impl Future<Output = Result<T>> + Send + 'static,
    ) -> std::result::Result<Result<T>, Response> {
        let Ok(turn) = Arc::clone(&self.changes).try_acquire_owned() else {
            return Err(busy(&Error::unavailable(format!(
                "the server carries out {CHANGES} changes already; try again in a moment"
            ))));
        };
        self.carry(asker, deed, VerbTurn::Change { _turn: turn }, verb).await
    }

    /// The same for an errand, which counts among those alone; `told` is what its result comes to.
    pub(super) async fn carry_out_errand(
        &self,
        asker: &Asker,
        deed: Deed,
        (kind, errand): (ErrandKind<'_>, Errand),
        told: fn(ErrandResult) -> Result<Value>,
    ) -> std::result::Result<Result<Value>, Response> {
        let _turn = self.errands.turn(kind).map_err(|e| busy(&e))?;
        let (errands, running) = (self.errands.clone(), self.running());
        let verb =
            async move { told(errands.run(&running.home, &errand, running.ending.wait()).await?) };
        self.carry(asker, deed, VerbTurn::Errand { _turn }, verb).await
    }

    async fn carry<T: Send + 'static>(
        &self,
        asker: &Asker,
        deed: Deed,
        turn: VerbTurn,
        verb: impl Future<Output = Result<T>> + Send + 'static,
    ) -> std::result::Result<Result<T>, Response> {
        let kept = asker.origin.keep_place();
        let token = asker.caller.token().map(str::to_owned);
        let actor = Actor { token, origin: asker.origin.clone() };
        tracing::info!(token = actor.token, from = %actor.origin, %deed, "over HTTP");
        self.running.all_attached().await;
        let (send, receive) = oneshot::channel();
        let running = Arc::clone(&self.running);
        let is_errand = matches!(turn, VerbTurn::Errand { .. });
        let task = async move {
            let done = verb.await;
            running.note_change();
            running.audit.note(&actor, &deed, done.as_ref().map(|_| ())).await;
            drop((turn, kept));
            let _ = send.send(done); // the client may be gone
        };
        let begun = match is_errand {
            true => self.running.begin_errand(task),
            false => self.running.begin(task),
        };
        begun.map_err(|e| problem(&e))?;
        let lost = |_| Error::internal("the verb failed inside the server; see its log");
        Ok(receive.await.map_err(lost).flatten())
    }
}

fn stopping() -> Error {
    Error::unavailable("the server is stopping")
}

/// The answer where too much is going on.
pub(super) fn busy(error: &Error) -> Response {
    let mut response = problem(error);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

pub(super) fn carried(mut response: Response) -> Response {
    response.extensions_mut().insert(CarriedOut);
    response
}

/// What `--json` prints of a reply, with what the caller sees of lists.
fn shown(reply: DiskReply, caller: &Caller) -> Value {
    let value = match reply {
        DiskReply::Disk(mut disk) => {
            caller.hide_image(&mut disk.image);
            serde_json::to_value(disk)
        }
        DiskReply::Disks(mut disks) => {
            disks.retain(|disk| caller.sees_disk(&disk.name));
            disks.iter_mut().for_each(|disk| caller.hide_image(&mut disk.image));
            serde_json::to_value(disks)
        }
        DiskReply::Elsewhere(mut disks) => {
            disks.retain(|disk| caller.sees_disk(&disk.name));
            disks.iter_mut().for_each(|disk| caller.hide_elsewhere(disk));
            serde_json::to_value(disks)
        }
        DiskReply::Map(map) => serde_json::to_value(map),
        DiskReply::Made(mut made) => {
            for one in &mut made {
                if let MadeView::Disk(disk) = one {
                    caller.hide_image(&mut disk.image);
                }
            }
            serde_json::to_value(made)
        }
        DiskReply::Snapshot(snapshot) => serde_json::to_value(snapshot),
        DiskReply::Image(image) => serde_json::to_value(image),
        DiskReply::Rebase(mut report) => {
            caller.hide_image(&mut report.disk.image);
            serde_json::to_value(report)
        }
        DiskReply::Published(published) => serde_json::to_value(published),
        DiskReply::Mark(mark) => serde_json::to_value(mark),
        DiskReply::PrivateBytes(bytes) => serde_json::to_value(bytes),
        DiskReply::Holds(holds) => serde_json::to_value(holds),
        DiskReply::Removed(what) => Ok(json!({ "done": format!("{what} removed") })),
        DiskReply::Released(what) => Ok(json!({ "done": format!("{what} released") })),
    };
    value.unwrap_or_default() // of text and numbers: it cannot fail
}

/// Where what was made can be looked at.
fn place(reply: &DiskReply) -> Option<HeaderValue> {
    match reply {
        DiskReply::Disk(disk) => HeaderValue::try_from(format!("/api/v1/disks/{}", disk.name)).ok(),
        _ => None,
    }
}

/// Notes requests for changes that are not carried out: without a right, of another origin, or wrong.
pub(crate) async fn note_refusals(
    State(running): State<Arc<RunningServer>>,
    mut request: Request,
    next: Next,
) -> Response {
    if looks(request.method()) {
        return next.run(request).await;
    }
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let origin = request.extract_parts::<ConnectInfo<Origin>>().await;
    let response = next.run(request).await;
    if response.extensions().get::<CarriedOut>().is_none()
        && let Ok(ConnectInfo(origin)) = origin
    {
        let token =
            response.extensions().get::<AnsweredToken>().map(|AnsweredToken(name)| name.clone());
        let status = response.status().as_u16();
        running.audit.note_refusal(&Actor { token, origin }, &method, &path, status).await;
    }
    response
}

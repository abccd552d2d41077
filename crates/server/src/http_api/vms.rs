//! Virtual machines. What carries a verb out is the command that a person would run, in a process of its own
//! ([`errand`](crate::errand)): a machine belongs to its keeper, and this server has its disk alone.

use super::carry::{HttpApi, carried};
use super::requests::{
    Asker, JsonBody, Nothing, PathNames, QueryParameters, RemoveHow, some_whole_number,
};
use super::vm_rights;
use crate::answers::{answered, problem};
use crate::audit::Deed;
use crate::bearer::ask_for_token;
use crate::errand::{Errand, ErrandKind, ErrandResult};
use crate::vm_verbs::{VmRequest, check_vm_name, words};
use access::TokenRight;
use axum::Json;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use block::{Error, Result};
use engine::memory_map::memory_map;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a change may take.
const CHANGE: Duration = Duration::from_secs(3600);
/// The end of what a guest said that is told, in bytes.
const LOG_END: usize = 64 << 10;

/// `POST /api/v1/vms`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateVm {
    name: String,
    disk: String,
    #[serde(default, deserialize_with = "some_whole_number")]
    memory: Option<u64>,
    #[serde(default, deserialize_with = "some_whole_number")]
    cpus: Option<u64>,
    #[serde(default)]
    cpu: Option<String>,
    #[serde(default)]
    screen: bool,
}

/// How a machine boots.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartHow {
    #[serde(default)]
    fresh: bool,
    #[serde(default)]
    lost: bool,
}

/// How a machine is stopped.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopHow {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    sending: bool,
}

/// Until when a suspension is waited for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SuspendHow {
    #[serde(default)]
    wait: bool,
}

/// How a suspended machine goes on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResumeHow {
    #[serde(default)]
    lost: bool,
    #[serde(default)]
    no_fill: bool,
}

/// Whether a host that has fallen silent is gone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LostHow {
    #[serde(default)]
    lost: bool,
}

/// What becomes of a parcel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CloneAs {
    new: String,
    #[serde(default)]
    disk: Option<String>,
    #[serde(default)]
    keep_mac: bool,
}

/// Which machines are listed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListHow {
    #[serde(default)]
    elsewhere: bool,
}

/// How a map is drawn.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MapHow {
    #[serde(default = "MapHow::cells")]
    cells: usize,
}

impl MapHow {
    fn cells() -> usize {
        1024
    }
}

/// Whose words are told.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogHow {
    #[serde(default)]
    qemu: bool,
}

pub(super) async fn list(
    State(api): State<HttpApi>,
    asker: Asker,
    QueryParameters(ListHow { elsewhere }): QueryParameters<ListHow>,
) -> Response {
    if asker.caller.token().is_none() {
        return ask_for_token();
    }
    let looked = async {
        asker.caller.must_have(TokenRight::Read)?;
        let _turn = api.errands().turn_to_look().await?;
        let known = vm_rights::disks_of_all(&asker.caller, &api.running()).await?;
        let mut arguments = words("vm list --only-look");
        arguments.extend(elsewhere.then(|| "--elsewhere".to_owned()));
        let Value::Array(mut listed) = look(&api, arguments).await?.json()? else {
            return Err(Error::internal("a list of machines is none"));
        };
        if let Some(known) = known {
            listed
                .retain(|vm| known.covers(&asker.caller, vm["name"].as_str().unwrap_or_default()));
            listed.iter_mut().for_each(hide_host);
        }
        Ok(json!({ "vms": listed }))
    };
    answered(looked.await)
}

pub(super) async fn show(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
) -> Response {
    if asker.caller.token().is_none() {
        return ask_for_token();
    }
    let looked = async {
        let mut shown = look_at(&api, &asker, &name, words("vm show")).await?.json()?;
        if asker.caller.is_limited() {
            hide_host(&mut shown);
        }
        Ok(shown)
    };
    answered(looked.await)
}

pub(super) async fn log(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    QueryParameters(LogHow { qemu }): QueryParameters<LogHow>,
) -> Response {
    if asker.caller.token().is_none() {
        return ask_for_token();
    }
    let looked = async {
        // One more tells whether there is more.
        let mut arguments = words("vm log");
        arguments.push(format!("--last={}", LOG_END + 1));
        arguments.extend(qemu.then(|| "--qemu".to_owned()));
        let told = look_at(&api, &asker, &name, arguments).await?;
        if let Some(error) = told.failure {
            return Err(error);
        }
        let end = told.printed.len().saturating_sub(LOG_END);
        let text = String::from_utf8_lossy(&told.printed[end..]).into_owned();
        Ok(json!({ "text": text, "is_cut": end > 0 }))
    };
    answered(looked.await)
}

pub(super) async fn memory(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    QueryParameters(MapHow { cells }): QueryParameters<MapHow>,
) -> Response {
    if asker.caller.token().is_none() {
        return ask_for_token();
    }
    let looked = async {
        asker.caller.must_have(TokenRight::Read)?;
        let _turn = api.turn_to_look().await?;
        let running = api.running();
        vm_rights::must_see(&asker.caller, &running, &name).await?;
        check_vm_name(&name)?;
        memory_map(&running.engine, &name, cells).await
    };
    answered(looked.await)
}

/// Looks at one machine, or has the command say why not.
async fn look_at(
    api: &HttpApi,
    asker: &Asker,
    name: &str,
    arguments: Vec<String>,
) -> Result<ErrandResult> {
    asker.caller.must_have(TokenRight::Read)?;
    let _turn = api.errands().turn_to_look().await?;
    vm_rights::must_see(&asker.caller, &api.running(), name).await?;
    check_vm_name(name)?;
    look(api, [arguments, vec!["--".to_owned(), name.to_owned()]].concat()).await
}

async fn look(api: &HttpApi, arguments: Vec<String>) -> Result<ErrandResult> {
    let running = api.running();
    running.all_attached().await;
    let errand = Errand::look(arguments);
    api.errands().run(&running.home, &errand, running.ending.wait()).await
}

/// Takes out which host runs a machine; that one does stays.
fn hide_host(vm: &mut Value) {
    if let Some(host) = vm.get_mut("host") {
        *host = json!("");
    }
}

pub(super) async fn create(
    State(api): State<HttpApi>,
    asker: Asker,
    body: JsonBody<CreateVm>,
) -> Response {
    let JsonBody(CreateVm { name, disk, memory, cpus, cpu, screen }) = body;
    // More than there can be are too many for the command, too.
    let cpus = cpus.map(|cpus| u32::try_from(cpus).unwrap_or(u32::MAX));
    let request = VmRequest::Create { name, disk, memory, cpus, cpu, screen };
    change(&api, &asker, request, StatusCode::CREATED).await
}

pub(super) async fn remove(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    QueryParameters(RemoveHow { lost }): QueryParameters<RemoveHow>,
) -> Response {
    change(&api, &asker, VmRequest::Remove { name, lost }, StatusCode::OK).await
}

pub(super) async fn start(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(StartHow { fresh, lost }): JsonBody<StartHow>,
) -> Response {
    change(&api, &asker, VmRequest::Start { name, fresh, lost }, StatusCode::OK).await
}

pub(super) async fn suspend(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(SuspendHow { wait }): JsonBody<SuspendHow>,
) -> Response {
    change(&api, &asker, VmRequest::Suspend { name, wait }, StatusCode::OK).await
}

pub(super) async fn resume(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(ResumeHow { lost, no_fill }): JsonBody<ResumeHow>,
) -> Response {
    change(&api, &asker, VmRequest::Resume { name, lost, no_fill }, StatusCode::OK).await
}

pub(super) async fn checkpoint(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Response {
    change(&api, &asker, VmRequest::Checkpoint { name }, StatusCode::CREATED).await
}

pub(super) async fn rollback(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(LostHow { lost }): JsonBody<LostHow>,
) -> Response {
    change(&api, &asker, VmRequest::Rollback { name, lost }, StatusCode::OK).await
}

pub(super) async fn discard(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(LostHow { lost }): JsonBody<LostHow>,
) -> Response {
    change(&api, &asker, VmRequest::Discard { name, lost }, StatusCode::OK).await
}

pub(super) async fn clone(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(CloneAs { new, disk, keep_mac }): JsonBody<CloneAs>,
) -> Response {
    change(&api, &asker, VmRequest::Clone { name, new, disk, keep_mac }, StatusCode::CREATED).await
}

pub(super) async fn stop(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(StopHow { force, sending }): JsonBody<StopHow>,
) -> Response {
    change(&api, &asker, VmRequest::Stop { name, force, sending }, StatusCode::OK).await
}

/// Has a verb carried out, and answers with `status` when it is done.
async fn change(api: &HttpApi, asker: &Asker, request: VmRequest, status: StatusCode) -> Response {
    if let Err(e) = asker.caller.must_have(request.right()) {
        return problem(&e);
    }
    let running = api.running();
    let allowed = async {
        let _turn = api.turn_to_look().await?;
        vm_rights::check(&asker.caller, &running, &request).await?;
        request.arguments()
    };
    let arguments = match allowed.await {
        Ok(arguments) => arguments,
        Err(e) => return problem(&e),
    };
    let kind = match &request {
        VmRequest::Suspend { name, wait: true } => ErrandKind::Wait(name),
        _ => ErrandKind::Verb,
    };
    let made = request.makes().filter(|_| status == StatusCode::CREATED);
    let place = made.and_then(|(vm, _)| HeaderValue::try_from(format!("/api/v1/vms/{vm}")).ok());
    let (deed, errand) = (Deed::of("vm", &request), (kind, Errand::change(arguments, CHANGE)));
    match api.carry_out_errand(asker, deed, errand, ErrandResult::json).await {
        Ok(Ok(done)) => {
            let mut response = (status, Json(done)).into_response();
            response.headers_mut().extend(place.map(|place| (LOCATION, place)));
            carried(response)
        }
        Ok(Err(e)) => carried(problem(&e)),
        Err(response) => response,
    }
}

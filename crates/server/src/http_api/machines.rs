//! Machines that start from the network: which disk each has, and who waits for one.

use super::carry::{HttpApi, carried};
use super::requests::{Asker, JsonBody, PathNames};
use crate::answers::{answered, problem};
use crate::audit::Deed;
use crate::machines::assign::{self, Assignment, MachineStanding};
use crate::machines::list::{self, MachineListView};
use access::TokenRight;
use axum::extract::State;
use axum::response::Response;
use block::{Error, ErrorKind, Result};
use engine::verbs;
use netboot::registry::Machine;
use serde::Serialize;

/// A change of the list, as it is noted.
#[derive(Debug, Serialize)]
struct MachineDeed<'a> {
    verb: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    assignment: Option<&'a Assignment>,
}

pub(super) async fn machines(State(api): State<HttpApi>, asker: Asker) -> Response {
    let looked = async {
        asker.caller.must_have(TokenRight::Read)?;
        let _turn = api.turn_to_look().await?;
        MachineListView::of(&api.running().home).await.map_err(not_of_the_request)
    };
    answered(looked.await)
}

pub(super) async fn machine(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(who): PathNames<String>,
) -> Response {
    let looked = async {
        asker.caller.must_have(TokenRight::Read)?;
        let _turn = api.turn_to_look().await?;
        let registry = list::load(&api.running().home).await.map_err(not_of_the_request)?;
        assign::known(&registry, &who).cloned()
    };
    answered(looked.await)
}

pub(super) async fn assign(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(who): PathNames<String>,
    JsonBody(assignment): JsonBody<Assignment>,
) -> Response {
    let deed = MachineDeed { verb: "assign", name: &who, assignment: Some(&assignment) };
    let (deed, running) = (Deed::of("machine", &deed), api.running());
    let caller = asker.caller.clone();
    // One that has a disk loses it by that, and so may one that did not ask.
    let may = move |standing| match standing {
        MachineStanding::Listed | MachineStanding::Unseen => caller.must_have(TokenRight::Admin),
        MachineStanding::Waiting => Ok(()),
    };
    let verb = async move {
        let ask = async |request| verbs::perform(&running.engine, request).await;
        assignment.carry_out(&running.home, &who, may, ask).await
    };
    change(&api, &asker, TokenRight::Operate, deed, verb).await
}

pub(super) async fn forget(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(who): PathNames<String>,
) -> Response {
    let deed = MachineDeed { verb: "forget", name: &who, assignment: None };
    let (deed, running) = (Deed::of("machine", &deed), api.running());
    let verb = async move { assign::forget(&running.home, &who).await };
    change(&api, &asker, TokenRight::Admin, deed, verb).await
}

async fn change(
    api: &HttpApi,
    asker: &Asker,
    right: TokenRight,
    deed: Deed,
    verb: impl Future<Output = Result<Machine>> + Send + 'static,
) -> Response {
    if let Err(e) = asker.caller.must_have(right) {
        return problem(&e);
    }
    match api.carry_out(asker, deed, verb).await {
        Ok(done) => carried(answered(done)),
        Err(response) => response,
    }
}

/// The error of a list that cannot be read, of which the request is not the cause.
fn not_of_the_request(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Invalid => Error::corrupt(error.message().to_owned()),
        _ => error,
    }
}

//! Media, and the trees and images beside them, among the sources of the configuration. They are named as there: over
//! HTTP nobody says a path. What carries a verb out is the command that a person would run
//! ([`errand`](crate::errand)).

use super::carry::{HttpApi, carried};
use super::requests::{Asker, JsonBody, Nothing, PathNames, some_whole_number};
use crate::answers::{answered, problem};
use crate::audit::Deed;
use crate::bearer::ask_for_token;
use crate::errand::{Errand, ErrandKind, ErrandResult};
use crate::media_verbs::MediaRequest;
use crate::running::RunningServer;
use crate::vm_verbs::words;
use access::TokenRight;
use axum::extract::State;
use axum::response::Response;
use block::{Error, ErrorKind, Result, offload};
use engine::Config;
use engine::sources::{SourcePlace, place_at};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;

/// How long a change may take: a key is slow, and there may be a lot to write.
const CHANGE: Duration = Duration::from_secs(12 * 3600);

/// What is put onto a medium.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteMedium {
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    refresh: bool,
    #[serde(default, deserialize_with = "some_whole_number")]
    size: Option<u64>,
    #[serde(default)]
    make: bool,
}

/// How a medium is verified.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VerifyHow {
    #[serde(default)]
    drop_damaged: bool,
}

/// A source of the configuration.
#[derive(Debug, Serialize)]
struct ConfiguredSource {
    /// The name that the configuration gives it.
    name: String,
    /// What it is now; `None` where it cannot be looked at.
    kind: Option<&'static str>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Where it is.
    #[serde(skip)]
    place: String,
}

impl ConfiguredSource {
    async fn look(name: &str, place: String) -> Self {
        let (kind, error) = match place_at(&place).await {
            Ok(found) => (Some(kind_of(&found)), None),
            Err(e) => (None, Some(e.message().to_owned())),
        };
        Self { name: name.to_owned(), kind, error, place }
    }

    /// Refuses what a verb cannot be carried out on, as a store.
    fn must_be(&self, kinds: &[&str]) -> Result<()> {
        let name = &self.name;
        match (self.kind, &self.error) {
            (Some(kind), _) if kinds.contains(&kind) => Ok(()),
            (Some(kind), _) => Err(Error::conflict(format!(
                "source {name:?} is {kind}, and this is for {}",
                kinds.join(" or ")
            ))),
            (None, error) => Err(Error::unavailable(format!(
                "source {name:?} cannot be looked at: {}",
                error.as_deref().unwrap_or("it is not there")
            ))),
        }
    }
}

fn kind_of(place: &SourcePlace) -> &'static str {
    match place {
        SourcePlace::Store(_) => "store",
        SourcePlace::Export(_) => "export",
        SourcePlace::Media(_) => "medium",
        SourcePlace::Tree(_) => "tree",
        SourcePlace::Image(_) => "image",
    }
}

/// The sources that the configuration names now.
async fn configured(running: &RunningServer) -> Result<Vec<(String, String)>> {
    let home = running.home.clone();
    let read = offload(move || {
        let sources = Config::of(&home)?.sources;
        Ok(sources.into_iter().map(|name| (home.store_url(&name), name)).collect::<Vec<_>>())
    });
    let sources = read.await.map_err(|e| match e.kind() {
        // Of which the request is not the cause.
        ErrorKind::Invalid => Error::internal(format!("the configuration: {}", e.message())),
        _ => e,
    })?;
    Ok(sources.into_iter().map(|(place, name)| (name, place)).collect())
}

/// The source of this name, as it is now.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when the configuration names none such; any error from the configuration.
async fn source(running: &RunningServer, name: &str) -> Result<ConfiguredSource> {
    let known = configured(running).await?.into_iter().find(|(known, _)| known == name);
    let (name, place) = known.ok_or_else(|| {
        let shown: String = name.chars().take(80).collect();
        Error::not_found(format!(
            "the configuration of the server names no source {shown:?}; those that it names are media here"
        ))
    })?;
    Ok(ConfiguredSource::look(&name, place).await)
}

pub(super) async fn list(State(api): State<HttpApi>, asker: Asker) -> Response {
    if asker.caller.token().is_none() {
        return ask_for_token();
    }
    let looked = async {
        asker.caller.must_have(TokenRight::Read)?;
        let _turn = api.turn_to_look().await?;
        let sources = configured(&api.running()).await?;
        let looks = sources
            .into_iter()
            .map(|(name, place)| async move { ConfiguredSource::look(&name, place).await });
        Ok(json!({ "media": join_all(looks).await }))
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
        asker.caller.must_have(TokenRight::Read)?;
        let _turn = api.errands().turn_to_look().await?;
        let running = api.running();
        let found = source(&running, &name).await?;
        let holds = match found.kind {
            Some("medium") => {
                let place = vec!["--".to_owned(), found.place.clone()];
                let arguments = [words("media list"), place].concat();
                let errand = Errand::look(arguments);
                api.errands().run(&running.home, &errand, running.ending.wait()).await?.json()?
            }
            _ => json!([]),
        };
        let mut shown = json!(found);
        shown["holds"] = holds;
        Ok(shown)
    };
    answered(looked.await)
}

pub(super) async fn write(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(WriteMedium { names, refresh, size, make }): JsonBody<WriteMedium>,
) -> Response {
    let request = MediaRequest::Write { name, holds: names, refresh, size, make };
    change(&api, &asker, request).await
}

pub(super) async fn verify(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(VerifyHow { drop_damaged }): JsonBody<VerifyHow>,
) -> Response {
    change(&api, &asker, MediaRequest::Verify { name, drop_damaged }).await
}

pub(super) async fn index(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Response {
    change(&api, &asker, MediaRequest::Index { name }).await
}

pub(super) async fn remove(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames((name, held)): PathNames<(String, String)>,
) -> Response {
    change(&api, &asker, MediaRequest::Remove { name, held }).await
}

/// The error for a directory without a medium: it is a new one, or nothing is mounted there, and its file system another
/// one.
fn is_no_medium(name: &str) -> Error {
    Error::conflict(format!(
        "source {name:?} is a directory without a medium: mount the medium there; or have one made, with \"make\": true \
         ('sojourn media write --make')"
    ))
}

/// Has a verb carried out, which takes a token for all disks and images.
async fn change(api: &HttpApi, asker: &Asker, request: MediaRequest) -> Response {
    if let Err(e) = asker.caller.must_have(request.right()) {
        return problem(&e);
    }
    let running = api.running();
    let found = async {
        let _turn = api.turn_to_look().await?;
        let found = source(&running, request.name()).await?;
        let arguments = request.arguments(&found.place)?;
        found.must_be(match &request {
            MediaRequest::Write { make: true, .. } => &["medium", "tree"],
            MediaRequest::Write { make: false, .. } if found.kind == Some("tree") => {
                return Err(is_no_medium(&found.name));
            }
            MediaRequest::Write { .. } => &["medium"],
            MediaRequest::Verify { .. } | MediaRequest::Remove { .. } => &["medium"],
            MediaRequest::Index { .. } => &["tree", "image"],
        })?;
        Ok(arguments)
    };
    let arguments = match found.await {
        Ok(arguments) => arguments,
        Err(e) => return problem(&e),
    };
    let told = match request {
        // What is damaged is what was asked for.
        MediaRequest::Verify { .. } => ErrandResult::report,
        _ => ErrandResult::json,
    };
    let deed = Deed::of("media", &request);
    let errand = (ErrandKind::Medium(request.name()), Errand::change(arguments, CHANGE));
    match api.carry_out_errand(asker, deed, errand, told).await {
        Ok(done) => carried(answered(done)),
        Err(response) => response,
    }
}

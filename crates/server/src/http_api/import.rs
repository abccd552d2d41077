//! An image that is sent, which becomes a version. Whatever can be said of a request without its body is said
//! before any of that is taken: a client that waits to be asked for it (`Expect: 100-continue`) sends none of it
//! in vain.

use super::carry::{HttpApi, busy, carried};
use super::requests::{Asker, ImportHow, PathNames, QueryParameters, says_no_bytes};
use super::upload::Upload;
use crate::answers::problem;
use crate::audit::Deed;
use crate::bearer::Caller;
use access::TokenRight;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use block::{Error, Result};
use engine::api::ImportView;
use engine::image_verbs::{self, RawStream};
use futures::FutureExt;
use hyper::body::Body as _;
use serde::Serialize;
use store::{ImageName, Store, images};

/// The longest word on where an image came from, in bytes.
const LONGEST_SOURCE: usize = 1024;

/// An import, as it is noted.
#[derive(Debug, Serialize)]
struct ImportDeed<'a> {
    verb: &'static str,
    name: &'a str,
    source: &'a str,
    /// How many bytes are sent, if the request says so.
    size: Option<u64>,
}

/// Makes a version of the body.
pub(super) async fn import(
    State(api): State<HttpApi>,
    asker: Asker,
    PathNames(name): PathNames<String>,
    QueryParameters(how): QueryParameters<ImportHow>,
    request: Request,
) -> Response {
    if let Err(e) = allowed(&asker.caller, &name) {
        return problem(&e);
    }
    if let Some(response) = says_no_bytes(request.headers(), "the bytes of a disk") {
        return response;
    }
    let turn = match api.turn_to_import() {
        Ok(turn) => turn,
        Err(e) => return busy(&e),
    };
    let (body, running) = (request.into_body(), api.running());
    let size = body.size_hint().exact();
    let image = match expected(&running.engine.store, &name, &how, size).await {
        Ok(image) => image,
        Err(e) => return problem(&e),
    };
    let deed = ImportDeed { verb: "import", name: &name, source: &how.source, size };
    let deed = Deed::of("image", &deed);
    let caller = asker.caller.clone();
    let verb = async move {
        // Days may lie between the first byte and the last.
        let permission = Box::new(move || {
            let caller = caller.clone();
            async move { caller.must_still_hold().await }.boxed()
        });
        let mut upload = Upload::new(body, running.ending.wait(), permission);
        let taken = take(&running.engine.store, &image, &how, &mut upload).await;
        drop(turn);
        if taken.is_err() {
            // The answer reaches a client that is still sending only if somebody takes what it sends.
            let _ = running.begin(upload.drain());
        }
        taken
    };
    match api.carry_out(&asker, deed, verb).await {
        Ok(Ok(view)) => {
            let place = HeaderValue::try_from(format!("/api/v1/images/{}", view.image.image));
            let mut response = (StatusCode::CREATED, Json(view)).into_response();
            if let Ok(place) = place {
                response.headers_mut().insert(LOCATION, place);
            }
            carried(response)
        }
        Ok(Err(e)) => carried(problem(&e)),
        Err(response) => response,
    }
}

/// Fails when a caller may not make a version of this name: it is new, and replaces nothing.
fn allowed(caller: &Caller, name: &str) -> Result<()> {
    caller.must_have(TokenRight::Operate)?;
    caller.must_see_image(name)
}

/// The name of the version that a body of this size, if it says one, may become.
async fn expected(
    store: &Store,
    name: &str,
    how: &ImportHow,
    size: Option<u64>,
) -> Result<ImageName> {
    if how.source.len() > LONGEST_SOURCE || how.source.contains(char::is_control) {
        return Err(Error::invalid(format!(
            "a source has at most {LONGEST_SOURCE} bytes, and no control characters"
        )));
    }
    let image: ImageName = name.parse()?;
    if let Some(size) = size {
        store::import::check_size(size)?;
    }
    images::must_be_free(store, &image).await?;
    Ok(image)
}

/// Makes the version. It is not there before all of the body is stored.
async fn take(
    store: &Store,
    image: &ImageName,
    how: &ImportHow,
    upload: &mut Upload<Body>,
) -> Result<ImportView> {
    let session = store.session(&format!("import of {image}")).await?;
    let stream = RawStream {
        what: "the body".into(),
        source: how.source.clone(),
        as_it_is: how.format.is_some(),
        bytes: &mut *upload,
    };
    let made = image_verbs::import_stream(&session, image, stream, &()).await;
    let made = session.close(made).await;
    // What is wrong with the body is the client's affair, whatever it did to the import.
    made.map_err(|e| upload.fault().map_or(e, Error::from))
}

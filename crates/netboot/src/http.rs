//! What machines fetch over HTTP: scripts, kernels, firmware. A router without a socket.

use crate::firmware::FirmwareFiles;
use crate::identity::Claim;
use crate::kernel::BootFile;
use crate::machines::Machines;
use crate::script;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use block::{Error, ErrorKind};
use futures::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bytes of kernels and initial RAM disks in memory at a time, in units of [`UNIT`]; whoever comes when
/// they are used up waits, for [`PATIENCE`] at the most.
const MEMORY: usize = 1024;
/// How long a machine waits for memory: its screen shows nothing meanwhile, and then that it asks again.
const PATIENCE: Duration = Duration::from_secs(120);
/// The grain of that.
const UNIT: usize = 1 << 20;
/// Bytes that are given to a connection at a time.
const PIECE: usize = 256 << 10;

/// What the routes need.
struct Site {
    machines: Arc<dyn Machines>,
    firmware: FirmwareFiles,
    /// Where machines reach this: `http://10.0.0.1:8067`.
    address: String,
    memory: Arc<Semaphore>,
}

/// The routes, reached by machines at `address`, such as `http://10.0.0.1:8067`.
pub fn router(machines: Arc<dyn Machines>, firmware: FirmwareFiles, address: String) -> Router {
    let memory = Arc::new(Semaphore::new(MEMORY));
    Router::new()
        .route("/boot.ipxe", get(send_script))
        .route("/machine/{mac}/kernel", get(send_kernel))
        .route("/machine/{mac}/initrd", get(send_initrd))
        .route("/firmware/{name}", get(send_firmware))
        .with_state(Arc::new(Site { machines, firmware, address, memory }))
}

/// Who asks for a script.
#[derive(Deserialize)]
struct ScriptQuery {
    mac: String,
    #[serde(flatten)]
    board: Board,
}

/// The board of who asks.
#[derive(Deserialize)]
struct Board {
    uuid: Option<String>,
}

impl Board {
    /// The machine with this board and this card.
    fn with(&self, mac: &str) -> block::Result<Claim> {
        let uuid = self.uuid.as_deref().filter(|uuid| !uuid.is_empty());
        let uuid = uuid.map(str::parse).transpose()?;
        Ok(Claim { mac: mac.parse()?, uuid })
    }
}

async fn send_script(State(site): State<Arc<Site>>, Query(asked): Query<ScriptQuery>) -> Response {
    let claim = match asked.board.with(&asked.mac) {
        Ok(claim) => claim,
        Err(e) => return problem(&e),
    };
    let Some(wanted) = site.machines.script(&claim).await else {
        return problem(&Error::not_found("this machine is not one of ours"));
    };
    let trouble = |e: Error| script::Script::Trouble(e.message().to_owned());
    let text = script::render(&wanted, &site.address, &claim)
        .or_else(|e| script::render(&trouble(e), &site.address, &claim));
    match text {
        Ok(text) => {
            ([(CONTENT_TYPE, "text/plain"), (CACHE_CONTROL, "no-store")], text).into_response()
        }
        Err(e) => problem(&e),
    }
}

async fn send_kernel(
    State(site): State<Arc<Site>>,
    Path(mac): Path<String>,
    Query(board): Query<Board>,
) -> Response {
    send_file(&site, &mac, &board, BootFile::Kernel).await
}

async fn send_initrd(
    State(site): State<Arc<Site>>,
    Path(mac): Path<String>,
    Query(board): Query<Board>,
) -> Response {
    send_file(&site, &mac, &board, BootFile::Initrd).await
}

async fn send_file(site: &Site, mac: &str, board: &Board, which: BootFile) -> Response {
    let claim = match board.with(mac) {
        Ok(claim) => claim,
        Err(e) => return problem(&e),
    };
    match read_file(site, &claim, which).await {
        Ok(answer) => answer,
        Err(e) => {
            tracing::warn!(machine = %claim.mac, error = e.message(), "cannot send a boot file");
            problem(&e)
        }
    }
}

/// Answers with a file, when there is room for all of it: whoever took more later, while it holds some, might wait
/// for another one that does the same.
async fn read_file(site: &Site, claim: &Claim, which: BootFile) -> block::Result<Response> {
    let length = site.machines.length(claim, which).await?;
    let units = length.div_ceil(UNIT as u64).clamp(1, MEMORY as u64) as u32;
    let permit = Arc::clone(&site.memory).acquire_many_owned(units);
    let permit = timeout(PATIENCE, permit).await.map_err(|_| {
        Error::unavailable(
            "other machines are being sent as much as there is memory for; ask again",
        )
    })?;
    let permit = permit.map_err(|_| Error::unavailable("the server is stopping"))?;
    let file = site.machines.file(claim, which).await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, file.len().to_string()),
    ];
    Ok((headers, body(file, permit)).into_response())
}

/// A body in pieces, which gives its memory back when it is sent, or its client is gone.
fn body(file: Bytes, permit: OwnedSemaphorePermit) -> Body {
    Body::from_stream(stream::unfold((file, permit), async |(mut file, permit)| {
        let piece = file.split_to(file.len().min(PIECE));
        (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (file, permit)))
    }))
}

async fn send_firmware(State(site): State<Arc<Site>>, Path(name): Path<String>) -> Response {
    match site.firmware.get(name.as_str()) {
        Some(file) => ([(CONTENT_TYPE, "application/efi")], file.clone()).into_response(),
        None => problem(&Error::not_found(format!("no firmware {name}"))),
    }
}

fn problem(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{}\n", error.message())).into_response()
}

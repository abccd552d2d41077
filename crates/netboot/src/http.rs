//! What machines fetch over HTTP: scripts, kernels, firmware. A router without a socket.

use crate::firmware::FirmwareFiles;
use crate::identity::{BootRequest, Claim};
use crate::kernel::BootFile;
use crate::machines::Machines;
use crate::script;
use crate::turns::AnswerTurns;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{Extensions, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use block::{Error, ErrorKind};
use futures::stream;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// Bytes of kernels and initial RAM disks in memory at a time, in units of [`UNIT`]; whoever comes when
/// they are used up waits, for [`PATIENCE`] at the most.
const MEMORY: usize = 1024;
/// How long a machine waits for memory: its screen shows nothing meanwhile, and then that it asks again.
const PATIENCE: Duration = Duration::from_secs(120);
/// The grain of that.
const UNIT: usize = 1 << 20;
/// Bytes that are given to a connection at a time.
const PIECE: usize = 256 << 10;
/// Files on their way to one address at a time. A machine fetches one after the other; of one that was reset the older
/// transfers take a while to end.
const FILES_EACH: usize = 4;
/// Scripts for one address in a second: each asks the server of the disks.
const SCRIPTS: u32 = 10;

/// What the routes need.
struct Site {
    machines: Arc<dyn Machines>,
    firmware: FirmwareFiles,
    /// Where machines reach this: `http://10.0.0.1:8067`.
    address: String,
    memory: Arc<Semaphore>,
    scripts: AnswerTurns,
    sending: Arc<Mutex<HashMap<IpAddr, usize>>>,
    began: Instant,
}

/// Where a request comes from. Whoever serves the routes puts it into the extensions of each request; those without it
/// count as one sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestAddress(pub IpAddr);

fn sender(extensions: &Extensions) -> IpAddr {
    extensions.get::<RequestAddress>().map_or(Ipv4Addr::UNSPECIFIED.into(), |sender| sender.0)
}

/// A file on its way to an address.
struct SendingFile {
    of: Arc<Mutex<HashMap<IpAddr, usize>>>,
    to: IpAddr,
}

impl SendingFile {
    fn begin(of: &Arc<Mutex<HashMap<IpAddr, usize>>>, to: IpAddr) -> block::Result<Self> {
        let mut all = of.lock();
        let count = all.entry(to).or_default();
        if *count >= FILES_EACH {
            return Err(Error::unavailable(format!(
                "{FILES_EACH} files are on their way to {to} already; ask again when they came"
            )));
        }
        *count += 1;
        Ok(Self { of: Arc::clone(of), to })
    }
}

impl Drop for SendingFile {
    fn drop(&mut self) {
        let mut all = self.of.lock();
        if let Some(count) = all.get_mut(&self.to) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.to);
            }
        }
    }
}

/// The routes, reached by machines at `address`, such as `http://10.0.0.1:8067`.
pub fn router(machines: Arc<dyn Machines>, firmware: FirmwareFiles, address: String) -> Router {
    let memory = Arc::new(Semaphore::new(MEMORY));
    Router::new()
        .route("/boot.ipxe", get(send_script))
        .route("/machine/{mac}/kernel", get(send_kernel))
        .route("/machine/{mac}/initrd", get(send_initrd))
        .route("/firmware/{name}", get(send_firmware))
        .with_state(Arc::new(Site {
            machines,
            firmware,
            address,
            memory,
            scripts: AnswerTurns::new(SCRIPTS),
            sending: Arc::default(),
            began: Instant::now(),
        }))
}

/// Who asks for a script.
#[derive(Deserialize)]
struct ScriptQuery {
    mac: String,
    #[serde(flatten)]
    rest: Asking,
}

/// What is said beside the card.
#[derive(Deserialize)]
struct Asking {
    uuid: Option<String>,
    choice: Option<String>,
    secret: Option<String>,
}

impl Asking {
    /// What the machine with this card asks for.
    fn of(self, mac: &str) -> block::Result<BootRequest> {
        let uuid = self.uuid.filter(|uuid| !uuid.is_empty());
        let uuid = uuid.map(|uuid| uuid.parse()).transpose()?;
        let machine = Claim { mac: mac.parse()?, uuid };
        let [choice, secret] =
            [self.choice, self.secret].map(|text| text.filter(|text| !text.is_empty()));
        Ok(BootRequest { machine, choice, secret })
    }
}

async fn send_script(
    State(site): State<Arc<Site>>,
    extensions: Extensions,
    Query(asked): Query<ScriptQuery>,
) -> Response {
    if !site.takes_turn(sender(&extensions)) {
        return problem(&Error::unavailable("this address asks too often; ask again in a second"));
    }
    let request = match asked.rest.of(&asked.mac) {
        Ok(request) => request,
        Err(e) => return problem(&e),
    };
    let Some(wanted) = site.machines.script(&request).await else {
        return problem(&Error::not_found("this machine is not one of ours"));
    };
    let trouble = |e: Error| script::Script::Trouble(e.message().to_owned());
    let text = script::render(&wanted, &site.address, &request)
        .or_else(|e| script::render(&trouble(e), &site.address, &request));
    match text {
        Ok(text) => {
            ([(CONTENT_TYPE, "text/plain"), (CACHE_CONTROL, "no-store")], text).into_response()
        }
        Err(e) => problem(&e),
    }
}

async fn send_kernel(
    State(site): State<Arc<Site>>,
    extensions: Extensions,
    Path(mac): Path<String>,
    Query(asking): Query<Asking>,
) -> Response {
    send_file(&site, sender(&extensions), asking.of(&mac), BootFile::Kernel).await
}

async fn send_initrd(
    State(site): State<Arc<Site>>,
    extensions: Extensions,
    Path(mac): Path<String>,
    Query(asking): Query<Asking>,
) -> Response {
    send_file(&site, sender(&extensions), asking.of(&mac), BootFile::Initrd).await
}

async fn send_file(
    site: &Site,
    to: IpAddr,
    request: block::Result<BootRequest>,
    which: BootFile,
) -> Response {
    let request = match request {
        Ok(request) => request,
        Err(e) => return problem(&e),
    };
    match read_file(site, to, &request, which).await {
        Ok(answer) => answer,
        Err(e) => {
            tracing::warn!(machine = %request.machine.mac, error = e.message(), "cannot send a boot file");
            problem(&e)
        }
    }
}

impl Site {
    /// Whether an address is answered in this second.
    fn takes_turn(&self, sender: IpAddr) -> bool {
        let second = self.began.elapsed().as_secs();
        match sender.to_canonical() {
            IpAddr::V4(address) => self.scripts.take(&address.octets(), second),
            IpAddr::V6(address) => self.scripts.take(&address.octets(), second),
        }
    }
}

/// Answers with a file, when there is room for all of it: whoever took more later, while it holds some, might wait
/// for another one that does the same.
async fn read_file(
    site: &Site,
    to: IpAddr,
    request: &BootRequest,
    which: BootFile,
) -> block::Result<Response> {
    let sending = SendingFile::begin(&site.sending, to)?;
    let length = site.machines.length(request, which).await?;
    let units = length.div_ceil(UNIT as u64).clamp(1, MEMORY as u64) as u32;
    let permit = Arc::clone(&site.memory).acquire_many_owned(units);
    let permit = timeout(PATIENCE, permit).await.map_err(|_| {
        Error::unavailable(
            "other machines are being sent as much as there is memory for; ask again",
        )
    })?;
    let permit = permit.map_err(|_| Error::unavailable("the server is stopping"))?;
    let file = site.machines.file(request, which).await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, file.len().to_string()),
    ];
    Ok((headers, body(file, (permit, sending))).into_response())
}

/// A body in pieces, which gives its memory and its place back when it is sent, or its client is gone.
fn body(file: Bytes, holds: (OwnedSemaphorePermit, SendingFile)) -> Body {
    Body::from_stream(stream::unfold((file, holds), async |(mut file, holds)| {
        let piece = file.split_to(file.len().min(PIECE));
        (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (file, holds)))
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

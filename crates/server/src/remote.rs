//! A server on another machine, by its HTTP API: the other side of [`http_api`](crate::http_api).

mod media;
mod upload;
mod url;
mod vms;

pub use upload::ImageUpload;
pub use url::ServerUrl;
pub use vms::VmLog;

use crate::api::{CacheRequest, Draining, Problem, Reloaded};
use crate::machines::assign::Assignment;
use crate::machines::list::MachineListView;
use crate::status::{CacheView, StatusView};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use disk::Mode;
use engine::api::{
    DiskReply, DiskRequest, DiskView, ElsewhereView, ImageView, MadeView, PublishedView,
    RebaseView, SnapshotView,
};
use engine::image_views::ImageDetails;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::request;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use netboot::registry::Machine;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use rustix::net::sockopt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use zeroize::Zeroizing;

/// The longest answer that is read, in bytes.
const MAXIMUM: usize = 64 << 20;
/// How long connecting may take, with the handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// A change takes as long as it takes, so that a server that is gone is known by its silence below HTTP: after
/// so long, asked again so often, and given up after so many times.
const IDLE: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// What is escaped in a name: all but letters, digits and these.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
/// What the paths of the API begin with.
const PATH: &str = "/api/v1";

/// A server that is reached by HTTP.
pub struct RemoteServer {
    url: ServerUrl,
    /// With HTTPS.
    tls: Option<Arc<ClientConfig>>,
    token: Option<Zeroizing<String>>,
}

/// The list of disks as the server sends it.
#[derive(Deserialize)]
struct DiskViews {
    disks: Vec<DiskView>,
}

/// The list of image versions as the server sends it.
#[derive(Deserialize)]
struct ImageViews {
    images: Vec<ImageView>,
}

/// What was done.
#[derive(Deserialize)]
struct DoneView {
    done: String,
}

impl RemoteServer {
    /// The server at `url`, to which `token` is shown; nothing is asked of the network yet.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for an `https` URL without the certificates that are trusted, and for a
    /// token that is none.
    pub fn new(
        url: ServerUrl,
        tls: Option<ClientConfig>,
        token: Option<Zeroizing<String>>,
    ) -> Result<Self> {
        if url.https != tls.is_some() {
            return Err(Error::invalid(format!(
                "{url}: certificates are for https, and needed there"
            )));
        }
        let plain = |token: &Zeroizing<String>| token.bytes().all(|byte| byte.is_ascii_graphic());
        if !token.as_ref().is_none_or(plain) {
            return Err(Error::invalid("the token is not one: `sojourn token create` prints it"));
        }
        Ok(Self { url, tls: tls.map(Arc::new), token })
    }

    /// Carries out a disk verb.
    ///
    /// # Errors
    /// What the verb gives; [`Denied`](ErrorKind::Denied) when the token does not allow it;
    /// [`Unavailable`](ErrorKind::Unavailable) when the server cannot be reached or goes away.
    pub async fn disk(&self, request: &DiskRequest) -> Result<DiskReply> {
        match request {
            DiskRequest::Create { name, from, mode, size } => {
                let ephemeral = *mode == Mode::Ephemeral;
                let mut body =
                    json!({"name": name, "from": from, "ephemeral": ephemeral, "size": size});
                // An older server knows nothing of it, and need not where nobody asks for it.
                if *mode == Mode::WriteThrough {
                    body["write_through"] = true.into();
                }
                self.post::<DiskView>("/disks", body).await.map(DiskReply::Disk)
            }
            DiskRequest::CreateAll { names, from, mode, size } => {
                let mut made = Vec::new();
                for name in names {
                    let (name, from) = (name.clone(), from.clone());
                    let (mode, size) = (*mode, *size);
                    let one = DiskRequest::Create { name: name.clone(), from, mode, size };
                    made.push(match Box::pin(self.disk(&one)).await {
                        Ok(DiskReply::Disk(disk)) => MadeView::Disk(disk),
                        Ok(_) => return Err(Error::internal("a disk that was made is no disk")),
                        // What no other disk would fare better with.
                        Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                        Err(e) => {
                            let (kind, message) = (e.kind().as_str(), e.message());
                            MadeView::Failed { name, kind: kind.into(), message: message.into() }
                        }
                    });
                }
                Ok(DiskReply::Made(made))
            }
            DiskRequest::List => {
                let list: DiskViews = self.get(&format!("{PATH}/disks")).await?;
                Ok(DiskReply::Disks(list.disks))
            }
            DiskRequest::Show { name } => {
                self.get(&format!("{PATH}{}", disk(name, ""))).await.map(DiskReply::Disk)
            }
            DiskRequest::Map { name, cells } => {
                let path = format!("{PATH}{}", disk(name, &format!("/map?cells={cells}")));
                self.get(&path).await.map(DiskReply::Map)
            }
            DiskRequest::Elsewhere => {
                let list = self.get::<Vec<ElsewhereView>>(&format!("{PATH}/elsewhere")).await;
                list.map(DiskReply::Elsewhere)
            }
            DiskRequest::Snapshot { name, snapshot } => {
                let body = json!({"snapshot": snapshot});
                let made = self.post::<SnapshotView>(&disk(name, "/snapshots"), body).await;
                made.map(DiskReply::Snapshot)
            }
            DiskRequest::Rollback { name, snapshot } => {
                self.change(name, "/rollback", json!({"snapshot": snapshot})).await
            }
            DiskRequest::Commit { name, image } => {
                let body = json!({"image": image});
                self.post::<ImageView>(&disk(name, "/commit"), body).await.map(DiskReply::Image)
            }
            DiskRequest::Rebase { name, image, keep_mine } => {
                let body = json!({"image": image, "keep_mine": keep_mine});
                self.post::<RebaseView>(&disk(name, "/rebase"), body).await.map(DiskReply::Rebase)
            }
            DiskRequest::Reset { name } => self.change(name, "/reset", json!({})).await,
            DiskRequest::Grow { name, size } => {
                self.change(name, "/grow", json!({"size": size})).await
            }
            DiskRequest::Take { name, force, .. } => {
                self.change(name, "/take", json!({"force": force})).await
            }
            DiskRequest::Keep { name, new } => {
                self.change(name, "/keep", json!({"new": new})).await
            }
            DiskRequest::Publish { name } => {
                let sent = self.post::<PublishedView>(&disk(name, "/publish"), json!({})).await;
                sent.map(DiskReply::Published)
            }
            DiskRequest::Release { name } => {
                self.post::<DoneView>(&disk(name, "/release"), json!({})).await?;
                Ok(DiskReply::Released(format!("disk {name}")))
            }
            DiskRequest::Remove { name, lost } => {
                let path = disk(name, if *lost { "?lost=true" } else { "" });
                self.delete::<DoneView>(&path).await?;
                Ok(DiskReply::Removed(format!("disk {name}")))
            }
            DiskRequest::RemoveSnapshot { name, snapshot } => {
                let path = disk(name, &format!("/snapshots/{}", encoded(snapshot)));
                self.delete::<DoneView>(&path).await?;
                Ok(DiskReply::Removed(format!("snapshot {name}@{snapshot}")))
            }
            DiskRequest::Mark { .. }
            | DiskRequest::PrivateBytes { .. }
            | DiskRequest::Holds { .. } => {
                Err(Error::unsupported("marks of disks are for machines on the server's own host"))
            }
        }
    }

    /// All image versions that the token is for.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn images(&self) -> Result<Vec<ImageView>> {
        let list: ImageViews = self.get(&format!("{PATH}/images")).await?;
        Ok(list.images)
    }

    /// What an image version holds, and what stands on it: the newest where the name has no tag.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn image(&self, name: &str) -> Result<ImageDetails> {
        self.get(&format!("{PATH}/images/{}", encoded(name))).await
    }

    /// Takes its name from an image version; says so.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn remove_image(&self, name: &str) -> Result<String> {
        let done: DoneView = self.delete(&format!("/images/{}", encoded(name))).await?;
        Ok(done.done)
    }

    /// Brings back an image version that was removed; says so.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn restore_image(&self, name: &str) -> Result<String> {
        let path = format!("/images/{}/restore", encoded(name));
        let done: DoneView = self.post(&path, json!({})).await?;
        Ok(done.done)
    }

    /// The server's state.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn status(&self) -> Result<StatusView> {
        self.get("/v1/status").await
    }

    /// The block cache.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn cache(&self) -> Result<CacheView> {
        self.get(&format!("{PATH}/cache")).await
    }

    /// Changes the block cache; gives its state.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn change_cache(&self, request: &CacheRequest) -> Result<CacheView> {
        self.post("/cache", json!({"size": request.size, "policy": request.policy})).await
    }

    /// The machines that start from the server's disks, and those that wait for one.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn machines(&self) -> Result<MachineListView> {
        self.get(&format!("{PATH}/machines")).await
    }

    /// One of these, by its MAC address, UUID or name.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn machine(&self, who: &str) -> Result<Machine> {
        self.get(&format!("{PATH}/machines/{}", encoded(who))).await
    }

    /// Has a machine start from a disk; gives the machine.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn assign(&self, who: &str, assignment: &Assignment) -> Result<Machine> {
        self.post(&format!("/machines/{}/assign", encoded(who)), json!(assignment)).await
    }

    /// Has a machine forgotten, whose disk stays; gives the machine.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn forget_machine(&self, who: &str) -> Result<Machine> {
        self.delete(&format!("/machines/{}", encoded(who))).await
    }

    /// Has the server read its configuration again.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn reload(&self) -> Result<Reloaded> {
        self.post("/reload", json!({})).await
    }

    /// Has the server take no new clients, and end after the last one, or after so many seconds.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the token does not allow it; [`Unavailable`](ErrorKind::Unavailable)
    /// when the server cannot be reached or goes away; else that of the server.
    pub async fn drain(&self, seconds: Option<u64>) -> Result<Draining> {
        self.post("/drain", json!({"seconds": seconds})).await
    }

    async fn change(&self, name: &str, verb: &str, body: Value) -> Result<DiskReply> {
        self.post::<DiskView>(&disk(name, verb), body).await.map(DiskReply::Disk)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, None).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: Value) -> Result<T> {
        self.call(Method::POST, &format!("{PATH}{path}"), Some(body)).await
    }

    async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::DELETE, &format!("{PATH}{path}"), None).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T> {
        let request = self.request(method, path, body)?;
        let (status, body) = self.send(request).await?;
        self.answered(status, &body)
    }

    /// Sends a request; gives the status and the body of the answer.
    async fn send<B>(&self, request: Request<B>) -> Result<(StatusCode, Bytes)>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let gone = |e: std::io::Error| Error::io(format!("the server at {}", self.url), e);
        let late = |_| Error::unavailable(format!("the server at {} cannot be reached", self.url));
        let stream = timeout(CONNECT, self.connect()).await.map_err(late)??;
        match &self.tls {
            None => self.exchange(stream, request).await,
            Some(tls) => {
                let name = ServerName::try_from(self.url.place.host.clone()).map_err(|_| {
                    Error::invalid(format!("{:?} cannot be in a certificate", self.url.place.host))
                })?;
                let connector = TlsConnector::from(Arc::clone(tls));
                let stream =
                    timeout(CONNECT, connector.connect(name, stream)).await.map_err(late)?;
                self.exchange(stream.map_err(gone)?, request).await
            }
        }
    }

    /// What an answer says, or its error.
    fn answered<T: DeserializeOwned>(&self, status: StatusCode, body: &[u8]) -> Result<T> {
        if status.is_success() {
            return serde_json::from_slice(body).map_err(|e| self.unreadable(&e.to_string()));
        }
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => Err(self.refused(status, problem.into())),
            Err(_) => Err(self.unreadable(&format!("HTTP status {status}"))),
        }
    }

    /// The error of a server, with what to do about it here.
    fn refused(&self, status: StatusCode, error: Error) -> Error {
        match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => Error::denied(format!(
                "{} asks for a token: give one with SOJOURN_TOKEN or --token-file; `sojourn token create` \
                 on its machine makes one",
                self.url
            )),
            _ => error,
        }
    }

    fn unreadable(&self, why: &str) -> Error {
        Error::unavailable(format!(
            "{} gave an answer that this version cannot read ({why}); is it the HTTP port of a Sojourn server?",
            self.url
        ))
    }

    /// A request without its body, which shows the token.
    fn head(&self, method: Method, path: &str) -> Result<request::Builder> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.url.place.to_string())
            .header(ACCEPT, "application/json");
        if let Some(token) = &self.token {
            let text = Zeroizing::new(format!("Bearer {}", token.as_str()));
            let mut value = HeaderValue::try_from(text.as_str()).map_err(|_| {
                Error::invalid("the token is not one: `sojourn token create` prints it")
            })?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        Ok(request)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Request<Full<Bytes>>> {
        let mut request = self.head(method, path)?;
        let body = match body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                body.to_string()
            }
            None => String::new(),
        };
        request.body(Full::new(body.into())).map_err(unmade)
    }

    async fn connect(&self) -> Result<TcpStream> {
        let io = |e| Error::io(format!("the server at {}", self.url), e);
        let stream = TcpStream::connect((self.url.place.host.as_str(), self.url.place.port))
            .await
            .map_err(io)?;
        let peer = stream.peer_addr().map_err(io)?;
        if self.token.is_some() && !self.url.https && !peer.ip().to_canonical().is_loopback() {
            return Err(Error::denied(format!(
                "{} is on another machine, and whoever is in between would read the token: use https, or a \
                 tunnel such as ssh -L",
                self.url
            )));
        }
        let alive = || {
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, IDLE)?;
            sockopt::set_tcp_keepintvl(&stream, PROBE)?;
            sockopt::set_tcp_keepcnt(&stream, PROBES)
        };
        alive().map_err(|e| io(e.into()))?;
        Ok(stream)
    }

    async fn exchange<S, B>(&self, stream: S, request: Request<B>) -> Result<(StatusCode, Bytes)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let gone = |e: &dyn std::fmt::Display| {
            Error::unavailable(format!(
                "the server at {} went away: {e}; see whether it did what was asked, then repeat it",
                self.url
            ))
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| gone(&e))?;
        let mut driver = JoinSet::new(); // ends with this
        driver.spawn(connection);
        let answer = sender.send_request(request).await.map_err(|e| gone(&e))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAXIMUM).collect().await;
        Ok((status, body.map_err(|e| gone(&e))?.to_bytes()))
    }
}

/// The error for a request that HTTP has no form for.
fn unmade(error: hyper::http::Error) -> Error {
    Error::internal("cannot make the request").with_source(error)
}

/// The path of a disk, or of something of it.
fn disk(name: &str, rest: &str) -> String {
    format!("/disks/{}{rest}", encoded(name))
}

/// A name as a part of a path: a dot is escaped, too, so that none is a step up.
fn encoded(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, ESCAPED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_part_of_a_path() {
        assert_eq!(encoded("debian:1").to_string(), "debian%3A1");
        assert_eq!(encoded("../a/b?c#d e").to_string(), "%2E%2E%2Fa%2Fb%3Fc%23d%20e");
        assert_eq!(encoded("é").to_string(), "%C3%A9");
    }
}

//! Who asks over HTTP: the bearer of a token, or anybody; and what of it is answered.
//!
//! | who asks | looks | changes |
//! |---|---|---|
//! | anybody | at everything, unless `serve.http_access` is `tokens` | nothing |
//! | a token | at all that it covers | what its right allows, of what it covers |
//!
//! A token that is limited to some disks and images reaches only what knows of limits ([`knows_limits`]): a
//! path that is added and forgets them is closed to such tokens, and not open.

use crate::answers::refusal;
use access::tokens::file;
use access::{Token, TokenRight, Tokens};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use block::{Error, Result};
use engine::Home;
use engine::api::ElsewhereView;
use engine::config::listener::HttpAccess;
use engine::image_views::disk_of;
use engine::world;
use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Answered to anybody, as it is the same for all servers.
const DOCUMENT: &str = "/api/v1/openapi.json";
/// What answers a token with no more than it covers.
const LIMITED: [&str; 6] = [
    "/api/v1/disks",
    "/api/v1/images",
    "/api/v1/lineage",
    "/api/v1/elsewhere",
    "/api/v1/vms",
    "/api/v1/token",
];

/// Who asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    token: Option<Arc<Token>>,
    /// Where it is to be found for as long as it holds.
    known: Option<Arc<KnownTokens>>,
}

/// The name of the token that a request was answered for, among the extensions of its answer.
#[derive(Debug, Clone)]
pub(crate) struct AnsweredToken(pub(crate) String);

impl Caller {
    /// The name of its token.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_ref().map(|token| token.name.as_str())
    }

    /// What its token is for.
    pub(crate) fn shown_token(&self) -> Option<&Token> {
        self.token.as_deref()
    }

    /// Whether it is for some disks and images only.
    pub(crate) fn is_limited(&self) -> bool {
        self.token.as_ref().is_some_and(|token| token.is_limited())
    }

    /// Whether it may see the disk of this name, be there one or not.
    pub(crate) fn sees_disk(&self, disk: &str) -> bool {
        self.token.as_ref().is_none_or(|token| token.covers_disk(disk))
    }

    /// Whether it may see an image, `name` or `name:tag`, be there one or not.
    pub(crate) fn sees_image(&self, image: &str) -> bool {
        self.token.as_ref().is_none_or(|token| token.covers_image(image))
    }

    /// Whether it may see what stands on an image version, as the version's users are named.
    pub(crate) fn sees_user(&self, user: &str) -> bool {
        !self.is_limited() || disk_of(user).is_some_and(|disk| self.sees_disk(disk))
    }

    /// Takes out where an image version came from when that names a disk that it may not see.
    pub(crate) fn hide_source(&self, source: &mut Option<String>) {
        let is_foreign = |from: &String| disk_of(from).is_some_and(|disk| !self.sees_disk(disk));
        *source = source.take().filter(|from| !is_foreign(from));
    }

    /// Empties the name of the image that a disk stands on when it may not see that image.
    pub(crate) fn hide_image(&self, image: &mut String) {
        if !self.sees_image(image) {
            image.clear();
        }
    }

    /// Takes out of a disk elsewhere what its token is not for: the image, and which server has it. That one has it
    /// stays: null would say that nobody does.
    pub(crate) fn hide_elsewhere(&self, disk: &mut ElsewhereView) {
        self.hide_image(&mut disk.image);
        if self.is_limited() {
            disk.holder.iter_mut().for_each(String::clear);
            disk.host = None;
        }
    }

    /// Fails when it may not see the disk of this name, be there one or not.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied).
    pub(crate) fn must_see_disk(&self, disk: &str) -> Result<()> {
        self.must_see(self.sees_disk(disk), "disk", disk)
    }

    /// Fails when it may not see an image, be there one or not.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied).
    pub(crate) fn must_see_image(&self, image: &str) -> Result<()> {
        self.must_see(self.sees_image(image), "image", image)
    }

    fn must_see(&self, sees: bool, what: &str, name: &str) -> Result<()> {
        let token = self.token().unwrap_or_default();
        let name: String = name.chars().take(80).collect();
        match sees {
            true => Ok(()),
            false => Err(Error::denied(format!(
                "the token {token} is not for {what} {name:?}; make one that is: sojourn token create \
                 --{what} PATTERN"
            ))),
        }
    }

    /// Fails when it may not do what takes this right.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied).
    pub(crate) fn must_have(&self, right: TokenRight) -> Result<()> {
        match &self.token {
            Some(token) if token.right >= right => Ok(()),
            Some(token) => Err(Error::denied(format!(
                "the token {} has the right {}, and this takes {right}; make one that has it: sojourn \
                 token create --{right}",
                token.name, token.right
            ))),
            None if right == TokenRight::Read => Ok(()),
            None => Err(no_token()),
        }
    }
}

impl Caller {
    /// Fails when its token does not hold any more, for what takes long: a token was looked at when the request
    /// began.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied); [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot
    /// read its tokens.
    pub(crate) async fn must_still_hold(&self) -> Result<()> {
        let (Some(token), Some(known)) = (&self.token, &self.known) else { return Ok(()) };
        let known = Arc::clone(known);
        let tokens = block::offload(move || known.read()).await.map_err(|error| {
            tracing::error!(error = error.message(), "tokens cannot be read, and let nobody in");
            Error::unavailable("the server cannot read its tokens; its log says why")
        })?;
        let holds = tokens.iter().any(|known| known == &**token)
            && !token.is_expired(world::system().clock.now());
        match holds {
            true => Ok(()),
            false => Err(Error::denied(format!(
                "the token {} was revoked or has expired meanwhile",
                token.name
            ))),
        }
    }
}

/// The tokens of a home, which are read again when their file has changed.
#[derive(Debug)]
struct KnownTokens {
    path: PathBuf,
    kept: Mutex<Option<(FileStamp, Arc<Tokens>)>>,
}

/// By what a file is known to be as it was. It is only ever replaced as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    mode: u32,
    changed: (i64, i64),
}

impl FileStamp {
    /// That of a file; `None` when there is none.
    fn of(path: &Path) -> Result<Option<Self>> {
        match std::fs::metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(path.display(), e)),
            Ok(found) => Ok(Some(Self {
                device: found.dev(),
                inode: found.ino(),
                size: found.size(),
                mode: found.mode(),
                changed: (found.ctime(), found.ctime_nsec()),
            })),
        }
    }
}

impl KnownTokens {
    /// The tokens as they are now. Waits for the disk.
    fn read(&self) -> Result<Arc<Tokens>> {
        let mut kept = self.kept.lock();
        let Some(stamp) = FileStamp::of(&self.path)? else {
            *kept = None;
            return Ok(Arc::default());
        };
        if let Some((_, tokens)) = kept.as_ref().filter(|(known, _)| *known == stamp) {
            return Ok(Arc::clone(tokens));
        }
        // Whatever is wrong, what was read before counts no more.
        *kept = None;
        let tokens = Arc::new(file::load(&self.path)?);
        *kept = Some((stamp, Arc::clone(&tokens)));
        Ok(tokens)
    }
}

/// Knows who asks.
#[derive(Debug, Clone)]
pub(crate) struct Authority {
    tokens: Arc<KnownTokens>,
    access: HttpAccess,
}

/// A request that is not answered, and why.
struct Unanswered {
    status: StatusCode,
    error: Error,
}

impl Unanswered {
    fn response(self) -> Response {
        let mut response = refusal(self.status, &self.error);
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"sojourn\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }

    fn unauthorized(error: Error) -> Self {
        Self { status: StatusCode::UNAUTHORIZED, error }
    }
}

impl Authority {
    /// Makes the authority that knows a home's tokens.
    pub(crate) fn new(home: &Home, access: HttpAccess) -> Self {
        let tokens = KnownTokens { path: home.tokens(), kept: Mutex::default() };
        Self { tokens: Arc::new(tokens), access }
    }

    /// Who asks for this, if it may ask at all.
    async fn caller(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> std::result::Result<Caller, Unanswered> {
        if !is_protected(path) {
            return Ok(Caller::default());
        }
        let shown = shown_token(headers).map_err(Unanswered::unauthorized)?;
        let caller = match shown {
            Some(text) => Caller {
                token: Some(self.find(text).await?),
                known: Some(Arc::clone(&self.tokens)),
            },
            None if !looks(method) || self.access == HttpAccess::Tokens => {
                return Err(Unanswered::unauthorized(no_token()));
            }
            None => Caller::default(),
        };
        if caller.is_limited() && !knows_limits(path) {
            let why = format!(
                "the token {} is for some disks and images, and {} tells of all; it may ask below {}",
                caller.token().unwrap_or_default(),
                path.chars().take(80).collect::<String>(),
                LIMITED.join(", ")
            );
            return Err(Unanswered { status: StatusCode::FORBIDDEN, error: Error::denied(why) });
        }
        Ok(caller)
    }

    async fn find(&self, text: String) -> std::result::Result<Arc<Token>, Unanswered> {
        let tokens = Arc::clone(&self.tokens);
        let tokens = block::offload(move || tokens.read()).await.map_err(|error| {
            tracing::error!(error = error.message(), "tokens cannot be read, and let nobody in");
            let why = "the server cannot read its tokens; its log says why";
            Unanswered { status: StatusCode::SERVICE_UNAVAILABLE, error: Error::unavailable(why) }
        })?;
        let found = tokens.find(&text, world::system().clock.now());
        found.cloned().map(Arc::new).map_err(Unanswered::unauthorized)
    }
}

/// Whether a path tells of this server, or changes it. The page's own files do not, nor does what tells
/// whether the server is alive.
fn is_protected(path: &str) -> bool {
    let told = path.starts_with("/api/") || path.starts_with("/v1/") || path == "/metrics";
    told && path != DOCUMENT
}

/// Whether what is at a path keeps to the limits of tokens.
fn knows_limits(path: &str) -> bool {
    LIMITED.iter().any(|known| {
        path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Whether a method changes nothing, wherever.
pub(crate) fn looks(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// The answer to whoever shows no token where one is needed.
pub(crate) fn ask_for_token() -> Response {
    Unanswered::unauthorized(no_token()).response()
}

fn no_token() -> Error {
    Error::denied(
        "this takes a token, in a header `Authorization: Bearer sojourn_...`; `sojourn token create` on \
         the server's machine makes one",
    )
}

/// The token that a request shows. Other ways to say who one is are a proxy's affair.
fn shown_token(headers: &HeaderMap) -> Result<Option<String>> {
    let mut found = None;
    for value in headers.get_all(AUTHORIZATION) {
        let (scheme, text) = value.as_bytes().split_at(value.len().min("bearer".len()));
        if !scheme.eq_ignore_ascii_case(b"bearer") || !matches!(text.first(), None | Some(b' ')) {
            continue;
        }
        let text = String::from_utf8_lossy(text).trim().to_owned();
        if found.replace(text).is_some() {
            return Err(Error::denied("the request shows more than one token"));
        }
    }
    Ok(found)
}

/// Answers those who may ask, and tells others why not.
pub(crate) async fn authorize(
    State(authority): State<Authority>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match authority.caller(&method, &path, request.headers()).await {
        Ok(caller) => {
            let token = caller.token().map(|name| AnsweredToken(name.to_owned()));
            request.extensions_mut().insert(caller);
            let mut response = next.run(request).await;
            if let Some(token) = token {
                response.extensions_mut().insert(token);
            }
            response
        }
        Err(unanswered) => unanswered.response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn token(right: TokenRight, disks: &[&str]) -> Token {
        let disks: Vec<String> = disks.iter().map(|disk| (*disk).to_owned()).collect();
        let disks = (!disks.is_empty()).then_some(disks);
        Token { name: "ci".into(), right, disks, images: None, created: 0, expires: None }
    }

    fn bearer(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {text}").parse().unwrap())])
    }

    async fn status(authority: &Authority, method: Method, path: &str, headers: &HeaderMap) -> u16 {
        match authority.caller(&method, path, headers).await {
            Ok(_) => 200,
            Err(unanswered) => unanswered.status.as_u16(),
        }
    }

    #[test]
    fn where_a_version_came_from_names_no_disk_that_its_reader_may_not_see() {
        let limited =
            Token { images: Some(vec!["debian".into()]), ..token(TokenRight::Read, &["ci-*"]) };
        let limited = Caller { token: Some(Arc::new(limited)), ..Caller::default() };
        for (caller, from, is_shown) in [
            (&limited, "disk ci-1", true),
            (&limited, "disk alice", false),
            (&limited, "snapshot alice@s", false),
            (&limited, "debian.qcow2", true),
            (&Caller::default(), "disk alice", true),
        ] {
            let mut source = Some(from.to_owned());
            caller.hide_source(&mut source);
            assert_eq!(source.is_some(), is_shown, "{from}");
        }
    }

    #[tokio::test]
    async fn tokens_are_known_as_soon_as_they_are_made_and_no_longer_than_they_hold() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        let open = Authority::new(&home, HttpAccess::Open);
        let closed = Authority { access: HttpAccess::Tokens, ..open.clone() };
        let nobody = HeaderMap::new();
        for path in ["/metrics", "/v1/status", "/api/v1/disks", "/api/v1/nothing"] {
            assert_eq!(status(&open, Method::GET, path, &nobody).await, 200, "{path}");
            assert_eq!(status(&open, Method::POST, path, &nobody).await, 401, "{path}");
            assert_eq!(status(&closed, Method::GET, path, &nobody).await, 401, "{path}");
        }
        for path in ["/", "/healthz", DOCUMENT] {
            assert_eq!(status(&closed, Method::GET, path, &nobody).await, 200, "{path}");
        }
        let text = file::add(&home.tokens(), token(TokenRight::Admin, &[]), [1; 32]).unwrap();
        let shown = bearer(&text);
        assert_eq!(status(&closed, Method::POST, "/api/v1/disks", &shown).await, 200);
        let lower =
            HeaderMap::from_iter([(AUTHORIZATION, format!("bearer {text}").parse().unwrap())]);
        assert_eq!(status(&closed, Method::GET, "/metrics", &lower).await, 200);
        let mut two = shown.clone();
        two.append(AUTHORIZATION, shown[AUTHORIZATION].clone());
        assert_eq!(status(&open, Method::GET, "/metrics", &two).await, 401);
        assert_eq!(status(&open, Method::GET, "/metrics", &bearer("sojourn_00")).await, 401);
        file::revoke(&home.tokens(), "ci").unwrap();
        assert_eq!(
            status(&open, Method::GET, "/metrics", &shown).await,
            401,
            "a token that was revoked"
        );
        std::fs::write(home.tokens(), "{").unwrap();
        assert_eq!(status(&closed, Method::GET, "/metrics", &shown).await, 503);
    }

    #[tokio::test]
    async fn a_limited_token_reaches_only_what_knows_of_limits() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        let authority = Authority::new(&home, HttpAccess::Open);
        let text = file::add(&home.tokens(), token(TokenRight::Admin, &["a*"]), [1; 32]).unwrap();
        let limited =
            ["disks", "disks/alice", "images", "lineage", "elsewhere", "vms", "vms/work", "token"];
        for path in limited.map(|path| format!("/api/v1/{path}")) {
            assert_eq!(status(&authority, Method::GET, &path, &bearer(&text)).await, 200, "{path}");
        }
        for path in [
            "/metrics",
            "/v1/status",
            "/api/v1/live",
            "/api/v1/new",
            "/api/v1/disksx",
            "/api/v1/media",
        ] {
            assert_eq!(status(&authority, Method::GET, path, &bearer(&text)).await, 403, "{path}");
        }
    }

    #[test]
    fn a_caller_may_what_its_token_says() {
        let of = |right, disks: &[&str]| Caller {
            token: Some(Arc::new(token(right, disks))),
            known: None,
        };
        let anybody = Caller::default();
        assert!(anybody.must_have(TokenRight::Read).is_ok() && anybody.sees_disk("x"));
        assert_eq!(anybody.must_have(TokenRight::Operate).unwrap_err().kind(), ErrorKind::Denied);
        let operator = of(TokenRight::Operate, &["a"]);
        operator.must_have(TokenRight::Operate).unwrap();
        let error = operator.must_have(TokenRight::Admin).unwrap_err();
        assert!(error.message().contains("takes admin"), "{error}");
        operator.must_see_disk("a").unwrap();
        let error = operator.must_see_disk("b").unwrap_err();
        assert!(error.message().contains("--disk"), "{error}");
        assert!(operator.must_see_image("a").is_err());
    }
}

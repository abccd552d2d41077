//! One request to a running server: a minimal HTTP/1.1 client on a unix socket.

use crate::api::{
    CACHE_PATH, CacheRequest, DISK_PATH, DRAIN_PATH, DrainRequest, Draining, HAND_OVER_PATH,
    LOOK_PATH, LOOK_PROTOCOL, Problem, RELOAD_PATH, Reloaded, STATUS_PATH,
};
use crate::status::{CacheView, StatusView};
use agent::api::{ATTACH_PATH, AttachRequest, AttachedView};
use block::{Error, Result};
use engine::Home;
use engine::api::{DiskReply, DiskRequest};
use nbd::{Address, ClientOptions, Remote, Uri};
use rustix::process::{PidfdFlags, pidfd_open};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::ErrorKind as IoKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The longest answer that is read, in bytes.
const MAXIMUM: u64 = 64 << 20;
/// The longest head of an answer behind which NBD goes on, in bytes.
const LONGEST_HEAD: usize = 8 << 10;

/// A running server.
#[derive(Debug)]
pub struct ControlClient {
    path: PathBuf,
    stream: UnixStream,
}

impl ControlClient {
    /// Connects to the server of a home; `None` when none runs.
    ///
    /// # Errors
    /// That of the connection, when a server runs and this user may not talk to it.
    pub async fn connect(home: &Home) -> Result<Option<Self>> {
        let path = home.control();
        match UnixStream::connect(&path).await {
            Ok(stream) => Ok(Some(Self { path, stream })),
            Err(e) if matches!(e.kind(), IoKind::NotFound | IoKind::ConnectionRefused) => Ok(None),
            Err(e) => Err(Error::io(path.display(), e)),
        }
    }

    /// Carries out a disk verb.
    ///
    /// # Errors
    /// What the verb gives, or [`Unavailable`](block::ErrorKind::Unavailable) when the server
    /// went away.
    pub async fn disk(self, request: &DiskRequest) -> Result<DiskReply> {
        self.call("POST", DISK_PATH, Some(request)).await
    }

    /// Asks for the server's state.
    ///
    /// # Errors
    /// What the server answers; [`Unavailable`](block::ErrorKind::Unavailable) when it went away.
    pub async fn status(self) -> Result<StatusView> {
        self.call::<(), _>("GET", STATUS_PATH, None).await
    }

    /// Has the server read its configuration again.
    ///
    /// # Errors
    /// What the server answers; [`Unavailable`](block::ErrorKind::Unavailable) when it went away.
    pub async fn reload(self) -> Result<Reloaded> {
        self.call::<(), _>("POST", RELOAD_PATH, None).await
    }

    /// Has the server take no new clients and end after the last one.
    ///
    /// # Errors
    /// What the server answers; [`Unavailable`](block::ErrorKind::Unavailable) when it went away.
    pub async fn drain(self, request: &DrainRequest) -> Result<Draining> {
        self.call("POST", DRAIN_PATH, Some(request)).await
    }

    /// Has the server hand everything over to a successor, which waits.
    ///
    /// # Errors
    /// What the server answers; [`Unavailable`](block::ErrorKind::Unavailable) when it went away.
    pub(crate) async fn hand_over(self) -> Result<Draining> {
        self.call::<(), _>("POST", HAND_OVER_PATH, None).await
    }

    /// A handle on the server's process, which becomes readable when that has ended.
    ///
    /// # Errors
    /// That of the system.
    pub fn process(&self) -> Result<OwnedFd> {
        let io = |e: std::io::Error| Error::io(format!("the server at {}", self.path.display()), e);
        let pid = self.stream.peer_cred().map_err(io)?.pid();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        let pid =
            pid.ok_or_else(|| Error::unavailable("the server's process is not to be seen"))?;
        pidfd_open(pid, PidfdFlags::empty()).map_err(|e| io(e.into()))
    }

    /// Changes the block cache; gives its state.
    ///
    /// # Errors
    /// What the server answers; [`Unavailable`](block::ErrorKind::Unavailable) when it went away.
    pub async fn change_cache(self, request: &CacheRequest) -> Result<CacheView> {
        self.call("POST", CACHE_PATH, Some(request)).await
    }

    /// Carries out a verb on attached disks.
    ///
    /// # Errors
    /// What the server answers; [`Unavailable`](block::ErrorKind::Unavailable) when it went away.
    pub async fn attach(self, request: &AttachRequest) -> Result<AttachedView> {
        self.call("POST", ATTACH_PATH, Some(request)).await
    }

    /// Looks at an export beside whoever uses it: it can be read, as it is at each moment.
    ///
    /// # Errors
    /// What the server answers; [`Unavailable`](block::ErrorKind::Unavailable) when it went away.
    pub(crate) async fn look(mut self, export: &str, options: ClientOptions) -> Result<Remote> {
        let asked = tokio::time::timeout(options.connect, self.ask_to_look()).await;
        asked.unwrap_or_else(|_| {
            Err(Error::unavailable(format!("the server at {} is silent", self.path.display())))
        })?;
        let uri = Uri::new(Address::unix(&self.path)?, export);
        Remote::over(Box::new(self.stream), &uri, options).await
    }

    /// Has the server speak NBD from now on.
    async fn ask_to_look(&mut self) -> Result<()> {
        let request = format!(
            "POST {LOOK_PATH} HTTP/1.1\r\nhost: sojourn\r\nconnection: upgrade\r\n\
             upgrade: {LOOK_PROTOCOL}\r\ncontent-length: 0\r\n\r\n"
        );
        let gone =
            |e| Error::unavailable(format!("the server at {} went away: {e}", self.path.display()));
        self.stream.write_all(request.as_bytes()).await.map_err(gone)?;
        // Not one byte more: behind it the server speaks NBD.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") && head.len() < LONGEST_HEAD {
            head.push(self.stream.read_u8().await.map_err(gone)?);
        }
        if head.starts_with(b"HTTP/1.1 101 ") {
            return Ok(());
        }
        // The server keeps the connection open behind an answer that it refuses with.
        let mut refusal = vec![0; body_length(&head).unwrap_or(0).min(LONGEST_HEAD)];
        self.stream.read_exact(&mut refusal).await.map_err(gone)?;
        let unknown = || unreadable(&self.path, "it does not let anybody look");
        let problem = serde_json::from_slice::<Problem>(&refusal);
        Err(problem.map_or_else(|_| unknown(), Error::from))
    }

    async fn call<B: Serialize, R: DeserializeOwned>(
        mut self,
        method: &str,
        path: &str,
        body: Option<&B>,
    ) -> Result<R> {
        let body = match body {
            Some(body) => serde_json::to_vec(body)
                .map_err(|e| Error::internal("cannot write the request").with_source(e))?,
            None => Vec::new(),
        };
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: sojourn\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(&body);
        let gone = |e| {
            Error::unavailable(format!(
                "the server at {} went away: {e}; look at its log, then repeat the command",
                self.path.display()
            ))
        };
        self.stream.write_all(&request).await.map_err(gone)?;
        let mut answer = Vec::new();
        (&mut self.stream).take(MAXIMUM).read_to_end(&mut answer).await.map_err(gone)?;
        let (status, body) =
            split(&answer).ok_or_else(|| unreadable(&self.path, "no complete answer"))?;
        if status == 200 {
            return serde_json::from_slice(body)
                .map_err(|e| unreadable(&self.path, &e.to_string()));
        }
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => Err(problem.into()),
            Err(_) => Err(unreadable(&self.path, &format!("HTTP status {status}"))),
        }
    }
}

fn unreadable(path: &Path, why: &str) -> Error {
    Error::unavailable(format!(
        "the server at {} gave an answer that this version cannot read ({why}); is it of another \
         version? restart it",
        path.display()
    ))
}

/// The status code and the body of an answer, if the answer is complete.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let (head, body) = (&answer[..end], &answer[end + 4..]);
    let first = std::str::from_utf8(head).ok()?.split("\r\n").next()?;
    let status = first.split(' ').nth(1)?.parse().ok()?;
    (body_length(head)? == body.len()).then_some((status, body))
}

/// How long the body of an answer is, by its head.
fn body_length(head: &[u8]) -> Option<usize> {
    let lines = std::str::from_utf8(head).ok()?.split("\r\n").skip(1);
    lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{ControlClient, split};
    use nbd::ClientOptions;
    use proptest::prelude::*;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{UnixListener, UnixStream};

    proptest! {
        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in ".{0,8}") {
            let _ = split(&bytes);
            let mut answer = format!("HTTP/1.1 200\r\ncontent-length:{length}\r\n\r\n").into_bytes();
            answer.extend(bytes);
            let _ = split(&answer);
        }
    }

    #[tokio::test]
    async fn a_server_that_refuses_a_look_or_says_nothing_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let look = async |answer: &[u8], options: ClientOptions| {
            let stream = UnixStream::connect(&path).await.unwrap();
            // It stays open, as that of a server does which refuses.
            let (mut server, _) = listener.accept().await.unwrap();
            server.write_all(answer).await.unwrap();
            let client = ControlClient { path: path.clone(), stream };
            client.look("alice", options).await.err().unwrap().message().to_owned()
        };
        let refusal = b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot here\n";
        let patient =
            ClientOptions { connect: Duration::from_secs(600), ..ClientOptions::default() };
        let said = look(refusal, patient.clone()).await;
        assert!(said.contains("does not let anybody look"), "{said}");
        let named = b"HTTP/1.1 409 Conflict\r\ncontent-length: 41\r\n\r\n{\"kind\":\"conflict\",\"message\":\"in change\"}";
        let said = look(named, patient).await;
        assert!(said.contains("in change"), "{said}");
        let hasty =
            ClientOptions { connect: Duration::from_millis(50), ..ClientOptions::default() };
        let said = look(b"HTTP/1.1 ", hasty).await;
        assert!(said.contains("is silent"), "{said}");
    }

    #[test]
    fn an_answer_is_taken_only_when_it_is_complete() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\n{}";
        assert_eq!(split(answer), Some((200, &b"{}"[..])));
        for end in 0..answer.len() {
            assert_eq!(split(&answer[..end]), None, "cut at {end}");
        }
        assert_eq!(split(b"HTTP/1.1 x OK\r\ncontent-length: 0\r\n\r\n"), None);
    }
}

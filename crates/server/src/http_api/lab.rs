//! The lab: questions about a trace that is sent, or that the server recorded. What answers them is the command that
//! a person would run, in a process of its own ([`study`](crate::study)).

use super::carry::{HttpApi, busy, carried};
use super::lab_views::{
    HitCurves, Prediction, RecordedTrace, RecordedTraces, TraceFacts, TunedCache,
};
use super::requests::{Asker, QueryParameters, says_no_bytes};
use super::upload::Upload;
use crate::answers::{problem, refusal};
use crate::audit::{Actor, Deed};
use crate::bearer::Caller;
use crate::record::Recording;
use crate::recordings::recordings;
use crate::running::RunningServer;
use crate::study::TRACE;
use access::TokenRight;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use block::{ByteSize, Error, Result};
use futures::FutureExt;
use hyper::body::Body as _;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::AsyncReadExt;

/// The longest trace that is taken, in bytes.
const LONGEST: u64 = 64 << 20;
/// Written at a time.
const PIECE: u64 = 1 << 20;
/// The longest list of sizes.
const LONGEST_LIST: usize = 100;

/// What is asked of a trace.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum LabQuestion {
    /// What it is like.
    Stats,
    /// What caches would answer of it.
    Curves,
    /// Which policy is best for it.
    Tune,
    /// How many such clients a server holds.
    Predict,
}

/// How it is asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LabTerms {
    /// A trace that the server recorded; else the body is one.
    #[serde(default)]
    recording: Option<String>,
    /// Its format: looked at, if nobody says.
    #[serde(default, deserialize_with = "format")]
    format: Option<trace::Format>,
    /// Sizes of the cache, as the command takes them.
    #[serde(default)]
    memory: Option<String>,
}

fn format<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<trace::Format>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(|e: Error| D::Error::custom(e.message()))
}

/// A study, as it is noted.
#[derive(Debug, Serialize)]
struct LabDeed<'a> {
    verb: LabQuestion,
    name: &'a str,
}

impl LabQuestion {
    /// The command that answers it.
    fn arguments(self, terms: &LabTerms) -> Result<Vec<String>> {
        let memory = |usual: &'static str| sizes(terms.memory.as_deref().unwrap_or(usual));
        let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut arguments = match self {
            Self::Stats => words("trace stats"),
            Self::Curves => {
                let size = format!("--size={}", memory("1%-100%")?);
                [words("simulate cache"), vec![size]].concat()
            }
            Self::Tune => {
                let size = format!("--memory={}", memory("10%")?);
                [words("simulate tune"), vec![size]].concat()
            }
            Self::Predict => {
                let size = format!("--memory={}", memory("64MiB-1GiB")?);
                [words("predict --profile transcom"), vec![size]].concat()
            }
        };
        arguments.extend(terms.format.map(|format| format!("--format={format}")));
        arguments.push(match self {
            Self::Predict => format!("--trace={TRACE}"),
            _ => TRACE.to_owned(),
        });
        Ok(arguments)
    }
}

/// A list of sizes that cannot be anything else.
fn sizes(text: &str) -> Result<&str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"%-,.".contains(&byte);
    match text.len() <= LONGEST_LIST && !text.is_empty() && text.bytes().all(fits) {
        true => Ok(text),
        false => Err(Error::invalid("write sizes such as 64MiB,1GiB or 64M-1G")),
    }
}

pub(super) async fn stats(
    State(api): State<HttpApi>,
    asker: Asker,
    QueryParameters(terms): QueryParameters<LabTerms>,
    request: Request,
) -> Response {
    answer::<TraceFacts>(api, asker, LabQuestion::Stats, terms, request).await
}

pub(super) async fn curves(
    State(api): State<HttpApi>,
    asker: Asker,
    QueryParameters(terms): QueryParameters<LabTerms>,
    request: Request,
) -> Response {
    answer::<HitCurves>(api, asker, LabQuestion::Curves, terms, request).await
}

pub(super) async fn tune(
    State(api): State<HttpApi>,
    asker: Asker,
    QueryParameters(terms): QueryParameters<LabTerms>,
    request: Request,
) -> Response {
    answer::<Vec<TunedCache>>(api, asker, LabQuestion::Tune, terms, request).await
}

pub(super) async fn predict(
    State(api): State<HttpApi>,
    asker: Asker,
    QueryParameters(terms): QueryParameters<LabTerms>,
    request: Request,
) -> Response {
    answer::<Prediction>(api, asker, LabQuestion::Predict, terms, request).await
}

/// Answers a question. All of it ends when the client goes away.
async fn answer<T: DeserializeOwned + Serialize>(
    api: HttpApi,
    asker: Asker,
    question: LabQuestion,
    terms: LabTerms,
    request: Request,
) -> Response {
    if let Err(e) = asker.caller.must_have(TokenRight::Operate) {
        return problem(&e);
    }
    if let Some(response) = says_no_bytes(request.headers(), "the bytes of a trace") {
        return response;
    }
    let arguments = match question.arguments(&terms) {
        Ok(arguments) => arguments,
        Err(e) => return problem(&e),
    };
    let _turn = match api.studies().turn() {
        Ok(turn) => turn,
        Err(e) => return busy(&e),
    };
    let running = api.running();
    let name = terms.recording.as_deref().unwrap_or("a trace that was sent");
    let deed = Deed::of("lab", &LabDeed { verb: question, name });
    let token = asker.caller.token().map(str::to_owned);
    let actor = Actor { token, origin: asker.origin.clone() };
    let body = request.into_body();
    let trace = match &terms.recording {
        Some(name) => recorded(&running, name).await.map_err(Some),
        None if body.size_hint().lower() > LONGEST => Err(None),
        None => sent(&running, &asker.caller, body).await,
    };
    let trace = match trace {
        Ok(trace) => trace,
        Err(Some(e)) => return problem(&e),
        Err(None) => {
            let why = format!("the trace is longer than {}", ByteSize(LONGEST));
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, &Error::invalid(why));
        }
    };
    let answered = api.studies().ask::<T>(&arguments, trace).await;
    running.audit.note(&actor, &deed, answered.as_ref().map(|_| ())).await;
    carried(match answered {
        Ok(answer) => Json(answer).into_response(),
        Err(e) => problem(&e),
    })
}

/// Why there is no trace: an error, or none for one that is too long.
type NoTrace = Option<Error>;

/// The trace that is sent, as a file without a name.
async fn sent(
    running: &Arc<RunningServer>,
    caller: &Caller,
    body: Body,
) -> std::result::Result<File, NoTrace> {
    let caller = caller.clone();
    let permission = Box::new(move || {
        let caller = caller.clone();
        async move { caller.must_still_hold().await }.boxed()
    });
    let mut upload = Upload::new(body, running.ending.wait(), permission);
    let taken = take(running.home.scratch(), &mut upload).await;
    if taken.is_err() {
        // The answer reaches a client that is still sending only if somebody takes what it sends.
        let _ = running.begin(upload.drain());
    }
    taken
}

async fn take(dir: PathBuf, upload: &mut Upload<Body>) -> std::result::Result<File, NoTrace> {
    let failed = |e| Error::io("a trace that is sent", e);
    let make = move || {
        std::fs::create_dir_all(&dir).map_err(|e| Error::io(dir.display(), e))?;
        tempfile::tempfile_in(&dir).map_err(|e| Error::io(dir.display(), e))
    };
    let (mut file, mut came) = (block::offload(make).await?, 0);
    loop {
        let mut piece = Vec::new();
        let read = (&mut *upload).take(PIECE).read_to_end(&mut piece).await;
        came += read.map_err(|e| upload.fault().map_or_else(|| failed(e), Error::from))? as u64;
        let is_last = piece.is_empty();
        if came > LONGEST {
            return Err(None);
        }
        let write = move || {
            match is_last {
                true => file.rewind().map_err(failed)?,
                false => file.write_all(&piece).map_err(failed)?,
            }
            Ok(file)
        };
        file = block::offload(write).await?;
        if is_last {
            return Ok(file);
        }
    }
}

/// A trace that the server recorded.
async fn recorded(running: &RunningServer, name: &str) -> Result<File> {
    let missing = || Error::not_found("the server has no such recording, or none at all");
    let dir = running.recording.as_ref().and_then(Recording::directory).ok_or_else(missing)?;
    let (dir, name) = (dir.to_owned(), name.to_owned());
    block::offload(move || {
        let all = recordings(&dir)?;
        let path = all.iter().find(|path| path.file_name().is_some_and(|known| *known == *name));
        let path = path.ok_or_else(missing)?;
        File::open(path).map_err(|e| Error::io(path.display(), e))
    })
    .await
}

/// The traces that the server has recorded.
pub(super) async fn recordings_list(State(api): State<HttpApi>, asker: Asker) -> Response {
    let looked = async {
        asker.caller.must_have(TokenRight::Read)?;
        let _turn = api.turn_to_look().await?;
        let running = api.running();
        let Some(recording) = &running.recording else { return Ok(Vec::new()) };
        let Some(dir) = recording.directory().map(Path::to_owned) else { return Ok(Vec::new()) };
        let open = recording.view().file;
        block::offload(move || listed(&dir, &open)).await
    };
    match looked.await {
        Ok(recordings) => Json(RecordedTraces { recordings }).into_response(),
        Err(e) => problem(&e),
    }
}

/// The recordings of a directory, the newest first; `open` is being written.
fn listed(dir: &Path, open: &str) -> Result<Vec<RecordedTrace>> {
    let row = |path: PathBuf| {
        // One that was removed meanwhile is none.
        let bytes = path.metadata().ok()?.len();
        let name = path.file_name()?.to_str()?.to_owned();
        Some(RecordedTrace { name, bytes, open: path.as_os_str() == open })
    };
    Ok(recordings(dir)?.into_iter().rev().filter_map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_command_and_nothing_that_is_asked_becomes_another_option() {
        let terms = |memory: Option<&str>, format| LabTerms {
            recording: None,
            format,
            memory: memory.map(str::to_owned),
        };
        let of = |question: LabQuestion, memory| {
            question.arguments(&terms(memory, None)).map(|all| all.join(" "))
        };
        assert_eq!(of(LabQuestion::Stats, None).unwrap(), "trace stats /dev/stdin");
        assert_eq!(
            of(LabQuestion::Curves, None).unwrap(),
            "simulate cache --size=1%-100% /dev/stdin"
        );
        assert_eq!(
            of(LabQuestion::Tune, Some("--html=x")).unwrap_err().kind(),
            block::ErrorKind::Invalid
        );
        assert_eq!(
            of(LabQuestion::Tune, Some("-1")).unwrap(),
            "simulate tune --memory=-1 /dev/stdin"
        );
        let csv = LabQuestion::Predict.arguments(&terms(Some("1G"), "csv".parse().ok())).unwrap();
        assert_eq!(
            csv.join(" "),
            "predict --profile transcom --memory=1G --format=csv --trace=/dev/stdin"
        );
        for bad in ["", "1 G", "/etc/passwd", &"1".repeat(101)] {
            assert!(of(LabQuestion::Tune, Some(bad)).is_err(), "{bad}");
        }
    }
}

//! The audit log: who changed what through the server, or tried to. One JSON object a line in `audit.log` of
//! the home, for its owner alone; documented in docs/api.md.
//!
//! It is bounded. A full file becomes `audit.log.1`, that one `audit.log.2` and so on, and the last is
//! removed. Whoever reaches the port can be refused as often as they like, and with requests as long as they like:
//! what came to nothing is noted one by one only up to a number in a minute and in a day, and what a request
//! says is cut. It shall not drive out what was done.

use crate::origin::Origin;
use block::{Error, ErrorKind, Result};
use engine::Home;
use engine::world;
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Where a file ends, in bytes.
const LARGEST: u64 = 4 << 20;
/// How many full files are kept.
const KEPT: u32 = 4;
/// What came to nothing and is noted one by one: so much in so long.
const REFUSALS: [(u64, Duration); 2] =
    [(60, Duration::from_secs(60)), (1000, Duration::from_secs(86_400))];
/// The longest error and the longest text of a request that is noted, in characters.
const LONGEST: usize = 300;
/// The longest request that is noted, in bytes, once its texts are cut.
const LONGEST_REQUEST: usize = 4096;

/// Who changed something.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    /// The name of the token that was shown; none is on the control socket.
    pub(crate) token: Option<String>,
    pub(crate) origin: Origin,
}

/// What was to be changed.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    /// A noun and a verb, such as `disk.create`.
    verb: String,
    object: String,
    request: Value,
}

impl Deed {
    /// A request on a kind of thing; its JSON says the `verb`, and the `name` or `names`.
    pub(crate) fn of(noun: &str, request: &impl Serialize) -> Self {
        let request = serde_json::to_value(request).unwrap_or_default();
        let text = |key: &str| request.get(key).and_then(Value::as_str).unwrap_or_default();
        let object = match (text("name"), request.get("names").and_then(Value::as_array)) {
            ("", Some(names)) => {
                names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
            }
            (name, _) => name.to_owned(),
        };
        let verb = format!("{noun}.{}", text("verb"));
        Self { verb, object: short(&object), request: bounded(request) }
    }

    /// Something that is asked of the server itself.
    pub(crate) fn of_server(verb: &str, request: &impl Serialize) -> Self {
        let request = serde_json::to_value(request).unwrap_or_default();
        Self { verb: format!("server.{verb}"), object: String::new(), request: bounded(request) }
    }

    /// A request that did not become one on anything.
    fn refused(method: &str, path: &str) -> Self {
        Self { verb: short(method), object: short(path), request: Value::Null }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.verb, self.object)
    }
}

/// A line.
#[derive(Serialize)]
struct AuditLine<'a> {
    /// RFC 3339, UTC.
    time: String,
    token: Option<&'a str>,
    from: String,
    verb: &'a str,
    object: String,
    /// `done`, or the kind of the error.
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    request: &'a Value,
}

/// The audit log of a home.
#[derive(Debug)]
pub(crate) struct AuditLog {
    path: Arc<Path>,
    /// Where a file ends, in bytes.
    largest: u64,
    refusals: Mutex<Refusals>,
    /// Whose turn it is to write: a file that is full gives way once.
    writing: Mutex<()>,
}

/// How many there were in the period of each limit.
#[derive(Debug, Default)]
struct Refusals {
    periods: [RefusalPeriod; REFUSALS.len()],
    left_out: u64,
    /// When it was last said how many were left out.
    said: Option<Instant>,
}

#[derive(Debug, Default)]
struct RefusalPeriod {
    since: Option<Instant>,
    noted: u64,
}

impl Refusals {
    /// Counts one. Gives whether it is to be noted, and how many were left out, which is said once in the shortest
    /// period.
    fn count(&mut self, now: Instant) -> (bool, u64) {
        let is_over =
            |since: Option<Instant>, period| since.is_none_or(|since| now >= since + period);
        for (period, (_, length)) in self.periods.iter_mut().zip(REFUSALS) {
            if is_over(period.since, length) {
                *period = RefusalPeriod { since: Some(now), noted: 0 };
            }
        }
        let mut left_out = 0;
        if is_over(self.said, REFUSALS[0].1) {
            self.said = Some(now);
            left_out = std::mem::take(&mut self.left_out);
        }
        let has_room =
            self.periods.iter().zip(REFUSALS).all(|(period, (most, _))| period.noted < most);
        match has_room {
            true => self.periods.iter_mut().for_each(|period| period.noted += 1),
            false => self.left_out += 1,
        }
        (has_room, left_out)
    }
}

impl AuditLog {
    /// That of a home; nothing is written yet.
    pub(crate) fn of(home: &Home) -> Self {
        Self::at(&home.audit_log(), LARGEST)
    }

    fn at(path: &Path, largest: u64) -> Self {
        let (refusals, writing) = (Mutex::default(), Mutex::default());
        Self { path: path.into(), largest, refusals, writing }
    }

    /// Notes what was carried out, and how it ended. What cannot be written is in the server's log: a change
    /// that was made cannot be taken back.
    pub(crate) async fn note(
        &self,
        actor: &Actor,
        deed: &Deed,
        outcome: std::result::Result<(), &Error>,
    ) {
        match outcome {
            Ok(()) => self.write(line(actor, deed, "done", None)).await,
            Err(e) => {
                let failed = line(actor, deed, e.kind().as_str(), Some(short(e.message())));
                match e.kind() {
                    ErrorKind::Invalid
                    | ErrorKind::NotFound
                    | ErrorKind::Conflict
                    | ErrorKind::Denied => self.write_if_few(actor, failed).await,
                    _ => self.write(failed).await,
                }
            }
        }
    }

    /// Notes a request for a change that was not carried out, with the status that says why.
    pub(crate) async fn note_refusal(&self, actor: &Actor, method: &str, path: &str, status: u16) {
        let why = Some(format!("HTTP status {status}"));
        self.write_if_few(actor, line(actor, &Deed::refused(method, path), "refused", why)).await;
    }

    /// Writes a line on what changed nothing, unless there were many.
    async fn write_if_few(&self, actor: &Actor, refused: String) {
        let (noted, left_out) = self.refusals.lock().await.count(Instant::now());
        if left_out > 0 {
            let others = Deed::refused("refused", "");
            let why = format!("{left_out} more requests than are noted one by one");
            self.write(line(actor, &others, "denied", Some(why))).await;
        }
        if noted {
            self.write(refused).await;
        }
    }

    async fn write(&self, line: String) {
        let (path, largest) = (Arc::clone(&self.path), self.largest);
        // In the order in which things ended.
        let _turn = self.writing.lock().await;
        let written = block::offload(move || append(&path, &line, largest)).await;
        if let Err(error) = written {
            tracing::error!(error = error.message(), "the audit log cannot be written");
        }
    }
}

fn line(actor: &Actor, deed: &Deed, outcome: &str, message: Option<String>) -> String {
    let line = AuditLine {
        time: format!("{}Z", world::moment(world::system().clock.now()).replace(' ', "T")),
        token: actor.token.as_deref(),
        from: actor.origin.to_string(),
        verb: &deed.verb,
        object: deed.object.clone(),
        outcome,
        message,
        request: &deed.request,
    };
    serde_json::to_string(&line).unwrap_or_default() // of text and numbers: it cannot fail
}

fn short(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// A request with its texts cut; none where it is long all the same.
fn bounded(mut request: Value) -> Value {
    cut(&mut request);
    match request.to_string().len() <= LONGEST_REQUEST {
        true => request,
        false => Value::String("a longer request than is noted".to_owned()),
    }
}

fn cut(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > LONGEST => *text = short(text),
        Value::Array(values) => values.iter_mut().for_each(cut),
        Value::Object(fields) => fields.values_mut().for_each(cut),
        _ => {}
    }
}

/// Adds a line to the file, which begins anew when it is as long as `largest`.
fn append(path: &Path, line: &str, largest: u64) -> Result<()> {
    let io = |e| Error::io(path.display(), e);
    let numbered = |number: u32| PathBuf::from(format!("{}.{number}", path.display()));
    let full = match std::fs::metadata(path) {
        Ok(found) => found.len() + line.len() as u64 >= largest && found.len() > 0,
        Err(e) if e.kind() == IoKind::NotFound => false,
        Err(e) => return Err(io(e)),
    };
    if full {
        for number in (1..KEPT).rev() {
            match std::fs::rename(numbered(number), numbered(number + 1)) {
                Err(e) if e.kind() != IoKind::NotFound => return Err(io(e)),
                _ => {}
            }
        }
        match std::fs::rename(path, numbered(1)) {
            // A successor was quicker.
            Err(e) if e.kind() != IoKind::NotFound => return Err(io(e)),
            _ => {}
        }
    }
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path).map_err(io)?;
    // In one call: a server that hands over and its successor may both write.
    file.write_all(format!("{line}\n").as_bytes()).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::Mode;
    use engine::api::DiskRequest;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_ends_at_the_same_time_is_all_noted_also_as_a_file_gives_way() {
        for _ in 0..50 {
            let dir = tempfile::tempdir().unwrap();
            let log = Arc::new(AuditLog::at(&dir.path().join("audit.log"), 1000));
            let mut noting = tokio::task::JoinSet::new();
            for number in 0..40 {
                let log = Arc::clone(&log);
                noting.spawn(async move { log.write(format!("{number:099}")).await });
            }
            noting.join_all().await;
            let mut noted = Vec::new();
            for file in std::fs::read_dir(dir.path()).unwrap() {
                let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
                noted.extend(text.lines().map(|line| line.parse::<u32>().unwrap()));
            }
            noted.sort_unstable();
            assert_eq!(noted, (0..40).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_full_file_gives_way_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        for number in 0..100 {
            append(&path, &format!("line {number:02}"), 40).unwrap();
        }
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected: Vec<String> = std::iter::once("audit.log".into())
            .chain((1..=KEPT).map(|n| format!("audit.log.{n}")))
            .collect();
        assert_eq!(names, expected);
        let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(text("audit.log").ends_with("line 99\n"));
        assert!(text("audit.log.1") < text("audit.log"));
        for name in names {
            assert!(text(&name).len() <= 40, "{name}");
        }
    }

    #[test]
    fn refusals_are_noted_one_by_one_up_to_a_number_and_then_counted() {
        let [(most, minute), (most_a_day, day)] = REFUSALS;
        let mut refusals = Refusals::default();
        let now = Instant::now();
        let noted = (0..1000).filter(|_| refusals.count(now).0).count() as u64;
        assert_eq!(noted, most);
        assert_eq!(refusals.count(now + minute), (true, 1000 - most));
        assert_eq!(refusals.count(now + minute), (true, 0));
        // One who keeps at it.
        let mut refusals = Refusals::default();
        let minutes = (0..60 * 24).flat_map(|at| (0..most).map(move |_| now + minute * at));
        assert_eq!(minutes.filter(|at| refusals.count(*at).0).count() as u64, most_a_day);
        assert!(refusals.count(now + day).0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_request_makes_a_long_line_and_many_bad_ones_leave_what_was_done() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::at(&dir.path().join("audit.log"), 64 << 10);
        let origin = Origin::unix(Some((1000, None)));
        let actor = Actor { token: Some("ci".into()), origin };
        let done = DiskRequest::Reset { name: "alice".into() };
        log.note(&actor, &Deed::of("disk", &done), Ok(())).await;
        let long = "x".repeat(1 << 20);
        let names = (0..10_000).map(|n| n.to_string()).collect();
        let many =
            DiskRequest::CreateAll { names, from: long.clone(), mode: Mode::Ephemeral, size: None };
        for number in 0..1000 {
            log.note_refusal(&actor, &long, &long, 401).await;
            let wrong = DiskRequest::Reset { name: format!("{number}{long}") };
            let wrong =
                if number % 2 == 0 { Deed::of("disk", &wrong) } else { Deed::of("disk", &many) };
            log.note(&actor, &wrong, Err(&Error::invalid(long.clone()))).await;
        }
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
        assert!(text.lines().next().unwrap().contains("disk.reset"), "{text}");
        assert!(text.lines().all(|line| line.len() < 2 * LONGEST_REQUEST));
    }

    #[test]
    fn a_deed_names_its_verb_and_its_object() {
        let one = DiskRequest::Snapshot { name: "alice".into(), snapshot: "monday".into() };
        let deed = Deed::of("disk", &one);
        assert_eq!((deed.verb.as_str(), deed.object.as_str()), ("disk.snapshot", "alice"));
        assert_eq!(deed.request["snapshot"], "monday");
        let several = DiskRequest::CreateAll {
            names: vec!["a".into(), "b".into()],
            from: "debian".into(),
            mode: Mode::Persistent,
            size: None,
        };
        assert_eq!(Deed::of("disk", &several).object, "a b");
    }
}

//! The QEMU guest agent: a guest in which one runs has its clock set when it goes on.
//!
//! A guest does not notice that it stood still. Its hardware clock has gone on meanwhile, but Linux reads that only
//! when it boots; so its time is behind until somebody sets it. The agent does, when it is asked over a serial
//! port of the machine. What comes from there is the guest's, and not to be trusted.

use crate::Monitor;
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// The name of the port, which agents look for.
pub(crate) const PORT: &str = "org.qemu.guest_agent.0";
/// What QEMU calls our end of it.
pub(crate) const CHARDEV: &str = "guest-agent";
/// The longest line that is accepted, in bytes.
const LONGEST: usize = 64 << 10;
/// How long an agent has for all of it: the guest may be slow while its memory is fetched.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often, and how soon again, QEMU is asked whether the guest has the port open: it knows once the guest runs.
const LOOKS: u32 = 5;
const STEP: Duration = Duration::from_millis(20);
/// How far a guest's clock may be off that counts as set: setting it takes a while.
const NEAR: Duration = Duration::from_secs(5);

/// What becomes of the clock of a guest that goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestClock {
    /// Its agent is asked to set it.
    Setting,
    /// Its agent set it.
    Set,
    /// No agent runs in the guest: its clock is behind, by as long as it stood still.
    NoAgent,
    /// Its agent did not set it, for this reason.
    Failed(String),
}

/// Whether an agent has the port open in the guest.
pub(crate) async fn is_there(monitor: &Monitor) -> bool {
    for _ in 0..LOOKS {
        if let Ok(list) = monitor.execute("query-chardev", Value::Null).await
            && is_open(&list)
        {
            return true;
        }
        sleep(STEP).await;
    }
    false
}

fn is_open(chardevs: &Value) -> bool {
    let ours = |one: &&Value| one["label"].as_str() == Some(CHARDEV);
    let found = chardevs.as_array().and_then(|list| list.iter().find(ours));
    found.is_some_and(|one| one["frontend-open"] == Value::Bool(true))
}

/// Has the agent at `socket` set the guest's clock to what `now` says, the time since 1970.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when it does not answer, or cannot; [`Corrupt`](block::ErrorKind::Corrupt)
/// when what answers is no agent.
pub(crate) async fn set_clock(socket: &Path, now: fn() -> Duration) -> Result<()> {
    let set = async {
        let stream = UnixStream::connect(socket).await;
        let stream = stream.map_err(|e| Error::io(socket.display(), e))?;
        GuestAgent { stream, received: Vec::new() }.set_clock(now).await
    };
    timeout(PATIENCE, set).await.unwrap_or_else(|_| {
        Err(Error::unavailable(format!(
            "the guest agent does not answer within {} s",
            PATIENCE.as_secs()
        )))
    })
}

/// A connection to an agent.
struct GuestAgent {
    stream: UnixStream,
    /// What was received and is not a whole line yet.
    received: Vec<u8>,
}

impl GuestAgent {
    async fn set_clock(&mut self, now: fn() -> Duration) -> Result<()> {
        self.synchronize(now().as_nanos() as u64 >> 20).await?;
        let nanoseconds = now().as_nanos() as u64;
        let set = self.execute("guest-set-time", json!({"time": nanoseconds})).await;
        let Err(refused) = set else { return Ok(()) };
        // It sets the hardware clock, too, and fails where that cannot be set although the other one is.
        let time = self.execute("guest-get-time", Value::Null).await;
        let time = time.ok().and_then(|time| time.as_u64()).map(Duration::from_nanos);
        match time {
            Some(time) if time.abs_diff(now()) < NEAR => Ok(()),
            _ => Err(refused),
        }
    }

    /// Passes over what was said to somebody else: an agent answers the number after a byte that is in no answer.
    async fn synchronize(&mut self, number: u64) -> Result<()> {
        self.send("guest-sync-delimited", &json!({"id": number})).await?;
        loop {
            let line = self.line().await?;
            let Some(at) = line.iter().rposition(|byte| *byte == 0xff) else { continue };
            let answer: Value = serde_json::from_slice(&line[at + 1..]).unwrap_or_default();
            if answer["return"].as_u64() == Some(number) {
                return Ok(());
            }
        }
    }

    async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.send(command, &arguments).await?;
        let line = self.line().await?;
        let mut answer: Value = serde_json::from_slice(&line)
            .map_err(|e| Error::corrupt(format!("the guest agent answers {command} with {e}")))?;
        if !answer.is_object() {
            return Err(Error::corrupt(format!(
                "the guest agent answers {command} with something that is no answer"
            )));
        }
        match answer["error"]["desc"].as_str() {
            Some(why) => {
                let why: String = why.chars().filter(|c| !c.is_control()).take(200).collect();
                Err(Error::unavailable(format!("the guest agent refuses {command}: {why}")))
            }
            None => Ok(answer["return"].take()),
        }
    }

    async fn send(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let mut request = json!({"execute": command});
        if !arguments.is_null() {
            request["arguments"] = arguments.clone();
        }
        // The byte has the agent forget the beginning of somebody else's command.
        let mut bytes = vec![0xff];
        bytes.extend(request.to_string().bytes());
        bytes.push(b'\n');
        self.stream.write_all(&bytes).await.map_err(gone)
    }

    /// The next line, without its end.
    async fn line(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.truncate(end);
                return Ok(line);
            }
            if self.received.len() > LONGEST {
                return Err(Error::corrupt(format!(
                    "the guest agent sent a line of more than {LONGEST} bytes"
                )));
            }
            if self.stream.read_buf(&mut self.received).await.map_err(gone)? == 0 {
                return Err(Error::unavailable("the guest agent went away"));
            }
        }
    }
}

fn gone(e: std::io::Error) -> Error {
    Error::unavailable(format!("the guest agent went away: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::task::JoinSet;

    /// 2026-01-01 00:00 UTC.
    const NOW: Duration = Duration::from_secs(1_767_225_600);

    /// An agent that says `first` before it is asked, answers a synchronization, and then each command by the next of
    /// `answers`; gives what it was asked.
    async fn ask(first: &[u8], answers: &[&'static str]) -> (Result<()>, Vec<Value>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (first, answers) = (first.to_vec(), answers.to_vec());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (read, mut write) = theirs.into_split();
            let mut lines = BufReader::new(read).split(b'\n');
            let (mut asked, mut answers) = (Vec::new(), answers.iter());
            // Whoever asks may have gone away.
            let _ = write.write_all(&first).await;
            while let Ok(Some(line)) = lines.next_segment().await {
                assert_eq!(line[0], 0xff);
                let request: Value = serde_json::from_slice(&line[1..]).unwrap();
                let answer = match request["execute"].as_str().unwrap() {
                    "guest-sync-delimited" => {
                        let answer = json!({"return": request["arguments"]["id"]});
                        [&[0xff], answer.to_string().as_bytes(), b"\n"].concat()
                    }
                    _ => match answers.next() {
                        Some(answer) => [answer.as_bytes(), b"\n"].concat(),
                        None => return asked,
                    },
                };
                asked.push(request);
                let _ = write.write_all(&answer).await;
            }
            asked
        });
        let mut agent = GuestAgent { stream: ours, received: Vec::new() };
        let outcome = agent.set_clock(|| NOW).await;
        drop(agent);
        (outcome, tasks.join_next().await.unwrap().unwrap())
    }

    #[tokio::test]
    async fn an_agent_is_asked_to_set_the_clock_to_the_time() {
        // The end of an answer to somebody else, and one to an older synchronization.
        let (set, asked) = ask(b"rn\": 1}\n\xff{\"return\": 12}\n", &[r#"{"return": {}}"#]).await;
        set.unwrap();
        assert_eq!(asked[1]["execute"], "guest-set-time");
        assert_eq!(asked[1]["arguments"]["time"], 1_767_225_600_000_000_000u64);
    }

    #[tokio::test]
    async fn a_clock_that_is_right_is_set_whatever_the_agent_says_of_the_hardware_clock() {
        let refused = r#"{"error": {"class": "GenericError", "desc": "hwclock failed"}}"#;
        let (set, _) = ask(b"", &[refused, r#"{"return": 1767225601000000000}"#]).await;
        set.unwrap();
    }

    #[tokio::test]
    async fn an_agent_that_does_not_set_the_clock_is_told() {
        let refused = "{\"error\": {\"desc\": \"disabled \\u001b[2J\"}}";
        let behind = r#"{"return": 1767220000000000000}"#;
        for (answers, kind, what) in [
            (&[refused, behind][..], ErrorKind::Unavailable, "guest-set-time: disabled [2J"),
            (&[refused, refused], ErrorKind::Unavailable, "guest-set-time: disabled"),
            (&["login:", "login:"], ErrorKind::Corrupt, "guest-set-time"),
            (&["[]", "[]"], ErrorKind::Corrupt, "guest-set-time"),
            (&["7", "\"set\""], ErrorKind::Corrupt, "guest-set-time"),
            (&[], ErrorKind::Unavailable, "went away"),
        ] {
            let error = ask(b"", answers).await.0.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(what), "{error}");
        }
        let endless = vec![b'x'; LONGEST + 2];
        assert_eq!(ask(&endless, &[]).await.0.unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn an_agent_is_there_while_the_guest_has_its_port_open() {
        let list = |open| {
            json!([
                {"label": "console", "frontend-open": true},
                {"label": CHARDEV, "frontend-open": open},
            ])
        };
        assert!(is_open(&list(true)) && !is_open(&list(false)) && !is_open(&json!([])));
    }
}

//! One connection to QEMU's monitor.

use super::message::{self, MAX_LINE, QmpMessage};
use crate::demand::ExtentDemand;
use block::{Error, Result};
use serde_json::Value;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

/// How long QEMU may be silent when it has to answer. None that is asked for waits for the guest; but QEMU does not
/// answer while it waits for a page of the guest's memory, which may come over a thin link.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer may take at the most when QEMU waits for its memory again and again.
const AT_MOST: Duration = Duration::from_secs(1800);
/// How often a socket that is not there yet is looked for.
const RETRY: Duration = Duration::from_millis(10);

/// A connection to QEMU's monitor. Commands are sent one at a time; events are passed over.
#[derive(Debug)]
pub struct Monitor {
    link: Mutex<MonitorLink>,
    version: (u32, u32),
    /// The reads of memory that QEMU waits for, if it may have to.
    demand: Option<Arc<ExtentDemand>>,
}

#[derive(Debug)]
struct MonitorLink {
    stream: UnixStream,
    /// What was received and is not a whole line yet. Here and not in a future, so that a command whose
    /// caller went away leaves nothing half read.
    received: Vec<u8>,
    /// The number of the last command.
    last: u64,
}

impl Monitor {
    /// Connects to the socket at `path`, which QEMU may not have made yet. The time that QEMU waits for its memory,
    /// by `demand`, is not counted as silence.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when QEMU does not answer within `patience`;
    /// [`Corrupt`](block::ErrorKind::Corrupt) when what answers is no monitor.
    pub(crate) async fn connect(
        path: &Path,
        patience: Duration,
        demand: Option<Arc<ExtentDemand>>,
    ) -> Result<Self> {
        let until = Instant::now() + patience;
        let stream = loop {
            match UnixStream::connect(path).await {
                Ok(stream) => break stream,
                Err(e) if Instant::now() >= until && !waits(demand.as_deref(), patience) => {
                    return Err(Error::unavailable(format!(
                        "QEMU's monitor {} does not answer: {e}",
                        path.display()
                    )));
                }
                Err(_) => sleep(RETRY).await,
            }
        };
        Self::over(stream, demand).await
    }

    /// Begins the protocol on a connection.
    async fn over(stream: UnixStream, demand: Option<Arc<ExtentDemand>>) -> Result<Self> {
        let mut link = MonitorLink { stream, received: Vec::new(), last: 0 };
        let greeting = patiently(demand.as_deref(), PATIENCE, link.greeting()).await;
        let version = greeting.ok_or_else(|| silent("its greeting"))??;
        let monitor = Self { link: Mutex::new(link), version, demand };
        monitor.execute("qmp_capabilities", Value::Null).await?;
        Ok(monitor)
    }

    /// QEMU's version: its major and minor number.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Has QEMU carry out a command. `arguments` is an object, or null for none.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when QEMU refuses, with its reason;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it went away, or gives no answer for a minute in which it
    /// does not wait for its memory, or for half an hour.
    pub async fn execute(&self, name: &str, arguments: Value) -> Result<Value> {
        let mut link = self.link.lock().await;
        let answer = self.patiently(PATIENCE, link.execute(name, &arguments)).await;
        answer.ok_or_else(|| silent(name))?
    }

    /// Waits for something that QEMU does; `None` when that is not done within `patience` and QEMU does not wait for
    /// its memory meanwhile, nor within half an hour if it does.
    pub(crate) async fn patiently<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        patiently(self.demand.as_deref(), patience, work).await
    }

    /// The state of the machine, such as `running`, `paused`, `inmigrate`.
    ///
    /// # Errors
    /// Any error from [`execute`](Self::execute).
    pub async fn status(&self) -> Result<String> {
        let value = self.execute("query-status", Value::Null).await?;
        Ok(value["status"].as_str().unwrap_or_default().to_owned())
    }
}

fn silent(what: &str) -> Error {
    Error::unavailable(format!("QEMU did not answer {what} within {} s", PATIENCE.as_secs()))
}

/// Whether QEMU waits for its memory, or did within `time`.
fn waits(demand: Option<&ExtentDemand>, time: Duration) -> bool {
    demand.is_some_and(|demand| demand.was_within(time))
}

async fn patiently<T>(
    demand: Option<&ExtentDemand>,
    patience: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let until = Instant::now() + AT_MOST;
    loop {
        match timeout(patience, &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if Instant::now() < until && waits(demand, patience) => {}
            Err(_) => return None,
        }
    }
}

impl MonitorLink {
    /// QEMU's version. Between the connection and its greeting QEMU may send what happens to the machine.
    async fn greeting(&mut self) -> Result<(u32, u32)> {
        loop {
            match self.next().await? {
                QmpMessage::Greeting { version } => return Ok(version),
                QmpMessage::Event { .. } => {}
                _ => return Err(Error::corrupt("QEMU's monitor did not begin with a greeting")),
            }
        }
    }

    async fn execute(&mut self, name: &str, arguments: &Value) -> Result<Value> {
        self.last += 1;
        let id = self.last;
        self.stream.write_all(&message::command(id, name, arguments)).await.map_err(gone)?;
        loop {
            match self.next().await? {
                QmpMessage::Return { id: of, value } if of == id => return Ok(value),
                QmpMessage::Failure { id: of, reason } if of.is_none_or(|of| of == id) => {
                    return Err(Error::internal(format!("QEMU refused {name}: {reason}")));
                }
                // Events, and answers whose callers went away.
                _ => {}
            }
        }
    }

    /// The next message.
    async fn next(&mut self) -> Result<QmpMessage> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let message = QmpMessage::parse(&self.received[..end]);
                self.received.drain(..=end);
                return message;
            }
            if self.received.len() > MAX_LINE {
                return Err(message::too_long());
            }
            if self.stream.read_buf(&mut self.received).await.map_err(gone)? == 0 {
                return Err(Error::unavailable("QEMU ended"));
            }
        }
    }
}

fn gone(e: std::io::Error) -> Error {
    Error::unavailable(format!("QEMU's monitor went away: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::task::JoinSet;

    const GREETING: &str = r#"{"QMP":{"version":{"qemu":{"micro":0,"minor":2,"major":7},"package":""},"capabilities":[]}}"#;

    /// A QEMU that answers each line it gets by the next of `answers`.
    async fn scripted(answers: &'static [&'static str]) -> (Result<Monitor>, JoinSet<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (read, mut write) = theirs.into_split();
            let mut lines = BufReader::new(read).lines();
            let mut seen = Vec::new();
            write.write_all(format!("{GREETING}\r\n").as_bytes()).await.unwrap();
            for answer in answers {
                let Ok(Some(line)) = lines.next_line().await else { break };
                seen.push(line);
                // Byte by byte in part: lines do not come whole.
                let (first, rest) = answer.split_at(answer.len() / 2);
                write.write_all(first.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
                write.write_all(format!("{rest}\r\n").as_bytes()).await.unwrap();
            }
            seen
        });
        (Monitor::over(ours, None).await, tasks)
    }

    #[tokio::test]
    async fn answers_are_told_from_events() {
        let (monitor, mut qemu) = scripted(&[
            r#"{"return":{},"id":1}"#,
            "{\"event\":\"STOP\",\"timestamp\":{}}\r\n{\"return\":{\"status\":\"paused\"},\"id\":2}",
            r#"{"error":{"class":"GenericError","desc":"no such thing"},"id":3}"#,
        ])
        .await;
        let monitor = monitor.unwrap();
        assert_eq!(monitor.version(), (7, 2));
        assert_eq!(monitor.status().await.unwrap(), "paused");
        let error = monitor.execute("frobnicate", Value::Null).await.unwrap_err();
        assert!(error.message().contains("frobnicate: no such thing"), "{error}");
        let seen = qemu.join_next().await.unwrap().unwrap();
        assert_eq!(seen.len(), 3);
        let error = monitor.status().await.unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Unavailable, "it ended");
    }

    #[tokio::test]
    async fn an_event_may_come_before_the_greeting_and_an_answer_may_not() {
        let begun_with = async |first: &str| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let lines = format!("{first}\n{GREETING}\n{{\"return\":{{}},\"id\":1}}\n");
            theirs.write_all(lines.as_bytes()).await.unwrap();
            Monitor::over(ours, None).await.map(|monitor| monitor.version())
        };
        let event = r#"{"event":"RESUME","timestamp":{}}"#;
        assert_eq!(begun_with(event).await.unwrap(), (7, 2));
        let error = begun_with(r#"{"return":{},"id":1}"#).await.unwrap_err();
        assert!(error.message().contains("greeting"), "{error}");
    }

    #[tokio::test]
    async fn an_answer_to_a_caller_that_went_away_is_not_taken_for_the_next_ones() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs
            .write_all(format!("{GREETING}\n{{\"return\":{{}},\"id\":1}}\n").as_bytes())
            .await
            .unwrap();
        let monitor = Monitor::over(ours, None).await.unwrap();
        let late = timeout(Duration::from_millis(1), monitor.status()).await;
        assert!(late.is_err(), "nobody answers");
        let answers = "{\"return\":{\"status\":\"late\"},\"id\":2}\n{\"return\":{\"status\":\"running\"},\"id\":3}\n";
        theirs.write_all(answers.as_bytes()).await.unwrap();
        assert_eq!(monitor.status().await.unwrap(), "running");
    }

    #[tokio::test(start_paused = true)]
    async fn a_qemu_that_waits_for_its_memory_is_not_silent() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let demand = ExtentDemand::default();
        let work = async || sleep(minutes(10)).await;
        assert!(patiently(None, PATIENCE, work()).await.is_none());
        assert!(patiently(Some(&demand), PATIENCE, work()).await.is_none());
        let waits = demand.wait_for(0..1);
        let answer = patiently(Some(&demand), PATIENCE, work()).await;
        assert!(answer.is_some(), "it waited for a page all the time");
        let never = patiently(Some(&demand), PATIENCE, std::future::pending::<()>());
        assert!(timeout(minutes(60), never).await.is_ok_and(|answer| answer.is_none()));
        drop(waits);
        let began = Instant::now();
        assert!(patiently(Some(&demand), PATIENCE, work()).await.is_none());
        assert!(began.elapsed() <= minutes(2), "it has had its page for long");
    }
}

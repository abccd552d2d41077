//! Doing it: connections, one task each, a common start, and the report.

use crate::connection::{self, Connection};
use crate::detail::Detail;
use crate::plan::{Carried, Pace, ReplayPlan};
use crate::report::{Lateness, ReplayReport, Verified};
use crate::script::Script;
use crate::state::{Hub, ReplayState};
use crate::summary::Summary;
use crate::timer::Timer;
use block::{Error, Result};
use futures::stream::{StreamExt, TryStreamExt};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Connections that are made at a time.
const CONNECTING: usize = 32;

/// Replays `script`: [`prepare`], and then [`PreparedReplay::run`].
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the plan cannot be carried out,
/// [`NotFound`](block::ErrorKind::NotFound) or [`Denied`](block::ErrorKind::Denied) when the server refuses
/// an export, [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be reached, breaks the protocol
/// or falls silent.
pub async fn run(
    script: Arc<Script>,
    plan: ReplayPlan,
    hub: &Hub,
    stop: impl Future<Output = ()>,
) -> Result<ReplayReport> {
    let mut stop = pin!(stop);
    let prepared = tokio::select! {
        prepared = prepare(script, plan, hub) => prepared?,
        () = &mut stop => return Err(Error::unavailable("stopped before it began")),
    };
    prepared.run(stop).await
}

/// A replay whose connections are made.
pub struct PreparedReplay {
    shared: Arc<ReplayState>,
    connections: Vec<Connection>,
}

/// Makes the connections of a replay.
///
/// # Errors
/// Plans that cannot be carried out; servers that cannot be reached or refuse an export.
pub async fn prepare(script: Arc<Script>, plan: ReplayPlan, hub: &Hub) -> Result<PreparedReplay> {
    let carried = plan.connections(&script)?;
    hub.lock().detail = Detail::new(if plan.by_client { plan.clients } else { 0 }, plan.interval);
    let timer = Timer::new(carried.len())?;
    let shared = Arc::new(ReplayState::new(script, plan, timer, hub.clone()));
    let connections = connect(&shared, carried).await?;
    Ok(PreparedReplay { shared, connections })
}

impl PreparedReplay {
    /// Replays. When `stop` completes, nothing more is sent, and the report tells what was done
    /// until then. All tasks run where this is called: for exact figures, in a runtime of its own.
    ///
    /// # Errors
    /// Servers that break the protocol, close a connection or fall silent. A request that a server
    /// answers with an error is counted, not an error.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<ReplayReport> {
        let Self { shared, connections } = self;
        let count = connections.len() as u32;
        let mut stop = pin!(stop);
        shared.start();
        let mut tasks = JoinSet::new();
        for connection in connections {
            tasks.spawn(connection.drive());
        }
        let finish = async {
            while let Some(ended) = tasks.join_next().await {
                ended
                    .map_err(|e| Error::internal(format!("a connection's task failed: {e}")))??;
            }
            Ok(())
        };
        let mut finish = pin!(finish);
        let mut timer = pin!(shared.timer.drive());
        let mut silence = pin!(silence(&shared));
        tokio::select! {
            done = &mut finish => done?,
            failed = &mut timer => failed?,
            silent = &mut silence => return Err(silent),
            () = &mut stop => {
                shared.stop();
                tokio::select! {
                    done = &mut finish => done?,
                    silent = &mut silence => return Err(silent),
                }
            }
        }
        Ok(report(&shared, count))
    }
}

/// Waits until nothing has been answered for too long, though requests wait.
async fn silence(shared: &ReplayState) -> Error {
    let patience = shared.plan.patience;
    let (mut answered, mut since) = (0, Instant::now());
    loop {
        tokio::time::sleep(patience / 8).await;
        let now = Instant::now();
        let (sent, answers) = {
            let tally = shared.tally();
            (tally.sent, tally.answers)
        };
        if answers != answered || answers == sent {
            (answered, since) = (answers, now);
        } else if now - since >= patience {
            return Error::unavailable(format!(
                "{}: no answer for {patience:?}, though {} requests wait: look after the server, \
                 or wait longer with --timeout",
                shared.plan.target,
                sent - answers
            ));
        }
    }
}

async fn connect(shared: &Arc<ReplayState>, carried: Vec<Carried>) -> Result<Vec<Connection>> {
    let opened = carried.into_iter().enumerate().map(|(number, one)| async move {
        let link = connection::open(shared, &one.export).await?;
        Ok::<_, Error>((number, one, link))
    });
    let opened: Vec<_> =
        futures::stream::iter(opened).buffer_unordered(CONNECTING).try_collect().await?;
    let connections = opened
        .into_iter()
        .map(|(number, one, link)| Connection::new(shared, number, one.export, &one.clients, link));
    connections.collect()
}

fn report(shared: &ReplayState, connections: u32) -> ReplayReport {
    let (plan, tally) = (&shared.plan, shared.tally());
    let warm_up = plan.warm_up.as_secs_f64();
    let end = match plan.until {
        Some(until) if !shared.stopping.load(Ordering::Relaxed) => {
            // It may also have run out of requests before.
            if shared.left.load(Ordering::Relaxed) > 0 || plan.repeat {
                until.as_secs_f64()
            } else {
                until.as_secs_f64().min(tally.last as f64 / 1e9)
            }
        }
        _ => tally.last as f64 / 1e9,
    };
    let seconds = (end - warm_up).max(0.0);
    let ops = tally.ops();
    let requests: u64 = ops.iter().map(|op| op.requests).sum();
    let time: f64 = ops.iter().map(|op| op.latency.mean_us * op.requests as f64).sum();
    let (planned, late) = match plan.pace {
        Pace::Times(speed) => {
            (Some(plan.planned(&shared.script, speed)), Some(Summary::of(&tally.late)))
        }
        Pace::Fast => (None, None),
    };
    ReplayReport {
        clients: plan.clients,
        connections,
        seconds,
        planned_seconds: planned,
        requests,
        answers: tally.answers,
        throughput: if seconds > 0.0 { requests as f64 / seconds } else { 0.0 },
        bytes: ops.iter().map(|op| op.bytes).sum(),
        errors: tally.errors,
        first_error: tally.first_error.clone(),
        unsupported: tally.unsupported,
        mean_us: if requests > 0 { time / requests as f64 } else { 0.0 },
        ops,
        lateness: Lateness { all: late, own: Summary::of(&tally.own) },
        by_client: tally.detail.by_client(),
        intervals: tally.detail.intervals(),
        verified: plan.verify.then(|| Verified {
            grains: tally.verified,
            wrong: tally.wrong,
            first_wrong: tally.first_wrong.clone(),
        }),
        complete: plan.repeat || shared.left.load(Ordering::Relaxed) == 0,
    }
}

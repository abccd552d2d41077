//! The server looked at once a second while somebody watches, and once for all who do. While nobody
//! watches, nothing is looked at.

use super::lists::json;
use super::reading::{self, CounterReading, busiest, per, percent, point, round};
use super::rows::Rows;
use super::views::{Hello, LiveCache, LivePoint, LiveStore, LiveTrouble, LiveView, ServerLine};
use crate::head_room::HeadRoomView;
use crate::running::RunningServer;
use crate::signals::Switch;
use crate::trouble::Ongoing;
use block::{Error, Result};
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, broadcast};
use tokio::time::{Instant, MissedTickBehavior};

/// How often is looked.
const TICK: Duration = Duration::from_secs(1);
/// The first interval is shorter: somebody waits for it.
const FIRST: Duration = Duration::from_millis(250);
/// So many ticks after the last one left nobody watches any more: a page that is loaded again, or a script
/// that asks now and then, finds everything going on.
const LINGER: u32 = 10;
/// Head-room is computed once in so many ticks: it is of the last minute.
const HEAD_ROOM_TICKS: u64 = 5;
/// Moments that are kept for those who come later.
const HISTORY: usize = 600;
/// A watcher that is so many seconds behind begins anew.
const BEHIND: usize = 8;
/// How many troubles are told.
const TROUBLES: usize = 50;

/// Looks at a server.
pub(super) struct Sampler {
    running: Arc<RunningServer>,
    /// What the page's files are called.
    page: &'static str,
    host: String,
    stop: Switch,
    /// The most streams at a time.
    most: usize,
    /// Somebody began to watch.
    wanted: Notify,
    frames: broadcast::Sender<Arc<Frame>>,
    state: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    history: VecDeque<LivePoint>,
    latest: Option<(Instant, Bytes)>,
    streams: usize,
    /// Streams that want rows.
    row_streams: usize,
    rows: Rows,
}

/// What all watchers are sent of one moment.
struct Frame {
    now: Bytes,
    rows: Option<Bytes>,
}

/// Somebody who watches, from now until it is dropped.
pub(super) struct Watcher {
    sampler: Arc<Sampler>,
    frames: broadcast::Receiver<Arc<Frame>>,
    ready: VecDeque<Bytes>,
    with_rows: bool,
}

impl Sampler {
    /// Looks at nothing yet; it needs [`follow`](Self::follow).
    pub(super) fn new(
        running: &Arc<RunningServer>,
        page: &'static str,
        stop: Switch,
        most: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            running: Arc::clone(running),
            page,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            stop,
            most,
            wanted: Notify::new(),
            frames: broadcast::Sender::new(BEHIND),
            state: Mutex::default(),
        })
    }

    /// Looks, while somebody watches, until the port closes.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut stopped = std::pin::pin!(self.stop.wait());
        loop {
            tokio::select! {
                () = &mut stopped => return,
                () = self.wanted.notified() => {}
            }
            if self.frames.receiver_count() == 0 {
                continue; // who began has left
            }
            tokio::select! {
                () = &mut stopped => return,
                looked = self.watched() => if let Err(error) = looked {
                    tracing::error!(%error, "the dashboard does not see the server");
                }
            }
        }
    }

    /// Looks until nobody has watched for a while.
    async fn watched(self: &Arc<Self>) -> Result<()> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut before, mut head_room): (Option<CounterReading>, Option<HeadRoomView>) =
            (None, None);
        let mut unwatched = 0;
        for number in 0.. {
            tick.tick().await;
            unwatched = if self.frames.receiver_count() == 0 { unwatched + 1 } else { 0 };
            if unwatched > LINGER {
                break;
            }
            // It takes milliseconds when there are thousands of disks: not on a thread that serves.
            let sampler = Arc::clone(self);
            (before, head_room) = block::offload(move || {
                let look = CounterReading::at(&sampler.running);
                let running = &sampler.running;
                if number % HEAD_ROOM_TICKS == 0 {
                    let (untimed, bearable) = (running.untimed_requests(), running.bearable());
                    let meter = &running.head_room;
                    head_room = meter.view(&running.engine, &look.counters, untimed, bearable);
                }
                if let Some(before) = &before {
                    sampler.publish(before, &look, head_room.clone())?;
                }
                Ok((Some(look), head_room))
            })
            .await?;
            if number == 0 {
                tick.reset_after(FIRST);
            }
        }
        let mut state = self.state.lock();
        state.latest = None;
        state.rows.clear();
        Ok(())
    }

    /// Tells all watchers what happened between two looks.
    fn publish(
        &self,
        before: &CounterReading,
        now: &CounterReading,
        room: Option<HeadRoomView>,
    ) -> Result<()> {
        let with_rows = self.state.lock().row_streams > 0;
        let rows = with_rows.then(|| reading::rows(&self.running, before, now));
        let view = self.view(before, now, room);
        let (event, data) = event("now", &view)?;
        let mut state = self.state.lock();
        let mut told = None;
        match rows {
            Some(rows) => {
                let update = state.rows.update(rows, |changes| self::event("disks", changes));
                told = update.transpose()?.map(|(event, _)| event);
            }
            None => state.rows.clear(),
        }
        state.history.push_back(view.point);
        if state.history.len() > HISTORY {
            state.history.pop_front();
        }
        state.latest = Some((Instant::now(), data));
        // Under the lock: who begins to watch has all before this, or this.
        let _ = self.frames.send(Arc::new(Frame { now: event, rows: told }));
        Ok(())
    }

    /// Begins to watch; `with_rows` also the exports in use.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when there are too many who do.
    pub(super) fn watch(self: &Arc<Self>, with_rows: bool) -> Result<Watcher> {
        let mut state = self.state.lock();
        if state.streams >= self.most {
            let most = self.most;
            let message = format!("{most} pages watch this server already; close one of them");
            return Err(Error::unavailable(message));
        }
        let history = state.history.iter().collect();
        let at = round(self.running.started.elapsed().as_secs_f64(), 1e3);
        let hello = Hello { version: env!("CARGO_PKG_VERSION"), page: self.page, at, history };
        let mut ready = VecDeque::from([event("hello", &hello)?.0]);
        if with_rows {
            ready.push_back(event("disks", &state.rows.all())?.0);
            state.row_streams += 1;
        }
        state.streams += 1;
        let frames = self.frames.subscribe();
        drop(state);
        self.wanted.notify_one();
        Ok(Watcher { sampler: Arc::clone(self), frames, ready, with_rows })
    }

    /// [`LiveView`] as JSON: of the last second if somebody watches, else of the next moment.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the port is closed meanwhile.
    pub(super) async fn status(&self) -> Result<Bytes> {
        let mut frames = self.frames.subscribe();
        self.wanted.notify_one();
        let fresh = |(at, data): &(Instant, Bytes)| {
            (at.elapsed() < TICK * 2).then(|| data.clone()) //
        };
        if let Some(data) = self.state.lock().latest.as_ref().and_then(fresh) {
            return Ok(data);
        }
        tokio::select! {
            _ = frames.recv() => {}
            () = self.stop.wait() => {}
        }
        let latest = self.state.lock().latest.as_ref().map(|(_, data)| data.clone());
        latest.ok_or_else(|| Error::unavailable("the server is stopping"))
    }

    fn view(
        &self,
        before: &CounterReading,
        now: &CounterReading,
        room: Option<HeadRoomView>,
    ) -> LiveView {
        let running = &self.running;
        let counters = &now.counters;
        let point = point(before, now, running.started.elapsed());
        let mut ongoing = running.troubles.all();
        let troubles_total = ongoing.len() as u64;
        ongoing.truncate(TROUBLES);
        let places = running.places.lock().clone();
        LiveView {
            server: ServerLine {
                version: env!("CARGO_PKG_VERSION"),
                pid: std::process::id(),
                host: self.host.clone(),
                home: running.home.dir().display().to_string(),
                uptime_seconds: running.started.elapsed().as_secs(),
                nbd: places.nbd,
                iscsi: places.iscsi,
                gateway: places.gateway.map(|address| address.to_string()),
            },
            point,
            connections: counters.connections,
            connections_refused: counters.refused,
            connection_faults: counters.failed_handshakes + counters.protocol_errors,
            panics: counters.panics,
            open_disks: running.engine.open.names().len() as u64,
            busiest: busiest(before, now),
            latency: now.latency(before),
            cache: self.cache(now),
            store: self.store(before, now),
            head_room_text: room.as_ref().map(HeadRoomView::text),
            head_room: room,
            troubles: ongoing.into_iter().map(trouble).collect(),
            troubles_total,
            changes: running.changes(),
        }
    }

    fn cache(&self, now: &CounterReading) -> LiveCache {
        let cache = &self.running.engine.cache;
        let (stats, (hits, looked)) = (cache.stats(), now.cache);
        LiveCache {
            policy: cache.policy().to_string(),
            capacity_bytes: stats.capacity,
            bytes: stats.bytes,
            entries: stats.entries,
            hit_percent: percent(hits, looked),
            forecast: cache.forecast(),
        }
    }

    fn store(&self, before: &CounterReading, now: &CounterReading) -> LiveStore {
        let (seconds, counters) = (now.seconds_since(before), self.running.engine.store.counters());
        LiveStore {
            reads: per(before.store.0, now.store.0, seconds),
            read_bytes: per(before.store.1, now.store.1, seconds),
            failures: counters.chunk_failures,
            healed: counters.healed,
        }
    }
}

impl Watcher {
    /// The next bytes of the stream; `None` when it is to begin anew, or the port closes.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        let frame = tokio::select! {
            frame = self.frames.recv() => frame.ok()?,
            () = self.sampler.stop.wait() => return None,
        };
        self.ready.extend(frame.rows.clone().filter(|_| self.with_rows));
        Some(frame.now.clone())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = self.sampler.state.lock();
        state.streams -= 1;
        state.row_streams -= usize::from(self.with_rows);
    }
}

fn trouble(Ongoing { disk, state, trouble }: Ongoing) -> LiveTrouble {
    LiveTrouble { disk, state, trouble }
}

/// An event of a stream, and within it the value as JSON, which has no line breaks.
fn event(name: &str, value: &impl Serialize) -> Result<(Bytes, Bytes)> {
    let data = json(value)?;
    let mut text = BytesMut::with_capacity(data.len() + name.len() + 16);
    text.put_slice(b"event: ");
    text.put_slice(name.as_bytes());
    text.put_slice(b"\ndata: ");
    let from = text.len();
    text.put_slice(&data);
    let to = text.len();
    text.put_slice(b"\n\n");
    let text = text.freeze();
    Ok((text.clone(), text.slice(from..to)))
}

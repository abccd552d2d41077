//! The same disks by vhost-user, for virtual machines on this host: a socket for each, with the leases and
//! rights that NBD clients have.

use super::limits::{limits, of_virtqueues};
use super::signals::Switch;
use block::{Error, Result, offload};
use disk::Disks;
use engine::config::Config;
use nbd::Exports;
use nbd::server::Processors;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use vhost_user::{FrontEndCounters, VhostUserServer};

/// How often it is looked whether disks have come or gone.
const LOOK: Duration = Duration::from_millis(100);
/// How long they are listed after a change.
const SETTLES: Duration = Duration::from_millis(500);
/// How long it takes until they are listed again after that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The vhost-user sockets of a server. Connections do not go over to a successor: front ends connect again,
/// and what was in flight is done there.
pub(crate) struct Front {
    server: VhostUserServer,
    dir: PathBuf,
    disks: Arc<Disks>,
    /// Where the disks are.
    home: PathBuf,
    stop: Switch,
    /// Closes the sockets, but no connection.
    close: Switch,
    serving: JoinSet<Result<()>>,
}

impl Front {
    /// Opens a socket in `dir`, which is made if need be, for each of the `disks` in `home`, and serves them.
    /// It takes of the `processors` to look for requests.
    ///
    /// # Errors
    /// When the directory cannot be made; [`Conflict`](block::ErrorKind::Conflict) when it is a file.
    pub(crate) async fn start(
        dir: PathBuf,
        home: PathBuf,
        disks: &Arc<Disks>,
        exports: Arc<dyn Exports>,
        processors: Processors,
        config: &Config,
    ) -> Result<Self> {
        let limits = of_virtqueues(&limits(config));
        let mut front = Self {
            server: VhostUserServer::new(exports, limits, processors),
            dir,
            disks: Arc::clone(disks),
            home,
            stop: Switch::new(),
            close: Switch::new(),
            serving: JoinSet::new(),
        };
        front.serve().await?;
        Ok(front)
    }

    /// Opens the sockets again after [`stop`](Self::stop), and serves them.
    ///
    /// # Errors
    /// When the directory cannot be made; [`Conflict`](block::ErrorKind::Conflict) when it is a file.
    pub(crate) async fn serve(&mut self) -> Result<()> {
        make_directory(&self.dir)?;
        (self.stop, self.close) = (Switch::new(), Switch::new());
        // Where they cannot be listed yet, they are as soon as that works.
        let (names, watched) = watch::channel(names(&self.disks).await.unwrap_or_default());
        let (opened, all_open) = oneshot::channel();
        let (server, dir, stop) = (self.server.clone(), self.dir.clone(), self.stop.wait());
        self.serving.spawn(async move {
            let opened = || {
                // Whoever waits for it may have given up.
                let _ = opened.send(());
            };
            server.serve(&dir, watched, opened, stop).await
        });
        let (disks, home) = (Arc::clone(&self.disks), self.home.clone());
        let (stop, close) = (self.stop.wait(), self.close.wait());
        self.serving.spawn(async move {
            let list = || self::names(&disks);
            tokio::select! {
                () = follow(&home, list, &names) => {}
                () = close => drop(names.send_replace(BTreeSet::new())),
                () = stop => {}
            }
            Ok(())
        });
        let _ = all_open.await;
        tracing::info!(dir = %self.dir.display(), "listening for vhost-user");
        Ok(())
    }

    /// Takes no new connections: closes the sockets. Those that are there are served.
    pub(crate) fn close(&self) {
        self.close.throw();
    }

    /// Waits until the sockets are closed and the last connection has ended.
    pub(crate) async fn ended(&mut self) {
        while let Some(ended) = self.serving.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the vhost-user front end panicked");
            }
        }
    }

    /// Closes all connections and sockets.
    ///
    /// # Errors
    /// When requests were left in flight.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.stop.throw();
        let mut result = Ok(());
        while let Some(ended) = self.serving.join_next().await {
            let ended = ended.unwrap_or_else(|e| {
                Err(Error::internal("the vhost-user front end panicked").with_source(e))
            });
            result = result.and(ended);
        }
        result
    }

    /// The directory of its sockets.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server, which tells what it counted.
    pub(crate) fn server(&self) -> VhostUserServer {
        self.server.clone()
    }
}

fn make_directory(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if dir.exists() {
        let why = format!("{} is no directory: vhost-user sockets need one", dir.display());
        return Err(Error::conflict(why));
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir.display(), e))
}

/// The names of the disks.
async fn names(disks: &Disks) -> Result<BTreeSet<String>> {
    disks.names().await.map(|names| names.into_iter().collect())
}

/// Keeps `told` true to which disks there are: they are listed when their directory, `home`, has changed. Where they
/// cannot be listed, which is in the log, what is known stays.
async fn follow<L: Future<Output = Result<BTreeSet<String>>>>(
    home: &Path,
    list: impl Fn() -> L,
    told: &watch::Sender<BTreeSet<String>>,
) {
    let mut is_told = false;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut seen, mut settling) = (None, Instant::now());
    loop {
        looks.tick().await;
        let directory = home.to_owned();
        let changed = offload(move || {
            let modified = std::fs::metadata(&directory).and_then(|found| found.modified());
            modified.map_err(|e| Error::io(directory.display(), e))
        })
        .await
        .ok();
        if changed != seen {
            // Two changes within a tick of the kernel's clock have one time.
            (seen, settling) = (changed, Instant::now() + SETTLES);
        } else if Instant::now() > settling {
            continue;
        }
        let found = match list().await {
            Ok(found) => found,
            Err(e) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::error!(
                        error = e.message(),
                        "the disks cannot be listed for vhost-user"
                    );
                }
                seen = None;
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        is_told = false;
        told.send_if_modified(|known| {
            let changed = *known != found;
            *known = found;
            changed
        });
    }
}

/// What status and metrics tell of vhost-user.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct VhostUserView {
    /// The directory of its sockets.
    pub dir: String,
    /// Connections now.
    pub connections: u64,
    /// Virtqueues that are served now.
    pub virtqueues: u64,
    /// Connections refused.
    pub connections_refused: u64,
    /// Requests answered.
    pub requests: u64,
    /// Requests that were found by busy polling, without a kick.
    #[serde(default)]
    pub busy_polled: u64,
    /// Bytes that guests read.
    pub read_bytes: u64,
    /// Bytes that guests wrote.
    pub written_bytes: u64,
}

impl VhostUserView {
    /// That of a server with sockets in `dir`.
    pub(crate) fn of(dir: &str, counters: &FrontEndCounters) -> Self {
        Self {
            dir: dir.to_owned(),
            connections: counters.connections,
            virtqueues: counters.rings,
            connections_refused: counters.refused,
            requests: counters.requests,
            busy_polled: counters.busy_polled,
            read_bytes: counters.read_bytes,
            written_bytes: counters.written_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[tokio::test(start_paused = true)]
    async fn disks_that_cannot_be_listed_stay_what_they_were_until_they_can_be() {
        let home = tempfile::tempdir().unwrap();
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let answers: Mutex<Vec<Option<BTreeSet<String>>>> =
            Mutex::new(vec![Some(set(&["a", "b"])), None, None, Some(set(&["a"]))]);
        let list = || {
            let next = answers.lock().pop().flatten();
            std::future::ready(next.ok_or_else(|| Error::unavailable("too many open files")))
        };
        let (told, mut known) = watch::channel(set(&["a", "b", "c"]));
        let heard = async {
            known.changed().await.unwrap();
            let first = known.borrow_and_update().clone();
            known.changed().await.unwrap();
            (first, known.borrow().clone())
        };
        let began = Instant::now();
        let heard = tokio::select! {
            () = follow(home.path(), list, &told) => unreachable!("it has no end"),
            heard = heard => heard,
        };
        assert_eq!(heard, (set(&["a"]), set(&["a", "b"])), "nothing was told between");
        assert!(began.elapsed() >= 2 * AGAIN);
    }
}

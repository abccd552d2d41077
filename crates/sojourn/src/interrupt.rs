//! Commands that are interrupted: what they were doing in a store ends with them.

use block::{Error, Result};
use parking_lot::Mutex;
use std::process::ExitCode;
use std::time::Duration;
use store::{Store, sessions};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a store may take to hear of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The stores that this process has opened for a command.
static OPENED: Mutex<Vec<Store>> = Mutex::new(Vec::new());

/// Has the sessions on a store ended when the command is interrupted.
pub(crate) fn remember(store: &Store) {
    OPENED.lock().push(store.clone());
}

/// Carries out a command. Interrupted by SIGINT or SIGTERM, it is dropped where it stands, and its
/// sessions end, which would otherwise be in the way of collections for a day. The exit code is a shell's
/// then: 130 or 143.
///
/// # Errors
/// Any error from the command.
pub(crate) async fn unless_interrupted(work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    let hear = |kind| signal(kind).map_err(|e| Error::io("cannot hear signals", e));
    let (mut interrupt, mut end) = (hear(SignalKind::interrupt())?, hear(SignalKind::terminate())?);
    // In a scope of its own: what was under way is dropped before its sessions end.
    let code = {
        let heard = async |signal: &mut Signal, code| {
            signal.recv().await;
            code
        };
        tokio::select! {
            done = work => return done.map(|()| ExitCode::SUCCESS),
            code = heard(&mut interrupt, 130) => code,
            code = heard(&mut end, 143) => code,
        }
    };
    let stores: Vec<Store> = std::mem::take(&mut *OPENED.lock());
    let ended = async {
        for store in &stores {
            sessions::end_abandoned(store).await?;
        }
        Ok::<_, Error>(())
    };
    match tokio::time::timeout(PATIENCE, ended).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "a session stays in the store for a day"),
        Err(_) => tracing::warn!("the store does not answer: a session may stay in it for a day"),
    }
    Ok(ExitCode::from(code))
}

//! The state of a machine's devices: QEMU's migration stream, without the memory.

use crate::Monitor;
use crate::image::MAX_STATE;
use crate::launch::Launched;
use block::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

/// The socket that it goes through, in the directory of the machine.
const SOCKET: &str = "state.sock";
/// How often QEMU is asked how far it is.
const STEP: Duration = Duration::from_millis(5);
/// How long QEMU has to write or read the state. What it waits for its memory does not count when it reads.
const PATIENCE: Duration = Duration::from_secs(300);

/// Memory is a file that both sides have, and no part of the state.
async fn leave_memory_out(monitor: &Monitor) -> Result<()> {
    let capability = json!({"capabilities": [{"capability": "x-ignore-shared", "state": true}]});
    monitor.execute("migrate-set-capabilities", capability).await.map(drop)
}

/// The state of a machine's devices. The guest is stopped.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) with QEMU's reason when a device cannot be saved;
/// [`Unavailable`](ErrorKind::Unavailable) when QEMU does not finish.
pub(crate) async fn save(monitor: &Monitor, directory: &Path) -> Result<Vec<u8>> {
    let path = directory.join(SOCKET);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|e| Error::io(path.display(), e))?;
    leave_memory_out(monitor).await?;
    let no_limit = json!({"max-bandwidth": 1u64 << 40});
    monitor.execute("migrate-set-parameters", no_limit).await?;
    monitor.execute("migrate", json!({"uri": format!("unix:{}", path.display())})).await?;
    let receive = async {
        let (stream, _) = listener.accept().await.map_err(lost_state)?;
        let mut state = Vec::new();
        stream.take(MAX_STATE + 1).read_to_end(&mut state).await.map_err(lost_state)?;
        Ok(state)
    };
    let state = timeout(PATIENCE, async { tokio::try_join!(receive, migrated(monitor)) }).await;
    let _ = std::fs::remove_file(&path);
    let (state, ()) = state
        .map_err(|_| Error::unavailable("QEMU does not finish the state of its devices"))??;
    if state.len() as u64 > MAX_STATE {
        return Err(Error::unsupported(
            "the state of the machine's devices is too long; a device of it is not meant to be suspended",
        ));
    }
    Ok(state)
}

async fn migrated(monitor: &Monitor) -> Result<()> {
    loop {
        let answer = monitor.execute("query-migrate", Value::Null).await?;
        match answer["status"].as_str() {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => {
                let why = answer["error-desc"].as_str().unwrap_or("it does not say why").to_owned();
                return Err(Error::unsupported(format!(
                    "QEMU cannot save the state of its devices: {why}"
                )));
            }
            _ => sleep(STEP).await,
        }
    }
}

/// Gives QEMU the state of its devices.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) with QEMU's own words when it refuses the state, and ends.
pub(crate) async fn load(
    monitor: &Monitor,
    qemu: &mut Launched,
    directory: &Path,
    state: &[u8],
) -> Result<()> {
    let path = directory.join(SOCKET);
    let _ = std::fs::remove_file(&path);
    leave_memory_out(monitor).await?;
    monitor.execute("migrate-incoming", json!({"uri": format!("unix:{}", path.display())})).await?;
    let loaded = async {
        let mut stream = UnixStream::connect(&path).await.map_err(lost_state)?;
        stream.write_all(state).await.map_err(lost_state)?;
        stream.shutdown().await.map_err(lost_state)?;
        while monitor.status().await? == "inmigrate" {
            sleep(STEP).await;
        }
        Ok(())
    };
    let outcome = tokio::select! {
        loaded = monitor.patiently(PATIENCE, loaded) => {
            loaded.unwrap_or_else(|| Err(Error::unavailable("QEMU does not take the state of its devices")))
        }
        ended = qemu.ended() => Err(ended),
    };
    let _ = std::fs::remove_file(&path);
    match outcome {
        // When it refuses a state it says why and ends.
        Err(e) if e.kind() == ErrorKind::Unavailable => {
            let _ = timeout(Duration::from_secs(1), qemu.wait()).await;
            Err(e.context(format!("QEMU does not go on with the machine: {}", qemu.last_words())))
        }
        other => other,
    }
}

fn lost_state(e: std::io::Error) -> Error {
    Error::unavailable(format!("the state of the machine's devices was cut off: {e}"))
}

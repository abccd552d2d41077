//! What systemd wants to hear of a service of `Type=notify` (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How long a manager may take to read its other notices.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sends a state such as `READY=1` to the service manager, if there is one. A manager that does
/// not listen is no reason to stop.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.send_to_addr(state.as_bytes(), &address).map(drop)
    });
    if let Err(e) = sent {
        tracing::debug!(error = %e, "the service manager did not take a notice");
    }
}

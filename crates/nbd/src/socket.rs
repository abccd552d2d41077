//! Options of sockets, for both sides.

use rustix::net::sockopt;
use std::os::fd::AsFd;
use std::time::Duration;

/// Probes sent into silence before a peer counts as dead.
const PROBES: u32 = 3;

/// What a unix socket is asked to hold of what was sent and not taken yet, in bytes; the kernel grants
/// twice that at most, for its own bookkeeping.
const UNIX_SEND_BUFFER: usize = 256 << 10;

/// Gives a unix socket room for several long replies. It has room for one otherwise, and tells a waiting
/// sender of more only when three quarters are taken: sender and receiver would take turns.
///
/// A socket that refuses it works without it. TCP finds its own measure.
pub(crate) fn widen(socket: impl AsFd) {
    if let Err(error) = sockopt::set_socket_send_buffer_size(socket, UNIX_SEND_BUFFER) {
        tracing::debug!(%error, "a larger send buffer was refused");
    }
}

/// Sends small packets at once and notices a dead peer: after `keepalive` of silence it is probed,
/// and it is given up when probes, or sent data, stay unanswered for as long again.
///
/// A socket that refuses an option works without it.
pub(crate) fn tune(socket: impl AsFd, keepalive: Duration) {
    let socket = socket.as_fd();
    let idle = keepalive.max(Duration::from_secs(1));
    let between = (idle / PROBES).max(Duration::from_secs(1));
    let give_up = u32::try_from(idle.as_millis().saturating_mul(2)).unwrap_or(u32::MAX);
    let done = [
        sockopt::set_tcp_nodelay(socket, true),
        sockopt::set_socket_keepalive(socket, true),
        sockopt::set_tcp_keepidle(socket, idle),
        sockopt::set_tcp_keepintvl(socket, between),
        sockopt::set_tcp_keepcnt(socket, PROBES),
        sockopt::set_tcp_user_timeout(socket, give_up),
    ];
    for error in done.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "a TCP option was refused");
    }
}

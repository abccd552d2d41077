//! Which process a client on a unix socket is: its number goes to another one after it, soon after a restart of the
//! machine.

use block::offload;
use nbd::{Peer, Transport};
use std::fs;

/// What tells the process by whose number a client is known from all that have the number before it or after it.
/// `None` of a client that is known otherwise, such as who keeps a device, which another process goes on with, and
/// where the system does not tell.
pub(crate) async fn of(peer: &Peer) -> Option<String> {
    let Transport::Unix { pid: Some(pid), .. } = peer.transport else { return None };
    let (_, own) = peer.identity.rsplit_once('@').unwrap_or(("", &peer.identity));
    if own != format!("pid:{pid}") {
        return None;
    }
    offload(move || Ok(start(pid))).await.ok().flatten()
}

/// The run of the machine, and when in it the process began (`starttime` of proc_pid_stat(5), in ticks).
fn start(pid: i32) -> Option<String> {
    let run = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, behind_name) = stat.rsplit_once(')')?;
    let began = behind_name.split_whitespace().nth(19)?;
    Some(format!("{}/{began}", run.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    #[tokio::test]
    async fn a_process_is_the_same_one_as_long_as_it_runs_and_no_other() {
        let own = of(&Peer::unix(7, Some(id() as i32))).await.unwrap();
        assert!(own.bytes().all(|c| c.is_ascii_hexdigit() || matches!(c, b'-' | b'/')), "{own}");
        let certified = Peer::unix(7, Some(id() as i32)).certified("alice".to_owned());
        assert_eq!(of(&certified).await, Some(own.clone()));
        let first = of(&Peer::unix(7, Some(1))).await;
        assert!(first.is_some_and(|first| first != own), "it began before this one");
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert_eq!(of(&Peer::unix(7, Some(ended.id() as i32))).await, None);
        assert_eq!(of(&Peer::tcp(([127, 0, 0, 1], 9).into())).await, None);
    }
}

//! Which process a client on a unix socket is: its number goes to another one after it, soon after a restart of the
//! machine.

use block::offload;
use nbd::{Peer, Transport};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

/// The processes of clients, as the system shows them to this one.
#[derive(Debug, Default)]
pub(crate) struct ClientProcesses {
    /// Whether it was told that one is hidden.
    told: AtomicBool,
}

impl ClientProcesses {
    /// What tells the process by whose number a client is known from all that have the number before it or after it.
    /// `None` of a client that is known otherwise, such as who keeps a device, which another process goes on with, and
    /// where the system does not tell.
    pub(crate) async fn of(&self, peer: &Peer) -> Option<String> {
        let Transport::Unix { pid: Some(pid), .. } = peer.transport else { return None };
        let (_, own) = peer.identity.rsplit_once('@').unwrap_or(("", &peer.identity));
        if own != format!("pid:{pid}") {
            return None;
        }
        let seen = offload(move || Ok(start(pid))).await.ok().flatten();
        if seen.is_none() && runs(pid) && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                pid,
                "/proc does not show a client's process, as with systemd's ProtectProc= or the mount option hidepid: a \
                 disk that is kept for a client cannot be told from one for a later process with its number"
            );
        }
        seen
    }
}

/// Whether there is a process of this number, shown or not.
fn runs(pid: i32) -> bool {
    let pid = Pid::from_raw(pid);
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
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
        let processes = ClientProcesses::default();
        let own = processes.of(&Peer::unix(7, Some(id() as i32))).await.unwrap();
        assert!(own.bytes().all(|c| c.is_ascii_hexdigit() || matches!(c, b'-' | b'/')), "{own}");
        let certified = Peer::unix(7, Some(id() as i32)).certified("alice".to_owned());
        assert_eq!(processes.of(&certified).await, Some(own.clone()));
        let first = processes.of(&Peer::unix(7, Some(1))).await;
        assert!(first.is_some_and(|first| first != own), "it began before this one");
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert_eq!(processes.of(&Peer::unix(7, Some(ended.id() as i32))).await, None);
        assert!(runs(1) && runs(id() as i32) && !runs(ended.id() as i32));
        assert!(!processes.told.load(Ordering::Relaxed), "none of them is hidden");
        assert_eq!(processes.of(&Peer::tcp(([127, 0, 0, 1], 9).into())).await, None);
    }
}

//! The front ends beside NBD, whose clients do not go over to a successor but connect again.

use super::running::RunningServer;
use super::{iscsi, vhost_user};
use block::Error;

/// Those that are served.
pub(crate) struct Fronts {
    pub(crate) iscsi: Option<iscsi::Front>,
    pub(crate) vhost_user: Option<vhost_user::Front>,
    /// Those that could not be served again after a hand-over that failed.
    pub(crate) unserved: Unserved,
}

/// Which front ends are to be served, and are not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unserved {
    iscsi: bool,
    vhost_user: bool,
}

impl Fronts {
    /// Ends their sessions and listeners; what had to be cut off is in the log.
    pub(crate) async fn stop(&mut self, running: &RunningServer) {
        self.unserved = Unserved::default();
        let iscsi = async {
            match &mut self.iscsi {
                Some(front) => front.stop().await,
                None => Ok(()),
            }
        };
        let vhost_user = async {
            match &mut self.vhost_user {
                Some(front) => front.stop().await,
                None => Ok(()),
            }
        };
        let (iscsi, vhost_user) = tokio::join!(iscsi, vhost_user);
        if let Err(e) = iscsi {
            tracing::warn!(error = e.message(), "iSCSI sessions were cut off");
        }
        if let Err(e) = vhost_user {
            tracing::warn!(error = e.message(), "vhost-user connections were cut off");
        }
        self.tell(running);
    }

    /// Takes no new clients. Machines that are connected keep their disks; iSCSI sessions end, as their initiators
    /// would log in again, and are refused then.
    pub(crate) async fn drain(&mut self, running: &RunningServer) {
        self.unserved = Unserved::default();
        if let Some(front) = &self.vhost_user {
            front.close();
        }
        if let Some(front) = &mut self.iscsi
            && let Err(e) = front.stop().await
        {
            tracing::warn!(error = e.message(), "iSCSI sessions were cut off");
        }
        self.tell(running);
    }

    /// Waits until the last client has left a server that [drains](Self::drain).
    pub(crate) async fn ended(&mut self) {
        if let Some(front) = &mut self.vhost_user {
            front.ended().await;
        }
    }

    /// Serves again after a hand-over that failed. What cannot be served is tried again by [`retry`](Self::retry).
    pub(crate) async fn start_again(&mut self, running: &RunningServer) {
        let all = Unserved { iscsi: self.iscsi.is_some(), vhost_user: self.vhost_user.is_some() };
        self.unserved = all;
        self.serve_unserved(running, true).await;
    }

    /// Tries once more to serve what could not be served.
    pub(crate) async fn retry(&mut self, running: &RunningServer) {
        if self.unserved != Unserved::default() {
            self.serve_unserved(running, false).await;
        }
    }

    async fn serve_unserved(&mut self, running: &RunningServer, is_first: bool) {
        let tell = |what: &str, e: &Error| {
            if is_first {
                let what = format!("{what} is not served; it is tried again each second");
                tracing::error!(error = e.message(), "{what}");
            }
        };
        if let (true, Some(front)) = (self.unserved.iscsi, &mut self.iscsi) {
            let started = front.start().await.inspect_err(|e| tell("iSCSI", e));
            self.unserved.iscsi = started.is_err();
        }
        if let (true, Some(front)) = (self.unserved.vhost_user, &mut self.vhost_user) {
            let started = front.serve().await.inspect_err(|e| tell("vhost-user", e));
            self.unserved.vhost_user = started.is_err();
        }
        self.tell(running);
    }

    /// Has the status tell where they are.
    pub(crate) fn tell(&self, running: &RunningServer) {
        let mut places = running.places.lock();
        places.iscsi = self.iscsi.as_ref().map(iscsi::Front::addresses).unwrap_or_default();
        places.vhost_user = self.vhost_user.as_ref().map(|front| front.dir().display().to_string());
    }
}

//! Virtual machines of a server on another machine.

use super::{PATH, RemoteServer, encoded};
use crate::vm_verbs::VmRequest;
use block::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// The list of machines as the server sends it.
#[derive(Deserialize)]
struct VmViews<T> {
    vms: Vec<T>,
}

/// What a guest, or its keeper, said.
#[derive(Debug, Clone, Deserialize)]
pub struct VmLog {
    /// The end of it.
    pub text: String,
    /// Whether there was more before that.
    pub is_cut: bool,
}

impl RemoteServer {
    /// The virtual machines of the server's home and store that the token is for; with `elsewhere`, only those of the
    /// store that the home has not got.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when the token does not allow it;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached or goes away; else that of the
    /// server.
    pub async fn vms<T: DeserializeOwned>(&self, elsewhere: bool) -> Result<Vec<T>> {
        let list: VmViews<T> = self.get(&format!("{PATH}/vms?elsewhere={elsewhere}")).await?;
        Ok(list.vms)
    }

    /// One of these.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when the token does not allow it;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached or goes away; else that of the
    /// server.
    pub async fn vm<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.get(&format!("{PATH}/vms/{}", encoded(name))).await
    }

    /// What its guest wrote to its serial console; or what QEMU and its keeper said.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when the token does not allow it;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached or goes away; else that of the
    /// server.
    pub async fn vm_log(&self, name: &str, qemu: bool) -> Result<VmLog> {
        self.get(&format!("{PATH}/vms/{}/log?qemu={qemu}", encoded(name))).await
    }

    /// Has a verb on a virtual machine carried out; gives what the command prints as JSON there.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when the token does not allow it;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached or goes away; else that of the
    /// verb.
    pub async fn change_vm<T: DeserializeOwned>(&self, request: &VmRequest) -> Result<T> {
        let (verb, body) = match request {
            VmRequest::Create { name, disk, memory, cpus, cpu, screen } => {
                let body = json!({
                    "name": name, "disk": disk, "memory": memory, "cpus": cpus, "cpu": cpu, "screen": screen,
                });
                return self.post("/vms", body).await;
            }
            VmRequest::Remove { name, lost } => {
                return self.delete(&format!("/vms/{}?lost={lost}", encoded(name))).await;
            }
            VmRequest::Start { fresh, lost, .. } => {
                ("start", json!({ "fresh": fresh, "lost": lost }))
            }
            VmRequest::Suspend { wait, .. } => ("suspend", json!({ "wait": wait })),
            VmRequest::Resume { lost, no_fill, .. } => {
                ("resume", json!({ "lost": lost, "no_fill": no_fill }))
            }
            VmRequest::Checkpoint { .. } => ("checkpoint", json!({})),
            VmRequest::Rollback { lost, .. } => ("rollback", json!({ "lost": lost })),
            VmRequest::Discard { lost, .. } => ("discard", json!({ "lost": lost })),
            VmRequest::Clone { new, disk, keep_mac, .. } => {
                ("clone", json!({ "new": new, "disk": disk, "keep_mac": keep_mac }))
            }
            // A server of an earlier version does not know the second.
            VmRequest::Stop { force, sending: false, .. } => ("stop", json!({ "force": force })),
            VmRequest::Stop { sending, .. } => ("stop", json!({ "sending": sending })),
        };
        self.post(&format!("/vms/{}/{verb}", encoded(request.name())), body).await
    }
}

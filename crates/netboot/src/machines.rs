//! What the caller decides about machines.

use crate::identity::{BootRequest, Claim};
use crate::kernel::BootFile;
use crate::script::Script;
use async_trait::async_trait;
use block::Result;
use bytes::Bytes;

/// Whether a machine gets an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootDecision {
    /// It is not ours: nothing is sent.
    Ignore,
    /// It is to start from here.
    Boot,
}

/// Who decides what machines do.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Whether a machine that wants to boot is answered. Called for every request: it must not wait.
    fn judge(&self, machine: &Claim) -> BootDecision;

    /// What iPXE is to do on a machine; `None` when the machine is not to be answered. What goes
    /// wrong is a script, too, so that the machine's screen tells it.
    async fn script(&self, request: &BootRequest) -> Option<Script>;

    /// How many bytes of memory a [`file`](Self::file) takes at the most.
    ///
    /// # Errors
    /// The same.
    async fn length(&self, request: &BootRequest, which: BootFile) -> Result<u64>;

    /// A file that the script of a machine named.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when the machine is to have no such file, and those
    /// of its disk.
    async fn file(&self, request: &BootRequest, which: BootFile) -> Result<Bytes>;
}

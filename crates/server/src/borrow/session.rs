//! One borrowed disk in use, and what is done when it ends.

use super::place::BorrowedRoom;
use super::report::{CheckView, DownRequest, DownView, StateView, StatusView};
use block::{Device, Error, Result};
use std::sync::Arc;
use tokio::task::JoinSet;
use transient::State;

/// State that was copied in.
pub struct Carried {
    /// The state over the borrowed disk.
    pub state: Arc<State>,
    /// What people call it.
    pub source: String,
    /// Whether changes go back to where it came from.
    pub write_back: bool,
    /// Copies it in ahead of use; ends with this.
    pub ahead: JoinSet<()>,
}

/// A borrowed disk in use.
pub struct BorrowSession {
    /// The borrowed disk's name.
    pub name: String,
    /// The room it lies in.
    pub place: BorrowedRoom,
    /// The state that was copied in, if any was.
    pub carried: Option<Carried>,
}

impl BorrowSession {
    /// What users of the disk see.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match &self.carried {
            Some(carried) => Arc::clone(&carried.state) as _,
            None => Arc::clone(self.place.disk()) as _,
        }
    }

    /// How it is now.
    pub fn status(&self, address: String, users: u64) -> StatusView {
        StatusView {
            name: self.name.clone(),
            kind: "nbd".to_owned(),
            address,
            swap: None,
            pid: Some(std::process::id()),
            size: self.device().size(),
            written: Some(self.place.disk().written()),
            users,
            lent: self.place.lent(),
            state: self.carried.as_ref().map(|carried| {
                let (fetched, changed) = carried.state.progress();
                let (source, write_back) = (carried.source.clone(), carried.write_back);
                StateView { source, fetched, changed, write_back }
            }),
            given_back: self.place.given_back(),
        }
    }

    /// Writes back what was changed. The disk can still be used when that fails.
    ///
    /// # Errors
    /// Any error from the state's source.
    pub(crate) async fn write_back(&self, asked: &DownRequest) -> Result<u64> {
        match &self.carried {
            Some(carried) if carried.write_back && !asked.drop_changes => {
                carried.state.write_back(&|_| {}).await.map_err(|e| {
                    Error::new(
                        e.kind(),
                        format!(
                            "{e}; nothing is lost, {} stays up: try again, or give the changes up \
                             with `sojourn borrow down --drop-changes`",
                            self.name
                        ),
                    )
                })
            }
            _ => Ok(0),
        }
    }

    /// Ends it, when nobody uses it any more: the key is dropped, then the owner's disks are told
    /// and looked at again. An error of one step does not keep the others from being done.
    pub(crate) async fn end(self, asked: &DownRequest, written_back: u64) -> DownView {
        let Self { name, place, carried } = self;
        if let Some(mut carried) = carried {
            carried.ahead.shutdown().await;
        }
        let (discarded, checked) = place.end(asked.discard).await;
        DownView { name, written_back, discarded, checked }
    }
}

/// The error of owner's file systems that are not as they were.
pub fn complain(checked: &[CheckView]) -> Result<()> {
    match checked.iter().find(|check| !check.good) {
        None => Ok(()),
        Some(check) => Err(Error::corrupt(format!(
            "{} at {} on {} is not as it was ({}); check it with its own tool before it is used",
            check.kind,
            check.offset,
            check.disk,
            check.why.as_deref().unwrap_or("unknown")
        ))),
    }
}

//! Borrowed room: what the server has of it for its disks, and the borrowed disks of this home and this machine.

use super::kept::{KeptAnswer, ReadingTerms, timed};
use super::lists::json;
use crate::borrow::in_use::in_use;
use crate::borrow::report::StatusView;
use crate::borrow::shadow::BorrowedRoomView;
use crate::running::RunningServer;
use block::Result;
use bytes::Bytes;
use serde::Serialize;
use std::time::Duration;

/// Each answer asks a process for each borrowed disk, and the kernel.
const TERMS: ReadingTerms = ReadingTerms { least: Duration::from_secs(2), parts: 100 };

/// What is told of borrowed room.
#[derive(Debug, Default)]
pub(super) struct ToldBorrowing(KeptAnswer);

/// All of it.
#[derive(Debug, Serialize)]
struct BorrowedList {
    /// What the server has borrowed for the private blocks of its disks; null when nothing.
    room: Option<BorrowedRoomView>,
    /// Borrowed disks in use.
    disks: Vec<StatusView>,
}

impl ToldBorrowing {
    /// The list as JSON.
    ///
    /// # Errors
    /// Any error from the home's directory.
    pub(super) async fn get(&self, running: &RunningServer) -> Result<Bytes> {
        let read = async |_| timed(list(running)).await;
        self.0.get(0, TERMS, read).await
    }
}

async fn list(running: &RunningServer) -> Result<Bytes> {
    let room = running.borrowed.as_ref().and_then(|borrowed| borrowed.view());
    json(&BorrowedList { room, disks: in_use(&running.home).await? })
}

//! Boots: who boots now, and the storms that are kept. What goes on is looked at once for all who ask.

use super::kept::{KeptAnswer, ReadingTerms, timed};
use super::lists::json;
use crate::running::RunningServer;
use block::Result;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// So many boots are told of those that go on.
const MOST: usize = 200;
/// They are looked at once a second, and what is told is hardly older, also on a busy server.
const TERMS: ReadingTerms = ReadingTerms { least: Duration::from_millis(500), parts: 5 };

/// What is told of boots.
#[derive(Debug, Default)]
pub(super) struct ToldBoots {
    now: KeptAnswer,
    /// One recording is written at a time: it may have some megabytes.
    writing: tokio::sync::Mutex<()>,
}

impl ToldBoots {
    /// [`BootsView`](engine::boots::storms::views::BootsView) as JSON.
    ///
    /// # Errors
    /// None that the server meets.
    pub(super) async fn now(&self, running: &Arc<RunningServer>) -> Result<Bytes> {
        let boots = Arc::clone(&running.boots);
        let look = async |_| timed(block::offload(move || json(&boots.now(MOST)))).await;
        self.now.get(0, TERMS, look).await
    }

    /// [`StormView`](engine::boots::storms::views::StormView) as JSON.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when the storm is not kept.
    pub(super) async fn storm(&self, running: &RunningServer, number: u64) -> Result<Bytes> {
        let _turn = self.writing.lock().await;
        let boots = Arc::clone(&running.boots);
        block::offload(move || json(&boots.storm(number)?)).await
    }
}

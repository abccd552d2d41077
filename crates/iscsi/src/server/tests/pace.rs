//! Sessions that their client's limits hold back.

use super::rig::{Initiator, READY, Rig, read};
use async_trait::async_trait;
use block::{Error, Result};
use nbd::server::{ExportSummary, Exports, Peer, Purpose, Rates, Server, ServerLimits, Session};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A server by NBD that offers nothing: it keeps the clients' limits.
struct Nothing;

#[async_trait]
impl Exports for Nothing {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(Vec::new())
    }

    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        Err(Error::not_found(name))
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_raised_reaches_a_session_that_is_held_back() {
    let limits = |bytes| ServerLimits {
        client_rates: Rates { requests: 0, bytes },
        ..ServerLimits::default()
    };
    let clients = Server::new(Arc::new(Nothing), limits(1));
    let rig = Rig::paced(clients.pace(&Peer::stdio())).await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &[]).await;
    // It takes eight minutes until the next one may follow.
    assert_eq!(initiator.ask(read(0, 1), 512, &[]).await.status(), 0);
    let held = initiator.begin(READY, 0, &[]).await;
    let ping = initiator.ping().await;
    assert_eq!(initiator.receive().await.expect("an answer").tag(), ping);
    let raised = Instant::now();
    clients.set_limits(limits(0));
    assert_eq!(initiator.receive().await.expect("an answer").tag(), held);
    assert!(raised.elapsed() < Duration::from_secs(2), "after {:?}", raised.elapsed());
}

//! What all connections of a server share.

use super::attachments::Attachments;
use super::complaints::Complaints;
use super::limits::ServerLimits;
use super::negotiations::Negotiations;
use crate::server::counters::registry::CounterRegistry;
use crate::server::exports::Exports;
use crate::server::schedule::budget::Budget;
use crate::server::schedule::busy_poll::Processors;
use crate::server::schedule::order::LightCounts;
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinError;

/// The state of a server.
pub(in crate::server) struct ServerState {
    pub(in crate::server) exports: Arc<dyn Exports>,
    /// Each connection keeps those it began with.
    limits: Mutex<Arc<ServerLimits>>,
    pub(in crate::server) registry: CounterRegistry,
    pub(in crate::server) budget: Arc<Budget>,
    pub(in crate::server) processors: Processors,
    /// Who waits for a turn.
    pub(in crate::server) light: LightCounts,
    pub(in crate::server) negotiations: Negotiations,
    pub(in crate::server) attachments: Arc<Attachments>,
    pub(in crate::server) complaints: Complaints,
    /// The clients that have a connection.
    callers: Mutex<HashMap<String, ConnectedClient>>,
}

/// A client that has a connection.
pub(super) struct ConnectedClient {
    pub(super) connections: usize,
    /// What all of them may hold.
    pub(super) part: Arc<Budget>,
}

impl ServerState {
    pub(in crate::server) fn new(exports: Arc<dyn Exports>, limits: ServerLimits) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            exports,
            registry: CounterRegistry::new(limits.client_rates),
            budget: Budget::new(limits.budget()),
            limits: Mutex::new(Arc::new(limits)),
            processors: Processors::new(processors),
            light: LightCounts::default(),
            negotiations: Negotiations::default(),
            attachments: Arc::default(),
            complaints: Complaints::default(),
            callers: Mutex::default(),
        }
    }

    /// The limits of a connection that begins now.
    pub(in crate::server) fn limits(&self) -> Arc<ServerLimits> {
        Arc::clone(&lock(&self.limits))
    }

    /// Changes the limits: rates and budgets of all clients at once, the rest for new connections.
    pub(in crate::server) fn set_limits(&self, limits: ServerLimits) {
        self.budget.resize(limits.budget());
        self.registry.set_rates(limits.client_rates);
        let part = limits.client_budget();
        *lock(&self.limits) = Arc::new(limits);
        self.callers().values().for_each(|caller| caller.part.resize(part));
    }

    pub(super) fn callers(&self) -> MutexGuard<'_, HashMap<String, ConnectedClient>> {
        lock(&self.callers)
    }

    /// Counts a connection that was lost by a fault of the program.
    pub(in crate::server) fn note_panic(&self, ended: &Result<(), JoinError>) {
        if ended.as_ref().is_err_and(JoinError::is_panic) {
            self.registry.panics.fetch_add(1, Relaxed);
            tracing::error!("a connection was lost by a fault of the program");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

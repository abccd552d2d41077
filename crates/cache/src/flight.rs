//! Loads under way: any number of callers that miss the same key at the same time share one.

use crate::key::Key;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// One load. The first caller runs it; when that caller goes away before it is done, another one
/// takes over. How it ended goes to all who wait.
pub(crate) type Flight = OnceCell<FlightOutcome>;

/// How a load ended.
#[derive(Debug, Clone)]
pub(crate) enum FlightOutcome {
    Loaded(Bytes),
    /// What everybody but the caller who ran the load is told; an [`Error`] has one owner.
    Failed(ErrorKind, Arc<str>),
}

impl FlightOutcome {
    pub(crate) fn to_result(&self) -> Result<Bytes> {
        match self {
            Self::Loaded(value) => Ok(value.clone()),
            Self::Failed(kind, message) => Err(Error::new(*kind, &**message)),
        }
    }
}

/// Loads by key.
#[derive(Debug, Default)]
pub(crate) struct Flights(HashMap<Key, SharedFlight>);

#[derive(Debug)]
struct SharedFlight {
    flight: Arc<Flight>,
    callers: usize,
}

impl Flights {
    /// Joins the load of `key`, or starts one. Each caller ends with [`leave`](Self::leave).
    pub(crate) fn join(&mut self, key: &Key) -> Arc<Flight> {
        let boarding = self
            .0
            .entry(*key)
            .or_insert_with(|| SharedFlight { flight: Arc::default(), callers: 0 });
        boarding.callers += 1;
        Arc::clone(&boarding.flight)
    }

    /// The load is done: who comes from now on starts anew.
    pub(crate) fn land(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// A caller ends, served or not. A load that nobody wants any more is dropped.
    pub(crate) fn leave(&mut self, key: &Key, flight: &Arc<Flight>) {
        let Some(boarding) = self.0.get_mut(key) else { return };
        if !Arc::ptr_eq(&boarding.flight, flight) {
            return; // it landed, and this is a later one
        }
        boarding.callers -= 1;
        if boarding.callers == 0 {
            self.0.remove(key);
        }
    }

    /// The number of loads under way.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A caller of a load, from joining to leaving, also when it is cancelled.
pub(crate) struct LoadCaller<'a> {
    flights: &'a Mutex<Flights>,
    key: &'a Key,
    flight: Arc<Flight>,
}

impl<'a> LoadCaller<'a> {
    /// Joins the load of `key` among `flights`, whose lock the caller holds.
    pub(crate) fn join(flights: &'a Mutex<Flights>, held: &mut Flights, key: &'a Key) -> Self {
        Self { flights, key, flight: held.join(key) }
    }

    /// The load.
    pub(crate) fn flight(&self) -> &Flight {
        &self.flight
    }
}

impl Drop for LoadCaller<'_> {
    fn drop(&mut self) {
        self.flights.lock().leave(self.key, &self.flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_everybody_left_is_forgotten() {
        let mut flights = Flights::default();
        let key = [1; 32];
        let (first, second) = (flights.join(&key), flights.join(&key));
        flights.leave(&key, &first);
        assert_eq!(flights.len(), 1);
        flights.leave(&key, &second);
        assert_eq!(flights.len(), 0);
    }

    #[test]
    fn who_leaves_a_landed_load_does_not_disturb_the_next() {
        let mut flights = Flights::default();
        let key = [1; 32];
        let old = flights.join(&key);
        flights.land(&key);
        let new = flights.join(&key);
        flights.leave(&key, &old);
        assert!(Arc::ptr_eq(&flights.join(&key), &new));
    }
}

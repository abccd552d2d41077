//! How many connections each client has. One that could take all that there are would keep others out: one half is
//! for those that have less than a quarter, and a quarter of it is what logins may take ([`super::logins`]).

use parking_lot::Mutex;
use std::collections::HashMap;

/// The connections of each client that has logged in.
#[derive(Debug)]
pub(super) struct ClientPlaces {
    /// How many one client may have; 0 is no limit.
    most: usize,
    /// How many there are.
    all: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    all: usize,
    clients: HashMap<String, usize>,
}

impl ClientPlaces {
    pub(super) fn new(most: usize, all: usize) -> Self {
        Self { most, all, taken: Mutex::default() }
    }

    /// A place for a connection of `client`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn take(&self, client: String) -> Result<ClientPlace<'_>, String> {
        let mut taken = self.taken.lock();
        let connections = taken.clients.get(&client).copied().unwrap_or(0);
        let most = self.most;
        if most > 0 && connections >= most {
            return Err(format!(
                "more than {most} connections of one client: close some, or raise client_connections"
            ));
        }
        let (all, share) = (self.all, self.all / 4);
        if connections >= share.max(1) && taken.all >= all - 2 * share {
            return Err(format!(
                "this client has {connections} of {all} connections, and the rest are for others: close some, or \
                 raise limits.connections"
            ));
        }
        taken.all += 1;
        *taken.clients.entry(client.clone()).or_default() += 1;
        Ok(ClientPlace { places: self, client })
    }
}

/// A connection's place among those of its client; free again when it is dropped.
#[derive(Debug)]
pub(super) struct ClientPlace<'a> {
    places: &'a ClientPlaces,
    client: String,
}

impl Drop for ClientPlace<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        if let Some(connections) = taken.clients.get_mut(&self.client) {
            *connections -= 1;
            if *connections == 0 {
                taken.clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_all_it_can_get_leaves_half_to_others() {
        let places = ClientPlaces::new(0, 40);
        let take = |client: &str| places.take(client.to_owned());
        let mut held: Vec<_> = (0..20).map(|_| take("greedy").unwrap()).collect();
        assert!(take("greedy").unwrap_err().contains("has 20 of 40"));
        held.extend((0..10).map(|_| take("other").unwrap()));
        assert!(take("other").is_err());
        held.drain(..2);
        assert!(take("greedy").is_err(), "what is free is for others");
        held.push(take("third").unwrap());
        drop(held);
        assert_eq!(places.taken.lock().all, 0);
        assert!(take("greedy").is_ok());
    }

    #[test]
    fn one_client_has_no_more_connections_than_it_may() {
        let places = ClientPlaces::new(2, 40);
        let _held = [places.take("one".into()).unwrap(), places.take("one".into()).unwrap()];
        assert!(places.take("one".into()).unwrap_err().contains("client_connections"));
        assert!(places.take("other".into()).is_ok());
    }
}

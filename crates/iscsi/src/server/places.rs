//! How many connections each client has: one that takes all that there are keeps others out.

use parking_lot::Mutex;
use std::collections::HashMap;

/// The connections of each client that has logged in.
#[derive(Debug)]
pub(super) struct ClientPlaces {
    /// How many one client may have; 0 is no limit.
    most: usize,
    clients: Mutex<HashMap<String, usize>>,
}

impl ClientPlaces {
    pub(super) fn new(most: usize) -> Self {
        Self { most, clients: Mutex::default() }
    }

    /// A place for a connection of `client`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn take(&self, client: String) -> Result<ClientPlace<'_>, String> {
        let mut clients = self.clients.lock();
        let connections = clients.entry(client.clone()).or_default();
        if self.most > 0 && *connections >= self.most {
            let most = self.most;
            return Err(format!(
                "more than {most} connections of one client: close some, or raise client_connections"
            ));
        }
        *connections += 1;
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
        let mut clients = self.places.clients.lock();
        if let Some(connections) = clients.get_mut(&self.client) {
            *connections -= 1;
            if *connections == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

//! The exact solution of a network, by whichever algorithm its centres allow.

use crate::network::{CentreKind, MOST_CLIENTS, MOST_CLIENTS_SERVERS, Network, Solution};
use crate::{convolution, mva};
use block::{Error, Result};

impl Network {
    /// The exact solution for `clients`.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for no client at all, beyond [`MOST_CLIENTS`], or beyond
    /// [`MOST_CLIENTS_SERVERS`] when a centre has several servers.
    pub fn solve(&self, clients: u32) -> Result<Solution> {
        let mut all = self.sweep(clients)?;
        all.pop().ok_or_else(|| Error::invalid("a network without clients: give 1 or more"))
    }

    /// The exact solutions for 1, 2, … `most` clients.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) beyond [`MOST_CLIENTS`], or
    /// [`MOST_CLIENTS_SERVERS`] when a centre has several servers.
    pub fn sweep(&self, most: u32) -> Result<Vec<Solution>> {
        let several = self.centres().iter().any(|c| matches!(c.kind, CentreKind::Servers(_)));
        let limit = if several { MOST_CLIENTS_SERVERS } else { MOST_CLIENTS };
        if most > limit {
            return Err(Error::invalid(format!(
                "{most} clients: the exact solution of this network goes to {limit}"
            )));
        }
        if several { convolution::sweep(self, most) } else { Ok(mva::sweep(self, most)) }
    }
}

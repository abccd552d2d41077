//! Asymptotes (Lazowska, Zahorjan, Graham, Sevcik, "Quantitative System Performance", 1984,
//! chapter 5): what no number of clients can exceed, and the knee where they meet.

use crate::network::Network;

/// The asymptotes of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The index of the centre with the highest demand for each server: the bottleneck. `None`
    /// when all centres are delays.
    pub bottleneck: Option<usize>,
    /// That demand, in seconds; 0 when all centres are delays.
    pub highest: f64,
    /// All demands together, delays included: the response of a lone client, in seconds.
    pub total: f64,
    /// The think time, in seconds.
    pub think: f64,
}

impl Network {
    /// Its asymptotes.
    pub fn bounds(&self) -> Bounds {
        let loads = self.centres().iter().map(|centre| centre.load()).enumerate();
        let highest = loads.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, load)| *load > 0.0);
        Bounds {
            bottleneck: highest.map(|(index, _)| index),
            highest: highest.map_or(0.0, |(_, load)| load),
            total: self.centres().iter().map(|centre| centre.demand).sum(),
            think: self.think(),
        }
    }
}

impl Bounds {
    /// The throughput that `clients` cannot exceed.
    pub fn throughput(&self, clients: u32) -> f64 {
        let unhindered = f64::from(clients) / (self.total + self.think);
        if self.highest > 0.0 { unhindered.min(1.0 / self.highest) } else { unhindered }
    }

    /// The response time that `clients` cannot fall below, in seconds.
    pub fn response(&self, clients: u32) -> f64 {
        self.total.max(f64::from(clients) * self.highest - self.think)
    }

    /// The number of clients where the asymptotes meet: with fewer, they mostly do not wait for
    /// each other; with more, each further one only lengthens the queue at the bottleneck. `None`
    /// when all centres are delays.
    pub fn knee(&self) -> Option<f64> {
        (self.highest > 0.0).then(|| (self.total + self.think) / self.highest)
    }
}

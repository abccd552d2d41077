//! Exact mean value analysis (M. Reiser, S. Lavenberg, "Mean-value analysis of closed multichain
//! queuing networks", JACM 1980): a client that arrives sees the queues of the network with one
//! client less. Each step follows from the one before, without a subtraction, so that nothing is
//! lost however many clients there are.

use crate::network::{CentreKind, CentreUse, Network, Solution};

/// Solutions for 1 to `most` clients; every centre is a queue or a delay.
pub(crate) fn sweep(network: &Network, most: u32) -> Vec<Solution> {
    let mut queues = vec![0.0; network.centres().len()];
    let mut all = Vec::with_capacity(most as usize);
    for clients in 1..=most {
        let residences: Vec<f64> = network
            .centres()
            .iter()
            .zip(&queues)
            .map(|(centre, queue)| match centre.kind {
                CentreKind::Delay => centre.demand,
                _ => centre.demand * (1.0 + queue),
            })
            .collect();
        let response: f64 = residences.iter().sum();
        let throughput = f64::from(clients) / (network.think() + response);
        for (queue, residence) in queues.iter_mut().zip(&residences) {
            *queue = throughput * residence;
        }
        let centres =
            network.centres().iter().zip(&residences).map(|(centre, residence)| CentreUse {
                residence: *residence,
                queue: throughput * residence,
                utilisation: throughput * centre.demand,
            });
        all.push(Solution { clients, throughput, response, centres: centres.collect() });
    }
    all
}

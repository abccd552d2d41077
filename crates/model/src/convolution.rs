//! The exact solution with centres of several servers, by convolution (J. Buzen, "Computational
//! algorithms for closed queueing networks with exponential servers", CACM 1973).
//!
//! Mean value analysis with several servers subtracts nearly equal numbers and loses everything
//! near saturation. Here only positive numbers are multiplied and added. A centre is the vector of
//! its weights for 0, 1, 2, … clients; a network is the convolution of its centres. To stay in the
//! range of floating point, demands are multiplied by a rate near the throughput (which changes no
//! ratio), and every vector is scaled to a maximum of 1.
//!
//! From as many clients on as a centre has servers its weights are a geometric series. Convolving
//! with a series is one multiplication and one addition for each number of clients (for a single
//! server that is Buzen's own recursion), so that n clients take time in proportion to n times the
//! servers. Delays are one centre together, with which the product begins.

use crate::network::{Centre, CentreKind, CentreUse, Network, Solution};
use block::{Error, Result};

/// Up to so many clients one pass is enough: the smallest number in it is above e^-600.
const ONE_PASS: usize = 512;

/// Solutions for 1 to `most` clients.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) when the numbers leave the range of floating
/// point.
pub(crate) fn sweep(network: &Network, most: u32) -> Result<Vec<Solution>> {
    let mut all = Vec::with_capacity(most as usize);
    let mut to = most as usize;
    while to > 0 {
        let from = if to <= ONE_PASS { 0 } else { to / 2 };
        let mut part = pass(network, from, to)?;
        part.reverse();
        all.append(&mut part);
        to = from;
    }
    all.reverse();
    Ok(all)
}

/// Solutions for `from + 1` to `to` clients.
fn pass(network: &Network, from: usize, to: usize) -> Result<Vec<Solution>> {
    let rate = network.bounds().throughput(to as u32);
    let centres = network.centres();
    let delays = centres.iter().filter(|c| c.kind == CentreKind::Delay).map(|c| c.demand);
    let delay = weights((delays.sum::<f64>() + network.think()) * rate, None, to);
    let factors: Vec<Option<Factor>> =
        centres.iter().map(|centre| Factor::new(centre, rate, to)).collect();
    let queues: Vec<Option<Vec<f64>>> = (0..centres.len())
        .map(|k| {
            let factor = factors[k].as_ref()?;
            let others = factors.iter().enumerate().filter(|(other, _)| *other != k);
            let others = others.filter_map(|(_, other)| other.as_ref());
            Some(factor.mean_queues(&others.fold(delay.clone(), |all, one| one.convolve(&all))))
        })
        .collect();
    let whole = factors.iter().flatten().fold(delay, |all, one| one.convolve(&all));

    (from + 1..=to)
        .map(|clients| {
            let throughput = rate * whole[clients - 1] / whole[clients];
            if !throughput.is_normal() {
                return Err(Error::unsupported(format!(
                    "{clients} clients with these demands leave the range of floating point: \
                     replace centres of several servers by queues, or take fewer clients"
                )));
            }
            let mut uses = Vec::with_capacity(centres.len());
            for (k, centre) in centres.iter().enumerate() {
                let queue = match &queues[k] {
                    Some(queues) => queues[clients],
                    None => throughput * centre.demand,
                };
                let servers = centre.kind.servers().unwrap_or(1);
                uses.push(CentreUse {
                    residence: queue / throughput,
                    queue,
                    utilisation: throughput * centre.demand / f64::from(servers),
                });
            }
            let response = uses.iter().map(|one| one.residence).sum();
            Ok(Solution { clients: clients as u32, throughput, response, centres: uses })
        })
        .collect()
}

/// A centre where clients queue.
struct Factor {
    /// Its weights for 0, 1, 2, … clients.
    weights: Vec<f64>,
    servers: usize,
    /// What the weights are multiplied by from one client to the next when all servers are busy.
    step: f64,
}

impl Factor {
    /// The factor of a centre, none for a delay.
    fn new(centre: &Centre, rate: f64, to: usize) -> Option<Self> {
        let servers = match centre.kind {
            CentreKind::Delay => return None,
            CentreKind::Queue => 1,
            CentreKind::Servers(count) => count,
        };
        let demand = centre.demand * rate;
        let weights = weights(demand, Some(servers), to);
        Some(Self { weights, servers: servers as usize, step: demand / f64::from(servers) })
    }

    /// The weights below as many clients as there are servers, each with its number.
    fn idle(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.weights.iter().copied().take(self.servers).enumerate()
    }

    /// The weight of as many clients as there are servers, times that of the others at `n`.
    fn entering(&self, others: &[f64], n: usize) -> f64 {
        match n.checked_sub(self.servers) {
            Some(rest) => self.weights[self.servers] * others[rest],
            None => 0.0,
        }
    }

    /// The weights of this centre and the others together.
    fn convolve(&self, others: &[f64]) -> Vec<f64> {
        let mut busy = 0.0;
        let sums = (0..others.len()).map(|n| {
            busy = self.entering(others, n) + self.step * busy;
            self.idle().take(n + 1).map(|(here, weight)| weight * others[n - here]).sum::<f64>()
                + busy
        });
        let mut all: Vec<f64> = sums.collect();
        let most = all.iter().copied().fold(0.0, f64::max);
        if most > 0.0 {
            all.iter_mut().for_each(|x| *x /= most);
        }
        all
    }

    /// The mean number of clients here when there are 0, 1, 2, … in all.
    fn mean_queues(&self, others: &[f64]) -> Vec<f64> {
        let (mut busy, mut weighted) = (0.0, 0.0);
        let queues = (0..others.len()).map(|n| {
            let entering = self.entering(others, n);
            weighted = entering * self.servers as f64 + self.step * (weighted + busy);
            busy = entering + self.step * busy;
            let (mut sum, mut mean) = (busy, weighted);
            for (here, weight) in self.idle().take(n + 1) {
                let weight = weight * others[n - here];
                sum += weight;
                mean += weight * here as f64;
            }
            if sum > 0.0 { mean / sum } else { 0.0 }
        });
        queues.collect()
    }
}

/// The weights of a centre for 0 to `to` clients: each is the one before times the demand, divided
/// by the servers that are busy. Built from the largest one outwards.
fn weights(demand: f64, servers: Option<u32>, to: usize) -> Vec<f64> {
    let step = |clients: usize| {
        let busy = servers.map_or(clients, |servers| clients.min(servers as usize));
        demand / busy as f64
    };
    // Steps fall from one client to the next, so that the largest weight is where they pass 1.
    let peak = (1..=to).take_while(|clients| step(*clients) >= 1.0).count();
    let mut weights = vec![0.0; to + 1];
    weights[peak] = 1.0;
    for clients in peak + 1..=to {
        weights[clients] = weights[clients - 1] * step(clients);
    }
    for clients in (0..peak).rev() {
        weights[clients] = weights[clients + 1] / step(clients + 1);
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mva;
    use crate::network::{Centre, CentreKind};
    use proptest::prelude::*;

    fn network(think: f64, demands: &[(f64, CentreKind)]) -> Network {
        let centres = demands.iter().enumerate().map(|(i, (demand, kind))| Centre {
            name: i.to_string(),
            kind: *kind,
            demand: *demand,
        });
        Network::new(think, centres.collect()).unwrap()
    }

    fn same(a: f64, b: f64, tolerance: f64) -> bool {
        (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1e-30)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_agrees_with_mean_value_analysis_to_1e_12(
            demands in proptest::collection::vec((1e-6f64..1.0, any::<bool>()), 1..6),
            think in prop_oneof![Just(0.0), 1e-3f64..100.0],
            clients in 1u32..200,
        ) {
            let demands: Vec<_> = demands
                .into_iter()
                .map(|(demand, delay)| (demand, if delay { CentreKind::Delay } else { CentreKind::Queue }))
                .collect();
            let network = network(think, &demands);
            let (a, b) = (mva::sweep(&network, clients), sweep(&network, clients).unwrap());
            prop_assert_eq!(a.len(), b.len());
            for (a, b) in a.iter().zip(&b) {
                prop_assert_eq!(a.clients, b.clients);
                prop_assert!(same(a.throughput, b.throughput, 1e-12), "{:?} {:?}", a, b);
                prop_assert!(same(a.response, b.response, 1e-12), "{:?} {:?}", a, b);
                for (a, b) in a.centres.iter().zip(&b.centres) {
                    prop_assert!(same(a.queue, b.queue, 1e-12), "{:?} {:?}", a, b);
                    prop_assert!(same(a.utilisation, b.utilisation, 1e-12));
                }
            }
        }

        /// The machine-repair model: one centre of m servers and a think time. Erlang's formulas
        /// give its throughput in closed form.
        #[test]
        fn one_centre_of_several_servers_is_the_machine_repair_model(
            demand in 0.01f64..1.0, think in 0.01f64..10.0, servers in 2u32..9, clients in 1u32..60,
        ) {
            let network = network(think, &[(demand, CentreKind::Servers(servers))]);
            let got = network.solve(clients).unwrap();
            // p(n) ~ C(N, n) n!/prod min(i, m) (demand/think)^n
            let mut weight = 1.0;
            let (mut sum, mut busy) = (1.0, 0.0);
            for n in 1..=clients {
                let served = f64::from(n.min(servers));
                weight *= f64::from(clients - n + 1) * demand / think / served;
                sum += weight;
                busy += weight * served;
            }
            let throughput = busy / sum / demand;
            prop_assert!(same(got.throughput, throughput, 1e-10), "{} {}", got.throughput, throughput);
            prop_assert!(same(got.centres[0].utilisation, busy / sum / f64::from(servers), 1e-10));
        }
    }

    #[test]
    fn thousands_of_clients_stay_in_range_and_saturate() {
        for think in [0.0, 1.0, 1000.0] {
            let network =
                network(think, &[(0.004, CentreKind::Servers(4)), (0.0007, CentreKind::Queue)]);
            let all = network.sweep(4096).unwrap();
            assert_eq!(all.len(), 4096);
            assert!(all.windows(2).all(|w| w[1].throughput >= w[0].throughput * (1.0 - 1e-12)));
            for one in &all {
                let cycle = f64::from(one.clients) / one.throughput;
                assert!(same(cycle, think + one.response, 1e-9), "Little's law at {}", one.clients);
            }
        }
        let saturated =
            network(0.0, &[(0.004, CentreKind::Servers(4)), (0.0007, CentreKind::Queue)]);
        let last = saturated.solve(4096).unwrap();
        assert!(same(last.throughput, 1000.0, 1e-9), "{}", last.throughput);
    }

    #[test]
    fn more_clients_than_can_be_computed_are_refused() {
        let network = network(0.0, &[(0.1, CentreKind::Servers(2))]);
        assert!(network.solve(4097).unwrap_err().message().contains("4096"));
        assert!(network.solve(0).is_err());
    }
}

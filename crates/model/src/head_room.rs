//! Head-room: how many more clients like the present ones a running server holds, from what it
//! counts while it serves.
//!
//! The demands are measured in the interval that is looked at, not fitted to a load of our own:
//!
//! - the processor's by the utilisation law: busy time for each answer;
//! - the backend's from how the time of a read grows with the reads that were under way when it
//!   began. The reads under way are a network of their own, of a queue and a delay, and whoever comes
//!   to n of them finds it as it is with n customers for ever (P. Norton's theorem for queues: Chandy,
//!   Herzog, Woo, "Parametric analysis of queuing networks", IBM JRD 1975; the arrival theorem: Reiser
//!   and Lavenberg, JACM 1980). Who comes while one is served waits for the rest of its service, which
//!   depends on how much services vary (Reiser, "A queueing network analysis of computer communication
//!   networks with window flow control", IEEE Trans. Comm. 1979): half of it where all are alike, all of it
//!   where they are exponential. So the queue, how much it varies and the delay are those whose solution
//!   meets the times best. Where reads never met, all of it is taken for the queue's: the answer is then on the
//!   safe side;
//! - what requests take beyond that, for reasons nobody counts, is a delay.
//!
//! A client is away from the server for what Little's law leaves of its time.
//!
//! Up to 4,096 clients, or requests under way where a client has several, the network is solved exactly; beyond, about (`approximate`).

use crate::approximate;
use crate::network::{Centre, CentreKind, MOST_SERVERS, Network, Solution};
use block::{Error, Result};

/// Requests that are needed for an answer.
pub const ENOUGH_REQUESTS: u64 = 1000;
/// Reads that have to meet others to tell a queue from a delay.
const ENOUGH_MET: u64 = 100;
/// Customers that are looked at: each request under way is one.
const MOST: u32 = 1 << 24;
/// Up to so many exactly.
const EXACT: u32 = 4096;

/// Numbers of reads under way that are told apart.
pub const DEPTHS: usize = 32;

/// Reads of the backend, by how many others were under way when each began; the last place is for
/// all that are more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reads(pub [ReadTimes; DEPTHS]);

/// Reads that began with the same number of others under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadTimes {
    /// How many.
    pub count: u64,
    /// The sum of their times, in seconds.
    pub seconds: f64,
}

impl Reads {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|read| read.count).sum()
    }

    fn seconds(&self) -> f64 {
        self.0.iter().map(|read| read.seconds).sum()
    }
}

/// What was seen of a server in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerInterval {
    /// The interval, in seconds.
    pub seconds: f64,
    /// Clients that asked anything.
    pub clients: u32,
    /// Requests answered.
    pub requests: u64,
    /// The sum of the times that they took in the server, in seconds.
    pub response_seconds: f64,
    /// Processor time of the server, in seconds.
    pub cpu_seconds: f64,
    /// Processors that it may use.
    pub cpus: u32,
    /// Reads of the backend.
    pub reads: Reads,
}

/// How far a server may be driven.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperatingLimits {
    /// The share of its time that the busiest centre may be busy, 0 to 1.
    pub utilisation: f64,
    /// The mean time in the server that is bearable, in seconds; none: any.
    pub response: Option<f64>,
}

/// Why there cannot be more clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A centre would be busier than wanted.
    Utilisation,
    /// The response would be longer than wanted.
    Response,
    /// There may be more: that is as far as was looked.
    None,
}

/// How many more clients a server holds.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadRoom {
    /// Clients more than now; 0 when there are too many already.
    pub more: u32,
    /// What ends it.
    pub limit: Limit,
    /// The centre that is busiest then: `cpu` or `backend`.
    pub bottleneck: String,
    /// The mean time in the server with so many more, in seconds.
    pub response: f64,
    /// Shares of their time that `cpu` and `backend` are busy now.
    pub busy: (f64, f64),
    /// Processor time for each request, in seconds.
    pub cpu: f64,
    /// A read's time of service, one after the other, and its delay, in seconds.
    pub read: (f64, f64),
}

/// How many more clients like those that were seen a server holds. `None` when too little was asked
/// of it to tell.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the figures contradict each other.
pub fn head_room(seen: &ServerInterval, limits: OperatingLimits) -> Result<Option<HeadRoom>> {
    if seen.requests < ENOUGH_REQUESTS || seen.clients == 0 || seen.cpu_seconds <= 0.0 {
        return Ok(None);
    }
    let all = [seen.seconds, seen.response_seconds, seen.cpu_seconds, seen.reads.seconds()];
    if !all.iter().all(|value| value.is_finite() && *value >= 0.0) || seen.seconds <= 0.0 {
        return Err(Error::invalid("an interval or times that are no times"));
    }
    let requests = seen.requests as f64;
    let rate = requests / seen.seconds;
    let response = seen.response_seconds / requests;
    let (service, delay) = queue_and_delay(&seen.reads);
    let visits = seen.reads.count() as f64 / requests;
    let cpu = seen.cpu_seconds / requests;

    // Little's law: those in the server and those away from it are all. Clients that have several
    // requests under way count as several customers.
    let inside = rate * response;
    let each = (inside / f64::from(seen.clients)).max(1.0);
    let customers = f64::from(seen.clients) * each;
    let away = ((customers - inside) / rate).max(0.0);
    let network =
        |unseen: f64| network(away, cpu, seen.cpus, visits * service, visits * delay + unseen);
    let known = network(0.0)?;
    let known = match customers.round().clamp(1.0, f64::from(MOST)) as u32 {
        now @ ..=EXACT => known.solve(now)?,
        now => approximate::solve(&known, now),
    };
    let network = network((response - known.response).max(0.0))?;
    let exact = network.sweep(EXACT)?;

    let at = |clients: u32| {
        let customers = (f64::from(clients) * each).round().clamp(1.0, f64::from(MOST)) as u32;
        match exact.get(customers as usize - 1) {
            Some(known) => known.clone(),
            None => approximate::solve(&network, customers),
        }
    };
    let busiest =
        |one: &Solution| one.centres[CPU].utilisation.max(one.centres[BACKEND].utilisation);
    let over = |clients: u32| {
        let one = at(clients);
        if busiest(&one) > limits.utilisation {
            Some(Limit::Utilisation)
        } else if limits.response.is_some_and(|most| one.response > most) {
            Some(Limit::Response)
        } else {
            None
        }
    };
    // More clients keep it busier: between one number that it holds and one that it does not.
    let (mut held, mut limit) = (seen.clients, over(seen.clients));
    if limit.is_none() {
        let most = ((f64::from(MOST) / each) as u32).max(held);
        let mut beyond = held;
        while limit.is_none() && beyond < most {
            held = beyond;
            beyond = beyond.saturating_mul(2).min(most);
            limit = over(beyond);
        }
        if limit.is_none() {
            held = beyond;
        }
        while limit.is_some() && beyond - held > 1 {
            let middle = held + (beyond - held) / 2;
            match over(middle) {
                None => held = middle,
                why => (beyond, limit) = (middle, why),
            }
        }
    }
    let limit = limit.unwrap_or(Limit::None);
    let last = at(held);
    let name = if last.centres[CPU].utilisation >= last.centres[BACKEND].utilisation {
        "cpu"
    } else {
        "backend"
    };
    Ok(Some(HeadRoom {
        more: held - seen.clients,
        limit,
        bottleneck: name.to_owned(),
        response: last.response,
        busy: (
            (rate * cpu / f64::from(seen.cpus.max(1))).min(1.0),
            (rate * visits * service).min(1.0),
        ),
        cpu,
        read: (service, delay),
    }))
}

const CPU: usize = 0;
const BACKEND: usize = 1;

fn network(away: f64, cpu: f64, cpus: u32, backend: f64, delay: f64) -> Result<Network> {
    let centre = |name: &str, kind, demand: f64| Centre {
        name: name.to_owned(),
        kind,
        // Times below what a network takes are none.
        demand: if demand < 1e-12 { 0.0 } else { demand },
    };
    let several = match cpus {
        0 | 1 => CentreKind::Queue,
        many => CentreKind::Servers(many.min(MOST_SERVERS)),
    };
    let away = if away < 1e-12 { 0.0 } else { away };
    Network::new(
        away,
        vec![
            centre("cpu", several, cpu),
            centre("backend", CentreKind::Queue, backend),
            centre("delay", CentreKind::Delay, delay),
        ],
    )
}

/// The time of service of a read and its delay, in seconds: least squares, over the depths, of the
/// reads' mean times against a queue's and a delay's, weighted by how many reads there were. Of those that
/// fit as well, but for noise, the longest service: the answer is on the safe side.
fn queue_and_delay(reads: &Reads) -> (f64, f64) {
    /// Shares that are tried.
    const STEPS: u32 = 128;
    /// Squares of the coefficient of variation that are tried: from services that are all alike to exponential ones.
    const VARIATIONS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
    /// The variance of a read's time, in squares of the time of one alone: so much farther off a fit may be by chance.
    const NOISE: f64 = 0.25;
    if reads.count() == 0 {
        return (0.0, 0.0);
    }
    // The best time of a read alone for one share of the queue in it, and how far off it is.
    let fit = |share: f64, variation: f64| {
        let (mut gg, mut gl, mut ll) = (0.0, 0.0, 0.0);
        for (read, shape) in reads.0.iter().zip(shape(share, variation)) {
            gg += read.count as f64 * shape * shape;
            gl += read.seconds * shape;
            ll +=
                if read.count > 0 { read.seconds * read.seconds / read.count as f64 } else { 0.0 };
        }
        let alone = gl / gg;
        (alone, ll - alone * gl)
    };
    let met: u64 = reads.0[1..].iter().map(|read| read.count).sum();
    if met < ENOUGH_MET {
        // What varies least has the longest service.
        return (fit(1.0, VARIATIONS[0]).0, 0.0);
    }
    let shares = || (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS));
    let fits =
        || VARIATIONS.into_iter().flat_map(|v| shares().map(move |share| (share, fit(share, v))));
    let best = fits().map(|(_, fit)| fit).min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
    let as_good = best.1 + NOISE * best.0 * best.0;
    let services = fits().filter(|(_, (_, off))| *off <= as_good);
    let services = services.map(|(share, (alone, _))| (alone * share, alone * (1.0 - share)));
    services.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
}

/// The mean time of a read that finds 0, 1, 2, … others under way, in units of that of one that
/// finds none, of which `share` is service at a queue and the rest delay: mean value analysis of the
/// two. `variation` is the square of the services' coefficient of variation, from 0 to 1.
fn shape(share: f64, variation: f64) -> [f64; DEPTHS] {
    // What is saved of the service that is under way: the part of it that is over.
    let over = (1.0 - variation) / 2.0;
    let (mut queue, mut busy) = (0.0, 0.0);
    let mut times = [0.0; DEPTHS];
    for (before, time) in times.iter_mut().enumerate() {
        let residence = share * (1.0 + queue - over * busy);
        *time = residence + 1.0 - share;
        let rate = (before + 1) as f64 / *time;
        (queue, busy) = (rate * residence, (rate * share).min(1.0));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    /// A server that is simulated, event by event: nothing of the theory goes in.
    struct Server {
        cpu: f64,
        backend: f64,
        delay: f64,
        misses: f64,
        think: f64,
        /// Whether the backend's services are all alike, or exponential.
        alike: bool,
    }

    /// Exponential numbers, always the same.
    struct Dice(u64);

    impl Dice {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        fn exponential(&mut self, mean: f64) -> f64 {
            -mean * (1.0 - self.uniform()).ln()
        }
    }

    impl Server {
        fn run(&self, clients: u32, requests: u64) -> ServerInterval {
            let mut dice = Dice(0x1234_5678_9abc_def1);
            let nanos = |time: f64| (time * 1e9) as u64;
            // (time, what happens next to whom): 0 arrives, 1 goes to the backend.
            let mut events = BinaryHeap::new();
            for client in 0..clients {
                events.push(Reverse((nanos(dice.exponential(self.think)), 0u8, client)));
            }
            let (mut cpu_free, mut disk_free) = (0.0f64, 0.0f64);
            let mut began = vec![0.0; clients as usize];
            let mut ends: Vec<f64> = Vec::new();
            let mut seen = ServerInterval {
                seconds: 0.0,
                clients,
                requests: 0,
                response_seconds: 0.0,
                cpu_seconds: 0.0,
                cpus: 1,
                reads: Reads::default(),
            };
            while seen.requests < requests {
                let Some(Reverse((time, what, client))) = events.pop() else { break };
                let now = time as f64 / 1e9;
                let done = if what == 0 {
                    began[client as usize] = now;
                    let service = dice.exponential(self.cpu);
                    seen.cpu_seconds += service;
                    cpu_free = cpu_free.max(now) + service;
                    if dice.uniform() < self.misses {
                        events.push(Reverse((nanos(cpu_free), 1, client)));
                        continue;
                    }
                    cpu_free
                } else {
                    ends.retain(|end| *end > now);
                    let service =
                        if self.alike { self.backend } else { dice.exponential(self.backend) };
                    disk_free = disk_free.max(now) + service;
                    let end = disk_free + self.delay;
                    ends.push(end);
                    let read = &mut seen.reads.0[ends.len().min(DEPTHS) - 1];
                    read.count += 1;
                    read.seconds += end - now;
                    end
                };
                seen.requests += 1;
                seen.response_seconds += done - began[client as usize];
                seen.seconds = seen.seconds.max(done);
                events.push(Reverse((nanos(done + dice.exponential(self.think)), 0, client)));
            }
            seen
        }

        fn truth(&self) -> Network {
            let (backend, delay) = (self.misses * self.backend, self.misses * self.delay);
            network(self.think, self.cpu, 1, backend, delay).unwrap()
        }
    }

    const LIMITS: OperatingLimits = OperatingLimits { utilisation: 0.8, response: None };

    #[test]
    fn a_known_servers_room_is_found_from_few_clients() {
        for (server, clients, bottleneck) in [
            (
                Server {
                    cpu: 1e-3,
                    backend: 6e-3,
                    delay: 0.0,
                    misses: 0.3,
                    think: 0.1,
                    alike: false,
                },
                8,
                "backend",
            ),
            (
                Server {
                    cpu: 1e-3,
                    backend: 6e-3,
                    delay: 4e-3,
                    misses: 0.3,
                    think: 0.1,
                    alike: false,
                },
                12,
                "backend",
            ),
            (
                Server {
                    cpu: 2e-3,
                    backend: 1e-3,
                    delay: 0.0,
                    misses: 0.1,
                    think: 0.05,
                    alike: false,
                },
                6,
                "cpu",
            ),
        ] {
            let truth = server.truth().sweep(400).unwrap();
            let busy =
                |one: &Solution| one.centres[CPU].utilisation.max(one.centres[BACKEND].utilisation);
            let held = truth.iter().filter(|one| busy(one) <= 0.8).count() as f64;
            let seen = server.run(clients, 200_000);
            let found = head_room(&seen, LIMITS).unwrap().unwrap();
            assert_eq!((found.limit, found.bottleneck.as_str()), (Limit::Utilisation, bottleneck));
            let said = f64::from(clients + found.more);
            assert!((said / held - 1.0).abs() < 0.1, "{said} of {held}: {found:?}");
            let response = truth[said as usize - 1].response;
            assert!((found.response / response - 1.0).abs() < 0.15, "{response}: {found:?}");
            let strict = OperatingLimits { response: Some(response * 0.7), ..LIMITS };
            let less = head_room(&seen, strict).unwrap().unwrap();
            assert!(less.limit == Limit::Response && less.more < found.more);
        }
    }

    #[test]
    fn a_queue_is_told_from_a_delay() {
        let server = Server {
            cpu: 1e-4,
            backend: 2e-3,
            delay: 5e-3,
            misses: 0.5,
            think: 5e-3,
            alike: false,
        };
        let seen = server.run(6, 100_000);
        let (service, delay) = queue_and_delay(&seen.reads);
        assert!((service / 2e-3 - 1.0).abs() < 0.2, "{service}");
        assert!((delay / 5e-3 - 1.0).abs() < 0.2, "{delay}");
        let regular = Server { alike: true, ..server };
        let (service, delay) = queue_and_delay(&regular.run(6, 100_000).reads);
        assert!((service / 2e-3 - 1.0).abs() < 0.1, "{service}");
        assert!((delay / 5e-3 - 1.0).abs() < 0.1, "{delay}");
        let alone = regular.run(1, 20_000);
        let (service, delay) = queue_and_delay(&alone.reads);
        assert!((service / 7e-3 - 1.0).abs() < 0.1 && delay == 0.0, "all counts as queue");
    }

    #[test]
    fn a_backend_whose_services_are_alike_is_not_taken_for_half_a_delay() {
        // A disk with one arm that is busy for 16, 33 and 66 % of the time.
        for (clients, requests) in [(8, 2000), (16, 4000), (32, 8000)] {
            let server = Server {
                cpu: 1e-4,
                backend: 13e-3,
                delay: 0.0,
                misses: 0.4,
                think: 0.24,
                alike: true,
            };
            let seen = server.run(clients, requests);
            let found = head_room(&seen, LIMITS).unwrap().unwrap();
            assert!((found.read.0 / 13e-3 - 1.0).abs() < 0.15, "{found:?}");
            let held = server.truth().sweep(100).unwrap();
            let held = held.partition_point(|one| one.centres[BACKEND].utilisation <= 0.8) as f64;
            let said = f64::from(clients + found.more);
            assert!((said / held - 1.0).abs() < 0.15, "{said} of {held}: {found:?}");
        }
    }

    #[test]
    fn too_little_is_no_answer_and_too_much_is_no_room() {
        let server =
            Server { cpu: 1e-3, backend: 6e-3, delay: 0.0, misses: 0.3, think: 0.1, alike: false };
        assert_eq!(head_room(&server.run(8, 999), LIMITS).unwrap(), None);
        let full = head_room(&server.run(90, 100_000), LIMITS).unwrap().unwrap();
        assert_eq!((full.more, full.limit), (0, Limit::Utilisation));
        let seen = server.run(8, 2000);
        for bad in [
            ServerInterval { seconds: 0.0, ..seen },
            ServerInterval { response_seconds: f64::NAN, ..seen },
        ] {
            assert!(head_room(&bad, LIMITS).is_err());
        }
    }

    #[test]
    fn a_client_with_many_requests_under_way_counts_as_many_customers() {
        // Four clients, each with eight requests always under way: 32 customers, never away.
        let network = network(0.0, 1e-5, 1, 1e-4, 0.0).unwrap();
        let solution = network.solve(32).unwrap();
        let requests = 100_000u32;
        let seconds = f64::from(requests) / solution.throughput;
        let seen = ServerInterval {
            seconds,
            clients: 4,
            requests: requests.into(),
            response_seconds: f64::from(requests) * solution.response,
            cpu_seconds: f64::from(requests) * 1e-5,
            cpus: 1,
            reads: Reads::default(),
        };
        let found = head_room(&seen, LIMITS).unwrap().unwrap();
        // Nobody counted the backend: what it takes is a delay, and the processor has room.
        assert_eq!((found.bottleneck.as_str(), found.limit), ("cpu", Limit::Utilisation));
        assert!((20..60).contains(&found.more), "{found:?}");
    }

    /// What is seen of a server with so many clients, by the exact solution.
    fn exactly(network: &Network, clients: u32, cpus: u32) -> ServerInterval {
        let solution = network.solve(clients).unwrap();
        ServerInterval {
            seconds: 1e6 / solution.throughput,
            clients,
            requests: 1_000_000,
            response_seconds: 1e6 * solution.response,
            cpu_seconds: 1e6 * network.centres()[CPU].demand,
            cpus,
            reads: Reads::default(),
        }
    }

    #[test]
    fn more_clients_than_are_solved_exactly_have_an_answer_too() {
        // A processor that 100,000 clients keep busy, and that is seen with few and with many.
        let truth = network(100.0, 1e-3, 1, 0.0, 5e-3).unwrap();
        let solutions = truth.sweep(90_000).unwrap();
        let held = |most: f64| {
            solutions.partition_point(|one| one.centres[CPU].utilisation <= most) as f64
        };
        for clients in [100, 4000, 5000, 70_000] {
            let found = head_room(&exactly(&truth, clients, 1), LIMITS).unwrap().unwrap();
            assert_eq!(found.limit, Limit::Utilisation);
            let said = f64::from(clients + found.more);
            assert!((said / held(0.8) - 1.0).abs() < 0.005, "{said} of {}", held(0.8));
            let response = solutions[said as usize - 1].response;
            assert!((found.response / response - 1.0).abs() < 0.05, "{response}: {found:?}");
        }
        let full = head_room(&exactly(&truth, 85_000, 1), LIMITS).unwrap().unwrap();
        assert_eq!((full.more, full.limit), (0, Limit::Utilisation));
        // Beyond all that is looked at.
        let idle = network(1e6, 1e-5, 8, 0.0, 0.0).unwrap();
        let found = head_room(&exactly(&idle, 4000, 8), LIMITS).unwrap().unwrap();
        assert_eq!((found.more, found.limit), (MOST - 4000, Limit::None));
    }
}

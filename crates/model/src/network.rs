//! A closed network of one kind of clients, and what a solution of it says.

use block::{Error, Result};

/// The most centres of a network.
pub const MOST_CENTRES: usize = 64;
/// The most servers of a centre.
pub const MOST_SERVERS: u32 = 1024;
/// The most clients of a network without centres of several servers.
pub const MOST_CLIENTS: u32 = 100_000;
/// The most clients of a network with a centre of several servers.
pub const MOST_CLIENTS_SERVERS: u32 = 4096;

/// How a centre serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CentreKind {
    /// One after the other: a disk, a link, a single processor.
    Queue,
    /// Up to so many at a time, 2 to [`MOST_SERVERS`]: a processor with several cores.
    Servers(u32),
    /// All at the same time, without waiting: latency that is nobody's work.
    Delay,
}

impl CentreKind {
    /// How many are served at a time; `None` when there is no limit.
    pub fn servers(self) -> Option<u32> {
        match self {
            Self::Queue => Some(1),
            Self::Servers(count) => Some(count),
            Self::Delay => None,
        }
    }
}

/// A place where a request is served.
#[derive(Clone, Debug, PartialEq)]
pub struct Centre {
    /// Its name, for reports.
    pub name: String,
    /// How it serves.
    pub kind: CentreKind,
    /// The time of service that one request takes here, in seconds, over all its visits.
    pub demand: f64,
}

impl Centre {
    /// The demand for each server: the inverse of the highest throughput that it lets through.
    /// 0 for a delay.
    pub fn load(&self) -> f64 {
        self.kind.servers().map_or(0.0, |servers| self.demand / f64::from(servers))
    }
}

/// A closed network with one kind of clients.
///
/// The solution is exact under the assumptions of product form (Baskett, Chandy, Muntz, Palacios,
/// "Open, closed, and mixed networks of queues with different classes of customers", JACM 1975):
/// service at queues is exponential, or shared. Real demands vary less, so real response times
/// near the knee are a little better than computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    think: f64,
    centres: Vec<Centre>,
}

/// What a centre does at some number of clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CentreUse {
    /// Time that a request spends here, waiting and served, in seconds.
    pub residence: f64,
    /// Requests that are here, on average.
    pub queue: f64,
    /// The share of its servers that is busy, 0 to 1; for a delay as [`queue`](Self::queue).
    pub utilisation: f64,
}

/// A network at some number of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// How many clients.
    pub clients: u32,
    /// Answers a second, of all clients together.
    pub throughput: f64,
    /// From asking to the answer, in seconds: all centres, delays included, without thinking.
    pub response: f64,
    /// The centres, in the network's order.
    pub centres: Vec<CentreUse>,
}

impl Solution {
    /// The index of the queueing centre with the highest utilisation, if there is one.
    pub fn bottleneck(&self, network: &Network) -> Option<usize> {
        let queues = network.centres.iter().zip(&self.centres).enumerate();
        let queues = queues.filter(|(_, (centre, _))| centre.load() > 0.0);
        let busiest = queues.max_by(|a, b| a.1.1.utilisation.total_cmp(&b.1.1.utilisation));
        busiest.map(|(index, _)| index)
    }
}

impl Network {
    /// A network whose clients think for `think` seconds between an answer and the next request.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for times that are negative or no numbers, for no
    /// demand at all, and beyond [`MOST_CENTRES`] and [`MOST_SERVERS`].
    pub fn new(think: f64, centres: Vec<Centre>) -> Result<Self> {
        time("the think time", think)?;
        if centres.is_empty() || centres.len() > MOST_CENTRES {
            return Err(Error::invalid(format!(
                "a network of {} centres: give 1 to {MOST_CENTRES}",
                centres.len()
            )));
        }
        for centre in &centres {
            time(&format!("the demand at {:?}", centre.name), centre.demand)?;
            if let CentreKind::Servers(count) = centre.kind
                && !(2..=MOST_SERVERS).contains(&count)
            {
                return Err(Error::invalid(format!(
                    "{:?} has {count} servers: give 2 to {MOST_SERVERS}, or make it a queue",
                    centre.name
                )));
            }
        }
        if centres.iter().all(|centre| centre.demand == 0.0) {
            return Err(Error::invalid("no centre has a demand: a request would take no time"));
        }
        Ok(Self { think, centres })
    }

    /// Seconds between an answer and the next request of the same client.
    pub fn think(&self) -> f64 {
        self.think
    }

    /// Its centres.
    pub fn centres(&self) -> &[Centre] {
        &self.centres
    }
}

/// Checks a time.
pub(crate) fn time(what: &str, seconds: f64) -> Result<()> {
    if seconds.is_finite() && (0.0..=1e9).contains(&seconds) && (seconds == 0.0 || seconds >= 1e-15)
    {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} is {seconds:?} s: give a time from 0 to 1e9 s")))
}

//! Demands from measurements.
//!
//! What is seen to be busy is measured by the utilisation law, U = X D: the time that a resource
//! is busy, divided by the answers given meanwhile, is the demand (Denning, Buzen, "The operational
//! analysis of queueing network models", ACM Computing Surveys 1978). What cannot be seen, because
//! nobody counts its busy time, is found by trying: a queue and a delay of such demands that the
//! exact solution meets the measured throughputs best.

use crate::network::{Centre, CentreKind, Network};
use block::{Error, Result};

/// A resource's busy time at one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// Busy seconds for each answer: utilisation over throughput.
    pub per_answer: f64,
    /// The share of the answers that came from the cache, 0 to 1.
    pub hit: f64,
    /// How many answers were counted.
    pub answers: f64,
}

/// A demand that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What every request takes, in seconds.
    pub request: f64,
    /// What a miss takes in addition, in seconds.
    pub miss: f64,
    /// The largest difference of a load from these, as a share.
    pub spread: f64,
}

/// The demand of a resource by the utilisation law: least squares over the loads, weighted by the
/// answers, of busy time = request + (1 - hit) * miss. Neither is below 0.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) without any answer.
pub fn utilisation_law(loads: &[Busy]) -> Result<Measured> {
    let (mut n, mut sx, mut sy, mut sxx, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for load in loads.iter().filter(|load| load.answers > 0.0 && load.per_answer.is_finite()) {
        let (w, x, y) = (load.answers, 1.0 - load.hit, load.per_answer);
        n += w;
        sx += w * x;
        sy += w * y;
        sxx += w * x * x;
        sxy += w * x * y;
    }
    if n == 0.0 {
        return Err(Error::invalid("no load had any answer: measure for longer"));
    }
    let variance = sxx / n - (sx / n) * (sx / n);
    let (mut request, mut miss) = if variance > 1e-4 {
        let miss = (sxy / n - sx / n * (sy / n)) / variance;
        ((sy - miss * sx) / n, miss)
    } else {
        (sy / n, 0.0)
    };
    if miss < 0.0 {
        (request, miss) = (sy / n, 0.0);
    } else if request < 0.0 {
        (request, miss) = (0.0, if sxx > 0.0 { sxy / sxx } else { 0.0 });
    }
    let spread = loads.iter().filter(|load| load.answers > 0.0).map(|load| {
        let fitted = request + (1.0 - load.hit) * miss;
        if fitted > 0.0 { (load.per_answer / fitted - 1.0).abs() } else { 0.0 }
    });
    Ok(Measured { request, miss, spread: spread.fold(0.0, f64::max) })
}

/// A load that was measured: how many clients got how much.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredLoad {
    /// How many clients there were.
    pub clients: u32,
    /// Answers a second, of all together.
    pub throughput: f64,
    /// The centres whose demands are known.
    pub known: Vec<Centre>,
    /// Seconds between an answer and the next request.
    pub think: f64,
    /// How often a request goes to the unknown part: 1, or the share of misses.
    pub visits: f64,
}

/// The part of a server that nobody sees the inside of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hidden {
    /// Seconds of a visit that the next one has to wait for.
    pub queue: f64,
    /// Seconds of a visit that overlap with others.
    pub delay: f64,
    /// The root of the mean square of the relative differences in throughput.
    pub error: f64,
}

/// Candidates for the queue's demand in the first round.
const STEPS: u32 = 60;
/// Rounds of the golden section: the interval shrinks to 1e-10 of itself.
const ROUNDS: u32 = 48;

/// The unknown part that explains these loads best.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) without loads, for a load without throughput, and as
/// [`Network::new`].
pub fn hidden(loads: &[MeasuredLoad]) -> Result<Hidden> {
    let most = loads.iter().map(|load| load.throughput * load.visits).fold(0.0, f64::max);
    let bad = |load: &MeasuredLoad| {
        load.clients == 0
            || !load.throughput.is_finite()
            || load.throughput <= 0.0
            || !(0.0..=1e6).contains(&load.visits)
    };
    if loads.is_empty() || loads.iter().any(bad) || most <= 0.0 {
        return Err(Error::invalid("a load gave no answers: measure for longer"));
    }
    let cycle =
        |load: &MeasuredLoad| f64::from(load.clients) / load.throughput / load.visits.max(1e-9);
    let longest = loads.iter().map(cycle).fold(0.0, f64::max);
    // The best delay for a queue.
    let inner = |queue: f64| -> Result<(f64, f64)> {
        golden(0.0, longest, |delay| mismatch(loads, queue, delay))
    };
    // The queue cannot take longer than the highest throughput leaves it; a few per cent for noise.
    let top = 1.1 / most;
    let mut best = (f64::INFINITY, 0);
    for step in 0..=STEPS {
        let (_, error) = inner(top * f64::from(step) / f64::from(STEPS))?;
        if error < best.0 * (1.0 - 1e-9) {
            best = (error, step);
        }
    }
    let at = |step: u32| top * f64::from(step) / f64::from(STEPS);
    let (from, to) = (at(best.1.saturating_sub(1)), at((best.1 + 1).min(STEPS)));
    let (mut queue, mut error) = golden(from, to, |queue| Ok(inner(queue)?.1))?;
    if inner(0.0)?.1 <= error {
        (queue, error) = (0.0, inner(0.0)?.1);
    }
    Ok(Hidden { queue, delay: inner(queue)?.0, error: error.sqrt() })
}

/// The mean square of the relative differences between measured and computed throughput.
fn mismatch(loads: &[MeasuredLoad], queue: f64, delay: f64) -> Result<f64> {
    let mut sum = 0.0;
    for load in loads {
        let centre = |name: &str, kind, demand| Centre { name: name.to_owned(), kind, demand };
        let mut centres = load.known.clone();
        // The smallest demand that counts keeps a network of delays alone in range.
        centres.push(centre("hidden queue", CentreKind::Queue, (queue * load.visits).max(1e-15)));
        centres.push(centre("hidden delay", CentreKind::Delay, small_is_none(delay * load.visits)));
        let solution = Network::new(load.think, centres)?.solve(load.clients)?;
        let ratio = (solution.throughput / load.throughput).ln();
        sum += ratio * ratio;
    }
    Ok(sum / loads.len() as f64)
}

fn small_is_none(seconds: f64) -> f64 {
    if seconds < 1e-15 { 0.0 } else { seconds }
}

/// The place and value of the minimum of `f` between `a` and `b` (golden-section search, J. Kiefer,
/// "Sequential minimax search for a maximum", 1953).
fn golden(a: f64, b: f64, mut f: impl FnMut(f64) -> Result<f64>) -> Result<(f64, f64)> {
    const RATIO: f64 = 0.618_033_988_749_894_9;
    let (mut a, mut b) = (a, b);
    let (mut x, mut y) = (b - RATIO * (b - a), a + RATIO * (b - a));
    let (mut fx, mut fy) = (f(x)?, f(y)?);
    for _ in 0..ROUNDS {
        if fx <= fy {
            (b, y, fy) = (y, x, fx);
            x = b - RATIO * (b - a);
            fx = f(x)?;
        } else {
            (a, x, fx) = (x, y, fy);
            y = a + RATIO * (b - a);
            fy = f(y)?;
        }
    }
    let middle = (a + b) / 2.0;
    Ok((middle, f(middle)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(cpu: f64) -> Vec<Centre> {
        vec![Centre { name: "cpu".into(), kind: CentreKind::Queue, demand: cpu }]
    }

    fn loads(cpu: f64, queue: f64, delay: f64, clients: &[u32]) -> Vec<MeasuredLoad> {
        let mut centres = known(cpu);
        centres.push(Centre { name: "q".into(), kind: CentreKind::Queue, demand: queue });
        centres.push(Centre { name: "d".into(), kind: CentreKind::Delay, demand: delay });
        let network = Network::new(0.0, centres).unwrap();
        let load = |clients: &u32| MeasuredLoad {
            clients: *clients,
            throughput: network.solve(*clients).unwrap().throughput,
            known: known(cpu),
            think: 0.0,
            visits: 1.0,
        };
        clients.iter().map(load).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_was_hidden_is_found(queue in 1e-4f64..1e-2, delay in 1e-4f64..1e-2) {
            let found = hidden(&loads(1e-5, queue, delay, &[1, 4, 16])).unwrap();
            prop_assert!((found.queue / queue - 1.0).abs() < 0.01, "{:?} {}", found, queue);
            prop_assert!((found.delay / delay - 1.0).abs() < 0.05, "{:?} {}", found, delay);
            prop_assert!(found.error < 1e-3);
        }

        #[test]
        fn demands_of_hits_and_misses_come_apart(
            request in 1e-6f64..1e-3, miss in 0.0f64..1e-2,
            hits in proptest::collection::vec(0.0f64..1.0, 3..8),
        ) {
            let spread = hits.iter().fold(0.0, |a: f64, b| a.max(*b))
                - hits.iter().fold(1.0, |a: f64, b| a.min(*b));
            prop_assume!(spread > 0.2);
            let busy = |hit: &f64| Busy {
                per_answer: request + (1.0 - hit) * miss, hit: *hit, answers: 100.0 + 50.0 * hit,
            };
            let busy: Vec<_> = hits.iter().map(busy).collect();
            let found = utilisation_law(&busy).unwrap();
            prop_assert!((found.request - request).abs() < 1e-9 && (found.miss - miss).abs() < 1e-9);
            prop_assert!(found.spread < 1e-3);
        }
    }

    #[test]
    fn a_pure_delay_has_no_queue() {
        let found = hidden(&loads(1e-6, 1e-12, 5e-3, &[1, 8, 32])).unwrap();
        assert!(found.queue < 2e-6, "{found:?}");
        assert!((found.delay / 5e-3 - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn nothing_measured_is_an_error_not_a_number() {
        assert!(hidden(&[]).is_err());
        assert!(utilisation_law(&[]).is_err());
        let mut none = loads(1e-6, 1e-3, 1e-3, &[1]);
        none[0].throughput = 0.0;
        assert!(hidden(&none).is_err());
        none[0].throughput = f64::NAN;
        assert!(hidden(&none).is_err());
    }
}

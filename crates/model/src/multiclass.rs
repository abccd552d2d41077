//! The exact solution for clients of several kinds, by mean value analysis over all mixes.
//!
//! Every mix of clients up to the one asked for is computed, so that the work grows as the product
//! of the classes' sizes: it is bounded, and refused beyond. Exact where queues share their service
//! among all that wait, or serve in turn with the same mean time for all classes.

use crate::network::{CentreKind, MOST_CENTRES, time};
use block::{Error, Result};

/// The most numbers that a solution may hold in memory: 128 MiB.
pub const MOST_STATES: u64 = 16 << 20;

/// Clients of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its name, for reports.
    pub name: String,
    /// How many clients it has; 0 is allowed.
    pub clients: u32,
    /// Seconds between an answer and the next request.
    pub think: f64,
    /// The demand at each centre, in seconds.
    pub demands: Vec<f64>,
}

/// What the clients of one class get.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassSolution {
    /// Answers a second, of the class.
    pub throughput: f64,
    /// From asking to the answer, in seconds; 0 without clients.
    pub response: f64,
    /// Time at each centre, in seconds.
    pub residences: Vec<f64>,
}

/// A network of several classes, solved.
#[derive(Clone, Debug, PartialEq)]
pub struct MulticlassSolution {
    /// The classes, in the order given.
    pub classes: Vec<ClassSolution>,
    /// Requests at each centre, on average.
    pub queues: Vec<f64>,
    /// The share of the time that each centre is busy; for a delay as in `queues`.
    pub utilisations: Vec<f64>,
}

/// Solves a network of `centres` for `classes`.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for demands that do not fit the centres or are no times;
/// [`Unsupported`](block::ErrorKind::Unsupported) for centres of several servers and for more than
/// [`MOST_STATES`] numbers.
pub fn solve(centres: &[CentreKind], classes: &[Class]) -> Result<MulticlassSolution> {
    check(centres, classes)?;
    let count = centres.len();
    // Mixes are numbered in mixed radix: the mix with one client less of class c comes `stride[c]`
    // earlier.
    let mut strides = Vec::with_capacity(classes.len());
    let mut mixes: u64 = 1;
    for class in classes {
        strides.push(mixes as usize);
        mixes = mixes.saturating_mul(u64::from(class.clients) + 1);
    }
    let states = mixes.saturating_mul(count as u64);
    if states > MOST_STATES {
        return Err(Error::unsupported(format!(
            "the exact solution of these classes needs {states} numbers, at most {MOST_STATES} \
             are computed: merge classes, or take fewer clients"
        )));
    }
    let mut queues = vec![0.0; states as usize];
    let mut mix = vec![0u32; classes.len()];
    let mut last =
        vec![
            ClassSolution { throughput: 0.0, response: 0.0, residences: vec![0.0; count] };
            classes.len()
        ];
    for at in 1..mixes as usize {
        advance(&mut mix, classes);
        let mut here = vec![0.0; count];
        for (c, class) in classes.iter().enumerate() {
            let solution = &mut last[c];
            if mix[c] == 0 {
                solution.throughput = 0.0;
                continue;
            }
            let seen = (at - strides[c]) * count;
            for (k, kind) in centres.iter().enumerate() {
                let waiting = if *kind == CentreKind::Delay { 0.0 } else { queues[seen + k] };
                solution.residences[k] = class.demands[k] * (1.0 + waiting);
            }
            solution.response = solution.residences.iter().sum();
            solution.throughput = f64::from(mix[c]) / (class.think + solution.response);
            for (sum, residence) in here.iter_mut().zip(&solution.residences) {
                *sum += solution.throughput * residence;
            }
        }
        queues[at * count..][..count].copy_from_slice(&here);
    }
    let utilisation = |k: usize| {
        last.iter()
            .zip(classes)
            .map(|(solution, class)| solution.throughput * class.demands[k])
            .sum()
    };
    Ok(MulticlassSolution {
        utilisations: (0..count).map(utilisation).collect(),
        queues: queues[(mixes as usize - 1) * count..].to_vec(),
        classes: last,
    })
}

/// The next mix in order.
fn advance(mix: &mut [u32], classes: &[Class]) {
    for (clients, class) in mix.iter_mut().zip(classes) {
        if *clients < class.clients {
            *clients += 1;
            return;
        }
        *clients = 0;
    }
}

fn check(centres: &[CentreKind], classes: &[Class]) -> Result<()> {
    if centres.is_empty() || centres.len() > MOST_CENTRES {
        return Err(Error::invalid(format!(
            "a network of {} centres: give 1 to {MOST_CENTRES}",
            centres.len()
        )));
    }
    if centres.iter().any(|kind| matches!(kind, CentreKind::Servers(_))) {
        return Err(Error::unsupported(
            "several classes of clients and a centre of several servers have no exact solution \
             here: give that centre one server with the demand divided by their number",
        ));
    }
    if classes.is_empty() {
        return Err(Error::invalid("a network without classes of clients: give one or more"));
    }
    for class in classes {
        let name = &class.name;
        if class.demands.len() != centres.len() {
            return Err(Error::invalid(format!(
                "class {name:?} has demands at {} centres of {}: give one for each",
                class.demands.len(),
                centres.len()
            )));
        }
        time(&format!("the think time of class {name:?}"), class.think)?;
        for demand in &class.demands {
            time(&format!("a demand of class {name:?}"), *demand)?;
        }
        if class.think + class.demands.iter().sum::<f64>() == 0.0 {
            return Err(Error::invalid(format!("class {name:?} has no demand: give it one")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Centre, Network};
    use proptest::prelude::*;

    fn class(clients: u32, think: f64, demands: &[f64]) -> Class {
        Class { name: "c".into(), clients, think, demands: demands.to_vec() }
    }

    fn same(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-11 * a.abs().max(b.abs()).max(1e-12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn alike_classes_are_one_class(
            demands in proptest::collection::vec(1e-3f64..1.0, 1..4),
            think in 0.0f64..5.0, a in 0u32..9, b in 1u32..9, c in 0u32..5,
        ) {
            let kinds: Vec<CentreKind> =
                (0..demands.len()).map(|i| if i == 1 { CentreKind::Delay } else { CentreKind::Queue }).collect();
            let got = solve(&kinds, &[a, b, c].map(|n| class(n, think, &demands))).unwrap();
            let centres = demands.iter().zip(&kinds);
            let centres = centres.map(|(d, k)| Centre { name: "k".into(), kind: *k, demand: *d });
            let one = Network::new(think, centres.collect()).unwrap().solve(a + b + c).unwrap();
            let sum: f64 = got.classes.iter().map(|class| class.throughput).sum();
            prop_assert!(same(sum, one.throughput));
            prop_assert!(same(got.classes[1].response, one.response));
            for (k, centre) in one.centres.iter().enumerate() {
                prop_assert!(same(got.queues[k], centre.queue));
                prop_assert!(same(got.utilisations[k], centre.utilisation));
            }
        }

        /// Two classes at one queue and their think times: a Markov chain of (a + 1)(b + 1) states
        /// with service shared, whose balance equations product form solves by
        /// p(i, j) ~ (i + j)! / (i! j!) * da^i db^j * za^(a-i)/(a-i)! * zb^(b-j)/(b-j)!.
        #[test]
        fn two_classes_at_one_queue_agree_with_their_markov_chain(
            da in 0.01f64..1.0, db in 0.01f64..1.0, za in 0.1f64..5.0, zb in 0.1f64..5.0,
            a in 1u32..7, b in 1u32..7,
        ) {
            let factorial = |n: u32| (1..=n).map(f64::from).product::<f64>();
            let (mut sum, mut at_a, mut at_b) = (0.0, 0.0, 0.0);
            for i in 0..=a {
                for j in 0..=b {
                    let p = factorial(i + j) / factorial(i) / factorial(j)
                        * da.powi(i as i32) * db.powi(j as i32)
                        * za.powi((a - i) as i32) / factorial(a - i)
                        * zb.powi((b - j) as i32) / factorial(b - j);
                    sum += p;
                    at_a += p * f64::from(i);
                    at_b += p * f64::from(j);
                }
            }
            let got = solve(&[CentreKind::Queue], &[class(a, za, &[da]), class(b, zb, &[db])]).unwrap();
            for (class, mean, clients, think) in
                [(&got.classes[0], at_a / sum, a, za), (&got.classes[1], at_b / sum, b, zb)]
            {
                let throughput = (f64::from(clients) - mean) / think; // those that think
                prop_assert!((class.throughput / throughput - 1.0).abs() < 1e-9);
                prop_assert!((class.response - mean / throughput).abs() < 1e-9 * class.response);
            }
        }
    }

    #[test]
    fn what_is_too_large_or_senseless_is_refused_with_the_remedy() {
        let many = [1000, 1000, 1000].map(|n| class(n, 1.0, &[0.1]));
        let error = solve(&[CentreKind::Queue], &many).unwrap_err();
        assert!(error.message().contains("merge classes"), "{error}");
        assert!(solve(&[CentreKind::Servers(2)], &[class(1, 0.0, &[0.1])]).is_err());
        assert!(solve(&[CentreKind::Queue], &[]).is_err());
        assert!(solve(&[], &[class(1, 0.0, &[])]).is_err());
        assert!(solve(&[CentreKind::Queue], &[class(1, 0.0, &[0.1, 0.2])]).is_err());
        assert!(solve(&[CentreKind::Queue], &[class(1, 0.0, &[0.0])]).is_err());
        assert!(solve(&[CentreKind::Queue], &[class(1, f64::NAN, &[0.1])]).is_err());
        assert!(solve(&[CentreKind::Queue], &[class(1, 0.0, &[-1.0])]).is_err());
    }
}

//! The best policy for a load and a size, by miniature simulation (C. Waldspurger, T. Saemundson,
//! I. Ahmad, N. Park: "Cache Modeling and Optimization using Miniature Simulations", USENIX ATC 2017):
//! a cache of one `n`th of the size, on the references to one `n`th of the blocks, hits as often as
//! the whole one.
//!
//! Several such samples, of disjoint blocks, tell how much chance there is in the answer. First references
//! miss whatever the policy, and how many there are is known of the whole: only the other misses are
//! estimated.

use crate::run::{SimulatedPolicy, run};
use crate::stream::ReferenceStream;
use block::{Error, Result};
use cache::PolicyKind;
use serde::Serialize;

/// The fewest blocks of a miniature cache: with fewer, policies cannot be told apart.
const FEWEST: u32 = 256;
/// A gain in the hit ratio of less is not worth a change.
const WORTH: f64 = 0.001;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningQuestion {
    /// Blocks of the cache; at least one.
    pub blocks: u32,
    /// The policies to choose from, with their parameters.
    pub policies: Vec<PolicyKind>,
    /// A sample is one of so many blocks; fewer are left out when the cache is small.
    pub one_in: u32,
    /// How many samples are taken: 1 to `one_in`.
    pub samples: u32,
}

impl TuningQuestion {
    /// The usual: one block of 64, eight times, all policies for servers.
    pub fn new(blocks: u32) -> Self {
        Self { blocks, policies: candidates(), one_in: 64, samples: 8 }
    }
}

/// What a policy is expected to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The policy.
    pub policy: PolicyKind,
    /// The expected hit ratio.
    pub hit_ratio: f64,
    /// Half of the interval that holds it with 95 %, by the differences between samples and by what
    /// miniatures are off by; 0 when nothing was sampled.
    pub error: f64,
    /// Hit ratios by sample.
    #[serde(skip)]
    by_sample: Vec<f64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// All candidates, the best first.
    pub candidates: Vec<Candidate>,
    /// What LRU is expected to do.
    pub lru: Candidate,
    /// What a server's policy is expected to do that nobody chose.
    pub usual: Candidate,
    /// One block of so many was looked at, in each sample.
    pub one_in: u32,
    /// How many samples.
    pub samples: u32,
}

impl Advice {
    /// The best policy.
    pub fn best(&self) -> &Candidate {
        self.candidates.first().unwrap_or(&self.lru)
    }

    /// The best policy, when it is worth a change: when it is expected to hit more than the
    /// [usual](Self::usual) one by more than the error of that, and by more than a tenth of a point.
    pub fn recommended(&self) -> Option<&Candidate> {
        let best = self.best();
        let gain = best.hit_ratio - self.usual.hit_ratio;
        (gain > WORTH.max(self.gain_error(best, &self.usual))).then_some(best)
    }

    /// The part of LRU's misses that the best policy is expected to save: 0 to 1.
    pub fn saved(&self) -> f64 {
        let misses = 1.0 - self.lru.hit_ratio;
        if misses <= 0.0 { 0.0 } else { (self.best().hit_ratio - self.lru.hit_ratio) / misses }
    }

    /// Half of the interval that holds that with 95 %.
    pub fn saved_error(&self) -> f64 {
        let misses = 1.0 - self.lru.hit_ratio;
        if misses <= 0.0 { 0.0 } else { self.gain_error(self.best(), &self.lru) / misses }
    }

    /// Half of the interval that holds the difference of two hit ratios with 95 %: smaller than that of either,
    /// as both are of the same samples.
    fn gain_error(&self, a: &Candidate, b: &Candidate) -> f64 {
        if a.policy == b.policy || self.one_in == 1 {
            return 0.0;
        }
        let both = a.by_sample.iter().zip(&b.by_sample);
        let (_, chance) = mean(&both.map(|(a, b)| a - b).collect::<Vec<_>>());
        let (a, b) = (miniature_error(a.policy), miniature_error(b.policy));
        (chance * chance * rest(self.samples, self.one_in) + a * a + b * b).sqrt()
    }
}

/// The part of the blocks that no sample has: what is in one says for sure what it does.
fn rest(samples: u32, one_in: u32) -> f64 {
    1.0 - f64::from(samples) / f64::from(one_in)
}

/// What a miniature is off by, whatever the samples, in hit ratio: policies with parts of a few entries, or
/// that learn, are not the same on a small scale. So much that with it 95 % of 432 caches of more than 256
/// blocks, of the loads in docs/simulate.md, were within the stated error under each of 14 policies.
fn miniature_error(policy: PolicyKind) -> f64 {
    match policy {
        PolicyKind::WTinyLfu(_) => 0.017,
        PolicyKind::Fmpq(_) => 0.01,
        PolicyKind::Duel(_) | PolicyKind::Fbr(_) | PolicyKind::Mq(_) => 0.007,
        _ => 0.004,
    }
}

/// Parameters that are worth a try: each is the best for some of the loads and sizes of docs/simulate.md,
/// and no other comes near it there.
const PARAMETERS: [&str; 19] = [
    "fmpq:history=1",
    "fmpq:lifetime=2",
    "fmpq:lifetime=8",
    "fmpq:lifetime=16",
    "fmpq:lifetime=16,history=8",
    "fmpq:history=4",
    "fmpq:history=8",
    "lirs:history=1",
    "lirs:history=4",
    "lirs:history=10",
    "lirs:queue=0.1,history=4",
    "mq:history=2",
    "s3fifo:fill=main",
    "s3fifo:fill=main,promote=2",
    "s3fifo:small=0.2",
    "wtinylfu:window=0.2",
    "wtinylfu:window=0.6",
    "wtinylfu:protected=0.5",
    "wtinylfu:protected=0.95",
];

/// The policies that a server can have, those with parameters in several ways.
pub fn candidates() -> Vec<PolicyKind> {
    let serving = PolicyKind::all().into_iter().filter(|kind| kind.serves());
    serving.chain(PARAMETERS.iter().filter_map(|text| text.parse().ok())).collect()
}

/// Which of the policies is best for a cache of a size under a load.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when there is nothing to choose from or no reference.
pub fn tune(stream: &ReferenceStream, question: &TuningQuestion) -> Result<Advice> {
    if question.policies.is_empty() || stream.is_empty() || question.blocks == 0 {
        return Err(Error::invalid(
            "nothing to choose from: give policies, a cache of a block or more, and a trace that reads",
        ));
    }
    let one_in = question.one_in.min(question.blocks / FEWEST).max(1);
    let samples = question.samples.clamp(1, one_in);
    let streams: Vec<ReferenceStream> =
        (0..samples).map(|number| stream.sample_number(one_in, number)).collect();
    let small = (question.blocks / one_in).max(1);
    let all = stream.len() as f64;
    let first = f64::from(stream.blocks());
    let judge = |policy: PolicyKind| {
        let small_policy = policy.in_miniature(one_in);
        let ratio = |sample: &ReferenceStream| {
            let outcome = run(SimulatedPolicy::Kind(small_policy), small, sample, false);
            let again = (outcome.misses - outcome.cold) as f64 * f64::from(one_in);
            1.0 - (first + again) / all
        };
        let by_sample: Vec<f64> = streams.iter().map(ratio).collect();
        let (hit_ratio, chance) = mean(&by_sample);
        let own = miniature_error(policy);
        let error = (chance * chance * rest(samples, one_in) + own * own).sqrt();
        let error = if one_in == 1 { 0.0 } else { error };
        Candidate { policy, hit_ratio: hit_ratio.clamp(0.0, 1.0), error, by_sample }
    };
    let mut candidates: Vec<Candidate> = question.policies.iter().copied().map(judge).collect();
    // Stable: among equals the one that was named first.
    candidates.sort_by(|a, b| b.hit_ratio.total_cmp(&a.hit_ratio));
    let judged = |policy: PolicyKind| {
        let known = candidates.iter().find(|candidate| candidate.policy == policy);
        known.cloned().unwrap_or_else(|| judge(policy))
    };
    let (lru, usual) = (judged(PolicyKind::Lru), judged(PolicyKind::default()));
    Ok(Advice { candidates, lru, usual, one_in, samples })
}

/// The mean, and half of the interval that holds the true one with 95 %: Student's, as a few samples tell
/// little of how much they differ.
pub(crate) fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = if count > 1.0 { (squares / (count - 1.0) / count).sqrt() } else { 0.0 };
    (mean, error * student(values.len().saturating_sub(1)))
}

/// The quantile of Student's distribution that leaves out 5 % at both ends together.
fn student(freedom: usize) -> f64 {
    const FEW: [f64; 8] = [0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365];
    FEW.get(freedom).copied().unwrap_or_else(|| 1.96 + 2.8 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        let (middle, half) = mean(&[1.0, 2.0, 3.0, 4.0]);
        // A standard error of 0.645, three degrees of freedom.
        assert!((middle - 2.5).abs() < 1e-12 && (half - 2.054).abs() < 1e-3, "{half}");
        assert_eq!(mean(&[7.0]), (7.0, 0.0));
        assert!((student(30) - 2.042).abs() < 0.02 && (student(8) - 2.306).abs() < 0.01);
    }

    #[test]
    fn nothing_is_recommended_where_nothing_is_gained() {
        // Every block once: no policy hits anything.
        let once = ReferenceStream::of_reads((0..50_000).collect());
        let advice = tune(&once, &TuningQuestion::new(8192)).unwrap();
        assert_eq!((advice.recommended(), advice.best().hit_ratio), (None, advice.usual.hit_ratio));
        // A fifth of all reads are of blocks that come back after four times as many others as the cache holds:
        // those who count uses keep them.
        let spread = |at: u32| at.wrapping_mul(0x9e37_79b9) >> 7;
        let read = |at: u32| match at % 5 {
            0 => spread(at) % 6000,
            rest => 6000 + at / 5 * 4 + rest - 1,
        };
        let counting = ReferenceStream::of_reads((0..400_000).map(read).collect());
        let advice = tune(&counting, &TuningQuestion::new(8192)).unwrap();
        let best = advice.recommended().unwrap();
        assert!(best.hit_ratio > advice.usual.hit_ratio + 0.01, "{best:?}");
    }
}

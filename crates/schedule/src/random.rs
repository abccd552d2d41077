//! Random numbers from a seed: the same seed gives the same run on every machine.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that starts from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform between 0 and 1, neither of them ever.
    pub const fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A whole number below `limit`; 0 when that is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        (self.unit() * limit as f64) as u64
    }

    /// Normal with mean 0 and variance 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Pareto: P(X <= x) = 1 - (scale / x)^shape for x >= scale.
    pub fn pareto(&mut self, shape: f64, scale: f64) -> f64 {
        scale * (-self.unit().ln() / shape).exp()
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_their_means() {
        let mut random = Random::new(7);
        let mut mean = |draw: fn(&mut Random) -> f64| {
            (0..200_000).map(|_| draw(&mut random)).sum::<f64>() / 200_000.0
        };
        assert!((mean(Random::unit) - 0.5).abs() < 0.005);
        assert!(mean(Random::normal).abs() < 0.01);
        // shape / (shape - 1) * scale.
        assert!((mean(|r| r.pareto(3.0, 2.0)) - 3.0).abs() < 0.05);
        assert!((mean(|r| r.exponential(4.0)) - 4.0).abs() < 0.05);
    }
}

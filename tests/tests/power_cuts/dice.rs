//! Random numbers from a seed (splitmix64).

/// A sequence of them.
pub(crate) struct Dice(u64);

impl Dice {
    /// The sequence of a seed, and of what it is used for.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Any number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 8) % bound
    }
}

/// A number that looks random and follows from another one.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

//! The seed's model: X = R/2 + S d/D ("Predicting Disk Scheduling Performance with Virtual
//! Machines", 2010, section 4), with what it leaves out: the time of the transfer, for writes another one
//! where they are slower, and accesses that go on where the last one ended.

use super::{Model, spread::Spread};
use crate::{CacheShape, DiskRequest, Nanos, Op, Random, request::from_ms};
use serde::{Deserialize, Serialize};

/// The parameters of a profile's section `linear`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Milliseconds of every access: half a rotation, and what else does not depend on distance.
    pub base_ms: f64,
    /// Milliseconds that a seek over the whole disk takes longer.
    pub seek_ms: f64,
    /// Milliseconds of a read out of the cache on board.
    pub hit_ms: Spread,
    /// Microseconds for each sector moved; the seed has none.
    #[serde(default)]
    pub sector_us: f64,
    /// Microseconds for each sector written; [`sector_us`](Self::sector_us) where absent.
    pub write_sector_us: Option<f64>,
    /// Milliseconds of an access that begins where the last one ended, in place of
    /// [`base_ms`](Self::base_ms), which it takes where absent, as the seed's does.
    pub sequential_ms: Option<f64>,
}

impl Linear {
    /// Milliseconds until the head is there, from a part of the disk away.
    fn positioning_ms(&self, part: f64) -> f64 {
        match self.sequential_ms {
            Some(ms) if part == 0.0 => ms,
            _ => self.base_ms + self.seek_ms * part,
        }
    }

    /// Milliseconds of the transfer.
    fn transfer_ms(&self, request: &DiskRequest) -> f64 {
        let write_us = self.write_sector_us.filter(|_| request.op == Op::Write);
        write_us.unwrap_or(self.sector_us) * 1e-3 * f64::from(request.sectors)
    }
}

/// The model.
#[derive(Clone, Debug)]
pub struct LinearModel {
    parameters: Linear,
    sectors: u64,
    cache: CacheShape,
}

impl LinearModel {
    pub(crate) fn new(parameters: Linear, sectors: u64, cache: CacheShape) -> Self {
        Self { parameters, sectors, cache }
    }
}

impl Model for LinearModel {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn cache(&self) -> CacheShape {
        self.cache
    }

    fn hit(&self, random: &mut Random) -> Nanos {
        from_ms(self.parameters.hit_ms.sample(random))
    }

    fn expected_hit(&self) -> Nanos {
        from_ms(self.parameters.hit_ms.mean())
    }

    fn expected(&self, _: Nanos, head: u64, request: &DiskRequest) -> Nanos {
        let part = head.abs_diff(request.start) as f64 / self.sectors as f64;
        from_ms(self.parameters.positioning_ms(part) + self.parameters.transfer_ms(request))
    }

    fn travel(&self, from: u64, to: u64) -> Nanos {
        from_ms(self.parameters.seek_ms * from.abs_diff(to) as f64 / self.sectors as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(more: &str) -> LinearModel {
        let text = format!("base_ms = 6\nseek_ms = 10\nhit_ms = 0.1\nsector_us = 12\n{more}");
        LinearModel::new(toml::from_str(&text).unwrap(), 1000, CacheShape::default())
    }

    fn time_us(model: &LinearModel, op: Op, head: u64) -> u64 {
        let request = DiskRequest { op, start: 500, sectors: 100, ..DiskRequest::default() };
        model.expected(0, head, &request) / 1000
    }

    #[test]
    fn an_access_takes_base_seek_and_transfer_wherever_the_head_is() {
        let plain = model("");
        for op in [Op::Read, Op::Write] {
            assert_eq!(time_us(&plain, op, 500), 6000 + 1200);
            assert_eq!(time_us(&plain, op, 400), 6000 + 1000 + 1200);
        }
    }

    #[test]
    fn going_on_and_writing_have_their_own_times_where_a_profile_gives_them() {
        let fuller = model("write_sector_us = 20\nsequential_ms = 0.5");
        assert_eq!(time_us(&fuller, Op::Read, 500), 500 + 1200);
        assert_eq!(time_us(&fuller, Op::Write, 500), 500 + 2000);
        assert_eq!(time_us(&fuller, Op::Read, 600), 6000 + 1000 + 1200);
        assert_eq!(time_us(&fuller, Op::Write, 600), 6000 + 1000 + 2000);
    }
}

//! The seed's model: X = R/2 + S d/D ("Predicting Disk Scheduling Performance with Virtual
//! Machines", 2010, section 4), with the transfer time that it leaves out.

use super::{Model, spread::Spread};
use crate::{CacheShape, DiskRequest, Nanos, Random, request::from_ms};
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
        let p = &self.parameters;
        let part = head.abs_diff(request.start) as f64 / self.sectors as f64;
        from_ms(p.base_ms + p.seek_ms * part + p.sector_us * 1e-3 * f64::from(request.sectors))
    }

    fn travel(&self, from: u64, to: u64) -> Nanos {
        from_ms(self.parameters.seek_ms * from.abs_diff(to) as f64 / self.sectors as f64)
    }
}

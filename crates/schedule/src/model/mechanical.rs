//! A rotating disk from its parts: seek curve, rotation, zones with different sectors per track. The
//! angle under the head follows from the time, so the order of requests changes what each one costs.

use super::{Model, spread::Spread};
use crate::{CacheShape, DiskRequest, Nanos, Random, request::from_ms};
use serde::{Deserialize, Serialize};

/// A zone: tracks with the same number of sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Its cylinders, from the outermost inwards.
    pub cylinders: u32,
    /// Sectors of each of its tracks.
    pub sectors_per_track: u32,
}

/// The parameters of a profile's section `mechanical`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mechanical {
    /// Rotations per minute.
    pub rpm: f64,
    /// Recording surfaces: tracks of a cylinder.
    pub surfaces: u32,
    /// Milliseconds of any seek to another cylinder: acceleration and settling.
    pub settle_ms: f64,
    /// Milliseconds that a seek over all cylinders takes longer.
    pub stroke_ms: f64,
    /// The part of the stroke that grows with the square root of the distance, 0 to 1; the rest is
    /// linear.
    pub root_part: f64,
    /// Milliseconds of every access before the seek: command and controller.
    pub overhead_ms: f64,
    /// The part of a rotation by which a track begins later than the one before it, 0 to 1.
    pub skew: f64,
    /// Milliseconds of a read out of the cache on board.
    pub hit_ms: Spread,
    /// The zones from the outermost inwards.
    pub zones: Vec<Zone>,
}

/// A zone laid out.
#[derive(Clone, Copy, Debug)]
struct Laid {
    sector: u64,
    cylinder: u64,
    per_track: u64,
}

/// The model.
#[derive(Clone, Debug)]
pub struct MechanicalModel {
    parameters: Mechanical,
    zones: Vec<Laid>,
    cylinders: f64,
    rotation: f64,
    sectors: u64,
    cache: CacheShape,
    /// Whether the angle under the head is known.
    knows_angle: bool,
}

/// Where a sector is.
#[derive(Clone, Copy, Debug)]
struct SectorPosition {
    cylinder: u64,
    /// Where on its track, as a part of a rotation.
    angle: f64,
    per_track: u64,
}

impl MechanicalModel {
    pub(crate) fn new(parameters: Mechanical, sectors: u64, cache: CacheShape) -> Self {
        let (mut sector, mut cylinder) = (0, 0);
        let mut zones = Vec::with_capacity(parameters.zones.len());
        for zone in &parameters.zones {
            let per_track = u64::from(zone.sectors_per_track);
            zones.push(Laid { sector, cylinder, per_track });
            cylinder += u64::from(zone.cylinders);
            sector += u64::from(zone.cylinders) * per_track * u64::from(parameters.surfaces);
        }
        let rotation = 60e9 / parameters.rpm;
        let cylinders = cylinder as f64;
        Self { parameters, zones, cylinders, rotation, sectors, cache, knows_angle: true }
    }

    /// The disk as whoever sends it requests can know it: the angle under the head is not known. An access
    /// that does not go on where the last one ended is expected to wait for half a turn.
    #[must_use]
    pub(crate) fn seen_from_outside(self) -> Self {
        Self { knows_angle: false, ..self }
    }

    /// How many sectors the zones hold.
    pub(crate) fn capacity(parameters: &Mechanical) -> u64 {
        let surfaces = u64::from(parameters.surfaces);
        let zone = |z: &Zone| u64::from(z.cylinders) * u64::from(z.sectors_per_track);
        parameters.zones.iter().map(|z| zone(z).saturating_mul(surfaces)).sum()
    }

    fn place(&self, sector: u64) -> SectorPosition {
        let index = self.zones.partition_point(|z| z.sector <= sector).saturating_sub(1);
        let zone = &self.zones[index];
        let inside = sector - zone.sector;
        let track = inside / zone.per_track;
        let surfaces = u64::from(self.parameters.surfaces);
        let skewed = (zone.cylinder * surfaces + track) as f64 * self.parameters.skew;
        let along = (inside % zone.per_track) as f64 / zone.per_track as f64;
        SectorPosition {
            cylinder: zone.cylinder + track / surfaces,
            angle: (along + skewed).fract(),
            per_track: zone.per_track,
        }
    }

    /// The seek curve, in nanoseconds.
    fn seek(&self, cylinders: u64) -> f64 {
        if cylinders == 0 {
            return 0.0;
        }
        let p = &self.parameters;
        let part = cylinders as f64 / self.cylinders;
        let stroke = (1.0 - p.root_part) * part + p.root_part * part.sqrt();
        (p.settle_ms + p.stroke_ms * stroke) * 1e6
    }
}

impl Model for MechanicalModel {
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

    fn expected(&self, at: Nanos, head: u64, request: &DiskRequest) -> Nanos {
        let (from, to) = (self.place(head), self.place(request.start));
        let arm =
            self.seek(from.cylinder.abs_diff(to.cylinder)) + self.parameters.overhead_ms * 1e6;
        let turn = if self.knows_angle {
            let under_head = ((at as f64 + arm) / self.rotation).fract();
            (to.angle - under_head).rem_euclid(1.0)
        } else if request.start == head {
            0.0
        } else {
            0.5
        };
        let wait = turn * self.rotation;
        let moved = f64::from(request.sectors) / to.per_track as f64 * self.rotation;
        (arm + wait + moved) as Nanos
    }

    fn travel(&self, from: u64, to: u64) -> Nanos {
        self.seek(self.place(from).cylinder.abs_diff(self.place(to).cylinder)) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> MechanicalModel {
        let parameters = Mechanical {
            rpm: 15_000.0,
            surfaces: 2,
            settle_ms: 0.25,
            stroke_ms: 7.0,
            root_part: 0.75,
            overhead_ms: 0.1,
            skew: 0.0,
            hit_ms: Spread::Fixed(0.25),
            zones: vec![
                Zone { cylinders: 100, sectors_per_track: 1000 },
                Zone { cylinders: 100, sectors_per_track: 500 },
            ],
        };
        MechanicalModel::new(parameters, 300_000, CacheShape::default())
    }

    fn read(start: u64) -> DiskRequest {
        DiskRequest { start, sectors: 10, ..DiskRequest::default() }
    }

    #[test]
    fn sectors_lie_where_the_zones_put_them() {
        let model = model();
        let (a, b, c) = (model.place(0), model.place(1500), model.place(200_000 + 1250));
        assert_eq!((a.cylinder, a.per_track), (0, 1000));
        assert_eq!((b.cylinder, b.angle), (0, 0.5));
        assert_eq!((c.cylinder, c.angle, c.per_track), (101, 0.5, 500));
    }

    #[test]
    fn an_access_waits_until_its_sector_comes_round() {
        let model = model();
        // 0.1 ms overhead; sector 500 is half a rotation of 4 ms on; ten sectors are 0.04 ms.
        assert_eq!(model.expected(0, 0, &read(500)), 2_040_000);
        // Begun 1.95 ms later it has just passed: a whole rotation more.
        assert_eq!(model.expected(1_950_000, 0, &read(500)), 4_090_000);
    }

    #[test]
    fn from_outside_half_a_turn_is_expected_whenever_an_access_begins() {
        let model = model().seen_from_outside();
        // 0.1 ms overhead, half a turn of 4 ms, and ten sectors in 0.04 ms.
        assert_eq!(model.expected(0, 0, &read(500)), 2_140_000);
        assert_eq!(model.expected(1_950_000, 0, &read(500)), 2_140_000);
        assert_eq!(model.expected(0, 500, &read(500)), 140_000, "it goes on");
    }

    #[test]
    fn the_mean_over_all_angles_is_half_a_rotation_and_the_seek() {
        let model = model();
        let mean = (0..4000).map(|i| model.expected(i * 1000, 0, &read(100_000))).sum::<u64>();
        let seek = model.travel(0, 100_000);
        let theory = 100_000.0 + seek as f64 + 2_000_000.0 + 40_000.0;
        assert!((mean as f64 / 4000.0 / theory - 1.0).abs() < 1e-3);
        assert!(seek > model.travel(0, 50_000) && model.travel(5, 9) == 0);
    }
}

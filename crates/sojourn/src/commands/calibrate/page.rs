//! The page with the plots of a calibration.

use super::Calibration;
use report::{Axis, Plot, Report, Series, Unit};
use schedule::model::bins;

/// The page.
pub(super) fn page(found: &Calibration) -> Report {
    let profile = found.profile();
    let mut page = Report::new(format!("Calibration of {}", profile.name)).text(&profile.source);
    match found {
        Calibration::Rotating(found) => {
            let line = found.line;
            let seconds = |points: &[(f64, f64)]| {
                points.iter().map(|(x, ms)| (*x, ms * 1e-3)).collect::<Vec<_>>()
            };
            let straight = [0.0, 1.0].map(|x| (x, (line.base_ms + line.seek_ms * x) * 1e-3));
            let mut plot = Plot::new(
                "Access by distance (the seed's Figure 1)",
                Axis::new("distance, as a part of the disk", Unit::Number),
                Axis::new("access", Unit::Seconds),
            )
            .series(Series::new("random reads, average of 1001 points", seconds(&found.figure)))
            .series(Series::new("line", straight).dashed());
            if let (Some(measured), Ok(sectors)) = (&profile.bins, profile.sectors()) {
                let means = measured.access_ms.iter().enumerate().map(|(index, spread)| {
                    let (from, to) = bins::distances(index);
                    let middle = (from as f64 + to.min(sectors) as f64) / 2.0;
                    (middle / sectors as f64, spread.mean() * 1e-3)
                });
                plot = plot.series(Series::new("profile, mean of each distance", means));
            }
            page = page.plot(plot);
        }
        Calibration::Flash(found) => {
            let measured = found.sizes.iter().map(|(bytes, ms, _)| (*bytes as f64, ms * 1e-3));
            let model = found.sizes.iter().map(|(bytes, _, ms)| (*bytes as f64, ms * 1e-3));
            page = page.plot(
                Plot::new(
                    "Reads by size, one at a time: medians",
                    Axis::log("size", Unit::Bytes),
                    Axis::log("read", Unit::Seconds),
                )
                .series(Series::new("measured", measured))
                .series(Series::new("profile", model).dashed()),
            );
            let measured = found.depths.iter().map(|(depth, rate, _)| (*depth as f64, *rate));
            let model = found.depths.iter().map(|(depth, _, rate)| (*depth as f64, *rate));
            page = page.plot(
                Plot::new(
                    "Reads of 4 KiB per second by depth",
                    Axis::log("reads in flight", Unit::Number),
                    Axis::new("reads per second", Unit::Number),
                )
                .series(Series::new("measured", measured))
                .series(Series::new("profile", model).dashed()),
            );
        }
    }
    page.preformatted(&super::text(found))
}

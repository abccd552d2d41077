//! What a calibration predicts, against the disk that it was made of.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use schedule::Profile;
use schedule::calibrate::{rotating, simulated::SimulatedDisk};
use schedule::load::layout::Layout;
use schedule::load::surge::{Habits, Surge};
use schedule::scheduler::make;
use schedule::simulation::{SimulationOutcome, SimulationSetup, run};
use std::sync::Arc;

fn outcome(profile: &Profile, scheduler: &str, layout: &Arc<Layout>) -> SimulationOutcome {
    run(SimulationSetup {
        model: profile.model().unwrap(),
        believed: None,
        shadow: None,
        scheduler: make(scheduler).unwrap(),
        load: Box::new(Surge::new(Arc::clone(layout), Habits::default(), 1)),
        outstanding: 2,
        requests: 30_000,
        warm_up: 3000,
        seed: 1,
        samples: false,
    })
    .unwrap()
}

#[test]
fn a_calibrated_disk_predicts_four_schedulers_within_five_percent_and_a_line_does_not() {
    let mut truth = Profile::named("cheetah-15k4-mechanical").unwrap();
    truth.mechanical.as_mut().unwrap().hit_ms = schedule::model::spread::Spread::Fixed(0.18);
    let mut probe = SimulatedDisk::new(truth.model().unwrap(), 3);
    let found = rotating::calibrate(&mut probe, "found", "a test", 300, 1).unwrap();
    let mut line = Profile::named("cheetah-15k4").unwrap();
    let linear = line.linear.as_mut().unwrap();
    (linear.base_ms, linear.seek_ms) = (found.line.base_ms, found.line.seek_ms);
    let layout = Arc::new(Layout::new(143_374_744, 300_000, 42).unwrap());
    let mut worst_of_line = 0f64;
    for scheduler in ["cats", "deadline", "fcfs", "clook"] {
        let figures = |profile: &Profile| {
            let outcome = outcome(profile, scheduler, &layout);
            [outcome.service.mean_ms(), outcome.response.mean_ms()]
        };
        let (is, predicted, by_line) = (figures(&truth), figures(&found.profile), figures(&line));
        for i in 0..2 {
            let error = predicted[i] / is[i] - 1.0;
            assert!(error.abs() < 0.05, "{scheduler}: {is:?} predicted as {predicted:?}");
            worst_of_line = worst_of_line.max((by_line[i] / is[i] - 1.0).abs());
        }
    }
    assert!(worst_of_line > 0.15, "the seed's line was off by {worst_of_line} at most");
}

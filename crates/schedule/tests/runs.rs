//! Whole runs: what holds for every scheduler on every disk, and what fails loudly.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use schedule::load::layout::Layout;
use schedule::load::random::{AccessPattern, Accesses, Closed, OpenLoad};
use schedule::load::surge::{Habits, Surge};
use schedule::load::{Load, buffered::BufferedLoad};
use schedule::model::disk::Travel;
use schedule::scheduler::{ALL, make};
use schedule::simulation::{SimulationOutcome, SimulationSetup, run};
use schedule::{Decision, DiskRequest, Profile, Scheduler, View};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// A small disk that has aged, for all tests of this file.
static LAYOUT: LazyLock<Arc<Layout>> =
    LazyLock::new(|| Arc::new(Layout::new(143_374_744, 30_000, 42).unwrap()));

fn setup<'a>(
    profile: &str,
    scheduler: &str,
    load: Box<dyn Load + 'a>,
    requests: u64,
) -> SimulationSetup<'a> {
    SimulationSetup {
        model: Profile::named(profile).unwrap().model().unwrap(),
        believed: None,
        shadow: None,
        scheduler: make(scheduler).unwrap(),
        load,
        outstanding: 2,
        requests,
        warm_up: requests / 10,
        seed: 1,
        samples: false,
    }
}

fn mixed(profile: &str, clients: u32, reads: f64) -> Box<dyn Load> {
    let disk = Profile::named(profile).unwrap().sectors().unwrap();
    let accesses = Accesses { places: AccessPattern::Uniform, sectors: 8, reads, disk };
    Box::new(Closed::new(accesses, clients, 1.0, 3))
}

fn surge(seed: u64) -> Box<dyn Load> {
    Box::new(Surge::new(LAYOUT.clone(), Habits::default(), seed))
}

#[test]
fn every_scheduler_serves_everything_on_every_disk_and_the_laws_hold() {
    for profile in schedule::profile::shipped().unwrap() {
        for kind in ALL {
            let load = mixed(&profile.name, 20, 0.7);
            let outcome = run(setup(&profile.name, kind.name, load, 2000));
            let outcome =
                outcome.unwrap_or_else(|e| panic!("{} on {}: {e}", kind.name, profile.name));
            assert_eq!(outcome.response.count(), 1800, "{} on {}", kind.name, profile.name);
        }
    }
}

#[test]
fn a_load_that_ends_is_served_to_the_last_request() {
    for kind in ALL {
        let requests = (0..500u64).map(|i| trace::Request {
            time: i * 3_000_000,
            client: (i % 7) as u32,
            op: if i % 3 == 0 { trace::Op::Write } else { trace::Op::Read },
            offset: (i * 7_919_000_011) % 70_000_000_000 / 4096 * 4096,
            length: 4096,
            ..trace::Request::default()
        });
        let source = trace::Memory::new(trace::Header::default(), requests.collect());
        let selection =
            schedule::load::replay::ReplaySelection { disk: None, speed: 1.0, rate: None };
        let load = schedule::load::replay::Replay::new(Box::new(source), selection).unwrap();
        let mut setup = setup("cheetah-15k4", kind.name, Box::new(load), u64::MAX);
        setup.warm_up = 0;
        let outcome = run(setup).unwrap_or_else(|e| panic!("{}: {e}", kind.name));
        assert_eq!(outcome.response.count(), 500, "{}", kind.name);
    }
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_last_digit() {
    let figures = |o: &SimulationOutcome| (o.window, o.response.sum(), o.service.sum(), o.hits);
    for scheduler in ["cats", "cfq", "hit-satf"] {
        let once = run(setup("cheetah-15k4-mechanical", scheduler, surge(7), 4000)).unwrap();
        let again = run(setup("cheetah-15k4-mechanical", scheduler, surge(7), 4000)).unwrap();
        assert_eq!(figures(&once), figures(&again));
        let other = run(setup("cheetah-15k4-mechanical", scheduler, surge(8), 4000)).unwrap();
        assert_ne!(figures(&once), figures(&other));
    }
}

#[test]
fn hit_satf_is_sooner_than_cats_where_rotation_is_known_and_as_soon_where_not() {
    // The whole of the seed's disk: on a small one nearly everything is a hit.
    let layout = Arc::new(Layout::new(143_374_744, 1_000_000, 42).unwrap());
    // Mean response and its 99th percentile, over three seeds.
    let figures = |profile: &str, scheduler: &str, outstanding| {
        let runs = (1..=3).map(|seed| {
            let load = Box::new(Surge::new(layout.clone(), Habits::default(), seed));
            let setup = setup(profile, scheduler, load, 30_000);
            let outcome = run(SimulationSetup { outstanding, seed, ..setup }).unwrap();
            (outcome.response.mean_ms(), outcome.response.quantile_ms(0.99))
        });
        runs.fold((0.0, 0.0), |sum, run| (sum.0 + run.0 / 3.0, sum.1 + run.1 / 3.0))
    };
    for outstanding in [1, 2] {
        let of_cats = |profile| {
            let (cats, ours) =
                (figures(profile, "cats", outstanding), figures(profile, "hit-satf", outstanding));
            (ours.0 / cats.0, ours.1 / cats.1)
        };
        let (mean, p99) = of_cats("cheetah-15k4-mechanical");
        assert!(mean <= 0.82 && p99 <= 0.6, "{outstanding} outstanding: {mean} {p99}");
        let (mean, _) = of_cats("cheetah-15k4");
        assert!(mean <= 1.02, "{outstanding} outstanding, on the line: {mean}");
    }
}

#[test]
fn one_client_without_thinking_gets_what_the_model_says() {
    let mut setup = setup("cheetah-15k4", "fcfs", mixed("cheetah-15k4", 1, 1.0), 20_000);
    setup.load = {
        let disk = 143_374_744;
        let accesses = Accesses { places: AccessPattern::Uniform, sectors: 8, reads: 1.0, disk };
        Box::new(Closed::new(accesses, 1, 0.0, 3))
    };
    let outcome = run(setup).unwrap();
    // The mean distance of two uniform places is a third of the disk.
    assert!((outcome.response.mean_ms() - 6.0).abs() < 0.06, "{}", outcome.response.mean_ms());
    assert!((outcome.utilisation() - 1.0).abs() < 1e-9);
}

#[test]
fn an_open_load_at_a_constant_service_waits_as_pollaczek_and_khinchine_say() {
    let text = "name = \"m\"\nsize = \"1G\"\n[linear]\nbase_ms = 5\nseek_ms = 0\nhit_ms = 0\n";
    let accesses =
        Accesses { places: AccessPattern::Uniform, sectors: 8, reads: 1.0, disk: 1 << 21 };
    let mut setup = setup("cheetah-15k4", "fcfs", mixed("cheetah-15k4", 1, 1.0), 200_000);
    setup.model = Profile::parse(text, "m").unwrap().model().unwrap();
    setup.load = Box::new(OpenLoad::new(accesses, 120.0, 5));
    let outcome = run(setup).unwrap();
    // M/D/1: S + rho S / (2 (1 - rho)) with rho = 0.6.
    let theory = 5.0 + 0.6 * 5.0 / (2.0 * 0.4);
    assert!(
        (outcome.response.mean_ms() / theory - 1.0).abs() < 0.03,
        "{}",
        outcome.response.mean_ms()
    );
    assert!((outcome.utilisation() - 0.6).abs() < 0.01);
}

#[test]
fn hits_first_answers_more_out_of_the_cache_on_board_and_sooner() {
    let of = |scheduler| run(setup("cheetah-15k4", scheduler, surge(1), 20_000)).unwrap();
    let (cats, deadline, plain) = (of("cats"), of("deadline"), of("cats-no-cache"));
    assert!(cats.response.mean_ms() < deadline.response.mean_ms());
    assert!(deadline.response.mean_ms() < plain.response.mean_ms());
    assert!(cats.hit_ratio() > plain.hit_ratio());
    assert_eq!(cats.foreseen(), 1.0, "shadow and cache are the same code");
}

#[test]
fn through_a_page_cache_requests_are_longer_and_fewer() {
    let load = BufferedLoad::new(LAYOUT.clone(), Habits::default(), 16_640, 1);
    let buffered = run(setup("cheetah-15k4", "cats", Box::new(load), 20_000)).unwrap();
    let direct = run(setup("cheetah-15k4", "cats", surge(1), 20_000)).unwrap();
    let mean = |o: &SimulationOutcome| o.sectors as f64 / o.response.count() as f64;
    assert_eq!(mean(&direct), 8.0);
    assert!(mean(&buffered) > 16.0, "{}", mean(&buffered));
    assert!(buffered.sectors_per_ms() > direct.sectors_per_ms());
}

#[test]
fn a_load_beyond_what_the_disk_can_do_is_refused_not_simulated_for_ever() {
    let accesses =
        Accesses { places: AccessPattern::Uniform, sectors: 8, reads: 1.0, disk: 1 << 24 };
    let mut setup = setup("cheetah-15k4", "fcfs", mixed("cheetah-15k4", 1, 1.0), u64::MAX);
    setup.load = Box::new(OpenLoad::new(accesses, 1e6, 5));
    setup.warm_up = 0;
    let error = run(setup).unwrap_err();
    assert!(error.message().contains("more than the disk can do"), "{error}");
}

#[test]
fn a_request_beyond_the_disk_is_refused() {
    let load = mixed("hdd-7200", 5, 1.0);
    let error = run(setup("cheetah-15k4", "fcfs", load, 1000)).unwrap_err();
    assert!(error.message().contains("take a larger profile"), "{error}");
}

/// A scheduler that does something wrong once, at its hundredth request.
#[derive(Debug, Default)]
struct Broken {
    waiting: Vec<DiskRequest>,
    given: u32,
    repeats: bool,
}

impl Scheduler for Broken {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.waiting.push(request);
    }

    fn next(&mut self, _: &View<'_>) -> Decision {
        let Some(request) = self.waiting.pop() else { return Decision::Idle };
        self.given += 1;
        match (self.given, self.repeats) {
            (100, true) => self.waiting.push(request),
            (100, false) => return Decision::Idle,
            _ => {}
        }
        Decision::Go(request, Travel::Direct)
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[test]
fn a_scheduler_that_repeats_or_loses_a_request_fails_the_run() {
    for (repeats, message) in [(true, "which it does not have"), (false, "nothing happens")] {
        let mut setup = setup("cheetah-15k4", "fcfs", mixed("cheetah-15k4", 1, 1.0), 5000);
        setup.scheduler = Box::new(Broken { repeats, ..Broken::default() });
        let error = run(setup).unwrap_err();
        assert!(error.message().contains(message), "{error}");
    }
}

/// First come, first served; and the longest time that the disk was expected to take until it begins.
#[derive(Debug)]
struct Watching {
    waiting: std::collections::VecDeque<DiskRequest>,
    most: Arc<AtomicU64>,
}

impl Scheduler for Watching {
    fn add(&mut self, request: DiskRequest, _: &View<'_>) {
        self.waiting.push_back(request);
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        self.most.fetch_max(view.start - view.now, Relaxed);
        self.waiting.pop_front().map_or(Decision::Idle, |next| Decision::Go(next, Travel::Direct))
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[test]
fn what_is_expected_of_a_disk_that_is_faster_than_believed_does_not_run_away() {
    let believed = Profile::named("hdd-7200").unwrap().model().unwrap();
    let most = Arc::new(AtomicU64::new(0));
    let load = mixed("cheetah-15k4", 20, 1.0);
    let mut setup = setup("cheetah-15k4", "fcfs", load, 5000);
    setup.scheduler = Box::new(Watching { waiting: Default::default(), most: Arc::clone(&most) });
    (setup.believed, setup.outstanding) = (Some(&*believed), 4);
    run(setup).unwrap();
    let most = most.load(Relaxed) / 1_000_000;
    assert!((5..100).contains(&most), "{most} ms for the three before it");
}

#[test]
fn names_and_parameters_that_are_not_known_are_told_with_those_that_are() {
    let message = |text| make(text).unwrap_err().message().to_owned();
    assert!(message("elevator").contains("there are fcfs, sstf"));
    assert!(message("fcfs:x=1").contains("no parameter \"x\"; it has none"));
    assert!(message("cats:x=1").contains("read-delay"));
    assert!(message("cats:read-delay=soon").contains("give 0 to"));
    assert!(message("cats:table").contains("NAME=VALUE"));
    assert!(message("cats:table=maybe").contains("on or off"));
    make("cats:read-delay=never:table=off:hold=2:hold-below=4").unwrap();
}

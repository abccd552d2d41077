use super::*;
use crate::{Model, Profile, Random, SegmentCache, request::from_ms};
use proptest::prelude::*;

/// A scheduler with a clock that the test sets.
struct Bench {
    cfq: Box<dyn Scheduler>,
    model: Box<dyn Model>,
    shadow: SegmentCache,
    now: Nanos,
    sent: u64,
    on_disk: Vec<DiskRequest>,
}

impl Bench {
    fn new(parameters: &str) -> Self {
        let model = Profile::named("cheetah-15k4").unwrap().model().unwrap();
        let mut parameters = Parameters::parse("cfq", parameters).unwrap();
        let cfq = make(&mut parameters).unwrap();
        let shadow = SegmentCache::new(model.cache());
        Self { cfq, model, shadow, now: 0, sent: 0, on_disk: Vec::new() }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut dyn Scheduler, &View<'_>) -> T) -> T {
        let (start, shadow, model) = (self.now, &self.shadow, &*self.model);
        act(&mut *self.cfq, &View { now: self.now, start, head: 0, shadow, model })
    }

    fn send(&mut self, client: u32, start: u64, op: Op) {
        self.sent += 1;
        let awaited = op == Op::Read;
        let (id, arrived) = (self.sent, self.now);
        let request = DiskRequest { id, client, op, awaited, start, sectors: 8, arrived, tag: 0 };
        self.with(|cfq, view| cfq.add(request, view));
    }

    fn read(&mut self, client: u32, start: u64) {
        self.send(client, start, Op::Read);
    }

    fn next(&mut self) -> Decision {
        let decision = self.with(|cfq, view| cfq.next(view));
        if let Decision::Go(request, _) = decision {
            self.on_disk.push(request);
        }
        decision
    }

    /// Whose request goes next.
    fn client(&mut self) -> u32 {
        match self.next() {
            Decision::Go(request, _) => request.client,
            other => panic!("{other:?}"),
        }
    }

    /// The first request on the disk is done, so many milliseconds later.
    fn done(&mut self, after_ms: f64) -> DiskRequest {
        self.now += from_ms(after_ms);
        let request = self.on_disk.remove(0);
        self.with(|cfq, view| cfq.done(&request, view));
        request
    }

    /// Makes these clients seeky; nothing waits then.
    fn scatter(&mut self, clients: std::ops::Range<u32>) {
        for round in 0..8 {
            for client in clients.clone() {
                self.read(client, (u64::from(client) + 1) * 10_000_000 + round * 1_000_000);
            }
            self.runs(5.0, |request| request.client);
        }
    }

    /// How many requests of one client, or of one kind, go before another one's, from one end to the other, when
    /// each takes so long.
    fn runs(&mut self, each_ms: f64, of: impl Fn(&DiskRequest) -> u32) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        loop {
            match self.next() {
                Decision::Go(request, _) => match runs.last_mut() {
                    Some((last, count)) if *last == of(&request) => *count += 1,
                    _ => runs.push((of(&request), 1)),
                },
                Decision::Wait(until) => {
                    self.now = until;
                    continue;
                }
                Decision::Idle if self.on_disk.is_empty() => return runs,
                Decision::Idle => {}
            }
            if !self.on_disk.is_empty() {
                self.done(each_ms);
            }
        }
    }
}

#[test]
fn a_client_has_the_disk_for_its_slice() {
    // A slice begins when the first request is done, and ends with the one in which its time is up.
    for (parameters, clients, run) in [("low-latency=off", 2, 11), ("", 2, 11), ("", 10, 4)] {
        let mut bench = Bench::new(parameters);
        for client in 0..clients {
            for i in 0..100 {
                bench.read(client, u64::from(client) * 10_000_000 + i * 8);
            }
        }
        let runs = bench.runs(10.0, |request| request.client);
        let full = runs.iter().filter(|(_, count)| *count == run).count();
        assert!(full * 10 >= runs.len() * 8, "{parameters} {clients}: {runs:?}");
        assert_eq!(runs.iter().map(|(_, count)| count).sum::<u32>(), clients * 100);
    }
}

#[test]
fn the_disk_idles_for_the_next_request_of_a_client_and_not_for_ever() {
    let mut bench = Bench::new("");
    bench.read(1, 1000);
    bench.read(2, 50_000_000);
    assert_eq!(bench.client(), 1);
    assert_eq!(bench.next(), Decision::Idle, "it is on the disk");
    bench.done(5.0);
    let until = bench.now + from_ms(8.0);
    assert_eq!(bench.next(), Decision::Wait(until));
    bench.now += from_ms(7.0);
    bench.read(1, 1008);
    assert_eq!(bench.client(), 1, "it came in time");
    bench.done(1.0);
    let Decision::Wait(until) = bench.next() else { panic!("no wait") };
    bench.now = until;
    assert_eq!(bench.client(), 2, "nothing came");
}

#[test]
fn with_slice_idle_0_nobody_is_waited_for() {
    let mut bench = Bench::new("slice-idle=0");
    bench.read(1, 1000);
    bench.read(2, 50_000_000);
    assert_eq!(bench.client(), 1);
    bench.done(5.0);
    assert_eq!(bench.client(), 2);
}

#[test]
fn who_thinks_longer_than_the_idle_window_is_not_waited_for() {
    let mut bench = Bench::new("");
    for i in 0..8 {
        bench.read(1, 1000 + i * 8);
        assert_eq!(bench.client(), 1);
        bench.done(1.0);
        bench.now += from_ms(12.0);
    }
    bench.read(1, 2000);
    bench.read(2, 50_000_000);
    assert_eq!(bench.client(), 1);
    bench.done(1.0);
    assert_eq!(bench.client(), 2);
}

#[test]
fn seeky_clients_go_one_after_the_other_and_the_disk_idles_behind_the_last() {
    let mut bench = Bench::new("");
    bench.scatter(0..3);
    for client in 0..3 {
        bench.read(client, 100_000_000 + u64::from(client) * 1_000_000);
    }
    let mut served = Vec::new();
    for _ in 0..3 {
        served.push(bench.client());
        bench.done(1.0);
    }
    served.sort_unstable();
    assert_eq!(served, [0, 1, 2], "nobody was waited for");
    // A client that is not seeky has to wait for the end of the idle window, a seeky one has not.
    bench.read(9, 1000);
    assert!(matches!(bench.next(), Decision::Wait(_)));
    bench.read(0, 70_000_000);
    assert_eq!(bench.client(), 0);
}

#[test]
fn with_seeky_idle_a_seeky_client_is_waited_for_a_little() {
    for (parameters, waits) in [("", false), ("seeky-idle=2", true)] {
        let mut bench = Bench::new(parameters);
        bench.scatter(0..1);
        bench.read(0, 100_000_000);
        bench.read(1, 50_000_000);
        assert_eq!(bench.client(), 0);
        bench.done(1.0);
        match waits {
            true => assert_eq!(bench.next(), Decision::Wait(bench.now + from_ms(2.0))),
            false => assert_eq!(bench.client(), 1),
        }
    }
}

#[test]
fn what_is_near_the_head_goes_while_the_disk_idles() {
    for (start, goes) in [(1000 + NEAR, true), (1000 + 10 * NEAR, false)] {
        let mut bench = Bench::new("");
        bench.read(1, 1000);
        assert_eq!(bench.client(), 1);
        bench.read(3, 90_000_000);
        bench.done(1.0);
        assert!(matches!(bench.next(), Decision::Wait(_)));
        bench.read(2, start);
        match goes {
            true => assert_eq!(bench.client(), 2),
            false => assert!(matches!(bench.next(), Decision::Wait(_))),
        }
    }
}

#[test]
fn a_waiting_queue_that_is_near_the_head_is_not_idled_before() {
    let mut bench = Bench::new("");
    bench.read(1, 1000);
    bench.read(3, 90_000_000);
    bench.read(2, 1100);
    assert_eq!(bench.client(), 1);
    bench.done(1.0);
    assert_eq!(bench.client(), 2, "before client 3, who was first");
}

#[test]
fn writes_wait_while_reads_are_on_the_disk_and_go_in_batches() {
    let mut bench = Bench::new("");
    bench.read(1, 1000);
    assert_eq!(bench.client(), 1);
    for i in 0..64 {
        // Of many clients, in one queue.
        bench.send(100 + i, 60_000_000 + u64::from(i) * 8, Op::Write);
    }
    bench.done(1.0);
    for client in 1..4 {
        (0..64).for_each(|i| bench.read(client, u64::from(client) * 10_000_000 + i * 8));
    }
    assert_eq!(bench.client(), 1);
    assert!(matches!(bench.next(), Decision::Go(DiskRequest { op: Op::Read, .. }, _)));
    while !bench.on_disk.is_empty() {
        bench.done(1.0);
    }
    let runs = bench.runs(2.0, |request| u32::from(request.op == Op::Write));
    let writes: Vec<u32> = runs.iter().filter(|run| run.0 == 1).map(|run| run.1).collect();
    assert_eq!(writes.iter().sum::<u32>(), 64);
    // What is left when the reads are done goes in one.
    let (_, before) = writes.split_last().unwrap();
    assert!(!before.is_empty() && before.iter().all(|count| *count <= 16), "{writes:?}");
}

#[test]
fn a_read_ends_the_turn_of_writes() {
    let mut bench = Bench::new("");
    (0..64).for_each(|i| bench.send(7, 60_000_000 + i * 8, Op::Write));
    assert!(matches!(bench.next(), Decision::Go(DiskRequest { op: Op::Write, .. }, _)));
    bench.read(1, 1000);
    bench.done(1.0);
    assert_eq!(bench.client(), 1);
}

#[test]
fn the_nearest_goes_next_and_once_a_slice_the_oldest_if_it_is_late() {
    // From the head on, and a little behind it before far ahead; the other way round from the late one.
    let (near, late) = ([1_000_000, 999_900, 5_000_000, 8], [8, 999_900, 1_000_000, 5_000_000]);
    for (waited, expected) in [(10.0, near), (200.0, late)] {
        let mut bench = Bench::new("slice-idle=0");
        bench.read(2, 1_000_000 - 8);
        assert_eq!(bench.client(), 2);
        // Behind the head, farther than a seek back may be; a little behind; far ahead; at the head.
        [8, 999_900, 5_000_000, 1_000_000].into_iter().for_each(|start| bench.read(1, start));
        bench.done(waited);
        let mut order = Vec::new();
        while let Decision::Go(request, _) = bench.next() {
            order.push(request.start);
            bench.done(1.0);
        }
        assert_eq!(order, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Closed clients, most of which read: some one behind the other, some anywhere, some for which nobody waits.
    #[test]
    fn nothing_is_lost_or_starved_and_the_disk_is_never_left_idle_for_long(
        seed: u64, clients in 1u32..40, depth in 1usize..6, low_latency: bool,
    ) {
        let mut bench = Bench::new(if low_latency { "" } else { "low-latency=off" });
        let mut random = Random::new(seed);
        let mut wakes: Vec<(Nanos, u32)> = (0..clients).map(|client| (0, client)).collect();
        let mut places = vec![0u64; clients as usize];
        let mut worst_read = 0;
        while bench.sent < 3000 || bench.cfq.waiting() > 0 || !bench.on_disk.is_empty() {
            if bench.sent < 3000 {
                for i in (0..wakes.len()).rev().filter(|i| wakes[*i].0 <= bench.now).collect::<Vec<_>>() {
                    let (_, client) = wakes.swap_remove(i);
                    let place = &mut places[client as usize];
                    *place = match client % 3 {
                        0 => *place + 8,
                        _ => random.below(143_000_000),
                    };
                    let start = *place;
                    bench.send(client, start, if client % 5 == 4 { Op::Write } else { Op::Read });
                }
            }
            let mut poll = None;
            while bench.on_disk.len() < depth {
                match bench.next() {
                    Decision::Go(request, _) => {
                        if request.op == Op::Read {
                            worst_read = worst_read.max(bench.now - request.arrived);
                        }
                    }
                    Decision::Wait(until) => {
                        prop_assert!(until > bench.now && until - bench.now <= from_ms(8.0));
                        poll = Some(until);
                        break;
                    }
                    Decision::Idle => {
                        let stuck = bench.cfq.waiting() > 0 && bench.on_disk.is_empty();
                        prop_assert!(!stuck, "{} wait, and nothing goes", bench.cfq.waiting());
                        break;
                    }
                }
            }
            if bench.on_disk.is_empty() {
                let next = wakes.iter().map(|wake| wake.0).filter(|_| bench.sent < 3000).min();
                let Some(at) = next.into_iter().chain(poll).min() else { continue };
                bench.now = at.max(bench.now);
            } else {
                let request = bench.done(0.2 + 8.0 * random.unit());
                wakes.push((bench.now + from_ms(12.0 * random.unit()), request.client));
            }
        }
        prop_assert_eq!(bench.cfq.waiting(), 0);
        // 40 clients, each with a slice of 100 ms and an idle window, twice.
        // What nobody waits for has no bound while others ask without a pause.
        prop_assert!(worst_read < from_ms(5000.0), "one waited for {} ms", worst_read as f64 / 1e6);
    }
}

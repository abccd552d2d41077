use super::{Anonymous, Cut, Sample, Selection, ShuffledPlaces};
use crate::{Header, Memory, MergeOptions, Merged, Op, Request, Source, TraceDisk};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PIECE: u64 = 4096;

fn drain(mut source: impl Source) -> (Header, Vec<Request>) {
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while source.read(&mut batch).unwrap() {
        assert!(!batch.is_empty() && batch.len() <= 65_536);
        all.extend_from_slice(&batch);
    }
    (source.header().clone(), all)
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (0u64..1000, 0u32..3, 0u32..2, 0usize..5, 0u64..1 << 24, 1u32..1 << 18);
    prop::collection::vec(one, 1..80).prop_map(|all| {
        let mut time = 0;
        let build = |(gap, client, disk, op, offset, length): (u64, u32, u32, usize, u64, u32)| {
            time += gap;
            let op = Op::ALL[op];
            let (offset, length) = if op == Op::Flush { (0, 0) } else { (offset, length) };
            Request { time, client, disk, op, offset, length, ..Request::default() }
        };
        all.into_iter().map(build).collect()
    })
}

fn memory(requests: &[Request]) -> Memory {
    let header = Header {
        clients: vec!["ann".into(), "bob".into(), "eve".into()],
        disks: vec![TraceDisk { name: "secret".into(), size: 1 << 25, base: "ours:1".into() }; 2],
        notes: "of our lab".into(),
        ..Header::default()
    };
    Memory::new(header, requests.to_vec())
}

/// The pieces that requests touch, with how often.
fn pieces(requests: &[Request]) -> BTreeMap<(u32, u64), u64> {
    let mut pieces = BTreeMap::new();
    for r in requests.iter().filter(|r| r.length > 0) {
        for piece in r.offset / PIECE..=(r.end() - 1) / PIECE {
            *pieces.entry((r.disk, piece)).or_default() += 1;
        }
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_sample_keeps_a_place_always_or_never(all in requests(), n in 1u64..9) {
        let (_, some) = drain(Sample::new(memory(&all), n, PIECE).unwrap());
        let (whole, part) = (pieces(&all), pieces(&some));
        for (piece, uses) in &part {
            prop_assert_eq!(whole.get(piece), Some(uses));
        }
        let bytes = |all: &[Request]| all.iter().map(|r| u64::from(r.length)).sum::<u64>();
        if n == 1 {
            prop_assert_eq!((part.len(), bytes(&some)), (whole.len(), bytes(&all)));
        }
        prop_assert!(some.windows(2).all(|w| w[0].time <= w[1].time));
    }

    #[test]
    fn shuffled_requests_stay_whole_and_meet_each_other_as_before(all in requests(), key: u64) {
        let places = ShuffledPlaces::of(&mut memory(&all), key).unwrap();
        let (header, shuffled) = drain(Anonymous::new(memory(&all), Some(places)));
        prop_assert_eq!(header.requests, Some(all.len() as u64));
        prop_assert_eq!(shuffled.len(), all.len());
        let mut moved = BTreeMap::new();
        for (before, after) in all.iter().zip(&shuffled) {
            prop_assert_eq!(Request { offset: before.offset, ..*after }, *before);
            for at in (0..u64::from(before.length)).step_by(512) {
                // The disks share their blocks, being of one image.
                let at = |r: &Request| r.offset + at;
                let (from, to) = (at(before), at(after));
                // What lay at one place still does, and what lay apart does not meet.
                prop_assert_eq!(*moved.entry((from, true)).or_insert(to), to);
                prop_assert_eq!(*moved.entry((to, false)).or_insert(from), from);
            }
        }
        let end =
            |all: &[Request]| all.iter().map(Request::end).max().unwrap_or(0).div_ceil(1 << 20);
        prop_assert!(end(&shuffled) <= end(&all));
        prop_assert!(header.disks.iter().all(|disk| disk.base == "image0"));
        let text = format!("{header:?}");
        for word in ["ann", "bob", "secret", "ours", "lab"] {
            prop_assert!(!text.contains(word), "{}", text);
        }
        let (header, plain) = drain(Anonymous::new(memory(&all), None));
        prop_assert_eq!(plain, all);
        prop_assert_eq!((header.clients.len(), header.disks[0].size), (3, 1 << 25));
    }

    #[test]
    fn a_merge_holds_every_request_once_in_order(a in requests(), b in requests()) {
        let boxed = |all: &[Request]| Box::new(memory(all)) as Box<dyn Source + Send>;
        let disks = MergeOptions { disks: true, ..MergeOptions::default() };
        for (same, most) in [(MergeOptions::default(), 4), (disks, 1)] {
            let traces = vec![("a".to_owned(), boxed(&a)), ("b".to_owned(), boxed(&b))];
            let (header, all) = drain(Merged::new(traces, same));
            prop_assert!(all.windows(2).all(|w| w[0].time <= w[1].time));
            prop_assert!(header.disks.len() <= most);
            prop_assert_eq!(header.requests, Some(all.len() as u64));
            let of = |trace: &str| -> Vec<(u64, u64, Op)> {
                let ours = |r: &&Request| header.clients[r.client as usize].starts_with(trace);
                all.iter().filter(ours).map(|r| (r.time, r.offset, r.op)).collect()
            };
            let short = |all: &[Request]| -> Vec<_> {
                all.iter().map(|r| (r.time, r.offset, r.op)).collect()
            };
            prop_assert_eq!(of("a/"), short(&a));
            prop_assert_eq!(of("b/"), short(&b));
        }
    }

    #[test]
    fn a_cut_keeps_what_was_asked_for(all in requests(), from in 0u64..40_000, long in 0u64..40_000) {
        let selection = Selection {
            times: Some(from..from + long),
            clients: vec![0, 2],
            ops: vec![Op::Read, Op::Trim],
            requests: Some(7),
            ..Selection::default()
        };
        let (_, cut) = drain(Cut::new(memory(&all), selection));
        let keep = |r: &&Request| {
            r.client != 1
                && matches!(r.op, Op::Read | Op::Trim)
                && (from..from + long).contains(&r.time)
        };
        let wanted = all.iter().filter(keep).take(7).map(|r| Request { time: r.time - from, ..*r });
        prop_assert_eq!(cut, wanted.collect::<Vec<_>>());
    }
}

#[test]
fn a_merge_in_proportion_spreads_every_trace_over_the_whole() {
    let of = |count: u64| {
        let one =
            |i: u64| Request { time: i * i, offset: i * PIECE, length: 4096, ..Request::default() };
        Box::new(memory(&(0..count).map(one).collect::<Vec<_>>())) as Box<dyn Source + Send>
    };
    let traces = vec![("long".to_owned(), of(9000)), ("short".to_owned(), of(300))];
    let (header, all) = drain(Merged::in_proportion(traces, MergeOptions::default()).unwrap());
    assert!(!header.times);
    assert!(all.iter().zip(0..).all(|(request, number)| request.time == number));
    let short: Vec<usize> = (0..all.len()).filter(|at| all[*at].disk == 1).collect();
    assert_eq!((all.len(), short.len()), (9300, 300));
    assert!(short.iter().zip(0..).all(|(at, number)| at.abs_diff(number * 31) <= 1));
    // A pipe does not say how long it is.
    struct Pipe(Header);
    impl Source for Pipe {
        fn header(&self) -> &Header {
            &self.0
        }
        fn read(&mut self, _: &mut Vec<Request>) -> block::Result<bool> {
            Ok(false)
        }
    }
    let pipe = Box::new(Pipe(Header::default())) as Box<dyn Source + Send>;
    let refused = Merged::in_proportion(vec![("pipe".to_owned(), pipe)], MergeOptions::default());
    assert!(
        refused.is_err_and(|e| e.message().contains("pipe") && e.message().contains("convert"))
    );
}

#[test]
fn about_one_place_of_n_is_in_a_sample() {
    let request = |i: u64| Request {
        time: i,
        disk: (i % 2) as u32,
        offset: i / 2 * PIECE,
        length: PIECE as u32,
        ..Request::default()
    };
    let all: Vec<Request> = (0..64_000).map(request).collect();
    let (_, some) = drain(Sample::new(memory(&all), 64, PIECE).unwrap());
    assert!((900..1100).contains(&some.len()), "{}", some.len());
    let disks: BTreeSet<u32> = some.iter().map(|r| r.disk).collect();
    assert_eq!(disks.len(), 2);
    assert!(Sample::new(memory(&all), 0, PIECE).is_err());
}

#[test]
fn disks_of_one_image_keep_the_same_places() {
    let request = |i: u64| Request {
        disk: (i % 2) as u32,
        offset: i / 2 * PIECE,
        length: PIECE as u32,
        ..Request::default()
    };
    let all: Vec<Request> = (0..6400).map(request).collect();
    let (_, some) = drain(Sample::new(memory(&all), 8, PIECE).unwrap());
    let of = |disk: u32| -> Vec<u64> {
        some.iter().filter(|r| r.disk == disk).map(|r| r.offset).collect()
    };
    assert!(of(0).len() > 300);
    assert_eq!(of(0), of(1));
}

#[test]
fn pieces_of_huge_requests_are_held_one_request_at_a_time() {
    let huge = Request { length: u32::MAX, ..Request::default() };
    let requests = vec![huge; 4096];
    let mut batch = Vec::new();
    let mut sample = Sample::new(memory(&requests), 2, PIECE).unwrap();
    assert!(sample.read(&mut batch).unwrap());
    assert!(batch.len() <= 65_536 && sample.pieces.taken.len() < 1 << 20);
}

#[test]
fn shuffled_places_lie_elsewhere_and_an_unknown_one_is_refused() {
    let request = |extent: u64, length: u32| Request {
        offset: (extent << 20) + 512,
        length,
        ..Request::default()
    };
    // A request of no length, one that crosses into the next extent, one at the end of all.
    let mut requests: Vec<Request> = (0..64).map(|extent| request(extent * 2, 4096)).collect();
    requests.extend([request(200, 0), request(300, 1 << 20), request((1 << 43) - 1, 512)]);
    let places = |key| ShuffledPlaces::of(&mut memory(&requests), key).unwrap();
    let (_, shuffled) = drain(Anonymous::new(memory(&requests), Some(places(7))));
    let stayed = requests.iter().zip(&shuffled).filter(|(a, b)| a.offset == b.offset).count();
    assert!(stayed < 8, "{stayed}");
    assert!(shuffled.iter().all(|r| r.end() <= 68 << 20), "68 extents are touched");
    let (_, other) = drain(Anonymous::new(memory(&requests), Some(places(8))));
    assert_ne!(shuffled, other);
    let more = [requests.clone(), vec![request(500, 512)]].concat();
    let mut grown = Anonymous::new(memory(&more), Some(places(7)));
    let error = grown.read(&mut Vec::new()).unwrap_err();
    assert!(error.message().contains("grew"), "{error}");
}

#[test]
fn counts_that_headers_claim_do_not_overflow_when_traces_are_merged() {
    struct Boaster(Header);
    impl Source for Boaster {
        fn header(&self) -> &Header {
            &self.0
        }
        fn read(&mut self, batch: &mut Vec<Request>) -> block::Result<bool> {
            batch.clear();
            self.0.complete = false;
            Ok(false)
        }
    }
    let one = || -> Box<dyn Source + Send> {
        Box::new(Boaster(Header { requests: Some(u64::MAX), ..Header::default() }))
    };
    let merged =
        Merged::new(vec![("a".into(), one()), ("b".into(), one())], MergeOptions::default());
    assert_eq!(merged.header().requests, None);
    assert!(!drain(merged).0.complete, "a pipe that was cut off leaves a merge that was");
}

#[test]
fn a_merge_by_the_clock_refuses_traces_that_do_not_know_when_they_began() {
    let refused = |header: Header| {
        let known = Header { start: 5, ..Header::default() };
        let traces = vec![
            (
                "known".to_owned(),
                Box::new(Memory::new(known, Vec::new())) as Box<dyn Source + Send>,
            ),
            ("other".to_owned(), Box::new(Memory::new(header, Vec::new()))),
        ];
        Merged::by_clock(traces, MergeOptions::default()).err().map(|e| e.message().to_owned())
    };
    assert_eq!(refused(Header { start: 3, ..Header::default() }), None);
    for header in [Header::default(), Header { start: 3, times: false, ..Header::default() }] {
        let message = refused(header).unwrap();
        assert!(message.starts_with("other: when its requests were made"), "{message}");
    }
}

use super::*;
use proptest::prelude::*;
use store::Encoding;

const MS: Duration = Duration::from_millis(1);

fn chunk(number: u64, offset: u32, stored: u32) -> ChunkRef {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&number.to_le_bytes());
    let pack = PackId([(offset >> 28) as u8; 32]);
    ChunkRef { id: ChunkId(id), len: 65536, pack, offset, stored, encoding: Encoding::Zstd }
}

/// A chunk far from all others.
fn lone(number: u64) -> ChunkRef {
    chunk(number, number as u32 * (1 << 20), 30_000)
}

fn has_come(place: &QueuePosition) -> bool {
    place.gate.is_closed()
}

fn join(queue: &mut LoadQueue, flow: FlowId, at: &ChunkRef, urgency: Urgency) -> QueuePosition {
    join_at(queue, flow, at, urgency, Duration::ZERO)
}

fn join_at(
    queue: &mut LoadQueue,
    flow: FlowId,
    at: &ChunkRef,
    urgency: Urgency,
    now: Duration,
) -> QueuePosition {
    let place = queue.join(flow, at, urgency, true);
    queue.go_on(now);
    place
}

/// Wants chunks at the same moment.
fn join_all(
    queue: &mut LoadQueue,
    flow: FlowId,
    list: &[ChunkRef],
    urgency: Urgency,
) -> Vec<QueuePosition> {
    let places = list.iter().map(|at| queue.join(flow, at, urgency, true)).collect();
    queue.go_on(Duration::ZERO);
    places
}

/// Serves whatever has its turn until all came; the offsets of the chunks of each request, in the
/// order of requests.
fn runs(queue: &mut LoadQueue, mut places: Vec<QueuePosition>) -> Vec<Vec<u32>> {
    let (mut runs, mut now) = (Vec::new(), Duration::ZERO);
    while !places.is_empty() {
        now += MS;
        let at = places.iter().position(has_come).unwrap();
        let first = &places[at];
        let mut run = match queue.together(first) {
            Some(together) => together.chunks.iter().map(|at| at.offset).collect(),
            None => vec![queue.wanted[&first.key].at.offset],
        };
        run.sort_unstable();
        let (come, left): (Vec<_>, Vec<_>) = places.into_iter().partition(|place| {
            has_come(place) && run.contains(&queue.wanted[&place.key].at.offset)
        });
        assert_eq!(come.len(), run.len(), "every chunk of a request has its turn with it");
        for place in come {
            queue.landed(&place, true, now);
            queue.leave(&place, now);
        }
        places = left;
        runs.push(run);
    }
    runs
}

#[test]
fn demand_comes_before_reading_ahead_and_that_before_boot_lists() {
    let mut queue = LoadQueue::new(1);
    let first = join(&mut queue, 1, &lone(1), Urgency::Boot);
    let boot = join(&mut queue, 1, &lone(2), Urgency::Boot);
    let ahead = join(&mut queue, 2, &lone(3), Urgency::Ahead);
    let demand = join(&mut queue, 3, &lone(4), Urgency::Demand);
    assert!(has_come(&first));
    let mut left = vec![demand, ahead, boot];
    let mut current = first;
    while !left.is_empty() {
        assert!(!left.iter().any(has_come));
        queue.landed(&current, true, MS);
        queue.leave(&current, MS);
        current = left.remove(0);
        assert!(has_come(&current));
    }
}

#[test]
fn half_of_the_requests_are_kept_free_of_what_nobody_waits_for() {
    let mut queue = LoadQueue::new(64);
    let (all, unasked) = queue.room();
    let ahead: Vec<_> = (0..20).map(|n| join(&mut queue, 1, &lone(n), Urgency::Ahead)).collect();
    assert_eq!(ahead.iter().filter(|place| has_come(place)).count(), unasked);
    let demand: Vec<_> = (20..40).map(|n| join(&mut queue, 2, &lone(n), Urgency::Demand)).collect();
    assert_eq!(demand.iter().filter(|place| has_come(place)).count(), all - unasked);
}

#[test]
fn a_chunk_that_a_guest_waits_for_does_not_wait_where_a_boot_list_put_it() {
    let mut queue = LoadQueue::new(1);
    let first = join(&mut queue, 1, &lone(0), Urgency::Boot);
    let listed: Vec<_> = (1..50).map(|n| join(&mut queue, 1, &lone(n), Urgency::Boot)).collect();
    let guest = join(&mut queue, 2, &lone(40), Urgency::Demand);
    queue.landed(&first, true, MS);
    assert!(has_come(&guest) && has_come(&listed[39]), "one load for both");
    assert_eq!(listed.iter().filter(|place| has_come(place)).count(), 1);
}

#[test]
fn a_boot_copy_draws_what_a_guest_waits_for_to_its_place() {
    let mut queue = LoadQueue::new(1);
    let busy = join(&mut queue, 9, &lone(99), Urgency::Demand);
    let early = join(&mut queue, 2, &lone(3), Urgency::Demand);
    let copies: Vec<_> = (0..6).map(|n| chunk(n, (1 << 28) + n as u32 * 30_000, 30_000)).collect();
    let boot = join_all(&mut queue, 1, &copies, Urgency::Boot);
    let late = join(&mut queue, 3, &lone(5), Urgency::Demand);
    assert_eq!(queue.place(&early), None, "its turn has not come");
    queue.landed(&busy, true, MS);
    assert!(has_come(&early) && has_come(&late) && boot.iter().all(has_come), "one request");
    assert_eq!([&early, &late].map(|place| queue.place(place)), [Some(copies[3]), Some(copies[5])]);
    // The copy was of no use: from now on it is read where whoever wants it says.
    queue.landed(&boot[3], false, 2 * MS);
    assert_eq!(queue.place(&early), None);
    let again = join_at(&mut queue, 4, &lone(3), Urgency::Demand, 2 * MS);
    boot.iter().for_each(|place| queue.landed(place, true, 3 * MS));
    assert_eq!(queue.place(&again), Some(lone(3)));
    assert!(queue.positions.is_empty());
}

#[test]
fn the_only_chunk_of_a_light_disk_is_next_in_a_storm_of_others() {
    let mut queue = LoadQueue::new(1);
    let mut storm: Vec<_> = (0..49)
        .flat_map(|disk| (0..16).map(move |n| (disk, lone(disk * 16 + n))))
        .map(|(disk, at)| join(&mut queue, disk, &at, Urgency::Demand))
        .collect();
    for _ in 0..200 {
        let at = storm.iter().position(has_come).unwrap();
        let served = storm.swap_remove(at);
        queue.landed(&served, true, MS);
        queue.leave(&served, MS);
    }
    let light = join(&mut queue, 99, &lone(3000), Urgency::Demand);
    let mut before = 0;
    while !has_come(&light) {
        let at = storm.iter().position(has_come).unwrap();
        let served = storm.swap_remove(at);
        queue.landed(&served, true, MS);
        queue.leave(&served, MS);
        before += 1;
    }
    assert!(before <= 2, "{before} went before");
}

#[test]
fn what_lies_side_by_side_and_waits_comes_in_one_request() {
    let mut queue = LoadQueue::new(1);
    let first = join(&mut queue, 1, &lone(100), Urgency::Demand);
    // Every second one waits for another disk.
    let side: Vec<_> = (0..30u32)
        .map(|n| {
            let at = chunk(n.into(), 100_000 + n * 30_000, 20_000);
            join(&mut queue, u64::from(n % 2), &at, Urgency::Demand)
        })
        .collect();
    let far = join(&mut queue, 3, &chunk(50, 5 << 20, 20_000), Urgency::Demand);
    queue.landed(&first, true, MS);
    queue.leave(&first, MS);
    assert!(side.iter().all(has_come) && !has_come(&far));
    for place in &side {
        assert!(!has_come(&far));
        queue.landed(place, true, 2 * MS);
    }
    assert!(has_come(&far), "the request is over with its last chunk");
}

#[test]
fn requests_that_nobody_waits_for_are_short_where_the_store_is_slow() {
    let mut queue = LoadQueue::new(2);
    let mut now = Duration::ZERO;
    let mut lengths = Vec::new();
    for round in 0..40u32 {
        let places: Vec<_> = (0..64u32)
            .map(|n| chunk((round * 64 + n).into(), n * 30_000, 30_000))
            .map(|at| join_at(&mut queue, 1, &at, Urgency::Boot, now))
            .collect();
        let mut left = places;
        while !left.is_empty() {
            let (come, waiting): (Vec<_>, Vec<_>) = left.into_iter().partition(has_come);
            let bytes = come.len() as u64 * 30_000;
            lengths.push(bytes);
            now += Duration::from_millis(20) + Duration::from_micros(bytes * 8 / 10); // 10 Mb/s
            for place in come {
                queue.landed(&place, true, now);
                queue.leave(&place, now);
            }
            left = waiting;
        }
    }
    let late = &lengths[lengths.len() / 2..];
    assert!(late.iter().all(|bytes| *bytes <= 128 << 10), "{late:?}");
}

#[test]
fn requests_are_long_where_the_store_is_quick_however_many_it_serves_in_turn() {
    // One arm: 6 ms, and 80 MB/s; whoever comes waits for those before it.
    let mut queue = LoadQueue::new(64);
    let list: Vec<_> = (0..2000u32).map(|n| chunk(n.into(), n * 30_000, 30_000)).collect();
    let mut waiting = join_all(&mut queue, 1, &list, Urgency::Boot);
    let (mut now, mut longest) = (Duration::ZERO, 0);
    while !waiting.is_empty() {
        let at = waiting.iter().position(has_come).unwrap();
        let run = queue
            .together(&waiting[at])
            .map_or(vec![waiting[at].key.chunk], |run| run.chunks.iter().map(|at| at.id).collect());
        longest = longest.max(run.len() as u64 * 30_000);
        now += Duration::from_micros(6000 + run.len() as u64 * 375);
        let (come, left): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|place| run.contains(&place.key.chunk));
        for place in come {
            queue.landed(&place, true, now);
            queue.leave(&place, now);
        }
        waiting = left;
    }
    assert!(longest > 900_000, "{longest}");
}

#[test]
fn a_boot_list_comes_in_runs_of_what_lies_together_that_of_its_first_chunk_first() {
    let mut queue = LoadQueue::new(2);
    let near = |n: u32| chunk(n.into(), n * 100_000, 30_000);
    let far = |n: u32| chunk(n.into(), (4 << 20) + n * 100_000, 30_000);
    let list = [far(23), near(2), far(21), near(0), far(22), near(1), near(9)];
    let places = join_all(&mut queue, 1, &list, Urgency::Boot);
    let offsets = |list: &[ChunkRef]| list.iter().map(|at| at.offset).collect::<Vec<_>>();
    let expected = [
        offsets(&[far(21), far(22), far(23)]),
        offsets(&[near(0), near(1), near(2)]),
        offsets(&[near(9)]),
    ];
    assert_eq!(runs(&mut queue, places), expected);
}

#[test]
fn gaps_are_read_over_only_as_far_as_that_is_cheaper() {
    let mut queue = LoadQueue::new(1);
    let gap = GAP as u32;
    let list = [chunk(1, 0, 1000), chunk(2, 1000 + gap, 1000), chunk(3, 2001 + 2 * gap, 1000)];
    let places = join_all(&mut queue, 1, &list, Urgency::Demand);
    assert_eq!(runs(&mut queue, places), [vec![0, 1000 + gap], vec![2001 + 2 * gap]]);
}

#[test]
fn a_guest_that_comes_to_a_later_run_of_a_boot_list_brings_all_of_it_forward() {
    let mut queue = LoadQueue::new(1);
    let first = join(&mut queue, 1, &lone(90), Urgency::Boot);
    let run = |run: u32| {
        (0..4).map(move |n| chunk((run * 4 + n).into(), (run << 20) + n * 50_000, 30_000))
    };
    let list: Vec<_> = (0..5).flat_map(run).collect();
    let listed = join_all(&mut queue, 1, &list, Urgency::Boot);
    let guest = join(&mut queue, 2, &list[14], Urgency::Demand);
    queue.landed(&first, true, MS);
    queue.leave(&first, MS);
    assert!(has_come(&guest));
    let come: Vec<_> = (0..20).filter(|at| has_come(&listed[*at])).collect();
    assert_eq!(come, [12, 13, 14, 15]);
    assert_eq!(queue.together(&guest).unwrap().chunks.len(), 4);
}

#[test]
fn a_request_has_no_more_chunks_than_fit_into_memory_soon() {
    let mut queue = LoadQueue::new(1);
    let list: Vec<_> = (0..1000).map(|n| chunk(n.into(), n * 100, 100)).collect();
    let places = join_all(&mut queue, 1, &list, Urgency::Demand);
    assert!(runs(&mut queue, places).iter().all(|run| run.len() <= MOST));
}

#[test]
fn a_request_that_hangs_keeps_nobody_out_for_long() {
    let mut queue = LoadQueue::new(1);
    let hung = join(&mut queue, 1, &lone(1), Urgency::Demand);
    let next = join(&mut queue, 2, &lone(2), Urgency::Demand);
    queue.go_on(LATE - MS);
    assert!(has_come(&hung) && !has_come(&next));
    queue.go_on(LATE);
    assert!(has_come(&next));
    queue.landed(&hung, true, LATE + MS);
    queue.leave(&hung, LATE + MS);
    let third = join_at(&mut queue, 1, &lone(3), Urgency::Demand, LATE + MS);
    assert!(!has_come(&third), "the late one gave its room back once");
}

#[test]
fn requests_that_all_take_long_are_no_more_at_a_time() {
    let mut queue = LoadQueue::new(2);
    let slow = join(&mut queue, 1, &lone(1), Urgency::Demand);
    let other = join(&mut queue, 2, &lone(2), Urgency::Demand);
    let next = join(&mut queue, 3, &lone(3), Urgency::Demand);
    queue.landed(&other, true, LATE - MS);
    assert!(has_come(&next), "there is room again");
    let last = join_at(&mut queue, 4, &lone(4), Urgency::Demand, LATE + MS);
    assert!(!has_come(&last), "the store answers, one after the other");
    queue.go_on(2 * LATE - MS);
    assert!(has_come(&last), "nothing came for long");
    queue.leave(&slow, 2 * LATE);
}

#[test]
fn loads_that_fail_or_are_withdrawn_say_nothing_of_the_store() {
    for fails in [true, false] {
        let mut queue = LoadQueue::new(64);
        let before = queue.room();
        let mut now = Duration::ZERO;
        let mut waiting: Vec<_> =
            (0..40).map(|n| join_at(&mut queue, 1, &lone(n), Urgency::Demand, now)).collect();
        waiting.extend((40..80).map(|n| join_at(&mut queue, 2, &lone(n), Urgency::Ahead, now)));
        for number in 80..2000 {
            now += MS;
            let at = waiting.iter().position(has_come).unwrap();
            let place = waiting.swap_remove(at);
            if fails {
                queue.landed(&place, false, now);
            }
            queue.leave(&place, now);
            let urgency = [Urgency::Demand, Urgency::Ahead][number as usize % 2];
            waiting.push(join_at(&mut queue, 1, &lone(number), urgency, now));
        }
        assert_eq!((queue.room(), &queue.reach), (before, &Reach::new()), "fails: {fails}");
    }
}

#[test]
fn without_a_limit_nothing_waits() {
    let mut queue = LoadQueue::new(0);
    let places: Vec<_> = (0..500).map(|n| join(&mut queue, n, &lone(n), Urgency::Boot)).collect();
    assert!(places.iter().all(has_come));
}

#[test]
fn who_does_not_share_waits_for_a_load_of_their_own() {
    let mut queue = LoadQueue::new(1);
    let places: Vec<_> =
        (0..3).map(|flow| queue.join(flow, &lone(1), Urgency::Demand, false)).collect();
    queue.go_on(Duration::ZERO);
    assert_eq!(places.iter().filter(|place| has_come(place)).count(), 1);
}

proptest! {
    /// Joining, landing and leaving in any order: whoever stays comes to its turn, no more requests
    /// are under way than there is room for, and nothing is remembered of those who left.
    #[test]
    fn everybody_comes_to_their_turn_and_nothing_is_left_behind(
        steps in prop::collection::vec((0u8..3, 0u64..30, 0u64..4, 0u8..3), 1..120),
        most in 1usize..6, share in any::<bool>(),
    ) {
        let mut queue = LoadQueue::new(most);
        let mut places: Vec<(QueuePosition, bool)> = Vec::new();
        let mut now = Duration::ZERO;
        let urgencies = [Urgency::Demand, Urgency::Ahead, Urgency::Boot];
        for (what, number, flow, urgency) in steps {
            now += MS;
            match what {
                0 | 1 if what == 0 || places.is_empty() => {
                    // Some side by side, some apart.
                    let at = chunk(number, number as u32 * 40_000 * (1 + (number % 5) as u32), 25_000);
                    let urgency = urgencies[urgency as usize];
                    places.push((queue.join(flow, &at, urgency, share), false));
                    if number % 3 > 0 {
                        queue.go_on(now);
                    }
                }
                1 => {
                    let at = number as usize % places.len();
                    if has_come(&places[at].0) {
                        places[at].1 = true;
                        queue.landed(&places[at].0, true, now);
                    }
                }
                _ if !places.is_empty() => {
                    let (place, _) = places.swap_remove(number as usize % places.len());
                    queue.leave(&place, now);
                }
                _ => {}
            }
            prop_assert!(queue.under_way.len() <= most);
            for request in queue.requests.values() {
                let Some(run) = &request.together else { continue };
                let ranges = || run.chunks.iter().map(range);
                let start = ranges().map(|(start, _)| start).min().unwrap();
                let end = ranges().map(|(_, end)| end).max().unwrap();
                prop_assert!(request.bytes == end - start && request.bytes <= LONGEST);
                prop_assert!((2..=MOST).contains(&run.chunks.len()));
            }
        }
        queue.go_on(now);
        let mut rounds = 0;
        while !places.is_empty() {
            now += MS;
            rounds += 1;
            prop_assert!(rounds < 500, "somebody waits for ever");
            let at = places.iter().position(|(place, _)| has_come(place));
            prop_assert!(at.is_some(), "nobody has come");
            let (place, _) = places.swap_remove(at.unwrap());
            queue.landed(&place, true, now);
            queue.leave(&place, now);
        }
        prop_assert!(queue.wanted.is_empty() && queue.positions.is_empty());
        prop_assert!(queue.requests.is_empty() && queue.under_way.is_empty());
        prop_assert!(queue.unasked == 0 && queue.lines.iter().all(Fair::is_empty));
    }
}

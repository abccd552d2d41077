use super::{StatsOptions, TraceStats, collect};
use crate::{Header, Memory, Op, Request, TraceDisk};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

fn stats(header: Header, requests: Vec<Request>, most_blocks: usize) -> TraceStats {
    let options = StatsOptions { most_blocks, ..StatsOptions::default() };
    collect(&mut Memory::new(header, requests), &options).unwrap()
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (0u64..1 << 33, 0u32..4, 0u32..2, any::<bool>(), 0u64..300, 1u32..5);
    prop::collection::vec(one, 1..400).prop_map(|all| {
        let mut time = 0;
        let build = |(gap, client, disk, write, block, blocks): (u64, u32, u32, bool, u64, u32)| {
            time += gap >> (block % 30);
            let op = if write { Op::Write } else { Op::Read };
            let (offset, length) = (block * 4096, blocks * 4096);
            Request { time, client, disk, op, offset, length, ..Request::default() }
        };
        all.into_iter().map(build).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn blocks_distances_and_bins_are_those_of_a_naive_count(all in requests()) {
        let got = stats(Header::default(), all.clone(), 1 << 20);
        let width = got.timeline.width;
        let mut uses: Vec<(u32, u64)> = Vec::new();
        let mut distances: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        let mut clients: HashMap<(u32, u64), BTreeSet<u32>> = HashMap::new();
        let mut bins: BTreeMap<u64, BTreeSet<(u32, u64)>> = BTreeMap::new();
        for r in &all {
            for block in r.offset / 4096..r.end() / 4096 {
                let key = (r.disk, block);
                if let Some(last) = uses.iter().rposition(|k| *k == key) {
                    let distance = (uses.len() - last - 1) as u64;
                    let power = if distance == 0 { 1 } else { 2 << distance.ilog2() };
                    let entry = distances.entry(power).or_default();
                    if r.op == Op::Read { entry.0 += 1 } else { entry.1 += 1 }
                }
                uses.push(key);
                if r.op == Op::Read { read.insert(key) } else { written.insert(key) };
                clients.entry(key).or_default().insert(r.client);
                bins.entry(r.time / width).or_default().insert(key);
            }
        }
        let set = got.working_set;
        prop_assert_eq!(set.blocks, clients.len() as u64);
        prop_assert_eq!(set.both, read.intersection(&written).count() as u64);
        prop_assert_eq!(set.only_written, written.difference(&read).count() as u64);
        prop_assert_eq!(set.read_references + set.write_references, uses.len() as u64);
        for (power, reads, writes) in &got.distances.by_power {
            prop_assert_eq!(distances.get(power).copied().unwrap_or_default(), (*reads, *writes));
        }
        let far: u64 = got.distances.by_power.iter().map(|(_, r, w)| r + w).sum();
        prop_assert_eq!(
            far + got.distances.cold_reads + got.distances.cold_writes,
            uses.len() as u64
        );
        for (many, blocks, _) in &got.sharing.by_clients {
            let naive = clients.values().filter(|c| c.len() as u32 == *many).count();
            prop_assert_eq!(*blocks, naive as u64);
        }
        for bin in &got.timeline.bins {
            let naive = bins.get(&(bin.start / width)).map_or(0, BTreeSet::len);
            prop_assert_eq!(bin.blocks, naive as u64);
        }
        prop_assert!(got.timeline.bins.len() <= 256);
    }
}

#[test]
fn a_sample_comes_near_the_truth() {
    let request = |i: u64| Request {
        time: i,
        offset: (crate::transform::mix(i % 30_000) % 100_000) * 4096,
        length: 4096,
        ..Request::default()
    };
    let all: Vec<Request> = (0..90_000).map(request).collect();
    let exact = stats(Header::default(), all.clone(), 1 << 20);
    let about = stats(Header::default(), all, 3000);
    assert_eq!(exact.working_set.sampled, 1);
    assert!(about.working_set.sampled >= 8);
    let ratio = about.working_set.blocks as f64 / exact.working_set.blocks as f64;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn disks_of_one_base_share_blocks_until_they_write() {
    let disk = |name: &str| TraceDisk { name: name.into(), size: 0, base: "golden:1".into() };
    let header = Header { disks: vec![disk("a"), disk("b")], ..Header::default() };
    let read = |time, disk, block: u64| Request {
        time,
        client: disk,
        disk,
        offset: block * 4096,
        length: 4096,
        ..Request::default()
    };
    let all = vec![
        read(0, 0, 1),
        read(1, 1, 1),
        Request { op: Op::Write, ..read(2, 0, 1) },
        read(3, 0, 1),
        read(4, 1, 1),
    ];
    let got = stats(header, all, 1 << 20);
    assert_eq!(got.working_set.blocks, 2);
    assert_eq!(got.sharing.by_clients, [(1, 1, 2), (2, 1, 3)]);
}

#[test]
fn order_and_sizes_are_counted_by_client_and_disk() {
    let at = |time, client, offset, length| Request {
        time,
        client,
        offset,
        length,
        ..Request::default()
    };
    let all = vec![
        at(0, 0, 0, 4096),
        at(1, 1, 1 << 30, 512),
        at(2, 0, 4096, 8192),
        at(3, 0, 20_000, 512),
    ];
    let got = stats(Header::default(), all, 1 << 20);
    assert_eq!((got.order.random, got.order.sequential, got.order.near), (2, 1, 1));
    assert_eq!((got.read_sizes.median, got.read_sizes.largest), (512, 8192));
    assert_eq!((got.read_sizes.up_to_4096, got.read_sizes.of_4096, got.aligned), (3, 1, 2));
    assert_eq!(got.clients.len(), 2);
    assert_eq!(got.read_sizes.by_power, [(512, 2), (4096, 1), (8192, 1)]);
}

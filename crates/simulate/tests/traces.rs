//! Real traces: the published figures, and what implementations give that nobody here wrote.
//!
//! Boots of guests are in the repository (`crates/trace/tests/boots`). The other traces are not: the
//! tests look for them in `$SOJOURN_SHARED/traces`, or `../shared/traces` beside the workspace. Those
//! of the folder `arc` are of N. Megiddo, D. Modha:
//! "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test speaks

use cache::PolicyKind;
use simulate::stream::Builder;
use simulate::{
    Curve, ReferenceOptions, ReferenceStream, Sharing, SimulatedPolicy, TuningQuestion, run, tune,
};
use std::path::{Path, PathBuf};
use trace::{Format, OpenTraceOptions, Request};

const MIB: u32 = 256;

fn traces() -> Option<PathBuf> {
    let shared = std::env::var_os("SOJOURN_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let dir = shared.join("traces");
    if !dir.join("arc/P3.lis.zst").exists() {
        eprintln!("skipped: no traces in $SOJOURN_SHARED or ../shared");
        return None;
    }
    Some(dir)
}

/// A trace: its file, and the sectors that align its partition.
fn requests(dir: &Path, file: &str, sectors: u64) -> Vec<Request> {
    let format = file.ends_with("w106.trace.xz").then_some(Format::Ids32); // ids say nothing of themselves
    let options = OpenTraceOptions {
        format,
        shift: sectors * 512,
        sort: true,
        ..OpenTraceOptions::default()
    };
    let mut source = trace::open(&dir.join(file), &options).unwrap();
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while source.read(&mut batch).unwrap() {
        all.extend_from_slice(&batch);
    }
    all
}

/// One reference of a client to one block.
fn split(requests: &[Request], client: u32) -> Vec<Request> {
    let pieces = |r: &Request| {
        let (first, last) = (r.offset / 4096, (r.end() - 1) / 4096);
        let op = r.op;
        (first..=last).map(move |block| Request {
            client,
            disk: client,
            op,
            offset: block * 4096,
            length: 4096,
            ..Request::default()
        })
    };
    requests.iter().filter(|r| r.length > 0).flat_map(pieces).collect()
}

/// Three desktops, each behind an LRU cache of 1 MiB, their references interleaved in proportion to
/// their lengths, 16 at a time.
fn desktops(dir: &Path) -> ReferenceStream {
    let files = [("P3", 0), ("P6", 4), ("P12", 7)];
    let of = |(client, (name, shift)): (usize, &(&str, u64))| {
        split(&requests(dir, &format!("arc/{name}.lis.zst"), *shift), client as u32)
    };
    let clients: Vec<Vec<Request>> = files.iter().enumerate().map(of).collect();
    let options =
        ReferenceOptions { client: Some((PolicyKind::Lru, MIB)), ..ReferenceOptions::default() };
    let mut builder = Builder::new(&options).unwrap();
    let total: usize = clients.iter().map(Vec::len).sum();
    let mut at = vec![0; clients.len()];
    while at.iter().sum::<usize>() < total {
        // Whoever is furthest behind in proportion goes on.
        let behind = |client: &usize| at[*client] as f64 / clients[*client].len() as f64;
        let client = (0..clients.len()).min_by(|a, b| behind(a).total_cmp(&behind(b))).unwrap();
        let end = (at[client] + 16).min(clients[client].len());
        for request in &clients[client][at[client]..end] {
            builder.push(request).unwrap();
        }
        at[client] = end;
    }
    builder.finish()
}

fn assert_percent(what: &str, got: f64, expected: f64, tolerance: f64) {
    let got = got * 100.0;
    println!("{what}: {got:.3} ({expected})");
    assert!((got - expected).abs() < tolerance, "{what}: {got:.3}, not {expected}");
}

/// The best possible, exact LRU and the split by distance; the other policies are checked where they
/// are defined.
#[test]
fn three_desktops_behind_their_caches_give_the_known_figures() {
    let Some(dir) = traces() else { return };
    let stream = desktops(&dir);
    assert_eq!((stream.before, stream.len(), stream.blocks()), (4_420_754, 3_996_105, 603_338));
    let curve = Curve::of(&stream);
    let expected =
        [(64, 9.83, 49.60), (128, 35.81, 64.93), (256, 60.34, 76.22), (512, 73.52, 82.76)];
    for (mib, lru, best) in expected {
        let blocks = mib * MIB;
        let ratio = curve.hit_ratios(&[u64::from(blocks)])[0];
        assert_percent(&format!("LRU {mib} MiB"), ratio, lru, 0.0051);
        let outcome = run(SimulatedPolicy::Opt, blocks, &stream, false);
        assert_percent(&format!("best {mib} MiB"), outcome.hit_ratio(), best, 0.0051);
    }
    // Misses of references at a distance of more than 32 k, at 256 MiB.
    let lru = run(SimulatedPolicy::Kind(PolicyKind::Lru), 256 * MIB, &stream, true).split(15);
    let fmpq = run(SimulatedPolicy::Kind(PolicyKind::FMPQ), 256 * MIB, &stream, true).split(15);
    assert_eq!((lru[1], lru[3]), (0, 981_489));
    assert!(fmpq[3].abs_diff(702_363) < 400, "{} long misses of FMPQ", fmpq[3]);
    // From one block of 16.
    let sizes: Vec<u64> = (1..9).map(|step| step * 64 * 256).collect();
    let exact = curve.hit_ratios(&sizes);
    let sampled = Curve::of(&stream.sample(16)).hit_ratios(&sizes);
    for (exact, sampled) in exact.iter().zip(&sampled) {
        assert!((exact - sampled).abs() < 0.02, "{exact:.4}, sampled {sampled:.4}");
    }
}

/// Recorded boots of one image.
const BOOTS: [&str; 5] = ["office-a", "update", "scan", "idle", "office-b"];

fn boots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/boots")
}

/// All of them at once.
fn five_guests() -> Vec<Request> {
    let mut all: Vec<Request> = Vec::new();
    for (client, file) in BOOTS.iter().enumerate() {
        let own = requests(&boots(), &format!("{file}.csv.zst"), 0);
        let client = client as u32;
        all.extend(own.into_iter().map(|request| Request { client, disk: client, ..request }));
    }
    all.sort_by_key(|request| request.time); // stable: among equals in order of the files
    all
}

#[test]
fn five_guests_of_one_image_give_the_known_figures() {
    let all = five_guests();
    let cases = [
        (Sharing::Image, false, 159_026, 76_733, [0.040, 0.072, 0.163, 0.276, 0.346, 0.426, 0.458]),
        (
            Sharing::Private,
            false,
            159_026,
            130_494,
            [0.001, 0.002, 0.004, 0.075, 0.085, 0.140, 0.172],
        ),
        (Sharing::Image, true, 190_051, 103_549, [0.030, 0.059, 0.115, 0.227, 0.261, 0.361, 0.401]),
    ];
    let sizes: Vec<u64> = (2..9).map(|power| 256 << power).collect();
    let mut shared = ReferenceStream::default();
    for (sharing, writes, references, blocks, expected) in cases {
        let options = ReferenceOptions { sharing, writes, ..ReferenceOptions::default() };
        let mut builder = Builder::new(&options).unwrap();
        all.iter().for_each(|request| builder.push(request).unwrap());
        let stream = builder.finish();
        assert_eq!((stream.len(), stream.blocks()), (references, blocks));
        let ratios = Curve::of(&stream).hit_ratios(&sizes);
        for (ratio, expected) in ratios.iter().zip(expected) {
            assert!((ratio - expected).abs() < 0.00051, "{sharing:?}: {ratio:.4}, not {expected}");
        }
        if sharing == Sharing::Image && !writes {
            shared = stream;
        }
    }
    // Policies on that storm at 16, 64 and 128 MiB.
    for (policy, expected, tolerance) in [
        ("lru", [16.3, 34.6, 42.6], 0.1),
        ("lirs", [23.3, 44.8, 50.8], 0.1),
        ("arc", [20.4, 42.4, 48.3], 0.1),
        ("s3fifo", [18.4, 42.8, 48.3], 1.0),
        ("twoq", [20.6, 37.2, 40.9], 0.1),
        ("fmpq", [12.3, 45.6, 48.3], 0.1),
        ("sieve", [13.6, 35.3, 46.8], 0.1),
        ("opt", [36.8, 50.9, 51.8], 0.1),
    ] {
        for (mib, expected) in [16, 64, 128].into_iter().zip(expected) {
            let ratio = run(policy.parse().unwrap(), mib * MIB, &shared, false).hit_ratio();
            assert_percent(&format!("{policy} {mib} MiB"), ratio, expected, tolerance);
        }
    }
}

/// Every load at hand but three desktops: its name, its requests, and whether all clients have one image.
fn loads(dir: &Path) -> Vec<(String, Vec<Request>, bool)> {
    let mut loads = vec![("five guests".to_owned(), five_guests(), true)];
    let mut add = |dir: &Path, file: String, sectors: u64| {
        if !dir.join(&file).exists() {
            return eprintln!("skipped: no {file}");
        }
        let requests = requests(dir, &file, sectors);
        let many = requests.iter().any(|request| request.client > 0);
        loads.push((file, requests, many));
    };
    BOOTS.iter().for_each(|name| add(&boots(), format!("{name}.csv.zst"), 0));
    add(&boots().join("../../../../experiments/transcom"), "demo.csv.gz".to_owned(), 0);
    for (file, sectors) in [
        ("arc/P3.lis.zst", 0),
        ("arc/P6.lis.zst", 4),
        ("arc/P12.lis.zst", 7),
        ("arc/OLTP.lis.zst", 0),
        ("cloudphysics/cloudPhysicsIO.vscsi.zst", 1),
        ("cloudphysics/w106.trace.xz", 0),
        ("blkreplay/linux-webserver-2.load.gz", 0),
        ("blkreplay/linux-mysql.load.gz", 0),
    ] {
        add(dir, file.to_owned(), sectors);
    }
    for name in [
        "app-base",
        "boot-base",
        "boot-base-bios",
        "boot-base-pxe",
        "compile-desktop",
        "desktop-session",
        "install-base",
        "private-boot1",
        "private-boot2",
        "storm4-base",
        "storm4-desktop",
        "untar-base",
    ] {
        add(dir, format!("vm/{name}.csv.gz"), 0);
    }
    for name in [
        "2_pools", "cpp", "cs", "gli", "loop", "multi1", "multi2", "multi3", "ps", "scan",
        "sprite", "zigzag",
    ] {
        add(dir, format!("lirs/{name}.trace.gz"), 0);
    }
    loads
}

/// Sizes of a cache, in hundredths of all that is asked for.
const SHARES: [u64; 5] = [2, 5, 10, 25, 50];

/// What `SOJOURN_POLICIES` has for the table: all sizes and clients' caches for every policy that serves; the test
/// does with two sizes and no client's cache for those that are not the usual one.
fn whole_table() -> bool {
    std::env::var_os("SOJOURN_POLICIES").is_some()
}

/// The table of docs/simulate.md. With `SOJOURN_POLICIES=all` it is printed whole.
#[test]
fn the_usual_policy_is_the_best_over_all_loads_and_never_far_behind_lru() {
    let Some(dir) = traces() else { return };
    let usual = PolicyKind::default();
    let others =
        ["s3fifo:fill=main", "s3fifo:fill=main,promote=2"].map(|text| text.parse().unwrap());
    let policies: Vec<PolicyKind> =
        PolicyKind::all().into_iter().filter(|kind| kind.serves()).chain(others).collect();
    // By policy and share: what is saved of LRU's misses, over the cells.
    let mut saved = vec![[const { Vec::new() }; SHARES.len()]; policies.len()];
    let mut worst = vec![0.0f64; policies.len()];
    let mut tell = |name: &str, stream: &ReferenceStream, whole: bool| {
        let curve = Curve::of(stream);
        for (column, share) in SHARES.iter().enumerate() {
            let blocks = (u64::from(stream.blocks()) * share / 100) as u32;
            let lru = stream.len() as u64 - curve.hits(blocks);
            if blocks <= 256 || lru == 0 {
                continue;
            }
            for (row, policy) in policies.iter().enumerate() {
                let compared = whole || (matches!(share, 5 | 25) && name.ends_with(" 0"));
                if *policy != usual && !compared {
                    continue;
                }
                let outcome = run(SimulatedPolicy::Kind(*policy), blocks, stream, false);
                let more = outcome.misses as f64 / lru as f64 - 1.0;
                saved[row][column].push((-more, compared));
                worst[row] = worst[row].max(more);
                let shown =
                    format!("{name}: {policy} at {blocks} blocks misses {:.2} %", more * 100.0);
                assert!(*policy != usual || more < 0.02, "{shown} more than lru");
            }
        }
    };
    for (file, requests, many) in loads(&dir) {
        let sharing = if many { Sharing::Image } else { Sharing::Disk };
        let block = if file.contains("OLTP") { 512 } else { 4096 };
        let clients: &[u32] = if file.contains("lirs") { &[0] } else { &[0, MIB, 16 * MIB] };
        for client in clients {
            let cache = (*client > 0).then_some((PolicyKind::Lru, *client));
            let options =
                ReferenceOptions { block, sharing, client: cache, ..ReferenceOptions::default() };
            let mut builder = Builder::new(&options).unwrap();
            requests.iter().for_each(|request| builder.push(request).unwrap());
            tell(&format!("{file} {client}"), &builder.finish(), whole_table());
        }
    }
    tell("three desktops", &desktops(&dir), whole_table());
    let mean = |cells: &[(f64, bool)]| {
        let cells: Vec<f64> =
            cells.iter().filter(|cell| cell.1).map(|cell| cell.0 * 100.0).collect();
        cells.iter().sum::<f64>() / cells.len().max(1) as f64
    };
    let of = |row: usize| mean(&saved[row].concat());
    let usual_row = policies.iter().position(|policy| *policy == usual).unwrap();
    println!("{} caches; with {usual}, all of them:", saved[usual_row].concat().len());
    for (row, policy) in policies.iter().enumerate() {
        let by_share: Vec<String> =
            saved[row].iter().map(|cells| format!("{:.1}", mean(cells))).collect();
        let (all, most) = (of(row), worst[row] * 100.0);
        println!("| {policy} | {} | {all:.1} | {most:.1} % |", by_share.join(" | "));
        assert!(
            row == usual_row || all < of(usual_row),
            "{policy} saves {all:.2} % of LRU's misses"
        );
    }
}

/// Over all traces, client caches and sizes of which a cache does not hold everything, the policy
/// picked from 1/64 of the blocks saves 11.8 % of LRU's misses; 10.3 % when the trace P2 is not there
/// (it is where P3 is from: moka-rs/cache-trace on GitHub).
/// Reads of linux-mysql never come back: 15 of the cells cannot gain anything. An oracle that picks the best of the
/// judged candidates, or with `SOJOURN_POLICIES=all` of all, gains 0.05 points of hit ratio more on average at most.
#[test]
fn tuning_picks_nearly_the_best_policy_of_every_load_and_size() {
    let Some(dir) = traces() else { return };
    let files = [
        ("arc/P2.lis.zst", 5),
        ("arc/P3.lis.zst", 0),
        ("arc/P6.lis.zst", 4),
        ("arc/P12.lis.zst", 7),
        ("arc/OLTP.lis.zst", 0),
        ("cloudphysics/cloudPhysicsIO.vscsi.zst", 1),
        ("cloudphysics/w106.trace.xz", 0),
        ("blkreplay/linux-webserver-2.load.gz", 0),
        ("blkreplay/linux-mysql.load.gz", 0),
    ];
    let (mut saved, mut error, mut cells) = (0.0, 0.0, 0);
    let (mut within, mut intervals) = (0, 0);
    let (mut regret, mut worst) = (0.0, 0.0_f64);
    let judged = ["lru", "duel", "arc", "lirs", "s3fifo", "fmpq", "wtinylfu"];
    let judged = judged.map(|name| name.parse::<PolicyKind>().unwrap());
    let mut wanted = 11.0;
    for (file, sectors) in files {
        if !dir.join(file).exists() {
            eprintln!("skipped: no {file}");
            wanted = 10.2;
            continue;
        }
        let requests = requests(&dir, file, sectors);
        for client in [1, 16, 64] {
            // OLTP numbers pages as if they were sectors.
            let block = if file.contains("OLTP") { 512 } else { 4096 };
            let client = Some((PolicyKind::Lru, client * MIB));
            let options = ReferenceOptions { block, client, ..ReferenceOptions::default() };
            let mut builder = Builder::new(&options).unwrap();
            requests.iter().for_each(|request| builder.push(request).unwrap());
            let stream = builder.finish();
            let curve = Curve::of(&stream);
            for server in [16, 32, 64, 128, 256] {
                let blocks = server * MIB;
                if stream.blocks() <= blocks {
                    continue;
                }
                let advice = tune(&stream, &TuningQuestion::new(blocks)).unwrap();
                let mut oracle = 0.0_f64;
                for candidate in &advice.candidates {
                    let is_judged = judged.contains(&candidate.policy);
                    if !is_judged && !whole_table() {
                        continue;
                    }
                    let outcome =
                        run(SimulatedPolicy::Kind(candidate.policy), blocks, &stream, false);
                    oracle = oracle.max(outcome.hit_ratio());
                    if is_judged {
                        let off = (outcome.hit_ratio() - candidate.hit_ratio).abs();
                        within += u32::from(off <= candidate.error);
                        intervals += 1;
                    }
                }
                let best = run(SimulatedPolicy::Kind(advice.best().policy), blocks, &stream, false);
                let lru = stream.len() as u64 - curve.hits(blocks);
                let less = 1.0 - best.misses as f64 / lru.max(1) as f64;
                println!(
                    "{file} {client:?} server {server}: {} {:.4} (expected {:.4}), {:.1} % less",
                    advice.best().policy,
                    best.hit_ratio(),
                    advice.best().hit_ratio,
                    less * 100.0
                );
                saved += less;
                error += (best.hit_ratio() - advice.best().hit_ratio).abs();
                regret += (oracle - best.hit_ratio()).max(0.0);
                worst = worst.max(oracle - best.hit_ratio());
                cells += 1;
            }
        }
    }
    let (saved, error) = (saved * 100.0 / f64::from(cells), error / f64::from(cells));
    println!("{cells} cells: {saved:.2} % fewer misses than LRU; mean error {error:.4}");
    assert!(saved >= wanted, "{saved:.2} % fewer misses than LRU");
    assert!(error < 0.006, "mean error of the expected hit ratio: {error:.4}");
    let regret = regret / f64::from(cells);
    println!(
        "an oracle's pick has {:.4} points more, {:.2} at most",
        regret * 100.0,
        worst * 100.0
    );
    assert!(regret <= 0.0005, "an oracle's pick has {:.4} points more", regret * 100.0);
    println!("{within} of {intervals} hit ratios within the stated error");
    assert!(f64::from(within) >= 0.95 * f64::from(intervals), "{within} of {intervals}");
}

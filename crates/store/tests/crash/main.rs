//! Kills writers and collections of a store at random moments, alone and side by side, and checks
//! that no name is ever broken, that what was reported as done is there, and that a later collection
//! leaves no garbage.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)] // a test
#![allow(clippy::disallowed_methods)] // it waits for real processes

mod victim;

use block::conformance::Sequence;
use objects::Amount;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::gc::{GcOptions, collect};
use store::{Content, RefKind, Settings, Store, testing};
use victim::{PAGE, PIECE};

const KILLS: u64 = 300;

/// What is known of the names.
#[derive(Default)]
struct Oracle {
    /// Reported as made.
    made: BTreeSet<String>,
    /// Perhaps removed.
    removed: BTreeSet<String>,
}

impl Oracle {
    /// Takes in what a victim said before it was killed.
    fn hear(&mut self, mut child: Child) {
        child.kill().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The last line may be cut off: it was not said then.
        for line in lines.map_while(Result::ok) {
            match line.split_once(' ') {
                Some(("done", name))
                    if name.starts_with("import") || name.starts_with("commit") =>
                {
                    self.made.insert(name.to_owned());
                }
                Some(("removing", name)) => drop(self.removed.insert(name.to_owned())),
                Some(("failed", why)) => assert!(
                    why.contains("another") || why.contains("changed by") || why.contains("exist"),
                    "{why}"
                ),
                Some(("error", why)) => panic!("{why}"),
                _ => {}
            }
        }
        child.wait().unwrap();
    }
}

async fn open(directory: &Path) -> Store {
    Store::open(objects::local(directory).unwrap(), testing::world(1 << 40)).await.unwrap()
}

/// Every name holds what its label says, and all that were reported as made are there.
async fn check(directory: &Path, oracle: &Oracle) -> usize {
    let store = open(directory).await;
    let listing = store.refs().list(RefKind::Image).await.unwrap();
    assert!(listing.damaged.is_empty(), "{:?}", listing.damaged);
    let found: BTreeSet<String> = listing.records.iter().map(|r| r.name.clone()).collect();
    for name in &oracle.made {
        assert!(found.contains(name) || oracle.removed.contains(name), "{name} is lost");
    }
    for record in &listing.records {
        let mut expected = Vec::new();
        for piece in record.body.labels["pieces"].split(' ') {
            let mut bytes = testing::noise(piece.parse().unwrap(), (PIECE - 1) * PAGE);
            bytes.resize(PIECE * PAGE, 0);
            expected.extend(bytes);
        }
        let manifest = store.manifest(&record.body.manifest.unwrap()).await.unwrap();
        let mut bytes = Vec::new();
        for piece in manifest.pieces(block::Span::whole(manifest.size())).await.unwrap() {
            let len = piece.span.len() as usize;
            match piece.content {
                Content::Hole => bytes.resize(bytes.len() + len, 0),
                Content::Chunk { at, skip } => {
                    let plain = store.read_chunk(&at).await.unwrap_or_else(|e| {
                        panic!("{}: {e}", record.name);
                    });
                    bytes.extend_from_slice(&plain[skip as usize..skip as usize + len]);
                }
            }
        }
        assert!(bytes == expected, "{} has wrong bytes", record.name);
    }
    found.len()
}

/// Collects while nobody else is at work; afterwards there is nothing left to find.
async fn clean(directory: &Path) {
    let store = open(directory).await;
    let options = GcOptions {
        grace: Duration::ZERO,
        stale: Duration::ZERO,
        rewrite_below: 0.5,
        dry_run: false,
    };
    let first = collect(&store, &options, &()).await.unwrap();
    assert!(first.doubts.is_empty(), "{:?}", first.doubts);
    objects::sweep_staging(directory, Duration::ZERO, false).unwrap();
    // New packs of the first one stand in for old ones.
    let second = collect(&store, &options, &()).await.unwrap();
    let third = collect(&store, &options, &()).await.unwrap();
    assert_eq!((third.found, third.freed), (Amount::default(), Amount::default()), "{second:?}");
    assert!(third.waiting.is_empty() && third.pins == 0, "{third:?}");
    let left = objects::sweep_staging(directory, Duration::ZERO, true).unwrap();
    assert_eq!(left, Amount::default());
}

#[tokio::test]
async fn whatever_is_killed_no_name_is_broken_and_no_garbage_stays() {
    let seed = match std::env::var("SOJOURN_CRASH_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
    };
    println!("to repeat: SOJOURN_CRASH_SEED={seed}");
    let mut random = Sequence::new(seed);
    let directory = tempfile::tempdir().unwrap();
    // Versions are copied from the second store to the first one.
    let places = ["store", "source"].map(|name| directory.path().join(name));
    for (place, seed) in places.iter().zip(seed..) {
        let settings = Settings::generate(&testing::FixedEntropy::new(seed)).unwrap();
        std::fs::create_dir(place).unwrap();
        let backend = objects::local(place).unwrap();
        Store::create(backend, settings, testing::world(seed)).await.unwrap();
    }
    let mut oracles = [Oracle::default(), Oracle::default()];
    let (mut kills, mut copies, mut rounds, mut most) = (0, 0, 0, 0);
    while kills < KILLS {
        // Alone a collection takes the killed ones for dead, so that it has something to delete.
        let verbs: Vec<&str> = if random.below(3) == 0 {
            vec![["import", "commit", "copy", "gc-alone", "gc-alone"][random.below(5) as usize]]
        } else {
            let any = ["import", "import", "commit", "copy", "copy", "remove", "gc", "gc"];
            (0..2 + random.below(3)).map(|_| any[random.below(8) as usize]).collect()
        };
        let mut children = Vec::new();
        for verb in verbs {
            // Copies need something to copy, and somebody who takes it away.
            let at = usize::from(verb != "copy" && random.below(3) == 0);
            kills += 1;
            copies += u64::from(verb == "copy");
            children.push((at, victim::spawn(&places[at], verb, (rounds << 16) + kills)));
        }
        for (at, child) in children {
            tokio::time::sleep(Duration::from_micros(random.below(40_000))).await;
            oracles[at].hear(child);
        }
        rounds += 1;
        if rounds % 12 == 0 || kills >= KILLS {
            for (place, oracle) in places.iter().zip(&oracles) {
                most = most.max(check(place, oracle).await);
                clean(place).await;
                check(place, oracle).await;
            }
        }
    }
    let made = oracles.map(|oracle| oracle.made.len());
    println!("{kills} kills, {copies} of copies; {made:?} images made, {most} at a time at most");
    assert!(made[0] > 20 && made[1] > 5, "the victims were killed before they did anything");
}

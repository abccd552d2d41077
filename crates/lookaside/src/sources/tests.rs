use super::*;
use crate::StoreLink;
use crate::conformance::{self, asked_for};
use crate::source::TURNS;
use crate::testing::{Fake, Manner};
use block::{Error, ErrorKind, Result};
use proptest::prelude::*;
use store::{MapId, MapLookup, MapTurn, Store, testing};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// The longest that a source that is well again waits to be asked, while the store gives no answer.
const LONGEST: Duration = Duration::from_secs(31);

fn chunks(count: u64) -> Vec<Bytes> {
    (0..count).map(|seed| testing::noise(seed, 8192).into()).collect()
}

fn sources(store: CostEstimate, fakes: &[Arc<Fake>]) -> Sources {
    let list = fakes.iter().map(|fake| Arc::clone(fake) as Arc<dyn ChunkSource>).collect();
    Sources::new(testing::settings(), "the store", store, list)
}

fn fake(chunks: &[Bytes], manner: Manner) -> Arc<Fake> {
    Arc::new(Fake::new("fake", &testing::settings(), chunks, manner))
}

/// Reads a chunk; the store answers after `store`.
async fn read(sources: &Sources, plain: &Bytes, store: Duration) -> Result<Bytes> {
    let at = asked_for(&testing::settings(), plain);
    let from_store = || async {
        tokio::time::sleep(store).await;
        Ok(plain.clone())
    };
    sources.read(&at, ReadOrder::Cheapest, Urgency::Demand, from_store).await
}

#[tokio::test(start_paused = true)]
async fn an_honest_fake_passes_the_suite() {
    let chunks = chunks(5);
    conformance::check(&*fake(&chunks, Manner::Honest), &testing::settings(), &chunks).await;
}

#[tokio::test(start_paused = true)]
async fn a_quick_source_answers_and_the_store_is_not_asked() {
    let chunks = chunks(20);
    let good = fake(&chunks, Manner::Honest);
    let sources = sources(CostEstimate::DISTANT, &[good]);
    for plain in &chunks {
        assert_eq!(&read(&sources, plain, MS(100)).await.unwrap(), plain);
    }
    let report = sources.report();
    assert_eq!((report[0].had, report[0].bytes), (20, 20 * 8192));
    assert_eq!((report[1].kind, report[1].asked), (SourceKind::Store, 0));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_slower_than_the_store_is_asked_no_more() {
    let chunks = chunks(100);
    let slow = fake(&chunks, Manner::Slow(MS(15)));
    let sources = sources(CostEstimate::DIRECTORY, &[Arc::clone(&slow)]);
    for plain in &chunks {
        read(&sources, plain, MS(1)).await.unwrap();
    }
    assert!(slow.asked() < 5, "{}", slow.asked());
    assert!(sources.report()[1].had >= 95);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_claims_comes_from_the_store_and_only_its_error_is_told() {
    let (ours, theirs) = (chunks(1), fake(&[], Manner::Honest));
    let sources = sources(CostEstimate::DISTANT, &[theirs]);
    assert_eq!(read(&sources, &ours[0], MS(3)).await.unwrap(), ours[0]);
    let at = asked_for(&testing::settings(), &ours[0]);
    let fails = || async { Err(Error::not_found("the store's own words")) };
    let error = sources.read(&at, ReadOrder::Cheapest, Urgency::Demand, fails).await.unwrap_err();
    assert_eq!(error.message(), "the store's own words");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_hangs_is_helped_out_by_a_dearer_source() {
    let chunks = chunks(2);
    let dear = fake(&chunks, Manner::Slow(MS(30)));
    let sources = sources(CostEstimate::DIRECTORY, &[dear]);
    let fails = || async { Err(Error::unavailable("down")) };
    for order in [ReadOrder::Cheapest, ReadOrder::StoreFirst] {
        let at = asked_for(&testing::settings(), &chunks[0]);
        let plain = sources.read(&at, order, Urgency::Background, fails).await.unwrap();
        assert_eq!(plain, chunks[0]);
    }
    let at = asked_for(&testing::settings(), &chunks[1]);
    let hangs = std::future::pending::<Result<Bytes>>;
    let plain = sources.read(&at, ReadOrder::StoreFirst, Urgency::Demand, hangs).await.unwrap();
    assert_eq!(plain, chunks[1]);
}

/// A link that brings so many bytes in a second.
#[derive(Debug)]
struct Thin(u64, bool);

impl StoreLink for Thin {
    fn expected(&self, bytes: u64) -> Option<(Duration, bool)> {
        Some((Duration::from_secs_f64(bytes as f64 / self.0 as f64), self.1))
    }
}

#[tokio::test(start_paused = true)]
async fn over_a_thin_link_a_medium_has_as_long_as_the_link_would_take_before_that_is_asked() {
    let chunks = chunks(200);
    // 100 Kb/s: a chunk takes 0.7 s, and nothing of the sort was read yet, or it was.
    for (link, most) in [(None, 200), (Some(Thin(12_500, false)), 0), (Some(Thin(12_500, true)), 0)]
    {
        // Each sixteenth read of the medium is slow, as on a busy machine.
        let media = fake(&chunks, Manner::Honest);
        let sources = sources(CostEstimate::DISTANT, &[Arc::clone(&media)]);
        let is_known = link.is_some();
        if let Some(link) = link {
            sources.judge_store_by(Arc::new(link));
        }
        for (n, plain) in chunks.iter().enumerate() {
            media.behave(Manner::Slow(MS(if n % 16 == 7 { 600 } else { 100 })));
            assert_eq!(&read(&sources, plain, MS(700)).await.unwrap(), plain);
        }
        let asked = sources.report()[1].asked;
        assert!(asked <= most && (is_known || asked > 0), "{asked}: {:?}", sources.report());
        // One that hangs is found out all the same.
        media.behave(Manner::Hanging);
        let began = Instant::now();
        assert_eq!(&read(&sources, &chunks[0], MS(700)).await.unwrap(), &chunks[0]);
        assert!(began.elapsed() <= MS(2800), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_medium_that_comes_back_is_asked_again_while_the_store_gives_no_answer() {
    let chunks = chunks(2);
    let media = fake(&chunks, Manner::Dying(0));
    let sources = sources(CostEstimate::DISTANT, &[Arc::clone(&media)]);
    let at = |plain: &Bytes| asked_for(&testing::settings(), plain);
    let hangs = std::future::pending::<Result<Bytes>>;
    for (plain, away) in chunks.iter().zip([MS(3000), MS(200_000)]) {
        media.behave(Manner::Dying(0));
        let began = Instant::now();
        let at = at(plain);
        let read = async {
            let read = sources.read(&at, ReadOrder::Cheapest, Urgency::Demand, hangs);
            tokio::time::timeout(away + MS(40_000), read).await
        };
        let (read, ()) = tokio::join!(read, async {
            tokio::time::sleep(away).await;
            media.behave(Manner::Honest);
        });
        assert_eq!(&read.expect("it was there in time").unwrap(), plain);
        assert!(began.elapsed() <= away + LONGEST, "{:?}", began.elapsed());
    }
    // It was not held against it that it was away when it could only help.
    let report = &sources.report()[0];
    assert_eq!((report.rests, report.had), (0, 2), "{report:?}");
    assert!(report.asked < 20, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_rests_is_asked_when_the_store_fails_or_gives_no_answer_and_a_liar_is_no_more() {
    let chunks = chunks(6);
    for fails in [true, false] {
        let (media, liar) = (fake(&chunks, Manner::Dying(0)), fake(&chunks, Manner::Lying));
        let sources = sources(CostEstimate::DISTANT, &[Arc::clone(&media), Arc::clone(&liar)]);
        for plain in &chunks[..5] {
            assert_eq!(&read(&sources, plain, MS(50)).await.unwrap(), plain);
        }
        assert_eq!(sources.report()[0].state, SourceState::Resting);
        media.behave(Manner::Honest);
        let at = asked_for(&testing::settings(), &chunks[5]);
        let store = || async move {
            match fails {
                true => Err(Error::unavailable("down")),
                false => std::future::pending().await,
            }
        };
        let read = sources.read(&at, ReadOrder::Cheapest, Urgency::Background, store);
        let read = tokio::time::timeout(MS(5000), read).await.expect("it has it");
        assert_eq!(read.unwrap(), chunks[5]);
        assert!(!liar.claims(&at.id) || liar.asked() <= 6, "{}", liar.asked());
    }
}

/// What a hundred reads cost with a source of this manner beside a store of 50 ms, against none.
async fn overhead(manner: Manner) -> (Duration, Vec<SourceReport>) {
    let chunks = chunks(100);
    let sources = sources(CostEstimate::DISTANT, &[fake(&chunks, manner)]);
    let began = Instant::now();
    for plain in &chunks {
        assert_eq!(&read(&sources, plain, MS(50)).await.unwrap(), plain, "never a wrong byte");
    }
    (began.elapsed().saturating_sub(MS(5000)), sources.report())
}

#[tokio::test(start_paused = true)]
async fn a_bad_source_costs_less_than_a_twentieth_and_is_asked_no_more() {
    let dying = Manner::Dying(0);
    for manner in [Manner::Lying, Manner::Truncating, Manner::Hanging, dying] {
        let (lost, report) = overhead(manner).await;
        assert!(lost <= MS(250), "{manner:?} cost {lost:?}: {report:?}");
        // One that hangs is slower than the store from the first time on.
        let rests = report[0].rests >= 1 || manner == Manner::Hanging;
        assert!(rests && report[0].asked <= 10, "{manner:?}: {report:?}");
        let bad = report[0].wrong + report[0].failed + report[0].late;
        assert!((1..=10).contains(&bad), "{manner:?}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_dies_midway_and_comes_back_is_asked_again() {
    let chunks = chunks(40);
    let media = fake(&chunks, Manner::Dying(10));
    let sources = sources(CostEstimate::DISTANT, &[Arc::clone(&media)]);
    for plain in &chunks[..30] {
        read(&sources, plain, MS(50)).await.unwrap();
    }
    assert_eq!(sources.report()[0].state, SourceState::Resting);
    media.behave(Manner::Honest);
    tokio::time::sleep(Duration::from_secs(20)).await;
    for plain in &chunks[30..] {
        read(&sources, plain, MS(50)).await.unwrap();
    }
    assert_eq!(sources.report()[0].had, 20);
}

#[tokio::test(start_paused = true)]
async fn what_is_read_ahead_leaves_turns_to_a_guest() {
    let chunks = chunks(64);
    let media = fake(&chunks, Manner::Slow(MS(10)));
    let sources = sources(CostEstimate::DISTANT, &[media]);
    let at = |plain: &Bytes| asked_for(&testing::settings(), plain);
    let never = std::future::pending::<Result<Bytes>>;
    let ahead = async {
        let read = |plain: &Bytes| {
            let (at, sources) = (at(plain), &sources);
            async move { sources.read(&at, ReadOrder::Cheapest, Urgency::Background, never).await }
        };
        let read = futures::future::join_all(chunks[1..].iter().map(read)).await;
        assert!(read.iter().all(Result::is_ok));
    };
    let guest = async {
        tokio::time::sleep(MS(5)).await;
        let began = Instant::now();
        let at = at(&chunks[0]);
        sources.read(&at, ReadOrder::Cheapest, Urgency::Demand, never).await.unwrap();
        assert!(began.elapsed() <= MS(15), "{:?}", began.elapsed());
    };
    tokio::join!(ahead, guest);
}

#[tokio::test(start_paused = true)]
async fn however_many_media_hang_the_store_is_asked_soon_and_its_error_told() {
    for hanging in 1..=3 {
        let chunks = chunks(40);
        let fakes: Vec<_> = (0..hanging).map(|_| fake(&chunks, Manner::Hanging)).collect();
        let sources = sources(CostEstimate::DISTANT, &fakes);
        for plain in &chunks {
            let at = asked_for(&testing::settings(), plain);
            let (began, failed) = (Instant::now(), OnceLock::new());
            let store = || async {
                let waited = began.elapsed();
                assert!(waited <= MS(2100) * hanging, "{hanging} media hang: {waited:?}");
                tokio::time::sleep(MS(50)).await;
                failed.set(Instant::now()).unwrap();
                Err(Error::unavailable("down"))
            };
            let read = sources.read(&at, ReadOrder::Cheapest, Urgency::Demand, store).await;
            assert_eq!(read.unwrap_err().message(), "down");
            assert!(failed.get().unwrap().elapsed() <= MS(10_100), "the error is told 10 s later");
            // As often as they were asked, they were given up, too: never twice at a time.
            let report = sources.report();
            assert!(report.iter().all(|one| one.asked <= 40), "{report:?}");
        }
    }
}

fn manners() -> impl Strategy<Value = Manner> {
    prop_oneof![
        Just(Manner::Honest),
        Just(Manner::Lying),
        (1u64..4000).prop_map(|ms| Manner::Slow(MS(ms))),
        Just(Manner::Hanging),
        (0u64..10).prop_map(Manner::Dying),
        Just(Manner::Truncating),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever sources do, a read gives the right bytes, or the store's error where nobody honest has it.
    #[test]
    fn no_source_fails_a_read_that_another_can_answer(
        who in prop::collection::vec(manners(), 0..4),
        store_fails in any::<bool>(),
        store_first in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let chunks = chunks(12);
            let fakes: Vec<_> = who.iter().map(|manner| fake(&chunks, *manner)).collect();
            let sources = sources(CostEstimate::DISTANT, &fakes);
            let order = if store_first { ReadOrder::StoreFirst } else { ReadOrder::Cheapest };
            let helped = who.contains(&Manner::Honest);
            for plain in &chunks {
                let at = asked_for(&testing::settings(), plain);
                let store = || async {
                    tokio::time::sleep(MS(50)).await;
                    if store_fails { Err(Error::unavailable("down")) } else { Ok(plain.clone()) }
                };
                let read = sources.read(&at, order, Urgency::Demand, store);
                match tokio::time::timeout(Duration::from_secs(20), read).await {
                    Ok(Ok(read)) => assert_eq!(&read, plain),
                    Ok(Err(e)) => {
                        assert!(store_fails && !helped);
                        assert_eq!(e.kind(), ErrorKind::Unavailable);
                    }
                    Err(_) => panic!("a read hangs for ever"),
                }
            }
        });
    }
}

/// The objects of an image's maps.
async fn maps() -> Vec<(MapId, Bytes)> {
    let backend = Arc::new(object_store::memory::InMemory::new());
    let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
    let session = testing::session(&store).await;
    let image = block::Memory::from(testing::noise(1, 1 << 20));
    let done = store::import::from_device(&session, &image, &()).await.unwrap();
    let mut all = Vec::new();
    for id in store.manifest(&done.manifest).await.unwrap().maps() {
        all.push((id, store.map_object(&id).await.unwrap()));
    }
    all
}

fn with_maps(maps: &[(MapId, Bytes)], manner: Manner) -> Arc<Fake> {
    Arc::new(Fake::new("fake", &testing::settings(), &[], manner).with_maps(maps.iter().cloned()))
}

#[tokio::test(start_paused = true)]
async fn a_map_comes_from_whoever_is_honest_and_never_late() {
    let maps = maps().await;
    for manner in [Manner::Lying, Manner::Truncating, Manner::Dying(0), Manner::Hanging] {
        let (bad, good) = (with_maps(&maps, manner), with_maps(&maps, Manner::Honest));
        let both = sources(CostEstimate::DISTANT, &[Arc::clone(&bad), good]);
        let alone = sources(CostEstimate::DISTANT, &[bad]);
        for (id, object) in &maps {
            let began = Instant::now();
            assert_eq!(both.map(id, MapTurn::BeforeStore).await.as_ref(), Some(object));
            assert_eq!(alone.map(id, MapTurn::BeforeStore).await, None, "{manner:?}");
            assert!(began.elapsed() <= MS(1000), "{manner:?} took {:?}", began.elapsed());
        }
        let report = &both.report()[0];
        assert_eq!(report.had, 0, "{report:?}");
        assert!(report.wrong + report.failed + report.late > 0, "{report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn maps_of_a_store_in_a_directory_come_from_there_until_it_fails() {
    let maps = maps().await;
    let key = with_maps(&maps, Manner::Slow(MS(15)));
    let sources = sources(CostEstimate::DIRECTORY, &[Arc::clone(&key)]);
    let (id, object) = &maps[0];
    assert_eq!(sources.map(id, MapTurn::BeforeStore).await, None);
    assert_eq!(key.asked(), 0);
    assert_eq!(sources.map(id, MapTurn::AfterStore).await.as_ref(), Some(object));
    let unknown = MapId::Root(store::ManifestId([9; 32]));
    assert_eq!(sources.map(&unknown, MapTurn::AfterStore).await, None);
}

#[tokio::test(start_paused = true)]
async fn when_the_store_is_no_help_a_medium_that_hangs_keeps_nobody_from_another_one() {
    let maps = maps().await;
    let (hung, good) = (with_maps(&maps, Manner::Hanging), with_maps(&maps, Manner::Honest));
    let sources = sources(CostEstimate::DISTANT, &[hung, good]);
    let began = Instant::now();
    for (id, object) in &maps {
        assert_eq!(sources.map(id, MapTurn::AfterStore).await.as_ref(), Some(object));
    }
    assert!(began.elapsed() < MS(1000), "{:?}", began.elapsed());
    assert_eq!(sources.report()[0].rests, 0);
}

#[tokio::test(start_paused = true)]
async fn a_read_of_a_map_that_hangs_keeps_its_turn_and_waiting_for_one_is_no_fault() {
    let maps = maps().await;
    let key = with_maps(&maps, Manner::Hanging);
    let sources = sources(CostEstimate::DISTANT, &[Arc::clone(&key)]);
    let (id, object) = &maps[0];
    for _ in 0..TURNS + 3 {
        assert_eq!(sources.map(id, MapTurn::AfterStore).await, None);
    }
    let report = &sources.report()[0];
    let turns = TURNS as u64;
    assert_eq!((key.asked(), report.asked, report.late), (turns, turns, turns), "{report:?}");
    // Those that are slow give their turns back, though nobody waits for them any more.
    let key = with_maps(&maps, Manner::Slow(MS(60_000)));
    let sources = self::sources(CostEstimate::DISTANT, &[Arc::clone(&key)]);
    for _ in 0..TURNS {
        assert_eq!(sources.map(id, MapTurn::AfterStore).await, None);
    }
    tokio::time::sleep(MS(60_000)).await;
    key.behave(Manner::Honest);
    assert_eq!(sources.map(id, MapTurn::AfterStore).await.as_ref(), Some(object));
}

#[tokio::test(start_paused = true)]
async fn no_map_waits_for_a_turn_of_a_medium_where_hung_reads_have_them_all() {
    let maps = maps().await;
    let key = with_maps(&maps, Manner::Hanging);
    let sources = sources(CostEstimate::DISTANT, &[Arc::clone(&key)]);
    let (id, _) = &maps[0];
    for _ in 0..TURNS {
        assert_eq!(sources.map(id, MapTurn::AfterStore).await, None);
    }
    let began = Instant::now();
    for turn in [MapTurn::BeforeStore, MapTurn::AfterStore].repeat(100) {
        assert_eq!(sources.map(id, turn).await, None);
    }
    assert!(began.elapsed() < MS(10), "{:?}", began.elapsed());
    assert_eq!(key.asked(), TURNS as u64);
}

/// A source whose reads have a thread, and wait in it until somebody sends something.
#[derive(Debug)]
struct Blocking(Arc<Fake>, Arc<Mutex<std::sync::mpsc::Receiver<()>>>);

#[async_trait::async_trait]
impl ChunkSource for Blocking {
    fn name(&self) -> &str {
        "a share"
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Tree
    }

    fn claims(&self, id: &store::ChunkId) -> bool {
        self.0.claims(id)
    }

    fn chunks(&self) -> u64 {
        self.0.chunks()
    }

    async fn chunk(&self, _: &ChunkRef) -> Result<ChunkBytes> {
        let hangs = Arc::clone(&self.1);
        block::offload(move || {
            let _ = hangs.lock().recv();
            Err(Error::unavailable("it was unmounted"))
        })
        .await
    }

    fn disown(&self, _: &store::ChunkId) {}
}

#[test]
fn reads_of_a_source_that_hangs_leave_threads_to_the_rest_of_the_process() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(TURNS + 2).enable_all();
    let runtime = runtime.build().unwrap();
    let chunks = chunks(4 * TURNS as u64);
    let (let_go, hangs) = std::sync::mpsc::channel();
    let fake = fake(&chunks, Manner::Honest);
    let share = Arc::new(Blocking(fake, Arc::new(Mutex::new(hangs))));
    let list = vec![share as Arc<dyn ChunkSource>];
    let sources = Sources::new(testing::settings(), "the store", CostEstimate::DISTANT, list);
    let flushed = runtime.block_on(async {
        // The store is away, too: whoever claims a chunk is asked.
        let fails = || async { Err(Error::unavailable("down")) };
        for plain in &chunks {
            let at = asked_for(&testing::settings(), plain);
            let read = sources.read(&at, ReadOrder::StoreFirst, Urgency::Demand, fails);
            // Whoever wanted it goes away.
            let _ = tokio::time::timeout(MS(20), read).await;
        }
        tokio::time::timeout(Duration::from_secs(60), block::offload(|| Ok(()))).await
    });
    let report = &sources.report()[0];
    drop(let_go);
    assert!(flushed.is_ok(), "no thread is left: {report:?}");
    assert_eq!(report.asked, TURNS as u64, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn that_hung_reads_have_all_turns_of_a_medium_costs_little() {
    let chunks = chunks(1000);
    for urgency in [Urgency::Demand, Urgency::Background] {
        let media = fake(&chunks, Manner::Hanging);
        let sources = sources(CostEstimate::DISTANT, &[Arc::clone(&media)]);
        let mut lost = Duration::ZERO;
        for plain in &chunks {
            let (at, began) = (asked_for(&testing::settings(), plain), Instant::now());
            let store = || async {
                tokio::time::sleep(MS(50)).await;
                Ok(plain.clone())
            };
            sources.read(&at, ReadOrder::Cheapest, urgency, store).await.unwrap();
            lost += began.elapsed().saturating_sub(MS(50));
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
        assert!(lost < Duration::from_secs(10), "{urgency:?}: {lost:?} {:?}", sources.report()[0]);
    }
}

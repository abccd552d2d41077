use super::storm::{MOST_BOOTS, MOST_MOMENTS};
use super::views::{BootState, BootWait};
use super::*;
use crate::boots::recording::QUIET;
use block::{Device, Memory, Span};
use disk::{LoadOptions, Loader};
use store::{ChunkId, Store, import, testing};

/// An image of so many bytes of noise in a store, for any number of disks.
async fn stored(dir: &tempfile::TempDir, size: u64) -> impl Fn() -> Arc<Image> {
    let backend = objects::create_local(dir.path()).unwrap();
    let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
    let session = testing::session(&store).await;
    let bytes = Memory::from(testing::noise(3, size as usize));
    let done = import::from_device(&session, &bytes, &()).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    let config = cache::Config { capacity: 16 << 20, policy: cache::PolicyKind::Lru, seed: 1 };
    let loader = Loader::new(store, Arc::new(cache::Cache::new(config)), LoadOptions::default());
    move || Arc::new(Image::through(&loader, Arc::clone(&manifest)))
}

/// That of one disk, and its chunks.
async fn image(dir: &tempfile::TempDir, size: u64) -> (Arc<Image>, Vec<ChunkId>) {
    let image = (stored(dir, size).await)();
    let recorded = image.record(1000).unwrap().unwrap();
    read(&image, 0..size).await;
    image.stop_recording();
    (image, recorded.chunks())
}

async fn read(image: &Image, bytes: std::ops::Range<u64>) {
    let mut buffer = vec![0; (bytes.end - bytes.start) as usize];
    let span = Span::between(bytes.start, bytes.end);
    if image.try_read(span, &mut buffer).unwrap() != block::Attempt::Done {
        image.read(span, &mut buffer).await.unwrap();
    }
}

fn guest(disk: &str) -> BootingGuest {
    BootingGuest { disk: disk.into(), client: "pid 7".into(), image: "debian:1".into() }
}

fn storms() -> Arc<Storms> {
    Arc::new(Storms::new(testing::world(1).clock))
}

#[tokio::test(start_paused = true)]
async fn a_boot_is_watched_until_nothing_new_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (image, chunks) = image(&dir, 8 << 20).await;
    let storms = storms();
    let begun = storms.begin(guest("alice"), Arc::clone(&image));
    assert!(begun.boot.is_some());
    let half = Arc::new(ListedChunks::new(&chunks[..chunks.len() / 2]));
    begun.progress.follow(half);
    let follow = Arc::clone(&storms).follow(begun.begins.unwrap(), || 0);
    let boots = async {
        read(&image, 0..8 << 20).await;
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let now = storms.now(10);
        assert_eq!((now.booting, now.waits.none, now.boots.len()), (1, 1, 1));
        let [boot] = &now.boots[..] else { panic!("{now:?}") };
        assert_eq!(
            (&*boot.disk, boot.state, boot.now),
            ("alice", BootState::Booting, Some(BootWait::None))
        );
        assert_eq!(boot.listed_chunks as usize, chunks.len() / 2);
        assert_eq!(boot.list_chunks, Some(chunks.len() as u64 / 2));
        assert_eq!(boot.other_chunks as usize, chunks.len().div_ceil(2));
        assert_eq!(boot.bytes, 8 << 20);
        assert!(!now.storms[0].over);
    };
    tokio::join!(follow, boots);
    let over = storms.now(10);
    assert_eq!((over.booting, over.boots.len()), (0, 0));
    let storm = storms.storm(over.storms[0].storm).unwrap();
    assert!(storm.storm.over && storm.moments.len() >= QUIET.as_secs() as usize, "{storm:?}");
    let [recorded] = &storm.boots[..] else { panic!("{storm:?}") };
    assert_eq!((recorded.boot.state, recorded.boot.now), (BootState::Done, None));
    assert_eq!(recorded.lane, "-".repeat(storm.moments.len()));
    assert!(recorded.boot.seconds < 2.0, "{recorded:?}");
    // Who comes later begins another one.
    assert!(storms.begin(guest("bob"), image).begins.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_there_is_looked_up_once_and_one_that_is_not_now_and_then() {
    let (list, asked) = (SharedList::default(), std::sync::atomic::AtomicU32::new(0));
    let ask = async |found: Option<&Arc<ListedChunks>>| {
        let look_up = async {
            asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(found.cloned())
        };
        list.get(look_up).await.unwrap().is_some()
    };
    let chunks = Arc::new(ListedChunks::new(&[]));
    assert!(!ask(None).await && !ask(Some(&chunks)).await, "it was looked up just now");
    tokio::time::advance(QUIET).await;
    assert!(ask(Some(&chunks)).await && ask(None).await);
    tokio::time::advance(10 * QUIET).await;
    assert!(ask(None).await);
    assert_eq!(asked.into_inner(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_at_once_is_not_told_of_and_who_leaves_early_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let (image, _) = image(&dir, 8 << 20).await;
    let storms = storms();
    drop(storms.begin(guest("probe"), Arc::clone(&image)).boot);
    assert_eq!(storms.now(10).storms.len(), 0);
    let begun = storms.begin(guest("alice"), Arc::clone(&image));
    assert!(begun.begins.is_some(), "nobody booted any more");
    read(&image, 0..8 << 20).await;
    drop(begun.boot);
    let number = storms.now(10).storms[0].storm;
    let storm = storms.storm(number).unwrap();
    assert_eq!(storm.boots[0].boot.state, BootState::Left);
    assert!(storms.storm(number + 1).is_none());
}

#[tokio::test(start_paused = true)]
async fn many_boots_over_a_long_time_take_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let of_a_disk = stored(&dir, 32 << 20).await;
    let storms = storms();
    let (mut held, mut images, mut begins) = (Vec::new(), Vec::new(), None);
    for _ in 0..MOST_BOOTS + 5 {
        let image = of_a_disk();
        let begun = storms.begin(guest("x"), Arc::clone(&image));
        begins = begins.or(begun.begins);
        if let Some(boot) = begun.boot {
            held.push(boot);
            images.push(image);
        }
    }
    let image = images.pop().unwrap();
    let follow = Arc::clone(&storms).follow(begins.unwrap(), || 7);
    // Each chunk is new to the last one, which so boots as long as a boot may.
    let last = async {
        for at in 0..128 {
            read(&image, at << 18..(at + 1) << 18).await;
            tokio::time::sleep(Duration::from_millis(2400)).await;
        }
    };
    tokio::join!(follow, last);
    let now = storms.now(10);
    assert_eq!((held.len(), now.storms[0].unwatched), (MOST_BOOTS, 5));
    let storm = storms.storm(now.storms[0].storm).unwrap();
    assert!(storm.moments.len() < MOST_MOMENTS && storm.moments.len() > MOST_MOMENTS / 2);
    let boot = storm.boots.last().unwrap();
    assert_eq!(boot.boot.state, BootState::TooLong);
    assert_eq!(boot.lane.len(), storm.moments.len() - boot.first_moment as usize);
    // The same boot ends again and again, and each storm begins anew.
    for _ in 0..2 * KEPT {
        let begun = storms.begin(guest("y"), Arc::clone(&image));
        read(&image, 0..8 << 20).await;
        drop(begun.boot);
    }
    assert_eq!(storms.now(10).storms.len(), KEPT);
}

#[tokio::test(start_paused = true)]
async fn a_storm_that_ended_between_two_looks_is_followed_by_nobody_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (image, _) = image(&dir, 8 << 20).await;
    let storms = storms();
    let mut followers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let begun = storms.begin(guest("alice"), Arc::clone(&image));
        followers.spawn(Arc::clone(&storms).follow(begun.begins.unwrap(), || 0));
    }
    let begun = storms.begin(guest("alice"), Arc::clone(&image));
    followers.spawn(Arc::clone(&storms).follow(begun.begins.unwrap(), || 0));
    read(&image, 0..8 << 20).await;
    let (began, number) = (Instant::now(), storms.now(10).storms[0].storm);
    followers.join_all().await;
    let storm = storms.storm(number).unwrap();
    assert!(storm.moments.len() as u64 <= began.elapsed().as_secs(), "{storm:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_with_several_connections_boots_once_until_the_last_of_them_ends() {
    let dir = tempfile::tempdir().unwrap();
    let of_a_disk = stored(&dir, 8 << 20).await;
    let (image, other) = (of_a_disk(), of_a_disk());
    let storms = storms();
    let mut boots: Vec<_> =
        (0..4).map(|_| storms.begin(guest("alice"), Arc::clone(&image)).boot).collect();
    let _other = storms.begin(guest("bob"), Arc::clone(&other)).boot;
    assert_eq!(storms.now(10).booting, 2);
    boots.truncate(1);
    read(&image, 0..8 << 20).await;
    let now = storms.now(10);
    assert_eq!(now.booting, 2);
    drop(boots);
    assert_eq!(storms.now(10).booting, 1);
    let storm = storms.storm(now.storms[0].storm).unwrap();
    let alice = storm.boots.iter().find(|recorded| recorded.boot.disk == "alice").unwrap();
    assert_eq!((alice.boot.state, alice.boot.bytes), (BootState::Left, 8 << 20));
}

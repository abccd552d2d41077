//! What the last resume read first is fetched ahead of the guest: in that order, behind what the guest waits for,
//! and so little at a time that what it asks for next does not wait for long. Where that is not known, what lies
//! behind an extent that the guest waits for is fetched with it, if the link is quick. All the rest comes behind, while
//! the guest waits for nothing and leaves its disk alone.

use crate::demand::ExtentDemand;
use crate::disk_use::DiskUse;
use crate::image::MemoryRegion;
use crate::{EXTENT, MemoryImage, PAGE};
use block::Span;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The fewest extents under way at the same time: one is answered while the next one is on its way.
const FEWEST: usize = 2;
/// The most.
const MOST: usize = 32;
/// What is under way should be answered within this time: a guest may ask for something else behind it.
const BEHIND: Duration = Duration::from_millis(150);

/// Extents behind one that the guest waits for that come with it where the link is quick.
const BESIDE: u64 = 3;
/// A link is quick when these come within this time: at 10 Mb/s they do not.
const QUICK: Duration = Duration::from_millis(40);
/// How many of these are under way at the same time, at the most.
const MOST_BESIDE: usize = 4;
/// After a link was slow so many extents that the guest waits for come alone; twice as many each time it still is.
const ALONE: u32 = 8;
/// … and at the most so many.
const MOST_ALONE: u32 = 512;

/// For how long the guest must not have waited for the link before more of the rest is fetched, at the least; and where a
/// part takes long, for this many times as long as the last one did, up to the most: over a thin link what the guest asks
/// for next would wait behind it.
const QUIET: Duration = Duration::from_millis(200);
const PARTS_OF_QUIET: u32 = 4;
const MOST_QUIET: Duration = Duration::from_secs(5);
/// How soon what did not come of the rest is tried again, at first and at last.
const RETRY: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(3600)];
/// Parts of the rest that are under way at the same time, at the most: when the link is cut these wait for it, and what
/// is kept here is read beside them.
const MOST_OF_REST: usize = 8;

/// That the rest of the memory is to be fetched.
pub(crate) struct RestOfMemory {
    /// The disk of the machine: nothing is fetched while the guest waits for that.
    pub(crate) disk: DiskUse,
    /// Has the memory when all of it has come.
    pub(crate) came: Arc<OnceLock<Arc<MemoryImage>>>,
}

/// A part of memory: an extent of a region.
type MemoryPart = (MemoryRegion, u64);

/// All parts of a memory: what changed since the base first, which no older medium has.
fn parts_of(memory: u64) -> Vec<MemoryPart> {
    let extents = 0..memory.div_ceil(EXTENT);
    let regions = [MemoryRegion::Delta, MemoryRegion::Base];
    regions.into_iter().flat_map(|region| extents.clone().map(move |at| (region, at))).collect()
}

/// Fetches parts of the memory behind the guest, into what is kept of the store on this host. Returns those that did not
/// come.
async fn fetch_rest(
    base: &Arc<MemoryImage>,
    parts: Vec<MemoryPart>,
    demand: &Arc<ExtentDemand>,
    disk: &mut DiskUse,
) -> Vec<MemoryPart> {
    let memory = base.layout().memory;
    let failed = Arc::new(Mutex::new(Vec::new()));
    let one = |part: MemoryPart| {
        let (base, failed) = (Arc::clone(base), Arc::clone(&failed));
        let (region, extent) = part;
        let span = Span::between(extent * EXTENT, ((extent + 1) * EXTENT).min(memory));
        async move {
            let bytes = base.fetch_region_ahead(region, span).await;
            bytes.unwrap_or_else(|_| {
                failed.lock().push(part);
                0
            })
        }
    };
    fetch_each(parts, demand, |part| vec![part.1], one, Some(disk)).await;
    std::mem::take(&mut *failed.lock())
}

/// Fetches all of the memory behind the guest. What does not come is tried again, less and less often, and nothing else
/// with it: what came may have had to make room for other things since, and would come over the link each time.
async fn fetch_all(base: Arc<MemoryImage>, demand: &Arc<ExtentDemand>, rest: RestOfMemory) {
    let RestOfMemory { mut disk, came } = rest;
    let (mut parts, mut pause) = (parts_of(base.layout().memory), RETRY[0]);
    loop {
        parts = fetch_rest(&base, parts, demand, &mut disk).await;
        if parts.is_empty() {
            break;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY[1]);
    }
    let _ = came.set(base);
}

/// Fetches what the last resume read into the cache, where memory is fetched as it is touched. `set` is the resume set;
/// that of the base if there is none. Where the base has copies of pages, they take the place of a set. Then the `rest`, if
/// that is to come. May not end.
pub(crate) async fn fetch_memory(
    base: Arc<MemoryImage>,
    set: Option<Vec<u32>>,
    demand: Arc<ExtentDemand>,
    rest: Option<RestOfMemory>,
) {
    let copied = base.list_of_copies().await.unwrap_or_default();
    let set = match set {
        _ if !copied.is_empty() => Vec::new(),
        Some(set) => set,
        // The oldest parcel has none, and one that is damaged only makes the resume slow.
        None => base.resume_set().await.unwrap_or_default(),
    };
    if !copied.is_empty() {
        fetch_copies(&base, copied, &demand).await;
    } else if !set.is_empty() {
        fetch(Arc::clone(&base), &set, &demand).await;
    }
    let behind = async {
        let Some(rest) = rest else { return };
        fetch_all(Arc::clone(&base), &demand, rest).await;
    };
    match set.is_empty() {
        true => drop(tokio::join!(behind, fetch_beside(Arc::clone(&base), &demand))),
        false => behind.await,
    }
}

/// Fetches a resume set into the cache, in its order. Nothing is begun while the guest waits for an extent that is not
/// on its way ahead.
async fn fetch(base: Arc<MemoryImage>, set: &[u32], demand: &Arc<ExtentDemand>) {
    let memory = base.layout().memory;
    let one = |extent: u32| {
        let (base, start) = (Arc::clone(&base), u64::from(extent) * EXTENT);
        // What cannot be had now is fetched when the guest asks for it.
        async move { base.fetch_ahead(Span::between(start, (start + EXTENT).min(memory))).await }
    };
    fetch_each(set.iter().copied(), demand, |extent| vec![u64::from(*extent)], one, None).await;
}

/// Fetches copies of pages into the cache, in the order in which they lie there; as [`fetch`].
async fn fetch_copies(base: &Arc<MemoryImage>, pages: &[u32], demand: &Arc<ExtentDemand>) {
    let each = (EXTENT / PAGE) as usize;
    let parts: Vec<(u64, Vec<u32>)> =
        (0..).step_by(each).zip(pages.chunks(each).map(<[u32]>::to_vec)).collect();
    let extents_of = |part: &(u64, Vec<u32>)| {
        part.1.iter().map(|page| u64::from(*page) * PAGE / EXTENT).collect()
    };
    let one = |(place, pages): (u64, Vec<u32>)| {
        let base = Arc::clone(base);
        async move { base.fetch_copies_ahead(place, &pages).await }
    };
    fetch_each(parts, demand, extents_of, one, None).await;
}

/// Fetches into the cache what lies behind the extents that the guest waits for, as long as the link is quick. Does not
/// end.
async fn fetch_beside(base: Arc<MemoryImage>, demand: &ExtentDemand) {
    let memory = base.layout().memory;
    let some = |extents: Range<u64>| {
        let (base, end) = (Arc::clone(&base), (extents.end * EXTENT).min(memory));
        let span = Span::between((extents.start * EXTENT).min(end), end);
        async move { base.fetch_ahead(span).await }
    };
    fetch_each_beside(demand, some).await;
}

/// Fetches extents by `some`, which returns how many bytes came.
async fn fetch_each_beside<F>(demand: &ExtentDemand, some: impl Fn(Range<u64>) -> F)
where
    F: Future<Output = u64> + Send + 'static,
{
    let (mut listener, mut running) = (demand.listen(), JoinSet::new());
    let (mut known, mut alone, mut next_alone) = (HashSet::new(), 0, ALONE);
    loop {
        for extent in listener.next().await {
            while let Some(done) = running.try_join_next() {
                match done {
                    Ok((1.., took)) if took > QUICK => {
                        (alone, next_alone) = (next_alone, (next_alone * 2).min(MOST_ALONE));
                    }
                    _ => {}
                }
            }
            if !known.insert(extent) || running.len() >= MOST_BESIDE {
                continue;
            }
            if alone > 0 {
                alone -= 1;
                continue;
            }
            let beside = extent + 1..extent + 1 + BESIDE;
            known.extend(beside.clone());
            let (fetching, began) = (some(beside), Instant::now());
            running.spawn(async move { (fetching.await, began.elapsed()) });
        }
    }
}

/// Fetches parts by `one`, which returns how many bytes came; `extents_of` says which extents a part is of. Nothing is
/// begun while the guest waits for `disk`, or did wait for memory just now, where that is given.
async fn fetch_each<T, F>(
    parts: impl IntoIterator<Item = T>,
    demand: &Arc<ExtentDemand>,
    extents_of: impl Fn(&T) -> Vec<u64>,
    one: impl Fn(T) -> F,
    mut disk: Option<&mut DiskUse>,
) where
    F: Future<Output = u64> + Send + 'static,
{
    let mut width = if disk.is_some() { Width::of_rest() } else { Width::default() };
    let mut running = JoinSet::new();
    let mut quiet = QUIET;
    for part in parts {
        while running.len() >= width.get() {
            if let Some(Ok((bytes, took))) = running.join_next().await {
                width.answered(bytes, took);
                if bytes > 0 {
                    quiet = (took * PARTS_OF_QUIET).clamp(QUIET, MOST_QUIET);
                }
            }
        }
        if let Some(disk) = &mut disk {
            disk.until_quiet().await;
            while demand.was_within(quiet) {
                sleep(QUIET / 2).await;
            }
        }
        demand.until_ahead().await;
        let (demand, extents) = (Arc::clone(demand), extents_of(&part));
        let fetching = one(part);
        running.spawn(async move {
            let (_ahead, began) = (demand.ahead(extents), Instant::now());
            (fetching.await, began.elapsed())
        });
    }
    while running.join_next().await.is_some() {}
}

/// How many extents are under way at the same time: few on a thin link, where all wait for each other, and as many
/// as it takes to fill a long one.
#[derive(Debug)]
struct Width {
    now: usize,
    fewest: usize,
    most: usize,
    quickest: Option<Duration>,
}

impl Default for Width {
    fn default() -> Self {
        Self { now: FEWEST, fewest: FEWEST, most: MOST, quickest: None }
    }
}

impl Width {
    /// That of what nobody waits for soon.
    fn of_rest() -> Self {
        Self { now: 1, fewest: 1, most: MOST_OF_REST, quickest: None }
    }

    fn get(&self) -> usize {
        self.now
    }

    /// An extent of which so many bytes were fetched took so long.
    fn answered(&mut self, bytes: u64, took: Duration) {
        // What was there already says nothing of the link.
        if bytes == 0 {
            return;
        }
        let quickest = self.quickest.map_or(took, |quickest| quickest.min(took));
        self.quickest = Some(quickest);
        // On a link where one takes as long, fewer would not be quicker.
        let should = BEHIND.max(quickest + quickest / 2);
        if took <= should {
            self.now = (self.now + 1).min(self.most);
        } else if took > should * 2 {
            self.now = (self.now / 2).max(self.fewest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// How many are under way on a link that carries one at a time, each in `own` ms, and takes `trip` ms more for
    /// each; the most and the mean of many.
    fn settled(own: u64, trip: u64) -> (usize, usize) {
        let mut width = Width::default();
        let (mut most, mut sum) = (0, 0);
        for _ in 0..200 {
            // All that are under way share the link.
            width.answered(20_000, Duration::from_millis(trip + own * width.get() as u64));
            (most, sum) = (most.max(width.get()), sum + width.get());
        }
        (most, sum / 200)
    }

    #[test]
    fn a_thin_link_has_few_under_way_and_a_long_one_as_many_as_fill_it() {
        assert!(settled(160, 10).0 <= 4, "1 Mb/s");
        assert!(settled(16, 0).0 <= 20, "10 Mb/s: a third of a second at the most");
        assert!(settled(2, 100).1 >= 20, "100 Mb/s, and 100 ms");
    }

    #[test]
    fn what_is_held_says_nothing_of_the_link() {
        let mut width = Width::default();
        width.answered(0, Duration::ZERO);
        assert_eq!((width.get(), width.quickest), (FEWEST, None));
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Fetches a set from a link that takes a second for each extent, and five for extent 3; what was begun so far.
    fn fetching(set: &[u32], demand: &Arc<ExtentDemand>) -> (Arc<Mutex<Vec<u64>>>, JoinSet<()>) {
        let begun = Arc::new(Mutex::new(Vec::new()));
        let (noted, set, demand) = (Arc::clone(&begun), set.to_vec(), Arc::clone(demand));
        let one = move |extent: u32| {
            let extent = u64::from(extent);
            noted.lock().push(extent);
            async move {
                sleep(if extent == 3 { SECOND * 5 } else { SECOND }).await;
                4096
            }
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            fetch_each(set, &demand, |extent| vec![u64::from(*extent)], one, None).await
        });
        (begun, tasks)
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_comes_in_its_order_and_behind_what_the_guest_waits_for() {
        let demand = Arc::new(ExtentDemand::default());
        let waits = demand.wait_for(9..10);
        let (begun, mut tasks) = fetching(&[5, 3, 8, 9, 1, 2], &demand);
        sleep(SECOND * 10).await;
        assert!(begun.lock().is_empty(), "the guest goes before all of it");
        drop(waits);
        sleep(SECOND / 2).await;
        assert_eq!(*begun.lock(), [5, 3], "few at a time");
        // In the middle of it, too; what is under way comes.
        let waits = demand.wait_for(7..8);
        sleep(SECOND * 10).await;
        assert_eq!(*begun.lock(), [5, 3]);
        drop(waits);
        while tasks.join_next().await.is_some() {}
        assert_eq!(*begun.lock(), [5, 3, 8, 9, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_waits_for_what_is_on_its_way_holds_up_nothing() {
        let demand = Arc::new(ExtentDemand::default());
        let (begun, _tasks) = fetching(&[5, 3, 8, 9], &demand);
        sleep(SECOND / 2).await;
        let _waits = demand.wait_for(3..4);
        sleep(SECOND).await;
        assert!(begun.lock().len() > 2, "{begun:?}");
    }

    /// How many extents came beside what a guest asked for that waits for every eighth one, on a link that takes
    /// so many ms.
    async fn beside(took: u64) -> u64 {
        let (demand, came) = (Arc::new(ExtentDemand::default()), Arc::new(Mutex::new(0)));
        let (heard, counted) = (Arc::clone(&demand), Arc::clone(&came));
        let some = move |extents: Range<u64>| {
            *counted.lock() += extents.end - extents.start;
            async move {
                sleep(Duration::from_millis(took)).await;
                4096
            }
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { fetch_each_beside(&heard, some).await });
        for number in 0..100 {
            sleep(SECOND).await;
            let _waits = demand.wait_for(number * 8..number * 8 + 1);
            sleep(SECOND).await;
        }
        *came.lock()
    }

    #[tokio::test(start_paused = true)]
    async fn what_lies_behind_comes_with_what_is_waited_for_where_the_link_is_quick() {
        assert_eq!(beside(10).await, 100 * BESIDE);
        assert!(beside(300).await <= 5 * BESIDE, "a thin link is tried now and then");
    }
}

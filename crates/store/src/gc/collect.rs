//! One collection, from the census to the sweep.

use super::census::{self, ListedPin};
use super::mark;
use super::marked::Marks;
use super::report::{GcOptions, GcReport, LiveObjects, amount_of};
use super::round::{GarbageCandidates, Round, WHAT, id_in, item, others};
use super::sweep::{self, Swept};
use super::{damage, rewrite, trim};
use crate::collection::lists;
use crate::collection::seconds;
use crate::collection::{CollectionState, List};
use crate::condemned::{self, Absent, CondemnedKind, CondemnedName, CondemnedObject};
use crate::id::CondemnedId;
use crate::{PackId, Progress, Store, pack};
use block::{Error, ErrorKind, Result};
use object_store::ObjectMeta;
use objects::Amount;
use std::collections::BTreeMap;

/// Changes of the state by others that a collection gives way to.
const ATTEMPTS: usize = 8;
/// Seconds by which clocks of the store's parts may differ.
const SLACK: u64 = 60;
/// Lists that wait to be swept at the most: the record of all of them has a limit. With more,
/// garbage is condemned later.
const MAX_OPEN: usize = 200;

/// Finds what nothing refers to and condemns it; deletes what was condemned long enough ago.
///
/// Runs beside everything else, also beside other collections. It may be stopped at any point.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) for options that make no sense; the store's. What cannot be
/// read is in the report instead, and stops only what it may concern.
pub async fn collect(
    store: &Store,
    options: &GcOptions,
    progress: &dyn Progress,
) -> Result<GcReport> {
    if !(0.0..=1.0).contains(&options.rewrite_below) {
        return Err(Error::invalid("packs are rewritten below a share of 0 to 100 %"));
    }
    let mut report = round(store, options, progress).await?;
    // What was found now may be deleted now.
    if options.grace.is_zero() && !options.dry_run && report.found.objects > 0 {
        let last = round(store, options, progress).await?;
        report.freed.objects += last.freed.objects;
        report.freed.bytes += last.freed.bytes;
        report.pins += last.pins;
        report.records += last.records;
        report.waiting = last.waiting;
        report.doubts = last.doubts;
        report.live = last.live;
    }
    Ok(report)
}

async fn round(store: &Store, options: &GcOptions, progress: &dyn Progress) -> Result<GcReport> {
    let mut replaced = Vec::new();
    // Its own session, because it writes packs too.
    let session = match store.session(WHAT).await {
        Err(e) if e.kind() == ErrorKind::Corrupt && !options.dry_run => {
            replaced = damage::replace_lists(store, options, progress).await?;
            store.session(WHAT).await?
        }
        other => other?,
    };
    let outcome = Round { store, session: &session, options, progress }.run().await;
    let report = session.close(outcome).await?;
    Ok(GcReport { replaced, ..report })
}

/// Whether somebody collects now, or did when he died.
pub(crate) async fn is_at_work(store: &Store) -> Result<bool> {
    let pins = census::pins(store).await?;
    Ok(pins.iter().any(|seen| seen.pin.as_ref().is_none_or(|pin| pin.what == WHAT)))
}

impl Round<'_> {
    async fn run(&self) -> Result<GcReport> {
        let (store, options) = (self.store, self.options);
        let mut report = GcReport { dry_run: options.dry_run, ..GcReport::default() };
        let now = self.now().await?;
        let grace = options.grace.as_secs();
        report.records = trim::trim(store, now, grace, options.dry_run).await?;

        // The order counts: objects, the record and its lists, pins and names, what was moved.
        let mut listed = self.list().await?;
        let state = CollectionState::load(store).await?;
        listed.packs.absent = state.absent(store).await?;
        listed.lists = self.lists().await?;
        let dead = self.bury(now).await?;
        report.pins = dead.len() as u64;
        // A session that was renewed meanwhile lives: it has looked for the pin before since.
        let census = census::take(store).await?;
        report.records += trim::forget(store, &census.removals, now, options.dry_run).await?;
        self.list_moved(&mut listed).await?;
        let marks = mark::mark(store, &census, &listed.packs, self.progress).await?;
        report.live = LiveObjects {
            names: census.names.iter().filter(|named| named.current).count() as u64,
            manifests: marks.manifests.len() as u64,
            segments: marks.segments.len() as u64,
            packs: listed.packs.listed.keys().filter(|id| marks.pack(id)).count() as u64,
            chunks: marks.chunks(),
        };
        report.doubts = marks.doubts.iter().map(|doubt| doubt.error.message().into()).collect();

        let own = self.session.pin_keys().await;
        let living = others(&census, &own, &dead);
        self.must_follow_all(&state, &living).await?;
        self.sweep(&state, &listed, &living, now, &marks, &mut report).await?;
        let condemned = state.condemned(store).await?;
        self.condemn(&listed, &condemned, &living, now, &marks, &mut report).await?;
        Ok(report)
    }

    /// Refuses while a session is at work that saw a later record than there is. That one was lost, and the
    /// next would have its number: nobody could tell any more which of the two the session saw.
    async fn must_follow_all(&self, state: &CollectionState, living: &[&ListedPin]) -> Result<()> {
        let ahead = || living.iter().filter(|seen| seen.sequence() > state.sequence);
        let Some(seen) = ahead().map(|seen| seen.sequence()).max() else { return Ok(()) };
        // It may have begun after another collection wrote it.
        if CollectionState::newest(self.store).await? >= seen {
            return Ok(());
        }
        let at_work: Vec<String> = ahead().map(|seen| seen.what()).collect();
        Err(Error::conflict(format!(
            "the newest record of garbage collection (refs/gc/store, number {seen}) is lost, and nothing is \
             collected while a session that saw it is at work on the store: let it end, or if it died end it with \
             `sojourn store sessions break`; at work: {}",
            at_work.join(", ")
        )))
    }

    /// Deletes what was condemned long enough ago.
    async fn sweep(
        &self,
        state: &CollectionState,
        listed: &GarbageCandidates,
        living: &[&ListedPin],
        now: u64,
        marks: &Marks,
        report: &mut GcReport,
    ) -> Result<()> {
        let dry = self.options.dry_run;
        let mut swept: BTreeMap<CondemnedId, Vec<List>> = BTreeMap::new();
        let room = state.room(now);
        for list in state.open() {
            if swept.len() >= room {
                tracing::info!(
                    "a later collection has the rest: what is deleted has to be remembered"
                );
                break;
            }
            // A list that is gone counts as old: another collection has replaced it.
            let written = listed.lists.get(&list.id).map_or(0, seconds);
            let age = now.saturating_sub(written);
            let grace = self.options.grace.as_secs();
            if let Some(waiting) = sweep::obstacle(list, age, grace, living) {
                report.waiting.push(waiting);
                continue;
            }
            let Swept { freed, unjudged, doubts } =
                sweep::sweep(self.session, list, marks, dry).await?;
            report.doubts.extend(doubts.iter().map(|doubt| doubt.message().to_owned()));
            let amount = amount_of(&freed);
            report.freed.objects += amount.objects;
            report.freed.bytes += amount.bytes;
            if dry || (freed.is_empty() && !unjudged.is_empty()) {
                continue;
            }
            // What was deleted is remembered. What could not be judged stays condemned: another
            // collection may know better, and be about to delete it. The rest is in use again.
            let mut parts = Vec::new();
            for (items, swept) in [(freed, Some(now)), (unjudged, None)] {
                let Amount { objects, bytes } = amount_of(&items);
                let id = match objects {
                    0 => continue,
                    all if all == list.objects => list.id,
                    _ => CondemnedId(lists::write(self.store, items).await?),
                };
                parts.push(List { id, swept, objects, bytes, ..list.clone() });
            }
            swept.insert(list.id, parts);
        }
        if dry || (swept.is_empty() && state.forget(now).0.is_empty()) {
            return Ok(());
        }
        let note = |lists: &mut Vec<List>, _| {
            let before = std::mem::take(lists);
            lists.extend(before.into_iter().flat_map(|list| match swept.get(&list.id) {
                Some(parts) if list.swept.is_none() => parts.clone(),
                _ => vec![list],
            }));
        };
        let state = self.change(now, note).await?;
        // Lists that no record names: forgotten ones, and those of a collection that was stopped.
        let named = |id: &CondemnedId| state.lists.iter().any(|list| list.id == *id);
        let lost = listed.lists.iter().filter(|(id, meta)| {
            !named(id) && now.saturating_sub(seconds(meta)) > self.options.stale.as_secs() + SLACK
        });
        let keys = lost.map(|(_, meta)| meta.location.to_string()).collect();
        sweep::delete(self.store, keys).await
    }

    /// Condemns what nothing refers to.
    async fn condemn(
        &self,
        listed: &GarbageCandidates,
        condemned: &Absent,
        living: &[&ListedPin],
        now: u64,
        marks: &Marks,
        report: &mut GcReport,
    ) -> Result<()> {
        // What sessions that are at work have written is not garbage yet, or soon is not any more.
        let young = living
            .iter()
            .map(|seen| {
                let age = seen.pin.as_ref().map_or(0, |pin| pin.age);
                seconds(&seen.meta).saturating_sub(age.saturating_add(SLACK))
            })
            .min()
            .unwrap_or(u64::MAX);
        let fresh = |name: &CondemnedName| !condemned.has(name.kind, name.id);
        let mut garbage: Vec<CondemnedObject> = listed
            .objects
            .iter()
            .filter(|(name, meta)| {
                seconds(meta) < young
                    && fresh(name)
                    && sweep::is_garbage(marks, name.kind, &name.id)
            })
            .map(|(name, meta)| item(*name, meta))
            .collect();
        let mostly_garbage = self.mostly_garbage(listed, marks, &fresh);
        for meta in &mostly_garbage {
            report.rewritten.add(meta.size);
        }
        if self.options.dry_run {
            let live = marks.live_bytes();
            for meta in &mostly_garbage {
                let bytes = id_in(meta).and_then(|id| live.get(&PackId(id)));
                report.kept_bytes += bytes.copied().unwrap_or(0);
            }
            garbage.iter().for_each(|item| report.found.add(item.size.into()));
            report.found.objects += report.rewritten.objects;
            report.found.bytes += report.rewritten.bytes;
            return Ok(());
        }
        let state = CollectionState::load(self.store).await?;
        if state.open().count() >= MAX_OPEN {
            tracing::warn!(
                "garbage is condemned when earlier one is deleted: too much of it waits"
            );
            return Ok(());
        }
        let done = rewrite::rewrite(self.session, &mostly_garbage, marks, self.progress).await;
        let done = match done {
            // What can go without being rewritten makes room for the rest.
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                tracing::warn!(
                    error = e.message(),
                    "no room to rewrite packs; collect again later"
                );
                rewrite::RewriteResult::default()
            }
            other => other?,
        };
        report.rewritten = Amount::default();
        report.kept_bytes = done.kept;
        for id in done.packs {
            if let Some(size) = listed.packs.listed.get(&id) {
                report.rewritten.add(*size);
                let name = CondemnedName { kind: CondemnedKind::Pack, id: id.0 };
                garbage
                    .push(CondemnedObject { name, size: u32::try_from(*size).unwrap_or(u32::MAX) });
            }
        }
        garbage.truncate(condemned::MAX_OBJECTS);
        garbage.iter().for_each(|item| report.found.add(item.size.into()));
        if garbage.is_empty() {
            return Ok(());
        }
        let id = CondemnedId(lists::write(self.store, garbage).await?);
        let Amount { objects, bytes } = report.found;
        let add = |lists: &mut Vec<List>, sequence| {
            lists.push(List { id, sequence, objects, bytes, swept: None });
        };
        self.change(now, add).await.map(|_| ())
    }

    /// Packs of which little is referenced.
    fn mostly_garbage(
        &self,
        listed: &GarbageCandidates,
        marks: &Marks,
        fresh: &dyn Fn(&CondemnedName) -> bool,
    ) -> Vec<ObjectMeta> {
        if marks.unsure().is_some() {
            return Vec::new();
        }
        let live = marks.live_bytes();
        let packs = listed.objects.iter().filter(|(name, meta)| {
            let id = PackId(name.id);
            let all = pack::content_len(self.store.settings(), meta.size).max(1);
            let share = live.get(&id).map_or(1.0, |bytes| *bytes as f64 / all as f64);
            name.kind == CondemnedKind::Pack
                && share < self.options.rewrite_below
                && marks.needs(&id)
                && fresh(name)
        });
        packs.map(|(_, meta)| meta.clone()).collect()
    }

    /// Changes the record of garbage collection; `change` gets the lists and the number of the record
    /// that will have them.
    async fn change(
        &self,
        now: u64,
        change: impl Fn(&mut Vec<List>, u64),
    ) -> Result<CollectionState> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let state = CollectionState::load(self.store).await?;
            let (_, mut lists) = state.forget(now);
            change(&mut lists, state.sequence + 1);
            match state.replace(self.store, lists).await {
                Err(e) if e.kind() == ErrorKind::Conflict => last = Some(e),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| Error::internal("a collection changed nothing")))
    }
}

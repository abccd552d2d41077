//! Healing a store from other ones, or from image files, by hash.
//!
//! First the maps: roots, segments and boot lists come from stores with the same key. Then the
//! packs: a damaged one whose chunks are all somewhere is written again as it was, if it comes out as
//! the same pack (`rebuild`). Else its chunks that are sound or were found and are in no
//! other pack of the store go into new packs, `moved/<old pack>` leads to all of them, and the old one
//! is removed. That is no help for boot copies, so these are made anew then (`copies`). What cannot
//! be found is named, together with those whom it touches. The other stores that readers of the store
//! ask are asked for maps and chunks too, last.
//!
//! What only a newer build can read is left to that: nobody here can tell whether it is damaged, nor
//! what would be lost with it.

mod copies;
mod finder;
mod maps;
mod plan;
mod rebuild;

use crate::chunk;
use crate::collection::pin;
use crate::condemned::Absent;
use crate::gc;
use crate::object;
use crate::object_kind::ObjectKind;
use crate::pack::{self, Builder, Finished, PackIndex};
use crate::rewritten;
use crate::verify::{self, Fault};
use crate::{ChunkId, ChunkRef, MapId, PackId, Progress, Session, Store, heal, moved};
use async_trait::async_trait;
use block::{Device, Error, ErrorKind, Result};
use bytes::Bytes;
use finder::{Finder, LostChunks};
use plan::{BadPack, BadPackChunk};
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;

/// What a repair calls itself.
const WHAT: &str = "repair";
/// Roots name segments: so many times another round may find more.
const ROUNDS: usize = 4;

/// Where a repair looks for what was lost.
pub enum RepairSource {
    /// Another store. One with the same key also gives segments, roots and boot lists.
    Store(Store),
    /// An image: a file, a block device, an export of a server.
    Device {
        /// What people call it.
        name: String,
        /// Its bytes.
        device: Arc<dyn Device>,
    },
    /// Whatever answers chunk ids, and perhaps gives segments, roots and boot lists.
    Chunks(Arc<dyn ChunkLookup>),
}

/// Something that answers chunk ids, such as a medium. Nothing that it says is trusted.
#[async_trait]
pub trait ChunkLookup: Send + Sync {
    /// Whether it claims to have a chunk.
    fn claims(&self, id: &ChunkId) -> bool;

    /// What it has for a chunk: plain bytes, to be verified.
    ///
    /// # Errors
    /// Any: it does not have the chunk then.
    async fn read(&self, at: &ChunkRef) -> Result<Bytes>;

    /// The object of a map, as a store has it: not verified; `None` when it has none.
    async fn map(&self, id: &MapId) -> Option<Bytes>;
}

/// What a repair did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RepairReport {
    /// Nothing was written.
    pub dry_run: bool,
    /// What was missing or damaged before.
    pub found: Vec<Fault>,
    /// Objects that are as they were, by key.
    pub restored: Vec<String>,
    /// Damaged objects that nothing needs, and that are gone now, by key.
    pub removed: Vec<String>,
    /// Packs of a newer format: whether they are sound is for a newer build to say, and they are left as
    /// they are. None of them is in `found` or `left`.
    pub newer_packs: Vec<NewerPack>,
    /// Packs of which the sound and the found chunks are now elsewhere.
    pub rewritten: Vec<RewrittenPack>,
    /// Image versions whose boot copies were of no use and were made anew.
    pub boot_copies: Vec<String>,
    /// Image versions that have none any more: theirs were of no use, and their boot lists are lost, or
    /// not worth a copy now.
    pub dropped_boot_copies: Vec<String>,
    /// Chunks that came from elsewhere.
    pub healed_chunks: u64,
    /// Chunks that some name needs, and that nobody has.
    pub lost_chunks: u64,
    /// What is still missing or damaged, and whom it touches.
    pub left: Vec<Fault>,
}

/// A pack that only a newer build can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewerPack {
    /// The pack.
    pub pack: PackId,
    /// What it asks for: names the pack, and the version that is needed.
    pub why: String,
}

/// A pack that came out as other ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RewrittenPack {
    /// The old pack.
    pub pack: PackId,
    /// Where its chunks are now.
    pub into: Vec<PackId>,
}

/// Heals what can be healed; with `dry_run` it only says what could be.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store's backend cannot
/// be read or written to, or when a source cannot be read at all; [`NoSpace`](ErrorKind::NoSpace) when the
/// store is full.
pub async fn store(
    store: &Store,
    sources: &[RepairSource],
    dry_run: bool,
    progress: &dyn Progress,
) -> Result<RepairReport> {
    let mut report = RepairReport { dry_run, ..RepairReport::default() };
    let session = match dry_run {
        true => None,
        false => Some(match store.session(WHAT).await {
            // Without lists of garbage nobody can write.
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                report.restored =
                    gc::replace_lists(store, &gc::GcOptions::default(), progress).await?;
                store.session(WHAT).await?
            }
            other => other?,
        }),
    };
    let unlisted = Vec::new();
    let outcome = Repair { store, sources, session: session.as_ref(), progress, report, unlisted }
        .run()
        .await;
    match session {
        Some(session) => session.close(outcome).await,
        None => outcome,
    }
}

struct Repair<'a> {
    store: &'a Store,
    sources: &'a [RepairSource],
    /// The right to write, unless nothing is to be written.
    session: Option<&'a Session>,
    progress: &'a dyn Progress,
    report: RepairReport,
    /// Packs that are there and were healed as far as is known, but whose indexes cannot be read.
    unlisted: Vec<BadPack>,
}

/// What was found of a bad pack's chunks.
struct Salvaged {
    /// How many were found.
    healed: u64,
    /// How many are needed and were not.
    lost: u64,
    /// Where they are, or will be once the packs are written.
    places: Vec<ChunkRef>,
    /// New packs with those that are nowhere else.
    packs: Vec<Finished>,
}

impl Repair<'_> {
    async fn run(mut self) -> Result<RepairReport> {
        let before = verify::maps(self.store).await?;
        self.report.found = before.faults;
        for _ in 0..ROUNDS {
            let faults = verify::maps(self.store).await?.faults;
            if !self.objects(&faults).await? || self.session.is_none() {
                break;
            }
        }
        let options = verify::VerifyOptions { deep: true, ..verify::VerifyOptions::default() };
        let mut full = verify::store(self.store, &options, self.progress).await?;
        self.leave_newer(&mut full);
        let seen: HashSet<String> =
            self.report.found.iter().map(|fault| fault.object.clone()).collect();
        let more = full.faults.iter().filter(|fault| !seen.contains(&fault.object)).cloned();
        self.report.found.extend(more);
        // What no name needs is worth restoring as well, when somebody has it.
        self.objects(&full.faults).await?;
        self.packs(&full).await?;
        self.drop_bad_maps(&full).await?;
        self.report.left = match self.session {
            // Only what is read again is known to be sound.
            Some(_) if !self.report.found.is_empty() => {
                let mut after = verify::store(self.store, &options, self.progress).await?;
                self.leave_newer(&mut after);
                after.faults
            }
            _ => {
                let done: HashSet<&String> =
                    self.report.restored.iter().chain(&self.report.removed).collect();
                let left = |fault: &&Fault| !done.contains(&fault.object);
                self.report.found.iter().filter(left).cloned().collect()
            }
        };
        Ok(self.report)
    }

    /// Names the packs of a newer format, and takes them out of what is to be repaired.
    fn leave_newer(&mut self, full: &mut verify::StoreVerifyReport) {
        for (pack, fault) in full.take_newer() {
            if self.report.newer_packs.iter().any(|named| named.pack == pack) {
                continue;
            }
            tracing::warn!(reason = fault.why, "a pack of a newer format is left as it is");
            self.report.newer_packs.push(NewerPack { pack, why: fault.why });
        }
    }

    /// Restores roots, segments and boot lists that are missing or damaged; says whether anything was.
    async fn objects(&mut self, faults: &[Fault]) -> Result<bool> {
        let mut any = false;
        for fault in faults {
            let key = &fault.object;
            let Some((kind, id)) = content_key(key) else { continue };
            if self.report.restored.contains(key) {
                continue;
            }
            match heal::inspected_content(self.store, kind, &id).await {
                // Somebody was quicker, or what is wrong with it was written so.
                Ok(_) => continue,
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {}
                // A newer build's: it stays as it is.
                Err(e) if e.kind() == ErrorKind::Unsupported => continue,
                Err(e) => return Err(e),
            }
            let Some(body) = self.body_elsewhere(kind, &id).await else { continue };
            if self.session.is_some() {
                let bytes = object::encode(self.store.settings(), kind, key, &body)?;
                objects::put_over(self.store.backend(), key, bytes).await?;
            }
            self.report.restored.push(key.clone());
            any = true;
        }
        Ok(any)
    }

    /// The body of an object that is named after it, verified: from a source, or from one of the other
    /// stores that readers of this one ask.
    async fn body_elsewhere(&self, kind: ObjectKind, id: &[u8; 32]) -> Option<Bytes> {
        if let Some(map) = MapId::of(kind, id) {
            for source in self.sources {
                if let RepairSource::Chunks(lookup) = source
                    && let Some(object) = lookup.map(&map).await
                    && let Ok(body) = map.verify(self.store.settings(), object)
                {
                    return Some(body);
                }
            }
        }
        let asked = self.store.healing().sources();
        let given = self.sources.iter().filter_map(|source| match source {
            RepairSource::Store(other) => Some(other),
            RepairSource::Device { .. } | RepairSource::Chunks(_) => None,
        });
        let alike = given.filter(|other| self.store.shares_ids(other));
        for other in alike.chain(asked.iter().map(|source| &source.store)) {
            if let Ok(body) = heal::inspected_content(other, kind, id).await {
                return Some(body);
            }
        }
        None
    }

    /// Heals packs, and makes boot copies anew.
    async fn packs(&mut self, full: &verify::StoreVerifyReport) -> Result<()> {
        let absent = self.session.map(|session| Arc::clone(session.absent())).unwrap_or_default();
        let mut bad: Vec<PackId> = Vec::new();
        for fault in &full.faults {
            // What is about to be deleted is not worth it. What was deleted after it had been rewritten may
            // be needed all the same: its map is lost then.
            if let Ok(pack) = pack::id_of_key(&fault.object)
                && (full.unsure.contains_key(&pack) || !absent.pack(&pack))
            {
                bad.push(pack);
            }
        }
        let plans = self.plans(&bad, full).await?;
        let mut wanted = LostChunks::default();
        for at in plans.iter().flat_map(BadPack::lost) {
            wanted.lengths.insert(at.id, at.len);
            let offsets = full.shown.get(&at.id).cloned().unwrap_or_default();
            wanted.offsets.insert(at.id, offsets);
        }
        let aside = plan::sound_in(&plans, &wanted);
        let bad: HashSet<PackId> = bad.into_iter().collect();
        let finder =
            Finder::search(self.store, self.sources, wanted, aside, (&bad, &absent), self.progress)
                .await?;
        let mut rest = Vec::new();
        for plan in plans {
            // Nothing is written under the id of a condemned one.
            let stays_away = self.session.is_none() || absent.pack(&plan.pack);
            if stays_away || !self.restore(&plan, &finder).await? {
                rest.push(plan);
            }
        }
        let copied = match rest.is_empty() {
            true => HashSet::new(),
            false => self.packs_of_copies().await?,
        };
        let (of_copies, rest): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|plan| copied.contains(&plan.pack));
        for plan in rest {
            self.heal(plan, &finder, full, &absent).await?;
        }
        // Out of the images, which are healed now; a copy that comes out as it was brings its packs back.
        self.copies().await?;
        for plan in of_copies {
            if !self.came_back(&plan).await? {
                self.heal(plan, &finder, full, &absent).await?;
            }
        }
        self.delete_unlisted().await
    }

    /// Deletes the healed packs whose indexes cannot be read, unless a chunk is lost that one of them may
    /// have.
    async fn delete_unlisted(&mut self) -> Result<()> {
        for plan in std::mem::take(&mut self.unlisted) {
            let pack = plan.pack;
            // All of that was looked at before other packs were healed, which may have taken long.
            if self.report.lost_chunks > 0 || self.are_others_at_work().await? {
                tracing::warn!(
                    %pack,
                    "a damaged pack stays, as it may have chunks that are found nowhere, or that another command \
                     stores just now; repair the store again when those are healed, and that has ended"
                );
            } else if !self.came_back(&plan).await? {
                self.must_be_alive().await?;
                objects::delete(self.store.backend(), pack::path(&pack).as_ref()).await?;
            }
        }
        Ok(())
    }

    /// Writes a pack again as it was, over the bad one, if all of it can be had; says whether it could.
    async fn restore(&mut self, plan: &BadPack, finder: &Finder<'_>) -> Result<bool> {
        let Some(same) = rebuild::as_it_was(self.store, plan, finder).await? else {
            return Ok(false);
        };
        let key = pack::path(&plan.pack).to_string();
        objects::put_over(self.store.backend(), &key, same.bytes).await?;
        self.report.healed_chunks += plan.lost().count() as u64;
        self.report.restored.push(key);
        Ok(true)
    }

    /// Whether a pack that was bad is there again as it was: since a boot copy was made anew, or an import
    /// stored the same while sources were searched.
    async fn came_back(&mut self, plan: &BadPack) -> Result<bool> {
        if self.session.is_none() {
            return Ok(false);
        }
        let (path, settings) = (pack::path(&plan.pack), self.store.settings());
        let (key, backend) = (path.as_ref(), self.store.backend());
        let bytes = match objects::get(backend, key, pack::MAX_LEN).await {
            Ok(bytes) => bytes,
            Err(e) if is_loss(&e) => return Ok(false),
            Err(e) => return Err(e),
        };
        let sound = |at: ChunkRef| {
            let stored = bytes.slice(at.offset as usize..(at.offset + at.stored) as usize);
            at.decode(settings, stored).is_ok()
        };
        let index = PackIndex::decode(settings, plan.pack, key, &bytes, bytes.len() as u64);
        let whole = pack::check_head(key, &bytes).is_ok()
            && index.is_ok_and(|index| index.chunks().all(sound));
        if whole {
            self.report.healed_chunks += plan.lost().count() as u64;
            self.report.restored.push(key.to_owned());
        }
        Ok(whole)
    }

    /// Writes what there is of a pack.
    async fn heal(
        &mut self,
        plan: BadPack,
        finder: &Finder<'_>,
        full: &verify::StoreVerifyReport,
        absent: &Absent,
    ) -> Result<()> {
        let pack = plan.pack;
        let old = match rewritten::load(self.store, &pack).await {
            Ok(old) => old,
            // It would be written over, and only a newer build can tell what it says.
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                tracing::warn!(%pack, reason = e.message(), "a damaged pack is left as it is");
                return Ok(());
            }
            Err(e) if is_loss(&e) => None,
            Err(e) => return Err(e),
        };
        // What is in a pack of a newer format is not lost.
        let is_there = |id: &ChunkId| {
            let place = old.as_ref().and_then(|old| old.find(id));
            place.is_some_and(|at| full.newer.contains(&at.pack))
        };
        let needed = full.unsure.get(&pack).into_iter().flatten().map(|lost| lost.0.id);
        let needed: HashSet<ChunkId> = needed.filter(|id| !is_there(id)).collect();
        // What is written now has no id of theirs.
        let taken = |id: &PackId| absent.pack(id) || full.newer.contains(id);
        let Salvaged { healed, lost, places, packs } =
            self.salvage(&plan, finder, absent, &needed, taken).await?;
        // Sources may have been searched for long, and what is there is deleted below.
        if self.came_back(&plan).await? {
            return Ok(());
        }
        self.report.healed_chunks += healed;
        self.report.lost_chunks += lost;
        let key = pack::path(&pack).to_string();
        if self.session.is_none() {
            if lost == 0 {
                self.report.restored.push(key);
            }
            return Ok(());
        }
        if let [same] = packs.as_slice()
            && same.id == pack
        {
            objects::put_over(self.store.backend(), &key, same.bytes.clone()).await?;
            self.report.restored.push(key);
            return Ok(());
        }
        let into: Vec<PackId> = packs.iter().map(|finished| finished.id).collect();
        for Finished { id, bytes, tail } in packs {
            pack::put(self.store.backend(), &id, bytes, tail).await?;
        }
        let before = old.iter().flat_map(|old| old.chunks().collect::<Vec<_>>());
        let all: Vec<ChunkRef> = places.into_iter().chain(before).collect();
        let led = !all.is_empty();
        self.must_be_alive().await?;
        if led {
            rewritten::save(self.store, &pack, all).await?;
        }
        if plan.there && plan.is_partly_known {
            tracing::warn!(
                %pack,
                "a damaged pack stays, as chunks in it may be needed by names or maps that cannot be read, or by \
                 what another command stores just now; repair the store again when those are healed, and that \
                 has ended (`sojourn store sessions list` shows it)"
            );
        } else if plan.there && plan.is_layout_known {
            self.must_be_alive().await?;
            objects::delete(self.store.backend(), &key).await?;
        }
        if into.is_empty() && !plan.there && led {
            self.restored(moved::key(&pack));
        } else {
            self.report.rewritten.push(RewrittenPack { pack, into });
        }
        if plan.there && !plan.is_partly_known && !plan.is_layout_known {
            self.unlisted.push(plan);
        }
        Ok(())
    }

    /// Fails once the repair was taken for dead, as after a long standstill: a collection may have deleted what it
    /// wrote then, and what that replaces has to stay.
    async fn must_be_alive(&self) -> Result<()> {
        match self.session {
            Some(session) => session.check().await,
            None => Ok(()),
        }
    }

    /// Whether another session may have stored what it has not published: no name leads there yet.
    async fn are_others_at_work(&self) -> Result<bool> {
        let own = match self.session {
            Some(session) => session.pin_keys().await,
            None => Vec::new(),
        };
        let pins = pin::list(self.store).await?;
        Ok(pins.iter().any(|meta| !pin::is_among(&own, meta)))
    }

    /// Puts what is found of a bad pack's chunks into new packs, which are not written yet. `needed` are the chunks that
    /// are lost when they are not found; no pack gets an id that is `taken`.
    async fn salvage(
        &self,
        plan: &BadPack,
        finder: &Finder<'_>,
        absent: &Absent,
        needed: &HashSet<ChunkId>,
        taken: impl Fn(&PackId) -> bool,
    ) -> Result<Salvaged> {
        let (mut healed, mut lost) = (0, 0);
        let mut places: Vec<ChunkRef> = Vec::new();
        let mut builder = Builder::new();
        let mut packs: Vec<Finished> = Vec::new();
        // Chunks of the open pack, which has no id yet.
        let mut open: Vec<ChunkRef> = Vec::new();
        for BadPackChunk { at, stored, .. } in &plan.parts {
            let at = *at;
            let (encoding, stored) = match stored {
                Some(stored) => (at.encoding, stored.clone()),
                None if !finder.has(&at.id) => {
                    if let Some(plain) = by_other_ways(self.store, &at).await {
                        healed += 1;
                        chunk::encode(self.store.settings(), &at.id, plain)?
                    } else {
                        lost += u64::from(needed.contains(&at.id));
                        continue;
                    }
                }
                None => {
                    healed += 1;
                    if self.session.is_none() {
                        continue;
                    }
                    if let Some(place) = finder.own(&at.id).filter(|at| !absent.pack(&at.pack)) {
                        places.push(place);
                        continue;
                    }
                    if let Some(sound) = finder.aside(&at.id, at.len) {
                        sound
                    } else if let Some(plain) = self.out_of_condemned(finder, &at).await {
                        chunk::encode(self.store.settings(), &at.id, plain)?
                    } else if let Some(plain) = finder.content(&at.id, at.len).await {
                        chunk::encode(self.store.settings(), &at.id, plain)?
                    } else {
                        healed -= 1;
                        lost += u64::from(needed.contains(&at.id));
                        continue;
                    }
                }
            };
            if builder.is_full() {
                let ended = std::mem::take(&mut builder);
                self.finish(ended, &mut open, &mut places, &mut packs, &taken)?;
            }
            let offset = builder.add(at.id, at.len, encoding, &stored);
            open.push(ChunkRef { offset, stored: stored.len() as u32, encoding, ..at });
        }
        if !builder.is_empty() {
            self.finish(builder, &mut open, &mut places, &mut packs, &taken)?;
        }
        Ok(Salvaged { healed, lost, places, packs })
    }

    /// A chunk that only a pack has which is about to be deleted.
    async fn out_of_condemned(&self, finder: &Finder<'_>, at: &ChunkRef) -> Option<Bytes> {
        self.store.read_at(&finder.own(&at.id)?).await.ok()
    }

    /// Notes an object that is as it was.
    fn restored(&mut self, key: String) {
        if !self.report.restored.contains(&key) {
            self.report.restored.push(key);
        }
    }

    /// Ends a pack; its chunks have places then.
    fn finish(
        &self,
        builder: Builder,
        open: &mut Vec<ChunkRef>,
        places: &mut Vec<ChunkRef>,
        packs: &mut Vec<Finished>,
        taken: impl Fn(&PackId) -> bool,
    ) -> Result<()> {
        let finished = builder.finish(self.store.settings(), taken)?;
        places.extend(open.drain(..).map(|at| ChunkRef { pack: finished.id, ..at }));
        packs.push(finished);
        Ok(())
    }
}

/// The plain bytes of a chunk that is in none of the places that a repair searched: from where `moved`
/// leads, or from the other stores that readers of this one ask; `None` when nobody has them.
async fn by_other_ways(store: &Store, at: &ChunkRef) -> Option<Bytes> {
    if let Ok((plain, _)) = heal::follow(store, at).await {
        return Some(plain);
    }
    for source in store.healing().sources() {
        if let Ok(plain) = source.chunk(at).await {
            return Some(plain);
        }
    }
    None
}

/// The kind and the id of an object that is named after its content.
fn content_key(key: &str) -> Option<(ObjectKind, [u8; 32])> {
    let (prefix, name) = key.split_once('/')?;
    let kinds = [ObjectKind::Root, ObjectKind::Segment, ObjectKind::BootList];
    let kind = kinds.into_iter().find(|kind| kind.prefix() == prefix)?;
    Some((kind, name.parse::<crate::ManifestId>().ok()?.0))
}

fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests;

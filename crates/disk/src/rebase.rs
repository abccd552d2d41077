//! Moving a disk onto another version of its image.
//!
//! Blocks that only the image changed become the new version's; blocks that only the disk
//! changed stay its own; blocks that both changed, to different bytes, are a conflict. Where the
//! disk stands on a snapshot, what that has over the old version becomes private blocks again, in a
//! layer below the others.

use crate::compare::{blocks, clipped, difference, differences, intersection, push, total, union};
use crate::layer::{Round, ShadowLayer};
use crate::maplog::Failure;
use crate::record::DiskRecord;
use crate::stack::{Frozen, Stack};
use crate::{Disk, Image, Rebase, RebaseReport};
use block::{Error, Result, Span, offload};
use std::sync::Arc;
use store::{ImageName, RefKind, Session, images};

/// Ranges that the message of a refused rebase names.
const SHOWN: usize = 4;

/// An image seen as a device of another size: what is behind its end reads as zeroes.
fn sized(image: Arc<Image>, size: u64) -> Frozen {
    let stack = Stack { generation: 0, layers: Vec::new(), base: image };
    Frozen { stack: Arc::new(stack), from: 0, size }
}

impl Disk {
    /// Moves the disk onto another version of its image (the newest one when `onto` has no tag).
    ///
    /// A private block counts as changed by the disk even when it holds what the old version held.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict), naming the first ranges, when both changed the
    /// same blocks and `how` is [`Rebase::Refuse`], and while the disk is attached;
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a disk that is written through;
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no such version; any error from the store
    /// and the file system. The disk is as it was then.
    pub async fn rebase(&self, onto: &ImageName, how: Rebase) -> Result<RebaseReport> {
        self.must_not_leave_the_store_behind("rebase")?;
        let _excluded = self.lease.exclude(self.name(), "rebase")?;
        let _changing = self.begin_change().await;
        self.shadow.check()?;
        let session = self.store.session(&format!("rebase of disk {}", self.name())).await?;
        let outcome = self.rebase_in(&session, onto, how).await;
        session.close(outcome).await
    }

    async fn rebase_in(
        &self,
        session: &Session,
        onto: &ImageName,
        how: Rebase,
    ) -> Result<RebaseReport> {
        let target = images::resolve(&self.store, onto).await?;
        // It stays until the disk's own ref keeps it.
        let target = session
            .hold(RefKind::Image, &target.name)
            .await?
            .ok_or_else(|| Error::not_found(format!("image {} was removed", target.name)))?;
        let (new, new_image) = self.image(&images::manifest_of(&target)?).await?;
        let record = self.record();
        let (old, old_image) = self.image(&record.origin).await?;
        let (base, base_image) = self.image(&record.base).await?;
        self.catch_up_with(&record, &base_image).await;
        let size = record.size.max(new.size());

        let stack = self.shadow.stack();
        // To the new size: a last block that was short goes on behind the old end, and hides what the new
        // version has there.
        let in_layers = stack.changed(0, size);
        let in_base = clipped(&differences(&old, &base).await?, size);
        let in_base = difference(&in_base, &in_layers);
        let by_image = clipped(&differences(&old, &new).await?, size);

        let disk_view = Frozen { stack, from: 0, size };
        let base_view = sized(base_image, size);
        let old_view = sized(old_image, size);
        let new_view = sized(Arc::clone(&new_image), size);

        // What the base has over the old version, to the block.
        let mut own = Vec::new();
        blocks([&base_view, &old_view], &in_base, |block, [mine, old]| {
            if mine != old {
                push(&mut own, block);
            }
            Ok(())
        })
        .await?;
        let mine = union(&in_layers, &own);
        let mut both_changed = Vec::new();
        let candidates = intersection(&mine, &by_image);
        blocks([&disk_view, &old_view, &new_view], &candidates, |block, [mine, old, new]| {
            if new != old && new != mine {
                push(&mut both_changed, block);
            }
            Ok(())
        })
        .await?;
        if how == Rebase::Refuse && !both_changed.is_empty() {
            return Err(conflict(self.name(), &target.name, &both_changed));
        }

        let lowest = match own.is_empty() {
            true => None,
            false => Some(self.materialise(record.next_layer, &base_view, &own).await?),
        };
        let number = lowest.as_ref().map(|layer| layer.number);
        let image: ImageName = target.name.parse()?;
        let id = new.id();
        let onto = |record: &mut DiskRecord| {
            record.image = image.clone();
            record.origin = id;
            record.base = id;
            record.size = size;
            record.renew_content();
        };
        self.announce(Some(session), onto).await?;
        let guard = self.shadow.unless_interrupted("rebase");
        let changed = self
            .change(|record| {
                onto(record);
                if let Some(number) = number {
                    record.layers.insert(0, number);
                }
            })
            .await;
        if let Err(error) = changed {
            guard.done();
            // Whoever takes the disk goes on with what it is, not with what it was to become.
            self.publish_base_or_warn().await;
            return Err(error);
        }
        *self.base.lock() = Arc::clone(&new_image);
        self.shadow.settle(new_image, usize::MAX, lowest).await;
        guard.done();
        self.shadow.set_size(size);
        self.publish_base_or_warn().await;
        self.renew()?;
        Ok(RebaseReport {
            image: target.name,
            kept: total(&mine),
            updated: total(&difference(&by_image, &mine)),
            both_changed,
        })
    }

    /// Drops the layers that the record does not name: an upload that was given up once it had noted its end there
    /// leaves them. What they hold is in `base`, that of the record.
    async fn catch_up_with(&self, record: &DiskRecord, base: &Arc<Image>) {
        let stack = self.shadow.stack();
        let named = stack.layers.iter().take_while(|layer| record.layers.contains(&layer.number));
        let named = named.count();
        if named < stack.layers.len() {
            *self.base.lock() = Arc::clone(base);
            let dropped = self.shadow.settle(Arc::clone(base) as _, named, None).await;
            self.discard_layers(dropped).await;
        }
    }

    /// A new layer, on stable storage, that holds `spans` of `view`.
    async fn materialise(
        &self,
        number: u32,
        view: &Frozen,
        spans: &[Span],
    ) -> Result<Arc<ShadowLayer>> {
        // Before it holds anything: a layer that does, and has the next number, tells that the record is an older one.
        self.change(|record| record.next_layer = number + 1).await?;
        let layer = self.shadow.new_layer(number).await?;
        let filled = self.fill(&layer, view, spans).await;
        if filled.is_err() {
            self.discard_layers(vec![Arc::clone(&layer)]).await;
        }
        filled.map(|()| layer)
    }

    async fn fill(&self, layer: &Arc<ShadowLayer>, view: &Frozen, spans: &[Span]) -> Result<()> {
        blocks([view], spans, |block, [bytes]| layer.take_in(block, bytes)).await?;
        let layer = Arc::clone(layer);
        offload(move || {
            layer.sync(Round::Flush).map_err(|failure| match failure {
                Failure::Retry(error) | Failure::Lost(error) => error,
            })
        })
        .await
    }
}

fn conflict(disk: &str, image: &str, spans: &[Span]) -> Error {
    let shown: Vec<String> =
        spans.iter().take(SHOWN).map(|span| format!("{}..{}", span.offset(), span.end())).collect();
    let more = if spans.len() > SHOWN { ", …" } else { "" };
    Error::conflict(format!(
        "disk {disk:?} and image {image} both changed {} bytes in {} ranges (bytes {}{more}); \
         commit or copy what matters, or keep the disk's with --keep-mine",
        total(spans),
        spans.len(),
        shown.join(", ")
    ))
}

//! What is in a store and stays for now: for who lets others give names to what they stored, and believes none of them.
//!
//! A collection deletes nothing but what is on a list that was written before. So what is there and on no list stays for
//! as long as no other record of collections is written.

use crate::collection::{CollectionState, Contents, List, Pin, pin};
use crate::condemned::Absent;
use crate::moved::{MAX_STEPS, Moved};
use crate::{ChunkRef, PackId, Store, WriterId, pack, rewritten};
use block::{Error, ErrorKind, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Packs that are looked for at the same time.
const LOOKS: usize = 64;
/// Collections that are given way to.
const ATTEMPTS: usize = 8;

/// What counts as there by one record of collections.
#[derive(Debug)]
pub struct KeptObjects {
    store: Store,
    sequence: u64,
    /// A session that keeps what was condemned after the record that it has seen.
    session: Option<(u64, WriterId)>,
    absent: Absent,
}

impl Store {
    /// What counts as there by the newest record of collections, and for the sessions with these pins, if they are at
    /// work: what was condemned since they began is not deleted before their end.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when collections follow each other too fast;
    /// [`Corrupt`](ErrorKind::Corrupt) when their records or lists are damaged; any error from the backend.
    pub async fn kept_objects(&self, pins: &[WriterId]) -> Result<KeptObjects> {
        let mut session: Option<(u64, WriterId)> = None;
        for id in pins {
            let pin = match Pin::read(self, &pin::key(id)).await {
                Ok(pin) => pin,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => continue,
                Err(e) => return Err(e),
            };
            if session.is_none_or(|(sequence, _)| pin.sequence < sequence) {
                session = Some((pin.sequence, *id));
            }
        }
        let is_for_it = |list: &List| {
            list.swept.is_some() || session.is_none_or(|(sequence, _)| list.sequence <= sequence)
        };
        for _ in 0..ATTEMPTS {
            let mut state = CollectionState::load(self).await?;
            state.lists.retain(is_for_it);
            match state.contents(self).await {
                Ok(lists) if lists.is_outdated => {}
                lists => {
                    let absent = lists.and_then(Contents::whole)?;
                    let (store, sequence) = (self.clone(), state.sequence);
                    return Ok(KeptObjects { store, sequence, session, absent });
                }
            }
        }
        Err(Error::unavailable("garbage collections follow each other too fast; try again"))
    }
}

impl KeptObjects {
    /// What it goes by: the number of the record, and of the one that the session has seen. Where both are the same,
    /// what was there still is.
    pub fn basis(&self) -> (u64, Option<u64>) {
        (self.sequence, self.session.map(|(sequence, _)| sequence))
    }

    /// Whether the record is the newest still, and the session at work, so that all that was found is there.
    ///
    /// # Errors
    /// Any error from the backend.
    pub async fn is_current(&self) -> Result<bool> {
        if let Some((_, pin)) = &self.session
            && !pin::exists(&self.store, pin).await?
        {
            return Ok(false);
        }
        Ok(CollectionState::newest(&self.store).await? == self.sequence)
    }

    /// Whether the object of a key is there, and condemned by nobody.
    ///
    /// # Errors
    /// Any error from the backend.
    pub async fn has(&self, key: &str) -> Result<bool> {
        if self.absent.has_key(key) {
            return Ok(false);
        }
        match objects::head(self.store.backend(), key).await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The ones of these chunks whose packs are not there, and were not rewritten into some that are.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for what is known of a rewritten pack; any error from the backend.
    pub async fn lost(&self, chunks: Vec<ChunkRef>) -> Result<Vec<ChunkRef>> {
        let mut packs: HashMap<PackId, Vec<ChunkRef>> = HashMap::new();
        for at in chunks {
            packs.entry(at.pack).or_default().push(at);
        }
        let look = |(pack, chunks)| async move {
            Ok::<_, Error>(match self.has_pack(&pack).await? {
                true => Vec::new(),
                false => chunks,
            })
        };
        let gone: Vec<Vec<ChunkRef>> =
            stream::iter(packs).map(look).buffer_unordered(LOOKS).try_collect().await?;
        let mut lost = Vec::new();
        for chunks in gone.into_iter().filter(|chunks| !chunks.is_empty()) {
            self.follow(chunks, &mut lost).await?;
        }
        Ok(lost)
    }

    async fn has_pack(&self, id: &PackId) -> Result<bool> {
        self.has(pack::path(id).as_ref()).await
    }

    /// Follows chunks of one pack to where they were moved; adds the ones that lead nowhere.
    async fn follow(&self, chunks: Vec<ChunkRef>, lost: &mut Vec<ChunkRef>) -> Result<()> {
        let mut moved: HashMap<PackId, Option<Moved>> = HashMap::new();
        let mut there: HashMap<PackId, bool> = HashMap::new();
        for at in chunks {
            let (mut here, mut is_found) = (at.pack, false);
            for _ in 0..MAX_STEPS {
                let known = match moved.entry(here) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(rewritten::load(&self.store, &here).await?),
                };
                let next = known.as_ref().and_then(|moved| moved.find(&at.id));
                let Some(next) = next.filter(|next| next.len == at.len) else { break };
                here = next.pack;
                is_found = match there.entry(here) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => *new.insert(self.has_pack(&here).await?),
                };
                if is_found {
                    break;
                }
            }
            if !is_found {
                lost.push(at);
            }
        }
        Ok(())
    }
}

//! Writing: what clients bring is checked before it is in the store.
//!
//! Content may name only what its writer may read or has brought itself, or a client could publish a map of
//! other people's chunks, and then read them through it.

use super::Gateway;
use super::client::Client;
use super::holders::{claim, held_disk, not_held, owns};
use super::labels;
use super::limits::RequestPermit;
use super::machines;
use super::read::{RequestedRange, backend_error, may_read};
use crate::wire::ObjectKey;
use access::Right;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use disk::succession::{self, Succession};
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use std::collections::{HashMap, HashSet};
use store::offered::{self, KeptObjects, OfferedPack};
use store::{
    ChunkRef, KeyedRecord, ManifestId, PackId, RefBody, RefKey, RefKind, RefRecord, SegmentId,
    WriterId,
};

/// Objects that are looked for at the same time.
const LOOKS: usize = 64;
/// What clients publish.
const PUBLISHED: [RefKind; 4] =
    [RefKind::Disk, RefKind::Snapshot, RefKind::Parcel, RefKind::Machine];
/// Segments that are looked through at the same time.
const SEGMENTS: usize = 4;
/// What the store's clock is written with.
const CLOCK: &[u8] = b"clock\n";

/// Writes what a client brings under a key.
///
/// # Errors
/// [`Denied`](ErrorKind::Denied) for what it may not write or name, [`Corrupt`](ErrorKind::Corrupt) for what
/// is not what its key says, [`Conflict`](ErrorKind::Conflict) when another writer was
/// first; any error from the store.
pub(crate) async fn put(
    gateway: &Gateway,
    client: &Client,
    key: &ObjectKey,
    bytes: Bytes,
    turn: RequestPermit,
) -> Result<()> {
    client.must_write(&gateway.rules())?;
    let store = gateway.store();
    match key {
        ObjectKey::Pack(id) => {
            let (settings, id) = (store.settings().clone(), *id);
            let check = move || OfferedPack::check(&settings, id, bytes);
            let (checked, _turn) = gateway.checks().run(&client.usage, turn, check).await?;
            checked.write(store).await?;
            gateway.brought(client, key).await
        }
        ObjectKey::Segment(id) => {
            let chunks = offered::check_segment(store.settings(), *id, bytes.clone())?;
            check_chunks(gateway, client, chunks).await?;
            offered::write_content(store, &key.text(), bytes).await?;
            gateway.brought(client, key).await
        }
        ObjectKey::Manifest(id) => {
            let outline = offered::check_manifest(store.settings(), *id, bytes.clone())?;
            let named: HashSet<SegmentId> = outline.segments.iter().flatten().copied().collect();
            check_segments(gateway, client, named).await?;
            store.check_end(&outline).await?;
            offered::write_content(store, &key.text(), bytes).await?;
            gateway.brought(client, key).await
        }
        ObjectKey::Pin(id) => pin(gateway, client, *id, bytes).await,
        ObjectKey::Server(id) => {
            offered::check_announcement(store, id, bytes.clone())?;
            if !claim(gateway, client, id).await? {
                return Err(Error::denied(format!("server {id} is not this client's")));
            }
            offered::announce_for(store, client.owner(), id, bytes).await
        }
        ObjectKey::Clock if bytes == CLOCK => {
            let options = PutOptions::from(PutMode::Overwrite);
            let written = gateway.backend().put_opts(&key.path(), bytes.into(), options).await;
            written.map(drop).map_err(backend_error)
        }
        ObjectKey::Clock => {
            Err(Error::invalid("the clock is written with \"clock\" and a line feed"))
        }
        ObjectKey::Ref(at) => publish(gateway, client, at, bytes).await,
        _ => Err(Error::denied(format!("no client may write {}", key.text()))),
    }
}

/// Deletes a pin, the only thing that a client may: who knows its random name has made it.
///
/// # Errors
/// [`Denied`](ErrorKind::Denied) for everything else; any error from the store.
pub(crate) async fn delete(gateway: &Gateway, client: &Client, key: &ObjectKey) -> Result<()> {
    let ObjectKey::Pin(id) = key else {
        return Err(Error::denied(format!("no client may delete {}", key.text())));
    };
    match gateway.backend().delete(&key.path()).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => client.unpin(*id),
        Err(e) => return Err(backend_error(e)),
    }
    Ok(())
}

/// Fails unless the client may read all of an object, or has brought it.
async fn must_read(gateway: &Gateway, client: &Client, key: ObjectKey) -> Result<()> {
    match may_read(gateway, client, &key, &RequestedRange::Whole).await? {
        true => Ok(()),
        false => Err(not_there(&key)),
    }
}

fn not_there(key: &ObjectKey) -> Error {
    Error::denied(format!(
        "{} is not there, or this client may not name it; bring it first",
        key.text()
    ))
}

/// Fails unless the client may name a manifest, and it leads somewhere. `kept` is what is there, once that was asked
/// for.
async fn check_named(
    gateway: &Gateway,
    client: &Client,
    id: ManifestId,
    kept: &mut Option<KeptObjects>,
) -> Result<()> {
    must_read(gateway, client, ObjectKey::Manifest(id)).await?;
    // What a name leads to already is kept; it may have got that a moment ago.
    if client.rights.is_named(&id)
        || (client.look_again(gateway).await? && client.rights.is_named(&id))
    {
        return Ok(());
    }
    let kept = match kept {
        Some(kept) => kept,
        None => kept.insert(gateway.store().kept_objects(&client.newest_pins()).await?),
    };
    check_whole(gateway, client, kept, id).await
}

/// Fails unless a manifest that no name leads to is there, its segments, which the client may name, and their chunks.
async fn check_whole(
    gateway: &Gateway,
    client: &Client,
    kept: &KeptObjects,
    id: ManifestId,
) -> Result<()> {
    let key = ObjectKey::Manifest(id);
    if !kept.has(&key.text()).await? {
        return Err(not_there(&key));
    }
    let segments = match gateway.store().manifest_segments(&id).await {
        Ok(segments) => segments.into_iter().collect(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(not_there(&key)),
        Err(e) => return Err(e),
    };
    let unnamed = check_segments(gateway, client, segments).await?;
    let each = stream::iter(unnamed).map(|id| check_whole_segment(gateway, client, kept, id));
    each.buffer_unordered(SEGMENTS).try_collect().await
}

/// The same of a segment that no name leads to.
async fn check_whole_segment(
    gateway: &Gateway,
    client: &Client,
    kept: &KeptObjects,
    id: SegmentId,
) -> Result<()> {
    let (store, basis) = (gateway.store(), kept.basis());
    if client.whole.lock().has(basis, &id) {
        return Ok(());
    }
    let key = ObjectKey::Segment(id);
    if !kept.has(&key.text()).await? {
        return Err(not_there(&key));
    }
    let chunks = match store.segment_chunks(&id).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(not_there(&key)),
        chunks => chunks?,
    };
    for at in kept.lost(chunks).await? {
        // What a name leads to already is kept, although it was condemned once.
        if !client.rights.is_chunk_named(store, &at).await? {
            return Err(not_there(&ObjectKey::Pack(at.pack)));
        }
    }
    client.whole.lock().add(basis, id);
    Ok(())
}

/// Fails unless the client may name all of these segments, and they are there. Gives the ones that no name leads to.
async fn check_segments(
    gateway: &Gateway,
    client: &Client,
    segments: HashSet<SegmentId>,
) -> Result<Vec<SegmentId>> {
    client.refresh(gateway).await?;
    let unnamed = client.rights.unnamed(gateway.store(), segments).await?;
    for segment in &unnamed {
        must_read(gateway, client, ObjectKey::Segment(*segment)).await?;
    }
    let unnamed = unnamed.into_iter().collect::<Vec<_>>();
    must_be_there(gateway, &unnamed).await?;
    Ok(unnamed)
}

/// Fails unless all of these are there: who brought one without a session may have lost it to a collection.
async fn must_be_there(gateway: &Gateway, segments: &[SegmentId]) -> Result<()> {
    let looked = stream::iter(segments.to_vec()).map(|id| async move {
        let key = ObjectKey::Segment(id);
        match gateway.backend().head(&key.path()).await {
            Ok(_) => Ok(()),
            Err(object_store::Error::NotFound { .. }) => Err(not_there(&key)),
            Err(e) => Err(backend_error(e)),
        }
    });
    looked.buffer_unordered(LOOKS).try_collect().await
}

/// Fails unless the client may name every chunk of a map, and each is where the map says.
async fn check_chunks(gateway: &Gateway, client: &Client, chunks: Vec<ChunkRef>) -> Result<()> {
    let mut packs: HashMap<PackId, HashSet<ChunkRef>> = HashMap::new();
    for at in chunks {
        packs.entry(at.pack).or_default().insert(at);
    }
    for (pack, chunks) in packs {
        let key = ObjectKey::Pack(pack);
        let refused = || {
            Error::denied(format!(
                "{} is not there, or this client may not name these chunks of it; bring them first",
                key.text()
            ))
        };
        let brought = gateway.has_brought(client, &key).await?;
        for at in chunks.iter().filter(|_| !brought) {
            let start = u64::from(at.offset);
            let part = RequestedRange::Part(start..start + u64::from(at.stored));
            if !may_read(gateway, client, &key, &part).await? {
                return Err(refused());
            }
        }
        // A map that leads nowhere would keep garbage from being collected.
        match gateway.store().pack_chunks(&pack).await {
            Ok(there) => {
                let there: HashSet<ChunkRef> = there.into_iter().collect();
                if !chunks.is_subset(&there) {
                    return Err(refused());
                }
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                // An object that was rewritten is known by its chunks alone: the map may say of any that it was in a
                // part that the client may read.
                let moved = match brought {
                    true => gateway.store().moved_chunks(&pack).await?,
                    false => client.rights.moved(gateway.store(), &pack).await?,
                };
                let moved = moved.unwrap_or_default();
                let there: HashSet<_> = moved.iter().map(|at| (at.id, at.len)).collect();
                if !chunks.iter().all(|at| there.contains(&(at.id, at.len))) {
                    return Err(refused());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

async fn pin(gateway: &Gateway, client: &Client, id: WriterId, bytes: Bytes) -> Result<()> {
    let key = ObjectKey::Pin(id);
    let store = gateway.store();
    let content = offered::check_pin(store.settings(), &key.text(), bytes.clone())?;
    offered::check_pin_sequence(store, &key.text(), &content).await?;
    let mut kept = None;
    for manifest in content.holds {
        check_named(gateway, client, manifest, &mut kept).await?;
    }
    client.pin(id)?;
    let path = key.path();
    let options = PutOptions::from(PutMode::Create);
    match gateway.backend().put_opts(&path, bytes.clone().into(), options).await {
        Ok(_) => Ok(()),
        // The same request again, after its answer was lost.
        Err(object_store::Error::AlreadyExists { .. })
            if is(gateway.backend(), &path, &bytes).await? =>
        {
            Ok(())
        }
        Err(object_store::Error::AlreadyExists { .. }) => {
            Err(Error::conflict("there is a pin of this name"))
        }
        Err(e) => {
            client.unpin(id);
            Err(backend_error(e))
        }
    }
}

async fn is(backend: &dyn ObjectStore, path: &Path, bytes: &Bytes) -> Result<bool> {
    let read = backend.get(path).await.map_err(backend_error)?;
    Ok(read.meta.size == bytes.len() as u64 && read.bytes().await.map_err(backend_error)? == *bytes)
}

/// Writes a record of a name.
async fn publish(gateway: &Gateway, client: &Client, key: &RefKey, bytes: Bytes) -> Result<()> {
    let refs = gateway.store().refs();
    if !PUBLISHED.contains(&key.kind) {
        return Err(Error::denied("clients publish disks, snapshots and machines alone"));
    }
    let offered = KeyedRecord::decode(&refs, key, &bytes)?;
    let right = client.right(gateway, key.kind, &offered.name).await?;
    if right != Some(Right::Write) {
        return Err(Error::denied(format!(
            "no access rule lets this client write {} {:?}",
            key.kind, offered.name
        )));
    }
    let before = refs.newest_keyed(key.kind, &offered.name).await?;
    let taken = || {
        Error::conflict(format!(
            "{} {:?} was changed by somebody else; look at it and try again",
            key.kind, offered.name
        ))
    };
    match &before {
        // It may be the same request again.
        Some(before) if before.sequence >= key.sequence => {}
        // By the time that it is written, another one may be before it, which it was not checked against.
        before if !offered.is_next(before.as_ref()) => return Err(taken()),
        before => {
            let before = before.as_ref().and_then(|before| before.record.as_ref());
            match &offered.record {
                Some(next) => {
                    let length = bytes.len() as u64;
                    check_next(gateway, client, key, (before, next), length).await?;
                }
                None => {
                    let checked = machines::check_removal(gateway, client, key.kind, before).await;
                    checked.map_err(by_rule)?;
                }
            }
        }
    }
    match refs.write_keyed(&offered, before.as_ref(), bytes).await? {
        true => Ok(()),
        false => Err(taken()),
    }
}

/// Fails unless `next` may be what a name means after `before`.
async fn check_next(
    gateway: &Gateway,
    client: &Client,
    key: &RefKey,
    (before, next): (Option<&RefRecord>, &RefRecord),
    length: u64,
) -> Result<()> {
    let checked = match key.kind {
        RefKind::Disk => check_disk(gateway, client, before, next).await,
        RefKind::Snapshot => check_snapshot(gateway, client, before, next).await,
        _ => machines::check(gateway, client, key.kind, (before, next), length).await,
    };
    checked.map_err(by_rule)?;
    let kept = check_roots(gateway, client, &next.body).await?;
    if key.kind == RefKind::Disk {
        labels::check_disk_image(gateway, client, key, before, next).await?;
    }
    labels::check_size(gateway, key.kind, before, next).await?;
    // What was there when it was looked for may have been condemned meanwhile.
    match kept {
        Some(kept) if !kept.is_current().await? => {
            Err(Error::unavailable("garbage was collected meanwhile; ask again"))
        }
        _ => Ok(()),
    }
}

/// That a record must not be written is no conflict of two writers, of which one would look who was first.
fn by_rule(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Conflict | ErrorKind::Fenced => {
            Error::denied(error.message().to_owned()).with_source(error)
        }
        _ => error,
    }
}

/// Fails unless a disk's new record follows the one before by the rules for its holders, and is of a server
/// of this client.
async fn check_disk(
    gateway: &Gateway,
    client: &Client,
    before: Option<&RefRecord>,
    next: &RefRecord,
) -> Result<()> {
    let succession = Succession::of(before, next)?;
    let store = gateway.store();
    if !claim(gateway, client, &succession.server()).await? {
        return Err(Error::fenced(format!(
            "server {} is not this client's; it cannot hold disk {:?}",
            succession.server(),
            next.name
        )));
    }
    let Succession::Taken { by, from: Some(from) } = succession else { return Ok(()) };
    if by == from || owns(gateway, client, &from).await? {
        return Ok(());
    }
    match store.servers().seen(&from).await? {
        Some(seen) if seen.is_alive() => Err(Error::conflict(format!(
            "disk {:?} is held by the server on {}, which was at work {} s ago; release it there",
            next.name,
            seen.host,
            seen.silent.as_secs()
        ))),
        _ => Ok(()),
    }
}

/// Fails unless a snapshot is new, and of a disk that a server of this client holds.
async fn check_snapshot(
    gateway: &Gateway,
    client: &Client,
    before: Option<&RefRecord>,
    next: &RefRecord,
) -> Result<()> {
    if before.is_some() {
        return Err(Error::conflict(format!("snapshot {:?} exists already", next.name)));
    }
    let disk = next.name.split_once('@').map_or("", |(disk, _)| disk);
    let found = held_disk(gateway, client, disk).await?;
    if !succession::is_same_disk(&found.body, &next.body) {
        return Err(not_held(disk));
    }
    labels::check_snapshot_image(&found, next)
}

/// Fails unless the client may read every manifest that a record keeps, and all that these lead to is there. Gives
/// what that was found by, when something was looked for.
async fn check_roots(
    gateway: &Gateway,
    client: &Client,
    body: &RefBody,
) -> Result<Option<KeptObjects>> {
    if body.boot_list()?.is_some() || body.boot_copy()?.is_some() {
        return Err(Error::denied("only image versions have boot lists"));
    }
    let roots: HashSet<ManifestId> = body.roots()?.into_iter().collect();
    let mut kept = None;
    for manifest in roots {
        check_named(gateway, client, manifest, &mut kept).await?;
    }
    Ok(kept)
}

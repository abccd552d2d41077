use crate::repair::{self, RepairReport, RepairSource};
use crate::rewritten;
use crate::testing::{self, noise};
use crate::{
    Argon2Cost, ChunkId, ChunkRef, ManifestId, NewKey, PackId, RefBody, RefKind, Secret, Store,
    boot_copy, boot_list, gc, import, pack, segment, settings, verify, wire,
};
use block::{Memory, Span};
use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::collections::BTreeMap;
use std::sync::Arc;

const IMAGE: &str = "debian:1";

struct Lab {
    backend: Arc<InMemory>,
    store: Store,
    image: Vec<u8>,
    list: Vec<ChunkId>,
    /// Where the image and its boot copy have the chunks of the list.
    own: Vec<ChunkRef>,
    copy: Vec<ChunkRef>,
}

async fn in_clear() -> (Arc<InMemory>, Store) {
    let backend = Arc::new(InMemory::new());
    let store = Store::create(backend.clone(), testing::settings(), testing::world(1)).await;
    (backend, store.unwrap())
}

async fn encrypted() -> (Arc<InMemory>, Store) {
    let backend = Arc::new(InMemory::new());
    let secret = Secret::key_file(noise(77, 40)).unwrap();
    let key = NewKey { name: "test", secret: &secret, cost: Argon2Cost::NORMAL };
    let (settings, world) = (testing::encrypted_settings(), testing::world(1));
    let store = Store::create_encrypted(backend.clone(), settings, world, &key).await.unwrap();
    (backend, store)
}

/// The same store, opened by somebody whose compressor gives other bytes.
async fn compressing(backend: &Arc<InMemory>, level: i32) -> Store {
    let settings = testing::settings().with_compression_level(level).unwrap();
    let bytes = settings.encode().unwrap();
    backend.put(&Path::from(settings::KEY), bytes.into()).await.unwrap();
    Store::open(backend.clone(), testing::world(2)).await.unwrap()
}

/// Text of a few words in no order.
fn text(len: usize) -> Vec<u8> {
    let words: Vec<Vec<u8>> = (0..200).map(|n| noise(n, 3 + n as usize % 11)).collect();
    let order = noise(5, len / 4);
    let mut text = Vec::with_capacity(len + 16);
    for number in order.iter().cycle() {
        text.extend_from_slice(&words[*number as usize % words.len()]);
        if text.len() >= len {
            text.truncate(len);
            return text;
        }
    }
    text
}

async fn publish_image(store: &Store, image: &[u8], name: &str, step: usize) -> Vec<ChunkId> {
    let session = testing::session(store).await;
    let done = import::from_device(&session, &Memory::from(image.to_vec()), &()).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    let all = boot_list::of_ranges(&manifest, &[Span::whole(done.size)]).await.unwrap();
    let list: Vec<ChunkId> = all.into_iter().rev().step_by(step).collect();
    let id = boot_list::write(&session, &list).await.unwrap();
    let labels = BTreeMap::from([(boot_list::LABEL.to_owned(), id.to_string())]);
    let body =
        RefBody { manifest: Some(done.manifest), size: done.size, created: testing::NOW, labels };
    let record = session.publish(RefKind::Image, name, body).await;
    session.close(record).await.unwrap();
    list
}

/// Gives the image its copy, compressed at `level`, as somebody who has `with` open.
async fn publish_copy(with: &Store, level: i32) -> ManifestId {
    let record = with.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
    let session = testing::session(with).await;
    let id = record.body.boot_list().unwrap().unwrap();
    let list = boot_list::read(with, &id).await.unwrap();
    let manifest = record.body.manifest.unwrap();
    let chunks = boot_copy::choose(with, &manifest, &list).await.unwrap().unwrap();
    let copy = import::anew(&session, chunks, level).await.unwrap().manifest;
    assert!(boot_copy::name(&session, IMAGE, &manifest, id, copy).await.unwrap());
    session.close(Ok(())).await.unwrap();
    copy
}

async fn lab((backend, store): (Arc<InMemory>, Store)) -> Lab {
    let image = noise(6, 24 << 20);
    let list = publish_image(&store, &image, IMAGE, 10).await;
    publish_copy(&store, boot_copy::level(store.settings())).await;
    Lab::of(backend, store, image, list).await
}

impl Lab {
    async fn of(backend: Arc<InMemory>, store: Store, image: Vec<u8>, list: Vec<ChunkId>) -> Self {
        let record = store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        let manifest = store.manifest(&record.body.manifest.unwrap()).await.unwrap();
        let located = boot_list::locate(&manifest, &list).await.unwrap();
        let own = located.iter().map(|found| found.at).collect();
        let copy = store.manifest(&record.body.boot_copy().unwrap().unwrap()).await.unwrap();
        let copy = boot_copy::chunks(&copy).await.unwrap();
        Self { backend, store, image, list, own, copy }
    }

    async fn packs(&self) -> BTreeMap<Path, Bytes> {
        let mut packs = BTreeMap::new();
        for meta in objects::list(&*self.backend, pack::PREFIX).await.unwrap() {
            let bytes = self.backend.get(&meta.location).await.unwrap().bytes().await.unwrap();
            packs.insert(meta.location, bytes);
        }
        packs
    }

    async fn flip(&self, pack: PackId, at: usize) {
        let path = pack::path(&pack);
        let mut bytes = self.backend.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        let at = if at < bytes.len() { at } else { bytes.len() - 100 };
        bytes[at] ^= 0x41;
        self.backend.put(&path, bytes.into()).await.unwrap();
    }

    async fn change(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = Path::from(key);
        let mut bytes = self.backend.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        change(&mut bytes);
        self.backend.put(&path, bytes.into()).await.unwrap();
    }

    async fn labels(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        let refs = self.store.refs();
        let record = refs.get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        let mut body = record.body;
        change(&mut body.labels);
        refs.update(RefKind::Image, IMAGE, record.sequence, body).await.unwrap();
    }

    /// Another version that shows the same image, with these labels.
    async fn publish_twin(&self, name: &str) {
        let record = self.store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        let session = testing::session(&self.store).await;
        let record = session.publish(RefKind::Image, name, record.body).await;
        session.close(record).await.unwrap();
    }

    async fn remove(&self, key: &str) {
        self.backend.delete(&Path::from(key)).await.unwrap();
    }

    async fn repair(&self, sources: &[RepairSource]) -> RepairReport {
        repair::store(&self.store, sources, false, &()).await.unwrap()
    }

    async fn copy_id(&self) -> ManifestId {
        let record = self.store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        record.body.boot_copy().unwrap().unwrap()
    }

    /// Whether a boot finds the whole list in the copy.
    async fn serves(&self) -> bool {
        let Ok(copy) = self.store.stored_manifest(&self.copy_id().await).await else {
            return false;
        };
        let Ok(chunks) = boot_copy::chunks(&copy).await else { return false };
        for at in &chunks {
            if self.store.read_copy(at, None).await.is_err() {
                return false;
            }
        }
        chunks.iter().map(|at| at.id).eq(self.list.iter().copied())
    }

    async fn is_clean(&self) -> bool {
        let options = verify::VerifyOptions { deep: true, ..verify::VerifyOptions::default() };
        verify::store(&self.store, &options, &()).await.unwrap().is_clean()
    }
}

#[tokio::test]
async fn a_boot_copy_is_healed_out_of_its_image_as_it_was() {
    for made in [in_clear().await, encrypted().await] {
        let lab = lab(made).await;
        let before = lab.packs().await;
        let at = lab.copy[3];
        // A chunk, the head, the index, and the whole pack.
        for damage in [Some(at.offset as usize + 5), Some(2), Some(usize::MAX), None] {
            match damage {
                Some(byte) => lab.flip(at.pack, byte).await,
                None => lab.remove(pack::path(&at.pack).as_ref()).await,
            }
            assert!(!lab.is_clean().await);
            let report = lab.repair(&[]).await;
            assert_eq!(report.restored, [pack::path(&at.pack).to_string()], "{damage:?}");
            assert_eq!((report.lost_chunks, report.left.len()), (0, 0), "{report:?}");
            assert_eq!((&report.rewritten, &report.boot_copies), (&vec![], &vec![]), "{damage:?}");
            assert!(lab.serves().await && lab.packs().await == before, "{damage:?}");
        }
        assert!(objects::list(&*lab.backend, "moved").await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn an_image_and_its_boot_copy_heal_each_other() {
    for made in [in_clear().await, encrypted().await] {
        let lab = lab(made).await;
        let before = lab.packs().await;
        // Other chunks of both: each is sound in a pack that is bad.
        lab.flip(lab.own[3].pack, lab.own[3].offset as usize + 9).await;
        let other =
            lab.copy.iter().position(|at| at.pack == lab.copy[3].pack && at.id != lab.own[3].id);
        let other = lab.copy[other.unwrap()];
        lab.flip(other.pack, other.offset as usize + 9).await;
        let report = lab.repair(&[]).await;
        assert_eq!((report.healed_chunks, report.lost_chunks), (2, 0), "{report:?}");
        assert_eq!((report.restored.len(), report.left.len()), (2, 0), "{report:?}");
        assert!(lab.packs().await == before && lab.serves().await);
    }
}

#[tokio::test]
async fn a_copy_that_does_not_come_out_as_it_was_is_made_anew_and_named() {
    let (backend, _) = in_clear().await;
    let image = text(40 << 20);
    let list = publish_image(&compressing(&backend, 1).await, &image, IMAGE, 24).await;
    let first = publish_copy(&compressing(&backend, 5).await, 5).await;
    // As it stands in the image, as it is encoded now: neither is what the copy had.
    let lab = Lab::of(backend.clone(), compressing(&backend, 9).await, image, list).await;
    let forms = |list: &[ChunkRef]| list.iter().map(|at| at.stored).collect::<Vec<_>>();
    assert_ne!(forms(&lab.own), forms(&lab.copy), "too alike to tell");
    lab.flip(lab.copy[2].pack, lab.copy[2].offset as usize + 40).await;
    let report = lab.repair(&[]).await;
    assert_eq!((report.boot_copies.as_slice(), report.left.len()), (&[IMAGE.to_owned()][..], 0));
    assert_eq!((report.rewritten.len(), report.lost_chunks), (1, 0), "{report:?}");
    assert_ne!(lab.copy_id().await, first);
    assert!(lab.serves().await && lab.is_clean().await);
    assert_eq!(lab.repair(&[]).await, RepairReport::default(), "once is enough");
    // What is left of the old one is garbage.
    let options = gc::GcOptions { grace: std::time::Duration::ZERO, ..gc::GcOptions::default() };
    for _ in 0..2 {
        gc::collect(&lab.store, &options, &()).await.unwrap();
    }
    assert!(lab.serves().await && lab.is_clean().await);
}

#[tokio::test]
async fn a_copy_in_another_form_than_the_image_comes_out_as_it_was_while_the_compressor_is_the_same()
 {
    let (backend, _) = in_clear().await;
    let image = text(40 << 20);
    let list = publish_image(&compressing(&backend, 1).await, &image, IMAGE, 24).await;
    let store = compressing(&backend, 5).await;
    publish_copy(&store, boot_copy::level(store.settings())).await;
    let lab = Lab::of(backend, store, image, list).await;
    let before = lab.packs().await;
    for damage in [true, false] {
        match damage {
            true => lab.flip(lab.copy[2].pack, lab.copy[2].offset as usize + 40).await,
            false => lab.remove(pack::path(&lab.copy[2].pack).as_ref()).await,
        }
        let report = lab.repair(&[]).await;
        assert_eq!((report.rewritten.len(), report.left.len()), (0, 0), "{report:?}");
        assert!(lab.packs().await == before);
    }
}

#[tokio::test]
async fn a_copy_whose_pack_is_elsewhere_or_whose_map_is_lost_is_made_anew() {
    let lab = lab(in_clear().await).await;
    let first = lab.copy_id().await;
    let manifest = lab.store.manifest(&first).await.unwrap();
    let segment = segment::key(&manifest.segment_id(0).unwrap());
    drop(manifest);
    let keys = [segment, crate::manifest_root::key(&first)];
    for (key, removed) in keys.iter().flat_map(|key| [(key, false), (key, true)]) {
        match removed {
            true => lab.remove(key).await,
            false => lab.change(key, |bytes| bytes[20] ^= 1).await,
        }
        let report = lab.repair(&[]).await;
        assert_eq!(
            (report.boot_copies.as_slice(), report.left.len()),
            (&[IMAGE.to_owned()][..], 0)
        );
        assert!(lab.serves().await && lab.is_clean().await, "{key}");
        assert_eq!(lab.copy_id().await, first, "nothing else changed");
    }
    // As a repair did that knew no copies.
    let pack = lab.copy[0].pack;
    let places = lab.own.iter().zip(&lab.copy).filter(|(_, copy)| copy.pack == pack);
    rewritten::save(&lab.store, &pack, places.map(|(own, _)| *own)).await.unwrap();
    lab.remove(pack::path(&pack).as_ref()).await;
    assert!(lab.is_clean().await && !lab.serves().await);
    let dry = repair::store(&lab.store, &[], true, &()).await.unwrap();
    assert!(dry.boot_copies.is_empty() && !lab.serves().await, "a dry run wrote something");
    let report = lab.repair(&[]).await;
    assert_eq!((report.boot_copies.as_slice(), report.left.len()), (&[IMAGE.to_owned()][..], 0));
    assert!(lab.serves().await);
}

#[tokio::test]
async fn a_chunk_that_image_and_copy_have_lost_comes_back_to_both_with_the_image() {
    let lab = lab(in_clear().await).await;
    let (own, copy) = (lab.own[4], lab.copy[4]);
    for at in [own, copy] {
        lab.flip(at.pack, at.offset as usize + 7).await;
    }
    let report = lab.repair(&[]).await;
    assert_eq!(report.boot_copies, Vec::<String>::new(), "{report:?}");
    assert!(!report.left.is_empty() && !lab.serves().await);
    publish_image(&lab.store, &lab.image, "debian:2", 1000).await;
    let report = lab.repair(&[]).await;
    assert_eq!(report.left, [], "{report:?}");
    assert!(lab.serves().await && lab.is_clean().await);
    let options = gc::GcOptions { grace: std::time::Duration::ZERO, ..gc::GcOptions::default() };
    for _ in 0..2 {
        gc::collect(&lab.store, &options, &()).await.unwrap();
    }
    assert!(lab.serves().await && lab.is_clean().await, "a collection takes nothing of it");
}

#[tokio::test]
async fn a_copy_of_a_newer_build_is_left_to_it_and_all_else_is_healed() {
    let newer = |bytes: &mut Vec<u8>| wire::make_newer(bytes, 8, 2);
    for part in ["manifests", "segments"] {
        let lab = lab(in_clear().await).await;
        publish_image(&lab.store, &noise(9, 2 << 20), "alpine:1", 1000).await;
        let first = lab.copy_id().await;
        let manifest = lab.store.manifest(&first).await.unwrap();
        let segment = segment::key(&manifest.segment_id(0).unwrap());
        drop(manifest);
        let key = if part == "segments" { segment } else { crate::manifest_root::key(&first) };
        lab.change(&key, newer).await;
        let before =
            lab.backend.get(&Path::from(key.as_str())).await.unwrap().bytes().await.unwrap();
        // It comes out as it was: nobody asks for the packs of copies.
        let pack = lab.own[3].pack;
        lab.flip(pack, lab.own[3].offset as usize + 9).await;
        let report = lab.repair(&[]).await;
        assert_eq!(report.restored, [pack::path(&pack).to_string()], "{report:?}");
        assert_eq!((&report.boot_copies, &report.dropped_boot_copies), (&vec![], &vec![]));
        let [left] = report.left.as_slice() else { panic!("{report:?}") };
        assert_eq!(left.object, key);
        assert_eq!(lab.copy_id().await, first);
        let after =
            lab.backend.get(&Path::from(key.as_str())).await.unwrap().bytes().await.unwrap();
        assert_eq!(before, after, "{key}");
        // What cannot be had any more does not, and they are asked for.
        lab.flip(pack, lab.own[3].offset as usize + 9).await;
        lab.remove(pack::path(&lab.copy[3].pack).as_ref()).await;
        let report = lab.repair(&[]).await;
        assert!(report.left.iter().any(|fault| fault.object == key), "{report:?}");
        assert_eq!((&report.boot_copies, &report.dropped_boot_copies), (&vec![], &vec![]));
        assert_eq!(lab.copy_id().await, first);
    }
}

#[tokio::test]
async fn a_copy_of_which_no_list_tells_what_was_in_it_is_taken_off() {
    for lost in ["list", "label", "worth"] {
        let lab = lab(in_clear().await).await;
        let record = lab.store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        let list = record.body.boot_list().unwrap().unwrap();
        match lost {
            "list" => lab.remove(&format!("bootlists/{list}")).await,
            "label" => {
                let dropped = |labels: &mut BTreeMap<_, _>| drop(labels.remove(boot_list::LABEL));
                lab.labels(dropped).await;
            }
            _ => {
                let session = testing::session(&lab.store).await;
                let short = boot_list::write(&session, &lab.list[..3]).await.unwrap();
                session.close(Ok(())).await.unwrap();
                let short = |labels: &mut BTreeMap<String, String>| {
                    labels.insert(boot_list::LABEL.to_owned(), short.to_string());
                };
                lab.labels(short).await;
            }
        }
        // While the copy is whole, it is of use.
        let report = lab.repair(&[]).await;
        assert_eq!(report.dropped_boot_copies, Vec::<String>::new(), "{lost}");
        lab.remove(&crate::manifest_root::key(&lab.copy_id().await)).await;
        let report = lab.repair(&[]).await;
        assert_eq!(report.dropped_boot_copies, [IMAGE], "{lost}: {report:?}");
        assert_eq!(report.boot_copies, Vec::<String>::new(), "{lost}");
        let record = lab.store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
        assert_eq!(record.body.boot_copy().unwrap(), None, "{lost}");
        // The list itself stays lost.
        assert_eq!(report.left.len(), usize::from(lost == "list"), "{lost}: {report:?}");
    }
}

#[tokio::test]
async fn versions_that_have_the_same_copy_get_the_same_one_again() {
    let (backend, _) = in_clear().await;
    let image = text(40 << 20);
    let list = publish_image(&compressing(&backend, 1).await, &image, IMAGE, 24).await;
    let first = publish_copy(&compressing(&backend, 5).await, 5).await;
    let lab = Lab::of(backend.clone(), compressing(&backend, 9).await, image, list).await;
    lab.publish_twin("debian:2").await;
    lab.flip(lab.copy[2].pack, lab.copy[2].offset as usize + 40).await;
    let report = lab.repair(&[]).await;
    assert_eq!(
        (report.boot_copies.as_slice(), report.left.len()),
        (&[IMAGE.to_owned(), "debian:2".to_owned()][..], 0)
    );
    let second = lab.store.refs().get(RefKind::Image, "debian:2").await.unwrap().unwrap();
    assert_ne!(lab.copy_id().await, first);
    assert_eq!(second.body.boot_copy().unwrap(), Some(lab.copy_id().await));
    assert!(lab.serves().await && lab.is_clean().await);
}

#[tokio::test]
async fn a_chunk_that_only_a_configured_source_has_comes_from_there() {
    let lab = lab(in_clear().await).await;
    let whole = Store::open(Arc::new(lab.backend.fork()), testing::world(3)).await.unwrap();
    let before = lab.packs().await;
    for at in [lab.own[4], lab.copy[4]] {
        lab.flip(at.pack, at.offset as usize + 7).await;
    }
    lab.store.add_source(whole).unwrap();
    let dry = repair::store(&lab.store, &[], true, &()).await.unwrap();
    assert_eq!((dry.healed_chunks, dry.lost_chunks, dry.left.len()), (2, 0, 0), "{dry:?}");
    let report = lab.repair(&[]).await;
    assert_eq!((report.restored.len(), report.left.len()), (2, 0), "{report:?}");
    assert_eq!((report.healed_chunks, report.lost_chunks), (2, 0), "{report:?}");
    assert!(lab.packs().await == before && lab.serves().await);
}

#[tokio::test]
async fn a_version_that_shows_another_image_meanwhile_gets_no_copy() {
    let lab = lab(in_clear().await).await;
    let record = lab.store.refs().get(RefKind::Image, IMAGE).await.unwrap().unwrap();
    let (manifest, list) = (record.body.manifest.unwrap(), record.body.boot_list().unwrap());
    let (list, other) = (list.unwrap(), lab.copy_id().await);
    let session = testing::session(&lab.store).await;
    let named = async |of, copy| boot_copy::name(&session, IMAGE, of, list, copy).await.unwrap();
    assert!(!named(&other, manifest).await, "made for another manifest");
    assert_eq!(lab.copy_id().await, other);
    assert!(named(&manifest, manifest).await);
    assert!(!boot_copy::unname(&session, IMAGE, other).await.unwrap(), "it has another one");
    assert_eq!(lab.copy_id().await, manifest);
    session.close(Ok(())).await.unwrap();
}

#[tokio::test]
async fn a_copy_whose_pack_is_of_a_newer_format_keeps_its_label_and_the_pack_is_not_replaced() {
    let lab = lab(in_clear().await).await;
    let (first, path) = (lab.copy_id().await, pack::path(&lab.copy[0].pack));
    // Nothing in it means anything to this build.
    let newer = |bytes: &mut Vec<u8>| {
        let trailer = bytes.len() - 32;
        bytes[16..trailer].fill(0x5a);
        pack::make_newer(bytes, 2, 0);
    };
    lab.change(path.as_ref(), newer).await;
    let before = lab.packs().await;
    // Then its map is lost, too, and what would be made anew has the id of the pack that is there.
    for remove_map in [false, true] {
        if remove_map {
            lab.remove(&crate::manifest_root::key(&first)).await;
        }
        let report = lab.repair(&[]).await;
        assert_eq!((&report.boot_copies, &report.dropped_boot_copies), (&vec![], &vec![]));
        assert_eq!((report.newer_packs.len(), report.lost_chunks), (1, 0), "{report:?}");
        assert_eq!(lab.copy_id().await, first);
        assert!(lab.packs().await == before, "a pack was changed");
    }
}

#[tokio::test]
async fn a_copy_that_was_made_anew_where_its_pack_had_been_moved_outlives_a_collection() {
    // The pack is gone, or is there again: somebody else made the copy anew.
    for is_back in [false, true] {
        let lab = lab(in_clear().await).await;
        // As a repair did that knew no copies.
        let pack = lab.copy[0].pack;
        let places = lab.own.iter().zip(&lab.copy).filter(|(_, copy)| copy.pack == pack);
        rewritten::save(&lab.store, &pack, places.map(|(own, _)| *own)).await.unwrap();
        if !is_back {
            lab.remove(pack::path(&pack).as_ref()).await;
        }
        assert_eq!(lab.repair(&[]).await.boot_copies, [IMAGE]);
        assert!(lab.serves().await);
        let options =
            gc::GcOptions { grace: std::time::Duration::ZERO, ..gc::GcOptions::default() };
        for _ in 0..2 {
            gc::collect(&lab.store, &options, &()).await.unwrap();
            assert!(lab.serves().await && lab.is_clean().await, "a collection took its pack");
        }
        assert_eq!(lab.repair(&[]).await, RepairReport::default(), "once is enough");
    }
}

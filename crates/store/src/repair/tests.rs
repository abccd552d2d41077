use super::*;
use crate::rewritten;
use crate::testing::{self, noise};
use crate::{RefBody, RefKind, Settings, import, wire};
use block::Memory;
use block::conformance::Sequence;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::collections::{BTreeMap, HashMap};

struct Lab {
    backend: Arc<InMemory>,
    store: Store,
    image: Vec<u8>,
}

fn picture() -> Vec<u8> {
    let mut image = noise(5, 40 * 4096);
    image.resize(48 * 4096, 0);
    image.extend((0..60 * 4096).map(|i| (i / 4096 + i / 60 % 13) as u8));
    image
}

async fn import(store: &Store, name: &str, image: &[u8]) {
    let session = testing::session(store).await;
    let done = import::from_device(&session, &Memory::from(image.to_vec()), &()).await.unwrap();
    let body = RefBody {
        manifest: Some(done.manifest),
        size: done.size,
        created: testing::NOW,
        labels: BTreeMap::new(),
    };
    session.publish(RefKind::Image, name, body).await.unwrap();
    session.close(Ok(())).await.unwrap();
}

async fn lab() -> Lab {
    let backend = Arc::new(InMemory::new());
    let store =
        Store::create(backend.clone(), testing::settings(), testing::world(1)).await.unwrap();
    let image = picture();
    import(&store, "debian:1", &image).await;
    Lab { backend, store, image }
}

impl Lab {
    async fn copy(&self) -> Store {
        Store::open(Arc::new(self.backend.fork()), testing::world(2)).await.unwrap()
    }

    async fn keys(&self, prefix: &str) -> Vec<String> {
        let all = objects::list(&*self.backend, prefix).await.unwrap();
        all.into_iter().map(|meta| meta.location.to_string()).collect()
    }

    /// Damages the end of a pack, where its index is.
    async fn spoil_index(&self, pack: &str) {
        self.change(pack, |bytes| {
            let end = bytes.len();
            bytes[end - 100..].fill(0);
        })
        .await;
    }

    async fn change(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = Path::from(key);
        let mut bytes = self.backend.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        change(&mut bytes);
        self.backend.put(&path, bytes.into()).await.unwrap();
    }

    async fn bytes(&self, key: &str) -> Bytes {
        self.backend.get(&Path::from(key)).await.unwrap().bytes().await.unwrap()
    }

    async fn remove(&self, key: &str) {
        self.backend.delete(&Path::from(key)).await.unwrap();
    }

    async fn repair(&self, sources: &[RepairSource]) -> RepairReport {
        store(&self.store, sources, false, &()).await.unwrap()
    }

    async fn is_whole(&self) -> bool {
        let fresh = Store::open(self.backend.clone(), testing::world(3)).await.unwrap();
        let clean = verify::store(&fresh, &verify::VerifyOptions::default(), &()).await.unwrap();
        clean.is_clean() && self.read(&fresh).await.is_ok_and(|bytes| bytes == self.image)
    }

    async fn read(&self, store: &Store) -> Result<Vec<u8>> {
        let record = store.refs().get(RefKind::Image, "debian:1").await?.unwrap();
        let manifest = store.manifest(&record.body.manifest.unwrap()).await?;
        let whole = block::Span::whole(manifest.size());
        let mut bytes = vec![0; manifest.size() as usize];
        for piece in manifest.pieces(whole).await? {
            if let crate::Content::Chunk { at, skip } = piece.content {
                let chunk = store.read_chunk(&at).await?;
                let target = &mut bytes[piece.span.index_in(whole)];
                target.copy_from_slice(&chunk[skip as usize..][..piece.span.len() as usize]);
            }
        }
        Ok(bytes)
    }
}

fn device(name: &str, bytes: Vec<u8>) -> RepairSource {
    RepairSource::Device { name: name.to_owned(), device: Arc::new(Memory::from(bytes)) }
}

#[tokio::test]
async fn any_damage_to_content_is_healed_from_a_copy_of_the_store() {
    let lab = lab().await;
    let source = [RepairSource::Store(lab.copy().await)];
    let mut random = Sequence::new(3);
    for prefix in ["packs", "segments", "manifests"] {
        for key in lab.keys(prefix).await {
            for _ in 0..6 {
                let at = random.number() as usize;
                lab.change(&key, |bytes| {
                    let at = at % bytes.len();
                    bytes[at] ^= 0xff;
                })
                .await;
                let report = lab.repair(&source).await;
                assert_eq!(report.left, [], "{key}");
                assert!(lab.is_whole().await, "{key}");
            }
            lab.remove(&key).await;
            let dry = store(&lab.store, &source, true, &()).await.unwrap();
            assert_eq!((dry.found.len(), dry.left.len(), dry.lost_chunks), (1, 0, 0), "{key}");
            assert!(!lab.is_whole().await, "a dry run wrote something");
            let report = lab.repair(&source).await;
            assert_eq!(report.restored, [key.as_str()]);
            assert!(lab.is_whole().await, "{key} removed");
        }
    }
    for key in ["packs", "segments", "manifests"] {
        for key in lab.keys(key).await {
            lab.remove(&key).await;
        }
    }
    assert_eq!(lab.repair(&source).await.left, []);
    assert!(lab.is_whole().await, "all content removed");
}

#[tokio::test]
async fn a_pack_is_healed_from_an_image_in_which_the_data_stands_elsewhere() {
    let lab = lab().await;
    let pack = lab.keys("packs").await.remove(0);
    let mut moved = noise(9, 7 * 4096);
    moved.extend_from_slice(&lab.image);
    lab.change(&pack, |bytes| bytes[3000..150_000].fill(1)).await;
    let report = lab.repair(&[device("moved.raw", moved)]).await;
    assert!(report.healed_chunks >= 1, "{report:?}");
    // Cut alike again behind the first cut: all but the start is found.
    assert!(report.lost_chunks <= 1, "{report:?}");
    let report = lab.repair(&[device("golden.raw", lab.image.clone())]).await;
    assert_eq!(report.left, []);
    assert!(lab.is_whole().await);
}

#[tokio::test]
async fn a_pack_whose_index_is_lost_keeps_what_is_sound() {
    let lab = lab().await;
    let pack = lab.keys("packs").await.remove(0);
    lab.spoil_index(&pack).await;
    // Nobody is needed for it: the segments say where the chunks are.
    let report = lab.repair(&[]).await;
    assert_eq!((report.lost_chunks, report.left.len()), (0, 0), "{report:?}");
    assert!(lab.is_whole().await);
}

#[tokio::test]
async fn a_pack_whose_index_is_lost_stays_while_a_name_cannot_say_what_it_needs() {
    for prefix in ["refs/image", "manifests", "segments"] {
        let lab = lab().await;
        let pack = lab.keys("packs").await.remove(0);
        lab.spoil_index(&pack).await;
        let key = lab.keys(prefix).await.remove(0);
        let good = lab.bytes(&key).await;
        lab.change(&key, |bytes| bytes[good.len() / 2] ^= 1).await;
        lab.repair(&[]).await;
        lab.change(&key, |bytes| *bytes = good.to_vec()).await;
        assert!(lab.read(&lab.copy().await).await.is_ok_and(|read| read == lab.image), "{prefix}");
        lab.repair(&[]).await;
        assert!(lab.is_whole().await, "{prefix}");
    }
}

#[tokio::test]
async fn a_pack_whose_index_is_lost_stays_while_another_session_may_publish_what_is_in_it() {
    let lab = lab().await;
    let before = lab.keys("packs").await;
    let writer = testing::session(&lab.store).await;
    let image = Memory::from(noise(9, 30 * 4096));
    let done = import::from_device(&writer, &image, &()).await.unwrap();
    let mut new = lab.keys("packs").await;
    new.retain(|key| !before.contains(key));
    lab.spoil_index(&new[0]).await;
    let told = lab.repair(&[]).await;
    assert!(lab.keys("packs").await.contains(&new[0]), "{told:?}");
    let (manifest, created) = (Some(done.manifest), testing::NOW);
    let body = RefBody { manifest, size: done.size, created, labels: BTreeMap::new() };
    writer.publish(RefKind::Image, "later:1", body).await.unwrap();
    writer.close(Ok(())).await.unwrap();
    let told = lab.repair(&[]).await;
    assert_eq!((told.lost_chunks, told.left.len()), (0, 0), "{told:?}");
    assert_eq!(told.restored, [new[0].as_str()], "a name says now what is in it");
    assert!(lab.is_whole().await);
}

/// A store most of whose image is in a pack that a collection made of another one, and that pack.
async fn rewritten(seed: u64) -> (Lab, String) {
    let backend = Arc::new(InMemory::new());
    let store =
        Store::create(backend.clone(), testing::settings(), testing::world(1)).await.unwrap();
    let image = picture();
    let mut larger = image.clone();
    larger.extend(noise(seed, 200 * 4096));
    import(&store, "larger:1", &larger).await;
    import(&store, "debian:1", &image).await;
    let larger = store.refs().get(RefKind::Image, "larger:1").await.unwrap().unwrap();
    store.refs().remove(RefKind::Image, "larger:1", larger.sequence).await.unwrap();
    let lab = Lab { backend, store, image };
    let before = lab.keys("packs").await;
    let none = std::time::Duration::ZERO;
    let options = gc::GcOptions { grace: none, stale: none, rewrite_below: 0.9, dry_run: false };
    gc::collect(&lab.store, &options, &()).await.unwrap();
    let mut made = lab.keys("packs").await;
    made.retain(|pack| !before.contains(pack));
    assert_eq!((made.len(), lab.keys("moved").await.len()), (1, 1));
    assert!(lab.is_whole().await);
    (lab, made.remove(0))
}

#[tokio::test]
async fn a_rewritten_pack_whose_index_is_lost_keeps_what_maps_lead_to() {
    let (lab, pack) = rewritten(6).await;
    lab.spoil_index(&pack).await;
    let report = lab.repair(&[]).await;
    assert_eq!((report.lost_chunks, report.left.len()), (0, 0), "{report:?}");
    assert!(lab.is_whole().await);
}

#[tokio::test]
async fn a_rewritten_pack_whose_index_is_lost_stays_while_its_map_is_lost() {
    let mut orders = HashSet::new();
    for (seed, damage) in (6..).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (lab, pack) = rewritten(seed).await;
        lab.spoil_index(&pack).await;
        let map = lab.keys("moved").await.remove(0);
        let good = lab.bytes(&map).await;
        match damage {
            true => lab.change(&map, |bytes| bytes[good.len() / 2] ^= 1).await,
            false => lab.remove(&map).await,
        }
        let report = lab.repair(&[]).await;
        assert_ne!(report.left, [], "damaged: {damage}");
        lab.backend.put(&Path::from(map.as_str()), good.into()).await.unwrap();
        lab.repair(&[]).await;
        assert!(lab.is_whole().await, "damaged: {damage}");
        // Whichever of the two packs is looked at first, the gone one or the damaged one.
        orders.insert((map.strip_prefix("moved/") < pack.strip_prefix("packs/"), damage));
        if orders.len() == 4 {
            return;
        }
    }
}

#[tokio::test]
async fn a_store_with_another_key_heals_too() {
    let lab = lab().await;
    let settings = Settings::generate(&testing::FixedEntropy::new(50)).unwrap();
    let other =
        Store::create(Arc::new(InMemory::new()), settings, testing::world(5)).await.unwrap();
    import(&other, "other:1", &lab.image).await;
    for pack in lab.keys("packs").await {
        lab.change(&pack, |bytes| bytes[100..9000].fill(7)).await;
    }
    assert_eq!(lab.repair(&[RepairSource::Store(other)]).await.left, []);
    assert!(lab.is_whole().await);
}

#[tokio::test]
async fn what_nobody_has_stays_broken_is_named_and_heals_when_the_image_comes_again() {
    let lab = lab().await;
    let pack = lab.keys("packs").await.remove(0);
    lab.change(&pack, |bytes| bytes[5000] ^= 1).await;
    let report = lab.repair(&[device("foreign.raw", noise(77, 1 << 20))]).await;
    assert_eq!((report.healed_chunks, report.lost_chunks), (0, 1));
    let [left] = report.left.as_slice() else { panic!("{report:?}") };
    assert_eq!(left.touches[0].name, "debian:1");
    assert_eq!(left.lost_chunks, 1);
    // The damaged chunk is in no index any more, so that an import stores it again.
    import(&lab.store, "debian:2", &lab.image).await;
    let report = lab.repair(&[]).await;
    assert_eq!(report.left, [], "{report:?}");
    assert!(lab.is_whole().await);
}

#[tokio::test]
async fn a_repair_ends_its_session_and_repairs_nothing_in_a_sound_store() {
    let lab = lab().await;
    let before = lab.keys("packs").await;
    let report = lab.repair(&[RepairSource::Store(lab.copy().await)]).await;
    assert_eq!(report, RepairReport::default());
    assert_eq!(lab.keys("packs").await, before);
    assert_eq!(lab.keys("pins").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_bad_moved_object_goes_though_its_pack_is_restored() {
    let lab = lab().await;
    let source = [RepairSource::Store(lab.copy().await)];
    let pack = lab.keys("packs").await.remove(0);
    let id: PackId = pack.strip_prefix("packs/").unwrap().parse().unwrap();
    rewritten::save(&lab.store, &id, []).await.unwrap();
    lab.change(&moved::key(&id), |bytes| bytes[20] ^= 1).await;
    lab.change(&pack, |bytes| bytes[5000] ^= 1).await;
    let dry = store(&lab.store, &source, true, &()).await.unwrap();
    assert_eq!((dry.found.len(), dry.left.len()), (2, 0), "{dry:?}");
    let report = lab.repair(&source).await;
    assert_eq!((report.restored, report.removed), (vec![pack], vec![moved::key(&id)]));
    assert_eq!(report.left, []);
    assert!(lab.is_whole().await && lab.keys("moved").await.is_empty());
    // One of a newer build is none of ours.
    rewritten::save(&lab.store, &id, []).await.unwrap();
    lab.change(&moved::key(&id), |bytes| wire::make_newer(bytes, 8, 2)).await;
    let report = lab.repair(&source).await;
    assert_eq!((report.restored.len(), report.left.len()), (0, 1), "{report:?}");
    assert_eq!(lab.keys("moved").await, [moved::key(&id)]);
}

/// What makes a pack one of a newer format for this build: it names a version, or a feature, or its end
/// looks otherwise, or it is longer than packs were. What is in between means nothing to this build.
fn in_a_newer_format(bytes: &mut Vec<u8>, how: &str) {
    let trailer = bytes.len() - 32;
    bytes[16..trailer].fill(0x5a);
    match how {
        "version" => pack::make_newer(bytes, 2, 0),
        "features" => pack::make_newer(bytes, 1, 0x82),
        "end" => {
            pack::make_newer(bytes, 2, 0);
            bytes[trailer..].fill(0x5a);
        }
        _ => {
            pack::make_newer(bytes, 2, 0);
            let end = bytes.split_off(trailer);
            bytes.resize(pack::MAX_LEN as usize, 0x5a);
            bytes.extend_from_slice(&end);
        }
    }
}

#[tokio::test]
async fn a_pack_of_a_newer_format_is_left_as_it_is_and_named_and_all_else_is_healed() {
    for how in ["version", "features", "end", "long"] {
        let lab = lab().await;
        let newer = lab.keys("packs").await.remove(0);
        import(&lab.store, "alpine:1", &noise(9, 90 * 4096)).await;
        let source = RepairSource::Store(lab.copy().await);
        let other = lab.keys("packs").await.into_iter().find(|key| *key != newer).unwrap();
        lab.change(&newer, |bytes| in_a_newer_format(bytes, how)).await;
        let before = lab.bytes(&newer).await;
        for sources in [&[source][..], &[]] {
            lab.change(&other, |bytes| bytes[5000] ^= 1).await;
            let dry = store(&lab.store, sources, true, &()).await.unwrap();
            let report = lab.repair(sources).await;
            for report in [&dry, &report] {
                let [found] = report.found.as_slice() else { panic!("{how}: {report:?}") };
                assert_eq!(found.object, other, "{how}");
                let [named] = report.newer_packs.as_slice() else { panic!("{how}: {report:?}") };
                assert_eq!(pack::path(&named.pack).as_ref(), newer, "{how}");
                let version = if how == "features" { "features 0x82" } else { "version 2" };
                assert!(named.why.contains(&newer) && named.why.contains(version), "{named:?}");
            }
            let with_source = !sources.is_empty();
            assert_eq!(report.lost_chunks, u64::from(!with_source), "only what is damaged: {how}");
            assert!(report.left.iter().all(|fault| fault.object != newer), "{how}");
            if with_source {
                assert_eq!((&report.restored, report.left.len()), (&vec![other.clone()], 0));
            }
            assert!(lab.bytes(&newer).await == before, "{how}: it was changed");
            let id = newer.strip_prefix("packs/").unwrap();
            assert!(!lab.keys("moved").await.contains(&format!("moved/{id}")), "{how}");
        }
    }
}

#[tokio::test]
async fn a_chunk_that_was_moved_to_a_pack_of_a_newer_format_is_not_lost() {
    // The old pack is gone as it ought to be, or there and damaged.
    for damaged in [false, true] {
        let lab = lab().await;
        let old = lab.keys("packs").await.remove(0);
        let id: PackId = old.strip_prefix("packs/").unwrap().parse().unwrap();
        let newer = PackId([7; 32]);
        let bytes = lab.bytes(&old).await;
        let index = PackIndex::decode(lab.store.settings(), id, &old, &bytes, bytes.len() as u64);
        let chunks: Vec<ChunkRef> = index.unwrap().chunks().collect();
        let places = chunks.iter().map(|at| ChunkRef { pack: newer, ..*at });
        rewritten::save(&lab.store, &id, places).await.unwrap();
        let mut bytes = bytes.to_vec();
        in_a_newer_format(&mut bytes, "version");
        lab.backend.put(&pack::path(&newer), bytes.into()).await.unwrap();
        match damaged {
            true => lab.change(&old, |bytes| bytes[chunks[2].offset as usize] ^= 1).await,
            false => lab.remove(&old).await,
        }
        let before = lab.bytes(pack::path(&newer).as_ref()).await;
        let report = lab.repair(&[]).await;
        assert_eq!((report.lost_chunks, report.newer_packs.len()), (0, 1), "{report:?}");
        let faults = (report.found.len(), report.rewritten.len(), report.left.len());
        assert_eq!(faults, (usize::from(damaged), usize::from(damaged), 0), "{report:?}");
        assert!(lab.bytes(pack::path(&newer).as_ref()).await == before);
        let now = rewritten::load(&lab.store, &id).await.unwrap().unwrap();
        let place = now.find(&chunks[2].id).unwrap();
        assert_eq!(place.pack, newer, "a newer build finds the chunk where it did");
    }
}

#[tokio::test]
async fn a_damaged_pack_about_which_a_newer_build_knows_more_is_left_or_written_as_it_was() {
    let lab = lab().await;
    let source = [RepairSource::Store(lab.copy().await)];
    let pack = lab.keys("packs").await.remove(0);
    let id: PackId = pack.strip_prefix("packs/").unwrap().parse().unwrap();
    rewritten::save(&lab.store, &id, []).await.unwrap();
    lab.change(&moved::key(&id), |bytes| wire::make_newer(bytes, 8, 2)).await;
    lab.change(&pack, |bytes| bytes[5000] ^= 1).await;
    let before = (lab.bytes(&moved::key(&id)).await, lab.bytes(&pack).await);
    let report = lab.repair(&[]).await;
    assert_eq!((report.restored.len(), report.rewritten.len(), report.left.len()), (0, 0, 2));
    assert!(before == (lab.bytes(&moved::key(&id)).await, lab.bytes(&pack).await));
    let report = lab.repair(&source).await;
    assert_eq!((&report.restored, report.left.len()), (&vec![pack], 1), "{report:?}");
    assert!(before.0 == lab.bytes(&moved::key(&id)).await);
}

#[tokio::test]
async fn a_root_or_a_segment_of_a_newer_format_is_not_written_over() {
    let lab = lab().await;
    let source = [RepairSource::Store(lab.copy().await)];
    for prefix in ["segments", "manifests"] {
        let key = lab.keys(prefix).await.remove(0);
        let good = lab.bytes(&key).await;
        lab.change(&key, |bytes| wire::make_newer(bytes, 8, 2)).await;
        let before = lab.bytes(&key).await;
        let report = lab.repair(&source).await;
        assert_eq!(report.restored, Vec::<String>::new(), "{key}");
        let [left] = report.left.as_slice() else { panic!("{report:?}") };
        assert!(left.object == key && left.why.contains("version 2"), "{left:?}");
        assert!(lab.bytes(&key).await == before, "{key} was changed");
        lab.backend.put(&Path::from(key), good.into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_flipped_bit_of_a_version_or_a_flag_is_damage_and_is_healed() {
    let lab = lab().await;
    let source = [RepairSource::Store(lab.copy().await)];
    for prefix in ["packs", "segments", "manifests"] {
        let key = lab.keys(prefix).await.remove(0);
        let end = lab.bytes(&key).await.len();
        let of_trailer = if prefix == "packs" { end - 28..end - 24 } else { 0..0 };
        for at in (8..12).chain(of_trailer) {
            for bit in 0..8 {
                lab.change(&key, |bytes| bytes[at] ^= 1 << bit).await;
                assert!(!lab.is_whole().await, "{key}: bit {bit} of byte {at} is not seen");
                let report = lab.repair(&source).await;
                assert_eq!(report.restored, [key.as_str()], "bit {bit} of byte {at}");
                assert!((report.left.len(), report.newer_packs.len()) == (0, 0), "{report:?}");
                assert!(lab.is_whole().await, "{key}: bit {bit} of byte {at}");
            }
        }
    }
}

#[tokio::test]
async fn a_root_or_a_segment_that_is_sound_by_now_is_not_written_over() {
    let lab = lab().await;
    let source = [RepairSource::Store(lab.copy().await)];
    for prefix in ["segments", "manifests"] {
        let key = lab.keys(prefix).await.remove(0);
        let good = lab.bytes(&key).await;
        lab.remove(&key).await;
        let faults = verify::maps(&lab.store).await.unwrap().faults;
        assert_eq!((faults.len(), faults[0].object.as_str()), (1, key.as_str()));
        // Somebody else was quicker.
        lab.backend.put(&Path::from(key.as_str()), good.into()).await.unwrap();
        let session = testing::session(&lab.store).await;
        let mut repair = Repair {
            store: &lab.store,
            sources: &source,
            session: Some(&session),
            progress: &(),
            report: RepairReport::default(),
            unlisted: Vec::new(),
        };
        assert!(!repair.objects(&faults).await.unwrap(), "{key}");
        assert_eq!(repair.report.restored, Vec::<String>::new());
        lab.remove(&key).await;
        assert!(repair.objects(&faults).await.unwrap(), "{key}");
        assert_eq!(repair.report.restored, [key]);
        session.close(Ok(())).await.unwrap();
    }
    assert!(lab.is_whole().await);
}

#[tokio::test]
async fn a_pack_that_an_import_brought_back_meanwhile_is_kept() {
    let lab = lab().await;
    let key = lab.keys("packs").await.remove(0);
    let good = lab.bytes(&key).await;
    lab.change(&key, |bytes| bytes[20..].fill(7)).await;
    let options = verify::VerifyOptions { deep: true, ..verify::VerifyOptions::default() };
    let full = verify::store(&lab.store, &options, &()).await.unwrap();
    let session = testing::session(&lab.store).await;
    let mut repair = Repair {
        store: &lab.store,
        sources: &[],
        session: Some(&session),
        progress: &(),
        report: RepairReport::default(),
        unlisted: Vec::new(),
    };
    let pack = crate::pack::id_of_key(&key).unwrap();
    let plan = repair.plans(&[pack], &full).await.unwrap().remove(0);
    assert!(plan.lost().count() > 0);
    import(&lab.store, "debian:2", &lab.image).await;
    assert!(lab.bytes(&key).await == good, "the same image makes the same pack");
    let (wanted, bad) = (LostChunks::default(), HashSet::from([pack]));
    let none = Absent::default();
    let finder = Finder::search(&lab.store, &[], wanted, HashMap::new(), (&bad, &none), &()).await;
    repair.heal(plan, &finder.unwrap(), &full, &none).await.unwrap();
    assert_eq!((repair.report.restored, repair.report.lost_chunks), (vec![key.clone()], 0));
    assert!(lab.bytes(&key).await == good);
    session.close(Ok(())).await.unwrap();
    assert!(lab.is_whole().await);
}

#[tokio::test]
async fn a_damaged_pack_that_came_back_or_that_others_may_need_is_not_deleted_at_the_end() {
    let lab = lab().await;
    let source = [RepairSource::Store(lab.copy().await)];
    let key = lab.keys("packs").await.remove(0);
    let good = lab.bytes(&key).await;
    lab.change(&key, |bytes| bytes[20..].fill(7)).await;
    let options = verify::VerifyOptions { deep: true, ..verify::VerifyOptions::default() };
    let full = verify::store(&lab.store, &options, &()).await.unwrap();
    let session = testing::session(&lab.store).await;
    let mut repair = Repair {
        store: &lab.store,
        sources: &source,
        session: Some(&session),
        progress: &(),
        report: RepairReport::default(),
        unlisted: Vec::new(),
    };
    let pack = crate::pack::id_of_key(&key).unwrap();
    let plan = async |repair: &Repair<'_>| repair.plans(&[pack], &full).await.unwrap().remove(0);
    // Somebody else stores just now.
    let other = testing::session(&lab.store).await;
    repair.unlisted.push(plan(&repair).await);
    repair.delete_unlisted().await.unwrap();
    assert!(lab.keys("packs").await.contains(&key));
    other.close(Ok(())).await.unwrap();
    // Somebody has stored the same again.
    let bad = lab.bytes(&key).await;
    repair.unlisted.push(plan(&repair).await);
    lab.backend.put(&Path::from(key.as_str()), good.clone().into()).await.unwrap();
    repair.delete_unlisted().await.unwrap();
    assert!(lab.bytes(&key).await == good);
    lab.backend.put(&Path::from(key.as_str()), bad.into()).await.unwrap();
    repair.unlisted.push(plan(&repair).await);
    repair.delete_unlisted().await.unwrap();
    assert!(!lab.keys("packs").await.contains(&key));
    session.close(Ok(())).await.unwrap();
}

#[tokio::test]
async fn maps_come_from_the_stores_that_readers_ask_too() {
    let lab = lab().await;
    lab.store.add_source(lab.copy().await).unwrap();
    for prefix in ["segments", "manifests"] {
        let key = lab.keys(prefix).await.remove(0);
        lab.remove(&key).await;
        let report = lab.repair(&[]).await;
        assert_eq!((&report.restored, report.left.len()), (&vec![key.clone()], 0), "{report:?}");
        assert!(lab.is_whole().await, "{key}");
    }
}

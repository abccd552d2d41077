use super::*;
use crate::conformance::{self, asked_for};
use crate::{ChunkSource, CostEstimate, ReadOrder, Sources, Urgency};
use block::Memory;
use block::conformance::Sequence;
use bytes::Bytes;
use object_store::memory::InMemory;
use std::sync::Arc;
use store::{
    Manifest, MapId, MapLookup, MapTurn, Store, boot_copy, boot_list, import, outside, testing,
};
use tempfile::TempDir;

struct Lab {
    store: Store,
    place: TempDir,
}

/// A part that compresses, and one that does not.
fn image(seed: u64) -> Vec<u8> {
    let mut bytes = testing::noise(seed, 1 << 20);
    bytes.extend((0..1u32 << 18).flat_map(|i| ((i / 64) ^ seed as u32).to_le_bytes()));
    bytes
}

impl Lab {
    async fn new(encrypted: bool) -> Self {
        let backend = Arc::new(InMemory::new());
        let store = match encrypted {
            false => Store::create(backend, testing::settings(), testing::world(1)).await.unwrap(),
            true => {
                let secret = store::Secret::key_file(testing::noise(77, 40)).unwrap();
                let cost = store::secret::Argon2Cost::TRIVIAL;
                let key = store::NewKey { name: "test", secret: &secret, cost };
                let settings = testing::encrypted_settings();
                let world = testing::world(1);
                Store::create_encrypted(backend, settings, world, &key).await.unwrap()
            }
        };
        Self { store, place: TempDir::new().unwrap() }
    }

    fn settings(&self) -> &Settings {
        self.store.settings()
    }

    /// Imports an image; with a boot list of every third chunk from behind.
    async fn import(&self, name: &str, bytes: Vec<u8>) -> (MediaImage, Arc<Manifest>) {
        let session = testing::session(&self.store).await;
        let done = import::from_device(&session, &Memory::from(bytes), &()).await.unwrap();
        let manifest = self.store.manifest(&done.manifest).await.unwrap();
        let chunks = manifest.chunks().await.unwrap();
        let boot: Vec<_> = chunks.iter().rev().step_by(3).map(|at| at.id).collect();
        let boot_list = Some(boot_list::write(&session, &boot).await.unwrap());
        let located = boot_list::locate(&manifest, &boot).await.unwrap();
        let copied = located.into_iter().map(|located| located.at).collect();
        let boot_copy = Some(boot_copy::make(&session, copied).await.unwrap());
        let image = MediaImage {
            name: name.to_owned(),
            kind: RecordKind::Image,
            version: format!("{name}:1"),
            manifest: done.manifest,
            disk: None,
            boot_list,
            boot_copy,
            first: Vec::new(),
        };
        (image, manifest)
    }

    async fn write(&self, images: &[MediaImage], size: Option<u64>) -> MediaWriteReport {
        write(&self.store, self.place.path(), images, size, &()).await.unwrap()
    }

    fn open(&self) -> MediaSource {
        MediaSource::open(self.settings(), self.place.path()).unwrap()
    }

    /// All maps of an image, and their objects as the store has them.
    async fn maps(&self, image: &MediaImage) -> Vec<(MapId, Bytes)> {
        let mut maps = self.store.manifest(&image.manifest).await.unwrap().maps();
        maps.extend(self.store.manifest(&image.boot_copy.unwrap()).await.unwrap().maps());
        maps.push(MapId::BootList(image.boot_list.unwrap()));
        let mut all = Vec::new();
        for id in maps {
            all.push((id, self.store.map_object(&id).await.unwrap()));
        }
        all
    }

    fn files_of(&self, extension: &str) -> Vec<PathBuf> {
        let is_one = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
        self.files().into_iter().filter(is_one).collect()
    }

    async fn contents_of(&self, manifest: &Manifest) -> Vec<Bytes> {
        let mut all = Vec::new();
        for at in manifest.chunks().await.unwrap() {
            all.push(self.store.read_chunk(&at).await.unwrap());
        }
        all
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.place.path().join(DIRECTORY)).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

#[tokio::test]
async fn a_medium_passes_the_suite_in_clear_and_sealed_and_keeps_names_of_fat() {
    for encrypted in [false, true] {
        let lab = Lab::new(encrypted).await;
        let (wanted, manifest) = lab.import("debian", image(1)).await;
        let report = lab.write(std::slice::from_ref(&wanted), None).await;
        assert_eq!(report.images[0].present, report.images[0].chunks);
        let source = lab.open();
        for (id, object) in lab.maps(&wanted).await {
            assert_eq!(source.claims_map(&id), Some(object.len() as u64));
            assert_eq!(source.map(&id).await.unwrap(), object, "{id}");
        }
        let strange = MapId::Root(store::ManifestId([0x77; 32]));
        assert_eq!(source.claims_map(&strange), None);
        assert_eq!(source.map(&strange).await.unwrap_err().kind(), ErrorKind::NotFound);
        let chunks = lab.contents_of(&manifest).await;
        conformance::check(&lab.open(), lab.settings(), &chunks).await;
        for file in lab.files() {
            let name = file.file_name().unwrap().to_str().unwrap();
            let (stem, extension) = name.split_once('.').unwrap();
            assert!(stem.len() <= 8 && extension.len() <= 3, "{name}");
            assert_eq!(name, name.to_ascii_lowercase());
            if encrypted {
                let bytes = std::fs::read(&file).unwrap();
                assert!(!bytes.windows(6).any(|part| part == b"debian"), "{name} tells a name");
            }
        }
        let listing = Media::open(lab.settings(), lab.place.path()).unwrap().list();
        assert_eq!(listing[0].record.version, "debian:1");
        assert_eq!(
            (listing[0].present, listing[0].boot_present),
            (listing[0].chunks, listing[0].record.boot_chunks)
        );
        assert_eq!((listing[0].maps, listing[0].maps_present), (5, 5));
        let found = verify(lab.settings(), lab.place.path(), false, &()).await.unwrap();
        assert_eq!((found.chunks, found.damaged.len()), (chunks.len() as u64, 0));
        assert_eq!((found.maps, found.damaged_maps), (5, 0));
    }
}

#[tokio::test]
async fn what_is_there_is_not_written_again_and_what_nobody_needs_goes() {
    let lab = Lab::new(false).await;
    let (first, _) = lab.import("debian", image(1)).await;
    let whole = lab.write(std::slice::from_ref(&first), None).await;
    let again = lab.write(std::slice::from_ref(&first), None).await;
    assert_eq!((again.written_chunks, again.written_maps), (0, 0));
    assert_eq!((again.written_bytes, again.kept_bytes), (0, whole.written_bytes));
    // The next version has half of it.
    let mut bytes = image(1);
    bytes[..1 << 20].copy_from_slice(&testing::noise(77, 1 << 20));
    let (next, manifest) = lab.import("debian", bytes).await;
    let next = MediaImage { version: "debian:2".into(), ..next };
    let fresh = lab.write(&[next], None).await;
    assert!(fresh.written_chunks > 0 && fresh.written_chunks < whole.written_chunks);
    assert!(fresh.kept_bytes > 0);
    let media = Media::open(lab.settings(), lab.place.path()).unwrap();
    assert_eq!(media.list().len(), 1, "it takes the place of the one before");
    assert_eq!(lab.files_of("map").len(), 5, "and so do its maps");
    let source = lab.open();
    assert!(manifest.chunks().await.unwrap().iter().all(|at| source.claims(&at.id)));
    // Another one goes on, and off again.
    let (other, _) = lab.import("fedora", image(9)).await;
    lab.write(&[other], None).await;
    let freed = remove(lab.settings(), lab.place.path(), "fedora").unwrap();
    assert!(freed > 1 << 20, "{freed}");
    assert!(remove(lab.settings(), lab.place.path(), "fedora").is_err());
    assert!(manifest.chunks().await.unwrap().iter().all(|at| lab.open().claims(&at.id)));
    remove(lab.settings(), lab.place.path(), "debian").unwrap();
    assert!(!is_at(lab.place.path()), "nothing is left");
}

#[tokio::test]
async fn when_room_is_short_maps_and_boot_lists_of_all_go_first() {
    let lab = Lab::new(false).await;
    let (a, _) = lab.import("a", image(1)).await;
    let (b, _) = lab.import("b", image(2)).await;
    let boots = 1_300_000;
    let report = lab.write(&[a.clone(), b.clone()], Some(boots)).await;
    assert!(report.used_bytes <= boots, "{report:?}");
    for image in &report.images {
        assert_eq!(image.boot_present, image.boot_chunks, "{report:?}");
        assert_eq!((image.maps, image.maps_present), (5, 5), "{report:?}");
        assert!(image.present < image.chunks && image.missing_bytes > 0);
    }
    let most = report.images.iter().map(|image| image.present).sum::<u64>();
    let more = lab.write(&[a, b], None).await;
    assert_eq!(more.images.iter().map(|image| image.missing_bytes).sum::<u64>(), 0);
    assert!(
        more.written_chunks + most == more.images.iter().map(|image| image.chunks).sum::<u64>()
    );
}

#[tokio::test]
async fn what_may_be_taken_is_never_exceeded_in_whole_blocks_of_the_file_system() {
    for size in [1_300_000, 2_000_000, 3_000_000] {
        let lab = Lab::new(false).await;
        let (a, _) = lab.import("a", image(1)).await;
        let (b, _) = lab.import("b", image(2)).await;
        let taken = || {
            let block = rustix::fs::statvfs(lab.place.path()).unwrap().f_frsize;
            let len = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
            lab.files().iter().map(|path| len(path).next_multiple_of(block)).sum::<u64>()
        };
        // Again and again: what is written anew is not counted twice.
        for images in [&[a.clone(), b][..], &[a]].repeat(2) {
            let report = lab.write(images, Some(size)).await;
            assert!(taken() <= report.used_bytes, "{} of {size}: {report:?}", taken());
            assert!(report.used_bytes <= size, "{report:?}");
        }
    }
    let lab = Lab::new(false).await;
    let (a, _) = lab.import("a", image(1)).await;
    let told = write(&lab.store, lab.place.path(), &[a], Some(2000), &()).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::NoSpace);
    assert!(told.message().contains("--size"), "{told}");
}

#[tokio::test]
async fn a_command_deletes_nothing_of_what_another_one_is_writing() {
    let lab = Lab::new(false).await;
    let (debian, _) = lab.import("debian", image(1)).await;
    let (alice, _) = lab.import("alice", image(2)).await;
    lab.write(std::slice::from_ref(&debian), None).await;
    let (settings, place) = (lab.settings(), lab.place.path());
    let before = lab.files();
    let lock = lock::MediaLock::take(place).unwrap();
    let error =
        write(&lab.store, place, std::slice::from_ref(&alice), None, &()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let error = verify(settings, place, true, &()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(remove(settings, place, "debian").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(verify(settings, place, false, &()).await.unwrap().damaged, [""; 0], "a look");
    assert_eq!(lab.files(), before);
    drop(lock);
    lab.write(&[alice], None).await;
    remove(settings, place, "debian").unwrap();
    remove(settings, place, "alice").unwrap();
    assert!(!is_at(place));
}

#[tokio::test]
async fn a_write_that_is_refused_leaves_what_is_on_the_medium() {
    let lab = Lab::new(false).await;
    let (a, _) = lab.import("a", image(1)).await;
    let whole = lab.write(&[a], None).await;
    let before = lab.files();
    // Another version of it, which needs other chunks.
    let (next, _) = lab.import("a", image(2)).await;
    let told = write(&lab.store, lab.place.path(), &[next], Some(2000), &()).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::NoSpace);
    assert_eq!(lab.files(), before);
    let report = verify(lab.settings(), lab.place.path(), false, &()).await.unwrap();
    assert_eq!(report.damaged.len(), 0, "{report:?}");
    assert!(whole.written_chunks > 0);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_not_damaged_and_nothing_is_lost() {
    use crate::regular::failing;
    let lab = Lab::new(false).await;
    let (wanted, manifest) = lab.import("debian", image(1)).await;
    let (other, _) = lab.import("other", image(2)).await;
    lab.write(&[wanted.clone(), other], None).await;
    let check = |drop| verify(lab.settings(), lab.place.path(), drop, &());
    for kind in ["pck", "map", "img"] {
        let path = lab.files_of(kind).remove(0);
        failing::set(&path, true);
        let told = check(true).await.unwrap();
        assert_eq!((told.damaged.len(), told.dropped), (0, false), "{told:?}");
        assert_eq!(told.unreadable.len(), 1, "{told:?}");
        assert!(told.unreadable[0].contains(&path.display().to_string()), "{told:?}");
        // Without the index every pack is looked into.
        lab.files_of("idx").iter().for_each(|path| std::fs::remove_file(path).unwrap());
        let again = write(&lab.store, lab.place.path(), std::slice::from_ref(&wanted), None, &());
        match kind {
            // Who knows what it needs?
            "img" => {
                assert_eq!(again.await.unwrap_err().kind(), ErrorKind::Unavailable);
                let gone = remove(lab.settings(), lab.place.path(), "other").unwrap_err();
                assert_eq!(gone.kind(), ErrorKind::Unavailable);
            }
            _ => assert_eq!(again.await.unwrap().unreadable.len(), 1),
        }
        assert!(path.exists(), "{kind}");
        failing::set(&path, false);
        let told = check(true).await.unwrap();
        assert!(told.damaged.is_empty() && told.unreadable.is_empty(), "{told:?}");
    }
    let chunks = lab.contents_of(&manifest).await;
    conformance::check(&lab.open(), lab.settings(), &chunks).await;
    let listing = Media::open(lab.settings(), lab.place.path()).unwrap().list();
    assert!(listing.iter().all(|one| one.present == one.chunks), "{listing:?}");
}

#[tokio::test]
async fn nothing_is_pruned_while_a_record_may_be_there_that_is_not_seen() {
    use crate::regular::failing;
    let lab = Lab::new(false).await;
    let (one, _) = lab.import("one", image(1)).await;
    let (two, _) = lab.import("two", image(2)).await;
    let (record, place) = (|one: &Lab| one.files_of("img").remove(0), lab.place.path());
    lab.write(std::slice::from_ref(&one), None).await;
    let hidden = record(&lab);
    lab.write(std::slice::from_ref(&two), None).await;
    let before = lab.files();
    let directory = place.join(DIRECTORY);
    let sound = std::fs::read(&hidden).unwrap();
    let damage = |fails: bool| {
        let bytes = if fails { &b"not what was written"[..] } else { &sound[..] };
        std::fs::write(&hidden, bytes).unwrap();
    };
    type Damage<'a> = (&'a dyn Fn(bool), &'a Path, ErrorKind);
    let cases: [Damage<'_>; 3] = [
        (&|fails| failing::set_metadata(&hidden, fails), &hidden, ErrorKind::Unavailable),
        (&|fails| failing::set(&directory, fails), &directory, ErrorKind::Unavailable),
        (&damage, &hidden, ErrorKind::Corrupt),
    ];
    for (fail, named, kind) in cases {
        fail(true);
        let images = std::slice::from_ref(&two);
        let refused = [
            write(&lab.store, place, images, None, &()).await.unwrap_err(),
            remove(lab.settings(), place, "two").unwrap_err(),
        ];
        fail(false);
        for error in refused {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(&named.display().to_string()), "{error}");
        }
        assert_eq!(lab.files(), before);
    }
    // What a damaged record was of is written once more.
    damage(true);
    assert_eq!(lab.write(std::slice::from_ref(&one), None).await.written_chunks, 0);
    let listing = Media::open(lab.settings(), place).unwrap().list();
    assert!(listing.len() == 2 && listing.iter().all(|one| one.present == one.chunks));
}

#[tokio::test]
async fn a_medium_of_the_first_version_is_read_and_gets_maps_when_it_is_written() {
    for encrypted in [false, true] {
        let lab = Lab::new(encrypted).await;
        let (wanted, manifest) = lab.import("debian", image(1)).await;
        lab.write(std::slice::from_ref(&wanted), None).await;
        lab.files_of("map").iter().for_each(|path| std::fs::remove_file(path).unwrap());
        let [path] = lab.files_of("img").try_into().unwrap();
        let number = u32::from_str_radix(path.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
        let name = record::name(number);
        let format = (record::MAGIC, record::VERSION);
        let bytes = std::fs::read(&path).unwrap();
        let (_, body) = outside::decode_versions(lab.settings(), format, &name, &bytes).unwrap();
        let first = &body[..body.len() - 4 - 5 * 8];
        let first = outside::encode(lab.settings(), record::MAGIC, &name, first).unwrap();
        std::fs::write(&path, first).unwrap();
        let [listed] =
            Media::open(lab.settings(), lab.place.path()).unwrap().list().try_into().unwrap();
        assert_eq!((listed.present, listed.maps), (listed.chunks, 0));
        assert!(manifest.chunks().await.unwrap().iter().all(|at| lab.open().claims(&at.id)));
        let again = lab.write(&[wanted], None).await;
        assert_eq!((again.written_chunks, again.written_maps), (0, 5));
        assert_eq!(
            Media::open(lab.settings(), lab.place.path()).unwrap().list()[0].maps_present,
            5
        );
    }
}

#[tokio::test]
async fn what_a_newer_build_wrote_is_not_changed_and_that_of_another_store_is_in_nobodys_way() {
    for encrypted in [false, true] {
        let lab = Lab::new(encrypted).await;
        let (wanted, manifest) = lab.import("debian", image(1)).await;
        let (other, _) = lab.import("other", image(2)).await;
        lab.write(&[wanted.clone(), other.clone()], None).await;
        let number = record::number_of(lab.settings(), wanted.kind, &wanted.name);
        let path = record::path(&lab.place.path().join(DIRECTORY), number);
        let newer = |settings: &Settings| {
            let format = (record::MAGIC, record::VERSION + 1);
            outside::encode_version(settings, format, "what it is by then", b"what it says by then")
        };
        std::fs::write(&path, newer(lab.settings()).unwrap()).unwrap();
        let before = lab.files();
        for images in [vec![wanted.clone()], vec![other.clone()]] {
            let told = write(&lab.store, lab.place.path(), &images, None, &()).await.unwrap_err();
            assert_eq!(told.kind(), ErrorKind::Unsupported, "{told}");
            assert!(told.message().contains(&path.display().to_string()), "{told}");
            assert!(told.message().contains("use a newer sojourn"), "{told}");
        }
        let told = remove(lab.settings(), lab.place.path(), "other").unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Unsupported, "{told}");
        assert!(!verify(lab.settings(), lab.place.path(), true, &()).await.unwrap().dropped);
        assert_eq!(lab.files(), before);
        let chunks = lab.contents_of(&manifest).await;
        conformance::check(&lab.open(), lab.settings(), &chunks).await;

        let strange = Settings::generate(&testing::FixedEntropy::new(99)).unwrap();
        std::fs::write(&path, newer(&strange).unwrap()).unwrap();
        remove(lab.settings(), lab.place.path(), "other").unwrap();
        assert!(path.exists());
    }
}

#[tokio::test]
async fn a_boot_reads_no_map_of_the_store_when_the_medium_has_them() {
    let lab = Lab::new(true).await;
    let (wanted, _) = lab.import("debian", image(1)).await;
    lab.write(std::slice::from_ref(&wanted), None).await;
    let list: Vec<Arc<dyn ChunkSource>> = vec![Arc::new(lab.open())];
    let sources = Sources::new(lab.settings().clone(), "store", CostEstimate::DISTANT, list);
    let sources = Arc::new(sources);
    lab.store.ask_for_maps(Arc::clone(&sources) as Arc<dyn MapLookup>);
    let backend = lab.store.object_store();
    for (id, _) in lab.maps(&wanted).await {
        object_store::ObjectStoreExt::delete(&*backend, &id.path()).await.unwrap();
    }
    let manifest = lab.store.manifest(&wanted.manifest).await.unwrap();
    let ids = boot_list::read(&lab.store, &wanted.boot_list.unwrap()).await.unwrap();
    assert_eq!(boot_list::locate(&manifest, &ids).await.unwrap().len(), ids.len());
    let copy = lab.store.manifest(&wanted.boot_copy.unwrap()).await.unwrap();
    assert_eq!(boot_copy::chunks(&copy).await.unwrap().len(), ids.len());
    assert_eq!(sources.report()[0].wrong, 0);
}

#[tokio::test]
async fn a_medium_that_was_pulled_out_midway_is_read_and_written_on() {
    let lab = Lab::new(false).await;
    let (wanted, manifest) = lab.import("debian", image(1)).await;
    let whole = lab.write(std::slice::from_ref(&wanted), None).await;
    for file in lab.files() {
        match file.extension().and_then(|extension| extension.to_str()) {
            // Neither record nor index came; the others are as long as they should be, their middle was lost.
            Some("img" | "idx") => std::fs::remove_file(&file).unwrap(),
            Some("pck" | "map") => {
                let mut bytes = std::fs::read(&file).unwrap();
                let middle = bytes.len() / 2;
                let end = bytes.len().min(middle + 5000);
                bytes[middle..end].fill(0);
                std::fs::write(&file, bytes).unwrap();
            }
            _ => {}
        }
    }
    assert!(lab.open().chunks() > 0, "what is sound of it is of use");
    let again = lab.write(std::slice::from_ref(&wanted), None).await;
    assert_eq!(again.written_bytes, whole.written_bytes, "the pack with the hole was thrown away");
    let chunks = lab.contents_of(&manifest).await;
    conformance::check(&lab.open(), lab.settings(), &chunks).await;
}

/// Damages a file of a medium in one of many ways.
fn damage(files: &[PathBuf], random: &mut Sequence) {
    let file = &files[random.below(files.len() as u64) as usize];
    let Ok(mut bytes) = std::fs::read(file) else { return };
    let len = bytes.len().max(1) as u64;
    match random.below(7) {
        0 => return std::fs::remove_file(file).unwrap_or_default(),
        1 => bytes.truncate(random.below(len) as usize),
        2 => bytes.extend(testing::noise(random.number(), 1 + random.below(100_000) as usize)),
        3 => {
            // Another file of the medium under this one's name.
            let other = &files[random.below(files.len() as u64) as usize];
            bytes = std::fs::read(other).unwrap_or_default();
        }
        4 => {
            let (from, to) = (random.below(len) as usize, random.below(len) as usize);
            bytes[from.min(to)..from.max(to)].fill(0);
        }
        5 => {
            let (from, to) = (random.below(len) as usize, random.below(len) as usize);
            bytes.copy_within(
                from..(from + 4096).min(len as usize),
                to.min((len as usize).saturating_sub(4096)),
            );
        }
        _ => {
            for _ in 0..1 + random.below(8) {
                if let Some(byte) = bytes.get_mut(random.below(len) as usize) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    std::fs::write(file, bytes).unwrap();
}

/// `SOJOURN_MEDIA_DAMAGES` says how many damages are tried; 10,000 take some minutes.
#[tokio::test]
async fn no_damage_gives_a_wrong_byte_or_fails_a_read() {
    let rounds = std::env::var("SOJOURN_MEDIA_DAMAGES").map_or(150, |text| text.parse().unwrap());
    let labs = [Lab::new(false).await, Lab::new(true).await];
    let mut cases = Vec::new();
    for lab in &labs {
        let small = |seed| image(seed)[900 << 10..1200 << 10].to_vec();
        let (a, manifest) = lab.import("a", small(1)).await;
        let (b, _) = lab.import("b", small(2)).await;
        lab.write(std::slice::from_ref(&a), None).await;
        lab.write(&[b], None).await;
        let maps = lab.maps(&a).await;
        let sound: Vec<_> =
            lab.files().into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect();
        cases.push((lab, lab.contents_of(&manifest).await, maps, sound));
    }
    let mut answered = 0;
    for round in 0..rounds {
        let (lab, chunks, maps, sound) = &cases[round % 2];
        let mut random = Sequence::new(round as u64);
        sound.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
        let files: Vec<_> = sound.iter().map(|(_, path)| path.clone()).collect();
        // Before or after it was opened.
        let is_open = random.below(2) == 0;
        let opened = is_open.then(|| lab.open());
        (0..1 + random.below(3)).for_each(|_| damage(&files, &mut random));
        let source = match opened {
            Some(source) => source,
            None => lab.open(),
        };
        let list: Vec<Arc<dyn ChunkSource>> = vec![Arc::new(source)];
        let sources = Sources::new(lab.settings().clone(), "store", CostEstimate::DISTANT, list);
        for plain in chunks {
            let at = asked_for(lab.settings(), plain);
            let store = || async { Ok(plain.clone()) };
            let read = sources.read(&at, ReadOrder::Cheapest, Urgency::Demand, store).await;
            assert_eq!(&read.unwrap(), plain, "round {round}");
        }
        for (id, object) in maps {
            for turn in [MapTurn::BeforeStore, MapTurn::AfterStore] {
                let given = sources.map(id, turn).await;
                assert!(given.is_none_or(|given| given == object), "round {round}: {id}");
            }
        }
        answered += sources.report()[0].had;
    }
    assert!(answered > rounds as u64, "media answered {answered} of {rounds} rounds' reads");
}

#[test]
fn records_and_indexes_survive_and_no_cut_or_flip_passes() {
    let settings = testing::settings();
    let mut random = Sequence::new(4);
    let row = |n: u32| ChunkRow {
        id: store::ChunkId([n as u8; 32]),
        offset: 16 + n * 5000,
        stored: 4096,
        len: 4096,
        encoding: store::Encoding::Plain,
    };
    let packs: Vec<_> = (0..3)
        .map(|number| PackFile {
            number,
            id: store::PackId([number as u8; 32]),
            len: 100_000,
            rows: (0..number * 3).map(row).collect(),
            indexed: true,
        })
        .collect();
    let bytes = index::encode(&settings, &packs).unwrap();
    assert_eq!(index::decode(&settings, &bytes).unwrap(), packs);
    for _ in 0..500 {
        let mut bad = bytes.clone();
        let at = random.below(bad.len() as u64) as usize;
        bad[at] ^= 1 << random.below(8);
        assert!(index::decode(&settings, &bad).is_err());
        assert!(index::decode(&settings, &bytes[..at]).is_err());
    }
    assert_eq!(parse_name("0000002A.PCK"), Some((42, FileKind::Pack)));
    assert_eq!(parse_name("0000002a.img"), Some((42, FileKind::Record)));
    assert_eq!(parse_name("0000002A.MAP"), Some((42, FileKind::Map)));
    for other in ["2a.pck", "0000002a.pckx", "0000002g.pck", "00000+2a.pck", "readme.txt", "x"] {
        assert_eq!(parse_name(other), None, "{other}");
    }
}

#[test]
fn an_index_takes_memory_only_for_the_pack_files_that_are_there() {
    let (settings, dir, len) = (testing::settings(), TempDir::new().unwrap(), 10_000_000);
    let row = ChunkRow {
        id: store::ChunkId([1; 32]),
        offset: 16,
        stored: 4096,
        len: 4096,
        encoding: store::Encoding::Plain,
    };
    let pack = |number: u32| PackFile {
        number,
        id: store::PackId([2; 32]),
        len,
        rows: vec![row],
        indexed: true,
    };
    // The last ones under one number.
    let packs: Vec<_> = (0..100_000).chain([7; 10]).map(pack).collect();
    let bytes = index::encode(&settings, &packs).unwrap();
    std::fs::write(index::path(&settings, dir.path()), bytes).unwrap();
    let read = |there: &[(u32, u64)]| {
        index::read(&settings, dir.path(), there.iter().copied().collect()).unwrap_or_default()
    };
    assert!(read(&[]).is_empty());
    assert!(read(&[(7, len + 1), (200_000, len)]).is_empty());
    assert_eq!(read(&[(7, len)]).into_values().collect::<Vec<_>>(), [pack(7)]);
}

#[tokio::test]
async fn what_was_told_to_be_done_is_on_stable_storage() {
    use super::files::durable;
    let lab = Lab::new(false).await;
    let (one, _) = lab.import("one", image(1)).await;
    let (two, _) = lab.import("two", image(2)).await;
    let (place, directory) = (lab.place.path(), lab.place.path().join(DIRECTORY));
    let must_be_durable = |what: &str| {
        assert_eq!(durable::last(&directory), Some(durable::files(&directory)), "{what}");
    };
    lab.write(&[one], None).await;
    must_be_durable("written");
    lab.write(&[two], None).await;
    must_be_durable("written again");
    remove(lab.settings(), place, "one").unwrap();
    must_be_durable("removed");
    let pack = std::fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.path());
    let pack = pack.filter(|path| path.extension().is_some_and(|e| e == "pck")).min().unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let report = verify(lab.settings(), place, true, &()).await.unwrap();
    assert!(report.dropped && !pack.exists());
    must_be_durable("damaged files dropped");
    remove(lab.settings(), place, "two").unwrap();
    assert!(!directory.exists());
    assert_eq!(durable::last(place), Some(durable::files(place)), "all is gone");
}

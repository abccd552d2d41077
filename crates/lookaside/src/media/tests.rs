use super::*;
use crate::conformance::{self, asked_for};
use crate::{ChunkSource, CostEstimate, ReadOrder, Sources, Urgency};
use block::Memory;
use block::conformance::Sequence;
use bytes::Bytes;
use object_store::memory::InMemory;
use std::sync::Arc;
use store::{Manifest, Store, bootlist, import, testing};
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
                let cost = store::secret::Cost::TRIVIAL;
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
        let boot_list = Some(bootlist::write(&session, &boot).await.unwrap());
        let image = MediaImage {
            name: name.to_owned(),
            kind: RecordKind::Image,
            version: format!("{name}:1"),
            manifest: done.manifest,
            boot_list,
        };
        (image, manifest)
    }

    async fn write(&self, images: &[MediaImage], size: Option<u64>) -> MediaWriteReport {
        write(&self.store, self.place.path(), images, size, &()).await.unwrap()
    }

    fn open(&self) -> MediaSource {
        MediaSource::open(self.settings(), self.place.path()).unwrap()
    }

    async fn plain(&self, manifest: &Manifest) -> Vec<Bytes> {
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
        let report = lab.write(&[wanted], None).await;
        assert_eq!(report.images[0].present, report.images[0].chunks);
        let chunks = lab.plain(&manifest).await;
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
        let found = verify(lab.settings(), lab.place.path(), false, &()).await.unwrap();
        assert_eq!((found.chunks, found.damaged.len()), (chunks.len() as u64, 0));
    }
}

#[tokio::test]
async fn what_is_there_is_not_written_again_and_what_nobody_needs_goes() {
    let lab = Lab::new(false).await;
    let (first, _) = lab.import("debian", image(1)).await;
    let whole = lab.write(std::slice::from_ref(&first), None).await;
    let again = lab.write(std::slice::from_ref(&first), None).await;
    assert_eq!((again.written_chunks, again.kept_bytes), (0, whole.written_bytes));
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
async fn when_room_is_short_boot_lists_of_all_go_first() {
    let lab = Lab::new(false).await;
    let (a, _) = lab.import("a", image(1)).await;
    let (b, _) = lab.import("b", image(2)).await;
    let boots = 1_300_000;
    let report = lab.write(&[a.clone(), b.clone()], Some(boots)).await;
    assert!(report.used_bytes <= boots, "{report:?}");
    for image in &report.images {
        assert_eq!(image.boot_present, image.boot_chunks, "{report:?}");
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
async fn a_medium_that_was_pulled_out_midway_is_read_and_written_on() {
    let lab = Lab::new(false).await;
    let (wanted, manifest) = lab.import("debian", image(1)).await;
    let whole = lab.write(std::slice::from_ref(&wanted), None).await;
    for file in lab.files() {
        match file.extension().and_then(|extension| extension.to_str()) {
            // Neither record nor index came; the pack is as long as it should be, its middle was lost.
            Some("img" | "idx") => std::fs::remove_file(&file).unwrap(),
            Some("pck") => {
                let mut bytes = std::fs::read(&file).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle..middle + 5000].fill(0);
                std::fs::write(&file, bytes).unwrap();
            }
            _ => {}
        }
    }
    assert!(lab.open().chunks() > 0, "what is sound of it is of use");
    let again = lab.write(std::slice::from_ref(&wanted), None).await;
    assert_eq!(again.written_bytes, whole.written_bytes, "the pack with the hole was thrown away");
    let chunks = lab.plain(&manifest).await;
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
        let sound: Vec<_> =
            lab.files().into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect();
        cases.push((lab, lab.plain(&manifest).await, sound));
    }
    let mut answered = 0;
    for round in 0..rounds {
        let (lab, chunks, sound) = &cases[round % 2];
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
    for other in ["2a.pck", "0000002a.pckx", "0000002g.pck", "00000+2a.pck", "readme.txt", "x"] {
        assert_eq!(parse_name(other), None, "{other}");
    }
}

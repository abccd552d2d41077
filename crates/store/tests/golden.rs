//! A small store of every format version is kept in `tests/golden`. It must stay readable, and
//! writing the same content must give the same bytes.
//!
//! `UPDATE_GOLDEN=1 cargo test -p store --test golden` writes the newest version's anew: only
//! right when the format was meant to change, and then under a new number.

#![allow(clippy::unwrap_used)] // tests

use block::{Memory, Span};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{
    Argon2Cost, Content, NewKey, RefBody, RefKind, RefRecord, Secret, Store, boot_list, gc, import,
    testing,
};

type Objects = BTreeMap<String, Bytes>;

/// The two stores: in clear, and encrypted.
const STORES: [(&str, bool); 2] = [("v1", false), ("v1-encrypted", true)];

fn folder(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Three pages that do not compress, two of zeroes, four that compress, half a kibibyte.
fn image() -> Vec<u8> {
    let mut bytes = testing::noise(4, 3 * 4096);
    bytes.resize(5 * 4096, 0);
    bytes.extend((0..4 * 4096 + 512).map(|i| (i / 64 % 7) as u8 + b'a'));
    bytes
}

/// What an image version and its successor share, behind two pages of zeroes.
fn shared() -> Vec<u8> {
    let mut bytes = vec![0; 2 * 4096];
    bytes.extend((0..4096).map(|i| (i / 32 % 5) as u8 + b'0'));
    bytes
}

async fn objects(backend: &dyn ObjectStore) -> Objects {
    let listed: Vec<_> = backend.list(None).try_collect().await.unwrap();
    let mut objects = Objects::new();
    for meta in listed {
        let bytes = backend.get(&meta.location).await.unwrap().bytes().await.unwrap();
        objects.insert(meta.location.to_string(), bytes);
    }
    objects
}

/// What opens the encrypted store.
fn secret() -> Secret {
    Secret::passphrase("correct horse battery staple".into()).unwrap()
}

async fn open(backend: Arc<dyn ObjectStore>) -> Store {
    Store::open_with(backend, testing::world(3), async || Ok(Some(secret()))).await.unwrap()
}

/// A store with all kinds of objects: an image version with a boot list, and a disk that was
/// removed; a pack that a collection rewrote, because an image version of which another one needs a
/// page was removed; the list of what it condemned, and an import under way.
async fn write(backend: Arc<dyn ObjectStore>, encrypted: bool) {
    let world = testing::world(2);
    let store = if encrypted {
        let secret = secret();
        let new = NewKey { name: "first", secret: &secret, cost: Argon2Cost::TRIVIAL };
        let settings = testing::encrypted_settings();
        let store = Store::create_encrypted(backend, settings, world, &new).await.unwrap();
        let file = Secret::key_file(vec![7; 32]).unwrap();
        let new = NewKey { name: "file", secret: &file, cost: Argon2Cost::TRIVIAL };
        store.keys().add(&new).await.unwrap();
        store
    } else {
        Store::create(backend, testing::settings(), world).await.unwrap()
    };
    let refs = store.refs();
    let session = store.session("golden").await.unwrap();
    let import = async |bytes: Vec<u8>| {
        let done = import::from_device(&session, &Memory::from(bytes), &()).await.unwrap();
        RefBody {
            manifest: Some(done.manifest),
            size: done.size,
            created: testing::NOW,
            labels: [("source".to_owned(), "example.raw".to_owned())].into(),
        }
    };
    let mut example = import(image()).await;
    let manifest = store.manifest(&example.manifest.unwrap()).await.unwrap();
    let chunks: Vec<_> = manifest.chunks().await.unwrap().iter().rev().map(|at| at.id).collect();
    let list = boot_list::write(&session, &chunks).await.unwrap();
    example.labels.insert(boot_list::LABEL.to_owned(), list.to_string());
    refs.create(RefKind::Image, "example:1", example.clone()).await.unwrap();
    refs.create(RefKind::Disk, "gone", example).await.unwrap();
    refs.remove(RefKind::Disk, "gone", 1).await.unwrap();

    let old = import([testing::noise(5, 3 * 4096), shared()].concat()).await;
    refs.create(RefKind::Image, "old:1", old).await.unwrap();
    let new = import(shared()).await;
    refs.create(RefKind::Image, "old:2", new).await.unwrap();
    refs.remove(RefKind::Image, "old:1", 1).await.unwrap();
    session.close(Ok(())).await.unwrap();
    gc::collect(&store, &gc::GcOptions::default(), &()).await.unwrap();
    // Not closed: its pin stays.
    store.session("import of the next version").await.unwrap();
}

#[tokio::test]
async fn writing_gives_the_bytes_of_the_golden_stores() {
    for (name, encrypted) in STORES {
        let backend = Arc::new(InMemory::new());
        write(backend.clone(), encrypted).await;
        let written = objects(&*backend).await;
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let _ = std::fs::remove_dir_all(folder(name));
            for (key, bytes) in &written {
                let path = folder(name).join(key);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
            }
        }
        let golden = objects(&*objects::local(folder(name)).unwrap()).await;
        let keys = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&written), keys(&golden));
        for (key, bytes) in &written {
            assert!(golden[key] == bytes, "{key} differs");
        }
        let folders = |objects: &Objects| {
            let folder = |key: &String| key.split('/').next().unwrap().to_owned();
            objects.keys().map(folder).collect::<std::collections::BTreeSet<_>>()
        };
        for kind in ["packs", "segments", "manifests", "bootlists", "moved", "condemned", "pins"] {
            assert!(folders(&written).contains(kind), "{kind}");
        }
    }
}

#[tokio::test]
async fn the_golden_stores_are_read() {
    for (name, encrypted) in STORES {
        // A copy: nothing may be written to the original.
        let backend = Arc::new(InMemory::new());
        for (key, bytes) in objects(&*objects::local(folder(name)).unwrap()).await {
            backend.put(&Path::from(key), bytes.into()).await.unwrap();
        }
        let store = open(backend.clone()).await;
        assert_eq!(store.settings().is_encrypted(), encrypted);
        assert!(store.refs().list(RefKind::Disk).await.unwrap().is_empty());
        let record = store.refs().get(RefKind::Image, "example:1").await.unwrap().unwrap();
        assert_eq!(record.body.labels["source"], "example.raw");
        let list = record.body.boot_list().unwrap().unwrap();
        assert_eq!(boot_list::read(&store, &list).await.unwrap().len(), 2);
        check(&store, &record, &image()).await;
        // Also when the pack that its segment names is gone, and only the new one is there.
        let record = store.refs().get(RefKind::Image, "old:2").await.unwrap().unwrap();
        let manifest = store.manifest(&record.body.manifest.unwrap()).await.unwrap();
        let at = manifest.chunks().await.unwrap()[0];
        backend.delete(&Path::from(format!("packs/{}", at.pack))).await.unwrap();
        check(&store, &record, &shared()).await;
    }
}

#[test]
fn the_page_about_the_format_shows_these_stores() {
    let page = include_str!("../../../docs/format.md");
    let page: String = page.chars().filter(|c| !c.is_whitespace()).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (plain, encrypted) = (folder("v1"), folder("v1-encrypted"));
    let json = |path: std::path::PathBuf| {
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(path).unwrap()).unwrap()
    };
    // Both test stores have the same root key.
    let settings = json(plain.join("store.json"));
    assert!(page.contains(&format!("masterkey{}", settings["hash_key"].as_str().unwrap())));
    let settings = json(encrypted.join("store.json"));
    let id = settings["encryption"]["key_id"].as_str().unwrap();
    assert!(page.contains(&format!("keyid{id}")));
    let root = "manifests/c58aa5fe3410e9abdefed792d54e8434f0f135b80f6b726942f73d93d295b090";
    assert!(page.contains(root));
    assert!(page.contains(&hex(&std::fs::read(encrypted.join(root)).unwrap())));
    for (folder, pack, from, to) in [
        (&plain, "b13a2dc9", 12650, 12682),
        (&encrypted, "d93030d4", 12320, 12336),
        (&encrypted, "d93030d4", 12570, 12586),
    ] {
        let packs = folder.join("packs").read_dir().unwrap();
        let path = packs
            .map(|entry| entry.unwrap().path())
            .find(|path| path.file_name().unwrap().to_string_lossy().starts_with(pack));
        let bytes = hex(&std::fs::read(path.unwrap()).unwrap()[from..to]);
        let shown = page.contains(&bytes[..32]) && page.contains(&bytes[bytes.len() - 16..]);
        assert!(shown, "{bytes}");
    }
}

/// Reads an image version, and compares it.
async fn check(store: &Store, record: &RefRecord, expected: &[u8]) {
    let manifest = store.manifest(&record.body.manifest.unwrap()).await.unwrap();
    let whole = Span::whole(manifest.size());
    assert_eq!(manifest.size(), expected.len() as u64);
    for piece in manifest.pieces(whole).await.unwrap() {
        let bytes = &expected[piece.span.index_in(whole)];
        match piece.content {
            Content::Hole => assert!(bytes.iter().all(|b| *b == 0)),
            Content::Chunk { at, skip } => {
                let chunk = store.read_chunk(&at).await.unwrap();
                assert_eq!(&chunk[skip as usize..][..bytes.len()], bytes);
            }
        }
    }
}

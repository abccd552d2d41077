//! What the fuzz targets share: a runtime, a scratch directory, a store in memory, an export,
//! certificates, and a virtual machine's side of vhost-user.
//!
//! Formats are sealed by checksums and hashes, which a fuzzer cannot guess. So the targets seal
//! what it makes up: the helpers here are written from the format documents, not taken from the
//! crates under test.

pub mod exports;
pub mod machines;
pub mod tls;
pub mod trace;
pub mod vhost_user;

use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::cell::OnceCell;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use store::{Store, testing};
use tempfile::TempDir;
use tokio::runtime::Runtime;

thread_local! {
    static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
}

/// Runs a future to its end.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.with(|cell| {
        cell.get_or_init(|| {
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
        })
        .block_on(work)
    })
}

/// Runs a future to its end in time that goes by as soon as nothing else is to be done.
pub fn block_on_in_no_time<T>(work: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(work)
}

/// A directory in memory where there is one; it is removed with the process' scratch.
pub fn scratch() -> &'static Path {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    DIRECTORY
        .get_or_init(|| {
            let memory = Path::new("/dev/shm");
            let made = match memory.is_dir() {
                true => tempfile::tempdir_in(memory),
                false => tempfile::tempdir(),
            };
            made.expect("a scratch directory")
        })
        .path()
}

/// A store in memory, and the keys of its ids.
pub struct Objects {
    backend: Arc<InMemory>,
    /// The store.
    pub store: Store,
    hash_key: [u8; 32],
}

impl Objects {
    /// The one of this process.
    pub fn shared() -> &'static Self {
        static OBJECTS: OnceLock<Objects> = OnceLock::new();
        OBJECTS.get_or_init(|| block_on(Self::create()))
    }

    async fn create() -> Self {
        let backend = Arc::new(InMemory::new());
        let shared: Arc<dyn ObjectStore> = Arc::clone(&backend) as _;
        let store = Store::create(shared, testing::settings(), testing::world(1)).await;
        let store = store.expect("an empty backend");
        let settings = backend.get(&"store.json".into()).await.expect("settings");
        let settings: serde_json::Value =
            serde_json::from_slice(&settings.bytes().await.expect("settings")).expect("JSON");
        let hex = settings["hash_key"].as_str().expect("a hash key");
        let hash_key = *blake3::Hash::from_hex(hex).expect("a hash key").as_bytes();
        Self { backend, store, hash_key }
    }

    /// The id of an object of this kind: `pack`, `segment`, `manifest` or `chunk`.
    pub fn id(&self, kind: &str, bytes: &[u8]) -> blake3::Hash {
        let key = blake3::derive_key(&format!("sojourn 2026-11-21 {kind} id v1"), &self.hash_key);
        blake3::keyed_hash(&key, bytes)
    }

    /// Puts an object.
    pub fn put(&self, key: &str, bytes: Vec<u8>) {
        block_on(self.backend.put(&key.into(), PutPayload::from(bytes))).expect("put");
    }

    /// Removes an object.
    pub fn remove(&self, key: &str) {
        block_on(self.backend.delete(&key.into())).expect("delete");
    }
}

/// Puts the frame of a binary object in front of its body.
pub fn seal(magic: &[u8; 8], version: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

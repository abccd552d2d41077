//! Files of a medium: made whole or not at all, and deleted.

use super::head::{self, HEAD};
use super::pack_file::{self, ChunkRow, PackFile};
use super::{Media, index};
use crate::regular::create_afresh;
use block::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use store::Settings;
use store::pack::Builder;

/// Writes a pack file under the first number from that of its id on that is free.
pub(super) fn put_pack(
    settings: &Settings,
    directory: &Path,
    builder: Builder,
) -> Result<PackFile> {
    let pack = builder.finish(settings, |_| false)?;
    let start = pack_file::head_of(settings, &pack.id, pack.bytes.len() as u32);
    let number = put_file(directory, head::number_of(&pack.id.0), "pck", &start, &pack.bytes)?;
    let len = (HEAD + pack.bytes.len()) as u64;
    let index = store::pack::PackIndex::decode(
        settings,
        pack.id,
        "pack",
        &pack.bytes,
        pack.bytes.len() as u64,
    )?;
    let rows: Vec<ChunkRow> = pack_file::rows(&index);
    Ok(PackFile { number, id: pack.id, len, rows, indexed: true })
}

/// Writes a file under the first number from `number` on that is free, and gives that.
pub(super) fn put_file(
    directory: &Path,
    mut number: u32,
    extension: &str,
    head: &[u8],
    bytes: &[u8],
) -> Result<u32> {
    let (path, mut file) = loop {
        let path = head::path(directory, number, extension);
        match File::create_new(&path) {
            Ok(file) => break (path, file),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                number = number.wrapping_add(1);
            }
            Err(e) => return Err(Error::io(path.display(), e)),
        }
    };
    let written =
        (file.write_all(head)).and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_data());
    match written {
        Ok(()) => Ok(number),
        Err(e) => {
            drop(file);
            let _ = std::fs::remove_file(&path);
            Err(Error::io(path.display(), e))
        }
    }
}

/// Writes the index of all pack files.
pub(super) fn write_index(settings: &Settings, media: &mut Media) -> Result<()> {
    media.packs.sort_by_key(|pack| pack.number);
    let bytes = index::encode(settings, &media.packs)?;
    replace(&index::path(settings, &media.directory), &bytes)
}

/// Writes a file in place of another one: beside it first.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let fresh = path.with_extension("new");
    let at_path = |e| Error::io(fresh.display(), e);
    let mut file = create_afresh(&fresh).map_err(at_path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    drop(file);
    if let Err(e) = written {
        let _ = std::fs::remove_file(&fresh);
        return Err(at_path(e));
    }
    std::fs::rename(&fresh, path).map_err(at_path)
}

/// Has all that was made and deleted on the file system of `directory` on stable storage: the files' names, too,
/// which a sync of their content leaves in memory. Waits for the medium.
pub(super) fn make_durable(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|opened| Ok(rustix::fs::syncfs(&opened)?));
    synced.map_err(|e| Error::io(directory.display(), e))?;
    #[cfg(test)]
    durable::note(directory);
    Ok(())
}

/// Deletes a file; that it is gone is as good.
pub(super) fn delete(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path.display(), e)),
        _ => Ok(()),
    }
}

/// What tests know to be durable.
#[cfg(test)]
pub(super) mod durable {
    use parking_lot::Mutex;
    use std::collections::{BTreeMap, HashMap};
    use std::path::{Path, PathBuf};
    use std::sync::LazyLock;

    /// What is in a directory, by name.
    pub(in crate::media) type Files = BTreeMap<String, Vec<u8>>;

    static SYNCED: LazyLock<Mutex<HashMap<PathBuf, Files>>> = LazyLock::new(Mutex::default);

    /// What is in a directory now; nothing when there is none.
    pub(in crate::media) fn files(directory: &Path) -> Files {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| {
            let content = std::fs::read(entry.path()).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), content))
        });
        files.collect()
    }

    pub(super) fn note(directory: &Path) {
        SYNCED.lock().insert(directory.to_owned(), files(directory));
    }

    /// What was in a directory when its file system was synced last.
    pub(in crate::media) fn last(directory: &Path) -> Option<Files> {
        SYNCED.lock().get(directory).cloned()
    }
}

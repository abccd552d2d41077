//! What a guest says on its serial line is appended to a file by QEMU. A guest may say something without end: the file
//! keeps the last of it, and what is before becomes a hole, which reads as zeroes and takes no room.

use block::{Error, Result, offload};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::sleep;

/// The most that the file takes, in bytes, between two looks.
const MOST: u64 = 64 << 20;
/// What is kept of one that takes more.
const KEPT: u64 = 32 << 20;
/// How often it is looked.
const LOOKS: Duration = Duration::from_secs(5);
/// What a hole begins and ends at a multiple of, at the least, to give room back.
const HOLE: u64 = 64 << 10;

/// Keeps the file short for as long as its machine runs. Ends where its file system has no holes.
pub(crate) async fn keep_short(path: PathBuf) {
    loop {
        sleep(LOOKS).await;
        let file = path.clone();
        if let Err(error) = offload(move || cut(&file, MOST, KEPT)).await {
            tracing::warn!(%error, "what the guest says takes as much room as it is");
            return;
        }
    }
}

/// Frees all but the last `kept` bytes of a file that takes more than `most`.
fn cut(path: &Path, most: u64, kept: u64) -> Result<()> {
    let failed = |e| Error::io(path.display(), e);
    let file = match OpenOptions::new().write(true).open(path) {
        Ok(file) => file,
        // Its guest has said nothing yet.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if metadata.blocks() * 512 <= most {
        return Ok(());
    }
    let gone = metadata.len().saturating_sub(kept) / HOLE * HOLE;
    if gone == 0 {
        return Ok(());
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, how, 0, gone).map_err(|e| failed(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};

    #[test]
    fn the_last_of_what_was_said_is_kept_and_whoever_appends_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        cut(&path, MOST, KEPT).unwrap();
        let mut says = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let line = [b'x'; HOLE as usize];
        for _ in 0..16 {
            says.write_all(&line).unwrap();
        }
        cut(&path, 16 * HOLE, 4 * HOLE).unwrap();
        assert!(says.metadata().unwrap().blocks() * 512 >= 16 * HOLE, "it may take so much");
        says.write_all(&line).unwrap();
        cut(&path, 16 * HOLE, 4 * HOLE).unwrap();
        says.write_all(b"login: ").unwrap();
        let metadata = says.metadata().unwrap();
        assert_eq!(metadata.len(), 17 * HOLE + 7);
        assert!(metadata.blocks() * 512 < 6 * HOLE, "{} blocks", metadata.blocks());
        let mut file = std::fs::File::open(&path).unwrap();
        file.seek(SeekFrom::Start(13 * HOLE)).unwrap();
        let mut kept = String::new();
        file.read_to_string(&mut kept).unwrap();
        assert!(kept.len() as u64 == 4 * HOLE + 7 && kept.starts_with("xxx"));
        assert!(kept.ends_with("xlogin: "));
    }
}

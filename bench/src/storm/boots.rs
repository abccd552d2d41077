//! Recorded boots, and the image that they read.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An image without a file of its own has data in whole parts of this length that a boot touches.
const PART: u64 = 1 << 20;
/// Reads of a generated boot, and how much it reads one after the other.
const GENERATED: u64 = 1000;

/// What guests read while they boot, and where from.
pub(crate) struct Boots {
    /// Offsets and lengths, in the order of asking; one list for each recording.
    pub(crate) reads: Vec<Vec<(u64, u32)>>,
    /// The raw image.
    pub(crate) image: PathBuf,
    file: File,
}

impl Boots {
    /// The boots in `files`, the first `most` reads of each, of `image`; without an image one is
    /// made in `scratch`, and without files boots are made up.
    pub(crate) fn load(
        files: &[PathBuf],
        image: Option<&Path>,
        most: usize,
        scratch: &Path,
    ) -> Result<Self> {
        let mut reads = match files {
            [] => vec![made_up()],
            files => files.iter().map(|file| recorded(file)).collect::<Result<_>>()?,
        };
        for list in &mut reads {
            list.truncate(most);
        }
        let image = match image {
            Some(image) => image.to_owned(),
            None => {
                let path = scratch.join("image.raw");
                make_image(&path, &reads)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                path
            }
        };
        let file = File::open(&image).with_context(|| format!("cannot use {}", image.display()))?;
        let size = file.metadata()?.len();
        for list in &mut reads {
            list.retain(|(offset, length)| offset + u64::from(*length) <= size);
        }
        ensure!(reads.iter().all(|list| !list.is_empty()), "a boot reads nothing of the image");
        Ok(Self { reads, image, file })
    }

    /// The reads of client `number`.
    pub(crate) fn of(&self, number: usize) -> &[(u64, u32)] {
        &self.reads[number % self.reads.len()]
    }

    /// One of the recordings, for every client.
    pub(crate) fn only(&self, number: usize) -> Result<Self> {
        let reads = vec![self.reads[number].clone()];
        Ok(Self { reads, image: self.image.clone(), file: self.file.try_clone()? })
    }

    /// Compares what was read at `offset` with the image, of which `expected` gets as much.
    pub(crate) fn check(&self, offset: u64, read: &[u8], expected: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(expected, offset)?;
        ensure!(read == expected, "wrong bytes at offset {offset}");
        Ok(())
    }
}

/// The reads of a trace, in whatever format, or of a file of lines `OFFSET LENGTH`.
fn recorded(path: &Path) -> Result<Vec<(u64, u32)>> {
    if path.extension().is_some_and(|end| end == "txt") {
        let list = crate::store::ranges(path)?;
        return list.into_iter().map(|(at, len)| Ok((at, u32::try_from(len)?))).collect();
    }
    // Recordings have requests that were answered out of order.
    let sorted = trace::OpenTraceOptions { sort: true, ..Default::default() };
    let mut source = trace::open(path, &sorted)?;
    let (mut batch, mut list) = (Vec::new(), Vec::new());
    while source.read(&mut batch)? {
        let reads = batch.iter().filter(|one| one.op == trace::Op::Read && one.length > 0);
        list.extend(reads.map(|one| (one.offset, one.length)));
    }
    ensure!(!list.is_empty(), "{} has no reads", path.display());
    Ok(list)
}

/// Reads as a boot makes them: runs of a few, at places all over 1 GiB. Every call makes the same.
fn made_up() -> Vec<(u64, u32)> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut reads = Vec::new();
    while (reads.len() as u64) < GENERATED {
        let mut at = random(1 << 18) * 4096;
        for _ in 0..1 + random(6) {
            let length = (1 + random(32)) * 4096;
            if at + length <= 1 << 30 {
                reads.push((at, length as u32));
            }
            at += length;
        }
    }
    reads
}

/// An image with data where the boots read: half of every block does not compress, like that of what
/// lies on the disks of Linux systems.
fn make_image(path: &Path, boots: &[Vec<(u64, u32)>]) -> Result<()> {
    let reads = boots.iter().flatten();
    let parts: BTreeSet<u64> =
        reads.clone().flat_map(|(at, len)| at / PART..=(at + u64::from(*len) - 1) / PART).collect();
    let end = parts.last().context("no reads")? + 1;
    let mut file = File::create(path)?;
    file.set_len(end * PART)?;
    let mut buffer = vec![0; PART as usize];
    for part in parts {
        crate::content::fill(&mut buffer, part * PART);
        for block in buffer.chunks_exact_mut(crate::content::GRAIN) {
            let (same, _) = block.split_at_mut(crate::content::GRAIN / 2);
            same.fill(same[0]);
        }
        file.seek(SeekFrom::Start(part * PART))?;
        file.write_all(&buffer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_that_are_made_up_are_the_same_every_time_and_their_image_has_what_they_read() {
        let dir = tempfile::tempdir().unwrap();
        let boots = Boots::load(&[], None, 50, dir.path()).unwrap();
        assert_eq!(boots.of(7), boots.of(0));
        assert_eq!(boots.of(0), &made_up()[..50]);
        let (offset, length) = boots.of(0)[3];
        let mut bytes = vec![0; length as usize];
        File::open(&boots.image).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        assert!(
            bytes.chunks_exact(4096).all(|block| block[2048..].iter().any(|b| *b != block[2048]))
        );
        let mut scratch = vec![0; bytes.len()];
        boots.check(offset, &bytes, &mut scratch).unwrap();
        bytes[5] ^= 1;
        assert!(boots.check(offset, &bytes, &mut scratch).is_err());
    }

    #[test]
    fn recordings_are_ranges_or_traces() {
        let dir = tempfile::tempdir().unwrap();
        let (ranges, csv) = (dir.path().join("a.txt"), dir.path().join("b.csv"));
        std::fs::write(&ranges, "0 4096\n8192 512\n").unwrap();
        std::fs::write(&csv, "time_us,op,offset,length\n1,R,0,4096\n2,W,0,512\n3,R,8192,512\n")
            .unwrap();
        let boots = Boots::load(&[ranges, csv], None, 10, dir.path()).unwrap();
        assert_eq!(boots.reads, [vec![(0, 4096), (8192, 512)], vec![(0, 4096), (8192, 512)]]);
    }
}

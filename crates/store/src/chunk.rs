//! Chunks: how one is stored, found and verified.

use crate::chunker::PAGE;
use crate::encoding::TAG;
use crate::{ChunkId, Encoding, PackId, Settings};
use block::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::num::NonZero;
use std::sync::LazyLock;
use zstd::bulk::{Compressor, Decompressor};

/// Where a chunk is and how to get its bytes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkRef {
    /// The keyed hash of the plain bytes.
    pub id: ChunkId,
    /// Plain bytes: a multiple of 4096, at most 256 KiB.
    pub len: u32,
    /// The pack that holds it.
    pub pack: PackId,
    /// Where it starts in the pack, in bytes.
    pub offset: u32,
    /// Bytes in the pack.
    pub stored: u32,
    /// How they are stored.
    pub encoding: Encoding,
}

impl ChunkRef {
    /// The chunk's plain bytes from what a pack holds of it: opened, decompressed and verified.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt), naming pack and offset, when they are not the chunk's.
    pub fn decode(&self, settings: &Settings, stored: Bytes) -> Result<Bytes> {
        if settings.is_encrypted() && !self.encoding.is_sealed() {
            return Err(self.damaged("it is not sealed, and the store is encrypted"));
        }
        let shrunk = |e: std::io::Error| self.damaged("it does not decompress").with_source(e);
        let plain = match (self.encoding, settings.sealer()) {
            (Encoding::Plain, None) => stored,
            (Encoding::Zstd, None) => {
                Bytes::from(decompress(&stored, self.len as usize).map_err(shrunk)?)
            }
            (encoding, Some(sealer)) => {
                let blocks = (self.len / PAGE as u32) as u16;
                let mut opened = Vec::with_capacity(stored.len());
                sealer
                    .open_chunk(&self.id, blocks, encoding, &stored, &mut opened)
                    .map_err(|_| self.damaged("it is not what was sealed"))?;
                if encoding == Encoding::SealedZstd {
                    opened = decompress(&opened, self.len as usize).map_err(shrunk)?;
                }
                Bytes::from(opened)
            }
            _ => return Err(self.damaged("it is sealed, and the store is not encrypted")),
        };
        self.compare(settings, &plain)?;
        Ok(plain)
    }

    /// Verifies the chunk's bytes as [`decode`](Self::decode) does, without making them a new home.
    pub(crate) fn check(&self, settings: &Settings, stored: &[u8]) -> Result<()> {
        if self.encoding == Encoding::Plain && !settings.is_encrypted() {
            return self.compare(settings, stored);
        }
        if self.encoding != Encoding::Zstd || settings.is_encrypted() {
            return self.decode(settings, Bytes::copy_from_slice(stored)).map(|_| ());
        }
        with_context(|context| {
            context
                .decompress(stored, self.len as usize)
                .map_err(|e| self.damaged("it does not decompress").with_source(e))?;
            self.compare(settings, &context.scratch)
        })
    }

    /// Whether these are the chunk's bytes.
    fn compare(&self, settings: &Settings, plain: &[u8]) -> Result<()> {
        if plain.len() != self.len as usize {
            return Err(self.damaged("its length is wrong"));
        }
        if id_of(settings, plain) != self.id {
            return Err(self.damaged("its hash is wrong"));
        }
        Ok(())
    }

    pub(crate) fn damaged(&self, why: &str) -> Error {
        Error::corrupt(format!(
            "packs/{}: chunk at offset {} is damaged: {why}; restore the pack from a backup, or \
             remove it and import the image again",
            self.pack, self.offset
        ))
    }
}

/// The id of a chunk with these plain bytes.
pub fn id_of(settings: &Settings, plain: &[u8]) -> ChunkId {
    ChunkId(*blake3::keyed_hash(settings.chunk_key(), plain).as_bytes())
}

#[derive(Default)]
struct Context {
    compressor: Option<(i32, Compressor<'static>)>,
    /// Room for the longest compressed chunk.
    scratch: Vec<u8>,
    decompressor: Option<Decompressor<'static>>,
}

/// Contexts that nobody uses, that of the last use on top. One is some 100 KiB to 1 MiB of tables: it is
/// not made anew for each chunk, nor kept by each of the hundreds of threads that worked on one once.
static IDLE: Mutex<Vec<Context>> = Mutex::new(Vec::new());
/// How many are kept: more than that do not work at a time.
static MOST_IDLE: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get));

fn with_context<T>(work: impl FnOnce(&mut Context) -> T) -> T {
    let idle = IDLE.lock().pop();
    let mut context = idle.unwrap_or_default();
    let done = work(&mut context);
    let mut idle = IDLE.lock();
    if idle.len() < *MOST_IDLE {
        idle.push(context);
    }
    done
}

/// The bytes that a pack gets for a chunk, and how they encode it.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal) when the compression or the cipher fails.
pub fn encode(settings: &Settings, id: &ChunkId, plain: Bytes) -> Result<(Encoding, Bytes)> {
    encode_at(settings, settings.compression_level(), id, plain)
}

/// The same at another level of zstd than the store's.
pub(crate) fn encode_at(
    settings: &Settings,
    level: i32,
    id: &ChunkId,
    plain: Bytes,
) -> Result<(Encoding, Bytes)> {
    let packed = compress(&plain, level)?;
    let Some(sealer) = settings.sealer() else {
        return Ok(match packed {
            Some(packed) => (Encoding::Zstd, packed.into()),
            None => (Encoding::Plain, plain),
        });
    };
    let blocks = (plain.len() / PAGE) as u16;
    let (encoding, mut bytes) = match packed {
        Some(packed) => (Encoding::SealedZstd, packed),
        None => {
            let mut bytes = Vec::with_capacity(plain.len() + TAG);
            bytes.extend_from_slice(&plain);
            (Encoding::Sealed, bytes)
        }
    };
    sealer.seal_chunk(id, blocks, encoding, &mut bytes)?;
    Ok((encoding, bytes.into()))
}

/// The compressed bytes, with room for a seal; `None` when they are not shorter.
pub(crate) fn compress(plain: &[u8], level: i32) -> Result<Option<Vec<u8>>> {
    let run = |context: &mut Context| -> std::io::Result<Option<Vec<u8>>> {
        let compressor = match &mut context.compressor {
            Some((at, compressor)) if *at == level => compressor,
            other => &mut other.insert((level, Compressor::new(level)?)).1,
        };
        context.scratch.clear();
        context.scratch.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        let len = compressor.compress_to_buffer(plain, &mut context.scratch)?;
        // A copy of the right length: many of them wait for their pack.
        Ok((len < plain.len()).then(|| {
            let mut packed = Vec::with_capacity(len + TAG);
            packed.extend_from_slice(&context.scratch[..len]);
            packed
        }))
    };
    with_context(run).map_err(|e| Error::internal("zstd does not compress a chunk").with_source(e))
}

impl Context {
    /// Puts the plain bytes, which ought to be `len`, into the scratch.
    fn decompress(&mut self, stored: &[u8], len: usize) -> std::io::Result<()> {
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new()?),
        };
        self.scratch.clear();
        self.scratch.reserve(len);
        decompressor.decompress_to_buffer(stored, &mut self.scratch).map(|_| ())
    }
}

/// The plain bytes, at most `len` of them.
pub(crate) fn decompress(stored: &[u8], len: usize) -> std::io::Result<Vec<u8>> {
    with_context(|context| {
        let decompressor = match &mut context.decompressor {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new()?),
        };
        decompressor.decompress(stored, len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use block::ErrorKind;

    fn sample(plain: &[u8]) -> (Settings, ChunkRef, Bytes) {
        let settings = testing::settings();
        let packed = compress(plain, 3).unwrap();
        let (encoding, stored) = match packed {
            Some(packed) => (Encoding::Zstd, Bytes::from(packed)),
            None => (Encoding::Plain, Bytes::copy_from_slice(plain)),
        };
        let at = ChunkRef {
            id: id_of(&settings, plain),
            len: plain.len() as u32,
            pack: PackId([3; 32]),
            offset: 16,
            stored: stored.len() as u32,
            encoding,
        };
        (settings, at, stored)
    }

    #[test]
    fn threads_keep_no_memory_of_what_they_compressed() {
        let threads = *MOST_IDLE + 20;
        let all_at_once = std::sync::Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| with_context(|_| all_at_once.wait()));
            }
        });
        let idle = IDLE.lock().len();
        assert!(idle <= *MOST_IDLE, "{idle}");
    }

    #[test]
    fn a_chunk_that_does_not_shrink_is_stored_plain() {
        let noise = testing::noise(7, 4096);
        let (settings, at, stored) = sample(&noise);
        assert_eq!((at.encoding, stored.len()), (Encoding::Plain, 4096));
        assert_eq!(at.decode(&settings, stored).unwrap(), noise);
        let (settings, at, stored) = sample(&[5; 65536]);
        assert_eq!(at.encoding, Encoding::Zstd);
        assert_eq!(at.decode(&settings, stored).unwrap(), [5; 65536].as_slice());
    }

    #[test]
    fn damage_is_corrupt_and_names_the_pack_and_offset() {
        let (settings, at, stored) = sample(&[5; 65536]);
        for position in 0..stored.len() {
            let mut bad = stored.to_vec();
            bad[position] ^= 0x10;
            // A flip in a field that zstd ignores may still give the right bytes.
            assert_eq!(
                at.check(&settings, &bad).is_ok(),
                at.decode(&settings, bad.clone().into()).is_ok(),
                "both judge alike"
            );
            match at.decode(&settings, bad.into()) {
                Ok(plain) => assert_eq!(plain, [5; 65536].as_slice()),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corrupt);
                    assert!(
                        e.message().contains(&format!("packs/{}: chunk at offset 16", at.pack))
                    );
                }
            }
        }
        let (settings, at, stored) = sample(&testing::noise(1, 4096));
        let mut bad = stored.to_vec();
        bad[4000] ^= 1;
        assert!(at.decode(&settings, bad.into()).is_err());
    }

    #[test]
    fn decompression_never_gives_more_than_the_known_length() {
        let (settings, at, stored) = sample(&[5; 65536]);
        let short = ChunkRef { len: 4096, ..at };
        assert_eq!(short.check(&settings, &stored).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(short.decode(&settings, stored).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

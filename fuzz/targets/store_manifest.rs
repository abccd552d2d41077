//! Manifests: a root, or a segment below a sound root.
#![no_main]

use block::Span;
use libfuzzer_sys::fuzz_target;
use sojourn_fuzz::{Objects, block_on, seal};

/// What the pieces of a manifest must be: in order, without a gap, and no more than was asked for.
fn check(id: &blake3::Hash) {
    let objects = Objects::shared();
    block_on(async {
        let id = id.to_hex().parse().expect("an id");
        let Ok(manifest) = objects.store.manifest(&id).await else { return };
        let size = manifest.size();
        for span in [Span::whole(size.min(1 << 28)), Span::between(size - 1, size)] {
            let Ok(pieces) = manifest.pieces(span).await else { continue };
            let mut at = span.offset();
            for piece in pieces {
                assert_eq!(piece.span.offset(), at);
                at = piece.span.end();
            }
            assert_eq!(at, span.end());
        }
        let _ = manifest.chunks().await;
    });
}

/// The part of an object that its id is the hash of: the body, without the frame.
fn hashed(mode: u8, rest: &[u8]) -> &[u8] {
    if mode & 2 == 0 { rest.get(16..).unwrap_or_default() } else { rest }
}

fuzz_target!(|data: &[u8]| {
    let Some(([mode, blocks @ ..], rest)) = data.split_first_chunk::<3>() else { return };
    let objects = Objects::shared();
    if mode & 1 == 0 {
        let id = objects.id("manifest", hashed(*mode, rest));
        let root = if mode & 2 == 0 { rest.to_vec() } else { seal(b"SOJROOT\n", 1, rest) };
        let key = format!("manifests/{id}");
        objects.put(&key, root);
        check(&id);
        objects.remove(&key);
        return;
    }
    let segment_id = objects.id("segment", hashed(*mode, rest));
    let segment = if mode & 2 == 0 { rest.to_vec() } else { seal(b"SOJSEGM\n", 1, rest) };
    let size = (u64::from(u16::from_le_bytes(*blocks)) + 1) * 4096;
    let mut body = size.to_le_bytes().to_vec();
    body.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    body.extend_from_slice(segment_id.as_bytes());
    let root = seal(b"SOJROOT\n", 1, &body);
    let id = objects.id("manifest", &body);
    let keys = [format!("segments/{segment_id}"), format!("manifests/{id}")];
    objects.put(&keys[0], segment);
    objects.put(&keys[1], root);
    check(&id);
    keys.iter().for_each(|key| objects.remove(key));
});

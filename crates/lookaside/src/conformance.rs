//! The suite that every source must pass.
//!
//! A library function and not a test, so that every source runs the same one. It panics where one breaks
//! the contract of [`ChunkSource`].

#![allow(clippy::expect_used)] // a suite speaks by panicking

use crate::ChunkSource;
use block::ErrorKind;
use bytes::Bytes;
use store::{ChunkId, ChunkRef, Encoding, PackId, Settings};

/// A chunk as somebody asks for it who knows only its plain bytes.
pub fn asked_for(settings: &Settings, plain: &[u8]) -> ChunkRef {
    ChunkRef {
        id: settings.chunk_id(plain),
        len: plain.len() as u32,
        pack: PackId([0; 32]),
        offset: 0,
        stored: plain.len() as u32,
        encoding: Encoding::Plain,
    }
}

/// Checks an honest source that has `chunks`, all of them, and chooses to have no others of those asked
/// for here.
///
/// # Panics
/// When the source breaks the contract.
pub async fn check(source: &dyn ChunkSource, settings: &Settings, chunks: &[Bytes]) {
    assert!(!source.name().is_empty(), "it has a name");
    assert!(source.estimate().bandwidth > 0);
    assert!(source.chunks() >= chunks.len() as u64, "it says how much it has");
    // In an order of their own, and again: it is asked at random.
    for plain in chunks.iter().rev().chain(chunks) {
        let at = asked_for(settings, plain);
        assert!(source.claims(&at.id), "it claims what it has");
        let answer = source.chunk(&at).await.expect("it gives what it claims");
        assert!(!answer.is_empty());
        let verified = answer.verify(settings, &at).expect("it is honest");
        assert_eq!(&verified, plain);
    }
    // Side by side.
    let wanted: Vec<_> = chunks.iter().map(|plain| asked_for(settings, plain)).collect();
    let answers = futures::future::join_all(wanted.iter().map(|at| source.chunk(at))).await;
    for (answer, (at, plain)) in answers.into_iter().zip(wanted.iter().zip(chunks)) {
        let answer = answer.expect("it answers several at a time");
        assert_eq!(&answer.verify(settings, at).expect("it is honest"), plain);
    }
    // A reader that goes away takes nobody along.
    for at in &wanted {
        let mut left = Box::pin(source.chunk(at));
        let _ = futures::poll!(&mut left);
        drop(left);
        source.chunk(at).await.expect("it goes on");
    }
    // What it does not have.
    let strange = ChunkRef { id: ChunkId([0xa5; 32]), ..wanted[0] };
    assert!(!source.claims(&strange.id));
    let error = source.chunk(&strange).await.expect_err("it has no such chunk");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // The same id with another length is another chunk: whatever comes, it is not taken for it.
    let wrong = ChunkRef { len: wanted[0].len + 4096, ..wanted[0] };
    if let Ok(answer) = source.chunk(&wrong).await {
        assert!(answer.verify(settings, &wrong).is_err());
    }
}

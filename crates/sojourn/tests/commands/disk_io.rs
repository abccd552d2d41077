//! Private blocks that the page cache does not hold, read in each way to wait for the disk.

use crate::common::{Lab, MIB, content, listing};
use block::{Device, Durability, Span};
use rustix::fs::Advice;
use std::fs::File;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Drops the pages of all files of private blocks from the cache.
fn forget_private_blocks(lab: &Lab) {
    let mut files = 0;
    for (path, _) in listing(&lab.home()) {
        if path.extension().is_some_and(|end| end == "data") {
            let file = File::open(path).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            files += 1;
        }
    }
    assert!(files > 0, "no private blocks");
}

/// Writes and reads a disk of a server with this configuration; returns how it waits for the disk.
async fn written_and_read(config: &str) -> String {
    let (lab, _) = Lab::with_image();
    std::fs::write(lab.home().join("sojourn.toml"), config).unwrap();
    lab.line("disk create alice --from debian").ok();
    let server = lab.serve(&[]);
    let remote = server.attach("alice").await.unwrap();
    let (span, data) = (Span::whole(2 * MIB), content(2 * MIB, 7));
    remote.write(span, &data, Durability::Durable).await.unwrap();
    forget_private_blocks(&lab);
    let (shared, data) = (Arc::new(remote), Arc::new(data));
    let mut reads = JoinSet::new();
    for piece in span.pieces(4096) {
        let (remote, data) = (Arc::clone(&shared), Arc::clone(&data));
        reads.spawn(async move {
            let mut buf = vec![0; piece.len() as usize];
            remote.read(piece, &mut buf).await.unwrap();
            assert!(buf == data[piece.index_in(span)], "at {}", piece.offset());
        });
    }
    while let Some(read) = reads.join_next().await {
        read.unwrap();
    }
    let status = tokio::task::block_in_place(|| lab.json("status"));
    drop(shared);
    assert_eq!(tokio::task::block_in_place(|| server.stop()), 0);
    status["io"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_come_back_from_the_disk_whichever_way_the_server_waits_for_it() {
    assert_eq!(written_and_read("").await, "portable");
    let allowed = block::Ring::start(1).is_ok();
    let expected = if allowed { "ring" } else { "portable" };
    assert_eq!(written_and_read("[serve]\nio = \"ring\"\n").await, expected);
}

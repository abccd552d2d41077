//! Damage in the store, through the command line: found, read around, repaired.

use crate::common::Lab;
use std::path::{Path, PathBuf};

fn files(dir: &Path) -> Vec<PathBuf> {
    crate::common::listing(dir).into_iter().map(|(path, _)| path).collect()
}

/// Copies a store.
fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(file, target).unwrap();
    }
}

/// Damages the data of the only pack.
fn damage(lab: &Lab) {
    let pack = files(&lab.home().join("store/packs")).remove(0);
    let mut bytes = std::fs::read(&pack).unwrap();
    let len = bytes.len();
    bytes[len / 3] ^= 0xff;
    std::fs::write(pack, bytes).unwrap();
}

#[test]
fn damage_is_found_by_verify_and_healed_by_repair_from_the_image() {
    let (lab, golden) = Lab::with_image();
    let clean = lab.json("verify");
    assert_eq!(clean["faults"].as_array().unwrap().len(), 0);
    assert!(clean["packs"].as_u64().unwrap() >= 1 && clean["names"] == 1);
    damage(&lab);
    let found = lab.line("verify");
    assert!(found.stdout.contains("damaged") && found.stdout.contains("image debian:1"));
    found.fails(7, &["packs/", "repair --from"]);
    lab.line("verify debian:1").fails(7, &["packs/"]);
    lab.line("verify debian:9").fails(3, &["debian:9"]);
    assert_eq!(lab.line("verify --sample 0%").code, 2, "an empty sample");
    lab.line("repair --from golden.raw --dry-run").ok();
    lab.line("verify").fails(7, &[]);
    let report = lab.json("repair --from golden.raw");
    assert_eq!(report["healed_chunks"], 1);
    assert_eq!(report["left"].as_array().unwrap().len(), 0);
    lab.line("verify --sample 50%").ok();
    lab.line("verify").ok();
    lab.line("image export debian out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
}

#[test]
fn what_no_source_has_stays_broken_and_is_named() {
    let (lab, _) = Lab::with_image();
    damage(&lab);
    lab.file("foreign.raw", &crate::common::content(crate::common::MIB, 99));
    let done = lab.line("repair --from foreign.raw");
    assert!(done.stdout.contains("image debian:1"), "{}", done.stdout);
    done.fails(7, &["packs/", "import the images again"]);
    lab.line("image import golden.raw debian").ok();
    lab.line("repair").ok();
    lab.line("verify").ok();
}

#[test]
fn reads_heal_from_a_source() {
    let (lab, golden) = Lab::with_image();
    let backup = lab.path("backup");
    copy(&lab.home().join("store"), &backup);
    damage(&lab);
    lab.line("image export debian out.raw").fails(7, &["packs/"]);
    let found = lab.line("verify --source backup");
    assert!(found.stdout.contains("sources have 1 of its 1"), "{}", found.stdout);
    lab.line("image export debian out.raw --source backup").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    lab.line("image export debian out.raw --force --source nowhere").fails(3, &["nowhere"]);
}

#[tokio::test]
async fn a_server_heals_reads_and_counts_them_and_without_a_source_only_the_range_fails() {
    use block::{Device, Span};
    let (lab, golden) = Lab::with_image();
    copy(&lab.home().join("store"), &lab.path("backup"));
    damage(&lab);
    let whole = Span::whole(golden.len() as u64);
    let mut bytes = vec![0; golden.len()];
    let server = lab.serve(&["--source", "backup"]);
    let image = server.attach("debian").await.unwrap();
    image.read(whole, &mut bytes).await.unwrap();
    assert!(bytes == golden);
    // The store's own read finds the damage, unless the copy was quicker: it is a source as well.
    let status = lab.json("status");
    let copy = &status["sources"][0];
    assert!(copy["name"].as_str().unwrap().ends_with("/backup"), "{copy}");
    let healed = status["store"]["healed"].as_u64().unwrap();
    assert!(healed + copy["had"].as_u64().unwrap() >= 1, "{status}");
    image.close().await;
    assert_eq!(server.stop(), 0);
    let server = lab.serve(&[]);
    let image = server.attach("debian").await.unwrap();
    let mut failed = 0;
    for span in whole.pieces(64 << 10) {
        let mut part = vec![0; span.len() as usize];
        match image.read(span, &mut part).await {
            Ok(()) => assert!(part == golden[span.index_in(whole)]),
            Err(_) => failed += 1,
        }
    }
    assert!((1..=6).contains(&failed), "{failed} ranges of 64 KiB");
    image.close().await;
    let log = server.log();
    for word in ["debian", "offset", "packs/"] {
        assert!(log.contains(word), "no {word:?} in {log}");
    }
    assert_eq!(server.stop(), 0);
}

//! What a home keeps of a store in a bucket is not taken for what the bucket has.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::s3::S3;
use sojourn_tests::{Home, content};
use std::path::{Path, PathBuf};

/// The exit code for damage.
const CORRUPT: i32 = 7;

/// A home whose store is a bucket, and that keeps what it reads of it.
fn home_of(s3: &S3) -> Home {
    Home::made_in(&s3.environment(None), &["--store", "s3://bucket/store"])
}

/// The files of a kind of objects in a bucket.
fn files(s3: &S3, kind: &str) -> Vec<PathBuf> {
    fn below(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { below(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    below(&s3.bucket().join("store").join(kind), &mut found);
    found
}

#[test]
fn a_verification_and_a_restoration_see_what_is_gone_from_a_bucket_and_kept_here() {
    let Some(s3) = S3::start() else { return };
    let home = home_of(&s3);
    home.import("golden", &content::random(301, 4 << 20));
    home.run(&["image", "export", "golden", home.path("out.raw").to_str().unwrap()]);
    home.run(&["verify"]);
    assert!(home.home().join("pieces").is_dir(), "the home keeps what it reads");
    let segments = files(&s3, "segments");
    assert!(!segments.is_empty());
    let aside = home.path("aside");
    std::fs::rename(&segments[0], &aside).unwrap();
    home.fails(CORRUPT, &["verify"]);
    home.fails(CORRUPT, &["image", "verify", "golden"]);
    home.run(&["image", "remove", "golden:1"]);
    home.fails(3, &["image", "restore", "golden:1"]);
    std::fs::rename(&aside, &segments[0]).unwrap();
    home.run(&["image", "restore", "golden:1"]);
    home.run(&["verify"]);
}

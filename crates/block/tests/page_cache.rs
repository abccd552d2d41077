//! File systems whose device is taken away and put back, as root.

#![allow(
    clippy::disallowed_methods,
    reason = "the kernel's file systems are mounted by their tools"
)]
#![allow(clippy::print_stderr, reason = "it says why it skips")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

use block::fs::FsPath;
use block::page_cache::PageCacheId;
use std::path::Path;
use std::process::Command;

/// Whether the command was done; says why not.
fn done(program: &str, args: &[&str]) -> bool {
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(e) => {
            eprintln!("{program}: {e}");
            false
        }
    }
}

/// The identities of a file system on `image`, asked for twice while it is attached; `None` where it cannot be.
fn attached(kind: &str, image: &str, at: &str) -> Option<[Option<PageCacheId>; 2]> {
    if !done("mount", &["-t", kind, "-o", "loop", image, at]) {
        return None;
    }
    let path = FsPath::from(Path::new(at));
    let found = [path.page_cache(), path.page_cache()];
    // Who looks into every mount may have it open.
    let unmounted = (0..100).any(|_| {
        done("umount", &[at]) || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            false
        }
    });
    assert!(unmounted, "{at} stays mounted");
    Some(found.map(|id| id.expect("an identity")))
}

/// Else notes of what was answered and not synced would count after a device was pulled and put back.
#[test]
fn a_file_system_whose_device_came_back_has_another_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let at = path("mounted");
    std::fs::create_dir(&at).unwrap();
    for kind in ["ext4", "xfs", "btrfs"] {
        let (image, make) = (path(kind), format!("mkfs.{kind}"));
        std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
        if !rustix::process::geteuid().is_root() || !done(&make, &["-q", &image]) {
            eprintln!("skipped: {kind} needs root and {make}");
            continue;
        }
        let (Some(before), Some(after)) =
            (attached(kind, &image, &at), attached(kind, &image, &at))
        else {
            eprintln!("skipped: {kind} cannot be mounted here");
            continue;
        };
        assert_eq!(before[0], before[1], "{kind}");
        assert_eq!(after[0], after[1], "{kind}");
        assert!(before[0].is_some(), "{kind}");
        assert_ne!(before[0], after[0], "{kind}");
    }
}

//! Mounts of a test's own. A process that another test starts in a mount namespace of its own keeps
//! copies of what is mounted at that moment: a file system would stay in use after it was unmounted.

use std::process::Command;

const UNSHARE: &[&str] = &["--mount", "--propagation", "private"];
const MARK: &str = "SOJOURN_TEST_OWN_MOUNTS";

/// Whether this process runs in a namespace of its own.
pub(crate) fn is_our_own() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Whether there may be one.
pub(crate) fn is_allowed() -> bool {
    Command::new("unshare").args(UNSHARE).arg("true").output().is_ok_and(|o| o.status.success())
}

/// Runs the test `name` of this program again, in a mount namespace of its own.
pub(crate) fn run_again(name: &str) {
    let status = Command::new("unshare")
        .args(UNSHARE)
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(MARK, "1")
        .status()
        .expect("unshare");
    assert!(status.success(), "{name}: {status}");
}

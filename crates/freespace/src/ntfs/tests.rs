//! The log's restart pages of real Windows systems.

use super::state::restart_pages;
use crate::Code;
use std::path::Path;

/// The log samples, or `None` after saying that they are not there.
fn sample(name: &str) -> Option<Vec<u8>> {
    let shared = std::env::var_os("SOJOURN_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        std::path::PathBuf::from,
    );
    let path = shared.join("fsimages/windows").join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(_) => {
            eprintln!("skipped: there is no {} (set SOJOURN_SHARED)", path.display());
            None
        }
    }
}

#[test]
fn a_log_of_a_running_or_sleeping_windows_is_refused_and_a_clean_one_is_not() {
    if let Some(log) = sample("LogFile_10.bin") {
        assert_eq!(restart_pages(&log).unwrap_err().code, Code::Hibernated);
    }
    let Some(log) = sample("LogFile_10_downgraded.bin") else { return };
    restart_pages(&log).unwrap();
    // The flags are in the restart area, behind the page's update sequence.
    let page = u32::from_le_bytes([log[16], log[17], log[18], log[19]]) as usize;
    let area = usize::from(u16::from_le_bytes([log[0x18], log[0x19]]));
    let mut unclean = log.clone();
    for page in [0, page] {
        unclean[page + area + 0x0E] = 0;
        unclean[page + area + 0x0C..page + area + 0x0E].fill(0);
    }
    assert_eq!(restart_pages(&unclean).unwrap_err().code, Code::NeedsReplay);
    let mut torn = log.clone();
    torn[510] ^= 1;
    assert_eq!(restart_pages(&torn).unwrap_err().code, Code::Structure);
    let mut lost = log.clone();
    lost[page] = b'X';
    assert_eq!(restart_pages(&lost).unwrap_err().code, Code::NeedsReplay);
    let mut newer = log;
    for page in [0, page] {
        newer[page + 0x1C] = 3;
    }
    assert_eq!(restart_pages(&newer).unwrap_err().code, Code::UnknownFeature);
}

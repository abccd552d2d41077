//! The clock of this machine beside the times of what was made here.

use super::finding::Finding;
use super::patient::Patient;
use engine::world;
use std::time::{Duration, UNIX_EPOCH};

/// The clock may be behind a file by this, in seconds: file systems round.
const SLACK: u64 = 5;
/// Nothing here was made before: 1 November 2024, in Unix seconds.
const EARLIEST: u64 = 1_730_419_200;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    let now = world::system().clock.now();
    let remedy = "set the clock, and keep it by NTP (timedatectl set-ntp true)";
    if now < EARLIEST {
        let why =
            "certificates do not hold yet for such a clock, and credentials of stores are refused";
        return vec![Finding::trouble("the clock of this machine is years behind", why, remedy)];
    }
    let newest = [patient.home.config(), patient.home.dir().to_owned(), patient.home.disks()];
    let newest = newest.iter().filter_map(|path| path.metadata().ok()?.modified().ok()).max();
    let newest = newest.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    match newest.map(|time: Duration| time.as_secs()) {
        Some(newest) if newest > now + SLACK => vec![Finding::trouble(
            format!("the clock is {} s behind a file of the home", newest - now),
            "it was set back, or a machine with another clock wrote here: what is kept for a time is kept too long",
            remedy,
        )],
        _ => vec![Finding::ok("the clock is not behind what was made here")],
    }
}

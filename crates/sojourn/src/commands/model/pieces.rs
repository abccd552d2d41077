//! `model fit --add-pieces`: what a piece takes that comes into the server's piece cache.
//!
//! The demands of a miss are measured without a piece cache. With one a load fetches whole pieces, and each is
//! written to the server's disk before anybody is answered. One client reads places that nobody has read
//! before, each in pieces of its own; what the answers take beyond what the profile says of so many bytes is
//! shared out among the pieces.

use super::lookups::{Lookups, export_size, lookups};
use super::{profile, write_file};
use crate::commands::replay::drive;
use crate::output::Output;
use crate::remote;
use block::{BLOCK, Error, Result};
use engine::Home;
use model::{CentreKind, Demand, Profile, ProfileCentre};
use nbd::Uri;
use replay::{ReplayPlan, Script};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// Bytes from one read to the next: beyond the longest chunk and the pieces that it is in.
const APART: u64 = 768 << 10;
/// The most reads.
const READS: u64 = 400;
/// Fewer reads say nothing.
const FEWEST: u64 = 20;
/// Bytes of a chunk in a cache, on average, as `predict --grain` takes it: a profile's miss of a block loads one.
const GRAIN: u64 = 120 << 10;
/// What the caches may have had of the reads.
const KNOWN: f64 = 0.1;
/// The name of the centre.
const NAME: &str = "piece cache";

/// How the note begins that says how.
const PIECES_TAKE: &str = "What pieces take";

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Measured {
    reads: u64,
    /// The mean time of an answer.
    response_ms: f64,
    /// What the profile says of a miss of so many bytes.
    without_ms: f64,
    /// Pieces that a read brought.
    pieces: f64,
    /// What each of them takes in addition.
    piece_ms: f64,
}

/// Measures the export `target`, and writes the profile `without` with what a piece takes to `out`.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) without a home, or a piece cache that is empty and an export that is
/// large enough; [`Unavailable`](block::ErrorKind::Unavailable) when no server runs or a read fails; any error
/// from the files.
pub(super) fn run(
    target: &Uri,
    without: &str,
    out: &Path,
    home: Option<&Home>,
    output: Output,
) -> Result<()> {
    let known = profile(without)?.profile;
    let home =
        home.ok_or_else(|| Error::invalid("--add-pieces asks the server itself: give --home"))?;
    let look = || lookups(home)?.ok_or_else(|| Error::unavailable("no server runs in this home"));
    let script = Script::spread_reads(BLOCK as u32, APART, export_size(target)?, READS)?;
    let reads = script.requests();
    if reads < FEWEST {
        return Err(Error::invalid(format!(
            "the export has room for {reads} reads in pieces of their own, which say nothing: give one of {} MiB \
             or more",
            (FEWEST * APART) >> 20
        )));
    }
    let mut plan = ReplayPlan::new(target.clone(), &script);
    plan.options = remote::options(target)?;
    let before = look()?;
    let (report, _) = drive(Arc::new(script), plan, 1)?;
    let after = look()?;
    if let Some(first) = report.first_error {
        return Err(Error::unavailable(format!("a read failed: {first}")));
    }
    let seen = measured(&known, reads, report.mean_us / 1e6, &before, &after)?;
    let notes = format!(
        "{}{PIECES_TAKE} was measured by sojourn model fit --add-pieces {}, with {reads} reads.",
        notes_of(without),
        env!("CARGO_PKG_VERSION")
    );
    let with = with_pieces(known, seen.piece_ms * 1e-3);
    write_file(out, &model::file::render(&with, &notes)?)?;
    output.print(&seen, || {
        format!(
            "{reads} first reads took {:.3} ms each, {:.3} ms of which is known; {:.3} ms for each of {:.2} pieces; {} \
             is written",
            seen.response_ms,
            seen.without_ms,
            seen.piece_ms,
            seen.pieces,
            out.display()
        )
    })
}

/// What the first lines of a profile's file say of it, a line each.
fn notes_of(profile: &str) -> String {
    let text = std::fs::read_to_string(profile).unwrap_or_default();
    let notes = text.lines().map_while(|line| line.strip_prefix("# "));
    notes.filter(|line| !line.starts_with(PIECES_TAKE)).map(|line| format!("{line}\n")).collect()
}

/// What a piece takes, of reads that took `response` seconds each.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the server has no piece cache, or had read these places before.
fn measured(
    profile: &Profile,
    reads: u64,
    response: f64,
    before: &Lookups,
    after: &Lookups,
) -> Result<Measured> {
    let (Some(then), Some(now)) = (before.pieces, after.pieces) else {
        return Err(Error::invalid(
            "the server has no piece cache: give it one (pieces.size), or take the profile as it is",
        ));
    };
    let (kept, came) = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
    let hits = after.hits.saturating_sub(before.hits);
    if came == 0 || kept as f64 > KNOWN * came as f64 || hits as f64 > KNOWN * reads as f64 {
        return Err(Error::invalid(
            "the server had much of this before: delete its piece cache, start it anew, and measure again",
        ));
    }
    let share = |sum: u64| sum as f64 / reads as f64;
    let bytes = share(after.piece_bytes.saturating_sub(before.piece_bytes)) as u64;
    // As the simulation of a server takes it: what a miss loads beyond the request is the chunk.
    let size = (bytes + BLOCK).saturating_sub(GRAIN).max(BLOCK);
    let of = |centre: &ProfileCentre| {
        let miss = if centre.is_store() { size } else { BLOCK };
        centre.request.at(BLOCK) + centre.miss.at(miss)
    };
    let known: f64 = profile.centres.iter().filter(|centre| centre.name != NAME).map(of).sum();
    let piece = ((response - known) / share(came)).max(0.0);
    Ok(Measured {
        reads,
        response_ms: response * 1e3,
        without_ms: known * 1e3,
        pieces: share(came),
        piece_ms: piece * 1e3,
    })
}

/// The profile of a server whose pieces take so many seconds each.
fn with_pieces(mut profile: Profile, seconds: f64) -> Profile {
    profile.centres.retain(|centre| centre.name != NAME);
    profile.centres.push(ProfileCentre {
        name: NAME.to_owned(),
        kind: CentreKind::Delay,
        request: Demand::default(),
        miss: Demand::default(),
        piece: seconds,
    });
    profile
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(hits: u64, pieces: Option<(u64, u64)>, piece_bytes: u64) -> Lookups {
        Lookups { pid: 1, hits, misses: 0, pieces, piece_bytes }
    }

    #[test]
    fn what_the_profile_does_not_know_of_is_the_pieces() {
        let profile = Profile::transcom().unwrap();
        let before = looked(5, Some((10, 10)), 1000);
        // 240 KiB in two pieces: as a miss of 124 KiB.
        let after = looked(5, Some((10, 210)), 1000 + 100 * (240 << 10));
        let known: f64 = profile.centres.iter().map(|c| c.request.at(4096) + c.miss.at(4096)).sum();
        let disk = &profile.centres[2].miss;
        let known = known + disk.at(124 << 10) - disk.at(4096);
        let seen = measured(&profile, 100, known + 3e-3, &before, &after).unwrap();
        assert!((seen.piece_ms - 1.5).abs() < 1e-6 && seen.pieces == 2.0, "{seen:?}");
        let sooner = measured(&profile, 100, known / 2.0, &before, &after).unwrap();
        assert_eq!(sooner.piece_ms, 0.0);
        let with = with_pieces(with_pieces(profile, 1.0), 2e-3);
        assert_eq!((with.centres.len(), with.centres[4].piece), (5, 2e-3));
        with.check().unwrap();
    }

    #[test]
    fn what_was_read_before_says_nothing() {
        let profile = Profile::transcom().unwrap();
        let before = looked(0, Some((0, 0)), 0);
        for after in [
            looked(0, Some((50, 100)), 1 << 20),
            looked(50, Some((0, 100)), 1 << 20),
            looked(0, Some((0, 0)), 0),
        ] {
            let error = measured(&profile, 100, 1.0, &before, &after).unwrap_err();
            assert!(error.message().contains("delete its piece cache"), "{error}");
        }
        let none = looked(0, None, 0);
        let error = measured(&profile, 100, 1.0, &none, &none).unwrap_err();
        assert!(error.message().contains("pieces.size"), "{error}");
    }
}

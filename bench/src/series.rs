//! All windows of a run. Every round starts each server anew, one after the other, and measures
//! one window of each load, so that a median spans the whole run: a noisy moment of the machine
//! spoils one window of a few cells and no median. A server of ours and the same server of another
//! build (`--before`) are measured one right after the other, and change places every round.

use crate::contender::{self, Bench, Contender, Role, RunningContender};
use crate::filesystem::{Filesystem, FilesystemKind};
use crate::hogs::Hogs;
use crate::load::{self, PatternLoad, WindowSample};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct SeriesOptions {
    /// Length of a window.
    pub(crate) window: Duration,
    /// Windows of each cell.
    pub(crate) rounds: usize,
    /// Size of the disk, bytes.
    pub(crate) size: u64,
    /// Beginnings of the names of the wanted servers; all, when empty.
    pub(crate) only: Vec<String>,
    /// Over TCP on this machine, and not over unix sockets.
    pub(crate) tcp: bool,
    /// The binary of Sojourn.
    pub(crate) sojourn: PathBuf,
    /// Another build of Sojourn to compare with, its binary.
    pub(crate) before: Option<PathBuf>,
    /// Each server has a file system of its own, made anew.
    pub(crate) fresh: Option<FilesystemKind>,
    /// Competing processes that compute all the time.
    pub(crate) hogs: usize,
    /// The loads.
    pub(crate) loads: Vec<PatternLoad>,
}

/// One server's run.
#[derive(Debug)]
pub(crate) struct ServerRun {
    pub(crate) contender: Contender,
    pub(crate) version: String,
    /// One for each load.
    pub(crate) cells: Vec<Cell>,
}

/// One load on one server.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub(crate) samples: Vec<WindowSample>,
    /// Why there is no figure: the first failure in any round.
    pub(crate) failure: Option<String>,
}

/// All servers' runs.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) runs: Vec<ServerRun>,
    /// Servers that cannot run here, and why.
    pub(crate) left_out: Vec<(Contender, String)>,
}

/// Room that a run takes at most, in disks of `Options::size`: of each build the image, a store of it, a copy for
/// each server that writes to a file of its own, and what clients write.
const DISKS: u64 = 7;
/// What a file system takes for itself, bytes: XFS is 300 MiB at least.
const OVERHEAD: u64 = 512 << 20;

impl SeriesOptions {
    /// Room that a run takes at most, bytes.
    pub(crate) fn room(&self) -> u64 {
        let builds = if self.before.is_some() && self.fresh.is_none() { 2 } else { 1 };
        builds * DISKS * self.size + OVERHEAD
    }
}

/// Runs everything in `dir`.
pub(crate) fn run(options: &SeriesOptions, dir: &Path) -> Result<Series> {
    let files_of = |place: &str, sojourn: &Path| -> Result<BuildFiles> {
        let dir = dir.join(place);
        std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let place = match options.fresh {
            None => FilesPlace::Kept(bench(options, &dir, sojourn)?),
            Some(kind) => FilesPlace::Fresh(kind, dir),
        };
        Ok(BuildFiles { sojourn: sojourn.to_owned(), place })
    };
    let builds = Builds {
        now: files_of("now", &options.sojourn)?,
        // A home of its own: builds may differ in their formats.
        before: options.before.as_ref().map(|path| files_of("before", path)).transpose()?,
    };
    let mut series = Series::default();
    for contender in contender::ALL {
        let wanted = contender.role == Role::Limit
            || options.only.is_empty()
            || options.only.iter().any(|name| contender.name.starts_with(name.as_str()));
        if !wanted {
            continue;
        }
        let twin = contender.before().filter(|_| builds.before.is_some());
        for contender in std::iter::once(contender).chain(twin) {
            match contender.version(&builds.of(&contender).sojourn) {
                Ok(version) => {
                    let cells = options.loads.iter().map(|_| Cell::default()).collect();
                    series.runs.push(ServerRun { contender, version, cells });
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    eprintln!("left out: {}: {why}", contender.name);
                    series.left_out.push((contender, why));
                }
            }
        }
    }
    let _hogs = Hogs::start(options.hogs)?;
    for round in 1..=options.rounds {
        for index in order(&series.runs, round) {
            let run = &mut series.runs[index];
            eprintln!("round {round} of {}: {}", options.rounds, run.contender.name);
            run_round(options, builds.of(&run.contender), run);
        }
    }
    Ok(series)
}

fn bench(options: &SeriesOptions, dir: &Path, sojourn: &Path) -> Result<Bench> {
    let bench = Bench::new(dir, options.size, sojourn.to_owned())?;
    Ok(if options.tcp { bench.over_tcp() } else { bench })
}

/// Both builds.
struct Builds {
    now: BuildFiles,
    before: Option<BuildFiles>,
}

impl Builds {
    fn of(&self, contender: &Contender) -> &BuildFiles {
        match (&self.before, contender.role) {
            (Some(before), Role::Before) => before,
            _ => &self.now,
        }
    }
}

/// A build, and the files that its servers work on.
struct BuildFiles {
    sojourn: PathBuf,
    place: FilesPlace,
}

enum FilesPlace {
    /// The same for all servers.
    Kept(Bench),
    /// On a file system for each server, in this directory.
    Fresh(FilesystemKind, PathBuf),
}

/// A server and what it stands on, in the order in which they go.
struct Standing {
    server: RunningContender,
    _filesystem: Option<Filesystem>,
}

impl BuildFiles {
    fn start(&self, options: &SeriesOptions, contender: &Contender) -> Result<Standing> {
        match &self.place {
            FilesPlace::Kept(bench) => {
                Ok(Standing { server: contender.start(bench)?, _filesystem: None })
            }
            FilesPlace::Fresh(kind, dir) => {
                let filesystem = Filesystem::make(*kind, dir, options.room())?;
                let bench = bench(options, filesystem.path(), &self.sojourn)?;
                Ok(Standing { server: contender.start(&bench)?, _filesystem: Some(filesystem) })
            }
        }
    }
}

/// In which order the servers are measured: a server's twin right behind it, and in every other
/// round right before it.
fn order(runs: &[ServerRun], round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    if round.is_multiple_of(2) {
        for (index, run) in runs.iter().enumerate() {
            if run.contender.role == Role::Before {
                order.swap(index - 1, index);
            }
        }
    }
    order
}

/// One window of each load on a fresh server; on another one from there where a load wants private disks that
/// nobody wrote to, and somebody did. Of servers of one raw file that is the same file again.
fn run_round(options: &SeriesOptions, files: &BuildFiles, run: &mut ServerRun) {
    let contender = run.contender;
    let start = || files.start(options, &contender).map_err(|error| format!("{error:#}"));
    let (mut standing, mut touched) = (start(), false);
    for (load, cell) in options.loads.iter().zip(&mut run.cells) {
        if load.wants_untouched() {
            if touched && standing.is_ok() {
                drop(standing); // before the other one takes its room
                (standing, touched) = (start(), false);
            }
            // What was written before is not written back in this window.
            rustix::fs::sync();
        }
        touched |= load.writes();
        let result = match &standing {
            Ok(Standing { server, .. }) => load::measure(
                *load,
                options.window,
                options.size,
                server.place(),
                &|index| server.export(index),
                &mut server.tree(),
            )
            .map_err(|error| match server.alive() {
                true => format!("{error:#}"),
                false => format!("the server died ({error:#})"),
            }),
            Err(why) => Err(why.clone()),
        };
        match result {
            Ok(sample) => cell.samples.push(sample),
            Err(why) => {
                eprintln!("  {}: {why}", load.name());
                cell.failure.get_or_insert(why);
            }
        }
        if standing.as_ref().is_ok_and(|standing| !standing.server.alive()) {
            standing = Err(format!("not running: the server died in {}", load.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_are_measured_side_by_side_and_change_places_every_round() {
        let run = |contender| ServerRun { contender, version: String::new(), cells: Vec::new() };
        let file = contender::ALL[1];
        let runs = [contender::ALL[0], file, file.before().unwrap(), contender::ALL[4]].map(run);
        assert_eq!(order(&runs, 1), [0, 1, 2, 3]);
        assert_eq!(order(&runs, 2), [0, 2, 1, 3]);
        assert_eq!(order(&runs, 3), [0, 1, 2, 3]);
    }
}

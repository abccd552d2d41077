//! Commands that run to their end, and what they cost.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Clock ticks of a second in `/proc/PID/stat`: `USER_HZ` is fixed in Linux' interface.
const TICKS: f64 = 100.0;

/// What a command cost.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CommandCost {
    /// CPU seconds, user and system, of the command and all that it waited for.
    pub(crate) cpu: f64,
    /// Seconds from start to end.
    pub(crate) wall: f64,
}

impl CommandCost {
    /// The lesser of each.
    pub(crate) fn least(self, other: Self) -> Self {
        Self { cpu: self.cpu.min(other.cpu), wall: self.wall.min(other.wall) }
    }
}

/// CPU seconds of all children that ended so far.
fn of_children() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("no /proc")?;
    // The name before the last parenthesis may hold anything; fields 16 and 17 of proc(5) follow.
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    let (user, system) = ticks(13).zip(ticks(14)).context("/proc/self/stat is short")?;
    Ok((user + system) / TICKS)
}

/// Runs a command; fails with what it said when it fails.
pub(crate) fn run(command: &mut Command) -> Result<CommandCost> {
    printed(command).map(|(cost, _)| cost)
}

/// Does what [`run`] does, and gives what the command printed.
pub(crate) fn printed(command: &mut Command) -> Result<(CommandCost, String)> {
    command.stdin(Stdio::null());
    let (before, start) = (of_children()?, Instant::now());
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let cost = CommandCost { cpu: of_children()? - before, wall: start.elapsed().as_secs_f64() };
    ensure!(
        output.status.success(),
        "{command:?} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok((cost, String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Bytes that a file takes on disk, or a directory with all that is below it, as du counts them: many
/// small files cost more than their lengths.
pub(crate) fn room_of(path: &Path) -> Result<u64> {
    let metadata = std::fs::symlink_metadata(path)
        .with_context(|| format!("cannot look at {}", path.display()))?;
    let mut sum = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path)? {
            sum += room_of(&entry?.path())?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_command_costs_what_it_used_and_a_failed_one_says_why() {
        let busy =
            run(Command::new("sh")
                .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]));
        let busy = busy.unwrap();
        assert!(busy.cpu > 0.0, "{busy:?}");
        let idle = run(Command::new("sleep").arg("0.2")).unwrap();
        assert!(idle.wall >= 0.2, "{idle:?}");
        let error = run(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no luck"), "{error}");
    }

    #[test]
    fn a_directory_takes_the_room_of_its_files_and_its_own() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/b"), vec![1; 1 << 20]).unwrap();
        let file = room_of(&dir.path().join("a/b")).unwrap();
        assert!(file >= 1 << 20, "{file}");
        std::fs::write(dir.path().join("c"), [1; 24]).unwrap();
        let small = room_of(&dir.path().join("c")).unwrap();
        assert!(room_of(dir.path()).unwrap() >= file + small);
        assert!(room_of(&dir.path().join("absent")).is_err());
    }
}
